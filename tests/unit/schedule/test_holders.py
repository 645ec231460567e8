"""Who waits is told names of their own namespace, and of others only kinds and numbers."""

from __future__ import annotations

from fluence import messages
from fluence.model.reason import Code, Reason
from fluence.schedule.holders import NAMED, named, told_to
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_held import NOW, node


def unlimited(namespace: str, name: str, kind: str = "Pod") -> Reason:
    return Reason.of(Code.WAITS_FOR_UNLIMITED, kind=kind, namespace=namespace, name=name, more=0)


def test_holders_of_other_namespaces_are_counted_by_kind() -> None:
    own = [unlimited("mine", f"p{i}") for i in range(5)]
    others = [unlimited("theirs", f"j{i}", "Job") for i in range(3)]
    odd = unlimited("theirs", "x", "Buy-my-coins")  # anybody may make up a kind
    told = told_to("mine", [others[0], *own, *others, odd])
    assert told[:-1] == tuple(own[:NAMED])
    assert told[-1] == Reason.of(Code.WAITS_FOR_UNLIMITED_OF_OTHERS, holders=(("Job", 3), ("workload", 1)))


def test_who_may_read_all_objects_is_told_the_first_by_name() -> None:
    reasons = [Reason.of(Code.NEVER_FITS), *(unlimited("theirs", f"p{i}") for i in range(5))]
    assert named(reasons) == tuple(reasons[: 1 + NAMED])


def full(namespace: str) -> Driver:
    """A node that a pod without a limit holds, and one that waits for it."""
    found = Driver()
    found.set_node(node("n0", 4))
    found.set_pod(kit.pod("ghost", namespace=namespace, cpu="4", node="n0", scheduler="x", phase="Running"))
    found.set_pod(kit.pod("mine", cpu="4"))
    for second in range(3):
        found.cycle(NOW + second * 1000)
    return found


def test_a_pod_is_not_told_the_name_of_a_pod_of_another_namespace() -> None:
    text = messages.texts(full("evil").reports.said["default/pod:mine"].reasons)
    assert text.endswith("start unknown: waits for 1 pod of another namespace that has no limit")
    assert "ghost" not in text and "evil" not in text


def test_a_pod_is_told_the_name_of_a_pod_of_its_own_namespace() -> None:
    text = messages.texts(full("default").reports.said["default/pod:mine"].reasons)
    assert text.endswith("start unknown: waits for pod default/ghost, which has no limit")


def test_who_asks_with_rights_of_their_own_is_told_the_name() -> None:
    found = full("evil")
    report = found.reports.report(found.pod_sets.by_key["default/pod:mine"], NOW + 3000)
    assert unlimited("evil", "ghost") in report.reasons
