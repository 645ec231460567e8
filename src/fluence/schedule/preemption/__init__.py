"""Preemption: running work of lower priority is ended so that a gang of higher priority can start."""
