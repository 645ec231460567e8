"""Binder: binds pods in parallel, a bounded number at a time, and releases suspended workloads and held pods.

A pod with our gate loses the gate first. A pod of kube-scheduler is delegated instead: a single patch removes
the gate and pins the node, and kube-scheduler binds it. Facts that a restart could not read from the bind
itself are written to the object's status first, where its owner cannot change them (`model.grant`): devices
and pins of pods, and the nodes of a Job's pods.

The rule for gangs: before the first bind of a job is sent, all of its placements are checked again, and if
one is stale, none is sent. After the first bind, the others follow: each bind is reported by itself, and the
scheduler places pods again that lost their node. Nothing is sent without the lease.

Each patch begins with tests of the version it was made for, so that it does nothing to an object that has
changed. `Binder` sends those of pods, and `Releaser` those of Jobs and of operators' objects.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from fluence import names
from fluence.act.writers import LeaderWriter
from fluence.kube.client import Client, PatchType
from fluence.kube.errors import (
    ONCE,
    ApiConflict,
    ApiError,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    Missing,
    RetryPolicy,
    ServerFault,
    TooManyRequests,
    Unauthorized,
)
from fluence.kube.gangs import resource_of
from fluence.kube.resource import JOBS, PODS, Resource
from fluence.model.grant import (
    PodGrant,
    ReleaseNote,
    fluxqueue_labels,
    has_gate,
    is_delegated,
    is_held,
    pinned_node,
    release_note,
)
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.operators import CustomOwner
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.schedule.events import Bind, BindOutcome, BindResult, Release, ReleaseResult
from fluence.units import rfc3339

Operation = dict[str, object]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMS = f"/spec/affinity/nodeAffinity/{_REQUIRED}/nodeSelectorTerms"


def granted(uid: str, condition: Condition, now: float) -> Operation:
    """The grant of an object, as a strategic merge patch of its status. ``now`` is in seconds."""
    at = rfc3339(int(now) * 1_000_000)
    return {
        "metadata": {"uid": uid},
        "status": {"conditions": [{**msgspec.to_builtins(condition), "lastTransitionTime": at}]},
    }


def granted_to(
    found: Mapping[str, Any], generation: int, condition: Condition, now: float
) -> list[Operation]:
    """The same for a custom object, whose lists the server does not merge: a JSON patch of the object
    ``found``."""
    status = found.get("status") or {}
    conditions = [each for each in status.get("conditions") or () if each.get("type") != condition.type]
    at = rfc3339(int(now) * 1_000_000)
    conditions.append({**msgspec.to_builtins(condition), "lastTransitionTime": at})
    whole = {**status, "conditions": conditions}
    return [
        _test("/metadata/uid", found["metadata"]["uid"]),
        _test("/metadata/generation", generation),
        _test("/metadata/resourceVersion", found["metadata"]["resourceVersion"]),
        _add("/status/conditions", conditions) if "status" in found else _add("/status", whole),
    ]


def ungate(pod: Pod) -> list[Operation]:
    """Remove our gate by its name, and leave the others alone."""
    gates = [each.name for each in pod.spec.scheduling_gates or ()]
    at = f"/spec/schedulingGates/{gates.index(names.GATE_FLUXQUEUE)}"
    return [
        _test("/metadata/uid", pod.metadata.uid),
        _test(f"{at}/name", names.GATE_FLUXQUEUE),
        {"op": "remove", "path": at},
    ]


def hand_over(
    pod: Pod, node: str, *, annotations: Mapping[str, str], labels: Mapping[str, str]
) -> list[Operation]:
    """Remove our gate and pin the pod to its node in one write, so that kube-scheduler binds it there. The
    patch tests the resource version, because the pin depends on the current terms."""
    return [
        *ungate(pod),
        _test("/metadata/resourceVersion", pod.metadata.resource_version),
        *_pin(pod, node),
        *_set(pod.metadata, "annotations", annotations),
        *_set(pod.metadata, "labels", labels),
    ]


def let_go(owner: Owner, note: ReleaseNote) -> list[Operation]:
    """Unsuspend a Job or an object of an operator, unless its spec has changed since it was planned."""
    meta = owner.metadata
    steps = owner.operator.suspend if isinstance(owner, CustomOwner) else ("suspend",)
    path = f"/spec/{'/'.join(steps)}"
    operations = [
        _test("/metadata/uid", meta.uid),
        _test("/metadata/generation", note.generation),
        _test(path, True),
        {"op": "replace", "path": path, "value": False},
    ]
    if not note.nodes:
        return operations
    if not meta.annotations:  # do not overwrite annotations that were added meanwhile
        operations.insert(0, _test("/metadata/resourceVersion", meta.resource_version))
    return [
        *operations,
        *_gated_template(owner),
        *_set(meta, "annotations", note.annotations()),
        *_set(meta, "labels", note.labels()),
    ]


def _gated_template(owner: Owner) -> list[Operation]:
    """Add our gate to the template of a Job whose pods kube-scheduler binds: they wait until each is
    pinned."""
    template = owner.spec.template
    if template is None or template.spec.scheduler_name != names.KUBE_SCHEDULER or has_gate(template.spec):
        return []
    gate = {"name": names.GATE_FLUXQUEUE}
    path = "/spec/template/spec/schedulingGates"
    return [_add(f"{path}/-", gate)] if template.spec.scheduling_gates else [_add(path, [gate])]


def _pin(pod: Pod, node: str) -> list[Operation]:
    """Add the node as one more requirement to every term. A term without requirements matches no node, and
    stays so."""
    pin = {"key": "metadata.name", "operator": "In", "values": [node]}
    fresh: object = {"nodeSelectorTerms": [{"matchFields": [pin]}]}
    affinity = pod.spec.affinity
    if affinity is None:
        return [_add("/spec/affinity", {"nodeAffinity": {_REQUIRED: fresh}})]
    if affinity.node_affinity is None:
        return [_add("/spec/affinity/nodeAffinity", {_REQUIRED: fresh})]
    if affinity.node_affinity.required is None:
        return [_add(f"/spec/affinity/nodeAffinity/{_REQUIRED}", fresh)]
    found = []
    for index, term in enumerate(affinity.node_affinity.required.node_selector_terms or ()):
        if term.match_fields:
            found.append(_add(f"{_TERMS}/{index}/matchFields/-", pin))
        elif term.match_expressions:
            found.append(_add(f"{_TERMS}/{index}/matchFields", [pin]))
    return found


def _set(meta: ObjectMeta, what: str, values: Mapping[str, str]) -> list[Operation]:
    if not getattr(meta, what):
        return [_add(f"/metadata/{what}", dict(values))]
    return [_add(f"/metadata/{what}/{_escaped(key)}", value) for key, value in values.items()]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _test(path: str, value: object) -> Operation:
    return {"op": "test", "path": path, "value": value}


def _add(path: str, value: object) -> Operation:
    return {"op": "add", "path": path, "value": value}


logger = logging.getLogger(__name__)

IN_FLIGHT = 32
RETRY = RetryPolicy()  # of one bind, at once; after that, the scheduler tries again with longer pauses


class Binder:
    """Call ``submit`` from the event loop. ``report`` is called with each result."""

    def __init__(
        self,
        client: Client,
        report: Callable[[BindResult], None],
        *,
        check: Callable[[Bind], BindResult | None],
        held: Callable[[], bool],
        in_flight: int = IN_FLIGHT,
        retry: RetryPolicy = RETRY,
    ) -> None:
        self.sent = 0
        self._client = client
        self._report = report
        self._check = check
        self._held = held
        self._waiting: deque[Bind] = deque()
        self._wake = asyncio.Event()
        self._closed = False
        self._busy = 0
        self._in_flight = in_flight
        self._idle = asyncio.Event()
        self._rng = random.Random()
        self._retry = retry

    @property
    def backlog(self) -> int:
        """Binds without a result yet."""
        return len(self._waiting) + self._busy

    def submit(self, binds: Sequence[Bind]) -> None:
        """Queue the binds of one job."""
        stale = [result for bind in binds if (result := self._check(bind)) is not None]
        if stale:
            faulty = {result.bind.uid: result for result in stale}
            for bind in binds:
                reason = f"pod {stale[0].bind.pod.key}: {stale[0].reason}"
                self._report(faulty.get(bind.uid) or BindResult(bind, BindOutcome.STALE, reason))
            return
        self._waiting.extend(binds)
        self._wake.set()

    async def run(self) -> None:
        """Bind until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._in_flight):
                tasks.create_task(self._work())

    async def drain(self, timeout_s: float = 10.0) -> None:
        """Send nothing more, and wait for the results of what was sent."""
        self._closed = True
        self._waiting.clear()
        try:
            async with asyncio.timeout(timeout_s):
                while self._busy:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            logger.warning("%d binds were not answered within %.0f s", self._busy, timeout_s)

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            if self._closed:
                return
            bind = self._waiting.popleft()
            self._busy += 1
            try:
                result = await self._one(bind)
            except Exception as error:
                logger.exception("pod %s: its bind failed unexpectedly", bind.pod.key)
                result = BindResult(bind, BindOutcome.AGAIN, f"{type(error).__name__}: {error}")
            finally:
                self._busy -= 1
                if not self._busy:
                    self._idle.set()
            self._report(result)

    async def _one(self, bind: Bind) -> BindResult:
        """Send one bind until there is a result. It is checked again before each try."""
        attempt = 0
        while True:
            if not self._held():
                return BindResult(bind, BindOutcome.AGAIN, "this replica does not lead")
            stale = self._check(bind)
            if stale is not None:
                return stale
            self.sent += 1
            attempt += 1
            try:
                if is_delegated(bind.pod):
                    return await self._hand_over(bind)
                await self._bind(bind)
            except KubeError as error:
                pause = self._retry.pause(error, attempt=attempt, repeatable=True, rng=self._rng)
                if pause is None:
                    return await self._failed(bind, error)
                await asyncio.sleep(pause)
            else:
                return BindResult(bind, BindOutcome.BOUND)

    async def _bind(self, bind: Bind) -> None:
        pod = bind.pod
        if bind.grant is not None:
            await self._grant(pod, bind.grant)
        held = is_held(pod)
        if held:
            await self._open(pod)
        labels = _labels(bind) if held else None
        await self._client.bind(pod, bind.node, annotations=bind.annotations, labels=labels, retry=ONCE)

    async def _grant(self, pod: Pod, grant: PodGrant) -> Pod:
        """Write a grant into the status of a pod."""
        meta = pod.metadata
        body = granted(meta.uid, grant.condition(), self._client.clock.now())
        return await self._client.patch(
            PODS, meta.name, body, namespace=meta.namespace, kind=PatchType.STRATEGIC, subresource="status"
        )

    async def _open(self, pod: Pod) -> None:
        """Remove our gate from a pod. It is fine if an earlier try removed it and its answer was lost."""
        meta = pod.metadata
        try:
            await self._client.patch(
                PODS.raw(), meta.name, ungate(pod), namespace=meta.namespace, kind=PatchType.JSON
            )
        except Invalid:
            found = await self._client.get(PODS, meta.name, namespace=meta.namespace)
            if found.metadata.uid != meta.uid or has_gate(found.spec):
                raise

    async def _hand_over(self, bind: Bind) -> BindResult:
        """Let kube-scheduler bind a pod on the planned node. The pod is read first, because the pin depends
        on its current terms, and an existing pin cannot be changed."""
        meta = bind.pod.metadata
        found = await self._client.get(PODS, meta.name, namespace=meta.namespace)
        if found.metadata.uid != meta.uid or found.metadata.deletion_timestamp is not None:
            return BindResult(bind, BindOutcome.GONE, "the pod is gone")
        if found.spec.node_name == bind.node:
            return BindResult(bind, BindOutcome.BOUND)
        if found.spec.node_name:
            return BindResult(bind, BindOutcome.ELSEWHERE, f"already on node {found.spec.node_name}")
        if not has_gate(found.spec):
            if pinned_node(found) == bind.node:
                return BindResult(bind, BindOutcome.HANDED_OVER)
            return BindResult(bind, BindOutcome.GONE, "somebody else has removed its gate")
        if bind.grant is not None:
            found = await self._grant(found, bind.grant)
        patch = hand_over(found, bind.node, annotations=bind.annotations, labels=_labels(bind))
        await self._client.patch(PODS.raw(), meta.name, patch, namespace=meta.namespace, kind=PatchType.JSON)
        return BindResult(bind, BindOutcome.HANDED_OVER)

    async def _failed(self, bind: Bind, error: KubeError) -> BindResult:
        match error:
            case Missing():
                return BindResult(bind, BindOutcome.GONE, "the pod is gone")
            case Invalid() if has_gate(bind.pod.spec):  # the gate or the pod has changed
                return await self._look(bind, str(error))
            case ApiConflict() | TooManyRequests() | ServerFault() | Unauthorized() | Gone():
                return await self._look(bind, str(error))
            case ApiError():
                # "cannot" is RBAC's word: the error is about our rights, not about the node. An error about a
                # terminating namespace is not about the node either.
                ours = isinstance(error, Forbidden) and ("cannot" in error.status.message or error.is_ending)
                outcome = BindOutcome.AGAIN if ours else BindOutcome.IMPOSSIBLE
                return BindResult(bind, outcome, str(error))
            case _:  # no answer: the bind may have been carried out
                return await self._look(bind, str(error))

    async def _look(self, bind: Bind, reason: str) -> BindResult:
        """Read the pod to find out what a refusal or a lost answer means."""
        meta = bind.pod.metadata
        try:
            found = await self._client.get(PODS, meta.name, namespace=meta.namespace)
        except Missing:
            return BindResult(bind, BindOutcome.GONE, "the pod is gone")
        except KubeError as error:
            return BindResult(bind, BindOutcome.AGAIN, f"{reason}; and {error}")
        if found.metadata.uid != meta.uid or found.metadata.deletion_timestamp is not None:
            return BindResult(bind, BindOutcome.GONE, reason)
        if found.spec.node_name == bind.node:
            return BindResult(bind, BindOutcome.BOUND)
        if found.spec.node_name:
            return BindResult(bind, BindOutcome.ELSEWHERE, f"already on node {found.spec.node_name}")
        if is_delegated(bind.pod) and pinned_node(found) == bind.node:
            return BindResult(bind, BindOutcome.HANDED_OVER)
        return BindResult(bind, BindOutcome.AGAIN, reason)


