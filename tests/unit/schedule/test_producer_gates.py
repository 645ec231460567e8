"""Which gate opens when: what producers announce, how they end, and what is remembered on those who wait."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fluence import messages, names
from fluence.model.meta import Condition
from fluence.model.owner import Job, Owner
from fluence.model.pod import Pod, SchedulingGate
from fluence.model.reason import Code, Reason
from fluence.schedule.external_resources.gate_dependency import (
    DependencyKind,
    GateDependency,
    ProducerNote,
    aliases,
    dependency_of,
    producer_note,
    task_of,
)
from fluence.schedule.external_resources.producer_gates import (
    GateOutcome,
    KeepShut,
    NoteProducer,
    OpenGate,
    ProducerGates,
    decide,
)
from fluence.schedule.gangs.groups import Groups
from tests.unit.schedule import kit

GATE = "quantum.braket/ready"
NOW = 1_900_000_000_000
LIMIT = 300_000
SUBMIT = GateDependency("prod", GATE, DependencyKind.QUANTUM_SUBMIT)


def gated(name: str, *gates: str, **more: object) -> Pod:
    found = kit.pod(name, **more)  # type: ignore[arg-type]
    named = [SchedulingGate(name=each) for each in gates or (GATE,)]
    return replace(found, spec=replace(found.spec, scheduling_gates=named))


def consumer(name: str = "c0", *, note: ProducerNote | None = None, **notes: str) -> Pod:
    said = {f"{names.PREFIX}/{key.replace('_', '-')}": value for key, value in notes.items()}
    said.setdefault(names.DEPENDS_ON_PRODUCER, "prod")
    return gated(name, annotations=said | (note.annotation() if note is not None else {}))


def producer(phase: str = "Running", *, task: str = "", name: str = "prod", **more: object) -> Pod:
    notes = {names.QUANTUM_JOB_ID: task} if task else None
    return kit.pod(name, phase=phase, annotations=notes, **more)  # type: ignore[arg-type]


def judged(
    pod: Pod,
    producers: list[Pod],
    *,
    kind: DependencyKind = DependencyKind.QUANTUM_SUBMIT,
    has_more: Callable[[Pod], bool] = lambda _: False,
) -> object:
    wanted = GateDependency("prod", GATE, kind)
    found = decide(pod, wanted, producers, now=NOW, timeout=LIMIT, has_more=has_more)
    if isinstance(found, OpenGate):
        assert (found.pod, found.gate, found.producer) == (pod, GATE, "prod")
        return (found.outcome, found.task) if found.task is not None else found.outcome
    return found


SEEN = ProducerNote("uid-default-prod", NOW - 1_000)
LONG_AGO = ProducerNote("uid-default-prod", NOW - LIMIT)


# -- what a pod waits for ------------------------------------------------------------------------------------


def test_the_gate_and_the_kind_have_defaults() -> None:
    assert dependency_of(consumer()) == SUBMIT
    other = gated(
        "c",
        "example.org/a",
        "example.org/b",
        annotations={
            names.DEPENDS_ON_PRODUCER: "default/step-1",
            names.DEPENDS_ON_GATE: "example.org/b",
            names.DEPENDS_ON_KIND: "finished",
        },
    )
    assert dependency_of(other) == GateDependency("step-1", "example.org/b", DependencyKind.FINISHED)


def test_a_group_waits_for_the_group_of_its_producer() -> None:
    pod = gated("c", labels={kit.GROUP: "vqe"})
    assert dependency_of(pod) == GateDependency("vqe-producer", GATE, DependencyKind.QUANTUM_SUBMIT)
    assert dependency_of(gated("c", field="vqe")) == GateDependency(
        "vqe-producer", GATE, DependencyKind.QUANTUM_SUBMIT
    )


def test_gates_of_others_are_nobody_of_ours() -> None:
    assert dependency_of(kit.pod("c", annotations={names.DEPENDS_ON_PRODUCER: "prod"})) is None
    assert dependency_of(gated("c", "other/gate", annotations={names.DEPENDS_ON_PRODUCER: "prod"})) is None
    assert dependency_of(gated("c")) is None  # nothing says whom it waits for


def test_what_is_said_wrongly_is_told() -> None:
    kind = dependency_of(consumer(depends_on_kind="finnished"))
    assert isinstance(kind, Reason) and kind.code is Code.UNKNOWN_DEPENDENCY
    assert messages.text(kind) == (
        "Annotation fluence.flux-framework.org/depends-on-kind='finnished' is invalid: "
        "use one of quantum-submit, started, finished"
    )
    foreign = dependency_of(consumer(depends_on_producer="other/prod"))
    assert isinstance(foreign, Reason) and foreign.code is Code.FOREIGN_PRODUCER


@pytest.mark.parametrize("gate", ["kueue.x-k8s.io/admission", "k8s.io/x", "fluxqueue", "a.kubernetes.io/b"])
def test_nobody_gets_past_the_gate_of_another_controller(gate: str) -> None:
    notes = {names.DEPENDS_ON_PRODUCER: "prod", names.DEPENDS_ON_GATE: gate}
    pod = gated("c", gate, annotations=notes)
    found = dependency_of(pod)
    assert isinstance(found, Reason) and found.code is Code.GATE_OF_OTHERS
    world = World()
    world.put(producer(task="t"), pod)
    assert world.outcomes() == []


@pytest.mark.parametrize("gate", ["example.org/k8s.io", "notk8s.io/x", "mine"])
def test_a_gate_of_ones_own_may_have_any_name(gate: str) -> None:
    notes = {names.DEPENDS_ON_PRODUCER: "prod", names.DEPENDS_ON_GATE: gate}
    assert isinstance(dependency_of(gated("c", gate, annotations=notes)), GateDependency)


def test_a_pod_is_known_by_its_name_its_groups_and_its_owner() -> None:
    job = kit.owner("train", parallelism=2)
    pod = kit.pod("train-x1", labels={kit.GROUP: "g"}, field="pg", owner=job)
    assert aliases(pod) == {"train-x1", "g", "pg", "train"}


@pytest.mark.parametrize("text", ["", " ", "a\nb", "x" * 1025, "a\x00"])
def test_what_no_vendor_gives_out_is_no_task(text: str) -> None:
    assert task_of(producer(task=text)) is None
    assert task_of(producer(task=" arn:task/1 ")) == "arn:task/1"


def test_a_note_is_read_as_it_was_written_and_not_from_the_future() -> None:
    assert producer_note(consumer(note=SEEN), NOW) == SEEN
    assert producer_note(consumer(note=ProducerNote("u", NOW + 1)), NOW) is None
    for text in ("", "u", "u 2026", "u 2026-01-01T00:00:00", " 2026-01-01T00:00:00Z", "u 99999-01-01"):
        assert producer_note(consumer(producer_started=text), NOW) is None


# -- a producer that submits a task --------------------------------------------------------------------------


def test_a_gate_opens_with_the_task_that_is_announced() -> None:
    assert judged(consumer(), [producer(task="t1")]) == (GateOutcome.ANNOUNCED, "t1")
    assert judged(consumer(), [producer("Succeeded", task="t1")]) == (GateOutcome.ANNOUNCED, "t1")


def test_a_producer_that_is_not_there_or_has_not_begun_is_waited_for() -> None:
    assert judged(consumer(), []) == KeepShut()
    assert judged(consumer(), [producer("Pending")]) == KeepShut()


def test_one_that_runs_is_noted_then_its_time_counts() -> None:
    first = judged(consumer(), [producer()])
    assert first == NoteProducer(consumer(), ProducerNote("uid-default-prod", NOW))
    assert judged(consumer(note=SEEN), [producer()]) == KeepShut(SEEN.at + LIMIT)
    assert judged(consumer(note=LONG_AGO), [producer()]) is GateOutcome.TIMED_OUT


def test_another_try_of_the_producer_has_a_time_of_its_own() -> None:
    pod = consumer(note=LONG_AGO)
    again = producer(uid="again", name="prod-2")
    found = judged(pod, [producer("Failed"), again])
    assert found == NoteProducer(pod, ProducerNote("again", NOW))


def test_one_that_ended_in_silence_lets_all_go_at_once() -> None:
    assert judged(consumer(), [producer("Succeeded")]) is GateOutcome.PRODUCER_ENDED
    assert judged(consumer(), [producer("Failed")]) is GateOutcome.PRODUCER_ENDED


def test_one_that_failed_and_is_tried_again_is_waited_for() -> None:
    assert judged(consumer(), [producer("Failed")], has_more=lambda _: True) == KeepShut()
    assert judged(consumer(), [producer("Succeeded")], has_more=lambda _: True) is GateOutcome.PRODUCER_ENDED


def test_one_that_was_seen_and_is_gone_lets_all_go() -> None:
    assert judged(consumer(note=SEEN), []) is GateOutcome.PRODUCER_GONE


def test_the_task_of_a_failed_producer_counts_when_no_other_lives() -> None:
    failed = producer("Failed", task="old")
    assert judged(consumer(), [failed]) == (GateOutcome.ANNOUNCED, "old")
    assert judged(consumer(), [failed, producer("Pending", name="p2")]) == KeepShut()
    newer = producer(task="new", name="p2", age=-5)
    assert judged(consumer(), [failed, newer]) == (GateOutcome.ANNOUNCED, "new")


# -- classical producers -------------------------------------------------------------------------------------


def test_started_means_that_all_of_them_run() -> None:
    kind = DependencyKind.STARTED
    two = [producer(), producer("Pending", name="p2")]
    assert isinstance(judged(consumer(), two, kind=kind), NoteProducer)
    assert judged(consumer(), [two[0], producer("Succeeded", name="p2")], kind=kind) is GateOutcome.STARTED
    assert judged(consumer(), [producer("Pending")], kind=kind) == KeepShut()
    assert judged(consumer(), [], kind=kind) == KeepShut()


def test_finished_means_that_none_lives_and_none_will_follow() -> None:
    kind = DependencyKind.FINISHED
    done = [producer("Succeeded"), producer("Failed", name="p2")]
    assert judged(consumer(), done, kind=kind) is GateOutcome.FINISHED
    assert judged(consumer(), done, kind=kind, has_more=lambda _: True) == KeepShut()
    assert (
        judged(consumer(note=LONG_AGO), [*done, producer(name="p3", uid=SEEN.uid)], kind=kind) == KeepShut()
    )
    assert judged(consumer(note=LONG_AGO), [], kind=kind) is GateOutcome.PRODUCER_GONE


# -- the registry --------------------------------------------------------------------------------------------


class World:
    """What a scheduler would feed it."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.owners: dict[str, Owner] = {}
        self.asked = 0
        self.gates = ProducerGates(
            scheduler="fluence", timeout=LIMIT, pods_in=self._pods_in, owner=self.owners.get
        )

    def _pods_in(self, namespace: str) -> list[Pod]:
        self.asked += 1
        return [pod for pod in self.pods.values() if pod.metadata.namespace == namespace]

    def put(self, *pods: Pod) -> None:
        for pod in pods:
            self.pods[pod.key] = pod
            self.gates.set_pod(pod)

    def outcomes(self, now: int = NOW) -> list[tuple[str, str]]:
        found = []
        for order in self.gates.round(now):
            kind = order.outcome.value if isinstance(order, OpenGate) else "note"
            found.append((order.pod.metadata.name, kind))
        return found


