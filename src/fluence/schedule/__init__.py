"""The scheduler: finds gangs, decides what starts, and reports why the rest waits."""
