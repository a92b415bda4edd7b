"""What graph authors import."""
