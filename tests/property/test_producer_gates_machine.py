"""Whole histories of producers and those who wait for them: orders are lost, processes are replaced."""

from datetime import UTC, datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from fluence import names
from fluence.act.orders import gate_patch
from fluence.model.meta import ObjectMeta
from fluence.model.pod import Pod, PodSpec, PodStatus, SchedulingGate
from fluence.schedule.external_resources.producer_gates import (
    GateOrder,
    GateOutcome,
    NoteProducer,
    OpenGate,
    ProducerGates,
)

GATE, OTHER = "quantum.braket/ready", "somebody/else"
LIMIT = 300_000
BEGIN = 1_900_000_000_000
KINDS = ("quantum-submit", "started", "finished")
PRODUCERS = st.sampled_from(["p", "q"])
CONSUMERS = st.integers(0, 3)


def carried_out(pod: Pod, order: GateOrder) -> Pod:
    """What the server makes of the patch."""
    patch = gate_patch(order)
    meta = patch["metadata"]
    assert isinstance(meta, dict) and meta["uid"] == pod.metadata.uid
    gates = pod.spec.scheduling_gates or []
    if isinstance(order, OpenGate):
        assert patch["spec"] == {"schedulingGates": [{"$patch": "delete", "name": order.gate}]}
        gates = [each for each in gates if each.name != order.gate]
    notes = {**pod.annotations, **meta["annotations"]}
    return replace(
        pod,
        metadata=replace(pod.metadata, annotations=notes),
        spec=replace(pod.spec, scheduling_gates=gates or None),
    )


