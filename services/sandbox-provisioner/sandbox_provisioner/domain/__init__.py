"""Pure rules of sandboxes: no engine, no database, no clock."""
