"""Pure parts: bodies, keys, JSON shapes, SSE frames, problems, the register of open streams."""
