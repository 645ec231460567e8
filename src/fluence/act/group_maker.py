"""GroupMaker: the PodGroups of gangs whose pods name one that admission chose (`<gang>.fluence`).

Labels and owners decide what a gang is, with or without this PodGroup. The PodGroup is for `kubectl get
podgroups`, and for kube-scheduler: its pods are disrupted together, so none of them is preempted alone.

It is created once, when the size of the gang is known and before its first pod is bound. It is owned by the
top owners of the pods, or by pods without an owner, so the server deletes it with them. If the API allows it
(1.37), `minCount` follows the size of the gang. An existing PodGroup that is not marked as ours is not
changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from fluence import names
from fluence.act import conditions
from fluence.act.writers import CoalescingWriter, StatusWriter
from fluence.kube.client import Client
from fluence.kube.errors import AlreadyExists, Forbidden, KubeError
from fluence.kube.gangs import AnyGangs, PodGroups137
from fluence.kube.resource import Json, Resource
from fluence.model.owner import Group
from fluence.model.reason import Code
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.status.status import StatusReport

logger = logging.getLogger(__name__)

IN_FLIGHT = 2  # binds come first
MAX_OWNERS = 32
FIRST_S = 2.0  # seconds that the binds of a gang wait for its PodGroup
_UNSETTLED = (Code.GROUP_SETTLES, Code.OWNER_NOT_SEEN, Code.POD_GROUP_OR_SIZE_MISSING)


class GroupMaker:
    """Call ``make`` from the event loop. ``run`` creates PodGroups until cancelled. ``gangs`` is the server's
    API, once known."""

    def __init__(self, client: Client, status: StatusWriter, *, held: Callable[[], bool]) -> None:
        self.made = 0
        self.gangs: AnyGangs | None = None
        self._client = client
        self._status = status
        self._held = held
        self._may_resize = True
        self._creating: dict[tuple[str, str], asyncio.Task[Group | None]] = {}
        self._writer: CoalescingWriter[tuple[str, str], tuple[Gang, StatusReport | None, int]] = (
            CoalescingWriter(self._make, in_flight=IN_FLIGHT, namespace=lambda key, _: key[0])
        )

    def make(self, gang: Gang, report: StatusReport | None, now: int) -> None:
        """Create the PodGroup that lists a gang, if it does not exist, and write its status. If its size
        differs, it is changed."""
        if gang.listed_as is None or not is_sized(gang):
            return
        if gang.listing is None or (report is None and self._is_outdated(gang)):
            self._writer[gang.namespace, gang.listed_as] = (gang, report, now)

    def before_bind(self, gang: Gang | None) -> asyncio.Task[Group | None] | None:
        """The task to wait for before the first pod of a gang is bound; None if there is nothing to wait
        for."""
        if gang is None or gang.listed_as is None or gang.listing is not None or not is_sized(gang):
            return None
        if gang.placed or self._resource() is None:
            return None
        return self._create(gang, gang.listed_as)

    async def run(self) -> None:
        await self._writer.run()

    def _resource(self) -> Resource[Any] | None:
        return self.gangs.resource if self.gangs is not None else None

    def _is_outdated(self, gang: Gang) -> bool:
        """Whether the size in the PodGroup differs and may be changed."""
        is_mutable = isinstance(self.gangs, PodGroups137) and self._may_resize
        return is_mutable and gang.listing is not None and gang.listing.min_count != gang.minimum

    def _create(self, gang: Gang, name: str) -> asyncio.Task[Group | None]:
        """Create a PodGroup once: callers that ask again meanwhile get the same task."""
        key = gang.namespace, name
        task = self._creating.get(key)
        if task is None:
            task = self._creating[key] = asyncio.create_task(self._created(gang, name))
            task.add_done_callback(
                lambda _: asyncio.get_running_loop().call_later(FIRST_S, self._forget, key)
            )
        return task

    def _forget(self, key: tuple[str, str]) -> None:
        self._creating.pop(key, None)

    async def _created(self, gang: Gang, name: str) -> Group | None:
        gangs, resource = self.gangs, self._resource()
        if gangs is None or resource is None or not self._held():
            return None
        try:
            try:
                body = pod_group(gangs, gang, name)
                found = await self._client.create(resource, body, namespace=gang.namespace)
                self.made += 1
            except AlreadyExists:  # it was just created and its event has not arrived, or it is not ours
                found = await self._client.get(resource, name, namespace=gang.namespace)
        except KubeError as error:
            logger.warning("PodGroup %s/%s is not created: %s", gang.namespace, name, error)
            return None
        group = next(iter(gangs.groups(found)), None) if found is not None else None
        return group if group is not None and group.is_listing else None

    async def _make(self, key: tuple[str, str], order: tuple[Gang, StatusReport | None, int]) -> None:
        (namespace, name), (gang, report, now) = key, order
        resource = self._resource()
        if resource is None or not self._held():
            return
        if report is None:
            body: Json = {"spec": {"schedulingPolicy": {"gang": {"minCount": gang.minimum}}}}
            try:
                await self._client.patch(resource, name, body, namespace=namespace)
            except KubeError as error:
                logger.warning("PodGroup %s/%s keeps its size: %s", namespace, name, error)
                # Nothing depends on the size, and an installation may leave this right out.
                self._may_resize = self._may_resize and not isinstance(error, Forbidden)
            return
        group = await self._create(gang, name)
        patch = conditions.group_condition(group, report, now=now) if group is not None else None
        if patch is not None:
            self._status.write(resource, namespace, name, patch)


def is_sized(gang: Gang) -> bool:
    """Whether the size of a gang is settled."""
    return gang.fault is None and (gang.missing is None or gang.missing.code not in _UNSETTLED)


def pod_group(gangs: AnyGangs, gang: Gang, name: str) -> Json:
    """The PodGroup of a gang."""
    pods = (*gang.members, *gang.placed, *gang.gated)
    classes = {pod.spec.priority_class_name for pod in pods}
    group = Group(
        namespace=gang.namespace,
        name=name,
        min_count=gang.minimum,
        priority_class=classes.pop() if len(classes) == 1 else None,
        disrupt_together=True,
    )
    body = gangs.manifest(group)
    meta = body["metadata"]
    assert isinstance(meta, dict)
    meta["annotations"] = {names.MADE_FOR: gang.key}
    meta["ownerReferences"] = [
        {**msgspec.to_builtins(each), "controller": False} for each in gang.workloads[:MAX_OWNERS]
    ]
    return body
