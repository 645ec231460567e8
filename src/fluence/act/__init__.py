"""Act: carries out the decisions of a cycle on an API server."""
