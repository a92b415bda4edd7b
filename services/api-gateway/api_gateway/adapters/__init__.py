"""What talks to other processes: PostgreSQL for API keys, run-worker, event-relay, health probes."""
