"""The relay's background work: reading tails, asking PostgreSQL, telling health."""
