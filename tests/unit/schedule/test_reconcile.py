"""Situations of a group and what must change in the queue: each test is one line of the table."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from fluence.cluster.graph import TopologyDomain
from fluence.model.constraint import Constraint
from fluence.model.job_state import JobState
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue.job import Submission
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.pod_set import PodSet
from fluence.schedule.reconcile import (
    IN_PLACE,
    Adopt,
    Amend,
    Change,
    Complete,
    FreeSeats,
    Gather,
    Refuse,
    Started,
    Submit,
    Withdraw,
    name_of,
    reconcile,
)
from tests.unit.cluster.build import bound, ended
from tests.unit.schedule import kit

MISSING = Reason.of(Code.PODS_MISSING, group="default/g", pods=1, minimum=2)
FAULT = Reason.of(Code.DIFFERENT_PRIORITIES, priorities=(0, 1))
RACK = "example.com/rack"


def gang(count: int = 2, **more: Any) -> Gang:
    more.setdefault("members", tuple(kit.ranks(count)))
    more.setdefault("needed", len(more["members"]))
    return Gang(key="default/g", uid="uid-g", namespace="default", name="g", **more)


def queued(of: Gang, wanted: Submit, phase: JobState = JobState.PENDING, number: int = 7) -> PodSet:
    """A pod set as the queue has it once a change was applied."""
    job = Submission(
        key=wanted.key,
        request=dataclasses.replace(wanted.request, number=number),
        submit=of.submit,
        limit=of.limit,
        enforced=of.bounded,
        soft_limit=of.soft_limit,
        user=of.user,
        queue=of.queue,
        priority=wanted.priority,
    )
    return PodSet(job, phase, group=of.key)


def seated(
    of: Gang,
    pods: tuple[Pod, ...],
    *,
    phase: JobState = JobState.RUNNING,
    key: str = "default/g",
    number: int = 7,
) -> PodSet:
    """A pod set whose pods have seats; those without a node are on their way to n1."""
    made = queued(of, dataclasses.replace(only_submit(gang(members=pods)), key=key), phase, number)
    made.alive = {pod.metadata.uid for pod in pods}
    made.unbound = {pod.metadata.uid: "n1" for pod in pods if pod.spec.node_name is None}
    return made


def changes(
    of: Gang | None, *pod_sets: PodSet, exclude: frozenset[str] = frozenset(), has_job: Any = (7, 8, 9)
) -> list[Change]:
    has_seat = {uid for each in pod_sets for uid in (*each.alive, *each.finished)}
    by_key = {each.key: each for each in pod_sets}
    return reconcile(of, by_key, has_seat=has_seat, has_job=has_job, exclude=exclude)


def only_submit(of: Gang, *pod_sets: PodSet, **more: Any) -> Submit:
    (found,) = [each for each in changes(of, *pod_sets, **more) if isinstance(each, Submit)]
    return found


def uids(pods: tuple[Pod, ...]) -> list[str]:
    return [pod.metadata.uid for pod in pods]


# -- groups that go, and groups that are found ---------------------------------------------------------------


def test_of_a_group_that_is_gone_what_waits_is_withdrawn_and_what_runs_is_left() -> None:
    of = gang()
    waits = queued(of, only_submit(of))
    runs = seated(of, (kit.pod("x", node="n1"),), key="default/g+x", number=8)
    assert changes(None, waits, runs) == [Withdraw(waits, Reason.of(Code.GROUP_GONE)), Complete()]
    assert changes(None) == [Complete()]


def test_pods_that_are_found_on_nodes_are_adopted_and_nothing_else_is_said() -> None:
    found = kit.pod("found", node="n1")
    known = kit.pod("known", node="n1")
    of = gang(placed=(known, found))
    assert changes(of, seated(of, (known,))) == [Adopt((found,))]
    assert not any(isinstance(each, Adopt) for each in changes(of, seated(of, (known, found))))


# -- groups that are complete --------------------------------------------------------------------------------


def test_a_complete_gang_is_submitted_once_under_its_own_key() -> None:
    constraint = Constraint("properties", ("gpu",))
    of = gang(
        3, needed=2, priority=5, policy="low", excluded=frozenset({"own"}), constraint=constraint, limit=1000
    )
    first, submit = changes(of, exclude=frozenset({"refused"}))
    assert first == Complete() and isinstance(submit, Submit)
    assert (submit.key, submit.uid, submit.priority) == ("default/g", "uid-g", 5)
    request = submit.request
    assert (request.number, request.pods, request.minimum) == (-1, of.members, 2)
    assert (request.policy, request.exclude) == ("low", frozenset({"own", "refused"}))
    assert (request.constraint, request.topology) == (constraint, None)


def test_what_is_queued_just_so_is_left_alone() -> None:
    of = gang(priority=5, limit=1000, queue="batch", user="ann", soft_limit=10)
    for phase in (JobState.PENDING, JobState.RESERVED, JobState.UNSCHEDULABLE):
        assert changes(of, queued(of, only_submit(of), phase)) == [Complete()]


def test_pods_that_only_changed_their_status_or_annotations_are_queued_just_so() -> None:
    of = gang()
    waits = queued(of, only_submit(of))
    seen = tuple(
        replace(
            pod,
            metadata=replace(pod.metadata, annotations={"a": "b"}, resource_version="9"),
            status=replace(pod.status, phase="Pending", conditions=[]),
        )
        for pod in of.members
    )
    assert changes(gang(members=seen), waits) == [Complete()]


def _labelled(pod: Pod) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, labels={"a": "b"}))


def _tolerant(pod: Pod) -> Pod:
    return replace(pod, spec=replace(pod.spec, node_selector={"disk": "fast"}))


def _anew(pod: Pod) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, uid="another"))


ONE, TWO = kit.ranks(2)


@pytest.mark.parametrize(
    "other",
    [
        {"priority": 1},
        {"limit": 5},
        {"soft_limit": 5},
        {"queue": "debug"},
        {"user": "bob"},
        {"policy": "low"},
        {"needed": 1},
        {"constraint": Constraint("properties", ("gpu",))},
        {"group": kit.group("g", 2, topology_key=RACK)},
        {"members": (ONE, _labelled(TWO))},
        {"members": (ONE, _tolerant(TWO))},
        {"members": (ONE, _anew(TWO))},
        {"members": (ONE,)},
        {"members": (*kit.ranks(3),)},
    ],
    ids=lambda other: "-".join(other),
)
def test_what_is_not_queued_just_so_is_withdrawn_and_submitted_anew(other: dict[str, Any]) -> None:
    before = gang()
    waits = queued(before, only_submit(before))
    now = gang(**other)
    done, withdraw, submit = changes(now, waits)
    assert (done, withdraw) == (Complete(), Withdraw(waits, Reason.of(Code.GROUP_CHANGED)))
    assert isinstance(submit, Submit) and submit.key == waits.key
    assert submit.request.pods == now.members and submit.priority == now.priority


def test_a_node_that_turned_out_impossible_is_another_request_of_the_same_job() -> None:
    of = gang()
    waits = queued(of, only_submit(of))
    done, amend = changes(of, waits, exclude=frozenset({"n1"}))
    assert done == Complete() and isinstance(amend, Amend) and amend.pod_set is waits
    assert amend.request.exclude == {"n1"} and amend.request.pods == waits.pods
    again = queued(of, only_submit(of, exclude=frozenset({"n1"})))
    assert changes(of, again, exclude=frozenset({"n1"})) == [Complete()]
    assert [type(each) for each in changes(of, again)] == [Complete, Amend]


def test_a_gang_that_gathered_keeps_its_record_when_it_is_submitted() -> None:
    of = gang()
    gathers = queued(of, only_submit(of), JobState.GATHERING, number=-1)
    assert [type(each) for each in changes(of, gathers)] == [Complete, Submit]


# -- groups of which some run --------------------------------------------------------------------------------


def test_members_beyond_the_minimum_are_each_submitted_by_themselves() -> None:
    runs = (kit.pod("x", node="n1"), kit.pod("y", node="n1"))
    of = gang(2, placed=runs, needed=0)
    submits = [each for each in changes(of, seated(of, runs)) if isinstance(each, Submit)]
    assert [each.key for each in submits] == [f"default/g+{uid}" for uid in uids(of.members)]
    assert [each.uid for each in submits] == uids(of.members)
    assert [(each.request.pods, each.request.minimum) for each in submits] == [
        ((pod,), 1) for pod in of.members
    ]


def test_those_that_are_missing_of_a_gang_of_which_a_part_runs_start_together_by_uid() -> None:
    runs = (kit.pod("x", node="n1"),)
    of = gang(3, placed=runs, needed=2)
    submit = only_submit(of, seated(of, runs))
    assert submit.key == f"default/g+{min(uids(of.members))}" and submit.uid == min(uids(of.members))
    assert submit.request.pods == of.members and submit.request.minimum == 2


def test_members_whose_binds_are_under_way_count_for_those_that_wait() -> None:
    first, second, third = kit.ranks(3)
    of = gang(members=(first, second, third), needed=2)
    submit = only_submit(of, seated(of, (first,), phase=JobState.STARTING))
    assert submit.request.pods == (second, third) and submit.request.minimum == 1
    both = seated(of, (first, second), phase=JobState.STARTING)
    alone = only_submit(of, both)
    assert alone.key == f"default/g+{third.metadata.uid}" and alone.request.minimum == 1


def test_a_key_that_one_that_has_begun_has_is_not_taken_twice() -> None:
    of = gang()
    taken = [seated(of, (ONE,), key="default/g+a"), seated(of, (ONE,), key="default/g+a'")]
    assert name_of("default/g", "a", taken) == "default/g+a''"
    assert name_of("default/g", "b", taken) == "default/g+b"


def test_a_topology_counts_the_nodes_that_a_group_has_and_is_about_to_have() -> None:
    placed, flies, waits = kit.pod("x", node="n2"), kit.pod("y"), kit.pod("z")
    group = kit.group("g", 3, topology_key=RACK)
    of = gang(members=(flies, waits), placed=(placed,), needed=2, group=group)
    submit = only_submit(of, seated(of, (placed, flies), phase=JobState.STARTING))
    assert submit.request.topology == TopologyDomain(RACK, frozenset({"n1", "n2"}))
    assert only_submit(gang(group=group)).request.topology == TopologyDomain(RACK, frozenset())


# -- groups that are not complete ----------------------------------------------------------------------------


def test_a_gang_that_is_not_complete_gathers() -> None:
    of = gang(1, needed=2, missing=MISSING)
    assert changes(of) == [Gather(of.members, MISSING)]
    gathers = queued(of, only_submit(gang(1)), JobState.GATHERING, number=-1)
    assert changes(of, gathers) == [Gather(of.members, MISSING)]


def test_a_gang_that_lost_a_member_while_it_waited_leaves_the_queue_and_gathers() -> None:
    waits = queued(gang(2), only_submit(gang(2)))
    of = gang(1, needed=2, missing=MISSING)
    assert changes(of, waits) == [
        Withdraw(waits, Reason.of(Code.GROUP_CHANGED)),
        Gather(of.members, MISSING),
    ]


def test_a_gang_that_is_refused_leaves_the_queue_and_is_told_so() -> None:
    of = gang(fault=FAULT, missing=MISSING)
    waits = queued(gang(), only_submit(gang()))
    gathers = queued(gang(), only_submit(gang()), JobState.GATHERING, number=-1)
    changed = Reason.of(Code.GROUP_CHANGED)
    assert changes(of, waits) == [Withdraw(waits, changed), Refuse(of.members, FAULT)]
    assert changes(of, gathers) == [Withdraw(gathers, changed), Refuse(of.members, FAULT)]


def test_of_a_gang_that_runs_what_is_wrong_or_missing_is_told_to_nobody() -> None:
    runs = (kit.pod("x", node="n1"),)
    for wrong in ({"fault": FAULT}, {"missing": MISSING}):
        of = gang(members=(), placed=runs, **wrong)  # type: ignore[arg-type]
        assert changes(of, seated(of, runs)) == [Complete()]


def test_a_record_that_gathered_goes_when_nobody_waits_any_more() -> None:
    of = gang(members=())
    gathers = queued(of, only_submit(gang()), JobState.GATHERING, number=-1)
    assert changes(of, gathers) == [Complete(), Withdraw(gathers, Reason.of(Code.GROUP_CHANGED))]


# -- volumes, and seats that come free -----------------------------------------------------------------------


def test_while_a_part_of_a_gang_prepares_its_volumes_the_rest_is_not_submitted() -> None:
    first, second = kit.ranks(2)
    of = gang(members=(first, second), needed=2)
    assert changes(of, seated(of, (first,), phase=JobState.PREPARING)) == [Complete()]
    loose = gang(members=(first, second), needed=0)
    submit = only_submit(loose, seated(loose, (first,), phase=JobState.PREPARING))
    assert submit.request.pods == (second,)


def finished(of: Gang, *pods: Pod, **more: Any) -> PodSet:
    """A pod set of which these ended; one more pod of it runs."""
    made = seated(of, (kit.pod("stays", node="n1"), *pods), **more)
    for pod in pods:
        made.alive.discard(pod.metadata.uid)
        made.finished[pod.metadata.uid] = None
    return made


def _over(name: str, cpu: str = "1") -> Pod:
    return ended(bound(kit.pod(name, cpu=cpu), "n1"))


def test_a_new_member_takes_the_seat_of_one_that_ended() -> None:
    old, new = _over("old"), kit.pod("new")
    of = gang(members=(new,), placed=(kit.pod("stays", node="n1"),), needed=1)
    had = finished(of, old)
    done, free, submit = changes(of, had)
    assert (done, free) == (Complete(), FreeSeats(had, (old.metadata.uid,)))
    assert isinstance(submit, Submit) and submit.priority == IN_PLACE


def test_no_more_seats_come_free_than_members_wait() -> None:
    had = finished(gang(), _over("a"), _over("b"))
    of = gang(members=(kit.pod("new"),), needed=1)
    assert [each.pods for each in changes(of, had) if isinstance(each, FreeSeats)] == [("uid-default-a",)]
    assert not any(isinstance(each, FreeSeats) for each in changes(gang(members=()), had))


def test_seats_come_free_of_several_pod_sets_in_turn() -> None:
    one = finished(gang(), _over("a"))
    two = finished(gang(), _over("b"), _over("c"), key="default/g+b", number=8)
    of = gang(2, needed=2)
    found = [each for each in changes(of, one, two) if isinstance(each, FreeSeats)]
    assert found == [FreeSeats(one, ("uid-default-a",)), FreeSeats(two, ("uid-default-b",))]
    assert only_submit(of, one, two).priority == IN_PLACE


def test_seats_that_the_ledger_does_not_have_are_not_freed() -> None:
    of = gang(members=(kit.pod("new"),), needed=1)
    found = changes(of, finished(of, _over("old")), has_job=())
    assert [type(each) for each in found] == [Complete, Submit]
    assert found[1].priority == of.priority


def test_only_what_fits_into_the_seats_goes_before_others() -> None:
    small, large = kit.pod("small", cpu="1"), kit.pod("large", cpu="3")
    of = gang(members=(large, small), needed=0, priority=2)
    had = finished(of, _over("a", cpu="2"), _over("b", cpu="2"))
    submits = [(each.request.pods, each.priority) for each in changes(of, had) if isinstance(each, Submit)]
    assert submits == [((large,), 2), ((small,), IN_PLACE)]
    together = gang(members=(large, small), needed=2, priority=2)
    assert only_submit(together, had).priority == 2


def test_one_seat_is_for_one_new_member() -> None:
    of = gang(2, needed=0, priority=2)
    had = finished(of, _over("a"))
    priorities = [each.priority for each in changes(of, had) if isinstance(each, Submit)]
    assert priorities == [IN_PLACE, 2]


def test_who_waits_for_a_seat_that_came_free_keeps_its_precedence() -> None:
    new = kit.pod("new")
    of = gang(members=(new,), placed=(kit.pod("stays", node="n1"),), needed=0, priority=2)
    had = finished(of, _over("old"))
    waits = queued(of, only_submit(of, had), number=9)
    assert waits.job.priority == IN_PLACE
    had.finished.clear()  # its seat was freed
    assert changes(of, had, waits) == [Complete()]


# -- groups that have begun ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "begun"),
    [
        ({}, True),
        ({"needed": 1}, False),
        ({"placed": ()}, False),
        ({"group": None}, False),
        ({"group": kit.group("g", None)}, False),
        ({"group": kit.group("g", 1, is_scheduled=True)}, False),
    ],
    ids=["all", "some are needed", "none is placed", "no PodGroup", "no gang", "said before"],
)
def test_a_gang_has_begun_when_all_that_it_needs_is_on_nodes(more: dict[str, Any], begun: bool) -> None:
    runs = (kit.pod("x", node="n1"),)
    of = gang(**{"members": (), "placed": runs, "needed": 0, "group": kit.group("g", 1), **more})
    assert (Started() in changes(of, seated(of, runs))) is begun
