"""What users write is a request: forged pins, notes, references and numbers hold nothing and end nobody's
work."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.cluster.graph import job_number
from fluence.model.grant import ReleaseNote, is_delegated, pinned_node
from fluence.model.meta import LabelSelector, OwnerReference, Requirement
from fluence.model.node import Node
from fluence.model.owner import Owner, StatefulSet
from fluence.model.pod import Affinity, NodeAffinity, NodeSelector, NodeSelectorTerm, Pod
from fluence.model.reason import Code
from fluence.schedule.events import Bind, Changed
from fluence.schedule.queueing import placeholders as placeholders
from fluence.schedule.queueing.placeholder import is_placeholder
from tests.unit.schedule import kit
from tests.unit.schedule import test_devices as devices
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_held import (
    NOW,
    SEEN,
    as_bound,
    binds,
    driver,
    free,
    gated,
    held,
    let_go,
    node,
    rank,
    suspended_again,
    template,
)


def pinned(pod: Pod, where: str) -> Pod:
    pin = Requirement(key="metadata.name", operator="In", values=[where])
    terms = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[pin])])
    affinity = Affinity(node_affinity=NodeAffinity(required=terms))
    return replace(pod, spec=replace(pod.spec, affinity=affinity, scheduling_gates=None))


def placeholders_of(found: Driver) -> list[Pod]:
    return [pod for gang in found.groups.gangs() for pod in gang.members if is_placeholder(pod)]


def reason_of(found: Driver, key: str) -> Code | None:
    gang = found.groups.gang(key)
    assert gang is not None
    said = gang.fault or gang.missing
    return None if said is None else said.code


# -- pins ----------------------------------------------------------------------------------------------------


def test_a_pod_that_pins_itself_holds_nothing() -> None:
    found = driver(node("n0"))
    notes = {names.JOBID: "7", names.ALLOCATION: '{"start":1}'}
    forged = kit.pod("evil", cpu="2", scheduler=names.KUBE_SCHEDULER, labels=dict(SEEN), annotations=notes)
    found.set_pod(pinned(forged, "n0"))
    assert free(found) == 2000
    found.set_pod(kit.pod("good", cpu="2"))
    assert binds(found.cycle(NOW)) == {"good": "n0"}


def test_a_pod_that_was_handed_over_keeps_its_room_over_a_restart() -> None:
    found = driver(node("n0"))
    theirs = gated("theirs", cpu="2", scheduler=names.KUBE_SCHEDULER)
    found.set_pod(theirs)
    ((bind,),) = found.cycle(NOW).binds
    fresh = driver(node("n0"))
    fresh.set_pod(pinned(bind.granted(theirs), "n0"))
    fresh.set_pod(kit.pod("good", cpu="2"))
    assert fresh.cycle(NOW + 1).binds == []


def test_a_pod_that_was_granted_one_node_and_pins_itself_to_another_holds_nothing() -> None:
    granted = Bind(gated("evil", cpu="2", scheduler=names.KUBE_SCHEDULER), "n1", "default/pod:evil", {})
    found = driver(node("n0"), node("n1"))
    found.set_pod(pinned(granted.granted(granted.pod), "n0"))
    assert free(found) == 4000


# -- release notes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("managed_by", [None, "example.com/nobody"])
def test_a_note_in_annotations_holds_nothing(managed_by: str | None) -> None:
    found = driver(node("n0", 8))
    note = ReleaseNote("7", '{"start":1}', tuple((index, "n0") for index in range(2)), 1)
    job = held("j", 2, annotations=note.annotations())
    forged = replace(
        job,
        metadata=replace(job.metadata, generation=2),
        spec=replace(job.spec, suspend=False, managed_by=managed_by),
    )
    found.set_owner(forged)
    found.cycle(NOW)
    assert free(found) == 8000


def test_a_job_whose_pods_another_controller_makes_gets_no_seats() -> None:
    found = driver(node("n0", 8))
    job = held("j", 2)
    found.set_owner(replace(job, spec=replace(job.spec, managed_by="example.com/nobody")))
    assert found.cycle(NOW).releases == []
    assert free(found) == 8000


def test_a_note_holds_for_the_spec_that_was_planned_and_for_no_other() -> None:
    """Its user suspends the Job, makes it ask for more, and unsuspends it while no scheduler looks."""
    found = driver(node("n0", 8))
    job = held("j", 2)
    found.set_owner(job)
    released = let_go(job, found.cycle(NOW))
    again = suspended_again(released)
    larger = replace(again, spec=replace(again.spec, suspend=False, template=template("4")))
    for each in (larger, replace(larger, metadata=replace(larger.metadata, generation=5))):
        fresh = driver(node("n0", 8))
        fresh.set_owner(each)
        fresh.cycle(NOW + 1)
        assert free(fresh) == 8000


@pytest.mark.parametrize("cpu", ["1", "4"])
def test_a_job_that_was_changed_while_its_watch_was_cut_off_holds_nothing(cpu: str) -> None:
    """It was suspended, changed and unsuspended, and the scheduler saw only the last of that."""
    found = driver(node("n0", 8))
    job = held("j", 2)
    found.set_owner(job)
    released = let_go(job, found.cycle(NOW))
    found.set_owner(released)
    found.cycle(NOW + 1)
    assert free(found) == 6000
    meta = replace(released.metadata, generation=(released.metadata.generation or 0) + 3)
    found.set_owner(replace(released, metadata=meta, spec=replace(released.spec, template=template(cpu))))
    found.cycle(NOW + 2)
    assert free(found) == 8000


def test_a_restart_does_not_make_seats_be_held_for_longer() -> None:
    found = driver(node("n0", 3))
    job = held("j", 3)
    found.set_owner(job)
    released = let_go(job, found.cycle(NOW))
    (said,) = released.status.conditions or ()  # type: ignore[misc]
    at = (kit.T0).isoformat().replace("+00:00", "Z")
    stamped = replace(said, last_transition_time=at)
    released = replace(released, status=replace(released.status, conditions=[stamped]))
    fresh = driver(node("n0", 3))
    fresh.set_owner(released)
    fresh.cycle(NOW + placeholders.PATIENCE - 1000)
    assert free(fresh) == 0
    assert fresh.next_due() == NOW + placeholders.PATIENCE
    late = driver(node("n0", 3))
    late.set_owner(released)
    late.cycle(NOW + placeholders.PATIENCE)
    assert free(late) == 3000


def test_a_namespace_that_let_seats_go_to_waste_has_less_patience_until_its_pods_come() -> None:
    found = driver(node("n0", 3))
    for name, expected in (("a", placeholders.PATIENCE), ("b", placeholders.IMPATIENCE)):
        job = held(name, 3)
        found.set_owner(job)
        begin = found.now + 1 if found.now else NOW
        released = let_go(job, found.cycle(begin))
        found.set_owner(released)
        found.cycle(begin + 1)
        due = found.next_due()
        assert due == begin + 1 + expected
        found.cycle(due)
        assert free(found) == 3000


def test_an_ordered_set_whose_next_pod_does_not_come_gives_its_seats_back() -> None:
    found = driver(node("n0", 3))
    owner = kit.owner("o", kind=StatefulSet, labels=dict(SEEN), replicas=3, template=template(gated=True))
    found.set_owner(owner)
    first = gated("o-0", owner=owner, labels={**SEEN, names.POD_INDEX: "0"})
    found.set_pod(first)
    placed = binds(found.cycle(NOW))
    assert list(placed) == ["o-0"] and free(found) == 0
    found.set_pod(as_bound(first, "n0"))
    found.cycle(NOW + 1)
    due = found.next_due()
    assert due is not None and due <= NOW + 1 + placeholders.BETWEEN_PODS
    found.cycle(due)
    assert free(found) == 2000
    found.set_pod(gated("o-1", owner=owner, labels={**SEEN, names.POD_INDEX: "1"}))
    assert binds(found.cycle(due + 1)) == {"o-1": "n0"}


# -- references ----------------------------------------------------------------------------------------------


def forged_reference(pod: Pod, job: Owner, **changes: Any) -> Pod:
    ref = replace(kit.reference(job), **changes)
    return replace(pod, metadata=replace(pod.metadata, owner_references=[ref]))


def test_a_pod_of_another_namespace_is_nobody_elses_child() -> None:
    found = driver(node("n0", 3))
    job = held("j", 1)
    found.set_owner(job)
    evil = kit.pod("evil", namespace="evil", labels=dict(SEEN), phase="Pending", gated=True)
    found.set_pod(forged_reference(evil, job))
    (release,) = found.cycle(NOW).releases
    assert release.owner == job


@pytest.mark.parametrize("field", ["name", "kind"])
def test_a_reference_that_is_wrong_in_one_part_counts_for_nothing(field: str) -> None:
    found = driver(node("n0", 3))
    job = held("j", 1)
    found.set_owner(job)
    evil = kit.pod("evil", labels=dict(SEEN), gated=True)
    found.set_pod(forged_reference(evil, job, **{field: "StatefulSet"}))
    assert len(found.cycle(NOW).releases) == 1


def test_a_job_is_released_when_a_pod_has_stopped_naming_it() -> None:
    """A pod that its controller gave up, or that only pretended: the reference goes, then the pod."""
    found = driver(node("n0", 3))
    job = held("j", 1)
    found.set_owner(job)
    pod = rank(job, 0, gated=True)
    found.set_pod(pod)
    assert found.cycle(NOW).releases == []  # it was suspended while it ran: its pods go first
    orphan = replace(pod, metadata=replace(pod.metadata, owner_references=None))
    found.set_pod(orphan)
    found.remove_pod(orphan)
    assert len(found.cycle(NOW + 1).releases) == 1


def test_a_job_claims_a_pod_by_its_selector_too() -> None:
    job = held("j", 1)
    selector = LabelSelector(match_labels={"batch.kubernetes.io/controller-uid": job.metadata.uid})
    job = replace(job, spec=replace(job.spec, selector=selector))
    child = rank(job, 0).metadata
    assert not job.claims(child)
    labels = {**(child.labels or {}), "batch.kubernetes.io/controller-uid": job.metadata.uid}
    assert job.claims(replace(child, labels=labels))
    assert not job.claims(replace(child, labels=labels, namespace="evil"))
    assert not job.claims(
        replace(child, labels=labels, owner_references=[OwnerReference(uid=job.metadata.uid)])
    )


# -- devices -------------------------------------------------------------------------------------------------

POOL = "resources: [{type: licence, name: s, count: 5}]"


def with_notes(bind: Bind, **changed: str | None) -> Pod:
    """A pod that was bound, and whose owner changes annotations, or removes them."""
    pod = devices.as_bound(bind)
    notes = {**pod.annotations, **{getattr(names, key): value for key, value in changed.items()}}
    left = {key: value for key, value in notes.items() if value is not None}
    return replace(pod, metadata=replace(pod.metadata, annotations=left))


def licences(*pods: Pod) -> int:
    """How many are free after a restart."""
    fresh = devices.World(POOL)
    fresh.run(*pods)
    return fresh.cluster.fit.free_units("licence", {"s"})


@pytest.mark.parametrize("left", ['{"start":1}', "nonsense", None])
def test_a_pod_that_denies_its_devices_still_holds_them_after_a_restart(left: str | None) -> None:
    binds = devices.World(POOL).run(devices.asks("a", licence=2))
    assert licences(with_notes(binds["a"], ALLOCATION=left, JOBID=None)) == 3


def test_a_pod_that_no_longer_names_its_backend_still_holds_it_after_a_restart() -> None:
    binds = devices.World(POOL).run(devices.asks("a", backend="s"))
    notes = {"ALLOCATION": None, "JOBID": None, "BACKEND": None}
    pod = with_notes(binds["a"], **notes)
    said = {key: text for key, text in pod.annotations.items() if not key.startswith(names.REQUIRE)}
    assert licences(replace(pod, metadata=replace(pod.metadata, annotations=said))) == 4


def test_devices_that_each_pod_had_for_itself_are_not_shared_by_a_later_word() -> None:
    gang = devices.gang(2, licence=2, annotations={names.DEVICES: "per-pod"})
    binds = devices.World(POOL).run(*gang)
    assert licences(*(with_notes(each, DEVICES=None) for each in binds.values())) == 1
    alone = [with_notes(each, DEVICES=None, JOBID=str(7 + i)) for i, each in enumerate(binds.values())]
    assert licences(*alone) == 1


def test_a_device_that_pods_share_is_not_held_by_each_of_them_by_a_later_word() -> None:
    binds = devices.World(POOL).run(*devices.gang(3, licence=1))
    assert licences(*(with_notes(each, DEVICES="per-pod") for each in binds.values())) == 4
    alone = [with_notes(each, JOBID=str(job_number(each.uid))) for each in binds.values()]
    assert licences(*alone) == 4
    apart = [with_notes(each, DEVICES="per-pod", JOBID=str(job_number(each.uid))) for each in binds.values()]
    assert licences(*apart) == 4


# -- numbers -------------------------------------------------------------------------------------------------


def wide(name: str, n: int, cpu: str = "1m", namespace: str = "default") -> Owner:
    return held(name, n, cpu=cpu, namespace=namespace)


def large_node(name: str) -> Node:
    found = node(name, 64)
    status = replace(found.status, allocatable={"cpu": "64", "memory": "1Gi", "pods": "30000"})
    return replace(found, status=status)


@pytest.mark.parametrize("kind", ["Job", "StatefulSet"])
def test_a_workload_that_the_cluster_could_never_hold_costs_one_placeholder(kind: str) -> None:
    found = driver(node("n0"), node("n1"))
    job = wide("j", 100_000)
    if kind == "StatefulSet":
        job = kit.owner("j", kind=StatefulSet, labels=dict(SEEN), replicas=100_000, template=template("1m"))
    found.set_owner(job)
    decisions = found.cycle(NOW)
    assert len(placeholders_of(found)) == 1
    (waiting,) = decisions.waiting
    assert waiting.reasons[0].code is Code.CLUSTER_HOLDS_FEWER
    assert (waiting.reasons[0]["pods"], waiting.reasons[0]["most"]) == (100_000, 40)
    assert decisions.releases == []


def test_a_workload_that_became_small_enough_is_planned() -> None:
    found = driver(node("n0"), node("n1"))
    job = wide("j", 100_000)
    found.set_owner(job)
    found.cycle(NOW)
    found.set_owner(replace(job, spec=replace(job.spec, parallelism=2, completions=2)))
    (release,) = found.cycle(NOW + 1).releases
    assert len(release.note.nodes) == 2


def test_a_workload_is_judged_again_when_the_cluster_has_grown() -> None:
    found = driver(node("n0"))
    found.set_owner(wide("j", 600))
    found.cycle(NOW)
    assert reason_of(found, "default/job:j") is Code.CLUSTER_HOLDS_FEWER
    found.set_node(large_node("big"))
    (release,) = found.cycle(NOW + 1).releases
    assert len(release.note.nodes) == 600


def test_a_workload_may_have_so_many_pods_and_no_more() -> None:
    found = driver(large_node("big"))
    found.set_owner(wide("j", placeholders.MOST_PODS + 1))
    found.cycle(NOW)
    assert len(placeholders_of(found)) == 1
    assert reason_of(found, "default/job:j") is Code.TOO_MANY_HELD_PODS


def test_a_namespace_has_so_many_placeholders_at_a_time_and_the_others_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placeholders, "MOST_OF_NAMESPACE", 20)
    found = driver(node("n0", 2))
    found.set_pod(kit.pod("busy", cpu="2", node="n0", phase="Running", scheduler="other"))
    first, second = wide("a", 12), wide("b", 12)
    other = wide("c", 12, namespace="other")
    for each in (first, second, other):
        found.set_owner(each)
    found.cycle(NOW)
    assert len(placeholders_of(found)) == 25
    assert reason_of(found, "default/job:b") is Code.NAMESPACE_HOLDS_TOO_MANY
    found.handle(Changed(first, None), now=NOW + 1)
    found.cycle(NOW + 1)
    found.cycle(NOW + 1)
    assert reason_of(found, "default/job:b") is None
    assert len(placeholders_of(found)) == 24


def test_many_wide_workloads_are_taken_in_over_several_cycles_and_namespaces_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placeholders, "PER_CYCLE", 10)
    found = driver(node("n0", 2))
    found.cycle(NOW)
    for index in range(5):
        found.set_owner(wide(f"evil{index}", 9))
    found.set_owner(wide("good", 1, namespace="good"))
    found.cycle(NOW + 1)
    keys = {gang.key for gang in found.groups.gangs()}
    assert "good/job:good" in keys and len(keys) == 2
    assert found.scheduler.has_more


def test_a_wide_workload_that_its_user_changes_all_the_time_is_made_anew_now_and_then() -> None:
    found = driver(large_node("big"))
    found.cycle(NOW)
    job = wide("j", 1000)
    made = 0
    for change in range(50):
        changed = replace(
            job,
            metadata=replace(job.metadata, generation=change),
            spec=replace(job.spec, template=template(f"{change + 1}m")),
        )
        before = {id(pod) for pod in placeholders_of(found)}
        found.set_owner(changed)
        found.cycle(NOW + 20 * change)
        made += len({id(pod) for pod in placeholders_of(found)} - before)
    assert made <= 3000  # one second, half a millisecond of rest for each stand-in


def test_a_wide_workload_that_has_its_seats_and_changes_gives_them_back_at_once() -> None:
    found = driver(large_node("big"))
    job = wide("j", 400)
    found.set_owner(job)
    assert len(found.cycle(NOW).releases) == 1
    found.set_owner(
        replace(
            job,
            metadata=replace(job.metadata, generation=2),
            spec=replace(job.spec, parallelism=3, completions=3),
        )
    )
    (release,) = found.cycle(NOW + 1).releases
    assert len(release.note.nodes) == 3
    assert free(found) == 64_000 - 3


def test_a_pod_that_names_nodes_of_its_own_is_handed_over_to_one_of_them() -> None:
    found = driver(node("n0"), node("n1"))
    own = Requirement(key="metadata.name", operator="In", values=["n0", "n1"])
    pin = Requirement(key="metadata.name", operator="In", values=["n1"])
    terms = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[own, pin])])
    pod = kit.pod("choosy", cpu="2", scheduler=names.KUBE_SCHEDULER, labels=dict(SEEN))
    pod = replace(pod, spec=replace(pod.spec, affinity=Affinity(node_affinity=NodeAffinity(required=terms))))
    handed_over = Bind(
        gated("choosy", scheduler=names.KUBE_SCHEDULER), "n1", "default/pod:choosy", {}
    ).granted(pod)
    assert pinned_node(handed_over) == "n1"
    assert is_delegated(as_bound(handed_over, "n1"))
    assert not is_delegated(as_bound(handed_over, "n0"))
    found.set_pod(handed_over)
    assert free(found) == 2000


def test_a_wide_workload_that_waits_for_its_turn_is_told_what_it_was_told_before() -> None:
    found = driver(node("n0"))
    found.cycle(NOW)
    first, second = wide("a", 600), wide("b", 600)
    for each in (first, second):
        found.set_owner(each)
    found.cycle(NOW + 1)
    found.set_node(large_node("big"))
    found.cycle(NOW + 2)
    for each in (first, second):
        found.set_owner(replace(each, metadata=replace(each.metadata, annotations={"mine": "1"})))
    found.cycle(NOW + 3)
    waits = {name for name in "ab" if reason_of(found, f"default/job:{name}") is Code.CLUSTER_HOLDS_FEWER}
    assert len(waits) == 1  # the other is planned: its namespace rests 300 ms
    found.cycle(NOW + 400)
    assert not any(reason_of(found, f"default/job:{name}") for name in "ab")