class Machine(RuleBasedStateMachine):
    """One namespace: up to two producers at a time, four consumers."""

    def __init__(self) -> None:
        super().__init__()
        self.now = BEGIN
        self.made = 0
        self.pods: dict[str, Pod] = {}
        self.ran_since: dict[str, int] = {}  # by uid of a producer
        self.gates = self.fresh()

    def fresh(self) -> ProducerGates:
        return ProducerGates(
            scheduler="fluence",
            timeout=LIMIT,
            pods_in=lambda _: list(self.pods.values()),
            owner=lambda _: None,
        )

    @initialize(
        kinds=st.lists(st.sampled_from(KINDS), min_size=4, max_size=4),
        wanted=st.lists(PRODUCERS, min_size=4, max_size=4),
    )
    def consumers(self, kinds: list[str], wanted: list[str]) -> None:
        for number, (kind, producer) in enumerate(zip(kinds, wanted, strict=True)):
            notes = {names.DEPENDS_ON_PRODUCER: producer, names.DEPENDS_ON_KIND: kind}
            self.put(self.pod(f"c{number}", annotations=notes, gates=(OTHER, GATE)))

    def pod(self, name: str, *, annotations: dict[str, str], gates: tuple[str, ...] = ()) -> Pod:
        self.made += 1
        born = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self.now)
        return Pod(
            metadata=ObjectMeta(
                name=name,
                namespace="ns",
                uid=f"u{self.made}",
                annotations=annotations,
                creation_timestamp=born,
            ),
            spec=PodSpec(
                scheduler_name="fluence",
                scheduling_gates=[SchedulingGate(name=each) for each in gates] or None,
            ),
            status=PodStatus(phase="Pending"),
        )

    def put(self, pod: Pod) -> None:
        self.pods[pod.metadata.name] = pod
        self.gates.set_pod(pod)

    # -- what happens ----------------------------------------------------------------------------------------

    @rule(name=PRODUCERS)
    def create(self, name: str) -> None:
        if name not in self.pods:
            self.put(self.pod(name, annotations={}))

    @rule(name=PRODUCERS, phase=st.sampled_from(["Running", "Succeeded", "Failed"]))
    def becomes(self, name: str, phase: str) -> None:
        pod = self.pods.get(name)
        if pod is None or pod.is_terminal:
            return
        if phase == "Running":
            self.ran_since.setdefault(pod.metadata.uid, self.now)
        self.put(replace(pod, status=replace(pod.status, phase=phase)))

    @rule(name=PRODUCERS)
    def announces(self, name: str) -> None:
        pod = self.pods.get(name)
        if pod is not None and pod.status.phase == "Running":
            notes = {**pod.annotations, names.QUANTUM_JOB_ID: f"task-of-{pod.metadata.uid}"}
            self.put(replace(pod, metadata=replace(pod.metadata, annotations=notes)))

    @rule(name=PRODUCERS)
    def deletes(self, name: str) -> None:
        pod = self.pods.pop(name, None)
        if pod is not None:
            self.gates.remove_pod(pod)

    @rule(seconds=st.integers(1, 400))
    def passes(self, seconds: int) -> None:
        self.now += seconds * 1000

    @rule()
    def is_replaced(self) -> None:
        """A fresh process sees the pods, and nothing else."""
        self.gates = self.fresh()
        for pod in list(self.pods.values()):
            self.gates.set_pod(pod)

    @rule(lost=st.booleans())
    def cycle(self, lost: bool) -> None:
        for order in list(self.gates.round(self.now)):
            self.is_right(order)
            if not lost:
                self.put(carried_out(self.pods[order.pod.metadata.name], order))

    # -- what must hold --------------------------------------------------------------------------------------

    def is_right(self, order: GateOrder) -> None:
        pod = self.pods[order.pod.metadata.name]
        assert pod is order.pod
        producer = self.pods.get(pod.annotations[names.DEPENDS_ON_PRODUCER])
        if isinstance(order, NoteProducer):
            assert producer is not None and producer.metadata.uid == order.note.uid
            assert producer.status.phase == "Running" and order.note.at == self.now
            return
        assert order.gate == GATE and GATE in {each.name for each in pod.spec.scheduling_gates or ()}
        match order.outcome:
            case GateOutcome.ANNOUNCED:
                assert producer is not None and order.task == f"task-of-{producer.metadata.uid}"
            case GateOutcome.TIMED_OUT:
                assert producer is not None and producer.status.phase == "Running"
                assert self.now - self.ran_since[producer.metadata.uid] >= LIMIT
            case GateOutcome.PRODUCER_GONE:
                assert producer is None and names.PRODUCER_STARTED in pod.annotations
            case GateOutcome.STARTED:
                assert producer is not None and producer.status.phase != "Pending"
            case GateOutcome.FINISHED | GateOutcome.PRODUCER_ENDED:
                assert producer is not None and producer.is_terminal
        assert (order.task is not None) == (order.outcome is GateOutcome.ANNOUNCED)

    @invariant()
    def others_gates_stay_shut(self) -> None:
        for name, pod in self.pods.items():
            if name.startswith("c"):
                assert OTHER in {each.name for each in pod.spec.scheduling_gates or ()}

    def teardown(self) -> None:
        """In the end, if nothing is lost any more, whoever has nothing to wait for is let go."""
        for _ in range(4):
            self.cycle(lost=False)
            self.now += LIMIT
        self.cycle(lost=False)
        for name, pod in self.pods.items():
            gates = {each.name for each in pod.spec.scheduling_gates or ()}
            if not name.startswith("c") or GATE not in gates:
                continue
            producer = self.pods.get(pod.annotations[names.DEPENDS_ON_PRODUCER])
            kind = pod.annotations[names.DEPENDS_ON_KIND]
            if producer is None:
                assert names.PRODUCER_STARTED not in pod.annotations
            else:
                waits = ("Pending", "Running") if kind == "finished" else ("Pending",)
                assert producer.status.phase in waits
        fresh = self.fresh()
        for pod in self.pods.values():
            fresh.set_pod(pod)
        assert not list(fresh.round(self.now))  # nothing was overlooked


TestProducerGates = Machine.TestCase
TestProducerGates.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
