"""Many gangs over many backends and nodes, with crashes: nothing twice, nothing leaked, both or neither.

A short form runs with the other tests; `make soak` runs the whole: 10,000 gangs, 1,000 nodes, 50 backends and
200 kills.
"""

from __future__ import annotations

import os
import random

import msgspec
import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.job_state import JobState
from fluence.model.meta import ConfigMap, ObjectMeta
from fluence.model.pod import Container, Pod, ResourceRequirements
from fluence.schedule.events import Bind, BindOutcome, BindResult, Changed
from fluence.schedule.restart import AllocationNote
from tests.amounts import amount
from tests.unit.cluster.build import bound, ended, node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

GANGS = amount(150, quick=50, soak="FLUENCE_DEVICE_GANGS")
NODES = max(10, GANGS // 10)
BACKENDS = max(5, min(50, GANGS // 20))
KILLS = max(3, GANGS // 50)
CPU = 8
PARTS = "{type: qubit, count: 20}"
ASKS: tuple[dict[str, int], ...] = (
    {},
    {"qpu": 1},
    {"qpu": 1},
    {"qubit": 7},
    {"licence": 2},
    {"qpu": 1, "licence": 1},
)
T0 = int(kit.T0.timestamp() * 1000)


class Cluster:
    """What the API server has, and a scheduler that may be killed at any time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = T0
        self.pods: dict[str, Pod] = {}  # by uid, those that are not over
        self.waiting: dict[str, Pod] = {}
        self.made = 0
        rows = [
            f"- {{type: qpu, name: q{i}, attributes: {{vendor: v{i % 3}}}, with: [{PARTS}]}}"
            for i in range(BACKENDS - 1)
        ]
        self.document = "\n".join(["resources:", *rows, "- {type: licence, name: lic, count: 25}"])
        self.nodes = [node(f"n{i}", cpu=str(CPU), pods="100") for i in range(NODES)]
        self.driver = self.fresh()

    def fresh(self) -> Driver:
        driver = Driver(native=True, queue_policy="easy")
        driver.now = self.now
        meta = ObjectMeta(name=names.RESOURCES_CONFIGMAP)
        found = ConfigMap(metadata=meta, data={names.RESOURCES_KEY: self.document})
        driver.handle(Changed(None, found), *(Changed(None, each) for each in self.nodes))
        driver.handle(*(Changed(None, each) for each in (*self.pods.values(), *self.waiting.values())))
        return driver

    def submit(self) -> None:
        rng = self.random
        self.made += 1
        size = rng.choice((1, 1, 1, 2, 3))
        name, said = f"g{self.made}", {names.DURATION: f"{rng.randint(5, 50)}s"}
        asked = rng.choice(
            ({}, {"qpu": 1}, {"qpu": 1}, {"qubit": 7}, {"licence": 2}, {"qpu": 1, "licence": 1})
        )
        if asked and rng.random() < 0.3:
            said[f"{names.REQUIRE}vendor"] = f"v{rng.randint(0, 2)}"
        if size > 1:
            said[kit.SIZE] = str(size)
            if rng.random() < 0.2:
                said[names.DEVICES] = "per-pod"
        requests = {"cpu": str(rng.randint(1, 4))}
        requests |= {names.DEVICE_PREFIX + type_: str(n) for type_, n in asked.items()}
        for index in range(size):
            labels = {kit.GROUP: name} if size > 1 else None
            pod = kit.pod(f"{name}-{index}", labels=labels, annotations=said)
            box = Container(name="c", resources=ResourceRequirements(requests=requests))
            pod = replace(pod, spec=replace(pod.spec, containers=[box]))
            self.waiting[pod.metadata.uid] = pod
            self.driver.handle(Changed(None, pod))

    def cycle(self) -> None:
        """A cycle, after which the binds are carried out; a kill may come between two of them."""
        while True:
            decisions = self.driver.cycle(self.now)
            binds = [bind for some in decisions.binds for bind in some]
            if binds and self.random.random() < 0.02:
                for bind in binds[: self.random.randint(0, len(binds) - 1)]:
                    self.carry_out(bind)  # and nobody hears of it
                self.driver = self.fresh()
                continue
            for bind in binds:
                pod = self.carry_out(bind)
                self.driver.told(BindResult(bind, BindOutcome.BOUND), self.now)
                self.driver.handle(Changed(bind.pod, pod))
            if not self.driver.has_more:
                return

    def carry_out(self, bind: Bind) -> Pod:
        self.pods[bind.uid] = pod = bind.carried_out(bound(self.waiting.pop(bind.uid), bind.node))
        return pod

    def end_some(self, share: float) -> None:
        for uid in [uid for uid in self.pods if self.random.random() < share]:
            self.driver.handle(Changed(None, ended(self.pods.pop(uid))))

    def kill(self) -> None:
        self.driver = self.fresh()

    def judge(self) -> None:
        """By the pods alone, as an auditor sees them."""
        cpu: dict[str, int] = {}
        held: dict[str, dict[str, int]] = {}
        for pod in self.pods.values():
            box = (pod.spec.containers or [])[0].resources.requests or {}
            cpu[pod.spec.node_name or ""] = cpu.get(pod.spec.node_name or "", 0) + int(box["cpu"])
            note = msgspec.json.decode(pod.annotations[names.ALLOCATION], type=AllocationNote)
            asks = {key for key in box if key.startswith(names.DEVICE_PREFIX)}
            assert bool(asks) == bool(note.devices), f"{pod.key}: a node without its device"
            shared = pod.annotations.get(names.DEVICES) != "per-pod"
            who = pod.labels.get(kit.GROUP, pod.key) if shared else pod.key
            for each in note.devices:
                by = held.setdefault(each.device, {})
                by[who] = max(by.get(who, 0), each.amount)
        assert all(used <= CPU for used in cpu.values())
        for device, by in held.items():
            size = 25 if device == "lic" else 20 if "/" in device else 1
            assert sum(by.values()) <= size, f"{device} is given twice: {by}"
            whole = held.get(device.partition("/")[0], {}) if "/" in device else {}
            assert not whole, f"{device} is had whole and in part"


@pytest.mark.seeded
def test_nothing_is_given_twice_and_nothing_leaks() -> None:
    cluster = Cluster(seed=int(os.environ.get("FLUENCE_SEED", "15")))
    kills = set(cluster.random.sample(range(GANGS), KILLS))
    for number in range(GANGS):
        cluster.submit()
        if number in kills:
            cluster.kill()
        if number % 3 == 0:
            cluster.now += cluster.random.randint(100, 3_000)
            cluster.cycle()
            cluster.end_some(0.02)
            if number % 30 == 0 or GANGS < 1000:
                cluster.judge()
    for _ in range(60 + GANGS):
        waits = cluster.driver.pod_sets.by_key.values()
        if not cluster.pods and all(each.state is JobState.UNSCHEDULABLE for each in waits):
            break
        cluster.now += 60_000
        cluster.cycle()
        cluster.judge()
        cluster.end_some(0.7)
    assert not cluster.pods
    waits = cluster.driver.pod_sets.by_key.values()
    assert all(each.state is JobState.UNSCHEDULABLE for each in waits), (
        "all that fits an empty cluster has run"
    )
    seats = cluster.driver.cluster.fit
    assert all(seats.look(cluster.now).free[each.row] == each.size for each in seats.backends.entries)
