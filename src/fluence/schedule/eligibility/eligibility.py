"""Eligibility: a gang that its user holds, or that depends on other jobs, is planned only when that has
ended.

`Reconciliation` calls `admit` for each gang that changed. A gang that must wait is not in the queue and has
no place in the plan, so that other jobs do not wait for work that may never start. It gets an expected start
from the planned ends of its producers. When it may start, it is queued with that moment as its submit time,
so that held work does not overtake work that arrived meanwhile (Slurm's eligible time).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from fluence import names
from fluence.cluster.planner import HORIZON, ClusterPlanner, PodSetRequest
from fluence.model.job_state import JobState
from fluence.model.meta import ObjectMeta
from fluence.model.owner import Group, Job, controller_of
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue.job import FOREVER
from fluence.queue.scheduling_pass import CycleBudget
from fluence.schedule.eligibility.depends_on import (
    Dependency,
    DependencyKind,
    DependsOn,
    ProducerKind,
    Progress,
    read_depends_on,
    reason_of,
)
from fluence.schedule.eligibility.producers import OVER, Producers, Series, Sighting, has_begun, progress_of
from fluence.schedule.events import Changed, Event, NotBound, Object
from fluence.schedule.external_resources.gate_dependency import aliases
from fluence.schedule.gangs import settling
from fluence.schedule.gangs.gang import Gang, request_arguments
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.pod_set import Changes, PodSet, PodSets
from fluence.schedule.step import Step, working_on
from fluence.units import parse_rfc3339

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions

_LOOK_AGAIN = 30_000  # ms after which expected starts follow a changed plan
_MAX_LOOKS = 256  # expected starts computed in one cycle
_MAX_CHAIN = 64  # length of a chain of producers that an expected start follows
_MAX_PODS = 64  # pods of one gang whose names are searched for consumers
_Name = tuple[str, str]  # namespace and name


@dataclass(slots=True)
class _Consumer:
    """A gang that depends on other jobs."""

    namespace: str
    wanted: DependsOn
    series: str  # the series of a singleton without a name
    units: tuple[str, ...]  # its units in its series: Jobs or pods
    sightings: dict[Dependency, Sighting] = field(default_factory=dict)
    is_open: bool = False
    producers: frozenset[str] | None = None  # the gangs it waits for, at the last search for a cycle
    cycle: tuple[str, ...] = ()  # the gangs through which it depends on itself
    expected: int | None = None  # its probable start

    def names(self) -> Iterator[_Name]:
        """The names it waits for, as they are indexed."""
        for term in self.wanted.terms:
            if term.kind is DependencyKind.SINGLETON:
                yield self.namespace, _series_key(self.series_of(term))
            elif term.producer is not None:
                yield self.namespace, term.producer.name

    def series_of(self, term: Dependency) -> str:
        return self.series if term.producer is None else term.producer.name


class Eligibility(Step):
    """``find`` returns an object by kind, namespace and name."""

    def __init__(
        self,
        *,
        groups: Groups,
        planner: ClusterPlanner,
        pod_sets: PodSets,
        changes: Changes,
        budget: CycleBudget,
        find: Callable[[str, str, str], Object | None],
    ) -> None:
        self._groups = groups
        self._planner = planner
        self._pod_sets = pod_sets
        self._changes = changes
        self._budget = budget
        self._producers = Producers(groups=groups, find=find)
        self._series = Series()
        self._consumers: dict[str, _Consumer] = {}  # by gang
        self._waiting: dict[str, Reason] = {}  # gangs that may not start, and why
        self._waited_for: dict[_Name, set[str]] = {}  # gangs that wait for this name
        self._namespaces: Counter[str] = Counter()  # number of these names by namespace
        self._eligible: dict[str, int] = {}  # since when gangs that had to wait may start
        self._known: set[str] = set()  # gangs that were seen
        self._fresh: dict[str, None] = {}  # gangs that need an expected start
        self._look_at: int | None = None  # when expected starts are computed again
        self._plan_saw = (-1, -1)

    # -- events ----------------------------------------------------------------------------------------------

    def observe(self, event: Event | NotBound, now: int) -> None:
        if not isinstance(event, Changed):
            return
        item, is_gone = event.object, event.new is None
        if isinstance(item, Job):
            self._note_series(item, is_over=is_gone or item.is_finished)
            self._note(item, (item.metadata.name,), is_gone=is_gone)
        elif isinstance(item, Pod):
            self._note_series(item, is_over=is_gone or item.is_terminal)
            if item.metadata.namespace in self._namespaces and not _is_same(event.old, event.new):
                self._note(item, aliases(item), is_gone=is_gone)
        elif isinstance(item, Group):
            self._changes.touch(self._waited_for.get((item.namespace, item.name), ()))

    def _note(self, item: Job | Pod, known_as: Iterable[str], *, is_gone: bool) -> None:
        """Keep the outcome of a producer, which may be gone when the cycle looks at its consumers."""
        meta, progress = item.metadata, progress_of(item)
        if is_gone and progress not in OVER:
            progress = Progress.GONE
        for name in known_as:
            for key in self._waited_for.get((meta.namespace, name), ()):
                consumer, touched = self._consumers[key], False
                for term in consumer.wanted.terms:
                    if term.producer is None or term.producer.name != name:
                        continue
                    seen = consumer.sightings.get(term)
                    if seen is not None and seen.uid == meta.uid:
                        touched = touched or seen.progress is not progress
                        seen.progress = seen.progress if seen.progress in OVER else progress
                    elif seen is None:
                        touched = True
                    elif seen.kind is ProducerKind.JOB and isinstance(item, Pod):
                        touched = touched or not consumer.producers  # it may close a cycle
                    else:
                        touched = touched or seen.progress not in OVER
                if touched:
                    self._changes.touch((key,))

    def _note_series(self, item: Job | Pod, *, is_over: bool) -> None:
        text = "" if is_over else _said(item)
        if not text and not self._series:
            return
        meta = item.metadata
        unit = item.identity if isinstance(item, Job) else _maker(item)
        if isinstance(item, Pod) and unit != meta.uid:
            return  # its Job is the unit
        wanted = read_depends_on(text.strip()) if "singleton" in text else None
        if isinstance(wanted, DependsOn):
            own = _series_of(meta)
            terms = [term for term in wanted.terms if term.kind is DependencyKind.SINGLETON]
            named = ((meta.namespace, own if term.producer is None else term.producer.name) for term in terms)
            self._series.put(unit, named, _created(meta))
        elif unit in self._series:
            for namespace, name in self._series.remove(unit):
                self._changes.touch(self._waited_for.get((namespace, _series_key(name)), ()))

    def forget(self, group: str) -> None:
        self._drop(group)
        self._known.discard(group)
        self._waiting.pop(group, None)
        self._eligible.pop(group, None)

    # -- whether a gang may be planned -----------------------------------------------------------------------

    def admit(self, gang: Gang, *, has_seat: Container[str], now: int) -> Gang:
        """A gang as it may be planned now. ``has_seat`` are the uids of placed pods."""
        if gang.key not in self._known:
            self._known.add(gang.key)
            self._remember(gang)
        reason = self._reason(gang, has_seat)
        if reason is None and gang.missing is not None and gang.missing.code is Code.HELD_BY_USER:
            self._waiting[gang.key] = gang.missing
            return gang
        if reason is None:
            if self._waiting.pop(gang.key, None) is not None:
                self._eligible[gang.key] = now
            since = self._eligible.get(gang.key)
            return gang if since is None else replace(gang, submit=max(gang.submit, since))
        if gang.key not in self._waiting:
            self._fresh[gang.key] = None
        self._waiting[gang.key] = reason
        if gang.fault is not None:
            return gang
        if reason.code is Code.DEPENDENCY_CYCLE:
            return replace(gang, fault=reason, missing=None)
        return replace(gang, missing=gang.missing or reason)

    def reason(self, group: str) -> Reason | None:
        """Why a gang may not be planned, by the last check."""
        return self._waiting.get(group)

    def expected(self, group: str) -> int | None:
        """The probable start of a gang that waits for other jobs."""
        consumer, reason = self._consumers.get(group), self._waiting.get(group)
        if consumer is None or reason is None or reason.code is Code.HELD_BY_USER:
            return None
        return consumer.expected

    def _remember(self, gang: Gang) -> None:
        """Restore since when pods may start, as the previous scheduler wrote it into their status."""
        marks = [mark for pod in gang.members if (mark := _eligible_mark(pod)) is not None]
        digest = "" if gang.depends_on is None else gang.depends_on.digest
        if not marks or any(opened != digest for _, opened in marks):
            return
        self._eligible[gang.key] = max(at for at, _ in marks)
        if gang.depends_on is not None:
            self._open(gang.key, self._consumer(gang, gang.depends_on))

    def _reason(self, gang: Gang, has_seat: Container[str]) -> Reason | None:
        """Why the dependencies of a gang keep it from starting. A gang that has started is not held back any
        more."""
        if gang.depends_on is None or gang.is_over:
            self._drop(gang.key)
            return None
        consumer = self._consumer(gang, gang.depends_on)
        if consumer.is_open:
            return None
        if settling.has_begun(gang, has_seat) or any(map(has_begun, self._jobs(gang))):
            self._open(gang.key, consumer)
            return None
        progress = {term: self._progress(consumer, term) for term in consumer.wanted.terms}
        reason = reason_of(consumer.wanted, progress, gang.namespace)
        if reason is None:
            self._open(gang.key, consumer)
            return None
        cycle: tuple[str, ...] = ()
        producers = frozenset(self._gangs_before(gang.key))
        if consumer.cycle or producers != consumer.producers:
            # A new cycle contains the gang whose dependencies were read last, so the others need no search.
            cycle, consumer.producers = self._cycle(gang), producers
        if cycle != consumer.cycle:
            self._search_again({*cycle, *consumer.cycle} - {gang.key})
            consumer.cycle = cycle
        if not cycle:
            return reason
        jobs = tuple(key.partition("/")[2] for key in (*cycle, cycle[0]))
        return Reason.of(Code.DEPENDENCY_CYCLE, jobs=jobs, key=names.DEPENDS_ON)

    def _consumer(self, gang: Gang, wanted: DependsOn) -> _Consumer:
        consumer = self._consumers.get(gang.key)
        if consumer is not None and consumer.wanted == wanted:
            return consumer
        self._drop(gang.key)
        pods = (*gang.members, *gang.gated, *gang.placed)
        first: Pod | Job = next(iter(self._jobs(gang)), pods[0])
        consumer = _Consumer(gang.namespace, wanted, _series_of(first.metadata), tuple(map(_maker, pods)))
        self._consumers[gang.key] = consumer
        for name in consumer.names():
            if name not in self._waited_for:
                self._namespaces[gang.namespace] += 1
            self._waited_for.setdefault(name, set()).add(gang.key)
        return consumer

    def _progress(self, consumer: _Consumer, term: Dependency) -> Progress:
        if term.kind is DependencyKind.SINGLETON:
            name = (consumer.namespace, consumer.series_of(term))
            earlier = next(self._series.earlier(name, consumer.units), None)
            return Progress.SUCCEEDED if earlier is None else Progress.STARTED
        assert term.producer is not None
        seen = self._producers.look(consumer.namespace, term.producer, consumer.sightings.get(term))
        if seen is None:
            return Progress.UNKNOWN
        consumer.sightings[term] = seen
        return seen.progress

    def _open(self, group: str, consumer: _Consumer) -> None:
        """Let a gang start, no matter what happens to its producers later."""
        consumer.is_open = True
        self._leave(group, consumer)

    def _drop(self, group: str) -> None:
        consumer = self._consumers.pop(group, None)
        if consumer is not None:
            self._leave(group, consumer)

    def _leave(self, group: str, consumer: _Consumer) -> None:
        self._fresh.pop(group, None)
        for name in consumer.names():
            waiting = self._waited_for.get(name)
            if waiting is None:
                continue
            waiting.discard(group)
            if not waiting:
                del self._waited_for[name]
                self._namespaces[consumer.namespace] -= 1
                if not self._namespaces[consumer.namespace]:
                    del self._namespaces[consumer.namespace]
        self._search_again({*consumer.cycle} - {group})

    # -- cycles ----------------------------------------------------------------------------------------------

    def _cycle(self, gang: Gang) -> tuple[str, ...]:
        """The gangs through which a gang depends on itself; empty if no other gang waits for it."""
        pods = (*gang.members, *gang.gated, *gang.placed)[:_MAX_PODS]
        known_as = {gang.name, *(name for pod in pods for name in aliases(pod))}
        if not any((gang.namespace, name) in self._waited_for for name in known_as):
            return ()
        came_from: dict[str, str] = {}
        stack = [gang.key]
        while stack:
            key = stack.pop()
            for producer in sorted(self._gangs_before(key)):
                if producer == gang.key:
                    path = [key]
                    while path[-1] != gang.key:
                        path.append(came_from[path[-1]])
                    return tuple(reversed(path))
                if producer not in came_from:
                    came_from[producer] = key
                    stack.append(producer)
        return ()

    def _search_again(self, groups: Iterable[str]) -> None:
        """Search again after a cycle of these gangs was found or may be gone."""
        for key in groups:
            if key in self._consumers:
                self._consumers[key].producers = None
        self._changes.touch(groups)

    def _gangs_before(self, group: str) -> set[str]:
        """The gangs that a gang waits for."""
        consumer, found = self._consumers.get(group), set[str]()
        if consumer is None or consumer.is_open:
            return found
        for term, seen in consumer.sightings.items():
            if term.producer is not None and seen.progress not in OVER:
                found |= self._producers.gangs(consumer.namespace, term.producer.name, seen)
        return found

    # -- expected starts -------------------------------------------------------------------------------------

    def run(self, now: int, decisions: Decisions) -> None:
        """Compute expected starts: for new consumers in each cycle, and for all of them from time to time."""
        saw = (self._planner.freed, self._planner.lost)
        if saw != self._plan_saw and self._look_at is None and self._waiting:
            self._look_at = now + _LOOK_AGAIN
        if self._look_at is not None and self._look_at <= now:
            self._plan_saw, self._look_at = saw, None
            self._fresh.update(dict.fromkeys(key for key in self._waiting if key in self._consumers))
        self._budget.begin()
        starts: dict[tuple[int, int, int], int] = {}  # starts of equal requests after the same time
        for number, key in enumerate(list(islice(self._fresh, _MAX_LOOKS))):
            if number and self._budget.is_spent:
                break
            del self._fresh[key]
            consumer = self._consumers.get(key)
            if consumer is None or consumer.is_open:
                continue
            with working_on(key):
                expected = self._expect(key, consumer, now, starts)
            if expected != consumer.expected:
                consumer.expected = expected
                self._changes.touch((key,))

    def next_due(self) -> int | None:
        return 0 if self._fresh else self._look_at

    def _expect(
        self, group: str, consumer: _Consumer, now: int, starts: dict[tuple[int, int, int], int]
    ) -> int | None:
        """The first planned start after all producers have ended."""
        gang = self._groups.gang(group)
        after = self._producers_end(group, now, _MAX_CHAIN)
        if gang is None or not gang.members or after is None or consumer.cycle:
            return None
        request = PodSetRequest(**request_arguments(gang))
        limit = FOREVER if gang.limit is None else gang.limit
        asked = self._planner.shape(request), after, limit
        if asked not in starts:
            start = self._planner.supported(request, after, limit)
            starts[asked] = after if start is None else start
            self._planner.advance(now)
        self._planner.forget(request)
        return starts[asked]

    def _producers_end(self, group: str, now: int, depth: int) -> int | None:
        """When all producers of a gang will have ended; None if unknown."""
        before = self._gangs_before(group)
        ends = [self._end(key, now, depth - 1) for key in before] if depth else []
        known = [end for end in ends if end is not None]
        return max((now, *known)) if known and len(known) == len(ends) else None

    def _end(self, group: str, now: int, depth: int) -> int | None:
        ends = [self._pod_set_end(each, now, depth) for each in self._pod_sets.of_group(group).values()]
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None

    def _pod_set_end(self, pod_set: PodSet, now: int, depth: int) -> int | None:
        gang = self._groups.gang(pod_set.group)
        limit = gang.limit if pod_set.state is JobState.GATHERING and gang is not None else pod_set.limit
        if limit is None or limit >= FOREVER:
            limit = None
        if pod_set.state.has_nodes:
            held = pod_set.running[pod_set.key]
            return held.end if held.end < HORIZON else None
        if pod_set.state is JobState.GATHERING:
            start = self.expected(pod_set.group) or self._producers_end(pod_set.group, now, depth)
        else:
            times = (pod_set.expected, pod_set.reserved_at, pod_set.no_later_than)
            start = next((at for at in times if at is not None), None)
        return None if start is None or limit is None else start + limit

    def _jobs(self, gang: Gang) -> list[Job]:
        """The Jobs that create the pods of a gang."""
        pods = (*gang.members, *gang.gated, *gang.placed)
        owners = map(self._groups.owner, dict.fromkeys(map(_maker, pods)))
        return [owner for owner in owners if isinstance(owner, Job)]


def _is_same(old: Object | None, new: Object | None) -> bool:
    """Whether nothing changed that consumers of a pod depend on."""
    return (
        isinstance(old, Pod)
        and isinstance(new, Pod)
        and old.metadata.uid == new.metadata.uid
        and old.status.phase == new.status.phase
        and old.metadata.labels == new.metadata.labels
        and old.metadata.annotations == new.metadata.annotations
    )


class _Mark(msgspec.Struct, frozen=True):
    """The part of a wait report that is read after a restart."""

    eligible: str = ""
    opened: str = ""


_mark_decoder: Final = msgspec.json.Decoder(_Mark)


def _eligible_mark(pod: Pod) -> tuple[int, str] | None:
    """Since when a pod may start, in milliseconds, and the digest of its dependencies, from its status."""
    report = pod.condition(names.WAIT_REPORTED)
    if report is None or report.status != "True":
        return None
    try:
        mark = _mark_decoder.decode(report.message)
    except msgspec.MsgspecError:
        return None
    at = parse_rfc3339(mark.eligible)
    return None if at is None else (at // 1000, mark.opened)


def _maker(pod: Pod) -> str:
    """The unit of a pod in its series: its Job, or the pod itself."""
    return controller_of(pod.metadata) or pod.metadata.uid


def _series_of(meta: ObjectMeta) -> str:
    """The series of an object that names none: its CronJob, or its generateName."""
    made_by = meta.controller_reference
    if made_by is not None and made_by.kind == "CronJob":
        return made_by.name
    return meta.generate_name.rstrip("-") or meta.name


def _series_key(name: str) -> str:
    return f"singleton:{name}"  # no name contains a colon


def _said(item: Job | Pod) -> str:
    """The annotation of an object, or of its template."""
    text = (item.metadata.annotations or {}).get(names.DEPENDS_ON, "")
    template = item.spec.template if isinstance(item, Job) and not text else None
    return text if template is None else (template.metadata.annotations or {}).get(names.DEPENDS_ON, "")


def _created(meta: ObjectMeta) -> int:
    return 0 if meta.creation_timestamp is None else int(meta.creation_timestamp.timestamp() * 1000)
