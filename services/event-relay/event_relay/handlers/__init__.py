"""The relay's RPCs."""
