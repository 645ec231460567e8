"""ClusterGraph: the live cluster as a graph, a ledger and columns, changed event by event.

    cluster = ClusterGraph()
    cluster.load(nodes, pods)
    gang = cluster.gang(pods_of_a_group)
    seated = cluster.seat(gang, job=job_number(uid), now=now)      # all of them, or Wait, or Never
    …                                                             # bind them; their events come back
    cluster.set_pod(bound)                                        # counted once
    for freed in cluster.remove_node("node-7"): …                 # who lost what, and why

Events only note what changed. The graph, the ledger and the columns catch up when something is asked
(`sync`). A *seat* is what one pod needs of one node; several seats may share a node.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from cachetools import LRUCache

from fluence.cluster.claims import Claim
from fluence.cluster.columns import NodeColumns
from fluence.cluster.device_overcommit import DeviceOvercommit
from fluence.cluster.device_vertices import DeviceVertices
from fluence.cluster.filters.node_affinity import selected
from fluence.cluster.filters.volumes import VolumeDecision, mounts
from fluence.cluster.layout import DEFAULT, GraphLayout
from fluence.cluster.node_events import NodeEvents
from fluence.cluster.node_usage import NodeUsage, is_usage
from fluence.cluster.pod_events import RELEASED, FreedSeats, PodEvents
from fluence.cluster.pods import PodTable
from fluence.cluster.requests import GangRequests, TopologyDomain
from fluence.cluster.unsupported import Refused
from fluence.cluster.vertices import NodeVertices
from fluence.errors import Conflict
from fluence.graph.graph import ResourceGraph
from fluence.match.matcher import HORIZON, Matcher
from fluence.match.placement import Never, Wait
from fluence.match.policy import MatchPolicy
from fluence.model.constraint import Constraint
from fluence.model.device import DeviceGrant, DeviceRequest, DeviceTree
from fluence.model.node import Node
from fluence.model.pod import NodeSelector, Pod
from fluence.model.reason import Code, Reason
from fluence.model.volume import Key
from fluence.placer.gang import GangRequest, Seated
from fluence.placer.gang_fit import GangFit

_KEPT = 128  # constraints


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
        # release_each: a seat is free when its pod ends; otherwise when all of its job have ended.
        self.pods = PodTable(layout.types)
        self._vertices = NodeVertices(layout, policy, horizon)
        self._seats = GangFit(self._vertices.matcher, keeps_overdue=True)
        self._columns = NodeColumns()
        self._devices = DeviceVertices(layout, self._vertices)
        self._requests = GangRequests(
            layout, self.pods, self._columns, self._leaving_by, self._seats.backends
        )
        self._overcommit = DeviceOvercommit(layout, self._seats)
        self._usage = NodeUsage(self.pods, self._vertices, self._seats, self._overcommit)
        self._nodes = NodeEvents(self._vertices, self._columns, self._seats, before_move=self._usage.erase)
        self._pods = PodEvents(
            self.pods, self._seats, self._usage, self._overcommit, release_each=release_each, sync=self.sync
        )
        self._ruled_out: LRUCache[Constraint, tuple[tuple[int, int], frozenset[str]]] = LRUCache(_KEPT)
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
        self._nodes.set_node(node)

    def remove_node(self, name: str) -> tuple[FreedSeats, ...]:
        """A node is gone: what jobs held there is released. Its pods are remembered until they are gone too,
        or the node comes back."""
        if self._nodes.withdraw(name):
            return ()
        self._catch_up()
        if name not in self._vertices.nodes:
            return ()
        reason = Reason.of(Code.NODE_GONE, node=name)
        freed = [
            FreedSeats(job, each.pods, name, reason, each.whole_job)
            for job, uids in self._pods.jobs_on(name).items()
            for each in self.release(job, uids, reason=reason)
        ]
        self._usage.erase(name)
        freed.extend(
            FreedSeats(job, (), name, reason, not len(self.matcher.ledger.job(job).spans))
            for job in self._nodes.remove(name)
        )
        self._overcommit.remove_node(name)
        return tuple(freed)

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes by name, as last told."""
        return self._nodes.nodes

    def node(self, name: str) -> Node | None:
        """One node, as last told."""
        return self._nodes.node(name)

    # -- devices that belong to no node ----------------------------------------------------------------------

    def set_devices(self, tree: DeviceTree) -> None:
        """The devices that there are from now on."""
        self._devices.set(tree)

    @property
    def devices(self) -> DeviceTree:
        return self._devices.tree

    @property
    def absent_backends(self) -> list[str]:
        """Those whose parent is not there, so that nobody can have them."""
        self.sync()
        return self._devices.absent

    # -- pods ------------------------------------------------------------------------------------------------

    def set_pod(self, pod: Pod) -> tuple[FreedSeats, ...]:
        """A pod as it is now; says what was given back if it has ended."""
        if pod.is_terminal:
            self._requests.forget(pod.metadata.uid)
        return self._pods.set_pod(pod)

    def remove_pod(self, pod: Pod | str) -> tuple[FreedSeats, ...]:
        """A pod's object is gone; says what was given back by it."""
        self._requests.forget(pod if isinstance(pod, str) else pod.metadata.uid)
        return self._pods.remove_pod(pod)

    def assume(self, pod: Pod, node: str) -> None:
        """Count a pod that we are about to bind by itself, without a job."""
        self._pods.put(pod, node, bound=False, assumed=True)

    def forget(self, *uids: str) -> tuple[FreedSeats, ...]:
        """Undo assumptions, or the seats of some pods: they will not be bound after all."""
        return self._pods.forget(*uids)

    def take_seat(self, job: int, uid: str, pod: Pod) -> str:
        """A pod has come that another one stood for: it has that one's seat from now on. Says on which
        node."""
        self._requests.forget(uid)
        return self._pods.take_seat(job, uid, pod)

    # -- what rules ask for ----------------------------------------------------------------------------------

    def set_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        """The labels of a namespace, for affinity that selects namespaces; None: it is gone."""
        self._requests.index.set_namespace(name, labels)

    def set_claim(self, namespace: str, name: str, claim: Claim | None) -> bool:
        """What is known of a PersistentVolumeClaim; None: it is gone. Says whether that is new."""
        return self._requests.claims.set_claim((namespace, name), claim)

    def set_attach_limits(self, node: str, limits: Mapping[str, int]) -> bool:
        """How many volumes of each CSI driver a node takes. Says whether that is new."""
        return self._requests.claims.csi_limits.set_limits(node, limits)

    def mounts_claims(self, pods: Iterable[Pod]) -> bool:
        """Whether some pod's seat depends on claims."""
        return any(mounts(pod) for pod in pods if pod.spec.volumes)

    def claim(self, key: Key) -> Claim | None:
        return self._requests.claims.claims.get(key)

    def hold_volume(self, claim: Key, volume: str | None) -> None:
        """A claim was told to take a volume that is there, so nobody else is to have it; None: no more."""
        held = self._requests.claims.held
        if volume is None:
            held.pop(claim, None)
        else:
            held[claim] = volume

    def volume_decisions(self, nodes: Mapping[str, str], pods: Mapping[str, Pod]) -> list[VolumeDecision]:
        """What is to be done for the claims of pods that have seats, both by uid, before they are bound."""
        self.sync()
        return self._requests.claims.decisions(nodes, pods)

    def reaches(self, selector: NodeSelector | None, node: str) -> bool:
        """Whether a node is one of those that a selector matches; no selector matches all."""
        at = self.columns.position.get(node)
        return at is not None and bool(selected(self.columns, selector)[at])

    # -- gangs -----------------------------------------------------------------------------------------------

    def gang(
        self,
        pods: Sequence[Pod],
        *,
        minimum: int | None = None,
        policy: str | MatchPolicy | None = None,
        exclude: Collection[str] = (),
        topology: TopologyDomain | None = None,
        devices: DeviceRequest | None = None,
    ) -> GangRequest | Refused:
        """The pods of a group as one request, one entry per distinct shape.

        ``exclude`` names nodes that this group must not have, ``topology`` the label of which all its nodes
        must have one value. The gang is for the nodes as they are now: when one of them changes, seating it
        is a `Conflict`, and it must be made again.
        """
        self.sync()
        how = self.policy if policy is None else policy
        return self._requests.gang(
            pods, minimum=minimum, policy=how, exclude=exclude, topology=topology, devices=devices
        )

    def equivalence_key(self, pods: Sequence[Pod]) -> frozenset[tuple[Hashable, int]] | None:
        """A key that is equal for gangs that find the same seats (kube-scheduler's equivalence class); None:
        only a try can tell."""
        return self._requests.equivalence_key(pods)

    def is_impossible(self, gang: GangRequest) -> bool:
        """Whether the nodes as they are could not hold a gang even if they were empty."""
        self.sync()
        return not self._seats.could_hold(gang)

    def most_if_empty(self, gang: GangRequest) -> int:
        """How many copies of a gang's first pod the nodes could hold if they were empty, at most."""
        self.sync()
        return self._seats.most_if_empty(gang.members[0])

    def closed(self, pod: Pod, node: str) -> Reason | None:
        """Why a node takes no such pod by its state, its taints and the pod's own rules; None: it is open."""
        self.sync()
        return self._requests.closed(pod, self._columns.position[node])

    def ruled_out(self, constraint: Constraint) -> frozenset[str]:
        """The nodes that a constraint on names, ranks and labels (RFC 31) does not allow, as they are now."""
        at = self.graph.state_generation, self.graph.shape_generation
        known = self._ruled_out.get(constraint)
        if known is None or known[0] != at:
            graph, rows = self._vertices.graph, self._seats.nodes.tolist()
            said = ((graph.name[row], int(graph.rank[row]), graph.properties.get(row, {})) for row in rows)
            out = frozenset(each[0] for each in said if not constraint.matches(*each))
            known = self._ruled_out[constraint] = (at, out)
        return known[1]

    @property
    def has_anti_affinity(self) -> bool:
        """Whether some pod keeps others away by their labels."""
        return self._requests.index.has_anti_affinity

    def why(
        self,
        pods: Sequence[Pod],
        *,
        now: int,
        duration: int | None = None,
        policy: str | MatchPolicy | None = None,
        exclude: Collection[str] = (),
        topology: TopologyDomain | None = None,
        devices: DeviceRequest | None = None,
        empty: bool = False,
    ) -> list[Reason]:
        """What stands in the way of a gang now, or would if the cluster were ``empty``: per distinct shape,
        which nodes are closed to it, and why."""
        self.advance(now)
        how = self.policy if policy is None else policy
        return self._requests.why(
            pods,
            self._seats,
            now=now,
            duration=duration,
            policy=how,
            exclude=exclude,
            topology=topology,
            devices=devices,
            empty=empty,
        )

    def try_now(self, gang: GangRequest, *, now: int, duration: int | None = None) -> Seated | Wait | Never:
        """Where a gang would be placed if it started now."""
        self._ready(gang, now)
        return self._seats.try_now(gang, now=now, duration=duration)

    def seat(
        self, gang: GangRequest, *, job: int, now: int, duration: int | None = None
    ) -> Seated | Wait | Never:
        """Seat a gang now; its pods count on their nodes until they are seen bound, or forgotten."""
        self._ready(gang, now)
        seated = self._seats.seat(gang, job=job, now=now, duration=duration)
        if isinstance(seated, Seated):
            self._pods.assume_seats(gang, seated)
        return seated

    def join(self, gang: GangRequest, *, job: int, now: int) -> Seated | Wait | Never:
        """Seat more pods for a job that has started: late members, or those that had found no seat."""
        self._ready(gang, now)
        seated = self._seats.join(gang, job=job, now=now)
        if isinstance(seated, Seated):
            self._pods.assume_seats(gang, seated)
        return seated

    def earliest(
        self, gang: GangRequest, *, now: int, duration: int | None = None, latest: int | None = None
    ) -> Seated | Wait | Never:
        """When and where a gang could start; nothing is recorded. ``latest``: later does not matter."""
        self._ready(gang, now)
        return self._seats.earliest(gang, now=now, duration=duration, latest=latest)

    def reserve(
        self, gang: GangRequest, *, job: int, now: int, duration: int | None = None
    ) -> Seated | Wait | Never:
        """Seat a gang now, or promise it the earliest time at which it fits."""
        self._ready(gang, now)
        seated = self._seats.reserve(gang, job=job, now=now, duration=duration)
        if isinstance(seated, Seated) and not seated.reserved:
            self._pods.assume_seats(gang, seated)
        return seated

    def adopt(
        self,
        job: int,
        pods: Iterable[str],
        *,
        start: int,
        end: int | None = None,
        whole: bool = False,
        grants: tuple[DeviceGrant, ...] = (),
    ) -> None:
        """Pods that run already belong to a job: after a restart, or when the rest of a gang follows."""
        self._sync_nodes()
        self._pods.adopt(job, pods, start=start, end=end, whole=whole, grants=grants)

    def share_devices(self, job: int, grants: tuple[DeviceGrant, ...], lender: int) -> None:
        """A job uses devices that another of its group holds: the last of them gives them back."""
        self._seats.share(job, grants, lender)

    def release(
        self, job: int, pods: Iterable[str] | None = None, *, reason: Reason = RELEASED
    ) -> tuple[FreedSeats, ...]:
        """Give back a job, or the seats of some of its pods. Pods that are bound go on counting by
        themselves. A job that has no seats has nothing to give back."""
        return self._pods.release(job, pods, reason=reason)

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
            if not is_usage(job)
        }

    # -- catching up -----------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Apply what was noted."""
        self._catch_up()
        self._nodes.arrange()

    def _catch_up(self) -> None:
        """The same without the columns: many nodes may come and go before somebody asks for them."""
        self._sync_nodes()
        if self._usage.is_stale:
            self._usage.write()

    def _sync_nodes(self) -> None:
        self._apply_nodes()
        if self._devices.is_stale:
            self._seats.backends.set(self._devices.arrange())
            self._pods.record_grants_anew()

    def _apply_nodes(self) -> None:
        if not self._nodes.is_stale:
            return
        changed, new = self._nodes.apply()
        # Pods may be known before their node is.
        for name in (*changed, *(new & self.pods.loads.keys())):
            self._usage.mark(name)
            if name in changed or any(entry.job is not None for entry in self.pods.on(name)):
                self._pods.record_jobs_anew(name)

    # -- inside ----------------------------------------------------------------------------------------------

    def _ready(self, gang: GangRequest, now: int) -> None:
        self.advance(now)
        if gang.stamp != self._columns.generation:
            raise Conflict("the nodes have changed since this gang was made: call gang() again")

    def _leaving_by(self, at: int) -> set[str]:
        """The pods of jobs that end by then; when one that is overdue ends, nobody knows."""
        return self._pods.leaving(self._now, at) if at > self._now else set()


__all__ = ["Claim", "ClusterGraph", "FreedSeats", "Refused", "TopologyDomain"]
