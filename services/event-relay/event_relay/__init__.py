"""Redis Streams to gRPC server streams."""