def test_a_producer_that_was_there_before_is_found() -> None:
    world = World()
    world.put(*(kit.pod(f"other-{each}") for each in range(3)), producer(task="t"))
    assert world.asked == 0  # nobody waits: nothing is looked at
    world.put(consumer("c0"), consumer("c1"))
    assert world.outcomes() == [("c0", "announced"), ("c1", "announced")]
    assert world.asked == 1


def test_orders_are_given_again_while_they_have_no_effect() -> None:
    world = World()
    world.put(consumer(), producer(task="t"))
    assert world.outcomes(NOW) == [("c0", "announced")]
    assert world.outcomes(NOW + 4_999) == []
    assert world.gates.next_due() == NOW + 5_000
    assert world.outcomes(NOW + 5_000) == [("c0", "announced")]
    assert world.outcomes(NOW + 14_999) == []
    assert world.outcomes(NOW + 15_000) == [("c0", "announced")]
    opened = kit.pod("c0", annotations=dict(consumer().annotations))
    world.put(opened)
    assert world.outcomes(NOW + 10**7) == [] and world.gates.next_due() is None


def test_a_note_does_not_delay_the_opening_that_follows() -> None:
    world = World()
    world.put(consumer(), producer())
    assert world.outcomes() == [("c0", "note")]
    world.put(producer(task="t"))
    assert world.outcomes() == [("c0", "announced")]


