"""What pods say of their jobs: written with the binding, read after a restart, and never trusted."""

from __future__ import annotations

from typing import Any

import pytest

from fluence import names
from fluence.model.pod import Pod
from fluence.schedule.events import BindOutcome, BindResult
from fluence.schedule.gangs.annotations import gang_annotations
from fluence.schedule.restart import annotations_for, excluded_note, job_of, running
from tests.unit.cluster.build import node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NOW = int(kit.T0.timestamp() * 1000)
FALLBACK = 99


def pod(name: str, said: dict[str, str] | None = None, **more: Any) -> Pod:
    return kit.pod(name, node="n1", annotations=said, **more)


@pytest.mark.parametrize("end", [None, NOW + 1000])
def test_what_a_binding_says_is_read_again(end: int | None) -> None:
    said = annotations_for(7, NOW - 5000, end)
    one, two = pod("a", said), pod("b", said)
    (found,) = running([one, two], FALLBACK, now=NOW, limit=60_000)
    assert (found.number, found.pods, found.start, found.end) == (7, (one, two), NOW - 5000, end)


def test_pods_that_were_started_apart_are_two_jobs() -> None:
    pods = [
        pod("a", annotations_for(7, NOW, None)),
        pod("b", annotations_for(8, NOW, None)),
        pod("c", annotations_for(7, NOW, None)),
    ]
    found = running(pods, FALLBACK, now=NOW, limit=None)
    assert [(each.number, [pod.metadata.name for pod in each.pods]) for each in found] == [
        (7, ["a", "c"]),
        (8, ["b"]),
    ]


def test_pods_that_say_nothing_are_one_job_from_the_first_of_their_bindings() -> None:
    pods = [pod("a", bound=10), pod("b", bound=30)]
    (found,) = running(pods, FALLBACK, now=NOW, limit=60_000)
    assert (found.number, found.start, found.end) == (FALLBACK, NOW - 30_000, NOW + 30_000)
    (endless,) = running(pods, FALLBACK, now=NOW, limit=None)
    assert endless.end is None


def test_a_pod_that_nobody_saw_bound_runs_since_now() -> None:
    (found,) = running([pod("a")], FALLBACK, now=NOW, limit=1000)
    assert (found.start, found.end) == (NOW, NOW + 1000)


def test_one_pod_of_a_job_is_enough_to_say_its_times() -> None:
    said = annotations_for(7, NOW - 5, NOW + 5)
    (found,) = running([pod("a", {names.JOBID: "7"}), pod("b", said)], FALLBACK, now=NOW, limit=None)
    assert (found.start, found.end) == (NOW - 5, NOW + 5)


def test_no_job_starts_in_the_future() -> None:
    (found,) = running([pod("a", annotations_for(7, NOW + 50, None))], FALLBACK, now=NOW, limit=None)
    assert found.start == NOW


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1.5", " 7", "٣", "1" * 20, str(1 << 62), "9" * 19])
def test_a_job_number_that_is_nonsense_is_not_read(text: str) -> None:
    assert job_of({names.JOBID: text}, FALLBACK) == FALLBACK
    assert job_of({}, FALLBACK) == FALLBACK


def test_every_job_number_that_can_be_is_read() -> None:
    assert job_of({names.JOBID: "1"}, FALLBACK) == 1
    assert job_of({names.JOBID: str((1 << 62) - 1)}, FALLBACK) == (1 << 62) - 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"start":"x"}',
        '{"start":1.5}',
        '{"start":-1}',
        '{"start":5,"end":5}',
        '{"start":5,"end":4}',
        f'{{"start":{1 << 49}}}',
        f'{{"start":1,"end":{1 << 49}}}',
        '{"start":1' + "0" * 400 + "}",
    ],
)
def test_times_that_are_nonsense_are_not_read(text: str) -> None:
    said = {names.JOBID: "7", names.ALLOCATION: text}
    (found,) = running([pod("a", said, bound=10)], FALLBACK, now=NOW, limit=60_000)
    assert (found.number, found.start, found.end) == (7, NOW - 10_000, NOW + 50_000)


def excluded(note: dict[str, str]) -> frozenset[str]:
    """What a gang whose pod says this must not have: that is how a restart reads it."""
    found = gang_annotations([kit.pod("a", annotations=note)], [], None)
    assert found.fault is None
    return found.excluded


def test_excluded_nodes_are_read_again() -> None:
    note = excluded_note({"n2", "n1"})
    assert note == {names.EXCLUDED: "n1,n2"} and excluded(note) == {"n1", "n2"}


def test_nothing_is_written_where_nothing_is_excluded() -> None:
    assert excluded_note(()) == {} and excluded({}) == frozenset()


def test_no_more_excluded_nodes_are_written_than_are_read() -> None:
    many = [f"n{i:05}" for i in range(1500)]
    note = excluded_note(many)
    assert note[names.EXCLUDED].split(",") == many[:1000] and excluded(note) == set(many[:1000])


def test_a_restart_does_not_try_a_node_that_was_refused() -> None:
    first = Driver()
    for name in ("n1", "n2"):
        first.set_node(node(name))
    first.set_pod(kit.pod("a"))
    ((bind,),) = first.cycle(NOW).binds
    first.told(BindResult(bind, BindOutcome.IMPOSSIBLE), NOW)
    ((again,),) = first.cycle(NOW).binds
    second = Driver()
    second.set_node(node(bind.node))
    second.set_pod(kit.pod("a", annotations={names.EXCLUDED: again.annotations[names.EXCLUDED]}))
    assert second.cycle(NOW).binds == []
    second.set_node(node(again.node))
    assert [bind.node for (bind,) in second.cycle(NOW).binds] == [again.node]
