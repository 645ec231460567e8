"""What events change and what they only touch: nothing is decided before the cycle."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fluence.model.claims import CsiNode
from fluence.model.job_state import JobState
from fluence.model.meta import Condition, KubeObject, ObjectMeta
from fluence.model.node import Node
from fluence.model.pod import ClaimVolumeSource, Pod, PodVolume
from fluence.model.reason import Code
from fluence.schedule.events import Bind, BindOutcome, BindResult, Changed
from tests.unit.cluster.build import bound, ended, node
from tests.unit.cluster.test_claims import claim, kind, volume
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NOW = int(kit.T0.timestamp() * 1000)


def world(**config: Any) -> Driver:
    driver = Driver(native=True, **config)
    driver.now = NOW
    for name in ("n1", "n2"):
        driver.set_node(node(name))
    driver.cycle(NOW)
    return driver


def counts(driver: Driver) -> tuple[int, int]:
    """How often something came free, and was lost."""
    return driver.planner.freed, driver.planner.lost


def since(driver: Driver, before: tuple[int, int]) -> tuple[int, int]:
    freed, lost = counts(driver)
    return freed - before[0], lost - before[1]


def touched(driver: Driver) -> list[str]:
    return driver.scheduler.state.changes.take_touched()


def started(driver: Driver, name: str = "a", **more: Any) -> Bind:
    driver.set_pod(kit.pod(name, **more))
    ((bind,),) = driver.cycle(NOW).binds
    return bind


# -- nodes ---------------------------------------------------------------------------------------------------


def test_a_new_node_is_something_free() -> None:
    driver = world()
    before = counts(driver)
    driver.set_node(node("n3"))
    assert since(driver, before) == (1, 0) and driver.cluster_changed


def test_a_heartbeat_is_nothing() -> None:
    driver = world()
    before = counts(driver)
    beat = node("n1")
    beat = replace(
        beat,
        metadata=replace(beat.metadata, resource_version="7", annotations={"a": "b"}),
        status=replace(
            beat.status,
            conditions=[Condition(type="Ready", status="True", last_transition_time="2026-09-01T12:00:00Z")],
        ),
    )
    driver.set_node(beat)
    assert since(driver, before) == (0, 0) and not driver.cluster_changed


@pytest.mark.parametrize(
    "other",
    [
        node("n1", cpu="9"),
        node("n1", labels={"a": "b"}),
        node("n1", unschedulable=True),
        node("n1", ready=False),
    ],
    ids=["size", "labels", "cordoned", "not ready"],
)
def test_a_node_that_offers_something_else_is_free_and_lost(other: Node) -> None:
    driver = world()
    before = counts(driver)
    driver.set_node(other)
    assert since(driver, before) == (1, 1) and driver.cluster_changed
    assert driver.queue._cause.code is Code.NODE_CHANGED


def test_a_node_that_is_gone_is_lost() -> None:
    driver = world()
    before = counts(driver)
    driver.remove_node("n1")
    assert since(driver, before) == (0, 1) and driver.cluster_changed
    assert driver.queue._cause.code is Code.NODE_GONE and list(driver.cluster.nodes) == ["n2"]


def test_a_bind_that_waits_to_be_sent_again_loses_its_place_with_the_node() -> None:
    driver = world()
    bind = started(driver)
    driver.told(BindResult(bind, BindOutcome.AGAIN), NOW)
    driver.remove_node(bind.node)
    assert bind.uid not in driver.pod_sets.by_pod and bind.uid not in driver.retries
    ((again,),) = driver.cycle(NOW + 1).binds
    assert again.node != bind.node


def test_a_bind_that_is_under_way_waits_for_its_answer_though_the_node_is_gone() -> None:
    driver = world()
    bind = started(driver)
    driver.remove_node(bind.node)
    assert driver.cycle(NOW + 1).binds == [] and bind.uid in driver.pod_sets.by_pod
    driver.told(BindResult(bind, BindOutcome.AGAIN), NOW + 2)
    assert bind.uid not in driver.retries, "there is nowhere to send it"
    ((again,),) = driver.cycle(NOW + 3).binds
    assert again.node != bind.node


# -- pods ----------------------------------------------------------------------------------------------------


def test_a_pod_that_waits_touches_its_group_and_takes_nothing() -> None:
    driver = world()
    before = counts(driver)
    driver.set_pod(kit.pod("a", field="g"))
    assert since(driver, before) == (0, 0) and touched(driver) == ["default/g"]


def test_a_foreign_pod_takes_room_and_gives_it_back() -> None:
    driver = world()
    pod = kit.pod("x", scheduler="other", node="n1")
    before = counts(driver)
    driver.set_pod(pod)
    assert since(driver, before) == (0, 1) and touched(driver) == []
    driver.set_pod(pod)
    assert since(driver, before) == (0, 1), "the same again is nothing"
    driver.set_pod(ended(pod))
    assert since(driver, before) == (1, 1)
    driver.remove_pod(pod)
    assert since(driver, before) == (1, 1), "what ended before takes nothing"


def test_a_foreign_pod_that_is_deleted_gives_its_room_back() -> None:
    driver = world()
    pod = kit.pod("x", scheduler="other", node="n1")
    driver.set_pod(pod)
    before = counts(driver)
    driver.remove_pod(pod)
    assert since(driver, before) == (1, 0)


def test_a_single_pod_that_is_bound_is_not_looked_at_again() -> None:
    driver = world()
    bind = started(driver)
    before = counts(driver)
    driver.set_pod(bound(bind.pod, bind.node))
    assert touched(driver) == [] and since(driver, before) == (0, 0)
    driver.set_pod(ended(bound(bind.pod, bind.node)))
    assert touched(driver) == ["default/pod:a"]


def test_a_member_that_is_bound_touches_its_group() -> None:
    driver = world()
    driver.set_group(kit.group("g", 1))
    bind = started(driver, field="g")
    driver.set_pod(bound(bind.pod, bind.node))
    assert touched(driver) == ["default/g"]


def test_groups_that_wait_are_taken_in_by_priority_and_age() -> None:
    driver = world()
    count = 200
    for i in range(count):
        driver.set_pod(kit.pod(f"p{i}", priority=i % 2, age=i))
    first = touched(driver)
    assert len(first) == 128 and driver.has_more
    assert first[:100] == [f"default/pod:p{i}" for i in range(199, 0, -2)]
    assert first[100:] == [f"default/pod:p{i}" for i in range(198, 142, -2)]
    assert len(touched(driver)) == 72 and not driver.has_more


def test_a_pod_that_moves_is_gone_where_it_was() -> None:
    """It was made anew under its name."""
    driver = world()
    old = kit.pod("a", uid="old", cpu="9")
    driver.set_pod(old)
    driver.cycle(NOW)
    driver.handle(Changed(old, None), Changed(None, kit.pod("a", uid="new")))
    ((bind,),) = driver.cycle(NOW + 1).binds
    assert bind.uid == "new"


# -- groups, owners, namespaces ------------------------------------------------------------------------------


def test_a_group_and_an_owner_touch_the_gangs_of_their_pods() -> None:
    driver = world()
    job = kit.owner("j", parallelism=2)
    driver.set_pod(kit.pod("a", field="g"))
    driver.set_pod(kit.pod("b", owner=job))
    touched(driver)
    group = kit.group("g", 2)
    driver.set_group(group)
    assert touched(driver) == ["default/g"]
    driver.remove_group(group)
    assert touched(driver) == ["default/g"]
    driver.set_owner(job)
    assert touched(driver) == ["default/pod:b"]
    driver.handle(Changed(job, None))
    assert touched(driver) == ["default/pod:b"]


def test_the_labels_of_a_namespace_are_known_while_it_is_there() -> None:
    driver = world()
    labels_of = driver.cluster._requests.index.labels_of
    own = {"kubernetes.io/metadata.name": "d"}
    namespace = KubeObject(metadata=ObjectMeta(name="d", labels={"team": "a"}))
    driver.handle(Changed(None, namespace))
    assert labels_of("d") == {"team": "a", **own}
    driver.handle(Changed(namespace, None))
    assert labels_of("d") == own


# -- volumes -------------------------------------------------------------------------------------------------


def mounting(name: str, claim_name: str = "data", **more: Any) -> Pod:
    source = ClaimVolumeSource(claim_name=claim_name)
    return kit.pod(name, namespace="d", volumes=[PodVolume(persistent_volume_claim=source)], **more)


def test_a_claim_that_comes_lets_its_pods_be_judged_again() -> None:
    driver = world()
    driver.set_pod(mounting("a"))
    driver.set_pod(kit.pod("b", cpu="99"))
    driver.cycle(NOW)
    assert {each.state for each in driver.pod_sets.by_key.values()} == {JobState.UNSCHEDULABLE}
    driver.handle(Changed(None, kind(provisioner="csi.example")), Changed(None, claim()))
    driver.cycle(NOW + 1)
    assert driver.pod_sets.by_key["d/pod:a"].state is JobState.PREPARING
    assert driver.pod_sets.by_key["default/pod:b"].state is JobState.UNSCHEDULABLE


def test_a_class_means_something_to_claims_once_the_cycle_begins() -> None:
    driver = world()
    driver.handle(Changed(None, claim()))
    driver.set_pod(mounting("a"))
    driver.cycle(NOW)
    driver.handle(Changed(None, kind(provisioner="csi.example")))
    assert driver.judge_again == set()
    driver.cycle(NOW + 1)
    assert driver.pod_sets.by_key["d/pod:a"].state is JobState.PREPARING


def test_a_volume_that_comes_and_goes() -> None:
    driver = world()
    driver.handle(Changed(None, kind()), Changed(None, claim()))
    driver.set_pod(mounting("a"))
    driver.cycle(NOW)
    key = "d/pod:a"
    assert driver.pod_sets.by_key[key].state is JobState.UNSCHEDULABLE
    there = volume("pv", on="n2")
    driver.handle(Changed(None, there))
    driver.handle(Changed(there, None))
    driver.cycle(NOW + 1)
    assert driver.pod_sets.by_key[key].state is JobState.UNSCHEDULABLE
    driver.handle(Changed(None, there))
    driver.cycle(NOW + 2)
    assert list(driver.pod_sets.by_key[key].unbound.values()) == ["n2"]


def test_a_claim_that_only_one_pod_may_use_is_for_the_next_when_the_first_ends() -> None:
    driver = world()
    driver.handle(
        Changed(None, claim(accessModes=["ReadWriteOncePod"], volumeName="pv", phase="Bound")),
        Changed(None, volume("pv", phase="Bound")),
    )
    first = mounting("a", node="n1")
    driver.set_pod(first)
    driver.set_pod(mounting("b"))
    assert driver.cycle(NOW).binds == []
    driver.set_pod(ended(first))
    ((bind,),) = driver.cycle(NOW + 1).binds
    assert bind.pod.metadata.name == "b"


def test_a_drivers_limit_is_news_once() -> None:
    driver = world()
    body = {"name": "csi.example", "nodeID": "n1", "allocatable": {"count": 1}}
    csi = msgspec.convert({"metadata": {"name": "n1"}, "spec": {"drivers": [body]}}, CsiNode)
    before = counts(driver)
    driver.handle(Changed(None, csi))
    assert since(driver, before) == (1, 0)
    driver.handle(Changed(None, csi))
    assert since(driver, before) == (1, 0)
    driver.handle(Changed(csi, None))
    assert since(driver, before) == (2, 0)


# -- binds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [BindOutcome.BOUND, BindOutcome.ELSEWHERE])
def test_a_pod_that_is_bound_keeps_its_seat(outcome: BindOutcome) -> None:
    driver = world()
    bind = started(driver)
    driver.told(BindResult(bind, outcome), NOW)
    assert driver.pod_sets.by_key[bind.job].state is JobState.RUNNING
    assert bind.uid in driver.pod_sets.by_pod and driver.cycle(NOW + 1).binds == []


def test_a_pod_that_somebody_else_bound_counts_where_it_is() -> None:
    driver = world()
    bind = started(driver)
    (other,) = {"n1", "n2"} - {bind.node}
    driver.told(BindResult(bind, BindOutcome.ELSEWHERE), NOW)
    driver.set_pod(bound(bind.pod, other))
    assert driver.cluster.pods.entries[bind.uid].node == other
    free = dict(zip(driver.cluster.fit.position, driver.cluster.fit.free("cpu"), strict=True))
    assert (free[bind.node], free[other]) == (4000, 3000)


def test_a_bind_that_failed_for_a_while_keeps_its_seat_and_is_sent_again() -> None:
    driver = world(backoff=(500, 1000))
    bind = started(driver)
    driver.told(BindResult(bind, BindOutcome.AGAIN), NOW)
    assert driver.scheduler.next_due() == NOW + 500 and driver.cycle(NOW + 499).binds == []
    assert driver.cycle(NOW + 500).binds == [[bind]]
    assert driver.pod_sets.by_key[bind.job].state is JobState.STARTING


@pytest.mark.parametrize("outcome", [BindOutcome.STALE, BindOutcome.GONE, BindOutcome.IMPOSSIBLE])
def test_a_bind_that_will_not_succeed_gives_its_seat_back(outcome: BindOutcome) -> None:
    driver = world()
    bind = started(driver)
    before = counts(driver)
    driver.told(BindResult(bind, outcome), NOW)
    assert bind.uid not in driver.pod_sets.by_pod and since(driver, before)[0] >= 1
    refused = {bind.node} if outcome is BindOutcome.IMPOSSIBLE else set()
    assert set(driver.exclusions.refused("default/pod:a")) == refused


def test_an_answer_to_another_bind_than_the_last_is_not_listened_to() -> None:
    driver = world()
    bind = started(driver)
    for stale in (
        Bind(bind.pod, "elsewhere", bind.job, {}),
        Bind(bind.pod, bind.node, "another job", {}),
        Bind(kit.pod("unknown"), bind.node, bind.job, {}),
    ):
        driver.told(BindResult(stale, BindOutcome.STALE), NOW)
    assert list(driver.pod_sets.by_pod) == [bind.uid]
    driver.told(BindResult(bind, BindOutcome.BOUND), NOW)
    driver.told(BindResult(bind, BindOutcome.STALE), NOW)
    assert list(driver.pod_sets.by_pod) == [bind.uid], "it was answered"
