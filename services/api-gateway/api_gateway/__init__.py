"""The edge: authentication, HTTP and SSE."""
