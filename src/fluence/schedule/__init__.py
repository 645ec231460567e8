"""The scheduler: which gangs there are, what is tried next, what is told to users."""
