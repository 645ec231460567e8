"""Suspended Jobs and gated pods in one queue: stand-ins hold the seats, pods that come take them."""

from __future__ import annotations

from itertools import chain
from typing import Any

from msgspec.structs import replace

from fluence import names
from fluence.model.grant import release_note
from fluence.model.job_state import JobState
from fluence.model.meta import Condition, ObjectMeta, PriorityClass
from fluence.model.node import Node, NodeStatus
from fluence.model.owner import Deployment, Owner, PodTemplate, ReplicaSet, StatefulSet
from fluence.model.pod import Container, Pod, PodSpec, PodStatus, ResourceRequirements, SchedulingGate
from fluence.model.reason import Code
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import (
    BindFinished,
    BindOutcome,
    BindResult,
    Changed,
    ReleaseFinished,
    ReleaseResult,
)
from fluence.schedule.queueing.placeholders import PATIENCE
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

SEEN = {names.SEEN: names.SEEN_YES}
NOW = int(kit.T0.timestamp() * 1000)


def node(name: str, cpu: int = 2) -> Node:
    return Node(
        metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}),
        status=NodeStatus(
            allocatable={"cpu": str(cpu), "memory": "1Gi", "pods": "20"},
            conditions=[Condition(type="Ready", status="True")],
        ),
    )


def template(cpu: str = "1", *, gated: bool = False, scheduler: str = "fluence", **spec: Any) -> PodTemplate:
    gates = [SchedulingGate(name=names.GATE_FLUXQUEUE)] if gated else None
    one = Container(name="c", resources=ResourceRequirements(requests={"cpu": cpu}))
    return PodTemplate(
        metadata=ObjectMeta(labels=dict(SEEN)),
        spec=PodSpec(scheduler_name=scheduler, containers=[one], scheduling_gates=gates, **spec),
    )


def held(name: str, n: int = 3, *, cpu: str = "1", mode: str | None = "Indexed", **more: Any) -> Owner:
    """A Job as admission leaves it."""
    found = kit.owner(
        name,
        labels=dict(SEEN),
        suspend=True,
        parallelism=n,
        completions=n,
        completion_mode=mode,
        template=more.pop("template", template(cpu)),
        **more,
    )
    meta = replace(found.metadata, creation_timestamp=kit.T0, generation=1)
    return replace(found, metadata=meta)


def let_go(job: Owner, decisions: Decisions) -> Owner:
    """A Job as the server has it when its release was carried out."""
    (release,) = decisions.releases
    return release.carried_out(job)


def suspended_again(job: Owner) -> Owner:
    """A Job that its user suspends after it was released: another generation."""
    meta = replace(job.metadata, generation=(job.metadata.generation or 0) + 1)
    return replace(job, metadata=meta, spec=replace(job.spec, suspend=True))


def rank(job: Owner, index: int, **more: Any) -> Pod:
    labels = {**SEEN, names.COMPLETION_INDEX: str(index)}
    more.setdefault("labels", labels if job.spec.completion_mode == "Indexed" else dict(SEEN))
    return kit.pod(f"{job.metadata.name}-{index}-x", owner=job, **more)


def gated(name: str, **more: Any) -> Pod:
    more.setdefault("labels", dict(SEEN))
    return kit.pod(name, scheduling_gates=[SchedulingGate(name=names.GATE_FLUXQUEUE)], **more)


def driver(*nodes: Node, **config: Any) -> Driver:
    found = Driver(backoff=(100, 1000), **config)
    for each in nodes or (node("n0"), node("n1")):
        found.set_node(each)
    return found


def binds(decisions: Decisions) -> dict[str, str]:
    return {bind.pod.metadata.name: bind.node for some in decisions.binds for bind in some}


def as_bound(pod: Pod, place: str, notes: dict[str, str] | None = None) -> Pod:
    meta = replace(pod.metadata, annotations={**pod.annotations, **(notes or {})})
    return replace(pod, metadata=meta, spec=replace(pod.spec, node_name=place, scheduling_gates=None))


def free(found: Driver) -> int:
    """Cores that are free now, in thousandths."""
    seats = found.cluster.fit
    return int(seats.free("cpu").sum())


# -- suspended Jobs ------------------------------------------------------------------------------------------


