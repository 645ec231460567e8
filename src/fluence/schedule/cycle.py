"""Scheduler: events in, decisions out. Keeps groups, cluster and queue in step; no clock, no network.

    scheduler.set_node(node); scheduler.set_pod(pod); scheduler.set_group(group)     in any order
    decisions = scheduler.cycle(now)        bind these, tell those why they wait
    scheduler.told(result, now)             what became of a bind

Events only note what they touch. `cycle` brings the queue up to date with the groups that changed, and asks
it for starts if anything happened that could start a job: a job came or went, room came free or was lost, or
the plan's next time has come. Otherwise nothing is tried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest

from fluence import names
from fluence.cluster.graph import Claim, ClusterGraph, FreedSeats, TopologyDomain
from fluence.cluster.ids import job_number
from fluence.cluster.layout import DEFAULT, GraphLayout
from fluence.model.group import Group
from fluence.model.node import Node
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue import Phase, Queue, QueuePolicy, QueueRules, Start, Submission
from fluence.schedule import recovery
from fluence.schedule.actions import Bind, BindOutcome, BindResult, ClaimUpdate
from fluence.schedule.conditions import SchedulingStatus as States
from fluence.schedule.conditions import StatusReport
from fluence.schedule.groups import Gang, Groups
from fluence.schedule.planner import HORIZON, ClusterPlanner, PodSetRequest, is_whole, topology_of
from fluence.schedule.pod_set import PodSet, Stage
from fluence.schedule.status_reports import StatusReports, Waiting
from fluence.schedule.volume_binding import Failed, Ready, VolumeBinding, VolumeBindings

SLICE = 128  # groups that are taken in per cycle: the first binds need not wait for the last list
_AT_ONCE = (-(1 << 40), 0.0)
_PROMISES = 256  # waiting jobs that are told when they start; others when they come so far ahead
_IN_PLACE = 1 << 40  # the priority of a member whose place is there: above all that pods can have


@dataclass(slots=True)
class Decisions:
    """What a cycle came to."""

    binds: list[list[Bind]] = field(default_factory=list)  # one list per job
    waiting: list[Waiting] = field(default_factory=list)
    begun: list[Gang] = field(default_factory=list)  # have on nodes all that they need
    choices: list[ClaimUpdate] = field(default_factory=list)  # for claims that wait


def cluster_for(
    layout: GraphLayout = DEFAULT, *, policy: str = "first", release_each: bool = False
) -> ClusterGraph:
    """A cluster graph whose times are milliseconds."""
    return ClusterGraph(layout, policy=policy, release_each=release_each, horizon=HORIZON)


class Scheduler:
    """One cluster's groups, seats and plan."""

    def __init__(
        self,
        groups: Groups,
        cluster: ClusterGraph | None = None,
        *,
        policy: str | QueuePolicy = "easy",
        rules: Mapping[str, QueueRules] | None = None,
        depth: int | None = None,
        window: int | None = None,
        resolution: int = 1,
        replan: bool = False,
        backoff: tuple[int, int] = (1_000, 10_000),
        volume_timeout: int = 600_000,
    ) -> None:
        self.groups = groups
        self.cluster = cluster or cluster_for()
        self.space = ClusterPlanner(self.cluster)
        self.queue = Queue(
            self.space,
            policy,
            rules=rules,
            depth=depth,
            window=window,
            resolution=resolution,
            replan=replan,
            promises=_PROMISES,
        )
        self.backoff = backoff  # the first and the longest pause between tries of one bind
        self.parts: dict[str, PodSet] = {}  # by the queue's key
        self.preparing = VolumeBindings(self.cluster, timeout=volume_timeout)
        self.excluded: dict[str, set[str]] = {}  # per group: nodes that the server refused for its pods
        self.telling = StatusReports(groups, self.queue, self.space)
        self.reasons = self.telling.said
        self._rejudge: set[str] = set()  # parts whose claims changed
        self._of: dict[str, PodSet] = {}  # by the uid of a pod with a seat
        self._parts_of: dict[str, dict[str, PodSet]] = {}  # by group
        self._dirty: dict[str, None] = {}
        self._rank: dict[
            str, tuple[int, float]
        ] = {}  # of groups with pods that wait: about the queue's order
        self._over: dict[str, PodSet] = {}
        self._never: dict[str, PodSet] = {}
        self._again: dict[str, tuple[int, Bind]] = {}  # by uid: when to try a bind again
        self._tries: dict[str, int] = {}
        self._seen = (-1, -1, -1)
        self._changed = True
        self._reshaped = False  # what the cluster could hold if it were empty may have changed

    # -- events ----------------------------------------------------------------------------------------------

    def set_node(self, node: Node) -> None:
        """A node that is new, or changed; heartbeats change nothing."""
        before = self.cluster.node(node.name)
        self.cluster.set_node(node)
        if before is not None and _offers(before) == _offers(node):
            return
        self._reshaped = True
        self.space.more()
        if before is not None:
            self.space.less()
            self.queue.lost(f"node {node.name} changed")

    def remove_node(self, name: str) -> None:
        """A node is gone, and the seats on it."""
        freed = self.cluster.remove_node(name)
        self.space.less()
        self.queue.lost(f"node {name} is gone")
        self._reshaped = True
        for uid in [uid for each in freed for uid in each.pods]:
            part = self._of.get(uid)
            if part is not None and uid in part.unbound and uid in self._again:
                self._lose(part, uid)

    def set_pod(self, pod: Pod) -> None:
        """A pod as it is now, whoever schedules it."""
        uid = pod.metadata.uid
        before = self._weight(uid)
        freed = self.cluster.set_pod(pod)
        self._weighed(before, self._weight(uid), freed)
        if pod.is_terminal:
            self._rejudge |= self.preparing.given_up(pod)
        touched = self.groups.set_pod(pod)
        if names.EXCLUDED in pod.annotations and pod.spec.scheduler_name == self.groups.scheduler:
            self.excluded.setdefault(self.groups.of(pod), set()).update(recovery.excluded(pod))
        if pod.spec.node_name is None:
            created = pod.metadata.creation_timestamp
            rank = (-(pod.spec.priority or 0), created.timestamp() if created is not None else 0.0)
            for key in touched:
                self._rank[key] = min(rank, self._rank.get(key, rank))
        part = self._of.get(uid)
        if part is None or pod.is_terminal or not _is_alone(part.gang):
            self._touch(touched)  # a single pod that got its node changes nothing for its group of one
        if part is None:
            return
        if pod.is_terminal:
            self._pod_over(part, uid, failed=pod.status.phase != "Succeeded")
        elif pod.spec.node_name is not None:
            self._confirm(part, uid)

    def remove_pod(self, pod: Pod) -> None:
        """A pod's object is gone."""
        uid = pod.metadata.uid
        before = self._weight(uid)
        freed = self.cluster.remove_pod(pod)
        self._weighed(before, None, freed)
        self._rejudge |= self.preparing.given_up(pod)
        self._touch(self.groups.remove_pod(pod))
        part = self._of.get(uid)
        if part is not None:
            self._pod_over(part, uid, failed=pod.status.phase != "Succeeded")

    def set_group(self, group: Group) -> None:
        self._touch(self.groups.set_group(group))

    def remove_group(self, group: Group) -> None:
        self._touch(self.groups.remove_group(group))

    def touch(self, keys: Collection[str]) -> None:
        """Groups that changed for a reason that only `Groups` knows: their owners."""
        self._touch(keys)

    def set_claim(self, namespace: str, name: str, claim: Claim | None) -> None:
        self.preparing.saw((namespace, name), claim)
        if self.cluster.set_claim(namespace, name, claim):
            self._rejudge.update(self.preparing.concerned((namespace, name)))
            self.space.more()

    def set_attach_limits(self, node: str, limits: Mapping[str, int]) -> None:
        if self.cluster.set_attach_limits(node, limits):
            self.space.more()

    def set_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        self.cluster.set_namespace(name, labels)

    # -- the cycle -------------------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Whether there are groups that this cycle left for the next."""
        return bool(self._dirty)

    def next_due(self) -> int | None:
        """When to run a cycle even if nothing happens."""
        times = [*self.preparing.times(), *(at for at, _ in self._again.values())]
        times += [due for due in (self.queue.next_due(), self.telling.next_due()) if due is not None]
        return min(times, default=None)

    def cycle(self, now: int) -> Decisions:
        """Take in what changed, start what fits, say why the rest waits."""
        decisions = Decisions()
        self._start_over()
        self._finish(now)
        self._touch(self.preparing.forgive(now))
        if self._reshaped or self._rejudge:
            names = [*self.parts] if self._reshaped else sorted(self._rejudge)
            self._reshaped, self._rejudge = False, set()
            self._judge_again(names, now)
        for key in self._next_groups():
            self._reconcile(key, now, decisions)
        seen = (self.space.freed, self.space.opened, self.space.lost)
        due = self.queue.next_due()
        if self._changed or seen != self._seen or (due is not None and due <= now):
            self._changed = False
            for start in self.queue.cycle(now):
                self._start(start, now, decisions)
            self._seen = (self.space.freed, self.space.opened, self.space.lost)
        self._prepare(now, decisions)
        self._try_again(now, decisions)
        decisions.waiting += self.telling.round(now, self.parts)
        decisions.choices = self.preparing.take_choices()
        return decisions

    def told(self, result: BindResult, now: int) -> None:
        """What became of a bind."""
        bind, uid = result.bind, result.bind.uid
        part = self._of.get(uid)
        if part is None or part.key != bind.job or part.unbound.get(uid) != bind.node:
            return
        match result.outcome:
            case BindOutcome.BOUND:
                self._confirm(part, uid)
            case BindOutcome.ELSEWHERE:
                self._confirm(part, uid)  # its event says where; the seat follows it
            case BindOutcome.AGAIN:
                entry = self.cluster.pods.entries.get(uid)
                if entry is None or entry.node != bind.node:  # its node went meanwhile
                    self._lose(part, uid)
                    return
                tries = self._tries[uid] = self._tries.get(uid, 0) + 1
                first, most = self.backoff
                pause = min(first << min(tries - 1, 16), most)
                self._again[uid] = (now + pause, bind)
            case BindOutcome.IMPOSSIBLE:
                self.excluded.setdefault(part.gang, set()).add(bind.node)
                self._lose(part, uid)
            case BindOutcome.GONE | BindOutcome.STALE:
                self._lose(part, uid)

    # -- groups and parts ------------------------------------------------------------------------------------

    def _touch(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._dirty[key] = None

    def _next_groups(self) -> list[str]:
        """Some of the groups that changed: all if they are few, else the first in the queue's order."""
        keys = list(self._dirty)
        if len(keys) > SLICE:
            rank = self._rank
            keys = nsmallest(SLICE, keys, key=lambda key: rank.get(key, _AT_ONCE))
        for key in keys:
            del self._dirty[key]
        return keys

    def _reconcile(self, key: str, now: int, decisions: Decisions) -> None:
        """Bring the queue up to date with one group."""
        gang = self.groups.gang(key)
        parts = self._parts_of.get(key, {})
        if gang is None:
            for part in [part for part in parts.values() if part.stage is Stage.QUEUED]:
                self._withdraw(part, now, "the group is gone")
            self.telling.whole(key)
            self._rank.pop(key, None)
            if key not in self._parts_of:
                self.excluded.pop(key, None)
            return
        group = gang.group
        if group is not None and group.is_gang and not group.is_scheduled and gang.placed and not gang.needed:
            decisions.begun.append(gang)
        unknown = [pod for pod in gang.placed if pod.metadata.uid not in self._of]
        if unknown:
            self._adopt(gang, unknown, now)
            parts = self._parts_of.get(key, {})
        waiting = tuple(pod for pod in gang.members if pod.metadata.uid not in self._of)
        starting = len(gang.members) - len(waiting)  # their binds are under way
        together = gang.needed - starting
        if not waiting or not (gang.fault or gang.missing):
            self.telling.whole(key)
        wanted: dict[str, tuple[tuple[Pod, ...], int]] = {}
        places = 0
        if waiting and not gang.fault and not gang.missing:
            if gang.needed and any(name in self.preparing.of for name in parts):
                return  # all or nothing: the rest follow when the first have their volumes, or all go anew
            places = self._reuse(key, len(waiting))
            begun = [part for part in parts.values() if part.stage is not Stage.QUEUED]
            if together <= 0:
                wanted = {_name(key, pod.metadata.uid, begun): ((pod,), 1) for pod in waiting}
            elif all(part.key != key for part in begun):
                wanted[key] = (waiting, together)
            else:
                wanted[_name(key, min(pod.metadata.uid for pod in waiting), begun)] = (waiting, together)
        for part in [part for part in parts.values() if part.stage is Stage.QUEUED]:
            if part.key not in wanted:
                self._withdraw(part, now, "its group changed")
        for name, (pods, minimum) in wanted.items():
            self._want(gang, name, pods, minimum, now, in_place=places > 0)
            places -= len(pods)
        if waiting and gang.fault:
            refused = Waiting(gang, waiting, StatusReport(States.REFUSED, gang.fault))
            decisions.waiting += self.telling.say(key, refused)
        elif waiting and gang.missing:
            incomplete = Waiting(gang, waiting, StatusReport(States.INCOMPLETE, gang.missing))
            decisions.waiting += self.telling.gathers(incomplete, now)

    def _want(
        self, gang: Gang, name: str, pods: tuple[Pod, ...], minimum: int, now: int, *, in_place: bool
    ) -> None:
        """Have these pods in the queue under this name, exactly so. ``in_place``: room that their group held
        was set free for them, and nobody who waits may come between."""
        part = self.parts.get(name)
        in_place = in_place or (part is not None and part.job.priority == _IN_PLACE)
        priority = _IN_PLACE if in_place else gang.priority
        exclude = frozenset((*self.excluded.get(gang.key, ()), *self.preparing.shunned(gang.key)))
        topology = self._near(gang)
        uid = gang.uid if name == gang.key else name.removeprefix(f"{gang.key}+")
        if part is not None:
            was, job = part.request, part.job
            asked = (minimum, gang.policy, exclude, gang.constraint, topology)
            same = (was.minimum, was.policy, was.exclude, was.constraint, was.topology) == asked
            same = same and (job.priority, job.limit, job.queue) == (priority, gang.limit, gang.queue)
            same = same and len(was.pods) == len(pods) and all(map(_same, was.pods, pods))
            if same:
                return
            self._withdraw(part, now, "its group changed")
        request = PodSetRequest(
            job_number(uid), pods, minimum, gang.policy, exclude, gang.constraint, topology
        )
        job = Submission(
            key=name,
            request=request,
            submit=min(gang.submit, now),
            limit=gang.limit,
            soft_limit=gang.soft_limit,
            user=gang.user,
            queue=gang.queue,
            priority=priority,
        )
        part = PodSet(gang.key, job)
        self._enlist(part)
        entry = self.queue.submit(job)
        if entry.state is Phase.NEVER:
            self._never[name] = part
        self.telling.want(name)
        self._changed = True

    def _judge_again(self, names: Iterable[str], now: int) -> None:
        """Jobs that can be held now and could not, and those that never will: these must block nobody."""
        found = [part for name in names if (part := self.parts.get(name)) is not None]
        for part in [part for part in found if part.stage is Stage.QUEUED]:
            if (self.space.judge(part.request) is None) == (part.key in self._never):
                self._withdraw(part, now, "what the cluster could hold has changed")
                self._dirty[part.gang] = None

    def _near(self, gang: Gang) -> TopologyDomain | None:
        """The label of which a group's nodes must have one value, those that it is about to have included."""
        topology = topology_of(gang)
        if topology is None:
            return None
        parts = self._parts_of.get(gang.key, {}).values()
        return TopologyDomain(topology.key, topology.nodes.union(*(part.unbound.values() for part in parts)))

    def _enlist(self, part: PodSet) -> None:
        self.parts[part.key] = part
        self._parts_of.setdefault(part.gang, {})[part.key] = part
        self.preparing.enlist(part.key, part.request.pods)

    def _strike(self, part: PodSet) -> None:
        """A part that is over."""
        self.parts.pop(part.key, None)
        self._never.pop(part.key, None)
        self.telling.over(part.key)
        self.space.forget(part.request)
        self.preparing.strike(part.key, part.request.pods)
        of = self._parts_of.get(part.gang)
        if of is not None:
            of.pop(part.key, None)
            if not of:
                del self._parts_of[part.gang]
                if self.groups.gang(part.gang) is None:
                    self.excluded.pop(part.gang, None)
        for uid in (*part.alive, *part.ended):
            self._of.pop(uid, None)

    def _withdraw(self, part: PodSet, now: int, reason: str) -> None:
        entry = self.queue.entries.get(part.key)
        if entry is not None:
            if not entry.state.is_over:
                self.queue.cancel(part.key, now, reason)
            self.queue.forget(part.key)
        self._strike(part)
        self._changed = True

    def _adopt(self, gang: Gang, pods: list[Pod], now: int) -> None:
        """Pods of a group are on nodes, and we did not put them there: a restart, or another replica."""
        known = {part.number: part for part in self._parts_of.get(gang.key, {}).values()}
        fallback = job_number(gang.uid)
        for found in recovery.running(pods, fallback, now=now, limit=gang.limit):
            uids = [pod.metadata.uid for pod in found.pods]
            part = known.get(found.number)
            if part is not None and part.stage is Stage.QUEUED:
                self._withdraw(part, now, "found running")
                part = None
            on_nodes = [uid for uid in uids if uid in self.cluster.pods.entries]
            if not on_nodes:
                continue
            if part is None:
                whole = is_whole(gang.policy or self.cluster.policy)
                self.cluster.adopt(found.number, on_nodes, start=found.start, end=found.end, whole=whole)
                name = gang.key if found.number == fallback else f"{gang.key}+{min(uids)}"
                limit = None if found.end is None else found.end - found.start
                request = PodSetRequest(found.number, found.pods, len(found.pods), gang.policy)
                job = Submission(
                    name, request, found.start, limit, gang.soft_limit, gang.user, "", gang.queue
                )
                part = PodSet(gang.key, job, Stage.RUNNING, found.start, found.end)
                self._enlist(part)
                self.space.adopt(name, found.number, HORIZON if found.end is None else found.end)
                self.queue.adopt(job, found.start, now)
            else:
                self.cluster.adopt(found.number, on_nodes, start=part.start, end=part.end)
            for uid in on_nodes:
                part.alive.add(uid)
                self._of[uid] = part
        self._changed = True

    def _reuse(self, key: str, wanted: int) -> int:
        """New members take the seats of those that ended; the others of the group go on. How many seats."""
        freed = 0
        for part in self._parts_of.get(key, {}).values():
            given = list(part.ended)[:wanted]
            if not given or part.number not in self.cluster.seats.jobs:
                continue
            self.cluster.release(part.number, given, reason=Reason.of(Code.SEAT_FOR_NEW_MEMBER))
            part.ended.difference_update(given)
            for uid in given:
                self._of.pop(uid, None)
            wanted -= len(given)
            freed += len(given)
            self.space.more()
        return freed

    # -- starting and ending ---------------------------------------------------------------------------------

    def _start(self, start: Start, now: int, decisions: Decisions) -> None:
        part = self.parts[start.entry.key]
        seating = self.cluster.seats.jobs[part.number]
        end = None if seating.end >= HORIZON else seating.end
        part.stage, part.start, part.end = Stage.BINDING, now, end
        pods = {pod.metadata.uid: pod for pod in part.request.pods}
        said = recovery.annotations_for(part.number, now, end)
        said |= recovery.excluded_note(self.excluded.get(part.gang, ()))
        binds = []
        for seat in seating.seats.values():
            uid = str(seat.pod)
            part.unbound[uid] = seat.node
            part.alive.add(uid)
            self._of[uid] = part
            binds.append(Bind(pods[uid], seat.node, part.key, said))
        self.telling.starts(part.key)
        preparation = self.preparing.begin(part.key, binds, now)
        if preparation is None:
            decisions.binds.append(binds)
        else:
            self._say_prepares(part, preparation, decisions)
        if len(binds) < len(pods):
            self._dirty[part.gang] = None  # the rest follow

    def _prepare(self, now: int, decisions: Decisions) -> None:
        """Parts whose claims are all bound are bound; others go on waiting, or are seated anew."""
        for key, preparation in list(self.preparing.of.items()):
            part = self.parts[key]
            found = preparation.look(self.cluster, part.unbound, now)
            if isinstance(found, Ready):
                self.preparing.end(key)
                self.preparing.pardon(part.gang)
                self._dirty[part.gang] = None
                decisions.binds.append(preparation.binds)
            elif isinstance(found, Failed):
                self.preparing.end(key)
                self.preparing.shun(part.gang, found.nodes, now)
                gang = self.groups.gang(part.gang)
                if gang is not None:
                    pods = tuple(bind.pod for bind in preparation.binds)
                    report = StatusReport(States.WAITS, found.reason)
                    decisions.waiting += self.telling.say(key, Waiting(gang, pods, report))
                for uid in list(part.unbound):
                    self._lose(part, uid)

    def _say_prepares(self, part: PodSet, preparation: VolumeBinding, decisions: Decisions) -> None:
        """Each pod is told of its own claims; the group, and whoever asks for its reason, of all."""
        gang = self.groups.gang(part.gang)
        if gang is None:
            return
        pods = tuple(bind.pod for bind in preparation.binds)
        for pod in pods if len(pods) > 1 else ():
            report = StatusReport(States.PREPARES, preparation.reason_of(pod.metadata.uid))
            decisions.waiting.append(Waiting(gang, (pod,), report))
        everyone = Waiting(gang, pods, StatusReport(States.PREPARES, preparation.reason))
        self.reasons[part.key] = everyone
        decisions.waiting.append(everyone if len(pods) == 1 else replace(everyone, pods=()))

    def _confirm(self, part: PodSet, uid: str) -> None:
        """A pod is bound."""
        self._again.pop(uid, None)
        self._tries.pop(uid, None)
        if part.unbound.pop(uid, None) is not None and not part.unbound:
            self._begin(part)

    def _begin(self, part: PodSet) -> None:
        if part.stage is Stage.BINDING:
            part.stage = Stage.RUNNING
            if part.key in self.queue.entries:
                self.queue.running(part.key, self.queue.now)
            self.telling.over(part.key)

    def _lose(self, part: PodSet, uid: str) -> None:
        """A pod with a seat will not be bound there: it waits again, or is gone."""
        entry = self.cluster.pods.entries.get(uid)
        self.cluster.forget(uid)
        if entry is not None:
            self._rejudge |= self.preparing.given_up(entry.pod)
        self.space.more()
        self._again.pop(uid, None)
        self._of.pop(uid, None)
        part.unbound.pop(uid, None)
        part.alive.discard(uid)
        self._dirty[part.gang] = None
        if not part.alive:
            self._over[part.key] = part
        elif not part.unbound:
            self._begin(part)

    def _pod_over(self, part: PodSet, uid: str, *, failed: bool) -> None:
        self._again.pop(uid, None)
        self._tries.pop(uid, None)
        part.unbound.pop(uid, None)
        part.failed = part.failed or failed
        if uid in part.alive:
            part.alive.discard(uid)
            part.ended.add(uid)
        if not part.alive:
            self._over[part.key] = part
        elif not part.unbound:
            self._begin(part)

    def _finish(self, now: int) -> None:
        """Jobs whose pods are all over give back what they hold."""
        over, self._over = self._over, {}
        for part in over.values():
            if part.alive or self.parts.get(part.key) is not part:
                continue
            if part.ended:
                self.queue.finish(part.key, now, succeeded=not part.failed)
            else:  # it never started: its pods wait again
                self.queue.cancel(part.key, now, "none of its pods was bound")
            self.queue.forget(part.key)
            self._strike(part)
            self._dirty[part.gang] = None
            self._changed = True

    def _start_over(self) -> None:
        """A gang of which nothing is bound, and that lost a member which had a seat, would begin in part:
        what is not under way waits again with the rest. One that has begun is driven to its end."""
        for key in {self._of[uid].gang for uid in self._again}:
            gang = self.groups.gang(key)
            if gang is None or gang.placed:
                continue
            seated = [pod.metadata.uid for pod in gang.members if pod.metadata.uid in self._of]
            if gang.needed > len(seated):
                for uid in [uid for uid in seated if uid in self._again]:
                    self._lose(self._of[uid], uid)

    def _try_again(self, now: int, decisions: Decisions) -> None:
        if not any(at <= now for at, _ in self._again.values()):
            return
        of: dict[str, list[str]] = {}
        for uid in self._again:
            of.setdefault(self._of[uid].gang, []).append(uid)
        for key, uids in of.items():
            due = [uid for uid in uids if self._again[uid][0] <= now]
            gang = self.groups.gang(key)
            if due and (gang is None or not gang.placed):
                due = (
                    uids  # the first binds of a gang are looked at together, and none is sent if one is stale
                )
            if due:
                decisions.binds.append([self._again.pop(uid)[1] for uid in due])

    # -- inside ----------------------------------------------------------------------------------------------

    def _weight(self, uid: str) -> tuple[str, Mapping[str, int]] | None:
        """What a pod takes, and where."""
        entry = self.cluster.pods.entries.get(uid)
        return None if entry is None else (entry.node, entry.needs)

    def _weighed(
        self,
        before: tuple[str, Mapping[str, int]] | None,
        after: tuple[str, Mapping[str, int]] | None,
        freed: tuple[FreedSeats, ...],
    ) -> None:
        if freed or (before is not None and before != after):
            self.space.more()
        if after is not None and before != after:
            self.space.less()


def _offers(node: Node) -> tuple[object, ...]:
    """What of a node decides who may have it."""
    return (
        node.metadata.labels,
        node.spec.taints,
        node.spec.unschedulable,
        node.is_ready,
        node.status.allocatable,
    )


def _name(key: str, uid: str, begun: list[PodSet]) -> str:
    """The name of a part, by one of its pods. One that has begun may have this name, or its number, though
    the pod found no seat in it."""
    taken, numbers = {part.key for part in begun}, {part.number for part in begun}
    while (name := f"{key}+{uid}") in taken or job_number(uid) in numbers:
        uid += "'"
    return name


def _is_alone(gang: str) -> bool:
    """Whether a group is one pod by itself: `namespace/pod:name`."""
    return "/pod:" in gang


def _same(one: Pod, other: Pod) -> bool:
    """Whether a pod asks for what it asked for."""
    if one is other:
        return True
    same = one.metadata.uid == other.metadata.uid and one.metadata.labels == other.metadata.labels
    return same and one.spec == other.spec
