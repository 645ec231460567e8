"""Limits of classes of nodes: a gang counts where it is placed, and stays away from classes without room."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fluence import names
from fluence.model.meta import LabelSelector, Requirement
from fluence.model.pod import Affinity, NodeAffinity, NodeSelector, NodeSelectorTerm, Pod
from fluence.model.queues import Resource
from tests.unit.cluster.build import node
from tests.unit.schedule.test_cluster_queues import DEFAULT, MINUTE, SETTLED, World, _over, member, queue

MODEL = "gpu-model"
CLASSES = {each: {"matchLabels": {MODEL: each}} for each in ("a100", "h100")}


def machines(**models: str) -> list[Any]:
    """Nodes with four cores and a label; the name of the argument is that of the node."""
    return [node(name, labels={MODEL: model}) for name, model in models.items()]


def on(name: str, model: str, of: str = "physics", **more: Any) -> Pod:
    """A pod for one class only."""
    return member(name, of, node_selector={MODEL: model}, **more)


def gang(name: str, size: int, of: str = "physics", **more: Any) -> list[Pod]:
    notes = {names.GROUP_SIZE: str(size), **more.pop("annotations", {})}
    labels = {names.GROUP_LABEL: name}
    return [member(f"{name}{n}", of, labels=labels, annotations=notes, **more) for n in range(size)]


def world(limit: dict[str, Any], *, nodes: Collection[Any] = (), **spec: Any) -> World:
    """Two nodes of each class instead of the usual four nodes."""
    physics = queue("physics", limit=limit, nodeClasses=CLASSES, **spec)
    found = World(DEFAULT, physics)
    found.remove(*(found.objects["Node", f"n{number}"] for number in range(4)))
    found.put(*(nodes or machines(a1="a100", a2="a100", h1="h100", h2="h100")))
    return found


def places(found: World) -> dict[str, str]:
    """The class of the node of each pod that runs."""
    pods = [item for (kind, _), item in found.objects.items() if kind == "Pod"]
    return {
        pod.metadata.name: found.objects["Node", pod.spec.node_name].labels[MODEL]
        for pod in pods
        if pod.spec.node_name and not pod.is_terminal
    }


def in_use(found: World, of: str = "physics") -> dict[str, int]:
    quotas = found.scheduler.state.queue.quotas
    assert quotas is not None
    return {str(key): amount for key, amount in quotas.usage().get(of, {}).items() if key.node_class}


class TestConfined:
    """Pods whose node selector leaves them one class."""

    def test_they_wait_for_the_limit_of_their_class_with_the_reason(self) -> None:
        one = world({"cpu@a100": 2})
        one.put(on("p1", "a100", cpu="2", annotations={names.DURATION: "10m"}), on("late", "a100"))
        one.put(on("other", "h100"))
        assert places(one) == {"p1": "a100", "other": "h100"}
        assert one.told["late"] == "Waiting for queue physics: cpu@a100 2 of 2 in use until 12:10 UTC"
        assert one.reasons["late"] == "WaitingForTurn"
        assert in_use(one) == {"cpu@a100": 2000}
        one.put(_over(one.objects["Pod", "default/p1"], "Succeeded"))
        assert places(one) == {"late": "a100", "other": "h100"}

    def test_more_than_the_limit_is_refused(self) -> None:
        one = world({"cpu@a100": 2})
        one.put(on("p1", "a100", cpu="3"))
        assert "It requests cpu@a100 3, and the limit of queue physics is 2" in one.told["p1"]

    def test_affinity_counts_as_the_selector_does(self) -> None:
        one = world({"cpu@a100": 1})
        other = Requirement(key=MODEL, operator="NotIn", values=["h100"])
        terms = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[other])])
        affinity = Affinity(node_affinity=NodeAffinity(required=terms))
        one.put(*(member(f"p{n}", "physics", affinity=affinity) for n in range(2)))
        assert list(places(one).values()) == ["a100"]
        assert one.told["p1"] == "Waiting for queue physics: cpu@a100 1 of 1 in use"

    def test_limits_above_and_of_users_hold_too(self) -> None:
        top = queue("top", limit={"cpu@a100": 3}, nodeClasses=CLASSES)
        leaves = [queue(name, parent="top", perUser={"cpu@a100": 2}) for name in ("a", "b")]
        one = World(DEFAULT, top, *leaves)
        one.put(*machines(a1="a100"))
        one.put(
            on("a1", "a100", "a", cpu="2"),
            on("a2", "a100", "a"),
            on("b1", "a100", "b"),
            on("b2", "a100", "b"),
        )
        assert one.bound == {"a1", "b1"}
        assert "default has cpu@a100 2 of 2 in use" in one.told["a2"]
        assert one.told["b2"] == "Waiting for queue top: cpu@a100 3 of 3 in use"


class TestAnywhere:
    """Pods that may use nodes of several classes."""

    def test_they_use_another_class_where_the_first_has_no_room(self) -> None:
        one = world({"cpu@a100": 2, "cpu@h100": 3})
        for number in range(6):
            one.put(member(f"p{number}", "physics"))
        assert sorted(places(one).values()) == ["a100"] * 2 + ["h100"] * 3
        assert in_use(one) == {"cpu@a100": 2000, "cpu@h100": 3000}
        (late,) = {f"p{number}" for number in range(6)} - places(one).keys()
        assert "Waiting for queue physics: cpu@a100 2 of 2 in use" in one.told[late]
        assert one.reasons[late] == "WaitingForTurn"

    def test_a_gang_goes_to_a_class_only_as_a_whole(self) -> None:
        one = world({"cpu@a100": 2, "cpu@h100": 3})
        one.put(*gang("g", 3))
        assert set(places(one).values()) == {"h100"}
        one.put(*gang("k", 2))
        assert in_use(one) == {"cpu@a100": 2000, "cpu@h100": 3000}

    def test_nodes_of_no_class_are_always_open(self) -> None:
        one = world({"cpu@a100": 0, "cpu@h100": 0}, nodes=machines(a1="a100", h1="h100", old="v100"))
        one.put(*gang("g", 4))
        assert set(places(one).values()) == {"v100"}
        one.put(member("late", "physics"))
        assert "late" not in places(one)
        assert in_use(one) == {}

    def test_a_reservation_is_at_the_first_time_at_which_a_class_has_room(self) -> None:
        one = world({"cpu@a100": 2, "cpu@h100": 2})
        ten, twenty = ({names.DURATION: each} for each in ("10m", "20m"))
        one.put(on("a", "a100", cpu="2", annotations=twenty), on("h", "h100", cpu="2", annotations=ten))
        one.put(*gang("g", 2, annotations=ten))
        (record,) = one.scheduler.state.queue.pending.records
        assert record.reserved_at == one.now + 10 * MINUTE
        one.now += 10 * MINUTE
        one.put(_over(one.objects["Pod", "default/h"], "Succeeded"))
        assert {name: at for name, at in places(one).items() if name != "a"} == {"g0": "h100", "g1": "h100"}

    def test_jobs_of_other_queues_with_the_same_shape_are_not_kept_away(self) -> None:
        one = world({"cpu@a100": 0, "cpu@h100": 0})
        one.put(queue("chem"))
        one.wait(SETTLED)
        one.put(member("p", "physics"), member("c", "chem"))
        assert set(places(one)) == {"c"}
        assert "cpu@a100 0 of 0 in use" in one.told["p"]

    def test_what_no_limit_keeps_away_says_what_the_nodes_lack(self) -> None:
        """More nodes help it, so an autoscaler is told."""
        one = world({"cpu@a100": 0}, nodes=machines(a1="a100", h1="h100"))
        one.put(on("full", "h100", cpu="4"), on("taken", "a100", of="default", cpu="4"))
        one.put(member("p", "physics"))
        assert one.reasons["p"] == "Unschedulable"


class TestChanges:
    def test_a_node_that_changes_its_class_is_counted_there(self) -> None:
        one = world({"cpu@a100": 2})
        one.put(on("p1", "h100", cpu="2", annotations={}))
        assert in_use(one) == {}
        (name,) = [pod.spec.node_name for (kind, _), pod in one.objects.items() if kind == "Pod"]
        one.put(node(name, labels={MODEL: "a100"}))
        assert in_use(one) == {"cpu@a100": 2000}
        one.put(on("p2", "a100"))
        assert one.told["p2"] == "Waiting for queue physics: cpu@a100 2 of 2 in use"

    def test_a_new_node_opens_or_closes_a_class_for_a_job_that_waits(self) -> None:
        one = world({"cpu@a100": 1}, nodes=machines(a1="a100"))
        one.put(member("p1", "physics"), member("p2", "physics"))
        assert places(one) == {"p1": "a100"}
        one.put(*machines(h1="h100"))
        assert places(one) == {"p1": "a100", "p2": "h100"}

    def test_a_restart_counts_the_same(self) -> None:
        one = world({"cpu@a100": 2, "cpu@h100": 3})
        for number in range(6):
            one.put(member(f"p{number}", "physics"))
        twin = one.restarted()
        assert in_use(twin) == {"cpu@a100": 2000, "cpu@h100": 3000}
        assert places(twin) == places(one)

    def test_limits_of_a_class_that_come_later_count_what_runs(self) -> None:
        one = world({})
        one.put(on("p1", "a100", cpu="2"))
        one.put(queue("physics", nodeClasses=CLASSES, limit={"cpu@a100": 2}))
        one.wait(SETTLED)
        one.put(on("p2", "a100"))
        assert one.told["p2"] == "Waiting for queue physics: cpu@a100 2 of 2 in use"

    def test_a_class_that_no_queue_defines_limits_nothing_and_the_status_says_so(self) -> None:
        one = world({"cpu@a10": 1})
        one.put(on("p1", "a100", cpu="2"))
        one.wait(MINUTE)
        assert places(one) == {"p1": "a100"}
        _, reason, message = one.condition("physics", "Valid")
        assert reason == "NotCounted"
        assert message == (
            "spec.limit: cpu@a10 limits nothing, because no queue defines the class a10: did you mean a100?"
        )

    def test_the_status_shows_what_is_used_and_borrowed_of_a_class(self) -> None:
        one = world({}, guaranteed={"cpu@a100": 1})
        one.put(on("p1", "a100", cpu="2"))
        one.wait(MINUTE)
        assert one.status("physics")["used"]["cpu@a100"] == "2"
        assert one.status("physics")["borrowed"] == "cpu@a100 1"
        assert one.status("physics")["entitled"] == "cpu@a100 1"

    def test_guarantees_beyond_the_nodes_of_a_class_are_told(self) -> None:
        one = world({}, guaranteed={"cpu@a100": 9})
        one.wait(MINUTE)
        assert one.condition("physics", "Valid")[1:] == (
            "AboveCapacity",
            "spec.guaranteed: cpu@a100: all guarantees together are more than the 8 of the cluster",
        )


class TestPreemption:
    def test_a_job_confined_to_a_class_ends_work_for_its_quota(self) -> None:
        one = world({"cpu@a100": 2}, preemption={"within": "lower"})
        one.put(on("low", "a100", cpu="2", priority=1))
        assert self.ended(one, on("high", "a100", cpu="2", priority=10)) == {"low"}

    def test_a_job_that_may_go_elsewhere_ends_nothing_where_its_class_has_no_room(self) -> None:
        one = world({"cpu@a100": 0, "cpu@h100": 0}, preemption={"within": "lower"})
        one.put(*(member(f"d{n}", "default", cpu="4", priority=1) for n in range(4)))
        assert self.ended(one, member("p", "physics", cpu="4", priority=10)) == set()
        assert len(one.bound) == 4

    @staticmethod
    def ended(one: World, pod: Pod) -> set[str]:
        """The pods that are ended for one that comes."""
        decisions = [one.put(pod), one.wait(1_000)]
        return {
            victim.metadata.name for each in decisions for order in each.preemptions for victim in order.pods
        }


def test_amounts_are_those_of_the_resource_on_nodes_of_the_class() -> None:
    one = world({"memory@a100": "1Gi"})
    one.put(on("p1", "a100"))
    quotas = one.scheduler.state.queue.quotas
    assert quotas is not None
    assert quotas.tree.in_classes == {Resource("memory", "a100")}
    assert quotas.tree.classes["a100"] == LabelSelector(match_labels={MODEL: "a100"})