def test_a_suspended_job_is_planned_and_released_with_its_nodes() -> None:
    found = driver()
    job = held("j")
    found.set_owner(job)
    decisions = found.cycle(NOW)
    assert decisions.binds == []
    (release,) = decisions.releases
    assert release.owner == job
    assert [index for index, _ in release.note.nodes] == [0, 1, 2]
    said = release.note.annotations()
    assert said[names.FLUXQUEUE_NODES] == "n[1,1,0]"
    assert release_note(let_go(job, decisions)) == release.note


def test_seats_are_held_from_the_decision_until_the_pods_are_bound_or_gone() -> None:
    found = driver()
    job = held("j")
    found.set_owner(job)
    first = found.cycle(NOW)
    found.set_pod(kit.pod("greedy", cpu="2"))
    assert found.cycle(NOW + 1).binds == []
    job = let_go(job, first)
    found.set_owner(job)
    for index in range(3):
        assert found.cycle(NOW + 2).binds == []  # none before all of them are there
        found.set_pod(rank(job, index))
    assert binds(found.cycle(NOW + 3)) == {"j-0-x": "n1", "j-1-x": "n1", "j-2-x": "n0"}


def test_a_pod_takes_the_seat_of_its_index_in_whatever_order_they_come() -> None:
    found = driver(node("a", 1), node("b", 1), node("c", 1))
    job = held("j")
    found.set_owner(job)
    first = found.cycle(NOW)
    (release,) = first.releases
    job = let_go(job, first)
    found.set_owner(job)
    for index in (2, 0, 1):
        found.set_pod(rank(job, index))
    placed = binds(found.cycle(NOW + 1))
    assert placed == {f"j-{index}-x": where for index, where in release.note.nodes}


def test_pods_without_an_index_take_any_of_the_seats() -> None:
    found = driver()
    job = held("j", 3, mode=None)
    found.set_owner(job)
    job = let_go(job, found.cycle(NOW))
    found.set_owner(job)
    for index in range(3):
        found.set_pod(rank(job, index))
    assert sorted(binds(found.cycle(NOW + 1)).values()) == ["n0", "n1", "n1"]


def test_a_job_that_changes_while_it_waits_is_matched_anew() -> None:
    found = driver(node("n0", 2))
    busy = kit.pod("busy", cpu="2", node="n0", phase="Running", scheduler="other")
    found.set_pod(busy)
    job = held("j", 2)
    found.set_owner(job)
    assert found.cycle(NOW).releases == []
    larger = replace(job, spec=replace(job.spec, parallelism=3, completions=3))
    found.set_owner(larger)
    decisions = found.cycle(NOW + 1)
    assert [each.report.state for each in decisions.waiting] == [JobState.UNSCHEDULABLE]
    smaller = replace(job, spec=replace(job.spec, template=template("500m")))
    found.set_owner(smaller)
    assert found.cycle(NOW + 2).releases == []
    found.remove_pod(busy)
    (release,) = found.cycle(NOW + 3).releases
    assert release.owner == smaller
    assert free(found) == 1000


def test_a_job_that_changes_after_its_decision_loses_its_seats_and_is_matched_anew() -> None:
    found = driver(node("n0", 3))
    job = held("j", 3)
    found.set_owner(job)
    found.cycle(NOW)
    assert free(found) == 0
    smaller = replace(job, spec=replace(job.spec, parallelism=2, completions=2))
    found.set_owner(smaller)
    decisions = found.cycle(NOW + 1)
    assert [len(each.note.nodes) for each in decisions.releases] == [2]
    assert free(found) == 1000


def test_a_job_that_is_suspended_again_before_its_pods_come_is_matched_anew() -> None:
    """It was let go and has seats; nobody would let it go a second time."""
    found, job = driver(), held("j", 2)
    found.set_owner(job)
    ran = let_go(job, found.cycle(NOW))
    found.set_owner(ran)
    found.cycle(NOW)
    found.set_owner(replace(ran, spec=replace(ran.spec, suspend=True)))
    (release,) = found.cycle(NOW + 1000).releases
    assert len(release.note.nodes) == 2


def test_a_job_that_was_let_go_and_suspended_again_unseen_is_matched_anew() -> None:
    """A watch that was cut off shows only the last of it: the note says what happened meanwhile."""
    found, job = driver(), held("j", 2)
    found.set_owner(job)
    decisions = found.cycle(NOW)
    found.handle(ReleaseFinished(ReleaseResult(decisions.releases[0], BindOutcome.BOUND)), now=NOW)
    ran = let_go(job, decisions)
    found.set_owner(suspended_again(ran))
    (release,) = found.cycle(NOW + 1000).releases
    assert release.note != decisions.releases[0].note


