"""Sandboxes of threads on one container engine."""
