"""Gangs of every kind start whole although the scheduler is killed between any two of its writes.

A test for each kind, without a control plane: what the server has is here, and a scheduler that is killed is
one that starts from it. Two gangs contend, and there is room for one of them and a part of the other. A held
object has no pods before it is released, which is a write, too. A random mix of all kinds on a real control
plane is in `tests/integration/schedule/test_mixed_kills.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.owner import Group, Owner
from fluence.model.pod import Pod
from fluence.schedule.events import Bind, Release
from tests.property.test_open_groups import START, moved, part
from tests.property.test_operated_orders import GANGS
from tests.unit.cluster.build import node
from tests.unit.schedule import kit, test_held_operators
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_held_operators import made_of, train_job
from tests.unit.schedule.test_operators import KINDS, OURS, Job, below, custom, job_set, ray_cluster

SIZE = 3
QUIET = 6  # seconds without a write, after which nothing more comes: a group without a size settles in three


def replicas(kind: str, field: str) -> list[Any]:
    """An object of Kubeflow's, and its pods."""
    specs = {"Master": {"template": OURS}, "Worker": {"replicas": SIZE - 1, "template": OURS}}
    top = custom(kind, {field: specs})
    roles = ["master", *["worker"] * (SIZE - 1)]
    pods = [
        below(kit.pod(f"x-{role}-{index}", labels={names.KUBEFLOW_REPLICA_TYPE: role}), top)
        for index, role in enumerate(roles)
    ]
    return [top, *pods]


def under(kind: str, made: tuple[Owner, list[Any]]) -> list[Any]:
    """An object that makes another, which makes the pods."""
    top = custom(kind, {})
    return [top, below(made[0], top), *made[1]]


def spark() -> list[Any]:
    """The executors; the driver, which starts before them, runs."""
    parts = {"schedulerName": "fluence"}
    top = custom("SparkApplication", {"driver": parts, "executor": {**parts, "instances": SIZE}})
    labels = {names.SPARK_APPLICATION: "x", names.SPARK_ROLE: "executor"}
    driver = kit.owner("x-driver", kind=Job)
    ref = replace(kit.reference(driver), api_version="v1", kind="Pod")
    pods = [kit.pod(f"x-exec-{index}", labels=labels) for index in range(SIZE)]
    return [top, *(replace(pod, metadata=replace(pod.metadata, owner_references=[ref])) for pod in pods)]


JOB = kit.owner("x", annotations={kit.SIZE: str(SIZE)}, parallelism=SIZE, completions=SIZE)
EVERY: dict[str, list[Any]] = {
    **GANGS,
    "PyTorchJob": replicas("PyTorchJob", "pytorchReplicaSpecs"),
    "TFJob": replicas("TFJob", "tfReplicaSpecs"),
    "JAXJob": replicas("JAXJob", "jaxReplicaSpecs"),
    "PaddleJob": replicas("PaddleJob", "paddleReplicaSpecs"),
    "XGBoostJob": replicas("XGBoostJob", "xgbReplicaSpecs"),
    "TrainJob": under("TrainJob", job_set(("node", SIZE))),
    "RayJob": under("RayJob", ray_cluster(SIZE - 1)),
    "RayService": under("RayService", ray_cluster(SIZE - 1)),
    "SparkApplication": spark(),
    "native": [
        kit.group("g", SIZE, source=kit.V136),
        *(kit.pod(f"p{i}", field="g") for i in range(SIZE)),
    ],
    "sized": [
        JOB,
        *(kit.pod(f"x-{i}", owner=JOB) for i in range(SIZE)),
    ],
    "unsized": [
        *part("head", Job, 1, template=True),
        *part("work", Job, SIZE - 1, template=False),
    ],
}


@dataclass
class Server:
    """What the server has. ``later``: what a held object makes when it is released, by namespace."""

    every: int  # the scheduler is killed after so many of its writes
    later: dict[str, list[Any]] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)  # by uid
    now: int = START
    writes: int = 0

    def add(self, things: Iterable[Any]) -> None:
        for each in things:
            self.objects[each.uid if isinstance(each, Group) else each.metadata.uid] = each

    def clear(self, namespace: str) -> None:
        for uid, each in list(self.objects.items()):
            if (each.namespace if isinstance(each, Group) else each.metadata.namespace) == namespace:
                del self.objects[uid]

    def bound(self, namespace: str) -> int:
        pods = (each for each in self.objects.values() if isinstance(each, Pod))
        return sum(pod.metadata.namespace == namespace and pod.spec.node_name is not None for pod in pods)

    def fresh(self) -> Driver:
        driver = Driver()
        driver.now = self.now
        driver.scheduler.follow(KINDS)
        driver.scheduler.set_native(True, frozenset(("volcano", "kai")))
        driver.set_node(node("n1", cpu=str(2 * SIZE - 1), pods="200"))
        for each in self.objects.values():
            show(driver, each)
        return driver

    def run(self) -> None:
        """Schedulers, one after the other, until nothing more happens."""
        driver, idle = self.fresh(), 0
        while idle < QUIET:
            self.now += 1000
            decisions = driver.cycle(self.now)
            binds = [bind for some in decisions.binds for bind in some]
            writes: list[Bind | Release] = [*decisions.releases, *binds]
            idle = 0 if writes else idle + 1
            for write in writes:
                changed = self.carry_out(write)
                self.writes += 1
                if self.writes % self.every == 0:
                    driver = self.fresh()
                    break
                for each in changed:
                    show(driver, each)

    def carry_out(self, write: Bind | Release) -> list[Any]:
        changed: list[Any]
        if isinstance(write, Bind):
            changed = [write.carried_out(self.objects[write.uid])]
        else:
            meta = write.owner.metadata
            changed = [write.carried_out(self.objects[meta.uid]), *self.later[meta.namespace]]
        self.add(changed)
        return changed


def show(driver: Driver, thing: Any) -> None:
    if isinstance(thing, Pod):
        driver.set_pod(thing)
    elif isinstance(thing, Group):
        driver.set_group(thing)
    else:
        driver.set_owner(thing)


def contend(server: Server) -> None:
    """One of two starts whole and the other waits; when the first is gone, the other starts."""
    server.run()
    counts = {each: server.bound(each) for each in ("a", "b")}
    assert sorted(counts.values()) == [0, SIZE]
    first = max(counts, key=lambda each: counts[each])
    server.clear(first)
    server.run()
    assert sum(server.bound(each) for each in ("a", "b")) == SIZE


@pytest.mark.parametrize("every", range(1, SIZE + 1))
@pytest.mark.parametrize("kind", EVERY)
def test_a_gang_starts_whole_though_the_scheduler_is_killed_after_each_of_its_binds(
    kind: str, every: int
) -> None:
    server = Server(every)
    server.add(moved(each, namespace) for namespace in ("a", "b") for each in EVERY[kind])
    contend(server)
    assert server.writes == 2 * SIZE


@pytest.mark.parametrize("every", range(1, SIZE + 2))
@pytest.mark.parametrize("kind", test_held_operators.KINDS)
def test_a_held_object_starts_whole_though_the_scheduler_is_killed_after_each_of_its_writes(
    kind: str, every: int
) -> None:
    held = train_job() if kind == "TrainJob" else (test_held_operators.held(kind),)
    made = list(made_of(test_held_operators.held(kind, suspend=False)))
    later = {namespace: [moved(each, namespace) for each in made] for namespace in ("a", "b")}
    server = Server(every, later)
    server.add(moved(each, namespace) for namespace in ("a", "b") for each in held)
    contend(server)
    assert server.writes == 2 * (SIZE + 1)