def test_seats_whose_room_somebody_else_took_are_not_bound() -> None:
    found, job = driver(), held("j", 2)
    found.set_owner(job)
    decisions = found.cycle(NOW)
    ran, (_, taken) = let_go(job, decisions), decisions.releases[0].note.nodes[0]
    found.set_owner(ran)
    found.set_pod(kit.pod("other", scheduler="other", node=taken, cpu="2"))
    for index in range(2):
        found.set_pod(rank(ran, index))
    binds = [bind for each in (found.cycle(NOW), found.cycle(NOW)) for bind in chain(*each.binds)]
    assert len(binds) == 2
    assert taken not in {bind.node for bind in binds}


def test_a_job_is_not_let_go_to_seats_whose_room_somebody_else_took() -> None:
    found, job = driver(), held("j", 2)
    found.set_owner(job)
    (first,) = found.cycle(NOW).releases
    found.handle(ReleaseFinished(ReleaseResult(first, BindOutcome.AGAIN)), now=NOW)
    found.set_pod(kit.pod("other", scheduler="other", node=first.note.nodes[0][1], cpu="2"))
    releases = found.cycle(NOW + 1000).releases or found.cycle(NOW + 1000).releases
    assert first.note.nodes[0][1] not in {node for _, node in releases[0].note.nodes}


def test_a_job_that_is_deleted_while_its_seats_are_held_gives_them_back() -> None:
    found = driver(node("n0", 3))
    job = held("j", 3)
    found.set_owner(job)
    found.cycle(NOW)
    found.handle(Changed(job, None))
    found.cycle(NOW + 1)
    assert free(found) == 3000
    assert not found.groups.gang("default/job:j")
    assert found.next_due() is None


def test_a_release_that_fails_is_sent_again_after_a_pause_and_keeps_its_seats() -> None:
    found = driver(node("n0", 3))
    found.set_owner(held("j", 3))
    (release,) = found.cycle(NOW).releases
    found.handle(ReleaseFinished(ReleaseResult(release, BindOutcome.AGAIN, "down")), now=NOW + 1)
    assert found.cycle(NOW + 2).releases == []
    assert free(found) == 0
    assert found.next_due() == NOW + 101
    assert found.cycle(NOW + 101).releases == [release]


def test_a_job_that_never_fits_is_told_and_stays() -> None:
    found = driver(node("n0", 2))
    found.set_owner(held("j", 3))
    decisions = found.cycle(NOW)
    (waiting,) = decisions.waiting
    assert waiting.report.state is JobState.UNSCHEDULABLE
    assert waiting.gang.held
    assert decisions.releases == []


def test_a_suspension_of_the_users_own_is_left_alone() -> None:
    found = driver()
    job = held("j", 2)
    found.set_owner(replace(job, metadata=replace(job.metadata, labels=None)))
    assert found.cycle(NOW).releases == []
    assert not list(found.groups.gangs())


def test_a_job_whose_flux_job_was_deleted_stays_suspended_until_the_annotation_goes() -> None:
    found = driver()
    job = held("j", 2, annotations={names.CANCELLED: "2026-09-01T12:00:00Z"})
    found.set_owner(job)
    assert found.cycle(NOW).releases == []
    found.set_owner(replace(job, metadata=replace(job.metadata, annotations=None)))
    assert len(found.cycle(NOW + 1).releases) == 1


def test_a_node_that_goes_before_the_pods_come_has_them_placed_anew_together() -> None:
    found = driver(node("a", 1), node("b", 1), node("c", 1))
    job = held("j", 2)
    found.set_owner(job)
    first = found.cycle(NOW)
    job = let_go(job, first)
    found.set_owner(job)
    found.cycle(NOW + 1)
    found.set_pod(rank(job, 0))
    found.remove_node(first.releases[0].note.nodes[1][1])
    assert found.cycle(NOW + 2).binds == []
    found.set_pod(rank(job, 1))
    placed = binds(found.cycle(NOW + 3))
    assert set(placed) == {"j-0-x", "j-1-x"} and len(set(placed.values())) == 2


def test_pods_that_ask_for_more_than_their_template_are_placed_like_any_gang() -> None:
    found = driver(node("n0", 4))
    job = held("j", 2)
    found.set_owner(job)
    job = let_go(job, found.cycle(NOW))
    found.set_owner(job)
    for index in range(2):
        found.set_pod(rank(job, index, cpu="2"))
        decisions = found.cycle(NOW + 1 + index)
    assert binds(decisions) == {"j-0-x": "n0", "j-1-x": "n0"}
    assert free(found) == 0


