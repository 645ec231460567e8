"""The edge of the scheduler: lease, watches, the loop, health and metrics; all of its asyncio is here."""
