"""The image: one OCI archive with every program of Fluence, made without Docker."""
