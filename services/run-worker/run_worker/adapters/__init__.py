"""The only importers of asyncpg, redis and langgraph."""
