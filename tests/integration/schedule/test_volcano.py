"""Volcano's PodGroups size the gangs of pods that name them."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from fluence.kube.client import Client
from fluence.kube.gangs import Volcano, discover_custom
from fluence.sandbox.testing import Kube
from tests.integration.schedule import custom_groups
from tests.integration.schedule.custom_groups import add_group
from tests.integration.schedule.field import field


def installed(client: Client) -> AbstractAsyncContextManager[None]:
    """As Volcano installs it."""
    return custom_groups.installed(
        client,
        Volcano.resource,
        discover_custom,
        spec={
            "properties": {"minMember": {"type": "integer", "format": "int32"}},
            "x-kubernetes-preserve-unknown-fields": True,
        },
    )


async def test_volcanos_min_member_is_the_size_of_the_gang(own_sandbox: Kube) -> None:
    """On a control plane of its own: a kind that comes and goes disturbs schedulers that start meanwhile."""
    async with field(own_sandbox, 2) as f, installed(f.client), f.scheduler():
        note = {"scheduling.k8s.io/group-name": "train"}
        await f.add(f.pod("a", annotations=note), f.pod("b", annotations=note))
        assert await f.settled() == {"a": None, "b": None}, "a name that may be ahead of its PodGroup waits"
        await add_group(f, Volcano.resource, "train", 3)
        await f.until_told("a", "1 of 3 pods", reason="WaitingForGroup")
        assert await f.homes() == {"a": None, "b": None}
        await f.add(f.pod("c", annotations=note))
        await f.until_bound({"a", "b", "c"})
        await f.end("a", "b", "c")
