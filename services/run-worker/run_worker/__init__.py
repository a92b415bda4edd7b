"""Durable runs and their execution."""
