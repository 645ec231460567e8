"""Preemption in a simulation: who ends for whom, when, what is lost, and what the report says."""

from __future__ import annotations

from typing import Any

import pytest

from fluence import names
from fluence.errors import InvalidInput
from fluence.model.queue_documents import parse_tree
from fluence.sandbox.nodes import NodeKind, manifests
from fluence.schedule.settings import SchedulerSettings
from fluence.sim import live_cycle, report
from fluence.sim.cluster import EmbeddedCluster
from fluence.sim.live_cycle import Arrival, CycleSimulation, ManifestAnswer, ManifestWorkload, ask_what_if
from fluence.sim.measure import LIVE_CYCLE, Record, Run

CLASSES = [
    {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "urgent"},
        "value": 1000,
    }
]


def job(
    name: str, size: int, runs: int, *, urgent: bool = False, limit: int | None = None, **notes: str
) -> dict[str, Any]:
    """A gang of pods with one core each and 10 s of grace."""
    annotations = {
        f"{names.PREFIX}/group": name,
        f"{names.PREFIX}/group-size": str(size),
        "sandbox.fluence.flux-framework.org/run-seconds": str(runs),
        **({names.DURATION: f"{limit}s"} if limit else {}),
        **{f"{names.PREFIX}/{key}": value for key, value in notes.items()},
    }
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    spec: dict[str, Any] = {
        "schedulerName": "fluence",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 10,
        "containers": [container],
    }
    if urgent:
        spec["priorityClassName"] = "urgent"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "parallelism": size,
            "completions": size,
            "template": {"metadata": {"annotations": annotations}, "spec": spec},
        },
    }


def run(
    *arrivals: tuple[int, dict[str, Any]], cores: int = 4, queues: str = "", **settings: Any
) -> CycleSimulation:
    """Jobs that arrive at some seconds, on one node."""
    every = [Arrival(0, each, "class") for each in CLASSES]
    every += [Arrival(at * 1000, document, "job") for at, document in arrivals]
    tree = parse_tree(queues.encode(), source="queues") if queues else None
    nodes = manifests(NodeKind(count=1, cpu=cores))
    return live_cycle.simulate(
        ManifestWorkload(tuple(every), "test"), nodes, settings=SchedulerSettings(**settings), queues=tree
    )


def of(done: CycleSimulation, name: str) -> list[Record]:
    return [record for record in done.records if record.name.replace(":", "/").split("/")[-1] == name]


def queue(name: str, spec: str) -> str:
    header = f"apiVersion: {names.PREFIX}/v1alpha1\nkind: Queue\nmetadata: {{name: {name}}}\n"
    return f"{header}spec: {spec}\n---\n"


LOW, URGENT = job("low", 4, 600, limit=1200), job("urgent", 2, 100, urgent=True, limit=300)


def test_a_gang_ends_for_work_of_higher_priority_and_runs_again() -> None:
    done = run((0, LOW), (60, URGENT))
    first, second = of(done, "low")
    (urgent,) = of(done, "urgent")
    assert (urgent.start, urgent.end) == (70_000, 170_000), "after the grace period"
    assert (first.start, first.end, first.preempted) == (0, 70_000, True)
    assert (second.submit, second.start, second.end) == (60_000, 170_000, 770_000), "from the beginning"
    assert not second.preempted and second.broken == ""
    figures = done.preemption
    assert figures is not None
    assert (figures.jobs, figures.pods, figures.lost) == (1, 4, 70), "the whole cluster for 70 s"
    assert figures.waits["1000"].mean == 10 and list(figures.waits) == ["1000", "0"]


def test_a_held_job_is_suspended_again() -> None:
    held = job("held", 4, 600, limit=1200)
    held["metadata"] |= {"labels": {"fluxqueue.seen": "yes"}, "generation": 1}
    held["spec"]["suspend"] = True
    held["spec"]["template"]["metadata"]["labels"] = {"fluxqueue.seen": "yes"}
    del held["spec"]["template"]["metadata"]["annotations"][f"{names.PREFIX}/group"]
    del held["spec"]["template"]["metadata"]["annotations"][f"{names.PREFIX}/group-size"]
    done = run((0, held), (60, URGENT))
    first, second = of(done, "held")
    assert first.preempted and (second.start, second.end) == (170_000, 770_000)
    assert of(done, "urgent")[0].start == 70_000


def test_nothing_ends_where_preemption_is_off() -> None:
    done = run((0, LOW), (60, URGENT), preemption=False)
    assert [record.end for record in done.records] == [600_000, 700_000] and done.preemption is None


