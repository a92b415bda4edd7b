"""Background work: each module is one task that `server` owns."""
