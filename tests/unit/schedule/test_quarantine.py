"""Who is left out, how much of it, for how long, and what the scheduler sees of it."""

from __future__ import annotations

import pytest

from fluence.model.pod import Pod
from fluence.schedule.step import Quarantine, Subject
from tests.unit.cluster.build import node
from tests.unit.schedule import kit

POD, GROUP, NODE = Subject("Pod", "default/a"), Subject("group", "g"), Subject("Node", "n1")
WAITS, RUNS = kit.pod("a"), kit.pod("a", node="n1")


def group_of(pod: Pod) -> str:
    return "g"


def shown(quarantine: Quarantine, pod: Pod) -> str | None:
    """The scheduler that a pod has as it is presented; None: it is not."""
    found = quarantine.presented(pod, POD, group_of)
    assert found is None or isinstance(found, Pod)
    return None if found is None else found.spec.scheduler_name


def test_nobody_is_left_out_at_first() -> None:
    quarantine = Quarantine()
    assert not quarantine and POD not in quarantine and not quarantine.is_left_out(POD)
    assert quarantine.next_due() is None and quarantine.take_due(1 << 50) == []
    assert quarantine.presented(WAITS, POD, group_of) is WAITS


@pytest.mark.parametrize("subject", [POD, GROUP])
def test_a_pod_or_a_group_is_left_out_in_steps(subject: Subject) -> None:
    quarantine = Quarantine()
    assert quarantine.add(subject, 0) and subject in quarantine
    assert (shown(quarantine, WAITS), shown(quarantine, RUNS)) == (None, "fluence")
    assert not quarantine.add(subject, 0), "it is not new"
    assert (shown(quarantine, WAITS), shown(quarantine, RUNS)) == (None, "quarantined")
    assert not quarantine.is_left_out(subject)
    quarantine.add(subject, 0)
    assert (shown(quarantine, WAITS), shown(quarantine, RUNS)) == (None, None)
    assert quarantine.is_left_out(subject)
    quarantine.add(subject, 0)
    assert quarantine.is_left_out(subject), "there is no more than all"


def test_a_pod_that_counts_only_on_its_node_is_else_what_it_was() -> None:
    quarantine = Quarantine()
    quarantine.add(POD, 0)
    quarantine.add(POD, 0)
    found = quarantine.presented(RUNS, POD, group_of)
    assert isinstance(found, Pod) and found.metadata == RUNS.metadata
    assert (found.spec.node_name, found.spec.containers) == ("n1", RUNS.spec.containers)


def test_the_graver_of_pod_and_group_counts() -> None:
    quarantine = Quarantine()
    for subject in (POD, GROUP, GROUP):
        quarantine.add(subject, 0)
    assert shown(quarantine, RUNS) == "quarantined"
    quarantine.add(POD, 0)
    quarantine.add(POD, 0)
    assert shown(quarantine, RUNS) is None


def test_pods_of_others_are_not_touched() -> None:
    quarantine = Quarantine()
    quarantine.add(Subject("Pod", "default/b"), 0)
    quarantine.add(Subject("group", "h"), 0)
    assert quarantine.presented(WAITS, POD, group_of) is WAITS


def test_other_objects_are_left_out_at_once_and_altogether() -> None:
    quarantine = Quarantine()
    quarantine.add(NODE, 0)
    assert quarantine.is_left_out(NODE)
    assert quarantine.presented(node("n1"), NODE, group_of) is None
    other = node("n2")
    assert quarantine.presented(other, Subject("Node", "n2"), group_of) is other


def test_the_pauses_double_up_to_ten_minutes() -> None:
    quarantine, now, pauses = Quarantine(), 0, []
    for _ in range(9):
        assert quarantine.add(POD, now)
        due = quarantine.next_due()
        assert due is not None
        pauses.append((due - now) // 1000)
        assert quarantine.take_due(due - 1) == [] and quarantine.take_due(due) == [POD]
        now = due
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600, 600]


def test_failing_once_more_while_left_out_does_not_prolong_the_pause() -> None:
    quarantine = Quarantine()
    quarantine.add(POD, 0)
    quarantine.add(POD, 5_000)
    assert quarantine.next_due() == 10_000


def test_whoever_is_let_out_begins_with_the_first_step_again() -> None:
    quarantine = Quarantine()
    for _ in range(3):
        quarantine.add(POD, 0)
    quarantine.take_due(10_000)
    assert not quarantine and quarantine.add(POD, 10_000)
    assert shown(quarantine, RUNS) == "fluence"


def test_those_whose_pause_is_over_are_let_out_and_no_others() -> None:
    quarantine = Quarantine()
    quarantine.add(POD, 0)
    quarantine.add(NODE, 1)
    assert quarantine.take_due(10_000) == [POD] and NODE in quarantine
    assert quarantine.next_due() == 10_001


def test_what_changed_waits_no_longer_than_the_first_pause() -> None:
    quarantine = Quarantine()
    quarantine.changed(POD, 0)
    assert not quarantine
    for now in (0, 10_000, 30_000):
        quarantine.add(POD, now)
        quarantine.take_due(now + 40_000)
    quarantine.add(POD, 100_000)
    assert quarantine.next_due() == 180_000
    quarantine.changed(POD, 110_000)
    assert quarantine.next_due() == 120_000
    quarantine.changed(POD, 115_000)
    assert quarantine.next_due() == 120_000, "nor does it wait longer for it"


def test_a_subject_says_its_kind_and_key() -> None:
    assert str(POD) == "Pod default/a"
