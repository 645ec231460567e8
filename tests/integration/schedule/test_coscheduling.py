"""The coscheduling plugin's PodGroups, which the first Fluence made, size gangs where they are installed."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from fluence.kube.client import Client
from fluence.kube.gangs import Coscheduling, discover_coscheduling
from fluence.sandbox.testing import Kube
from tests.integration.schedule import custom_groups
from tests.integration.schedule.custom_groups import add_group
from tests.integration.schedule.field import field


def installed(client: Client) -> AbstractAsyncContextManager[None]:
    """As sigs.k8s.io/scheduler-plugins installs it."""
    return custom_groups.installed(
        client,
        Coscheduling.resource,
        discover_coscheduling,
        spec={"properties": {"minMember": {"type": "integer", "minimum": 1}}},
        annotations={"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs"},
    )


async def test_min_member_is_the_size_of_the_gang(own_sandbox: Kube) -> None:
    """On a control plane of its own: a kind that comes and goes disturbs schedulers that start meanwhile."""
    async with field(own_sandbox, 2) as f, installed(f.client), f.scheduler():
        label = {"scheduling.x-k8s.io/pod-group": "train"}
        await f.add(f.pod("a", labels=label), f.pod("b", labels=label))
        assert await f.settled() == {"a": None, "b": None}, "a label that may be ahead of its PodGroup waits"
        await add_group(f, Coscheduling.resource, "train", 3)
        await f.until_told("a", "1 of 3 pods", reason="WaitingForGroup")
        assert await f.homes() == {"a": None, "b": None}
        await f.add(f.pod("c", labels=label))
        await f.until_bound({"a", "b", "c"})
        await f.end("a", "b", "c")


async def test_pod_groups_that_are_installed_later_are_found_without_a_restart(own_sandbox: Kube) -> None:
    label = {"scheduling.x-k8s.io/pod-group": "late"}
    async with field(own_sandbox, 2) as f, f.scheduler():
        await f.add(f.pod("d", labels=label), f.pod("e", labels=label))
        async with installed(f.client):
            await add_group(f, Coscheduling.resource, "late", 2)
            await f.until_bound({"d", "e"})
        await f.end("d", "e")
