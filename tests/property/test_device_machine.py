"""Devices in a world that changes, fails and restarts: none is given twice, none leaks, none without nodes.

The machine of the scheduler, with gangs that ask for devices and a document that is edited while they run.
`FLUENCE_DEVICES=N` runs N examples.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from fluence import names
from fluence.model.external_resources import asked_by
from fluence.model.meta import ConfigMap, ObjectMeta
from fluence.model.pod import Container, Pod, ResourceRequirements
from fluence.model.reason import Code
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Bind, Changed
from fluence.schedule.restart import AllocationNote
from tests.property.test_scheduler_machine import Machine
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

# Name, type, qubits below it (0: none), units, vendor.
BACKENDS = (
    ("a", "qpu", 5, 1, "x"),
    ("b", "qpu", 3, 1, "y"),
    ("c", "qpu", 0, 2, "x"),
    ("s", "licence", 0, 3, ""),
)
ASKS = ({"qpu": 1}, {"qubit": 2}, {"licence": 1}, {"licence": 2, "qpu": 1}, {"qpu": 2}, {"qubit": 9})


def document(present: dict[str, tuple[int, bool]]) -> ConfigMap:
    lines = ["resources:"]
    for name, type_, qubits, _, vendor in BACKENDS:
        if name in present:
            count, online = present[name]
            below = f", with: [{{type: qubit, count: {qubits}}}]" if qubits else f", count: {count}"
            status = "online" if online else "offline"
            attributes = f", attributes: {{vendor: {vendor}}}" if vendor else ""
            lines.append(f"- {{type: {type_}, name: {name}, status: {status}{attributes}{below}}}")
    meta = ObjectMeta(name="fluence-resources", namespace="kube-system")
    return ConfigMap(metadata=meta, data={"resources.yaml": "\n".join(lines) if present else ""})


class DeviceMachine(Machine):
    """What pods say in their annotations is the truth about devices, as it is after a crash."""

    def fresh(self) -> Driver:
        if not hasattr(self, "present"):
            self.present = {name: (count, True) for name, _, _, count, _ in BACKENDS}
        driver = super().fresh()
        driver.handle(Changed(None, document(self.present)))
        return driver

    @rule(
        size=st.integers(1, 3),
        asked=st.lists(st.sampled_from(ASKS), min_size=1, max_size=2),
        per_pod=st.booleans(),
        require=st.sampled_from(["", "", "vendor=x", "backend=b"]),
        limit=st.none() | st.integers(1, 30),
    )
    def submit_with_devices(
        self, size: int, asked: list[dict[str, int]], per_pod: bool, require: str, limit: int | None
    ) -> None:
        self.made += 1
        notes = {} if limit is None else {names.DURATION: f"{limit}s"}
        if per_pod:
            notes[names.DEVICES] = "per-pod"
        if require:
            key, _, value = require.partition("=")
            notes[f"{names.REQUIRE}{key}"] = value
        group = None
        if size > 1:
            group = kit.group(f"d{self.made}", size, uid=f"uid-d{self.made}", created=self.time())
            self.groups[group.name] = group
            self.scheduler.set_group(group)
        for index in range(size):
            field = None if group is None else group.name
            pod = self.new_pod(f"d{self.made}-{index}", field=field, annotations=notes)
            needs = {names.DEVICE_PREFIX + type_: str(n) for type_, n in asked[index % len(asked)].items()}
            box = Container(name="c", resources=ResourceRequirements(requests={"cpu": "1", **needs}))
            self.put(replace(pod, spec=replace(pod.spec, containers=[box])))

    @rule(
        name=st.sampled_from([each[0] for each in BACKENDS]),
        fate=st.sampled_from(["gone", "off", "on", "one"]),
    )
    def edit(self, name: str, fate: str) -> None:
        count = next(each[3] for each in BACKENDS if each[0] == name)
        if fate == "gone":
            self.present.pop(name, None)
        else:
            self.present[name] = (1 if fate == "one" else count, fate != "off")
        self.declare()

    def declare(self) -> None:
        """What is lost by an edit may break a promise."""
        self.excuses.add(Code.DEVICES_CHANGED)
        self.scheduler.handle(Changed(None, document(self.present)))

    @rule()
    def spoil(self) -> None:
        """A text that cannot be read changes nothing."""
        broken = ConfigMap(
            metadata=ObjectMeta(name="fluence-resources"), data={"resources.yaml": "resources: 3"}
        )
        self.scheduler.handle(Changed(None, broken))
        assert self.scheduler.scheduler.devices.fault
        self.scheduler.handle(Changed(None, document(self.present)))

    @precondition(lambda self: any(pod.spec.node_name and not pod.is_terminal for pod in self.pods.values()))
    @rule(data=st.data())
    def replace_member(self, data: st.DataObject) -> None:
        """A pod of a gang ends, and its owner makes another."""
        runs = sorted(
            name
            for name, pod in self.pods.items()
            if pod.spec.node_name and not pod.is_terminal and pod.spec.scheduling_group is not None
        )
        if not runs:
            return
        pod = self.pods[data.draw(st.sampled_from(runs))]
        self.put(replace(pod, status=replace(pod.status, phase="Failed")))
        self.made += 1
        said = {
            key: value
            for key, value in pod.annotations.items()
            if key in (names.DURATION, names.DEVICES) or key.startswith(names.REQUIRE)
        }
        group = pod.spec.scheduling_group
        assert group is not None
        space = pod.metadata.namespace
        new = self.new_pod(f"r{self.made}", field=group.pod_group_name, namespace=space, annotations=said)
        self.put(replace(new, spec=replace(pod.spec, node_name=None)))

    # -- what must hold --------------------------------------------------------------------------------------

    def judge(self, decisions: Decisions) -> None:
        super().judge(decisions)
        for bind in (bind for binds in decisions.binds for bind in binds):
            asks = asked_by(bind.pod)
            said = _devices(bind.annotations)
            has: dict[str, int] = {}
            for _, type_, amount in said:
                has[type_] = has.get(type_, 0) + amount
            pinned = not asks and f"{names.REQUIRE}backend" in bind.pod.annotations
            covers = {"qubit"} if "qpu" in has else set()
            missing = {type_ for type_, n in asks.items() if has.get(type_, 0) < n} - covers
            assert not missing, f"{bind.uid} has {has} of {asks}"
            assert bool(said) == bool(asks or pinned) == (names.BACKEND in bind.annotations)
        new = [bind for binds in decisions.binds for bind in binds]
        self.judge_devices(new)

    def judge_devices(self, new: list[Bind]) -> None:
        """Of what is given now, all that hold it together take no more than there is."""
        held: dict[tuple[str, str], dict[str, int]] = {}  # device, type -> by whom, how much
        fresh: set[str] = set()
        alive = [pod for pod in self.pods.values() if pod.spec.node_name and not pod.is_terminal]
        for pod in alive:
            self.count(held, pod, pod.annotations)
        under_way = [bind for bind in self.flight.values() if not self.is_stale(bind)]
        for bind in under_way:
            self.count(held, bind.pod, bind.annotations)
        # The rest of a gang of which some run shares what these have, whatever the document says by now.
        has = {(device, who) for (device, _), by in held.items() for who in by}
        for bind in new:
            who = self.holder(bind.pod)
            said = [device for device, _, _ in _devices(bind.annotations) if (device, who) not in has]
            fresh.update(device.partition("/")[0] for device in said)
        for bind in new:
            self.count(held, bind.pod, bind.annotations)
        for name in fresh:
            assert name in self.present, f"{name} is not there"
            _, type_, qubits, _, _ = next(each for each in BACKENDS if each[0] == name)
            count = self.present[name][0] if not qubits else 1
            whole = held.get((name, type_), {})
            parts = held.get((f"{name}/qubit0", "qubit"), {})
            told = f"{name}: whole by {whole}, parts by {parts}"
            assert sum(whole.values()) <= count or len(whole) <= 1, told
            assert not (whole and parts and qubits), told
            assert sum(parts.values()) <= max(qubits, max(parts.values(), default=0)), told

    def count(self, held: dict[tuple[str, str], dict[str, int]], pod: Pod, said: Mapping[str, str]) -> None:
        who = self.holder(pod)
        for device, type_, amount in _devices(said):
            by = held.setdefault((device, type_), {})
            by[who] = max(by.get(who, 0), amount)

    def holder(self, pod: Pod) -> str:
        """Pods of a gang share; those that have their own do not."""
        shared = pod.annotations.get(names.DEVICES) != "per-pod"
        return self.scheduler.groups.of(pod) if shared else pod.metadata.uid

    def teardown(self) -> None:
        if not hasattr(self, "scheduler") or sys.exc_info()[0] is not None:
            return
        self.present = {name: (count, True) for name, _, _, count, _ in BACKENDS}
        self.declare()
        for name in [name for name, pod in self.pods.items() if _never(pod)]:
            self.scheduler.remove_pod(self.pods.pop(name))
        super().teardown()
        seats = self.scheduler.cluster.fit
        for entry in seats.backends.entries:
            assert seats.look(seats.availability.now).free[entry.row] == entry.size, "a device leaked"


def _never(pod: Pod) -> bool:
    """Who waits for what no backend has, alone or because each pod wants its own."""
    return not pod.is_terminal and bool(asked_by(pod) or f"{names.REQUIRE}backend" in pod.annotations)


def _devices(annotations: Mapping[str, str]) -> list[tuple[str, str, int]]:
    text = annotations.get(names.ALLOCATION)
    if text is None:
        return []
    note = msgspec.json.decode(text, type=AllocationNote)
    return [(each.device, each.type, each.amount) for each in note.devices]


TestDevices = DeviceMachine.TestCase
TestDevices.settings = settings(
    max_examples=int(os.environ.get("FLUENCE_DEVICES", "60")), stateful_step_count=40, deadline=None
)


class Said:
    """Draws what a recorded history drew."""

    def __init__(self, value: object) -> None:
        self.value = value

    def draw(self, strategy: object) -> object:
        return self.value


def test_a_bind_that_is_sent_again_needs_its_device_to_be_there_still() -> None:
    """Found by the machine: the device went while the bind waited for its next try."""
    machine = DeviceMachine()
    machine.begin(policy="easy", each=False, sizes=[1, 1], looks=None)
    machine.foreign(data=Said("n1"), cpu=1, namespace="default")
    machine.edit(name="a", fate="gone")
    machine.submit_with_devices(size=1, asked=[{"qpu": 1}], per_pod=False, require="", limit=None)
    machine.cycle()
    (uid,) = machine.flight
    assert machine.flight[uid].annotations[names.BACKEND] == "b"
    machine.answer(data=Said(uid), fate="again")
    machine.wait(ms=100)
    machine.edit(name="b", fate="gone")
    machine.cycle()
    assert all(bind.annotations[names.BACKEND] == "c" for bind in machine.flight.values())
    machine.teardown()
