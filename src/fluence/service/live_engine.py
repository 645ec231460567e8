"""LiveEngine: a running cluster, read-only: a match says what its scheduler would do with such pods now.

The cluster is listed and copied into memory, where the live scheduler's cycle decides, as for `fluence whatif
--live`. Nothing is written or allocated: two clients with the same question get the same answer. A jobspec
becomes a gang of pods: a slot is a pod, a node above the slots means that each pod has its own node, and a
zone means that all are in one. The pods have its queue and its constraints. What pods cannot request is
refused, with the place in the jobspec.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import msgspec

from fluence import names
from fluence.clock import ManualClock, SystemClock
from fluence.cluster.graph import ClusterGraph
from fluence.cluster.layout import ZONE
from fluence.errors import InvalidInput, InvalidJobspec, NotFound
from fluence.graph import files
from fluence.graph.writers import write
from fluence.kube.listing import ClusterListing
from fluence.match.describe import Explanation
from fluence.match.find import find
from fluence.match.request import Operation
from fluence.messages import whatif as texts
from fluence.model.constraint import Constraint
from fluence.model.jobspec import Jobspec, JobspecResource
from fluence.queue.job import SECOND
from fluence.queue.reasons import WhatIfAnswer
from fluence.schedule.external_resources.requests import DeviceConfig
from fluence.schedule.settings import SchedulerSettings
from fluence.service.engine import (
    NO_JOB,
    Found,
    JobEntry,
    Match,
    PartReleased,
    ReadOnly,
    Refusal,
    ShareOf,
    Shrunk,
    Statistics,
    TypeCount,
)
from fluence.sim.cluster import EmbeddedCluster
from fluence.sim.live_cycle import ask_what_if

_FRESH_S: Final = 1.0  # the maximum age of a listing
_MAX_PODS: Final = 10_000
_GROUP: Final = "fluence-service-request"
_ENDED: Final = ("Succeeded", "Failed")
_MEMORY: Final = {
    "": 1 << 20,
    "MB": 1 << 20,
    "GB": 1 << 30,
    "M": 10**6,
    "G": 10**9,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
}
_LATER: Final = (Operation.ALLOCATE_OR_RESERVE, Operation.TRY_FUTURE)
_FORMATS: Final = ("jgf", "jgf_verbose")


@dataclass(frozen=True, slots=True)
class _Gang:
    """What a jobspec requests from a cluster."""

    pods: int
    requests: dict[str, str]
    apart: bool  # each pod on a node of its own
    seconds: float | None
    together: bool = False  # all in one zone
    queue: str = ""
    constraint: Constraint | None = None


class LiveEngine:
    """``lists`` reads the cluster. ``settings`` are those of its scheduler."""

    read_only = True

    def __init__(
        self, lists: Callable[[], ClusterListing], settings: SchedulerSettings, *, namespace: str = "default"
    ) -> None:
        self._lists = lists
        self._settings = settings
        self._namespace = namespace
        self._listing: ClusterListing | None = None
        self._listed_at = 0.0
        self._graph: ClusterGraph | None = None
        self._numbers: dict[str, int] = {}  # job -> its id in lists
        self._next_number = 1

    @property
    def policy(self) -> str:
        return self._settings.match_policy

    @property
    def vertices(self) -> int:
        return len(self._cluster_graph().graph)

    # -- matching --------------------------------------------------------------------------------------------

    def match(
        self,
        operation: Operation,
        jobspec: str,
        *,
        job: int,
        now: int,
        name: str = "",
        size: int = 1,
        format_: str = "",
        explain: bool = False,
    ) -> Match | Refusal:
        if format_ and format_ not in _FORMATS:
            raise InvalidInput(
                f"{format_[:40]!r}: of the running cluster an allocation is written as "
                f"{' or '.join(_FORMATS)}",
                where="format",
            )
        began = time.perf_counter()
        gang = _gang(Jobspec.parse(jobspec, source="jobspec"))
        answer, nodes = self._ask(gang)
        words = "; ".join((*texts.own_lines(answer, None if explain else 3), *self._unseen()))
        if answer.never:
            return Refusal("impossible", words)
        judged = operation is Operation.JUDGE
        if not (answer.starts_now or judged or (operation in _LATER and answer.start is not None)):
            return Refusal("busy", words)
        at = (answer.now if answer.start is None or judged else answer.start) // SECOND
        end = at if gang.seconds is None or judged else at + round(gang.seconds)
        shares = [
            ShareOf(node, node, None, True, False, {"core": pods * _cores(gang)})
            for node, pods in nodes.items()
        ]
        text = _jgf(nodes, _cores(gang)) if format_ else ""
        reserved = not (answer.starts_now or judged)
        return Match(NO_JOB, at, end, reserved, text, shares, time.perf_counter() - began)

    def explain(self, jobspec: str, *, now: int) -> Explanation:
        answer, _ = self._ask(_gang(Jobspec.parse(jobspec, source="jobspec")))
        lines = [*texts.own_lines(answer), *self._unseen()]
        if answer.starts_now:
            return Explanation((), "fits", "; ".join(self._unseen()), exact=False)
        start = None if answer.start is None else answer.start // SECOND
        return Explanation(
            (), "never" if answer.never else "wait", "; ".join(lines), earliest_end=start, exact=False
        )

    def _ask(self, gang: _Gang) -> tuple[WhatIfAnswer, dict[str, int]]:
        """What would happen to a gang, and how many of its pods each node would get."""
        cluster = self._copy()
        documents = [self._pod(gang, index) for index in range(gang.pods)]
        found = ask_what_if(cluster, documents)
        (answer,) = [each for _, each in found.jobs]
        nodes: dict[str, int] = {}
        for document in documents:
            pod = cluster.pods[f"{self._namespace}/{document['metadata']['name']}"]
            if pod.spec.node_name:
                nodes[pod.spec.node_name] = nodes.get(pod.spec.node_name, 0) + 1
        return answer, nodes

    def _pod(self, gang: _Gang, index: int) -> dict[str, Any]:
        notes = {names.GROUP_SIZE: str(gang.pods)}
        if gang.seconds:
            notes[names.DURATION] = f"{gang.seconds:g}"
        if gang.queue:
            notes[names.QUEUE] = gang.queue
        if gang.constraint is not None:
            notes[names.JOBSPEC] = _constrained(gang)
        labels = {names.GROUP_LABEL: _GROUP}
        spec: dict[str, Any] = {
            "schedulerName": self._settings.scheduler_name,
            "containers": [{"name": "request", "image": "request", "resources": {"requests": gang.requests}}],
        }
        affinity = spec["affinity"] = {}
        if gang.apart:
            term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
            affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        if gang.together and any(ZONE in node.labels for node in self._listed().nodes):
            term = {"labelSelector": {"matchLabels": labels}, "topologyKey": ZONE}
            affinity["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        metadata = {
            "name": f"{_GROUP}-{index}",
            "namespace": self._namespace,
            "labels": labels,
            "annotations": notes,
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    # -- jobs ------------------------------------------------------------------------------------------------

    def has_job(self, job: int) -> bool:
        return False  # calls allocate nothing

    def job(self, job: int, format_: str) -> tuple[JobEntry, str, Sequence[ShareOf]]:
        for entry in self.jobs():
            if entry.job == job:
                return entry, "", ()
        raise NotFound(f"no job {job}: ListJobs has those of the running cluster")

    def jobs(self) -> Iterable[JobEntry]:
        cluster = self._copy()
        cluster.settle()
        found: list[JobEntry] = []
        numbers: dict[str, int] = {}
        for job in cluster.jobs():
            number = self._numbers.get(job.key)
            if number is None:
                number, self._next_number = self._next_number, self._next_number + 1
            numbers[job.key] = number
            at = job.started if job.started is not None else job.promised
            end = 0 if at is None or job.limit is None else at + job.limit
            found.append(
                JobEntry(
                    number, job.key, job.state, (at or 0) // SECOND, end // SECOND, len(job.pods), job.reason
                )
            )
        self._numbers = numbers
        return found

    # -- the graph -------------------------------------------------------------------------------------------

    def find(self, criteria: str, *, now: int, format_: str) -> Found:
        cluster = self._cluster_graph()
        found = find(cluster.matcher, criteria)
        graph = cluster.graph
        return Found(
            write(found, format_), [graph.path(row) or "" for row in found.selection.vertices.tolist()]
        )

    def render(self, format_: str) -> str:
        return files.render(self._cluster_graph().graph, format_)

    def close(self) -> None:
        """Nothing was started."""

    def statistics(self) -> Statistics:
        graph = self._cluster_graph().graph
        types: dict[str, list[int]] = {}
        for row in graph.alive.nonzero()[0].tolist():
            count = types.setdefault(graph.type_name(row), [0, 0, 0])
            count[0] += 1
            count[1] += int(graph.size[row])
            count[2] += not graph.up[row]
        return Statistics(
            vertices=len(graph),
            edges=sum(1 for _ in files.edges(graph)),
            jobs=sum(1 for _ in self.jobs()),
            types=[TypeCount(type_, *counts) for type_, counts in types.items()],
        )

    # -- unsupported operations ------------------------------------------------------------------------------

    def cancel(self, job: int) -> None:
        raise NotFound(f"no job {job} holds anything by a call: the running cluster is only read here")

    def partial_cancel(self, job: int, text: str, reader: str) -> PartReleased:
        self._refuse()

    def update(
        self, job: int, text: str, reader: str, *, at: int, duration: int, now: int, name: str, format_: str
    ) -> Match:
        self._refuse()

    def grow(self, jgf: str) -> int:
        self._refuse()

    def shrink(self, paths: Sequence[str]) -> Shrunk:
        self._refuse()

    def set_status(self, path: str, *, up: bool) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ReadOnly("this graph is the running cluster, which is only read here: use kubectl to change it")

    # -- the copy --------------------------------------------------------------------------------------------

    def _listed(self) -> ClusterListing:
        now = time.monotonic()
        if self._listing is None or now - self._listed_at > _FRESH_S:
            self._listing, self._graph = self._lists(), None
            self._listed_at = time.monotonic()
        return self._listing

    def _unseen(self) -> list[str]:
        """Notes about what could not be read and is missing from an answer."""
        return [f"note: {note}" for note in self._listed().notes]

    def _copy(self) -> EmbeddedCluster:
        """A copy of the cluster in memory, for one question."""
        cluster = EmbeddedCluster((), settings=self._settings, clock=ManualClock(SystemClock().now()))
        cluster.load(self._listed())
        return cluster

    def _cluster_graph(self) -> ClusterGraph:
        listing = self._listed()
        if self._graph is None:
            layout = self._settings.layout()
            graph = self._graph = ClusterGraph(layout)
            devices = DeviceConfig()
            devices.read(next(iter(listing.devices), None), layout.own_types)
            graph.set_devices(devices.tree)
            graph.load(listing.nodes, [pod for pod in listing.pods if pod.status.phase not in _ENDED])
        return self._graph


def _gang(jobspec: Jobspec) -> _Gang:
    """The pods that a jobspec describes."""
    level, where = jobspec.resources, "resources"
    count, apart, together = 1, False, False
    while len(level) == 1 and not level[0].is_slot:
        resource = level[0]
        where = f"{where}[0]"
        if resource.type not in ("cluster", "subnet", "zone", "node"):
            break
        number = _number(resource, where)
        if resource.type == "node":
            count, apart = number, True
        elif number != 1:
            raise InvalidJobspec(
                f"{number} of type {resource.type}: the pods of a gang are asked to be in one, or anywhere",
                where=f"{where}.count",
            )
        together = together or resource.type in ("subnet", "zone")
        level, where = resource.with_, f"{where}.with"
    if len(level) != 1 or not level[0].is_slot:
        raise InvalidJobspec(
            "on the running cluster a slot is a pod: write slot > core, or node > slot > core", where=where
        )
    slot, inside = level[0], f"{where}[0]"
    slots = _number(slot, inside)
    if apart and slots != 1:
        raise InvalidJobspec(
            "a pod has its node for itself here: write one slot per node", where=f"{inside}.count"
        )
    pods = count * slots
    if pods > _MAX_PODS:
        raise InvalidJobspec(f"{pods:,} pods: {_MAX_PODS:,} are the most", where=f"{inside}.count")
    requests: dict[str, str] = {}
    for index, resource in enumerate(slot.with_):
        key, value = _request(resource, f"{inside}.with[{index}]")
        requests[key] = value
    attributes = jobspec.attributes
    if attributes.constraints is not None and "cpu" not in requests:
        raise InvalidJobspec("name cores beside a constraint", where=f"{inside}.with")
    return _Gang(
        pods,
        requests,
        apart,
        attributes.duration,
        together,
        queue=attributes.queue or "",
        constraint=attributes.constraints,
    )


def _constrained(gang: _Gang) -> str:
    """The jobspec of pods with a constraint: the scheduler compares names and labels of nodes."""
    assert gang.constraint is not None
    slot = {
        "type": "slot",
        "count": gang.pods,
        "label": "default",
        "with": [{"type": "core", "count": _cores(gang)}],
    }
    document = {
        "version": 9999,
        "resources": [slot],
        "tasks": [{"command": ["request"], "slot": "default", "count": {"per_slot": 1}}],
        "attributes": {"system": {"constraints": gang.constraint.to_value()}},
    }
    return msgspec.json.encode(document).decode()


def _request(resource: JobspecResource, where: str) -> tuple[str, str]:
    if resource.is_slot or resource.with_:
        raise InvalidJobspec("a pod's resources have nothing below them", where=where)
    amount = _number(resource, where)
    if resource.type in ("core", "cpu"):
        return "cpu", str(amount)
    if resource.type == "memory":
        scale = _MEMORY.get(resource.unit or "")
        if scale is None:
            raise InvalidJobspec(f"write one of {', '.join(filter(None, _MEMORY))}", where=f"{where}.unit")
        return "memory", str(amount * scale)
    if resource.type == "gpu":
        return "nvidia.com/gpu", str(amount)
    return f"{names.DEVICE_PREFIX}{resource.type}", str(amount)


def _number(resource: JobspecResource, where: str) -> int:
    if not resource.count.is_fixed:
        raise InvalidJobspec(
            "a range of counts cannot be asked for here: write one number", where=f"{where}.count"
        )
    if resource.exclusive and resource.type != "core":
        raise InvalidJobspec(
            "pods share their node: ask for as much as a node has instead", where=f"{where}.exclusive"
        )
    return resource.count.min


def _cores(gang: _Gang) -> int:
    return int(gang.requests.get("cpu", "0"))


def _jgf(nodes: dict[str, int], cores: int) -> str:
    """The nodes in the form in which the predecessors' clients read an allocation: cores before their node,
    whose basename is its name in Kubernetes."""
    vertices: list[dict[str, Any]] = []

    def add(type_: str, name: str, path: str) -> None:
        metadata = {
            "type": type_, "basename": name, "name": name, "id": len(vertices), "uniq_id": len(vertices),
            "rank": -1, "unit": "", "exclusive": type_ != "node", "size": 1, "paths": {"containment": path},
        }  # fmt: skip
        vertices.append({"id": str(len(vertices)), "metadata": metadata})

    for node, pods in nodes.items():
        for index in range(pods * cores):
            add("core", "core", f"/cluster0/{node}/core{index}")
        add("node", node, f"/cluster0/{node}")
    return msgspec.json.encode({"graph": {"nodes": vertices, "edges": []}}).decode() + "\n"
