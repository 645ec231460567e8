"""Rows: the resources of the view API, made from a snapshot for one reader.

Everything here runs beside the scheduler, on the thread of the view. A reader sees the work of namespaces
whose pods they may list. Other work is shown only as taken: a place in the queue, or nodes for a time,
without a name, an owner or a size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Final, Protocol

import msgspec

from fluence import messages
from fluence.cluster.planner import HORIZON
from fluence.model.job_state import JobState
from fluence.model.meta import Requirement, requirement_holds
from fluence.model.operators import OPERATORS
from fluence.model.owner import controller_of
from fluence.model.pod import Pod, add_into, pod_requests
from fluence.model.reason import Reason
from fluence.placer.placer import GangHolding
from fluence.queue.allocations import Allocation
from fluence.schedule.pod_set import PodSet
from fluence.units import format_amount, natural_key, rfc3339
from fluence.web import resources as wire
from fluence.web.kept import Row, Rows, Shown
from fluence.web.view import Snapshot

_KINDS = {"job": "Job", "pod": "Pod", **{each.kind.lower(): each.kind for each in OPERATORS}}


class Reader(Protocol):
    """The user who reads the rows."""

    def sees(self, namespace: str) -> bool:
        """Whether they may list the pods of a namespace."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of a list are wanted; empty: all."""

    namespace: str = ""
    states: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    queue: str | None = None
    name: str = ""
    labels: tuple[Requirement, ...] = ()
    expand: bool = False  # show each task of an array in its own row

    @property
    def is_narrow(self) -> bool:
        """Whether hidden rows are left out, because a match would reveal what they are."""
        return bool(self.namespace or self.users or self.queue is not None or self.name or self.labels)

    @property
    def is_empty(self) -> bool:
        return not (self.is_narrow or self.states)

    def takes_hidden(self, shown: Shown) -> bool:
        """Whether a hidden row is shown: only its state is known."""
        return not self.is_narrow and (not self.states or shown.state.value in self.states)

    def takes(self, shown: Shown) -> bool:
        job = shown.job
        return (
            (not self.namespace or shown.namespace == self.namespace)
            and (not self.states or shown.state.value in self.states)
            and (not self.users or job.user in self.users)
            and (self.queue is None or job.queue == self.queue)
            and (not self.name or self.name in (name_of(shown.group)[2], job.array.partition("/")[2]))
            and (not self.labels or _has_labels(shown.pods, self.labels))
        )


def _has_labels(pods: Sequence[Pod], labels: tuple[Requirement, ...]) -> bool:
    return bool(pods) and all(requirement_holds(each, pods[0].labels) for each in labels)


def name_of(group: str) -> tuple[str, str, str]:
    """The namespace, the kind and the name of a gang, by its key."""
    namespace, _, rest = group.partition("/")
    prefix, colon, name = rest.partition(":")
    if not colon:
        return namespace, "Group", rest
    if prefix not in _KINDS:
        return namespace, "Group", rest
    return namespace, _KINDS[prefix], name.partition("@")[0]  # without the number of a restart


def stamp(at: int | None) -> str | None:
    """A time in the format of the API; None if it is unknown."""
    return None if at is None or at >= HORIZON else rfc3339(at * 1000)


def moment(at: int) -> str:
    return rfc3339(at * 1000)


@lru_cache(maxsize=4096)
def whys(reasons: tuple[Reason, ...]) -> list[wire.Why]:
    return [wire.Why(code=reason.code.value, message=messages.text(reason)) for reason in reasons]


# -- the queue and its jobs ----------------------------------------------------------------------------------


def queue(snapshot: Snapshot, reader: Reader, wanted: Filter) -> Rows:
    """All waiting gangs, in the order of the queue with their places, then those that are not in it."""
    return _rows(snapshot, reader, wanted, "queue", _waiting(snapshot))


def jobs(snapshot: Snapshot, reader: Reader, wanted: Filter) -> Rows:
    """All gangs: those with nodes, newest first, then the waiting ones."""
    placed = ((shown, None) for shown in snapshot.placed)
    return _rows(snapshot, reader, wanted, "jobs", (*placed, *_waiting(snapshot)))


def _waiting(snapshot: Snapshot) -> Iterable[tuple[Shown, int | None]]:
    """The waiting gangs, and their positions from 1."""
    yield from zip(snapshot.queued, range(1, len(snapshot.queued) + 1), strict=True)
    yield from ((shown, None) for shown in snapshot.others)