def test_a_failed_rank_is_replaced_in_its_place() -> None:
    found = driver(node("n0", 2))
    job = held("j", 2)
    found.set_owner(job)
    job = let_go(job, found.cycle(NOW))
    found.set_owner(job)
    pods = [rank(job, index) for index in range(2)]
    for pod in pods:
        found.set_pod(pod)
    notes = dict(found.cycle(NOW + 1).binds[0][0].annotations)
    for pod in pods:
        found.set_pod(as_bound(pod, "n0", notes))
    found.set_pod(kit.pod("other"))
    found.cycle(NOW + 2)
    failed = as_bound(pods[0], "n0", notes)
    found.set_pod(replace(failed, status=PodStatus(phase="Failed")))
    found.cycle(NOW + 3)
    found.set_pod(rank(job, 0, uid="again"))
    assert binds(found.cycle(NOW + 4)) == {"j-0-x": "n0"}


# -- a fresh process -----------------------------------------------------------------------------------------


def test_a_fresh_process_finds_the_seats_of_a_job_that_was_let_go_before_any_pod_was_made() -> None:
    first = driver(node("a", 1), node("b", 1))
    job = held("j", 2)
    first.set_owner(job)
    decisions = first.cycle(NOW)
    job = let_go(job, decisions)
    again = driver(node("a", 1), node("b", 1))
    again.set_owner(job)
    again.set_pod(kit.pod("greedy"))
    assert again.cycle(NOW + 1).binds == []
    assert again.cycle(NOW + 2).binds == []
    assert free(again) == 0
    for index in range(2):
        again.set_pod(rank(job, index))
    assert binds(again.cycle(NOW + 3)) == {
        f"j-{index}-x": where for index, where in decisions.releases[0].note.nodes
    }


def test_a_fresh_process_binds_the_rest_of_a_job_where_its_note_says() -> None:
    job = held("j", 3)
    first = driver(node("a", 1), node("b", 1), node("c", 1))
    first.set_owner(job)
    decisions = first.cycle(NOW)
    job = let_go(job, decisions)
    where = dict(decisions.releases[0].note.nodes)
    notes = {names.JOBID: decisions.releases[0].note.number}
    for order in (0, 1):  # pods or their owner first
        again = driver(node("a", 1), node("b", 1), node("c", 1))
        objects = [job, as_bound(rank(job, 0), where[0], notes), rank(job, 1)]
        for each in objects if order else reversed(objects):
            again.handle(Changed(None, each))  # type: ignore[arg-type]
        assert binds(again.cycle(NOW + 1)) == {"j-1-x": where[1]}
        assert free(again) == 0
        again.set_pod(rank(job, 2))
        assert binds(again.cycle(NOW + 2)) == {"j-2-x": where[2]}


def test_the_rest_of_a_job_whose_first_pod_has_ended_is_placed_together() -> None:
    """A fresh process may see the end of a pod before the Job counts it, and so one too few."""
    job = held("j", 3, mode=None)
    first = driver(node("a", 1), node("b", 1), node("c", 1))
    first.set_owner(job)
    decisions = first.cycle(NOW)
    job, note = let_go(job, decisions), decisions.releases[0].note
    ended = as_bound(rank(job, 0), note.nodes[0][1], {names.JOBID: note.number})
    again = driver(node("a", 1), node("b", 1), node("c", 1))
    again.set_owner(job)
    for each in (replace(ended, status=PodStatus(phase="Succeeded")), rank(job, 1), rank(job, 2)):
        again.set_pod(each)
    for later in range(3):
        assert not again.cycle(NOW + later).binds
    again.set_owner(replace(job, status=replace(job.status, succeeded=1)))
    found = [bind for later in range(3) for some in again.cycle(NOW + 9 + later).binds for bind in some]
    assert {bind.annotations[names.JOBID] for bind in found} == {note.number}
    assert len(found) == 2


def test_a_fresh_process_does_not_believe_a_note_that_names_nodes_which_are_gone() -> None:
    job = held("j", 2)
    first = driver(node("a", 1), node("b", 1))
    first.set_owner(job)
    job = let_go(job, first.cycle(NOW))
    again = driver(node("a", 1), node("c", 1))
    again.set_owner(job)
    for index in range(2):
        again.set_pod(rank(job, index))
    assert sorted(binds(again.cycle(NOW + 1)).values()) == ["a", "c"]


