"""Background work of the two processes."""