def _rows(
    snapshot: Snapshot,
    reader: Reader,
    wanted: Filter,
    kind: str,
    gangs: Iterable[tuple[Shown, int | None]],
) -> Rows:
    """A row for each gang, and one for all tasks of an array, at the place of its first one."""
    found: Rows = []
    arrays: dict[str, _Tasks] = {}
    seen: dict[str, bool] = {}
    takes_all, expand = wanted.is_empty, wanted.expand
    for shown, position in gangs:
        sees = seen.get(shown.namespace)
        if sees is None:
            sees = seen[shown.namespace] = reader.sees(shown.namespace)
        if not sees:
            if position is not None and wanted.takes_hidden(shown):
                found.append((_hidden_job(shown.state), position))
        elif takes_all or wanted.takes(shown):
            if expand or not shown.array:
                found.append((shown.row or _job_row(shown), position))
                continue
            tasks = arrays.get(shown.array)
            if tasks is None:
                tasks = arrays[shown.array] = _Tasks(at=len(found))
                found.append((NO_ROW, None))
            tasks.add(shown, position)
    for key, tasks in arrays.items():
        found[tasks.at] = (_array_row(snapshot, kind, key, tasks), tasks.position)
    return found


class _Tasks:
    """The tasks of an array, for one row at the place of the first."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.all: list[Shown] = []
        self.following: Shown | None = None  # the one that starts next
        self.position: int | None = None

    def add(self, shown: Shown, position: int | None) -> None:
        self.all.append(shown)
        if position is not None and (self.position is None or position < self.position):
            self.following, self.position = shown, position
        elif self.following is None and not shown.is_placed:
            self.following = shown


NO_ROW: Final = Row(lambda: wire.Job(state=""))  # until all tasks of an array are known


@lru_cache(maxsize=64)
def _hidden_job(state: JobState) -> Row:
    return Row(lambda: wire.Job(state=state.value, hidden=True), "position")


def _job_row(shown: Shown) -> Row:
    row = shown.row = Row(partial(_job, shown), "position")
    return row


def job(snapshot: Snapshot, pod_set: PodSet) -> wire.Job:
    """One gang, for a reader who may see it."""
    shown, place = snapshot.shown(pod_set), snapshot.place(pod_set)
    found: wire.Job = (shown.row or _job_row(shown)).struct(None if place is None else place + 1)
    return found


def _job(shown: Shown) -> wire.Job:
    state, submitted, span, pods = shown.state, shown.job, shown.span, shown.pods
    namespace, kind, name = name_of(shown.group)
    holding = holding_of(shown.held)
    return wire.Job(
        state=state.value,
        namespace=namespace,
        name=name + submitted.key.removeprefix(shown.group),
        kind=kind,
        gang=shown.group,
        user=submitted.user,
        queue=submitted.queue,
        priority=submitted.priority,
        pods=len(pods),
        minimum=shown.request.minimum or len(pods),
        requests=_requests(pods),
        nodes=nodes_of(holding),
        devices=devices_of(holding),
        submitted=stamp(submitted.submit),
        started=stamp(shown.started),
        limit=None if submitted.limit is None else submitted.limit // 1000,
        no_later_than=stamp(shown.bound),
        expected=stamp(shown.expected),
        firm=shown.bound is not None and shown.firm,
        planned=None if span is None else wire.Window(start=moment(span[0]), end=stamp(span[1])),
        reasons=whys(shown.reasons),
    )


# -- arrays --------------------------------------------------------------------------------------------------


def _array_row(snapshot: Snapshot, kind: str, key: str, tasks: _Tasks) -> Row:
    """Some tasks of an array as one row, in a list of this kind."""
    counts = array_counts(snapshot, key)
    found: Row = snapshot.kept.get(
        kind,
        key,
        (counts, tasks.following, *tasks.all),
        lambda: Row(partial(array, key, tasks.all, tasks.following, counts), "position"),
    )
    return found


def array(key: str, tasks: Sequence[Shown], following: Shown | None, counts: wire.Array) -> wire.Job:
    """Some tasks of an array as one row. ``following``, which starts next, represents those that wait."""
    placed = [task for task in tasks if task.is_placed]
    waiting = [task for task in tasks if not task.is_placed]
    first = _job(placed[0] if placed else following or tasks[0])
    then = following
    some = [task for task in placed or waiting if task.held is not None]
    held = [holding_of(task.held) for task in some]
    _, kind, name = name_of(key)
    starts = [task.started for task in placed if task.started is not None]
    return msgspec.structs.replace(
        first,
        name=name,
        kind=kind,
        gang=key,
        pods=counts.size,
        minimum=None,
        array=counts if counts.size > 1 else None,
        requests=_requests([pod for task in tasks for pod in task.pods]),
        nodes=sorted({node for each in held for node in nodes_of(each)}, key=natural_key),
        devices=sorted({device for each in held for device in devices_of(each)}),
        submitted=stamp(min(task.job.submit for task in tasks)),
        started=stamp(min(starts)) if starts else None,
        no_later_than=None if then is None else stamp(then.bound),
        expected=None if then is None else stamp(then.expected),
        firm=then is not None and then.bound is not None and then.firm,
        planned=window(some),
        reasons=_reasons(waiting),
    )


def array_counts(snapshot: Snapshot, key: str) -> wire.Array:
    """How many tasks there are, and how many of them wait, run and are done, by the status of their Job."""
    counts = snapshot.counts.get(key)
    if counts is None:
        counts = snapshot.counts[key] = _array_counts(snapshot, snapshot.arrays[key])
    return counts


def _array_counts(snapshot: Snapshot, tasks: Sequence[Shown]) -> wire.Array:
    running = sum(task.is_placed for task in tasks)
    pods = [pod for task in tasks[:1] for pod in task.pods[:1]]
    owner = snapshot.owners.get(controller_of(pods[0].metadata)) if pods else None
    if owner is None:
        return wire.Array(size=len(tasks), waiting=len(tasks) - running, running=running)
    wanted = owner.spec.completions or owner.spec.parallelism or 0
    return wire.Array(
        size=max(wanted, len(tasks)),
        waiting=len(tasks) - running,
        running=running,
        done=owner.succeeded,
        failed=owner.status.failed or 0,
    )


def window(held: Sequence[Shown]) -> wire.Window | None:
    """From the first start to the last end of gangs with an allocation."""
    spans = [each.span for each in held if each.span is not None]
    if not spans:
        return None
    start, end = min(span[0] for span in spans), max(span[1] for span in spans)
    return wire.Window(start=moment(start), end=stamp(end))


def _reasons(waiting: Iterable[Shown]) -> list[wire.Why]:
    """Why tasks wait: the first message of each code."""
    found: dict[str, wire.Why] = {}
    for reasons in dict.fromkeys(task.reasons for task in waiting):
        for why in whys(reasons):
            found.setdefault(why.code, why)
    return list(found.values())


# -- one job -------------------------------------------------------------------------------------------------


def details(snapshot: Snapshot, namespace: str, name: str, *, expand: bool = False) -> list[wire.JobDetail]:
    """The gang, the array, the owner or the pod with this name. A key (`job:train`) names one exactly."""
    key = f"{namespace}/{name}"
    for found in (key, f"{namespace}/job:{name}"):
        if found in snapshot.arrays and found not in snapshot.sets and not expand:
            return [_array_detail(snapshot, found)]
    return [detail(snapshot, pod_set) for pod_set in find_job(snapshot, namespace, name)]


def _array_detail(snapshot: Snapshot, key: str) -> wire.JobDetail:
    tasks = snapshot.arrays[key]
    found = _Tasks()
    for task in tasks:
        place = snapshot.place(task.pod_set)
        found.add(task, None if place is None else place + 1)
    position = found.position
    row = _array_row(snapshot, "detail", key, found).struct(position)
    if len(tasks) == 1:
        return msgspec.structs.replace(detail(snapshot, tasks[0].pod_set), job=row)
    return wire.JobDetail(
        job=row,
        members=[member for task in tasks for member in _members(task)],
        broken=[broken for task in tasks for broken in broken_promises(task.pod_set)],
        ahead=None if position is None else position - 1,
    )


def find_job(snapshot: Snapshot, namespace: str, name: str) -> list[PodSet]:
    """The gang, the tasks or parts of an owner, or the gang of a pod with this name."""
    exact = snapshot.sets.get(f"{namespace}/{name}")
    if exact is not None:
        return [exact]
    known = (*snapshot.sets.values(), *snapshot.refused)
    inside = [pod_set for pod_set in known if pod_set.group.startswith(f"{namespace}/")]
    by_name = [pod_set for pod_set in inside if name_of(pod_set.group)[2] == name]
    return by_name or [pod_set for pod_set in inside if any(_is_named(pod, name) for pod in pod_set.pods)]


def _is_named(pod: Pod, name: str) -> bool:
    if pod.metadata.name == name:
        return True
    return any(owner.name == name for owner in pod.metadata.owner_references or ())


def detail(snapshot: Snapshot, pod_set: PodSet) -> wire.JobDetail:
    """All that is known of a gang, for a reader who may see it."""
    return wire.JobDetail(
        job=job(snapshot, pod_set),
        story=[
            wire.Step(at=moment(step.at), state=step.state.value, message=messages.text(step.reason))
            for step in list(pod_set.story)
            if step.at <= snapshot.at
        ],
        members=_members(snapshot.shown(pod_set)),
        broken=broken_promises(pod_set),
        ahead=snapshot.place(pod_set),
        promised=stamp(pod_set.promised),
    )


def _members(shown: Shown) -> list[wire.PodPlace]:
    holding = holding_of(shown.held)
    placements = [] if holding is None else list(holding.placements.values())
    nodes = {str(placement.pod): placement.node for placement in placements}
    return [wire.PodPlace(name=pod.metadata.name, node=nodes.get(pod.metadata.uid, "")) for pod in shown.pods]


# -- groups --------------------------------------------------------------------------------------------------


def groups(snapshot: Snapshot, reader: Reader, wanted: Filter) -> Rows:
    """Gangs and arrays as their users know them, each with all of its parts. Those of other namespaces are
    not shown."""
    parts: dict[str, list[Shown]] = {}
    seen: dict[str, bool] = {}
    takes_all, expand = wanted.is_empty, wanted.expand
    for shown in snapshot.all_shown:
        sees = seen.get(shown.namespace)
        if sees is None:
            sees = seen[shown.namespace] = reader.sees(shown.namespace)
        if sees and (takes_all or wanted.takes(shown)):
            parts.setdefault(shown.group if expand or not shown.array else shown.array, []).append(shown)
    return [(_group_row(snapshot, key, parts[key]), None) for key in sorted(parts)]


_NO_TASKS: Final = wire.Array(size=0)


def _group_row(snapshot: Snapshot, key: str, gangs: Sequence[Shown]) -> Row:
    told = snapshot.reports.get(key)
    size = 0 if told is None else told.gang.size
    tasks = array_counts(snapshot, key) if key in snapshot.arrays else _NO_TASKS
    found: Row = snapshot.kept.get(
        "groups", key, (size, tasks, *gangs), lambda: Row(partial(_group, key, gangs, size, tasks))
    )
    return found


def _group(key: str, gangs: Sequence[Shown], size: int, tasks: wire.Array) -> wire.Group:
    namespace, kind, name = name_of(key)
    first, counts = gangs[0].state, [0, 0]
    for shown in gangs:
        state = shown.state
        counts[state.has_nodes] += len(shown.pods)
        if first.has_nodes and not state.has_nodes:
            first = state
    request, submitted = gangs[0].request, gangs[0].job
    return wire.Group(
        namespace=namespace,
        name=name,
        kind=kind,
        state=first.value,
        size=max(sum(counts), request.minimum, tasks.size, size),
        minimum=request.minimum or len(request.pods),
        waiting=counts[0],
        placed=counts[1],
        done=tasks.done,
        user=submitted.user,
        queue=submitted.queue,
    )


# -- parts ---------------------------------------------------------------------------------------------------


def holding_of(held: Allocation | None) -> GangHolding | None:
    return held.job if held is not None and isinstance(held.job, GangHolding) else None


def nodes_of(holding: GangHolding | None) -> list[str]:
    # A `list` of a dictionary's values is one step of the interpreter, so the scheduler cannot change it
    # meanwhile.
    places = () if holding is None else {each.node for each in list(holding.placements.values())}
    return sorted(places, key=natural_key)


def devices_of(holding: GangHolding | None) -> list[str]:
    return [] if holding is None else sorted({"/".join(grant.device) for grant in holding.grants})


def _requests(pods: Sequence[Pod]) -> dict[str, str]:
    """The sum of the requests of the pods. Pods of one owner have one template, so the first represents
    all."""
    if not pods:
        return {}
    total: dict[str, int] = {}
    if len({_owner(pod) for pod in pods}) == 1 and _owner(pods[0]):
        total = {name: amount * len(pods) for name, amount in pod_requests(pods[0]).items()}
    else:
        for pod in pods:
            add_into(total, pod_requests(pod))
    return {name: format_amount(name, amount) for name, amount in total.items() if name != "pods"}


def _owner(pod: Pod) -> str:
    controller = pod.metadata.controller_reference
    return "" if controller is None else controller.uid


def broken_promises(pod_set: PodSet) -> list[wire.Broken]:
    return [
        wire.Broken(at=moment(broken.at), promised=moment(broken.promised), cause=whys((broken.cause,))[0])
        for broken in list(pod_set.broken)
    ]
