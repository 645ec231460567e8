"""Bugs that other schedulers had with queues, shares and preemption: for each the test that excludes it here,
or why it cannot happen.

K is Kueue, V Volcano, KAI, YUNIKORN, S Slurm, KP Karpenter; the numbers are those of their issues.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.node import Taint
from fluence.model.pod import Pod
from tests.unit.schedule.preempting import PreemptionWorld, gang, prioritised

ROOT = Path(__file__).parents[3]
LOW, HIGH = 1, 1000


class Bug(NamedTuple):
    """``tests``: as file and name, below `tests`. ``reason``: why there is none."""

    issues: str
    what: str
    tests: tuple[str, ...] = ()
    reason: str = ""


_PREEMPTION = "unit/schedule/test_preemption.py"
_QUEUES = "unit/schedule/test_preemption_queues.py"
_MACHINE = "property/test_preemption_machine.py"
_CLUSTER = "unit/schedule/test_cluster_queues.py"
_SHARE = "property/test_fair_share.py"
_HERE = "unit/schedule/test_bugs_of_peers.py"
_NO_SLICES = "a gang has one record and one size: there are no slices that replace each other"

BUGS = [
    Bug(
        "K #3779",
        "what was evicted comes first again",
        (
            f"{_PREEMPTION} test_a_gang_that_its_user_put_back_ends_nobody_that_would_come_before_it_again",
            f"{_QUEUES} test_what_was_reclaimed_is_not_ended_by_priority_again",
        ),
    ),
    Bug(
        "K #14543",
        "rights not judged on the final set",
        (f"{_QUEUES} test_no_queue_is_left_below_its_own_by_a_gang",),
    ),
    Bug(
        "K #7101",
        "one workload evicted again and again",
        (f"{_MACHINE} nobody_ends_for_nothing_and_not_for_ever",),
    ),
    Bug(
        "K #13797",
        "others take what is freed early",
        (f"{_PREEMPTION} test_lower_and_equal_work_cannot_take_the_seats",),
    ),
    Bug(
        "K #10131",
        "more evicted than needed",
        (f"{_PREEMPTION} test_no_more_end_than_must", f"{_MACHINE} _is_minimal"),
    ),
    Bug(
        "K #15211",
        "what is ending is not counted on",
        (f"{_PREEMPTION} test_pods_that_are_ending_are_counted_on_first",),
    ),
    Bug(
        "K #9641",
        "evicted twice",
        (f"{_PREEMPTION} test_strictly_higher_work_takes_them_and_nobody_ends_twice",),
    ),
    Bug(
        "K #7665, #11647",
        "a failed eviction blocks for ever",
        (
            f"{_PREEMPTION} test_an_order_without_an_effect_is_given_again",
            f"{_PREEMPTION} test_a_pod_that_never_ends_is_given_up",
        ),
    ),
    Bug(
        "K #6619",
        "no reclaim from one that may borrow much",
        (f"{_HERE} test_what_may_be_borrowed_protects_nothing",),
    ),
    Bug(
        "K #4962", "weight 0 loses work within its guarantee", (f"{_HERE} test_weight_0_keeps_its_guarantee",)
    ),
    Bug("K #13896", "an eviction outranks a fit", (f"{_HERE} test_nobody_ends_while_there_is_a_free_node",)),
    Bug(
        "V #4926, #5011, #5026",
        "evicted for what cannot be placed",
        (f"{_PREEMPTION} test_nobody_ends_for_a_gang_that_would_not_fit_anyway",),
    ),
    Bug(
        "V #4947, #561", "the share of what was evicted makes it first", (f"{_HERE} test_shares_end_nobody",)
    ),
    Bug(
        "V #5994",
        "the whole surplus evicted for one pod",
        (f"{_PREEMPTION} test_only_the_surplus_that_is_needed_ends",),
    ),
    Bug(
        "V #5520",
        "nodes that are freed anyway are skipped",
        (f"{_PREEMPTION} test_pods_that_are_ending_are_counted_on_first",),
    ),
    Bug(
        "V #394",
        "killed pods count as succeeded",
        (f"{_HERE} test_pods_that_were_ended_are_no_members_that_succeeded",),
    ),
    Bug(
        "KAI #2115, #964",
        "filters see different futures",
        (f"{_PREEMPTION} test_anti_affinity_of_the_victim", f"{_PREEMPTION} test_host_ports"),
    ),
    Bug("KAI #1579", "budgets bypassed", (f"{_PREEMPTION} test_it_is_counted_over_all_victims_together",)),
    Bug(
        "KAI #1750, YUNIKORN-3463",
        "an unfit candidate ends the search",
        (f"{_PREEMPTION} test_others_end_where_a_budget_protects_some",),
    ),
    Bug("YUNIKORN-2699", "acts on another list than was decided", (f"{_MACHINE} step",)),
    Bug(
        "YUNIKORN-1988, -1951",
        "queues below their guarantee, or without one",
        (
            f"{_QUEUES} test_no_queue_is_left_below_its_own",
            f"{_HERE} test_a_queue_without_a_guarantee_reclaims_nothing",
        ),
    ),
    Bug("S PR 203", "a plan under way is made again", (f"{_QUEUES} test_a_restart_plans_the_same_end",)),
    Bug("k8s #106780", "nominatedNodeName never cleared", (f"{_MACHINE} nominations_are_earmarks",)),
    Bug("K #13481", "weight 0 comes first", (f"{_SHARE} test_ranks_are_a_total_order_and_weight_0_is_last",)),
    Bug(
        "K #13761, #12671",
        "small usage is truncated",
        (f"{_SHARE} test_decay_is_exact_however_often_it_is_looked_at",),
    ),
    Bug(
        "K #12697, #12786, #13851, #14153",
        "penalties lost or doubled",
        reason="there are no penalties: ranks follow from usage, which counts running work ahead",
    ),
    Bug("K #13214", "deleting a queue hangs", (f"{_CLUSTER} test_a_queue_is_deleted_while_its_jobs_run",)),
    Bug("K #11195, #11198, #12931", "quota leaks with slices", reason=_NO_SLICES),
    Bug("K #12766, #13044", "scaling below what succeeded", reason=_NO_SLICES),
    Bug("K #13071", "replaces work of another namespace", reason=_NO_SLICES),
    Bug(
        "K #13914",
        "starts while it ends",
        (f"{_PREEMPTION} test_a_victims_replacement_does_not_take_its_seat_back",),
    ),
    Bug(
        "K #12419",
        "placements of one cycle conflict",
        (f"{_HERE} test_two_that_preempt_in_one_cycle_get_seats_of_their_own",),
    ),
    Bug(
        "K #14646",
        "a seat claimed twice in one cycle",
        (f"{_HERE} test_two_that_preempt_in_one_cycle_get_seats_of_their_own",),
    ),
    Bug(
        "K #13223, #12807, #10478",
        "sizes of slices that do not divide",
        reason="topology has no slices: a gang asks for one domain of one level",
    ),
    Bug(
        "K #14232, #14451",
        "equal names at two levels",
        reason="a domain is a value of one label, not a path of names",
    ),
    Bug("K #13772, #13656, #13822", "what helps wakes nobody", (f"{_HERE} test_a_taint_that_goes_wakes",)),
    Bug("K #13766", "a leader's seat makes workers unplaceable", ("property/test_gang_fit.py *",)),
    Bug("K (LWS size)", "usage does not follow pods", ("property/test_live_quotas.py *",)),
    Bug(
        "KP #742",
        "pods that wait for quota buy nodes",
        (f"{_CLUSTER} test_a_job_beyond_the_limit_waits_with_the_reason_and_starts_when_quota_is_free",),
    ),
]


@cache
def _functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_all_are_there() -> None:
    assert len(BUGS) == 39


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.issues)
def test_each_has_a_test_that_exists_or_a_reason(bug: Bug) -> None:
    assert bool(bug.tests) != bool(bug.reason)
    for test in bug.tests:
        path, _, name = test.partition(" ")
        assert name in _functions(path) or (name == "*" and _functions(path)), test


# -- those that have no test elsewhere -----------------------------------------------------------------------


def of(name: str, queue: str, priority: int = LOW, **more: Any) -> Pod:
    return prioritised(name, priority, annotations={names.QUEUE: queue}, **more)


def full(nodes: int, *pods: Pod, **queues: dict[str, Any]) -> PreemptionWorld:
    world = PreemptionWorld(nodes, 1)
    if queues:
        world.use(default={}, **queues)
    for pod in pods:
        world.add(pod)
        world.settle(1)
    assert world.running == {pod.metadata.name for pod in pods}
    return world


RECLAIM = {"guaranteed": {"cpu": 2}, "preemption": {"reclaim": "any"}}


def test_what_may_be_borrowed_protects_nothing() -> None:
    big: dict[str, Any] = {"limit": {"cpu": 1000}}
    work = [of(f"b-{i}", "b") for i in range(4)]
    world = full(4, *work, a=RECLAIM, big=big, b={"parent": "big", "limit": {"cpu": 1000}})
    world.add(of("a-0", "a"), of("a-1", "a"))
    world.settle(100)
    assert len(world.deleted) == 2 and {"a-0", "a-1"} <= world.running


def test_weight_0_keeps_its_guarantee() -> None:
    work = [of(f"b-{i}", "b") for i in range(2)]
    world = full(2, *work, a=RECLAIM, b={"weight": 0, "guaranteed": {"cpu": 2}})
    world.add(of("a-0", "a"))
    world.settle(100)
    assert world.deleted == []


def test_nobody_ends_while_there_is_a_free_node() -> None:
    world = full(2, prioritised("low", LOW))
    world.add(prioritised("high", HIGH))
    world.settle(100)
    assert world.deleted == [] and world.running == {"low", "high"}


def test_shares_end_nobody() -> None:
    """One that used much runs, and one that used nothing waits: that orders them, and ends nobody."""
    world = full(1, of("b", "b"), a={"weight": 100}, b={"weight": 1})
    world.settle(10_000)
    world.add(of("a", "a"))
    world.settle(1000)
    assert world.deleted == [] and world.running == {"b"}


def test_pods_that_were_ended_are_no_members_that_succeeded() -> None:
    world = PreemptionWorld(2, 1)
    world.add(*gang("low", 2, LOW))
    world.settle(1)
    world.add(prioritised("high", HIGH))
    world.settle(1)
    assert sorted(world.deleted) == ["low-0", "low-1"]
    for name in ("low-0", "low-1"):
        pod = world.pods[name]
        world.add(replace(pod, status=replace(pod.status, phase="Succeeded")))
    world.settle(40)
    assert world.running == {"high"}
    world.remove("high")
    first, second = gang("low", 4, LOW, minimum=2)[2:]
    world.add(first)
    world.settle(30)
    assert world.running == set()
    world.add(second)
    world.settle(30)
    assert world.running == {"low-2", "low-3"}


def test_a_queue_without_a_guarantee_reclaims_nothing() -> None:
    world = full(1, of("b", "b"), a={"preemption": {"reclaim": "any"}}, b={})
    world.add(of("a", "a", HIGH))
    world.settle(100)
    assert world.deleted == []


def test_two_that_preempt_in_one_cycle_get_seats_of_their_own() -> None:
    world = full(2, prioritised("low-0", LOW), prioritised("low-1", LOW))
    world.add(prioritised("high-0", HIGH), prioritised("high-1", HIGH))
    decisions = world.step()
    assert {pod.metadata.name for order in decisions.preemptions for pod in order.pods} == {"low-0", "low-1"}
    world.settle(60)
    assert world.running == {"high-0", "high-1"} and sorted(world.deleted) == ["low-0", "low-1"]


def test_a_taint_that_goes_wakes() -> None:
    world = full(1, prioritised("low", LOW))
    untainted = world.nodes[0]
    taint = Taint(key="maintenance", effect="NoSchedule")
    world.set_node(replace(untainted, spec=replace(untainted.spec, taints=[taint])))
    world.add(prioritised("high", HIGH))
    world.settle(100)
    assert world.deleted == []
    world.set_node(untainted)
    world.settle(60)
    assert world.deleted == ["low"] and world.running == {"high"}
