"""Queues of Kueue's objects in the cycle: labels, quotas, priorities, and beside queues of our own."""

from __future__ import annotations

from typing import Any

from fluence import names
from fluence.model import kueue
from fluence.model.meta import KubeObject, ObjectMeta
from fluence.model.owner import Job
from fluence.model.pod import Pod
from tests.unit.cluster.build import node
from tests.unit.schedule import kit
from tests.unit.schedule.test_cluster_queues import DEFAULT, SECOND, SETTLED, World, queue

FLAVOUR = kueue.ResourceFlavor(metadata=ObjectMeta(name="f"))


def cluster_queue(name: str, cpu: int, cohort: str = "", **spec: Any) -> kueue.ClusterQueue:
    resources = [{"name": "cpu", "nominalQuota": str(cpu)}]
    spec = {"namespaceSelector": {}, **({"cohortName": cohort} if cohort else {}), **spec}
    spec["resourceGroups"] = [
        {"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": resources}]}
    ]
    return kueue.ClusterQueue(metadata=ObjectMeta(name=name), spec=spec)


def local_queue(namespace: str, name: str, of: str) -> kueue.LocalQueue:
    return kueue.LocalQueue(metadata=ObjectMeta(name=name, namespace=namespace), spec={"clusterQueue": of})


def space(name: str) -> KubeObject:
    return KubeObject(metadata=ObjectMeta(name=name, labels={"kubernetes.io/metadata.name": name}))


def pod(name: str, of: str = "", namespace: str = "a", priority: str = "", **more: Any) -> Pod:
    labels = {names.KUEUE_QUEUE: of} if of else {}
    labels |= {names.KUEUE_PRIORITY: priority} if priority else {}
    return kit.pod(name, namespace=namespace, labels=labels, **more)


def site(*more: Any) -> World:
    """Two teams in one cohort, with two cores each."""
    queues = (cluster_queue("cq-a", 2, "all"), cluster_queue("cq-b", 2, "all"), FLAVOUR)
    locals_ = (local_queue("a", "main", "cq-a"), local_queue("b", "main", "cq-b"))
    return World(space("a"), space("b"), *queues, *locals_, *more)


class TestFlavours:
    def test_the_quota_of_a_flavour_holds_on_its_nodes(self) -> None:
        """The third job goes to the nodes of the other flavour; the sixth has quota nowhere."""
        labels = {"spot": {"kind": "spot"}, "own": {"kind": "own"}}
        flavours = (
            kueue.ResourceFlavor(metadata=ObjectMeta(name=name), spec={"nodeLabels": each})
            for name, each in labels.items()
        )
        quotas = [
            {"name": name, "resources": [{"name": "cpu", "nominalQuota": quota}]}
            for name, quota in (("spot", "2"), ("own", "3"))
        ]
        spec = {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": quotas}],
        }
        both = kueue.ClusterQueue(metadata=ObjectMeta(name="both"), spec=spec)
        world = World(space("a"), *flavours, both, local_queue("a", "main", "both"))
        world.put(*(node(f"n{n}", labels=labels["spot" if n < 2 else "own"]) for n in range(4)))
        world.wait(SETTLED)
        for number in range(6):
            world.put(pod(f"p{number}", "main"))
        pods = [world.objects["Pod", f"a/{name}"] for name in world.bound]
        assert sorted(pod.spec.node_name in ("n0", "n1") for pod in pods) == [False] * 3 + [True] * 2


class TestQuotas:
    def test_work_with_the_label_borrows_in_its_cohort_and_no_more(self) -> None:
        world = site(*(pod(f"p{n}", "main") for n in range(6)))
        assert len(world.bound) == 4
        assert "Waiting for queue all: cpu 4 of 4 in use" in world.told.values()

    def test_one_name_means_each_namespaces_own_queue(self) -> None:
        world = site(pod("x", "main", "a"), pod("y", "main", "b"))
        records = world.scheduler.state.queue.records.values()
        assert {record.job.queue for record in records} == {"a/main", "b/main"}

    def test_a_queue_of_another_namespace_cannot_be_named(self) -> None:
        world = site(space("c"), pod("x", "main", "c"), pod("y", "b/main", "a"))
        assert world.bound == set()
        assert world.told["x"] == "Queue 'main' does not exist: use one of default"
        assert "b/main" not in world.told["x"]
        assert "is closed to its namespace" in world.told["y"]

    def test_the_label_of_a_job_counts_for_its_pods(self) -> None:
        owner = kit.owner("j", namespace="a", labels={names.KUEUE_QUEUE: "main"}, parallelism=1)
        assert isinstance(owner, Job)
        world = site(owner, kit.pod("j-1", namespace="a", owner=owner))
        (record,) = world.scheduler.state.queue.records.values()
        assert record.job.queue == "a/main"

    def test_work_without_a_label_is_left_alone_as_by_kueue(self) -> None:
        world = site(*(pod(f"p{n}") for n in range(6)))
        assert len(world.bound) == 6

    def test_a_local_queue_that_is_called_default_takes_work_without_a_label(self) -> None:
        world = site(local_queue("a", "default", "cq-a"), pod("x"))
        (record,) = world.scheduler.state.queue.records.values()
        assert record.job.queue == "a/default"

    def test_our_annotation_goes_before_the_label(self) -> None:
        notes = {names.QUEUE: "default"}
        world = site(kit.pod("x", namespace="a", labels={names.KUEUE_QUEUE: "main"}, annotations=notes))
        (record,) = world.scheduler.state.queue.records.values()
        assert record.job.queue == "default"


