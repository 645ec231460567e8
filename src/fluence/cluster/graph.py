"""ClusterGraph: the live cluster as a graph, a ledger and columns, updated with each event.

    cluster = ClusterGraph()
    cluster.load(nodes, pods)
    gang = cluster.gang(PodSetRequest(pods_of_a_group))
    seated = cluster.allocate(gang, job=job_number(uid), now=now)      # all pods, or Wait, or Never
    …                                                             # bind them; their events follow
    cluster.set_pod(bound)                                        # counted once
    for freed in cluster.remove_node("node-7"): …                 # what jobs lost, and why

Events are only collected. The graph, the ledger and the columns are updated with the next query (`sync`). A
*placement* is the part of one node that a pod uses; several pods may share a node.

A job has the same number after a restart, because it is derived from a uid (`job_number`), not from a
counter.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b

from cachetools import LRUCache

from fluence.cluster.claims import Claim
from fluence.cluster.columns import NodeColumns
from fluence.cluster.filters.node_affinity import selected
from fluence.cluster.filters.volumes import VolumeDecision, mounts
from fluence.cluster.layout import DEFAULT, GraphLayout
from fluence.cluster.pod_events import RELEASED, FreedPlacements, PodEvents
from fluence.cluster.pods import DeviceOvercommit, NodeUsage, PodTable, is_usage
from fluence.cluster.requests import GangRequests, PodGang, PodSetRequest, TopologyDomain
from fluence.cluster.unsupported import Refused
from fluence.cluster.vertices import DeviceVertices, NodeEvents, NodeVertices
from fluence.errors import Conflict
from fluence.graph.graph import ResourceGraph
from fluence.match.matcher import HORIZON, Matcher
from fluence.match.policy import MatchPolicy
from fluence.match.request import Never, Wait
from fluence.model.claims import Key
from fluence.model.constraint import Constraint
from fluence.model.external_resources import DeviceGrant, DeviceTree
from fluence.model.node import Node
from fluence.model.pod import NodeSelector, Pod
from fluence.model.reason import Code, Reason
from fluence.placer.gang_fit import GangFit
from fluence.placer.placer import GangHolding, GangPlacement, GangRequest


def job_number(uid: str) -> int:
    """A positive number of 62 bits for the uid of a pod, a group or an owner."""
    return int.from_bytes(blake2b(uid.encode(), digest_size=8).digest()) >> 2 or 1


_MAX_CONSTRAINTS = 128  # whose nodes are cached


class ClusterGraph:
    """The nodes and pods of a cluster, with current and planned placements."""

    def __init__(
        self,
        layout: GraphLayout = DEFAULT,
        *,
        policy: str | MatchPolicy = "first",
        horizon: int = HORIZON,
        release_each: bool = False,
        spread_services: bool = True,
    ) -> None:
        self.layout = layout
        self.policy = policy
        self._spread_services = spread_services
        # release_each: a placement is freed when its pod ends; otherwise when all pods of its job have ended.
        self.release_each = release_each
        self.pods = PodTable(layout.types)
        self._vertices = NodeVertices(layout, horizon)
        self._fit = GangFit(self._vertices.matcher, keeps_overdue=True)
        self._columns = NodeColumns()
        self._devices = DeviceVertices(layout, self._vertices)
        self._requests = GangRequests(layout, self.pods, self._columns, self._leaving_by, self._fit.backends)
        self._overcommit = DeviceOvercommit(layout, self._fit)
        self._usage = NodeUsage(self.pods, self._vertices, self._fit, self._overcommit)
        self._nodes = NodeEvents(self._vertices, self._columns, self._fit, before_move=self._usage.erase)
        self._pods = PodEvents(
            self.pods, self._fit, self._usage, self._overcommit, release_each=release_each, sync=self.sync
        )
        self._constrained: LRUCache[Constraint, tuple[tuple[int, int], frozenset[str]]] = LRUCache(
            _MAX_CONSTRAINTS
        )
        self._now = -1
        self.departing: frozenset[str] = frozenset()  # pods that a query assumes to be gone

    # -- nodes -----------------------------------------------------------------------------------------------

    def load(self, nodes: Iterable[Node], pods: Iterable[Pod] = ()) -> None:
        """Read all nodes and pods at once, as listed at the start."""
        for node in nodes:
            self.set_node(node)
        for pod in pods:
            self.set_pod(pod)

    def set_node(self, node: Node) -> None:
        """Add a node, or change its size, state, taints or labels."""
        self._nodes.set_node(node)

    def remove_node(self, name: str) -> tuple[FreedPlacements, ...]:
        """Remove a node and free the placements on it. Its pods stay known until they are gone too, or the
        node comes back."""
        if self._nodes.withdraw(name):
            return ()
        self._catch_up()
        if name not in self._vertices.nodes:
            return ()
        reason = Reason.of(Code.NODE_GONE, node=name)
        freed = [
            FreedPlacements(job, each.pods, name, reason, each.whole_job)
            for job, uids in self._pods.jobs_on(name).items()
            for each in self.release(job, uids, reason=reason)
        ]
        self._usage.erase(name)
        freed.extend(
            FreedPlacements(job, (), name, reason, not len(self.matcher.ledger.job(job).spans))
            for job in self._nodes.remove(name)
        )
        self._overcommit.remove_node(name)
        return tuple(freed)

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes by name, with pending changes."""
        return self._nodes.nodes

    def node(self, name: str) -> Node | None:
        """One node, with pending changes."""
        return self._nodes.node(name)

    # -- devices that belong to no node ----------------------------------------------------------------------

    def set_devices(self, tree: DeviceTree) -> None:
        """Set the external resources."""
        self._devices.set(tree)

    @property
    def devices(self) -> DeviceTree:
        return self._devices.tree

    @property
    def absent_backends(self) -> list[str]:
        """The backends that cannot be used because their parent does not exist."""
        self.sync()
        return self._devices.absent

    # -- pods ------------------------------------------------------------------------------------------------

    def set_pod(self, pod: Pod) -> tuple[FreedPlacements, ...]:
        """Add or change a pod; returns the freed placements if it has ended."""
        if pod.is_terminal:
            self._requests.forget(pod.metadata.uid)
        return self._pods.set_pod(pod)

    def remove_pod(self, pod: Pod | str) -> tuple[FreedPlacements, ...]:
        """Remove a pod; returns the freed placements."""
        self._requests.forget(pod if isinstance(pod, str) else pod.metadata.uid)
        return self._pods.remove_pod(pod)

    def forget(self, *uids: str) -> tuple[FreedPlacements, ...]:
        """Free assumed or placed pods that will not be bound after all."""
        return self._pods.forget(*uids)

    def replace_pod(self, job: int, uid: str, pod: Pod) -> str:
        """A pod replaces its placeholder and gets its placement; returns the node."""
        self._requests.forget(uid)
        return self._pods.replace_pod(job, uid, pod)

    # -- what rules ask for ----------------------------------------------------------------------------------

    def set_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Set the labels of a namespace, for affinity that selects namespaces; None: it is gone."""
        self._requests.index.set_namespace(name, labels)

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        """The labels of a namespace, which always include its name."""
        return self._requests.index.labels_of(name)

    def set_service(self, namespace: str, name: str, selector: Mapping[str, str] | None) -> None:
        """Set the selector of a Service; None: it is gone."""
        self._requests.siblings.set_service(namespace, name, selector)

    def set_claim(self, namespace: str, name: str, claim: Claim | None) -> bool:
        """Set the state of a PersistentVolumeClaim; None: it is gone. Returns whether it has changed."""
        return self._requests.claims.set_claim((namespace, name), claim)

    def set_attach_limits(self, node: str, limits: Mapping[str, int]) -> bool:
        """Set the largest number of volumes of each CSI driver on a node; returns whether it has changed."""
        return self._requests.claims.csi_limits.set_limits(node, limits)

    def mounts_claims(self, pods: Iterable[Pod]) -> bool:
        """Whether the placement of one of these pods depends on claims."""
        return any(mounts(pod) for pod in pods if pod.spec.volumes)

    def claim(self, key: Key) -> Claim | None:
        return self._requests.claims.claims.get(key)

    def hold_volume(self, claim: Key, volume: str | None) -> None:
        """Reserve an existing volume for a claim, so that no other claim gets it; None: end the
        reservation."""
        held = self._requests.claims.held
        if volume is None:
            held.pop(claim, None)
        else:
            held[claim] = volume

    def volume_decisions(self, nodes: Mapping[str, str], pods: Mapping[str, Pod]) -> list[VolumeDecision]:
        """The decisions about the claims of placed pods before they are bound; both arguments are by uid."""
        self.sync()
        return self._requests.claims.decisions(nodes, pods)

    def reaches(self, selector: NodeSelector | None, node: str) -> bool:
        """Whether a selector matches a node; None matches all nodes."""
        at = self.columns.position.get(node)
        return at is not None and bool(selected(self.columns, selector)[at])

    # -- gangs -----------------------------------------------------------------------------------------------

    def gang(self, request: PodSetRequest) -> PodGang | Refused:
        """Compile a request for the current nodes. After a change of a node, placing the gang raises
        `Conflict`, and it must be compiled again."""
        self.sync()
        return self._requests.compile(
            request,
            policy=self.policy,
            exclude=self._excluded(request),
            spread_services=self._spread_services,
        )

    def equivalence_key(self, pods: Sequence[Pod]) -> frozenset[tuple[Hashable, int]] | None:
        """A key that is equal for gangs that get the same placements (kube-scheduler's equivalence class);
        None: there is no such key."""
        return self._requests.equivalence_key(pods)

    def closed(self, pod: Pod, node: str) -> Reason | None:
        """Why a node is closed to a pod by its state, its taints and the rules of the pod; None: it is
        open."""
        self.sync()
        return self._requests.closed(pod, self._columns.position[node])

    @property
    def has_anti_affinity(self) -> bool:
        """Whether a pod on a node has required anti-affinity."""
        return self._requests.index.has_anti_affinity

    def why(
        self, gang: PodGang, *, now: int, duration: int | None = None, empty: bool = False
    ) -> list[Reason]:
        """Why a gang does not fit now or, with ``empty``, on the empty cluster: per distinct shape, the nodes
        that are closed to it, and why."""
        self._ready(gang, now)
        return self._requests.why(gang, self._fit, now=now, duration=duration, empty=empty)

    def try_now(
        self, gang: GangRequest, *, now: int, duration: int | None = None
    ) -> GangPlacement | Wait | Never:
        """Where a gang would be placed if it started now."""
        self._ready(gang, now)
        return self._fit.try_now(gang, now=now, duration=duration)

    def allocate(
        self, gang: PodGang, *, job: int, now: int, duration: int | None = None
    ) -> GangPlacement | Wait | Never:
        """Place a gang now; its pods count on their nodes until they are seen bound, or forgotten."""
        self._ready(gang, now)
        found = self._fit.allocate(gang, job=job, now=now, duration=duration)
        if isinstance(found, GangPlacement):
            self._pods.assume(gang, found)
        return found

    def earliest(
        self,
        gang: GangRequest,
        *,
        now: int,
        duration: int | None = None,
        latest: int | None = None,
        begin: int = 0,
    ) -> GangPlacement | Wait | Never:
        """The earliest start of a gang and its placement, from ``begin`` on and not after ``latest``; nothing
        is recorded."""
        self._ready(gang, now)
        return self._fit.earliest(gang, now=now, duration=duration, latest=latest, begin=begin)

    def reserve(
        self, gang: PodGang, *, job: int, now: int, duration: int | None = None, begin: int = 0
    ) -> GangPlacement | Wait | Never:
        """Place a gang now, or reserve its earliest start from ``begin`` on."""
        self._ready(gang, now)
        found = self._fit.reserve(gang, job=job, now=now, duration=duration, begin=begin)
        if isinstance(found, GangPlacement) and not found.reserved:
            self._pods.assume(gang, found)
        return found

    def mark(self) -> int:
        """A mark to which `undo` can return, until the ledger is settled."""
        return self.matcher.ledger.mark()

    def undo(self, mark: int) -> None:
        """Undo what was allocated, reserved, released and prolonged since a mark."""
        for record, is_back in self.matcher.ledger.undo(mark):
            if not is_back and not record.reserved and isinstance(record, GangHolding):
                self._pods.unassume(record)

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
        """Add running pods to a job: after a restart, or when the rest of a gang follows."""
        self._sync_nodes()
        self._pods.adopt(job, pods, start=start, end=end, whole=whole, grants=grants)

    def share_devices(self, job: int, grants: tuple[DeviceGrant, ...], lender: int) -> None:
        """A job shares devices that another job of its group holds; the last of these jobs frees them."""
        self._fit.share(job, grants, lender)

    def release(
        self, job: int, pods: Iterable[str] | None = None, *, reason: Reason = RELEASED
    ) -> tuple[FreedPlacements, ...]:
        """Free a job, or the placements of some of its pods. Bound pods still count, outside of the job. A
        job without placements is ignored."""
        return self._pods.release(job, pods, reason=reason)

    def advance(self, now: int) -> None:
        """Set the current time. A job past its end keeps its placements, because its pods still run."""
        self.sync()
        if now == self._now:
            return
        self._now = now
        self._fit.look(now)

    def prolong(self, job: int, end: int) -> None:
        """Set the end of a job."""
        self._fit.prolong(job, end)

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
    def fit(self) -> GangFit:
        self.sync()
        return self._fit

    @property
    def columns(self) -> NodeColumns:
        self.sync()
        return self._columns

    @property
    def jobs(self) -> dict[int, dict[str, str]]:
        """The jobs of this scheduler: the node of each pod, by uid."""
        return {
            job: {str(pod): seat.node for pod, seat in seating.placements.items()}
            for job, seating in self._fit.jobs.items()
            if not is_usage(job)
        }

    # -- catching up -----------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Apply the collected events."""
        self._catch_up()
        self._nodes.arrange()

    def _catch_up(self) -> None:
        """The same without the columns: many nodes may be added and removed before the columns are needed."""
        self._sync_nodes()
        if self._usage.is_stale:
            self._usage.write()

    def _sync_nodes(self) -> None:
        self._apply_nodes()
        if self._devices.is_stale:
            self._fit.backends.set(self._devices.arrange())
            self._pods.record_grants_anew()

    def _apply_nodes(self) -> None:
        if not self._nodes.is_stale:
            return
        changed, new = self._nodes.apply()
        # Pods may be known before their node.
        for name in (*changed, *(new & self.pods.loads.keys())):
            self._usage.mark(name)
            if name in changed or any(entry.job is not None for entry in self.pods.on(name)):
                self._pods.record_jobs_anew(name)

    # -- inside ----------------------------------------------------------------------------------------------

    def _ready(self, gang: GangRequest, now: int) -> None:
        self.advance(now)
        if gang.stamp != self._columns.generation:
            raise Conflict("the nodes have changed since this gang was made: call gang() again")

    def _excluded(self, request: PodSetRequest) -> frozenset[str]:
        """The nodes that a request must not use: those that refused it, and those outside its constraint."""
        if request.constraint is None:
            return request.exclude
        return request.exclude | self._ruled_out(request.constraint)

    def _ruled_out(self, constraint: Constraint) -> frozenset[str]:
        """The current nodes that a constraint on names, ranks and labels does not allow."""
        graph = self._vertices.graph
        at = graph.state_generation, graph.shape_generation
        known = self._constrained.get(constraint)
        if known is None or known[0] != at:
            rows = self._fit.nodes.tolist()
            facts = ((graph.name[row], int(graph.rank[row]), graph.properties.get(row, {})) for row in rows)
            out = frozenset(node[0] for node in facts if not constraint.matches(*node))
            known = self._constrained[constraint] = (at, out)
        return known[1]

    def _leaving_by(self, at: int) -> set[str]:
        """The pods of jobs that end by a time. The end of an overdue job is unknown."""
        leaving = self._pods.leaving(self._now, at) if at > self._now else set()
        return leaving | self.departing


__all__ = ["Claim", "ClusterGraph", "FreedPlacements", "PodSetRequest", "Refused", "TopologyDomain"]
