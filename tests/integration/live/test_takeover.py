"""A replica that takes over decides by what is there, not by what it happened to have seen."""

from __future__ import annotations

import contextlib

from fluence.live.scheduler import LiveScheduler
from fluence.sandbox.proxy import Rule
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.live.replica import SOON_S
from tests.integration.schedule.field import field

LABEL = "takeover.example/open"


async def leads(live: LiveScheduler) -> None:
    await eventually(lambda: live.leads, timeout_s=SOON_S, what="it leads")


async def test_a_successor_whose_watch_hangs_does_not_overbook(kube: Kube, audited: None) -> None:
    """What the first leader bound meanwhile came by a watch that was half-open: the node looks empty."""
    watch = Rule(verb="watch", path="/api/v1/pods$", times=1)
    lease = {"lease": True, "lease_name": "fluence", "lease_namespace": kube.namespace}
    async with field(kube, 1, cpu=2) as f, kube.client() as other, contextlib.AsyncExitStack() as stack:
        async with f.scheduler(other, identity="first", **lease) as first:
            await leads(first)
            second = await stack.enter_async_context(f.through(watch, identity="second", **lease))
            await f.add(f.pod("waits", cpu="2", nodeSelector={LABEL: "yes"}))
            await f.until_told("waits")
            seen = second.watches.pods.store
            await eventually(lambda: seen.get("waits", f.namespace), timeout_s=SOON_S, what="it is seen")
            watch.hang_after = 0  # from the next event on
            await f.add(f.pod("hidden", cpu="2"))
            await f.until_bound(["hidden"])
            await f.patch_node(f.nodes[0], {"metadata": {"labels": {LABEL: "yes"}}})
            assert seen.get("hidden", f.namespace) is None
        await leads(second)
        assert (await f.settled(quiet_s=1.5))["waits"] is None
        await f.end("hidden")
        await f.until_bound(["waits"])
