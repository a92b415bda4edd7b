"""The relay's ways to Redis and PostgreSQL."""