class TestPriorities:
    def test_a_class_orders_work(self) -> None:
        """And gives no right to end what runs: anybody may name any class."""
        urgent = kueue.WorkloadPriorityClass(metadata=ObjectMeta(name="urgent"), value=1000)
        world = site(urgent, *(pod(f"r{n}", cpu="4") for n in range(4)))
        decisions = world.put(pod("early", cpu="4", age=9), pod("late", priority="urgent", cpu="4"))
        assert not decisions.preemptions
        assert [each.key for each in world.scheduler.state.queue.pending] == ["a/pod:late", "a/pod:early"]

    def test_a_class_that_comes_later_counts_from_then_on(self) -> None:
        world = site(*(pod(f"r{n}", cpu="4") for n in range(4)))
        world.put(pod("early", cpu="4", age=9), pod("late", priority="urgent", cpu="4"))
        assert [each.key for each in world.scheduler.state.queue.pending] == ["a/pod:early", "a/pod:late"]
        world.put(kueue.WorkloadPriorityClass(metadata=ObjectMeta(name="urgent"), value=1000))
        world.wait(SETTLED)
        assert [each.key for each in world.scheduler.state.queue.pending] == ["a/pod:late", "a/pod:early"]


class TestObjects:
    def test_without_them_the_labels_mean_nothing(self) -> None:
        world = World(space("a"), pod("x", "nowhere"))
        (record,) = world.scheduler.state.queue.records.values()
        assert (world.bound, record.job.queue) == ({"x"}, "")
        assert world.scheduler.state.queue.quotas is None

    def test_work_that_waits_is_judged_when_they_come_and_go(self) -> None:
        objects = (cluster_queue("cq-a", 1), local_queue("a", "main", "cq-a"), FLAVOUR)
        world = World(space("a"), *(pod(f"r{n}", cpu="4") for n in range(4)), pod("x", "main", cpu="2"))
        world.put(*objects)
        world.wait(SETTLED)
        assert "requests cpu 2, and the limit of queue cq-a is 1" in world.told["x"]
        world.remove(*objects)
        world.wait(SETTLED)
        assert world.scheduler.state.queue.quotas is None
        world.remove(world.objects["Pod", "a/r0"])
        assert "x" in world.bound

    def test_nothing_is_written_to_them(self) -> None:
        world = site(pod("x", "main"))
        world.wait(11 * SECOND)
        world.wait(60 * SECOND)
        assert world.written == 0

    def test_they_are_queues_beside_our_own(self) -> None:
        world = site(DEFAULT, queue("cq-a", limit={"cpu": 1}))
        world.put(kit.pod("own", namespace="a", annotations={names.QUEUE: "cq-a"}), pod("x", "main"))
        records = {record.job.queue for record in world.scheduler.state.queue.records.values()}
        assert records == {"cq-a", "a/main"}
        world.wait(11 * SECOND)
        assert world.condition("cq-a", "Active")[0] == "True"

    def test_a_fault_in_them_leaves_our_own_queues_in_force(self) -> None:
        deep = [
            kueue.Cohort(metadata=ObjectMeta(name=f"c{n}"), spec={"parentName": f"c{n + 1}"})
            for n in range(12)
        ]
        world = World(DEFAULT, queue("mine", limit={"cpu": 1}), *deep, cluster_queue("cq-a", 2, "c0"))
        world.wait(11 * SECOND)
        assert world.condition("mine", "Valid")[:2] == ("True", "Valid")
        quotas = world.scheduler.state.queue.quotas
        assert quotas is not None
        assert "mine" in quotas.tree.queues
        assert "cq-a" not in quotas.tree.queues

    def test_a_new_status_of_theirs_is_no_news(self) -> None:
        world = site()
        before = world.scheduler.state.queue.quotas
        for item in [each for each in world.objects.values() if isinstance(each, kueue.KueueObject)]:
            world.put(item)
        world.wait(SETTLED)
        assert world.scheduler.state.queue.quotas is before