def test_a_complete_job_has_nothing_that_stands_for_it() -> None:
    job = held("j", 2)
    first = driver()
    first.set_owner(job)
    job = let_go(job, first.cycle(NOW))
    status = replace(job.status, succeeded=2, conditions=[Condition(type="Complete", status="True")])
    again = driver()
    again.set_owner(replace(job, status=status))
    again.cycle(NOW + 1)
    assert free(again) == 4000


def test_a_fault_while_a_release_is_under_way_does_not_let_the_job_go_twice() -> None:
    found = driver(node("n0", 3), strict=False)
    found.set_owner(held("j", 3))
    (release,) = found.cycle(NOW).releases
    found.scheduler._rebuild(NOW + 1)
    decisions = found.cycle(NOW + 2)
    assert decisions.releases == [] and free(found) == 0
    found.handle(ReleaseFinished(ReleaseResult(release, BindOutcome.AGAIN, "down")), now=NOW + 3)
    (again,) = found.cycle(NOW + 4).releases
    assert again.note.nodes == release.note.nodes


# -- gated pods ----------------------------------------------------------------------------------------------


def test_a_gated_pod_is_placed_like_any_other() -> None:
    found = driver()
    found.set_pod(gated("p"))
    assert binds(found.cycle(NOW)) == {"p": "n1"}


def test_a_gate_of_somebody_else_still_holds() -> None:
    found = driver()
    both = [SchedulingGate(name=names.GATE_FLUXQUEUE), SchedulingGate(name="mine")]
    found.set_pod(kit.pod("two", labels=dict(SEEN), scheduling_gates=both))
    found.set_pod(kit.pod("own", scheduling_gates=[SchedulingGate(name=names.GATE_FLUXQUEUE)]))
    assert found.cycle(NOW).binds == []


def replicas(name: str, n: int, kind: type[Owner] = ReplicaSet, parent: Owner | None = None) -> Owner:
    return kit.owner(
        name,
        kind=kind,
        labels=dict(SEEN),
        replicas=n,
        template=template(gated=True),
        parent=parent,
        **({"pod_management_policy": "Parallel"} if kind is StatefulSet else {}),  # type: ignore[arg-type]
    )


def test_a_held_deployment_starts_whole_grows_by_what_fits_and_gives_back_what_it_sheds() -> None:
    found = driver(node("n0", 4))
    top = replicas("web", 3, Deployment)
    found.set_owner(top)
    under = replicas("web-1", 3, parent=top)
    found.set_owner(under)
    pods = [gated(f"web-{i}", owner=under) for i in range(7)]
    found.set_pod(pods[0])
    found.set_pod(pods[1])
    assert found.cycle(NOW).binds == []
    found.set_pod(pods[2])
    decisions = found.cycle(NOW + 1)
    assert set(binds(decisions)) == {"web-0", "web-1", "web-2"}
    notes = dict(decisions.binds[0][0].annotations)
    for pod in pods[:3]:
        found.set_pod(as_bound(pod, "n0", notes))
    # Scaled up by two, and only one fits.
    under = replace(under, spec=replace(under.spec, replicas=5))
    found.set_owner(under)
    found.set_pod(pods[3])
    found.set_pod(pods[4])
    assert len(binds(found.cycle(NOW + 2))) == 1
    # Scaled down to two: what goes is free at once.
    found.set_pod(as_bound(pods[3], "n0"))
    under = replace(under, spec=replace(under.spec, replicas=2))
    found.set_owner(under)
    found.remove_pod(pods[4])
    for pod in pods[2:4]:
        found.remove_pod(as_bound(pod, "n0", notes))
    found.cycle(NOW + 3)
    assert free(found) == 2000
    for pod in pods[:2]:
        found.remove_pod(as_bound(pod, "n0", notes))
    found.cycle(NOW + 4)
    assert free(found) == 4000


def test_a_replaced_pod_of_a_deployment_gets_the_place_of_the_one_that_went() -> None:
    found = driver(node("n0", 2))
    under = replicas("web", 2)
    found.set_owner(under)
    pods = [gated(f"web-{i}", owner=under) for i in range(2)]
    for pod in pods:
        found.set_pod(pod)
    notes = dict(found.cycle(NOW).binds[0][0].annotations)
    for pod in pods:
        found.set_pod(as_bound(pod, "n0", notes))
    found.set_pod(kit.pod("next"))
    found.cycle(NOW + 1)
    found.remove_pod(as_bound(pods[0], "n0", notes))
    found.set_pod(gated("web-2", owner=under))
    assert binds(found.cycle(NOW + 2)) == {"web-2": "n0"}


