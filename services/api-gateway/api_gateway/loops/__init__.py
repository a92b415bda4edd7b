"""Background work of the gateway."""
