"""Companion: what works beside a scheduler that leads, by what it knows; the FluxJob controller is one."""

from __future__ import annotations

import asyncio
from typing import Protocol

from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Event


class Companion(Protocol):
    """Something that works beside a scheduler that leads, by what it knows."""

    ready: asyncio.Event  # the scheduler may decide: it knows what it is to know from this one

    def changed(self, event: Event) -> None:
        """An object changed, or a write was answered."""

    def decided(self, decisions: Decisions) -> None:
        """A cycle has ended."""

    async def run(self) -> None:
        """Work until cancelled."""
