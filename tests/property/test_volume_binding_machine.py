"""Gangs with claims, while provisioners bind, refuse and dawdle, pods and nodes go, the scheduler is killed.

Whatever happens: no pod is bound before every claim of its gang is bound, within reach of its node; what is
held belongs to somebody; and once provisioners do their work, everybody who is left starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from fluence.cluster.claims import Change, Claim, Claims
from fluence.model.node import Node
from fluence.model.pod import ClaimVolumeSource, Pod, PodVolume
from fluence.schedule.events import Bind, BindOutcome, BindResult, ClaimUpdate
from tests.unit.cluster.build import bound, node
from tests.unit.cluster.test_claims import claim, kind, volume
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NODES = ("n1", "n2", "n3")
TIMEOUT = 10_000


@dataclass
class Disk:
    """A claim as the server has it."""

    selected: str | None = None
    on: str | None = None  # the node of its volume


def noted(pod: Pod, notes: Mapping[str, str]) -> Pod:
    """As a binding leaves it, so that a restart finds its job again."""
    return replace(pod, metadata=replace(pod.metadata, annotations={**pod.annotations, **notes}))


class Killed(Exception):
    """Kill -9."""


class Preparing(RuleBasedStateMachine):
    @initialize(local=st.booleans())
    def begin(self, local: bool) -> None:
        self.now = 1_000_000
        self.scheduler = Driver(volume_timeout=TIMEOUT)
        self.claims = Claims()
        self.disks: dict[str, Disk] = {}
        self.pods: dict[str, Pod] = {}
        self.mounts: dict[str, tuple[str, ...]] = {}  # pod -> claims
        self.least: dict[str, int] = {}  # gang -> how many start together
        self.choices: dict[str, ClaimUpdate] = {}  # that are not written yet
        self.number = 0
        self.fuse: int | None = None  # how many pods are bound before the scheduler is killed
        self.nodes: dict[str, Node] = {}
        for name in NODES:
            self.set_node(name)
        self.local = local
        self.claims.set_class(kind() if local else kind(provisioner="csi.example"))
        self.stock: dict[str, str] = {}  # volumes that are there: on which node
        self.taken: dict[str, str] = {}

    def set_node(self, name: str, *, closed: bool = False) -> None:
        self.nodes[name] = node(name, cpu="64", pods="200", unschedulable=closed)
        self.scheduler.set_node(self.nodes[name])

    # -- the world -------------------------------------------------------------------------------------------

    def tell(self, changes: list[Change]) -> None:
        for change in changes:
            self.scheduler.set_claim(*change)

    def show(self, name: str) -> None:
        disk = self.disks[name]
        notes = {"volume.kubernetes.io/selected-node": disk.selected} if disk.selected else {}
        more: dict[str, Any] = {"metadata": {"annotations": notes}}
        if disk.on is not None:
            mine = next((v for v, c in self.taken.items() if c == name), f"pv-{name}")
            self.tell(self.claims.set_claim(claim(name, volumeName=mine, phase="Bound", **more)))
            self.tell(self.claims.set_volume(volume(mine, on=disk.on, phase="Bound")))
        else:
            self.tell(self.claims.set_claim(claim(name, **more)))

    def cycle(self) -> None:
        try:
            self.decide()
        except Killed:
            self.restart()
            self.decide()

    def decide(self) -> None:
        while True:
            self.tell(self.claims.settle())
            decisions = self.scheduler.cycle(self.now)
            for choice in decisions.claim_updates:
                self.choices[choice.claim[1]] = choice
            for binds in decisions.binds:
                self.bind(binds)
            if not self.scheduler.has_more:
                return

    def bind(self, binds: list[Bind]) -> None:
        gang = binds[0].pod.labels[kit.GROUP]
        on = sum(pod.spec.node_name is not None for pod in self.of(gang))
        assert on + len(binds) >= self.least[gang], "a gang starts in part"
        for bind in binds:
            name = bind.pod.metadata.name
            for each in self.mounts[name]:
                assert self.disks[each].on == bind.node, f"{name} is bound before its volume {each}"
        for bind in binds:
            if self.fuse == 0:
                raise Killed
            self.fuse = None if self.fuse is None else self.fuse - 1
            name = bind.pod.metadata.name
            self.pods[name] = noted(bound(self.pods[name], bind.node), bind.annotations)
            self.scheduler.set_pod(self.pods[name])
            self.scheduler.told(BindResult(bind, BindOutcome.BOUND), self.now)

    def of(self, gang: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.labels[kit.GROUP] == gang]

    # -- what happens ----------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 3), shared=st.booleans(), extra=st.integers(0, 1))
    def submit(self, count: int, shared: bool, extra: int) -> None:
        self.number += 1
        gang = f"g{self.number}"
        self.least[gang] = count
        for index in range(count + extra):
            name = f"{gang}-{index}"
            mine = f"{gang}-data" if shared else f"{name}-data"
            if mine not in self.disks:
                self.disks[mine] = Disk()
                self.show(mine)
            self.mounts[name] = (mine,)
            source = [PodVolume(name="v", persistent_volume_claim=ClaimVolumeSource(claim_name=mine))]
            labels = {kit.GROUP: gang, kit.SIZE: str(count)}
            self.pods[name] = kit.pod(name, namespace="d", labels=labels, volumes=source)
            self.scheduler.set_pod(self.pods[name])
        self.cycle()

    @rule(index=st.integers(0, 9), at=st.sampled_from(NODES))
    def stock_up(self, index: int, at: str) -> None:
        if self.local and f"lv{index}" not in self.stock:
            self.stock[f"lv{index}"] = at
            self.tell(self.claims.set_volume(volume(f"lv{index}", on=at)))
            self.cycle()

    @precondition(lambda self: self.choices)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        self.write_one(data.draw(st.sampled_from(sorted(self.choices))))
        self.cycle()

    def write_one(self, name: str) -> None:
        choice = self.choices.pop(name)
        disk = self.disks[name]
        if disk.on is not None:
            return
        if choice.volume is not None:
            if choice.volume not in self.taken:  # the server refuses the second
                self.taken[choice.volume] = name
                ref = {"namespace": "d", "name": name, "uid": f"uid-{name}"}
                at = self.stock[choice.volume]
                self.tell(self.claims.set_volume(volume(choice.volume, on=at, claimRef=ref)))
        elif choice.node is not None or disk.selected == choice.was:
            disk.selected = choice.node
            self.show(name)

    @rule(data=st.data(), accepts=st.booleans())
    def provision(self, data: st.DataObject, accepts: bool) -> None:
        chosen = [name for name, disk in self.disks.items() if disk.on is None and self.aim(name)]
        if chosen:
            self.provision_one(data.draw(st.sampled_from(sorted(chosen))), accepts=accepts)
            self.cycle()

    def aim(self, name: str) -> str | None:
        given = next((self.stock[v] for v, c in self.taken.items() if c == name), None)
        return given or self.disks[name].selected

    def provision_one(self, name: str, *, accepts: bool) -> None:
        disk = self.disks[name]
        if accepts or name in self.taken.values():
            disk.on = self.aim(name)
        else:
            disk.selected = None
        self.show(name)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.pods)))
        self.scheduler.remove_pod(self.pods.pop(name))
        self.cycle()

    @rule(seconds=st.sampled_from((1, 11, 61)))
    def wait(self, seconds: int) -> None:
        self.now += seconds * 1000
        self.cycle()

    @rule(name=st.sampled_from(NODES), closed=st.booleans())
    def cordon(self, name: str, closed: bool) -> None:
        self.set_node(name, closed=closed)
        self.cycle()

    @rule(name=st.sampled_from(NODES), back=st.booleans())
    def lose_node(self, name: str, back: bool) -> None:
        if name in self.nodes:
            del self.nodes[name]
            self.scheduler.remove_node(name)
        if back:
            self.set_node(name)
        self.cycle()

    @rule()
    def crash(self) -> None:
        self.restart()
        self.cycle()

    @rule(count=st.integers(0, 2))
    def crash_soon(self, count: int) -> None:
        """It will be killed among the binds of a gang."""
        self.fuse = count

    def restart(self) -> None:
        """What was not written is lost; what the server has is told anew."""
        self.fuse = None
        self.choices.clear()
        self.scheduler = Driver(volume_timeout=TIMEOUT)
        for each in self.nodes.values():
            self.scheduler.set_node(each)
        self.tell(list(self.claims.everything()))
        for pod in self.pods.values():
            self.scheduler.set_pod(pod)

    # -- what always holds -----------------------------------------------------------------------------------

    @invariant()
    def held_by_somebody(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        picked = scheduler.cluster._requests.claims.held
        assert len(set(picked.values())) == len(picked)
        awaited = {each.claim for binding in scheduler.volumes.active.values() for each in binding.decisions}
        assert picked.keys() <= awaited
        for key, preparation in scheduler.volumes.active.items():
            part = scheduler.pod_sets.by_key[key]
            assert part.unbound.keys() == {bind.uid for bind in preparation.binds}
        for uid, home in ((u, n) for seats in scheduler.cluster.jobs.values() for u, n in seats.items()):
            assert uid in scheduler.pod_sets.by_pod and home in NODES

    def teardown(self) -> None:
        """Provisioners do their work, local volumes abound: everybody who can start does."""
        if not hasattr(self, "scheduler"):
            return
        self.fuse = None
        for name in NODES:
            self.set_node(name)
        if self.local:
            for index in range(len(self.disks)):
                for at in NODES:
                    self.stock[f"more{index}{at}"] = at
                    self.tell(self.claims.set_volume(volume(f"more{index}{at}", on=at)))
        for _ in range(12):
            self.now += 61_000
            self.cycle()
            for name in list(self.choices):
                self.write_one(name)
            for name, disk in self.disks.items():
                if disk.on is None and self.aim(name):
                    self.provision_one(name, accepts=True)
            self.cycle()
        for gang, least in self.least.items():
            pods = self.of(gang)
            if len(pods) >= least:
                left = [pod.metadata.name for pod in pods if pod.spec.node_name is None]
                assert not left, f"{left} never start: {self.scheduler.reports.said.get(f'd/{gang}')}"
        assert not self.scheduler.volumes.active


TestPreparing = Preparing.TestCase
TestPreparing.settings = settings(deadline=None, stateful_step_count=30)


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("ours", ["fluence", "another"])
def test_a_claim_for_one_pod_is_free_for_the_next_when_the_first_is_over(ended: bool, ours: str) -> None:
    scheduler = Driver()
    scheduler.set_node(node("n1"))
    scheduler.set_claim("default", "data", Claim("bound", one_pod=True))
    source = [PodVolume(name="v", persistent_volume_claim=ClaimVolumeSource(claim_name="data"))]
    first, second = kit.pod("a", volumes=source, node="n1", scheduler=ours), kit.pod("b", volumes=source)
    scheduler.set_pod(first)
    scheduler.set_pod(second)
    assert not scheduler.cycle(1).binds
    if ended:
        scheduler.set_pod(kit.pod("a", volumes=source, node="n1", phase="Succeeded", scheduler=ours))
    else:
        scheduler.remove_pod(first)
    binds = [bind.uid for _ in range(3) for some in scheduler.cycle(2).binds for bind in some]
    assert binds == [second.metadata.uid]


def test_a_choice_that_is_there_after_a_restart_is_not_written_again() -> None:
    machine = Preparing()
    machine.begin(local=False)
    machine.submit(count=1, shared=False, extra=0)
    (choice,) = machine.choices.values()
    fresh = Preparing()
    fresh.begin(local=False)
    fresh.disks["g1-0-data"] = Disk(selected=choice.node)
    fresh.show("g1-0-data")
    fresh.submit(count=1, shared=False, extra=0)
    assert not fresh.choices and fresh.scheduler.volumes.active
    fresh.provision_one("g1-0-data", accepts=True)
    fresh.cycle()
    assert fresh.pods["g1-0"].spec.node_name == choice.node
