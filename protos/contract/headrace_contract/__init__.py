"""What services agree on beside the protos: the Redis projection and the names in traces."""
