"""Fluence: a Kubernetes scheduler that plans like an HPC scheduler."""