def test_only_the_work_since_a_checkpoint_is_lost() -> None:
    # The clock of a simulation begins on 15 January 2027, 8:00.
    done = run((0, job("low", 4, 600, limit=1200, checkpoint="2027-01-15T08:00:50Z")), (60, URGENT))
    assert done.preemption is not None and done.preemption.lost == 20


def test_with_patience_nothing_ends_that_ends_by_itself_in_time() -> None:
    patient = queue("default", "{preemption: {patience: 10m}}")
    done = run((0, job("low", 4, 500, limit=500)), (60, URGENT), queues=patient)
    assert not any(record.preempted for record in done.records)
    assert of(done, "urgent")[0].start == 500_000
    done = run((0, LOW), (60, URGENT), queues=patient)
    assert of(done, "urgent")[0].start == 70_000, "it would not have ended in time"


def test_a_guarantee_is_reclaimed() -> None:
    queues = queue("a", "{guaranteed: {cpu: 2}, preemption: {reclaim: any}}") + queue("b", "{}")
    loan = [(0, job(name, 2, 600, limit=900, queue="b")) for name in ("one", "two")]
    done = run(*loan, (60, job("own", 2, 100, limit=300, queue="a")), queues=queues)
    assert of(done, "own")[0].start == 70_000
    assert [len(of(done, name)) for name in ("one", "two")].count(2) == 1, "one of them ran twice"


def test_a_priority_class_must_be_there_before_its_pods() -> None:
    with pytest.raises(InvalidInput, match="there is no PriorityClass nightly"):
        lost = job("lost", 1, 10)
        lost["spec"]["template"]["spec"]["priorityClassName"] = "nightly"
        run((0, lost))


def test_the_report_says_what_was_ended() -> None:
    done = run((0, LOW), (60, URGENT))
    shown = Run("easy", done.records, done.capacity, "cpu", engine=LIVE_CYCLE, preemption=done.preemption)
    text = report.table([shown])
    assert "work lost, cluster-s" in text and "priority 1000" in text
    assert report.to_value([shown])["preemption"]["pods"] == 4
    quiet = run((0, LOW))
    shown = Run("easy", quiet.records, quiet.capacity, "cpu", preemption=quiet.preemption)
    assert "preemption" not in report.table([shown])


def asked(*arrivals: tuple[int, dict[str, Any]], about: dict[str, Any], queues: str = "") -> ManifestAnswer:
    """An answer about a job, 60 s after some others began."""
    cluster = EmbeddedCluster(manifests(NodeKind(count=1, cpu=4)))
    if queues:
        cluster.use_queues(parse_tree(queues.encode(), source="queues"))
    for document in (*CLASSES, *(each for _, each in arrivals)):
        cluster.apply(document)
    cluster.settle()
    cluster.advance(cluster.now + 60_000)
    return ask_what_if(cluster, [about])


def test_a_what_if_names_those_who_would_end_and_what_is_lost() -> None:
    answer = asked((0, LOW), about=URGENT)
    ((_, found),) = answer.jobs
    assert found.start == answer.now + 10_000 and not found.starts_now
    (end,) = found.ends
    assert (end.job, end.pods, end.at, end.lost, end.cost) == ("default/low", 4, answer.now, 60_000, 60)
    assert (
        "default/urgent: job default/low would end now (4 pods): 1 min of its work would be lost, 60 "
        "cluster-seconds"
    ) in answer.lines()
    value = answer.to_value()["jobs"][0]["preemption"]
    assert value["codes"] == ["Preempting"]
    assert value["ends"] == [
        {"job": "default/low", "pods": 4, "at": answer.now / 1000, "lost_s": 60, "cost_cluster_s": 60}
    ]


def test_a_what_if_says_why_nobody_would_end() -> None:
    patient = queue("default", "{preemption: {patience: 10m}}")
    answer = asked((0, job("low", 4, 500, limit=500)), about=URGENT, queues=patient)
    ((_, found),) = answer.jobs
    assert not found.ends and found.start == answer.now + 440_000
    (line,) = (each for each in answer.lines() if "preempt" in each)
    assert "It does not preempt: by the time limits of running work it starts at" in line
    assert "if 1 other were ended" in line or "if 1 other was ended" in line


def test_an_answer_ends_nobody() -> None:
    cluster = EmbeddedCluster(manifests(NodeKind(count=1, cpu=4)))
    for document in (*CLASSES, LOW):
        cluster.apply(document)
    cluster.settle()
    ask_what_if(cluster, [URGENT])
    assert not cluster.ended and not any(pod.metadata.deletion_timestamp for pod in cluster.pods.values())
