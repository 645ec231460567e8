"""The edge of the scheduler: lease, watches, the main loop, health and metrics. All of its asyncio code is
here."""
