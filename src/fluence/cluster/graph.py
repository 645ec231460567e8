"""ClusterGraph: the live cluster as a graph, a ledger and columns, changed event by event.

    cluster = ClusterGraph()
    cluster.load(nodes, pods)
    gang = cluster.gang(pods_of_a_group)
    seated = cluster.seat(gang, job=job_number(uid), now=now)      # all of them, or Wait, or Never
    …                                                             # bind them; their events come back
    cluster.set_pod(bound)                                        # counted once
    for freed in cluster.remove_node("node-7"): …                 # who lost what, and why

Events only note what changed. The graph, the ledger and the columns catch up when something is asked, so a
thousand events in a row cost one change of the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fluence.cluster.claims import Claim
from fluence.cluster.columns import NodeColumns
from fluence.cluster.layout import DEFAULT, GraphLayout
from fluence.cluster.pod_index import PodIndex
from fluence.cluster.pods import PodEntry, PodTable, place_of
from fluence.cluster.reasons import Scattered, Shortage
from fluence.cluster.requests import GangRequests, TopologyDomain
from fluence.cluster.unsupported import Refused
from fluence.cluster.vertices import NodeVertices
from fluence.cluster.volume_matching import VolumeDecision, mounts
from fluence.errors import Conflict, NotFound
from fluence.graph.graph import ResourceGraph
from fluence.match.matcher import HORIZON, Matcher
from fluence.match.placement import Never, Wait
from fluence.match.policy import MatchPolicy
from fluence.model.constraint import Constraint
from fluence.model.node import Node
from fluence.model.pod import NodeSelector, Pod
from fluence.model.volume import Key
from fluence.placer.gang import GangRequest, Seat, Seated
from fluence.placer.gang_fit import GangFit

_OTHERS = -(1 << 40)  # jobs of this number and below stand for what others run, one per node


@dataclass(frozen=True, slots=True)
class FreedSeats:
    """Seats that a job has lost or given back."""

    job: int
    pods: tuple[str, ...]  # uids
    node: str | None  # None: the whole job
    reason: str
    whole_job: bool  # it holds nothing any more


class ClusterGraph:
    """Nodes and pods of a cluster, as they are now and as they are planned."""

    def __init__(
        self,
        layout: GraphLayout = DEFAULT,
        *,
        policy: str | MatchPolicy = "first",
        horizon: int = HORIZON,
        release_each: bool = False,
    ) -> None:
        self.layout = layout
        self.policy = policy
        self.release_each = release_each  # a seat is free when its pod ends; otherwise when all have ended
        self.pods = PodTable(layout.types)
        self._vertices = NodeVertices(layout, policy, horizon)
        self._seats = GangFit(self._vertices.matcher, keeps_overdue=True)
        self._columns = NodeColumns()
        neighbours = PodIndex(self.pods, self._columns)
        self._requests = GangRequests(layout, self.pods, self._columns, neighbours, self._gone_by)
        self._fresh: dict[str, Node] = {}  # nodes that are not yet in the graph
        self._changed: dict[str, Node] = {}
        self._shuffled = False  # the columns are not in the order of the seats
        self._dirty: set[str] = set()  # nodes on which others' pods came or went
        self._debt: dict[str, set[int]] = {}  # nodes with more devices in use than there are: whose
        self._members: dict[int, dict[str, bool]] = {}  # per job: has the pod ended?
        self._job_of: dict[str, int] = {}
        self._constrained: dict[Constraint, tuple[tuple[int, int], frozenset[str]]] = {}
        self._now = -1

    # -- nodes -----------------------------------------------------------------------------------------------

    def load(self, nodes: Iterable[Node], pods: Iterable[Pod] = ()) -> None:
        """Everything at once, as it is listed at the start."""
        for node in nodes:
            self.set_node(node)
        for pod in pods:
            self.set_pod(pod)

    def set_node(self, node: Node) -> None:
        """A node as it is now: new, or with another size, state, taints or labels."""
        name = node.name
        if name in self._fresh or name not in self._vertices.nodes:
            self._fresh[name] = node
        else:
            self._changed[name] = node

    def remove_node(self, name: str) -> tuple[FreedSeats, ...]:
        """A node is gone: what jobs held there is released. Its pods are remembered until they are gone too,
        or the node comes back."""
        if self._fresh.pop(name, None) is not None:
            return ()
        self._catch_up()
        if name not in self._vertices.nodes:
            return ()
        freed = self._leave(name, f"node {name} is gone")
        self._erase_others(name)
        lost = self._vertices.remove(name)
        freed.extend(
            FreedSeats(job, (), name, f"node {name} is gone", not len(self.matcher.ledger.job(job).spans))
            for job in lost
        )
        self._arrange()
        self._debt.pop(name, None)
        return tuple(freed)

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes by name, as last told."""
        held = {name: made.node for name, made in self._vertices.nodes.items()}
        return {**held, **self._changed, **self._fresh}

    def node(self, name: str) -> Node | None:
        """One node, as last told."""
        found = self._fresh.get(name) or self._changed.get(name)
        if found is None and name in self._vertices.nodes:
            found = self._vertices.nodes[name].node
        return found

    # -- pods ------------------------------------------------------------------------------------------------

    def set_pod(self, pod: Pod) -> tuple[FreedSeats, ...]:
        """A pod as it is now; says what was given back if it has ended."""
        uid = pod.metadata.uid
        entry = self.pods.entries.get(uid)
        self._requests.changed(pod)
        if pod.is_terminal:
            return self._ended(uid, f"pod {pod.key} has {pod.status.phase.lower()}")
        node = place_of(pod)
        bound = pod.spec.node_name is not None
        if entry is None:
            if node is not None:
                self._put(pod, node, bound=bound)
            return ()
        if entry.assumed and not bound:  # still on its way
            if _moved(entry, pod):
                self.pods.put(pod, entry.node, bound=False, assumed=True, job=entry.job)
            else:
                entry.pod = pod
            return ()
        if node is None:
            self._drop(uid)
            return ()
        if entry.job is None:
            if entry.node != node or entry.needs != self.pods.needs(pod, bound=bound) or _moved(entry, pod):
                self._put(pod, node, bound=bound)
            else:
                entry.pod, entry.bound, entry.assumed = pod, bound, False
            return ()
        self._confirm(entry, pod, node)
        return ()

    def remove_pod(self, pod: Pod | str) -> tuple[FreedSeats, ...]:
        """A pod's object is gone; says what was given back by it."""
        uid = pod if isinstance(pod, str) else pod.metadata.uid
        self._requests.forget(uid)
        entry = self.pods.entries.get(uid)
        name = pod.key if isinstance(pod, Pod) else entry.pod.key if entry else uid
        return self._ended(uid, f"pod {name} is gone")

    def assume(self, pod: Pod, node: str) -> None:
        """Count a pod that we are about to bind by itself, without a job."""
        self._put(pod, node, bound=False, assumed=True)

    def forget(self, uid: str) -> tuple[FreedSeats, ...]:
        """Undo an assumption, or the seat of one pod: it will not be bound after all."""
        entry = self.pods.entries.get(uid)
        if entry is None or not entry.assumed:
            return ()
        if entry.job is None:
            self._drop(uid)
            return ()
        return self.release(entry.job, (uid,), reason=f"pod {entry.pod.key} was not bound")

    # -- what rules ask for ----------------------------------------------------------------------------------

    def set_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """The labels of a namespace, for affinity that selects namespaces."""
        self._requests.neighbours.set_namespace(name, labels)

    def set_claim(self, namespace: str, name: str, claim: Claim | None) -> bool:
        """What is known of a PersistentVolumeClaim; None: it is gone. Says whether that is new."""
        return self._requests.set_claim(namespace, name, claim)

    def set_attach_limits(self, node: str, limits: Mapping[str, int]) -> bool:
        """How many volumes of each CSI driver a node takes. Says whether that is new."""
        return self._requests.storage.attachments.set_limits(node, limits)

    def mounts_claims(self, pods: Iterable[Pod]) -> bool:
        """Whether some pod's seat depends on claims."""
        return any(mounts(pod) for pod in pods if pod.spec.volumes)

    def claim(self, key: Key) -> Claim | None:
        return self._requests.storage.claims.get(key)

    def pick(self, claim: Key, volume: str | None) -> None:
        """A claim was told to take a volume that is there, so nobody else is to have it; None: no more."""
        picked = self._requests.storage.picked
        if volume is None:
            picked.pop(claim, None)
        else:
            picked[claim] = volume

    def stow(self, nodes: Mapping[str, str], pods: Mapping[str, Pod]) -> list[VolumeDecision]:
        """What is to be done for the claims of pods that have seats, both by uid, before they are bound."""
        self.sync()
        return self._requests.storage.stow(nodes, pods)

    def reaches(self, selector: NodeSelector | None, node: str) -> bool:
        """Whether a node is one of those that a selector matches; no selector matches all."""
        at = self.columns.position.get(node)
        return at is not None and (selector is None or bool(self.columns.selected(selector)[at]))

    # -- gangs -----------------------------------------------------------------------------------------------

    def gang(
        self,
        pods: Sequence[Pod],
        *,
        minimum: int | None = None,
        policy: str | MatchPolicy | None = None,
        exclude: Collection[str] = (),
        topology: TopologyDomain | None = None,
    ) -> GangRequest | Refused:
        """The pods of a group as one request, one entry per distinct shape.

        ``exclude`` names nodes that this group must not have, ``topology`` the label of which all its nodes
        must have one value. The gang is for the nodes as they are now: when one of them changes, seating it
        is a `Conflict`, and it must be made again.
        """
        self.sync()
        how = self.policy if policy is None else policy
        return self._requests.gang(pods, minimum=minimum, policy=how, exclude=exclude, topology=topology)

    def alike(self, pods: Sequence[Pod]) -> frozenset[tuple[Hashable, int]] | None:
        """A key that is equal for gangs that find the same seats; None: only a try can tell."""
        return self._requests.alike(pods)

    def is_impossible(self, gang: GangRequest) -> bool:
        """Whether the nodes as they are could not hold a gang even if they were empty."""
        self.sync()
        return not self._seats.could_hold(gang)

    def ruled_out(self, constraint: Constraint) -> frozenset[str]:
        """The nodes that a constraint on names, ranks and labels (RFC 31) does not allow, as they are now."""
        at = self.graph.state_generation, self.graph.shape_generation
        known = self._constrained.get(constraint)
        if known is None or known[0] != at:
            graph, rows = self._vertices.graph, self._seats.nodes.tolist()
            said = ((graph.name[row], int(graph.rank[row]), graph.properties.get(row, {})) for row in rows)
            out = frozenset(each[0] for each in said if not constraint.matches(*each))
            known = self._constrained[constraint] = (at, out)
        return known[1]

    @property
    def has_anti_affinity(self) -> bool:
        """Whether some pod keeps others away by their labels."""
        return self._requests.neighbours.has_against

    def why(
        self,
        pods: Sequence[Pod],
        *,
        now: int,
        duration: int | None = None,
        policy: str | MatchPolicy | None = None,
        exclude: Collection[str] = (),
        topology: TopologyDomain | None = None,
    ) -> list[Shortage | Scattered | Refused]:
        """What stands in the way of a gang now: per distinct shape, which node falls to which cause."""
        self.advance(now)
        how = self.policy if policy is None else policy
        return self._requests.why(
            pods, self._seats, now=now, duration=duration, policy=how, exclude=exclude, topology=topology
        )

    def try_now(self, gang: GangRequest, *, now: int, duration: int | None = None) -> Seated | Wait | Never:
        """Where a gang would sit if it started now."""
        self._ready(gang, now)
        return self._seats.try_now(gang, now=now, duration=duration)

    def seat(
        self, gang: GangRequest, *, job: int, now: int, duration: int | None = None
    ) -> Seated | Wait | Never:
        """Seat a gang now; its pods count on their nodes until they are seen bound, or forgotten."""
        self._ready(gang, now)
        seated = self._seats.seat(gang, job=job, now=now, duration=duration)
        if isinstance(seated, Seated):
            self._occupy(seated)
        return seated

    def join(self, gang: GangRequest, *, job: int, now: int) -> Seated | Wait | Never:
        """Seat more pods for a job that has started: late members, or those that had found no seat."""
        self._ready(gang, now)
        seated = self._seats.join(gang, job=job, now=now)
        if isinstance(seated, Seated):
            self._occupy(seated)
        return seated

    def earliest(self, gang: GangRequest, *, now: int, duration: int | None = None) -> Seated | Wait | Never:
        """When and where a gang could start; nothing is recorded."""
        self._ready(gang, now)
        return self._seats.earliest(gang, now=now, duration=duration)

    def reserve(
        self, gang: GangRequest, *, job: int, now: int, duration: int | None = None
    ) -> Seated | Wait | Never:
        """Seat a gang now, or promise it the earliest time at which it fits."""
        self._ready(gang, now)
        seated = self._seats.reserve(gang, job=job, now=now, duration=duration)
        if isinstance(seated, Seated) and not seated.reserved:
            self._occupy(seated)
        return seated

    def adopt(
        self, job: int, pods: Iterable[str], *, start: int, end: int | None = None, whole: bool = False
    ) -> None:
        """Pods that run already belong to a job: after a restart, or when the rest of a gang follows."""
        self._sync_nodes()
        entries = [entry for uid in pods if (entry := self.pods.entries.get(uid)) is not None]
        seats = [self._give(entry, job) for entry in entries]
        if not seats:
            raise NotFound(f"job {job}: none of its pods is on a node")
        for seat in seats:
            # What others have there is written anew later, once: thousands are adopted after a restart.
            self._erase_others(seat.node)
        if job in self._seats.jobs:
            self._seats.rewrite(job, seats)
        else:
            self._seats.hold(job, seats, start=start, end=end, whole=whole)
        self._join(job, [entry.uid for entry in entries])
        for entry in entries:
            self._note_debt(entry.node, job)

    def release(
        self, job: int, pods: Iterable[str] | None = None, *, reason: str = "released"
    ) -> tuple[FreedSeats, ...]:
        """Give back a job, or the seats of some of its pods. Pods that are bound count on as others do. A job
        that has no seats has nothing to give back."""
        self.sync()
        if job not in self._seats.jobs:
            return ()
        freed = self._seats.release(job, pods)
        for seat in freed:
            self._leave_seat(job, str(seat.pod), seat.node)
        whole = job not in self._seats.jobs
        if whole:
            for uid in self._members.pop(job, ()):
                self._job_of.pop(uid, None)
        return (
            (FreedSeats(job, tuple(str(seat.pod) for seat in freed), None, reason, whole),) if freed else ()
        )

    def advance(self, now: int) -> None:
        """Bring everything up to a time. A job that runs past its end holds its seats: its pods are there."""
        self.sync()
        if now == self._now:
            return
        self._now = now
        self._seats.look(now)

    def prolong(self, job: int, end: int) -> None:
        """A job that has its seats has them until then."""
        self._seats.prolong(job, end)

    # -- asking ----------------------------------------------------------------------------------------------

    @property
    def graph(self) -> ResourceGraph:
        self.sync()
        return self._vertices.graph

    @property
    def matcher(self) -> Matcher:
        self.sync()
        return self._vertices.matcher

    @property
    def seats(self) -> GangFit:
        self.sync()
        return self._seats

    @property
    def columns(self) -> NodeColumns:
        self.sync()
        return self._columns

    @property
    def jobs(self) -> dict[int, dict[str, str]]:
        """Our jobs: which pod (uid) has a seat on which node."""
        return {
            job: {str(pod): seat.node for pod, seat in seating.seats.items()}
            for job, seating in self._seats.jobs.items()
            if job > _OTHERS
        }

    # -- catching up -----------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Apply what was noted."""
        self._catch_up()
        if self._shuffled:
            self._shuffled = False
            self._columns.arrange([self._vertices.nodes[name].node for name in self._seats.names])

    def _catch_up(self) -> None:
        """The same without the columns: many nodes may come and go before somebody asks for them."""
        if not (self._fresh or self._changed or self._dirty):
            return
        self._sync_nodes()
        dirty, self._dirty = self._dirty, set()
        for name in dirty:
            self._write_others(name)

    def _sync_nodes(self) -> None:
        if self._changed:
            changed, self._changed = self._changed, {}
            for node in changed.values():
                self._change_node(node)
        if self._fresh:
            fresh, self._fresh = self._fresh, {}
            self._vertices.add(fresh.values())
            self._arrange()
            for name in fresh.keys() & self.pods.loads.keys():
                self._dirty.add(name)
                if any(entry.job is not None for entry in self.pods.on(name)):
                    self._rewrite_jobs(name)

    def _change_node(self, node: Node) -> None:
        old = self._vertices.nodes[node.name].node
        if old == node:
            return
        if self._vertices.change(node):
            if _says(old) != _says(node) and not self._shuffled:
                self._columns.update(node)
            if old.status.allocatable != node.status.allocatable:
                self._dirty.add(node.name)
                self._rewrite_jobs(node.name)
            return
        # It has moved in the tree: other vertices, the same seats.
        self._erase_others(node.name)
        self._vertices.remove(node.name)
        self._vertices.add((node,))
        self._arrange()
        self._dirty.add(node.name)
        self._rewrite_jobs(node.name)

    def _arrange(self) -> None:
        """Nodes have come or gone: the seats know it now, the columns when they are asked for."""
        self._seats.look(self._seats.room.now)
        self._shuffled = True

    def _write_others(self, name: str) -> None:
        """Record what others run on a node, all of it together."""
        self._erase_others(name)
        load = self.pods.loads.get(name)
        if name not in self._vertices.nodes or load is None or not load.total:
            self._owe(name, self._others(name), owes=False)
            return
        job = self._others(name)
        seat = Seat(name, name, dict(load.total))
        self._seats.hold(job, (seat,), start=0, guest=load.guests > 0)
        self._note_debt(name, job)

    def _erase_others(self, name: str) -> None:
        job = self._others(name)
        if job in self._seats.jobs:
            self._seats.release(job)

    def _others(self, name: str) -> int:
        return _OTHERS - self._vertices.rank(name)

    def _rewrite_jobs(self, name: str) -> None:
        for job in self._jobs_on(name):
            self._seats.rewrite(job)
            self._note_debt(name, job)

    def _jobs_on(self, name: str) -> dict[int, list[str]]:
        """Our jobs with seats on a node, and whose seats those are."""
        found: dict[int, list[str]] = {}
        for job, seating in self._seats.jobs.items():
            if job > _OTHERS:
                uids = [str(seat.pod) for seat in seating.seats.values() if seat.node == name]
                if uids:
                    found[job] = uids
        return found

    def _note_debt(self, name: str, job: int) -> None:
        """Whether somebody has a device twice, or lacks one: when others leave, he is given another."""
        seating = self._seats.jobs.get(job)
        owes = False
        if seating is not None:
            free = self._seats.room.at(self._seats.room.now).free
            wanted = self.layout.devices.values()
            for seat in seating.seats.values():
                if seat.node == name:
                    asked = sum(seat.needs.get(type_, 0) for type_ in wanted)
                    owes = owes or asked > len(seat.devices) or any(free[row] < 0 for row in seat.devices)
        self._owe(name, job, owes=owes)

    def _owe(self, name: str, job: int, *, owes: bool) -> None:
        if owes:
            self._debt.setdefault(name, set()).add(job)
        elif name in self._debt:
            self._debt[name].discard(job)
            if not self._debt[name]:
                del self._debt[name]

    def _settle_debt(self, name: str) -> None:
        """Somebody left a node on which there were too few devices."""
        for job in sorted(self._debt.get(name, ())):
            if job <= _OTHERS:
                self._dirty.add(name)
            elif job in self._seats.jobs:
                self._seats.rewrite(job)
                self._note_debt(name, job)

    # -- inside ----------------------------------------------------------------------------------------------

    def _ready(self, gang: GangRequest, now: int) -> None:
        self.advance(now)
        if gang.stamp != self._columns.generation:
            raise Conflict("the nodes have changed since this gang was made: call gang() again")

    def _put(
        self, pod: Pod, node: str, *, bound: bool, assumed: bool = False, job: int | None = None
    ) -> None:
        self._drop(pod.metadata.uid)
        self.pods.put(pod, node, bound=bound, assumed=assumed, job=job)
        if job is None:
            self._dirty.add(node)

    def _drop(self, uid: str) -> None:
        entry = self.pods.drop(uid)
        if entry is not None and entry.job is None:
            self._dirty.add(entry.node)

    def _give(self, entry: PodEntry, job: int) -> Seat:
        """A pod that counted by itself counts as part of a job."""
        self._drop(entry.uid)
        self.pods.put(
            entry.pod, entry.node, bound=entry.bound, assumed=entry.assumed, job=job, needs=entry.needs
        )
        self._dirty.add(entry.node)
        return Seat(entry.uid, entry.node, entry.needs)

    def _join(self, job: int, uids: list[str]) -> None:
        self._members.setdefault(job, {}).update(dict.fromkeys(uids, False))
        self._job_of.update(dict.fromkeys(uids, job))

    def _occupy(self, seated: Seated) -> None:
        self._join(seated.job, [str(seat.pod) for seat in seated.seats])
        for seat in seated.seats:
            profile = self._requests.known(str(seat.pod))
            if profile is not None:
                self.pods.put(
                    profile.pod, seat.node, bound=False, assumed=True, job=seated.job, needs=profile.needs
                )

    def _confirm(self, entry: PodEntry, pod: Pod, node: str) -> None:
        """A pod with a seat is seen bound: on its seat, or elsewhere, or with another size."""
        job = entry.job
        assert job is not None
        needs = self.pods.needs(pod, bound=True)
        before = entry.node
        if before == node and entry.needs == needs and not _moved(entry, pod):
            entry.pod, entry.bound, entry.assumed = pod, True, False
            return
        self.sync()
        self.pods.put(pod, node, bound=True, job=job)
        self._seats.rewrite(job, (Seat(entry.uid, node, needs),))
        for name in {before, node}:
            self._note_debt(name, job)
            self._settle_debt(name)

    def _ended(self, uid: str, reason: str) -> tuple[FreedSeats, ...]:
        entry = self.pods.entries.get(uid)
        self._requests.forget(uid)
        if entry is None:
            job = self._job_of.get(uid)
            return () if job is None else self._job_lost(job, uid, reason)
        self._drop(uid)
        if entry.job is None:
            if entry.node in self._debt:
                self.sync()
                self._settle_debt(entry.node)
            return ()
        return self._job_lost(entry.job, uid, reason)

    def _job_lost(self, job: int, uid: str, reason: str) -> tuple[FreedSeats, ...]:
        members = self._members.get(job)
        if members is None or uid not in members:
            return ()
        members[uid] = True
        if all(members.values()):
            return self.release(job, reason=f"{reason}, and it was the last of its job")
        if self.release_each:
            return self.release(job, (uid,), reason=reason)
        return ()

    def _leave(self, name: str, reason: str) -> list[FreedSeats]:
        """The seats of jobs on a node are given back; the pods stay known."""
        return [
            FreedSeats(job, each.pods, name, reason, each.whole_job)
            for job, uids in self._jobs_on(name).items()
            for each in self.release(job, uids, reason=reason)
        ]

    def _leave_seat(self, job: int, uid: str, node: str) -> None:
        entry = self.pods.entries.get(uid)
        members = self._members.get(job)
        if members is not None and members.pop(uid, None) is not None:
            self._job_of.pop(uid, None)
        if entry is not None and entry.job == job:
            if entry.bound:
                self._put(entry.pod, entry.node, bound=True)
            else:
                self.pods.drop(uid)
        self._owe(node, job, owes=False)
        self._settle_debt(node)

    def _gone_by(self, at: int) -> set[str]:
        """The pods of jobs that end by then; when one that is overdue ends, nobody knows."""
        if at <= self._now:
            return set()
        jobs = self._seats.jobs
        return {
            uid
            for job, members in self._members.items()
            if job in jobs and self._now < jobs[job].end <= at
            for uid in members
        }


def _says(node: Node) -> tuple[object, ...]:
    """What a node says that a rule may ask."""
    return node.metadata.labels, node.spec.taints, node.spec.unschedulable, node.is_ready


def _moved(entry: PodEntry, pod: Pod) -> bool:
    """Whether a pod has other labels than we know, or has begun to leave."""
    before, now = entry.pod.metadata, pod.metadata
    return before.labels != now.labels or before.deletion_timestamp != now.deletion_timestamp


__all__ = ["Claim", "ClusterGraph", "FreedSeats", "Refused", "Scattered", "Shortage", "TopologyDomain"]
