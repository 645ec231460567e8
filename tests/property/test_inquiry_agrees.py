"""`fluence explain` against the scheduler: what it says of a gang is what the scheduler then does with it.

The scheduler has a history: it saw the pods come one after the other, and keeps its plan. Explain sees the
objects once. Both must come to the same answer, whatever the gang asks for and however they are configured.
"""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import given
from msgspec.structs import replace

from fluence import names
from fluence.model.job_state import JobState
from fluence.model.meta import LabelSelector
from fluence.model.node import Node, Taint
from fluence.model.pod import Affinity, Container, ContainerPort, Pod, PodAffinity, PodAffinityTerm
from fluence.model.pod import TopologySpreadConstraint as Spread
from fluence.schedule.events import BindOutcome, BindResult, Object
from fluence.schedule.inquiry import Inquiry, NextCycle
from fluence.schedule.scheduler import Scheduler, SchedulerConfig
from tests.unit.cluster.build import ZONE, node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NOW = int(kit.T0.timestamp() * 1000)
APP = {"app": "web"}
SAME = LabelSelector(match_labels=APP)
TERM = PodAffinityTerm(topology_key=ZONE, label_selector=SAME)
NAMES = [f"n{i}" for i in range(4)]


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    return [
        node(
            name,
            zone=draw(st.sampled_from(["a", "b", None])),
            labels={"disk": "ssd"} if draw(st.booleans()) else {},
            taints=[Taint(key="gpu", effect="NoSchedule")] if draw(st.integers(0, 4)) == 0 else None,
            cpu=str(draw(st.integers(2, 4))),
        )
        for name in NAMES[: draw(st.integers(1, 3))]
    ]


@st.composite
def gangs(draw: st.DrawFn) -> dict[str, Any]:
    """What is asked for, beside its name."""
    notes: dict[str, str] = {}
    if draw(st.booleans()):
        notes[names.DURATION] = f"{draw(st.integers(1, 60))}m"
    some = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)
    rules = ["hosts", "excluded", "ssd", "port", "apart", "spread", "zone", "whole"]
    rule = draw(st.sampled_from(rules)) if draw(st.booleans()) else ""
    spec: dict[str, Any] = {}
    if rule == "hosts":
        notes[names.CONSTRAINTS] = json.dumps({"hostlist": draw(some)})
    elif rule == "excluded":
        notes[names.EXCLUDED] = ",".join(draw(some))
    elif rule == "whole":
        notes[names.POLICY] = "lonodex"
    elif rule == "ssd":
        spec["node_selector"] = {"disk": "ssd"}
    elif rule == "apart":
        spec["affinity"] = Affinity(pod_anti_affinity=PodAffinity(required=[TERM]))
    elif rule == "spread":
        spec["topology_spread_constraints"] = [Spread(topology_key=ZONE, max_skew=1, label_selector=SAME)]
    return {
        "count": draw(st.sampled_from([1, 1, 2, 3])),
        "cpu": str(draw(st.integers(1, 3))),
        "notes": notes,
        "spec": spec,
        "port": rule == "port",
        "zone": rule == "zone",
    }


class World:
    """What the API server has, and the scheduler that follows it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = {"native": True, **config}
        self.live = Driver(**self.config)
        self.live.now = NOW
        self.objects: dict[str, Object] = {}

    def put(self, found: Object, key: str) -> None:
        self.objects[key] = found
        if isinstance(found, Node):
            self.live.set_node(found)
        elif isinstance(found, Pod):
            self.live.set_pod(found)

    def add(self, name: str, asked: dict[str, Any]) -> None:
        self.objects[name] = group = kit.group(
            name, asked["count"], topology_key=ZONE if asked["zone"] else None
        )
        self.live.set_group(group)
        for i in range(asked["count"]):
            made = kit.pod(
                f"{name}-{i}",
                field=name,
                cpu=asked["cpu"],
                labels=APP,
                annotations=asked["notes"],
                **asked["spec"],
            )
            if asked["port"]:
                (box,) = made.spec.containers or [Container()]
                box = replace(box, ports=[ContainerPort(host_port=80)])
                made = replace(made, spec=replace(made.spec, containers=[box]))
            self.put(made, made.key)

    def explain(self, name: str, now: int) -> NextCycle:
        ordered = sorted(self.objects.values(), key=lambda each: isinstance(each, Pod))
        inquiry = Inquiry(Scheduler(SchedulerConfig(**self.config)), ordered, now)
        gang = inquiry.groups.gang(f"default/{name}")
        assert gang is not None
        return inquiry.about(gang)

    def cycle(self, now: int) -> set[str]:
        """The groups of which pods were bound."""
        begun = set()
        for binds in self.live.cycle(now).binds:
            for bind in binds:
                pod = replace(
                    bind.pod,
                    metadata=replace(
                        bind.pod.metadata, annotations={**bind.pod.annotations, **bind.annotations}
                    ),
                    spec=replace(bind.pod.spec, node_name=bind.node),
                    status=replace(bind.pod.status, phase="Running"),
                )
                self.live.told(BindResult(bind, BindOutcome.BOUND), now)
                self.put(pod, pod.key)
                begun.add(pod.metadata.name.rpartition("-")[0])
        return begun


@given(
    policy=st.sampled_from(["easy", "fcfs", "first-fit", "conservative", "hybrid"]),
    match=st.sampled_from(["first", "low", "high", "lonode", "lonodex"]),
    there=nodes(),
    busy=st.lists(st.sampled_from(NAMES), max_size=3, unique=True),
    asked=st.lists(gangs(), min_size=3, max_size=5),
)
def test_what_is_said_of_a_gang_is_what_becomes_of_it(
    policy: str, match: str, there: list[Node], busy: list[str], asked: list[dict[str, Any]]
) -> None:
    world = World({"queue_policy": policy, "match_policy": match})
    for each in there:
        world.put(each, f"node/{each.name}")
    for name in busy:
        if any(each.name == name for each in there):
            foreign = kit.pod(f"x-{name}", scheduler="x", node=name, phase="Running")
            world.put(foreign, foreign.key)
    for number, request in enumerate(asked):
        now, name = NOW + number * 1000, f"g{number}"
        world.add(name, request)
        said = world.explain(name, now)
        begun = world.cycle(now)
        assert said.starts == (name in begun), (said, begun)
        pod_set = world.live.pod_sets.by_key.get(f"default/{name}")
        if pod_set is not None:
            assert said.never == (pod_set.state is JobState.UNSCHEDULABLE), (said, pod_set.state)
        if not said.starts:
            report = world.live.reports.report(pod_set, now)
            assert [each.code for each in said.blocks] == [each.code for each in report.reasons]
