"""Rows: the resources of the view API, made from a snapshot for one reader.

Everything here runs beside the scheduler, on the thread of the view. A reader sees the work of namespaces
whose pods they may list. Other work is shown only as taken: a place in the queue, or nodes for a time,
without a name, an owner or a size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Final, Protocol, TypeAlias

import msgspec

from fluence import messages
from fluence.cluster.planner import HORIZON
from fluence.model.job_state import JobState
from fluence.model.meta import Requirement, requirement_holds
from fluence.model.operators import OPERATORS
from fluence.model.owner import controller_of
from fluence.model.pod import Pod, add_into, pod_requests
from fluence.model.reason import Reason
from fluence.placer.gang import GangHolding
from fluence.queue.allocations import Allocation
from fluence.schedule.pod_set import PodSet
from fluence.schedule.status.reports import Waiting
from fluence.text import natural_key
from fluence.units import format_amount, rfc3339
from fluence.web import resources as wire
from fluence.web.snapshot import Snapshot

Rows: TypeAlias = list[Callable[[], msgspec.Struct]]  # each row is made when its page is requested

_KINDS = {"job": "Job", "pod": "Pod", **{each.kind.lower(): each.kind for each in OPERATORS}}
_SPARE_ROWS = 1024  # rows of gangs that are gone, before they are dropped


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

    def takes_hidden(self, snapshot: Snapshot, pod_set: PodSet) -> bool:
        """Whether a hidden row is shown: only its state is known."""
        return not self.is_narrow and (not self.states or snapshot.state(pod_set).value in self.states)

    @property
    def is_empty(self) -> bool:
        return not (self.is_narrow or self.states)

    def takes(self, snapshot: Snapshot, pod_set: PodSet, namespace: str) -> bool:
        job = pod_set.job
        return (
            (not self.namespace or namespace == self.namespace)
            and (not self.states or snapshot.state(pod_set).value in self.states)
            and (not self.users or job.user in self.users)
            and (self.queue is None or job.queue == self.queue)
            and (not self.name or self.name in (name_of(pod_set.group)[2], snapshot.array_name(pod_set)))
            and (not self.labels or _has_labels(pod_set.pods, self.labels))
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
    return _rows(snapshot, reader, wanted, _waiting(snapshot))


def jobs(snapshot: Snapshot, reader: Reader, wanted: Filter) -> Rows:
    """All gangs: those with nodes, newest first, then the waiting ones."""
    held = [pod_set for key, pod_set in snapshot.sets.items() if key in snapshot.running]
    held.sort(key=lambda pod_set: -(pod_set.started or 0))
    return _rows(snapshot, reader, wanted, [*held, *_waiting(snapshot)])


def _waiting(snapshot: Snapshot) -> list[PodSet]:
    others = [
        pod_set
        for key, pod_set in snapshot.sets.items()
        if key not in snapshot.running and snapshot.place(pod_set) is None
    ]
    return [*snapshot.pending, *others, *snapshot.refused]


def _rows(snapshot: Snapshot, reader: Reader, wanted: Filter, sets: Iterable[PodSet]) -> Rows:
    """A row for each gang, and one for all tasks of an array, at the place of its first one."""
    _forget_rows(snapshot)
    makers: Rows = []
    arrays: dict[str, list[PodSet]] = {}
    seen: dict[str, bool] = {}
    takes_all, expand = wanted.is_empty, wanted.expand
    for pod_set in sets:
        namespace = pod_set.group.partition("/")[0]
        sees = seen.get(namespace)
        if sees is None:
            sees = seen[namespace] = reader.sees(namespace)
        if not sees:
            if snapshot.place(pod_set) is not None and wanted.takes_hidden(snapshot, pod_set):
                makers.append(partial(_hidden_job, snapshot, pod_set))
        elif takes_all or wanted.takes(snapshot, pod_set, namespace):
            key = snapshot.array(pod_set) if pod_set.job.array and not expand else ""
            if not key:
                makers.append(partial(job, snapshot, pod_set))
            elif key in arrays:
                arrays[key].append(pod_set)
            else:
                arrays[key] = [pod_set]
                makers.append(partial(array, snapshot, key, arrays[key]))
    return makers


def _hidden_job(snapshot: Snapshot, pod_set: PodSet) -> wire.Job:
    place = snapshot.place(pod_set)
    assert place is not None
    return wire.Job(state=snapshot.state(pod_set).value, position=place + 1, hidden=True)


# Cached rows. A row depends on objects that are replaced and never changed, so it stays the same while all of
# them are the same; only the place in the queue moves.
_made: dict[int, tuple[tuple[object, ...], wire.Job]] = {}


def _forget_rows(snapshot: Snapshot) -> None:
    """Drop the rows of gangs that are gone, if there are many."""
    if len(_made) > len(snapshot.sets) + len(snapshot.refused) + _SPARE_ROWS:
        known = {id(pod_set) for pod_set in snapshot.sets.values()}
        for number in [number for number in _made if number not in known]:
            del _made[number]


def job(snapshot: Snapshot, pod_set: PodSet) -> wire.Job:
    """One gang, for a reader who may see it."""
    place, submitted = snapshot.place(pod_set), pod_set.job
    start: tuple[int | None, bool, int | None] = (None, False, None)
    report: Waiting | None = None
    if place is not None:
        held = snapshot.reservations[place]
        state, waits = JobState.PENDING if held is None else JobState.RESERVED, True
        start = (snapshot.bounds[place], snapshot.firm[place], snapshot.expected[place])
    else:
        held, state = snapshot.running.get(submitted.key), snapshot.state(pod_set)
        waits = not state.has_nodes
    if waits:
        report = snapshot.reports.get(submitted.key) or snapshot.reports.get(pod_set.group)
        if place is None and report is not None:  # it waits for other jobs, whose planned ends are known
            start = (None, False, report.report.expected)
    holding = holding_of(held)
    end = None if held is None else held.end
    seats = 0 if holding is None else len(holding.placements)  # it shrinks when pods release theirs
    parts = (pod_set, state, submitted, held, end, seats, report, start)
    made = _made.get(id(pod_set))
    if made is None or made[0] != parts:
        made = _made[id(pod_set)] = (parts, _job(snapshot, pod_set, held, report, *start))
    row = made[1]
    return row if place is None else msgspec.structs.replace(row, position=place + 1)


def _job(
    snapshot: Snapshot,
    pod_set: PodSet,
    held: Allocation | None,
    report: Waiting | None,
    bound: int | None,
    firm: bool,
    expected: int | None,
) -> wire.Job:
    state, submitted = snapshot.state(pod_set), pod_set.job
    namespace, kind, name = name_of(pod_set.group)
    holding = holding_of(held)
    pods = pod_set.pods
    return wire.Job(
        state=state.value,
        namespace=namespace,
        name=name + submitted.key.removeprefix(pod_set.group),
        kind=kind,
        gang=pod_set.group,
        user=submitted.user,
        queue=submitted.queue,
        priority=submitted.priority,
        pods=len(pods),
        minimum=pod_set.request.minimum or len(pods),
        requests=_requests(pods),
        nodes=nodes_of(holding),
        devices=devices_of(holding),
        submitted=stamp(submitted.submit),
        started=stamp(pod_set.started) if state.has_nodes else None,
        limit=None if submitted.limit is None else submitted.limit // 1000,
        no_later_than=stamp(bound),
        expected=stamp(expected),
        firm=bound is not None and firm,
        planned=None if held is None else wire.Window(start=moment(held.start), end=stamp(held.end)),
        reasons=[] if report is None else whys(report.reasons),
    )


# -- arrays --------------------------------------------------------------------------------------------------


def array(snapshot: Snapshot, key: str, tasks: Sequence[PodSet]) -> wire.Job:
    """Some tasks of an array as one row. The one that starts next represents the waiting ones."""
    placed = [task for task in tasks if snapshot.has_nodes(task)]
    waiting = [task for task in tasks if not snapshot.has_nodes(task)]
    queued = [task for task in waiting if snapshot.place(task) is not None]
    following = min(queued, key=lambda task: snapshot.place(task) or 0, default=None)
    following = following or (waiting[0] if waiting else None)
    first = job(snapshot, placed[0] if placed else following or tasks[0])
    then = None if following is None else job(snapshot, following)
    held = [held for task in placed or waiting if (held := snapshot.allocation(task)) is not None]
    _, kind, name = name_of(key)
    counts = array_counts(snapshot, key)
    starts = [task.started for task in placed if task.started is not None]
    return msgspec.structs.replace(
        first,
        name=name,
        kind=kind,
        gang=key,
        position=None if then is None else then.position,
        pods=counts.size,
        minimum=None,
        array=counts if counts.size > 1 else None,
        requests=_requests([pod for task in tasks for pod in task.pods]),
        nodes=sorted({node for each in held for node in nodes_of(holding_of(each))}, key=natural_key),
        devices=sorted({device for each in held for device in devices_of(holding_of(each))}),
        submitted=stamp(min(task.job.submit for task in tasks)),
        started=stamp(min(starts)) if starts else None,
        no_later_than=None if then is None else then.no_later_than,
        expected=None if then is None else then.expected,
        firm=then is not None and then.firm,
        planned=window(held),
        reasons=_reasons(snapshot, waiting),
    )


def array_counts(snapshot: Snapshot, key: str) -> wire.Array:
    """How many tasks there are, and how many of them wait, run and are done, by the status of their Job."""
    tasks = snapshot.arrays[key]
    running = sum(snapshot.has_nodes(task) for task in tasks)
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


def window(held: Sequence[Allocation]) -> wire.Window | None:
    """From the first start to the last end."""
    if not held:
        return None
    return wire.Window(
        start=moment(min(each.start for each in held)), end=stamp(max(each.end for each in held))
    )


def _reasons(snapshot: Snapshot, waiting: Iterable[PodSet]) -> list[wire.Why]:
    """Why tasks wait: the first message of each code."""
    found: dict[str, wire.Why] = {}
    for task in waiting:
        report = snapshot.reports.get(task.key) or snapshot.reports.get(task.group)
        for why in () if report is None else whys(report.reasons):
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
    if len(tasks) == 1:
        return msgspec.structs.replace(detail(snapshot, tasks[0]), job=array(snapshot, key, tasks))
    row = array(snapshot, key, tasks)
    return wire.JobDetail(
        job=row,
        members=[member for task in tasks for member in _members(snapshot, task)],
        broken=[broken for task in tasks for broken in broken_promises(task)],
        ahead=None if row.position is None else row.position - 1,
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
        members=_members(snapshot, pod_set),
        broken=broken_promises(pod_set),
        ahead=snapshot.place(pod_set),
        promised=stamp(pod_set.promised),
    )


def _members(snapshot: Snapshot, pod_set: PodSet) -> list[wire.PodPlace]:
    holding = holding_of(snapshot.allocation(pod_set))
    placements = [] if holding is None else list(holding.placements.values())
    nodes = {str(placement.pod): placement.node for placement in placements}
    return [
        wire.PodPlace(name=pod.metadata.name, node=nodes.get(pod.metadata.uid, "")) for pod in pod_set.pods
    ]


# -- groups --------------------------------------------------------------------------------------------------


def groups(snapshot: Snapshot, reader: Reader, wanted: Filter) -> Rows:
    """Gangs and arrays as their users know them, each with all of its parts. Those of other namespaces are
    not shown."""
    parts: dict[str, list[PodSet]] = {}
    for pod_set in (*snapshot.sets.values(), *snapshot.refused):
        namespace = pod_set.group.partition("/")[0]
        if reader.sees(namespace) and wanted.takes(snapshot, pod_set, namespace):
            key = "" if wanted.expand else snapshot.array(pod_set)
            parts.setdefault(key or pod_set.group, []).append(pod_set)
    return [partial(_group, snapshot, key, parts[key]) for key in sorted(parts)]


_NO_TASKS: Final = wire.Array(size=0)


def _group(snapshot: Snapshot, key: str, sets: list[PodSet]) -> wire.Group:
    namespace, kind, name = name_of(key)
    told = snapshot.reports.get(key)
    states = [snapshot.state(pod_set) for pod_set in sets]
    first, counts = states[0], [0, 0]
    for pod_set, state in zip(sets, states, strict=True):
        counts[state.has_nodes] += len(pod_set.pods)
        if first.has_nodes and not state.has_nodes:
            first = state
    request, submitted = sets[0].request, sets[0].job
    tasks = array_counts(snapshot, key) if key in snapshot.arrays else _NO_TASKS
    return wire.Group(
        namespace=namespace,
        name=name,
        kind=kind,
        state=first.value,
        size=max(sum(counts), request.minimum, tasks.size, 0 if told is None else told.gang.size),
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