def test_time_runs_out_without_any_event() -> None:
    world = World()
    world.put(consumer(note=SEEN), producer())
    assert world.outcomes() == []
    assert world.gates.next_due() == SEEN.at + LIMIT
    assert world.outcomes(SEEN.at + LIMIT) == [("c0", "timed-out")]


def test_pods_of_other_schedulers_and_namespaces_are_left_alone() -> None:
    world = World()
    world.put(producer(task="t"), replace(consumer(), spec=replace(consumer().spec, scheduler_name="other")))
    elsewhere = consumer("c1")
    world.put(replace(elsewhere, metadata=replace(elsewhere.metadata, namespace="elsewhere")))
    assert world.outcomes() == []


def test_consumers_are_no_producers_of_their_own() -> None:
    world = World()
    pods = [gated(f"c{each}", labels={kit.GROUP: "g"}, annotations={names.DEPENDS_ON_PRODUCER: "g"})
            for each in range(2)]  # fmt: skip
    world.put(*pods)
    assert world.outcomes() == []
    world.put(kit.pod("p", labels={kit.GROUP: "g"}, phase="Running", annotations={names.QUANTUM_JOB_ID: "t"}))
    assert world.outcomes() == [("c0", "announced"), ("c1", "announced")]


def test_a_job_that_is_not_done_may_make_another_producer() -> None:
    world = World()
    job = kit.owner("prod", parallelism=1)
    world.owners[job.identity] = job
    world.put(consumer(depends_on_kind="finished"), producer("Failed", name="prod-x", owner=job))
    assert world.outcomes() == []
    done = replace(job, status=replace(job.status, conditions=[Condition(type="Failed", status="True")]))
    assert isinstance(done, Job) and done.is_finished
    world.owners[job.identity] = done
    world.gates.owner_changed(done)
    assert world.outcomes() == [("c0", "finished")]


def test_one_consumer_that_changes_is_looked_at_alone() -> None:
    world = World()
    world.put(producer(), *(consumer(f"c{each}", note=SEEN) for each in range(50)))
    assert world.outcomes() == []
    world.put(consumer("c7"))
    assert world.outcomes() == [("c7", "note")]


# -- what users are told -------------------------------------------------------------------------------------


def test_a_gang_that_waits_for_a_producer_says_so() -> None:
    groups = Groups()
    for each in range(2):
        groups.set_pod(gated(f"c{each}", labels={kit.GROUP: "g"}, annotations={kit.SIZE: "2"}))
    gang = groups.gang("default/g")
    assert gang is not None and gang.missing is not None
    assert messages.text(gang.missing) == "2 of 2 pods wait for producer g-producer to announce its task"


def test_gates_that_are_not_ours_are_told_as_before() -> None:
    groups = Groups()
    groups.set_pod(gated("c", "other/gate"))
    gang = groups.gang("default/pod:c")
    assert gang is not None and gang.missing == Reason.of(Code.PODS_GATED, gated=1, pods=1)