def _labels(bind: Bind) -> dict[str, str]:
    return fluxqueue_labels(bind.annotations[names.JOBID], [bind.node])


_LONGEST_MESSAGE = 32_768  # of a condition, in the definitions of custom resources


def _resource(owner: Owner) -> Resource[Owner]:
    return resource_of(owner) if isinstance(owner, CustomOwner) else cast("Resource[Owner]", JOBS)


class Releaser(LeaderWriter[str, Release]):
    """Call ``release`` from the event loop. ``report`` gets each result. The scheduler orders a failed
    release again, for the newest version of the Job."""

    IN_FLIGHT = 8

    def __init__(
        self, client: Client, report: Callable[[ReleaseResult], None], *, held: Callable[[], bool]
    ) -> None:
        super().__init__(client, held=held)
        self.sent = 0
        self._report = report

    def _namespace(self, key: str, order: Release) -> str:
        return order.owner.metadata.namespace

    def release(self, order: Release) -> None:
        self._writer[order.key] = order

    async def _write(self, _: str, order: Release) -> None:
        try:
            self._report(await self._try(order))
        except Exception as error:
            self._report(ReleaseResult(order, BindOutcome.AGAIN, f"{type(error).__name__}: {error}"))

    async def _try(self, order: Release) -> ReleaseResult:
        if not self._held():
            return ReleaseResult(order, BindOutcome.AGAIN, "this replica does not lead")
        owner, meta = order.owner, order.owner.metadata
        self.sent += 1
        try:
            grant = self._grant_custom if isinstance(owner, CustomOwner) else self._grant
            found = await grant(order)
            await self._client.patch(
                _resource(owner).raw(),
                meta.name,
                let_go(found, order.note),
                namespace=meta.namespace,
                kind=PatchType.JSON,
            )
        except Missing:
            return ReleaseResult(order, BindOutcome.GONE, f"the {owner.kind} is gone")
        except KubeError as error:  # it may have been carried out
            return await self._look(order, str(error))
        return ReleaseResult(order, BindOutcome.BOUND)

    async def _grant(self, order: Release) -> Owner:
        """Write the grant into the status of a Job. Returns the updated Job."""
        meta = order.owner.metadata
        body = granted(meta.uid, order.note.condition(), self._client.clock.now())
        return await self._client.patch(
            JOBS,
            meta.name,
            body,
            namespace=meta.namespace,
            kind=PatchType.STRATEGIC,
            subresource="status",
        )

    async def _grant_custom(self, order: Release) -> Owner:
        """The same for the object of an operator, if its users cannot write the status. A grant that is too
        long is not written: after a restart, the pods are placed together again."""
        owner, note, meta = order.owner, order.note, order.owner.metadata
        assert isinstance(owner, CustomOwner)
        resource, condition = resource_of(owner), note.condition()
        if not owner.operator.grants or not note.nodes or len(condition.message) > _LONGEST_MESSAGE:
            return await self._client.get(resource, meta.name, namespace=meta.namespace)
        found: Any = await self._client.get(resource.raw(), meta.name, namespace=meta.namespace)
        body = granted_to(found, note.generation, condition, self._client.clock.now())
        return await self._client.patch(
            resource,
            meta.name,
            body,
            namespace=meta.namespace,
            kind=PatchType.JSON,
            subresource="status",
        )

    async def _look(self, order: Release, reason: str) -> ReleaseResult:
        """Read the object to find out what a refusal or a lost answer means."""
        owner, meta = order.owner, order.owner.metadata
        try:
            found = await self._client.get(_resource(owner), meta.name, namespace=meta.namespace)
        except Missing:
            return ReleaseResult(order, BindOutcome.GONE, f"the {owner.kind} is gone")
        except KubeError as error:
            return ReleaseResult(order, BindOutcome.AGAIN, f"{reason}; and {error}")
        if found.metadata.uid != meta.uid:
            return ReleaseResult(order, BindOutcome.GONE, reason)
        if not found.spec.suspend:
            is_noted = not isinstance(owner, CustomOwner) or owner.operator.grants
            ours = order.note.holds_for(found) and (not is_noted or release_note(found) == order.note)
            return ReleaseResult(order, BindOutcome.BOUND if ours else BindOutcome.STALE, reason)
        return ReleaseResult(order, BindOutcome.AGAIN, reason)