def test_a_statefulset_that_makes_one_pod_after_the_other_has_seats_for_all_from_the_start() -> None:
    found = driver(node("n0", 3))
    top = replace(
        replicas("db", 3, StatefulSet),
    )
    top = replace(top, spec=replace(top.spec, pod_management_policy="OrderedReady"))
    found.set_owner(top)

    def pod(index: int) -> Pod:
        return gated(f"db-{index}", owner=top, labels={**SEEN, names.POD_INDEX: str(index)})

    found.set_pod(pod(0))
    decisions = found.cycle(NOW)
    assert binds(decisions) == {"db-0": "n0"}
    notes = dict(decisions.binds[0][0].annotations)
    found.set_pod(kit.pod("greedy"))
    assert found.cycle(NOW + 1).binds == []
    for index in (1, 2):
        found.set_pod(as_bound(pod(index - 1), "n0", notes))
        assert found.cycle(NOW + 1 + index).binds == []
        found.set_pod(pod(index))
        assert binds(found.cycle(NOW + 2 + index)) == {f"db-{index}": "n0"}
    assert free(found) == 0


def test_a_bind_that_goes_stale_after_the_first_is_driven_to_its_end() -> None:
    found = driver(node("n0", 2), node("n1", 2))
    under = replicas("web", 2)
    found.set_owner(under)
    for index in range(2):
        found.set_pod(gated(f"web-{index}", owner=under))
    ((one, other),) = found.cycle(NOW).binds
    found.set_pod(as_bound(one.pod, one.node, dict(one.annotations)))
    found.handle(BindFinished(BindResult(other, BindOutcome.STALE, "taken")), now=NOW + 1)
    assert list(binds(found.cycle(NOW + 2))) == [other.pod.metadata.name]


def test_gated_pods_whose_owner_was_cancelled_are_told_so() -> None:
    found = driver()
    under = replicas("web", 1)
    cancelled = replace(under.metadata, annotations={names.CANCELLED: "x"})
    found.set_owner(replace(under, metadata=cancelled))
    found.set_pod(gated("web-0", owner=under))
    decisions = found.cycle(NOW)
    assert decisions.binds == []
    (waiting,) = decisions.waiting
    assert waiting.reasons[0].code is Code.FLUX_JOB_DELETED


def test_held_and_plain_work_wait_in_one_queue_in_the_order_of_submission() -> None:
    found = driver(node("n0", 2), queue_policy="fcfs")
    busy = kit.pod("busy", cpu="2", node="n0", phase="Running", scheduler="other")
    found.set_pod(busy)
    found.set_owner(held("j", 2))
    found.set_pod(kit.pod("later", age=-10))
    found.cycle(NOW + 20_000)
    found.remove_pod(busy)
    decisions = found.cycle(NOW + 20_001)
    assert len(decisions.releases) == 1 and decisions.binds == []
    assert found.pod_sets.by_key["default/job:j"].state is JobState.STARTING


def test_seats_whose_pods_do_not_come_are_given_up_after_a_while() -> None:
    found = driver(node("n0", 3))
    job = held("j", 3)
    found.set_owner(job)
    found.set_owner(let_go(job, found.cycle(NOW)))
    found.cycle(NOW + 1)
    assert free(found) == 0
    due = found.next_due()
    assert due is not None and due <= NOW + 1 + PATIENCE
    found.cycle(due)
    assert free(found) == 3000 and found.next_due() is None


def test_a_job_has_the_priority_that_its_class_means_before_it_has_pods() -> None:
    found = driver(node("n0", 1), queue_policy="fcfs")
    busy = kit.pod("busy", node="n0", phase="Running", scheduler="other")
    found.set_pod(busy)
    found.set_pod(kit.pod("earlier", age=60))
    urgent = PriorityClass(metadata=ObjectMeta(name="urgent"), value=1000)
    found.handle(Changed(None, urgent))
    found.set_owner(held("j", 1, template=template(priority_class_name="urgent")))
    found.cycle(NOW)
    found.remove_pod(busy)
    decisions = found.cycle(NOW + 1)
    assert len(decisions.releases) == 1 and not decisions.binds
