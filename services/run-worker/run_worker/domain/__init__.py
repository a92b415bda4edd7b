"""Pure rules and values: no I/O."""
