"""Names, times and references that somebody made up, and what they do to others: nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.grant import limit_note, pinned_node
from fluence.model.meta import LabelSelector, OwnerReference, Requirement
from fluence.model.pod import Affinity, NodeAffinity, NodeSelector, NodeSelectorTerm
from fluence.model.reason import Code
from fluence.queue.history import History
from fluence.queue.job import Submission
from fluence.schedule.events import Bind
from fluence.schedule.external_resources.producer_gates import OpenGate, ProducerGates
from fluence.schedule.overruns import EndOverrun, holder
from fluence.schedule.settings import SchedulerSettings
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_devices import QPUS, asks
from tests.unit.schedule.test_devices import World as DeviceWorld
from tests.unit.schedule.test_enforcement import END, World, limited
from tests.unit.schedule.test_groups import only
from tests.unit.schedule.test_held import gated, held
from tests.unit.schedule.test_producer_gates import consumer, producer
from tests.unit.schedule.test_promised_starts import NOW, SECOND, node

# -- users and queues ----------------------------------------------------------------------------------------


def test_the_name_of_another_namespaces_user_takes_nothing_of_that_users_limit() -> None:
    rules = SchedulerSettings(user_device_limits={"batch/licence": 1}).rules()
    world = DeviceWorld(QPUS, cpu="16", rules=rules)
    ada = {names.QUEUE: "batch", names.USER: "ada"}
    assert world.run(asks("evil", namespace="evil", licence=1, annotations=ada)).keys() == {"evil"}
    assert world.run(asks("good", namespace="good", licence=1, annotations=ada)).keys() == {"good"}


def test_runs_under_the_name_of_another_namespaces_user_teach_nothing_about_that_user() -> None:
    history = History()
    good, evil = (
        Submission("k", None, 0, limit=100 * SECOND, user="ada", account=each) for each in ("good", "evil")
    )
    history.learn(good, 1, 90 * SECOND)
    for _ in range(50):
        history.learn(evil, 1, 1)
    assert history.predict(good, 1, 0) == history.predict(good, 2, 0) == 90 * SECOND


@pytest.mark.parametrize("key", [names.USER, names.QUEUE])
def test_a_name_longer_than_any_name_is_refused_and_not_kept(key: str) -> None:
    found = only(kit.pod("a", annotations={key: "x" * 254}))
    assert found.fault is not None and found.fault.code is Code.ANNOTATION_TOO_LONG
    assert len(found.user) < 100 and found.queue == ""


# -- age -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", ["group", "member"])
def test_a_group_or_an_ended_member_that_is_kept_for_its_age_lets_nobody_go_first(old: str) -> None:
    driver = Driver(native=True)
    driver.set_node(node("n0", 2))
    year = 365 * 86_400
    if old == "group":
        driver.set_group(kit.group("g", 1, created=kit.T0 - timedelta(seconds=year)))
        driver.set_pod(kit.pod("evil", field="g", cpu="2"))
    else:
        note = {kit.SIZE: "1"}
        labels = {kit.GROUP: "g"}
        driver.set_pod(kit.pod("kept", age=year, phase="Succeeded", labels=labels, annotations=note))
        driver.set_pod(kit.pod("evil", labels=labels, annotations=note, cpu="2"))
    driver.set_pod(kit.pod("good", namespace="good", age=60, cpu="2"))
    (binds,) = driver.cycle(NOW).binds
    assert [bind.pod.metadata.name for bind in binds] == ["good"]


# -- limits that are enforced --------------------------------------------------------------------------------

FORGED: dict[str, dict[str, Any]] = {
    "no allocation": {"annotations": None},
    "another end": {"annotations": {names.ALLOCATION: f'{{"start":{NOW},"end":{NOW * 2}}}'}},
    "no end": {"annotations": {names.ALLOCATION: f'{{"start":{NOW}}}'}},
    "another queue": {"annotations": {names.QUEUE: "lax"}},
    "another group": {"labels": {kit.GROUP: "another"}},
    "a warning to come": {"annotations": {names.WARNED: "9999-01-01T00:00:00Z"}},
}


@pytest.mark.parametrize("restart", [False, True], ids=["live", "restart"])
@pytest.mark.parametrize("how", FORGED)
def test_nothing_that_its_user_writes_keeps_a_pod_from_being_ended_at_its_limit(
    how: str, restart: bool
) -> None:
    world = World(**END)  # type: ignore[arg-type]
    world.add(limited("slow"))
    world.at(0)
    world.change("slow", **FORGED[how])
    if restart:
        fresh = World(**END)  # type: ignore[arg-type]
        fresh.add(*world.pods.values())
        world = fresh
    found = [*world.at(50), *world.at(100), *world.at(160)]
    ended = [each for each in found if isinstance(each, EndOverrun)]
    assert [pod.metadata.name for each in ended for pod in each.pods] == ["slow"]


def test_a_limit_in_the_status_is_for_the_node_that_it_came_with() -> None:
    world = World(**END)  # type: ignore[arg-type]
    world.add(limited("slow"))
    (bind,) = (each for binds in world.cycle(NOW).binds for each in binds)
    elsewhere = bind.granted(replace(bind.pod, spec=replace(bind.pod.spec, node_name="n1")))
    assert limit_note(bind.carried_out(bind.pod)) is not None and limit_note(elsewhere) is None


# -- deadlines -----------------------------------------------------------------------------------------------


def test_the_deadline_of_a_job_is_a_limit_of_the_pods_that_it_claims_and_of_no_others() -> None:
    job = kit.owner("j", active_deadline_seconds=60, selector=LabelSelector(match_labels={"of": "j"}))
    mine = kit.pod("mine", owner=job, labels={kit.GROUP: "g", "of": "j"}, annotations={kit.SIZE: "1"})
    assert only(mine, job).bounded
    unclaimed = replace(mine, metadata=replace(mine.metadata, labels={kit.GROUP: "g"}))
    assert not only(unclaimed, job).bounded
    other = kit.owner("other")
    refs = [kit.reference(other), replace(kit.reference(job), controller=False)]
    forged = replace(mine, metadata=replace(mine.metadata, name="forged", uid="f", owner_references=refs))
    found = only(mine, forged, job, other)
    assert not found.bounded and found.limit is None


def test_a_namespace_whose_deadline_was_taken_back_is_not_believed_again_until_it_keeps_one() -> None:
    world = World(cpu=4)
    world.add(kit.pod("slow", cpu="1", active_deadline_seconds=100))
    for second in (0, 100, 131, 191, 251, 311, 371):
        world.at(second)  # nobody ends it
    world.add(
        kit.pod("next", age=-372, active_deadline_seconds=100),
        kit.pod("theirs", namespace="good", age=-372, active_deadline_seconds=100),
    )
    world.at(372)
    by_key = world.pod_sets.by_key
    assert not by_key["default/pod:next"].bounded and by_key["good/pod:theirs"].bounded
    world.finish("next")
    world.at(373)
    world.add(kit.pod("last", age=-374, active_deadline_seconds=100))
    world.at(374)
    assert by_key["default/pod:last"].bounded


@pytest.mark.parametrize(
    "ref",
    [
        OwnerReference(kind="Job default/theirs; call 555", name="x", uid="u", controller=True),
        OwnerReference(kind="Job", name="x\nyour quota is used up", uid="u", controller=True),
        OwnerReference(kind="K" * 64, name="x", uid="u", controller=True),
        OwnerReference(kind="Job", name="x" * 254, uid="u", controller=True),
    ],
)
def test_a_text_in_place_of_an_owner_is_not_told_to_others(ref: OwnerReference) -> None:
    pod = kit.pod("a", namespace="evil")
    named = holder((replace(pod, metadata=replace(pod.metadata, owner_references=[ref])),))
    assert (named["kind"], named["namespace"], named["name"]) == ("Pod", "evil", "a")


# -- owners and producers ------------------------------------------------------------------------------------


def test_a_held_job_does_not_wait_for_a_pod_that_it_does_not_claim() -> None:
    selector = LabelSelector(match_labels={"of": "j"})
    for labels, releases in (({}, 1), ({"of": "j"}, 0)):
        driver = Driver()
        driver.set_node(node("n0", 2))
        job = held("j", 1, selector=selector)
        driver.set_owner(job)
        driver.set_pod(kit.pod("evil", owner=job, gated=True, labels={names.SEEN: "yes", **labels}))
        assert len(driver.cycle(NOW).releases) == releases


@pytest.mark.parametrize("how", ["reference", "mirror"])
def test_a_pod_that_pretends_to_be_part_of_its_node_takes_its_room_all_the_same(how: str) -> None:
    pod = kit.pod("evil", cpu="2", node="n0", phase="Running", scheduler="other")
    refs = [OwnerReference(api_version="apps/v1", kind="DaemonSet", name="d", uid="u", controller=True)]
    notes = {"kubernetes.io/config.mirror": "x"}
    forged = {"owner_references": refs} if how == "reference" else {"annotations": notes}
    driver = Driver()
    driver.set_node(node("n0", 3))
    driver.set_pod(replace(pod, metadata=replace(pod.metadata, **forged)))
    driver.set_pod(kit.pod("large", cpu="2"))
    assert driver.cycle(NOW).binds == []


def test_only_pods_of_the_same_namespace_hear_a_task() -> None:
    for namespace, opened in (("default", ["evil-task"]), ("evil", [])):
        pods = [consumer(), producer(task="evil-task", namespace=namespace)]
        gates = ProducerGates(
            scheduler="fluence",
            timeout=1000,
            pods_in=lambda space, pods=pods: [pod for pod in pods if pod.metadata.namespace == space],  # type: ignore[misc]
            owner=lambda _: None,
        )
        for pod in pods:
            gates.set_pod(pod)
        assert [each.task for each in gates.round(NOW) if isinstance(each, OpenGate)] == opened


# -- pins ----------------------------------------------------------------------------------------------------


def test_a_pin_counts_beside_what_its_user_asks_of_the_node() -> None:
    theirs = gated("theirs", scheduler=names.KUBE_SCHEDULER)
    granted = Bind(theirs, "n1", "default/pod:theirs", {}).granted(theirs)
    pin = Requirement(key="metadata.name", operator="In", values=["n1"])
    other = Requirement(key="metadata.name", operator="NotIn", values=["n0"])
    for fields, node_of in (([pin], "n1"), ([other, pin], "n1"), ([other], None)):
        terms = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=fields)])
        affinity = Affinity(node_affinity=NodeAffinity(required=terms))
        spec = replace(granted.spec, affinity=affinity, scheduling_gates=None)
        assert pinned_node(replace(granted, spec=spec)) == node_of
