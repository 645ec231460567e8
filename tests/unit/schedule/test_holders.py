"""Who waits is told names of their own namespace, and of others only kinds and numbers."""

from __future__ import annotations

from fluence import messages, names
from fluence.model.reason import Code, Reason
from fluence.schedule.events import Changed
from fluence.schedule.overruns import NAMED, named, told_to
from tests.unit.cluster.build import node as cluster_node
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
    assert text.endswith("Waiting for 1 pod of another namespace that has no time limit")
    assert "ghost" not in text and "evil" not in text


def test_a_pod_is_told_the_name_of_a_pod_of_its_own_namespace() -> None:
    text = messages.texts(full("default").reports.said["default/pod:mine"].reasons)
    assert text.endswith("Waiting for pod default/ghost, which has no time limit")


def test_who_asks_with_rights_of_their_own_is_told_the_name() -> None:
    found = full("evil")
    report = found.reports.report(found.pod_sets.by_key["default/pod:mine"], NOW + 3000)
    assert unlimited("evil", "ghost") in report.reasons


# -- only who holds what is short ----------------------------------------------------------------------------


def told(driver: Driver, key: str = "default/pod:mine", seconds: int = 3) -> list[str]:
    """Whom a pod waits for, by name, as cycles go by."""
    for second in range(seconds):
        driver.cycle(NOW + second * 1000)
    reasons = driver.reports.said[key].reasons
    return [str(each["name"]) for each in reasons if each.code.value.startswith("WaitsFor")]


def test_pods_that_request_nothing_of_what_is_short_are_not_waited_for() -> None:
    driver = Driver()
    driver.set_node(node("n0", 4))
    for name, cpu in (("kube-proxy", "0"), ("holder", "3")):
        driver.set_pod(kit.pod(name, cpu=cpu, node="n0", scheduler="x", phase="Running"))
    driver.set_pod(kit.pod("mine", cpu="4"))

    assert told(driver) == ["holder"]


def test_a_pod_that_takes_the_last_place_on_a_node_is_waited_for_whatever_it_requests() -> None:
    driver = Driver()
    driver.set_node(cluster_node("n0", cpu="4", pods="1"))
    driver.set_pod(kit.pod("small", cpu="0", node="n0", scheduler="x", phase="Running"))
    driver.set_pod(kit.pod("mine", cpu="1"))

    assert told(driver) == ["small"]


def test_a_holder_of_whole_nodes_is_waited_for() -> None:
    driver = Driver()
    driver.set_node(cluster_node("n0", cpu="4"))
    driver.set_pod(kit.pod("whole", cpu="1", annotations={names.POLICY: "lonodex"}, age=50))
    driver.cycle(NOW)
    driver.set_pod(kit.pod("mine", cpu="1"))

    assert told(driver) == ["whole"]


def test_a_job_that_overruns_and_holds_nothing_of_what_is_short_is_not_waited_for() -> None:
    driver = Driver()
    driver.set_node(node("n0", 4))
    for name, cpu, age in (("late", "4", 30), ("idle", "0", 20)):
        limited = {names.DURATION: "1s"}
        driver.set_pod(kit.pod(name, cpu=cpu, age=age, annotations=limited))
    for gang in driver.cycle(NOW).binds:
        for bind in gang:
            driver.handle(Changed(bind.pod, bind.carried_out(bind.pod)))
    driver.set_pod(kit.pod("mine", cpu="4", annotations={names.DURATION: "1h"}))

    assert told(driver, seconds=120) == ["late"]
