"""A cluster followed event by event is the cluster as it is read at once, and its seats obey Kubernetes."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any, TypeVar

import hypothesis.strategies as st
import msgspec
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fluence.cluster.graph import ClusterGraph
from fluence.cluster.layout import GraphLayout
from fluence.match.request import Never, Wait
from fluence.model.meta import Condition, LabelSelector, ObjectMeta, OwnerReference, Requirement
from fluence.model.node import Node, NodeSpec, NodeStatus, Taint, untolerated
from fluence.model.pod import (
    Affinity,
    Container,
    ContainerPort,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    PodStatus,
    PreferredSchedulingTerm,
    ResourceRequirements,
    Toleration,
    TopologySpreadConstraint,
    pod_requests,
)
from fluence.model.reason import Code, Reason
from fluence.placer.placer import GangPlacement, GangRequest
from tests.gangs import compiled, nominated
from tests.gangs import why as why_not
from tests.property.kubernetes import NO, World

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
LAYOUT = GraphLayout(levels=(("zone", ZONE), ("rack", "rack")))
NAMES = [f"n{i}" for i in range(5)]
LEFT = datetime(2026, 1, 1, tzinfo=UTC)

T = TypeVar("T")


def some(element: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    """Mostly nothing."""
    return st.one_of(st.none(), st.none(), st.none(), element)


def sometimes(element: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    return st.one_of(st.none(), element)


def never(element: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    return st.none()


plenty = st.integers(0, 6).map(lambda number: str((6 - number) % 7))  # shrinks to much
little = st.sampled_from("120")
labels = st.fixed_dictionaries(
    {},
    optional={
        ZONE: st.sampled_from("ab"),
        "rack": st.sampled_from("xy"),
        "disk": st.sampled_from(["ssd", "hdd", "3"]),
    },
)
taints = st.builds(
    Taint,
    key=st.sampled_from(["gpu", "team"]),
    value=st.sampled_from(["", "a"]),
    effect=st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
)
kinds = st.sampled_from(["red", "blue"])


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    allocatable = {"cpu": draw(plenty), "memory": draw(plenty), "pods": draw(st.sampled_from("5312"))}
    for resource in ("nvidia.com/gpu", "example.com/nic"):
        if draw(st.booleans()):
            allocatable[resource] = draw(plenty)
    own = {**draw(labels), **({HOST: name} if draw(st.integers(0, 7)) < 7 else {})}
    return Node(
        metadata=ObjectMeta(name=name, labels=own),
        spec=NodeSpec(
            unschedulable=draw(st.integers(0, 7)) == 7, taints=draw(some(st.lists(taints, max_size=2)))
        ),
        status=NodeStatus(
            allocatable=allocatable,
            conditions=[Condition(type="Ready", status="False" if draw(st.integers(0, 7)) == 7 else "True")],
        ),
    )


requirements = st.builds(
    Requirement,
    key=st.sampled_from(["disk", ZONE]),
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
    values=st.lists(st.sampled_from(["ssd", "a", "2"]), min_size=1, max_size=2),
)
fields = st.builds(
    Requirement,
    key=st.just("metadata.name"),
    operator=st.sampled_from(["In", "NotIn"]),
    values=st.lists(st.sampled_from(NAMES), min_size=1, max_size=1),
)
terms = st.builds(
    NodeSelectorTerm,
    match_expressions=some(st.lists(requirements, max_size=2)),
    match_fields=some(st.lists(fields, max_size=1)),
)
node_affinities = st.builds(
    NodeAffinity,
    required=some(st.builds(NodeSelector, node_selector_terms=st.lists(terms, min_size=1, max_size=2))),
    preferred=some(
        st.lists(st.builds(PreferredSchedulingTerm, weight=st.integers(1, 100), preference=terms), max_size=2)
    ),
)
selectors = st.one_of(
    st.builds(LabelSelector, match_labels=st.fixed_dictionaries({"app": kinds})), st.just(LabelSelector())
)
topology = st.sampled_from([ZONE, HOST, "rack"])
pod_terms = st.builds(
    PodAffinityTerm,
    topology_key=topology,
    label_selector=some(selectors),
    namespaces=some(st.just(["one"])),
    namespace_selector=some(
        st.one_of(
            st.just(LabelSelector()), st.builds(LabelSelector, match_labels=st.just({"team": "physics"}))
        )
    ),
)
pod_affinities = st.builds(PodAffinity, required=st.lists(pod_terms, min_size=1, max_size=2))
spread = st.builds(
    TopologySpreadConstraint,
    max_skew=st.integers(1, 2),
    topology_key=topology,
    when_unsatisfiable=st.sampled_from(["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"]),
    label_selector=selectors,
    min_domains=some(st.integers(1, 3)),
    node_affinity_policy=st.sampled_from(["Honor", "Ignore"]),
    node_taints_policy=st.sampled_from(["Honor", "Ignore"]),
    match_label_keys=some(st.just(["app"])),
)
tolerations = st.builds(
    Toleration,
    key=st.sampled_from(["", "gpu", "node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready"]),
    operator=st.sampled_from(["Exists", "Equal"]),
    value=st.sampled_from(["", "a"]),
    effect=st.sampled_from(["", "NoSchedule"]),
)
serial = itertools.count()


@st.composite
def pods(draw: st.DrawFn, count: int = 1, *, resident: bool = False, sociable: bool = False) -> list[Pod]:
    """Pods of one template; sociable ones mind their company rather than their node."""
    maybe, seldom = (sometimes, never) if sociable else (some, some)
    requests = {"cpu": draw(little)}
    for resource in ("memory", "nvidia.com/gpu", "example.com/nic"):
        if not sociable and draw(st.integers(0, 3)) == 3:
            requests[resource] = draw(little)
    affinity = Affinity(
        node_affinity=draw(seldom(node_affinities)),
        pod_affinity=draw(maybe(pod_affinities)),
        pod_anti_affinity=draw(maybe(pod_affinities)),
    )
    ports = draw(some(st.builds(ContainerPort, host_port=st.sampled_from([80, 81])).map(lambda one: [one])))
    owner = [OwnerReference(kind="DaemonSet", name="d", controller=True)] if resident else None
    spec = PodSpec(
        containers=[Container(name="c", resources=ResourceRequirements(requests=requests), ports=ports)],
        node_selector=draw(seldom(st.just({"disk": "ssd"}))),
        affinity=affinity,
        tolerations=draw(some(st.lists(tolerations, max_size=2))),
        topology_spread_constraints=draw(maybe(st.lists(spread, max_size=2))),
    )
    namespace = draw(st.sampled_from(["one", "two"]))
    app = draw(kinds)
    made = []
    for _ in range(count):
        number = next(serial)
        meta = ObjectMeta(
            name=f"p{number}",
            uid=f"uid-{number}",
            namespace=namespace,
            labels={"app": app, "index": str(number)},
            owner_references=owner,
        )
        made.append(Pod(metadata=meta, spec=spec))
    return made


def bound(pod: Pod, node: str, **status: object) -> Pod:
    spec = msgspec.structs.replace(pod.spec, node_name=node)
    return msgspec.structs.replace(pod, spec=spec, status=PodStatus(phase="Running", **status))  # type: ignore[arg-type]


class ClusterMachine(RuleBasedStateMachine):
    @initialize(data=st.data(), each=st.booleans())
    def start(self, data: st.DataObject, each: bool) -> None:
        self.each = each
        self.cluster = ClusterGraph(LAYOUT, policy="low", release_each=True)
        self.cluster.set_namespace("two", {"team": "physics"})
        self.world = World({}, {}, {"two": {"team": "physics"}})
        self.assumed: dict[str, str] = {}  # uid -> node, of pods that are not bound
        self.jobs: dict[int, set[str]] = {}
        self.now = 10
        self.next = 1
        for name in NAMES[:3]:
            self.set_node(data, name)

    # -- events ----------------------------------------------------------------------------------------------

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def set_node(self, data: st.DataObject, name: str) -> None:
        node = data.draw(nodes(name))
        self.world.nodes[name] = node
        self.cluster.set_node(node)

    @precondition(lambda self: self.world.nodes)
    @rule(data=st.data())
    def remove_node(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.nodes)))
        del self.world.nodes[name]
        expected = {
            (job, uid) for job, uids in self.jobs.items() for uid in uids if self.world.pods[uid][1] == name
        }
        freed = self.cluster.remove_node(name)
        assert {(each.job, uid) for each in freed for uid in each.pods} == expected
        assert all(each.reason == Reason.of(Code.NODE_GONE, node=name) for each in freed)
        for job, uid in expected:
            self.jobs[job].discard(uid)
            if self.world.pods[uid][0].spec.node_name is None:
                self.gone(uid)  # it was not bound: there is nothing to wait for
        self.jobs = {job: uids for job, uids in self.jobs.items() if uids}

    @rule(data=st.data(), node=st.sampled_from(NAMES), resident=st.booleans())
    def others_bind(self, data: st.DataObject, node: str, resident: bool) -> None:
        (pod,) = data.draw(pods(resident=resident))
        self.put(bound(pod, node), node)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), how=st.sampled_from(["terminal", "deleted", "leaving", "grown", "relabelled"]))
    def pod_changes(self, data: st.DataObject, how: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.world.pods)))
        pod, node = self.world.pods[uid]
        if how == "terminal":
            self.gone(uid)
            self.cluster.set_pod(msgspec.structs.replace(pod, status=PodStatus(phase="Failed")))
        elif how == "deleted":
            self.gone(uid)
            self.cluster.remove_pod(pod)
        elif how == "leaving":
            meta = msgspec.structs.replace(pod.metadata, deletion_timestamp=LEFT)
            self.put(msgspec.structs.replace(pod, metadata=meta), node)
        elif how == "relabelled":
            meta = msgspec.structs.replace(pod.metadata, labels={"app": "blue"})
            self.put(msgspec.structs.replace(pod, metadata=meta), node)
        elif pod.spec.node_name is not None:
            requests = {**(pod.spec.containers or [])[0].resources.requests, "cpu": "3"}  # type: ignore[dict-item]
            box = Container(name="c", resources=ResourceRequirements(requests=requests))
            spec = msgspec.structs.replace(pod.spec, containers=[box])
            self.put(msgspec.structs.replace(pod, spec=spec), node)

    def put(self, pod: Pod, node: str) -> None:
        self.world.pods[pod.metadata.uid] = (pod, node)
        self.cluster.set_pod(pod)

    def gone(self, uid: str) -> None:
        del self.world.pods[uid]
        self.assumed.pop(uid, None)
        for uids in self.jobs.values():
            uids.discard(uid)
        self.jobs = {job: uids for job, uids in self.jobs.items() if uids}

    @rule(data=st.data(), node=st.sampled_from(NAMES))
    def nominate(self, data: st.DataObject, node: str) -> None:
        (pod,) = data.draw(pods())
        self.put(nominated(pod, node), node)
        self.assumed[pod.metadata.uid] = node

    @precondition(lambda self: self.assumed)
    @rule(data=st.data(), how=st.sampled_from(["bound", "bound", "elsewhere", "forgotten"]))
    def assumption_ends(self, data: st.DataObject, how: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.assumed)))
        node = self.assumed.pop(uid)
        if how == "forgotten":
            pod, _ = self.world.pods[uid]
            self.gone(uid)
            self.cluster.forget(uid)
            self.cluster.set_pod(msgspec.structs.replace(pod, status=PodStatus()))  # it is nominated no more
        else:
            where = data.draw(st.sampled_from(NAMES)) if how == "elsewhere" else node
            self.put(bound(self.world.pods[uid][0], where), where)

    # -- gangs -----------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def place_a_pod(self, data: st.DataObject) -> None:
        (pod,) = data.draw(pods())
        gang = compiled(self.cluster, [pod])
        assert isinstance(gang, GangRequest)
        found = self.cluster.try_now(gang, now=self.now)
        possible = [name for name in self.world.nodes if self.world.feasible(pod, name)]
        if not possible:
            assert isinstance(found, Wait | Never)
            told = why_not(self.cluster, [pod], now=self.now)
            (shortage,) = told
            assert shortage.code is Code.TOO_FEW_SEATS
            causes: Any = dict(shortage.params)["causes"]
            closed = [dict(cause.params)["names"] for cause in causes]
            assert sum(map(len, closed)) == len(self.world.nodes)
            return
        assert isinstance(found, GangPlacement), why_not(self.cluster, [pod], now=self.now)
        (node,) = found.nodes.values()
        assert node in possible
        score, company = gang.members[0].score, self.world.preference(pod)
        position = self.cluster.fit.position
        ids = self.cluster.graph.id[self.cluster.fit.nodes]

        def rank(name: str) -> tuple[int, int]:
            at = position[name]
            own = 0 if score is None else int(score[at])
            return -(own + company[name]), int(ids[at])

        assert rank(node) == min(map(rank, possible))

    @rule(data=st.data(), counts=st.lists(st.integers(1, 3), min_size=1, max_size=2))
    def seat_a_gang(self, data: st.DataObject, counts: list[int]) -> None:
        members = [pod for count in counts for pod in data.draw(pods(count, sociable=True))]
        gang = compiled(self.cluster, members)
        assert isinstance(gang, GangRequest)
        found = self.cluster.allocate(gang, job=self.next, now=self.now, duration=50)
        if not isinstance(found, GangPlacement):
            assert self.next not in self.cluster.jobs
            return
        assert len(found.placements) == len(members)
        by_uid = {pod.metadata.uid: pod for pod in members}
        for seat in found.placements:  # in the order in which they sat
            pod = by_uid[str(seat.pod)]
            assert self.world.feasible(pod, seat.node), seat
            self.world.pods[pod.metadata.uid] = (pod, seat.node)
            self.assumed[pod.metadata.uid] = seat.node
        self.jobs[self.next] = set(by_uid)
        self.next += 1

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def release_a_job(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        self.cluster.release(job)
        for uid in self.jobs.pop(job):
            if self.world.pods[uid][0].spec.node_name is None:
                self.gone(uid)

    @rule(step=st.integers(1, 60))
    def time_goes_by(self, step: int) -> None:
        self.now += step
        self.cluster.advance(self.now)

    # -- what always holds -----------------------------------------------------------------------------------

    @invariant()
    def followed_is_read(self) -> None:
        if not hasattr(self, "cluster") or not self.each:
            return
        fresh = ClusterGraph(LAYOUT, policy="low")
        plain = [pod for uid, (pod, _) in self.world.pods.items() if uid not in self.assumed]
        fresh.load(self.world.nodes.values(), plain)
        for uid, node in self.assumed.items():
            fresh.set_pod(nominated(self.world.pods[uid][0], node))
        assert picture(self.cluster, self.now) == picture(fresh, self.now)

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        self.each = True
        self.followed_is_read()
        for uid, (pod, _) in list(self.world.pods.items()):
            self.gone(uid)
            self.cluster.remove_pod(pod)
        for job in list(self.cluster.jobs):
            self.cluster.release(job)
        self.cluster.sync()
        seats = self.cluster.fit
        for type_ in seats.types:
            assert (seats.free(type_) == seats.size(type_)).all(), type_
        assert not self.cluster.matcher.ledger.jobs


def picture(cluster: ClusterGraph, now: int) -> dict[str, object]:
    """What can be seen of a cluster, whatever its history."""
    cluster.advance(now)
    graph, seats, columns = cluster.graph, cluster.fit, cluster.columns
    view = seats.look(now)
    tree = graph.tree()
    types = sorted(type_ for type_ in seats.types if seats.size(type_).any())
    shown: dict[str, object] = {}
    for at, name in enumerate(seats.names):
        row = int(seats.nodes[at])
        has = {type_: int(seats.size(type_)[at]) for type_ in types if seats.size(type_)[at]}
        shown[name] = {
            "way": [(graph.type_name(up), graph.name[up]) for up in tree.ancestors(row)],
            "has": has,
            "free": {type_: int(seats.free(type_)[at]) for type_ in has},
            "up": bool(graph.up[row]),
            "properties": graph.properties.get(row, {}),
            "in use": bool(view.users[row] > 0),
            "state": (bool(columns.schedulable[at]), bool(columns.ready[at])),
            "zone": bool(columns.label(ZONE).equals("a")[at]),
            "taint": untolerated(columns.taints(at), (), NO),
        }
    shown["levels"] = sorted(
        (graph.path(int(row)) or "")
        for row in np.flatnonzero(graph.alive)
        if graph.type_name(int(row)) in ("zone", "rack")
    )
    shown["nodes up"] = graph.nodes_up
    return shown


ClusterMachine.TestCase.settings = settings(stateful_step_count=15)
TestCluster = ClusterMachine.TestCase


def test_what_a_pod_asks_for_is_what_kubernetes_counts() -> None:
    """The picture above compares two clusters; this is an absolute."""
    node = Node(
        metadata=ObjectMeta(name="n"),
        status=NodeStatus(allocatable={"cpu": "2", "memory": "4Gi", "pods": "3"}),
    )
    pod = Pod(
        metadata=ObjectMeta(name="p", namespace="d", uid="u"),
        spec=PodSpec(
            node_name="n",
            overhead={"cpu": "250m"},
            containers=[Container(resources=ResourceRequirements(requests={"cpu": "500m", "memory": "1Gi"}))],
        ),
    )
    cluster = ClusterGraph()
    cluster.load([node], [pod])
    seats = cluster.fit
    assert pod_requests(pod) == {"cpu": 750, "memory": 1 << 30, "pods": 1}
    assert seats.free("cpu").tolist() == [1250]
    assert seats.free("memory").tolist() == [3 << 30]
    assert seats.free("pods").tolist() == [2]
