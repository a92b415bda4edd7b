"""The only importers of the Docker SDK."""
