"""The edge: carries out what a cycle decided, on a real API server."""
