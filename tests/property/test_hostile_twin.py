"""Whatever a tenant writes on its own objects, another namespace is decided for as if it had not.

One history is told to two schedulers. In both worlds an innocent namespace and a tenant submit the same work.
In the second one the tenant also writes all that users can write: forged notes, pins, gates, references and
sizes, on objects that ask for no capacity, and on its own work after the scheduler has decided about it. Who
starts in the innocent namespace, when, where and with which devices, and which starts it is told, must be the
same in both. Users write no status, so what was granted is there after each restart.

`FLUENCE_TWINS=N` runs N examples.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from fluence import names
from fluence.cluster.graph import job_number
from fluence.model import hostlist
from fluence.model.grant import PodGrant, ReleaseNote
from fluence.model.meta import OwnerReference
from fluence.model.node import NodeSpec
from fluence.model.owner import Deployment, Job, Owner, PodTemplate, ReplicaSet, StatefulSet
from fluence.model.pod import Container, Pod, PodSpec, ResourceRequirements, SchedulingGate
from fluence.schedule.overruns import LimitMode
from tests.property.hostile_world import EVIL, GOOD, SEEN, Outcome, World, pinned
from tests.property.test_device_machine import BACKENDS, document
from tests.property.test_scheduler_machine import node
from tests.unit.schedule import kit

POLICIES = ["easy", "conservative", "fcfs"]
ASKS: list[dict[str, int]] = [{}, {}, {}, {"qpu": 1}, {"qubit": 2}, {"licence": 2}]
OURS = [SchedulingGate(name=names.GATE_FLUXQUEUE)]
THEIRS = SchedulingGate(name="example.com/hold")
NOWHERE = {"example.com/nowhere": "yes"}
MANY = "99"  # members that a forged group never has
CHOICE = st.integers(0, 1000)


def spec(cpu: str = "1", *, ask: dict[str, int] | None = None, **more: Any) -> PodSpec:
    needs = {names.DEVICE_PREFIX + type_: str(n) for type_, n in (ask or {}).items()}
    box = Container(name="c", resources=ResourceRequirements(requests={"cpu": cpu, **needs}))
    return PodSpec(containers=[box], **{"scheduler_name": "fluence", **more})


@dataclass(frozen=True)
class Forgery:
    """What a tenant makes up; numbers choose among what there is when it is written."""

    keys: frozenset[str]  # of the annotations that are written
    whom: int
    where: int
    kind: str  # of a reference, where it is not that of whom it names
    controller: bool
    seen: bool
    same_name: bool
    size: int


ANNOTATIONS = (
    names.JOBID,
    names.ALLOCATION,
    names.FLUXQUEUE_NODES,
    names.FLUXQUEUE_INDEXES,
    names.BACKEND,
    names.QUEUED,
    names.WARNED,
    names.GRANTED,
    names.START_PROMISED,
    names.PRODUCER_STARTED,
    names.GATE_OPENED,
    names.QUANTUM_JOB_ID,
)
REQUESTS = (
    names.EXCLUDED,
    names.DEPENDS_ON_PRODUCER,
    names.DEPENDS_ON,
    names.HOLD,
    names.PRIORITY,
    names.MAX_RUNNING,
    names.REQUIRE_BACKEND,
    names.DEVICES,
    names.DURATION,
    names.TAKE_BACK,
    names.BIND,
    names.GROUP_LABEL,
)
FORGERIES = st.builds(
    Forgery,
    keys=st.frozensets(st.sampled_from((*ANNOTATIONS, *REQUESTS)), max_size=6)
    | st.just(frozenset(ANNOTATIONS)),
    whom=CHOICE,
    where=CHOICE,
    kind=st.sampled_from(["", "", "", "", "Job", "StatefulSet", "FluxJob"]),
    controller=st.sampled_from([True, True, True, False]),
    seen=st.sampled_from([True, True, True, False]),
    same_name=st.booleans(),
    size=st.sampled_from([1, 2, 3, 50, 600, 100_000]),
)
WORK: dict[str, Any] = {
    "space": st.sampled_from([GOOD, GOOD, EVIL]),
    "size": st.integers(1, 3),
    "cpu": st.integers(1, 3),
    "limit": st.none() | st.integers(1, 30),
    "ask": st.sampled_from(ASKS),
}
HELD: dict[str, Any] = {
    "space": st.sampled_from([GOOD, EVIL]),
    "kind": st.sampled_from([Job, Job, Job, ReplicaSet, StatefulSet]),
    "size": st.integers(1, 3),
    "cpu": st.integers(1, 2),
    "indexed": st.booleans(),
    "ask": st.sampled_from(ASKS),
    "lazy": st.booleans(),
}
POD_KINDS = ["pinned", "pinned", "other", "closed", "impossible", "lacking", "ended"]
OWNER_KINDS = ["released", "released", "managed", "impossible", "unseen", "cancelled", "replicas", "ordered"]


class TwinMachine(RuleBasedStateMachine):
    """``worlds``: the honest one and the hostile one. Where the tenant may also spoil its own work, there is
    no honest one to compare with, and only what always holds is looked at."""

    @initialize(
        policy=st.sampled_from(POLICIES),
        each=st.booleans(),
        sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
        alone=st.sampled_from([False, False, False, True]),
        delegates=st.booleans(),
        eager=st.booleans(),
        work=st.lists(st.builds(dict, **WORK) | st.builds(dict, **HELD), min_size=2, max_size=6),
    )
    def begin(
        self,
        policy: str,
        each: bool,
        sizes: list[int],
        alone: bool,
        delegates: bool,
        eager: bool,
        work: list[dict[str, Any]],
    ) -> None:
        """``eager``: a cycle follows whatever happens; ``work``: what is there at the beginning."""
        config = {
            "native": True,
            "release_each": each,
            "queue_policy": policy,
            "backoff": (100, 1000),
            "enforce": {"": LimitMode.END},
            "enforce_grace": 5_000,
        }
        self.splits = each  # seats come free one by one, however a gang's pods are counted
        self.theirs = names.KUBE_SCHEDULER if delegates else "fluence"
        self.now, self.made = int(kit.T0.timestamp() * 1000), 0
        devices = document({name: (count, True) for name, _, _, count, _ in BACKENDS})
        self.worlds = [World(config, devices) for _ in range(1 if alone else 2)]
        self.forged: set[str] = set()  # uids of pods, identities of owners
        self.parted = False  # somebody has started earlier in the hostile world
        self.lied = False  # about when its work began: others' likely starts, not their bounds, rest on it
        for number, cpu in enumerate(sizes):
            self.put(node(f"n{number}", cpu))
        self.eager = False
        for each_one in work:
            (self.submit_held if "kind" in each_one else self.submit)(**each_one)
        self.eager = eager
        self.happened()

    # -- both worlds -----------------------------------------------------------------------------------------

    @property
    def hostile(self) -> World:
        return self.worlds[-1]

    @property
    def alone(self) -> bool:
        return len(self.worlds) == 1

    def put(self, found: Any) -> None:
        for world in self.worlds:
            world.put(found)

    def happened(self) -> None:
        if self.eager:
            self.cycle()

    def next(self) -> int:
        """Each object is made in a second of its own: no time of arrival that is made up counts."""
        self.made += 1
        self.now += 1000
        return self.made

    def time(self) -> datetime:
        return datetime.fromtimestamp(self.now // 1000, UTC)

    def new_pod(self, name: str, space: str, spec: PodSpec, **meta: Any) -> Pod:
        made = kit.pod(name, namespace=space)
        return replace(
            made, metadata=replace(made.metadata, creation_timestamp=self.time(), **meta), spec=spec
        )

    def new_owner(self, name: str, space: str, kind: type[Owner], **more: Any) -> Owner:
        made = kit.owner(name, kind=kind, namespace=space, **more)
        return replace(made, metadata=replace(made.metadata, creation_timestamp=self.time(), generation=1))

    @rule(**WORK)
    def submit(self, space: str, size: int, cpu: int, limit: int | None, ask: dict[str, int]) -> None:
        number = self.next()
        notes = {} if limit is None else {names.DURATION: f"{limit}s"}
        link = None
        if size > 1:
            uid = f"uid-{space}-g{number}"
            group = kit.group(f"{space}{number}", size, namespace=space, uid=uid, created=self.time())
            self.put(group)
            link = kit.pod("x", field=group.name).spec.scheduling_group
        for index in range(size):
            asked = spec(str(cpu), ask=ask, scheduling_group=link)
            self.put(self.new_pod(f"p{number}-{index}", space, asked, annotations=dict(notes)))
        self.happened()

    @rule(**HELD)
    def submit_held(
        self,
        space: str,
        kind: type[Owner],
        size: int,
        cpu: int,
        indexed: bool,
        ask: dict[str, int],
        lazy: bool,
    ) -> None:
        """``lazy``: the pods of the tenant's Job do not come, for lack of quota."""
        number = self.next()
        gates = None if kind is Job and self.theirs == "fluence" else OURS
        made = PodTemplate(
            metadata=replace(kit.pod("x").metadata, name="", uid="", labels=dict(SEEN)),
            spec=spec(str(cpu), ask=ask, scheduling_gates=gates, scheduler_name=self.theirs),
        )
        how: dict[str, Any] = {"replicas": size}
        if kind is Job:
            mode = "Indexed" if indexed else None
            how = {"suspend": True, "parallelism": size, "completions": size, "completion_mode": mode}
        owner = self.new_owner(f"h{number}", space, kind, labels=dict(SEEN), template=made, **how)
        for world in self.worlds:
            if lazy and space == EVIL and kind is Job:
                world.lazy.add(owner.identity)
            world.put(owner)
        self.happened()

    def honest(self, *, bound: bool) -> list[str]:
        """Pods that are in all worlds."""
        return [
            key
            for key, pod in self.hostile.pods.items()
            if pod.metadata.uid not in self.forged
            and all(key in world.pods for world in self.worlds)
            and (not bound or (pod.spec.node_name and not pod.is_terminal))
        ]

    @rule(choice=CHOICE, phase=st.sampled_from(["Succeeded", "Failed"]))
    def end(self, choice: int, phase: str) -> None:
        if found := self.honest(bound=True):
            key = found[choice % len(found)]
            for world in self.worlds:
                pod = world.pods[key]
                if pod.spec.node_name:
                    world.put(replace(pod, status=replace(pod.status, phase=phase)))
            self.happened()

    @rule(choice=CHOICE)
    def delete(self, choice: int) -> None:
        if found := self.honest(bound=False):
            key = found[choice % len(found)]
            for world in self.worlds:
                world.remove(world.pods[key])

    @rule(choice=CHOICE)
    def delete_owner(self, choice: int) -> None:
        if found := self.owners(EVIL) + self.owners(GOOD):
            identity = found[choice % len(found)].identity
            for world in self.worlds:
                if identity in world.owners:
                    world.remove(world.owners[identity])

    @rule(choice=CHOICE, closed=st.booleans())
    def cordon(self, choice: int, closed: bool) -> None:
        found = sorted(self.hostile.nodes)
        changed = self.hostile.nodes[found[choice % len(found)]]
        self.put(replace(changed, spec=NodeSpec(unschedulable=closed)))

    def owners(self, space: str) -> list[Owner]:
        """Those that are not forged."""
        found = self.hostile.owners.values()
        return [
            each for each in found if each.metadata.namespace == space and each.identity not in self.forged
        ]

    @rule()
    def cycle(self) -> None:
        self.compare([world.run(self.now) for world in self.worlds])

    @rule(ms=st.sampled_from([1_000, 7_000, 31_000, 130_000, 700_000]))
    def wait(self, ms: int) -> None:
        """Whenever a cycle is due in one world there is one in both."""
        end = self.now + ms
        for _ in range(100):
            dues = [due for world in self.worlds if (due := world.scheduler.next_due()) is not None]
            if not dues or min(dues) > end:
                break
            self.now = max(self.now, min(dues))
            self.cycle()
        self.now = end
        self.cycle()

    @rule(lost=st.booleans())
    def restart(self, lost: bool) -> None:
        """``lost``: what the last cycle decided was not done."""
        if lost:
            outcomes = [world.run(self.now, carried_out=False) for world in self.worlds]
        for world in self.worlds:
            world.restart()
        if lost:
            self.compare(outcomes)

    def compare(self, outcomes: list[Outcome]) -> None:
        """Those who wait are asked about anew whenever something happens, also to others. So one world may
        have told a start before the other has, and estimates of one moment differ by less than a minute."""
        honest, hostile = outcomes[0], outcomes[-1]
        # Who changes what was written on their own work may lose their place to others, who then start before
        # their time. The worlds are two different ones from there on.
        self.parted = self.parted or honest.binds.items() < hostile.binds.items()
        self.parted = self.parted or honest.releases.items() < hostile.releases.items()
        if self.parted:
            self.hostile.judge(self.forged)
            return
        one, other = honest.promises, hostile.promises
        for key in one.keys() & other.keys():
            (bound, likely), (bound_there, likely_there) = one[key], other[key]
            if bound is None or bound_there is None:
                one[key] = other[key] = (None, None)
                continue
            if likely is not None and likely_there is not None and not self.lied:
                assert abs(likely - likely_there) < 60_000, f"{key}: {likely} or {likely_there}"
            one[key], other[key] = (bound, None), (bound_there, None)
        assert outcomes[0] == outcomes[-1], f"honest: {outcomes[0]}\nhostile: {outcomes[-1]}"
        self.hostile.judge(self.forged)

    # -- the tenant ------------------------------------------------------------------------------------------

    def annotations(self, forgery: Forgery) -> dict[str, str]:
        world = self.hostile
        uids = [pod.metadata.uid for pod in world.pods.values()]
        uids += [owner.metadata.uid for owner in world.owners.values()]
        uids += [group.uid for group in world.groups.values()]
        if forgery.same_name:
            uids = [uid for uid in uids if GOOD in uid]
        number = job_number(uids[forgery.whom % len(uids)]) if uids else 7
        where, device = self.node(forgery), BACKENDS[forgery.where % len(BACKENDS)]
        nodes = [where] * min(forgery.size, 3)
        units = ",".join(f'["{name}","{type_}",1]' for name, type_, *_ in BACKENDS)
        given = f'{{"start":1,"devices":[{units},["b/qubit0","qubit",2]]}}'
        note = ReleaseNote(str(number), given, tuple(enumerate(nodes)), forgery.whom % 4)
        groups = [group.name for group in world.groups.values() if self.may_name(group.namespace)]
        said = {
            names.JOBID: str(number),
            names.ALLOCATION: given,
            names.FLUXQUEUE_NODES: hostlist.encode(nodes),
            names.FLUXQUEUE_INDEXES: "0-2",
            names.BACKEND: device[0],
            names.QUEUED: "2020-01-01T00:00:00Z",
            names.WARNED: "2020-01-01T00:00:00Z",
            names.GRANTED: (PodGrant(where).condition() if forgery.whom % 2 else note.condition()).message,
            names.START_PROMISED: "2020-01-01T00:00:00Z",
            names.PRODUCER_STARTED: "x 2020-01-01T00:00:00Z",
            names.GATE_OPENED: "finished",
            names.QUANTUM_JOB_ID: "task",
            names.EXCLUDED: where,
            names.DEPENDS_ON_PRODUCER: f"{GOOD}/p{1 + forgery.whom % 5}-0",
            names.DEPENDS_ON: f"afterok:p{1 + forgery.whom % 5}-0?singleton:{GOOD}",
            names.HOLD: ("", "false")[forgery.whom % 2],
            names.PRIORITY: ("1000", "-1000")[forgery.where % 2],
            names.MAX_RUNNING: "1",
            names.REQUIRE_BACKEND: device[0],
            names.DEVICES: "per-pod",
            names.DURATION: "1s",
            names.TAKE_BACK: "delete",
            names.BIND: names.BIND_KUBE_SCHEDULER,
            names.GROUP_LABEL: groups[forgery.whom % len(groups)] if groups else "none",
        }
        return {key: said[key] for key in said if key in forgery.keys}

    def may_name(self, space: str) -> bool:
        """A tenant that spoils its own work asks for something else than an honest one."""
        return self.alone or space != EVIL

    def node(self, forgery: Forgery) -> str:
        found = sorted(self.hostile.nodes)
        return found[forgery.where % len(found)]

    def references(self, forgery: Forgery) -> list[OwnerReference] | None:
        """Of anything that makes pods, under its own kind or another one."""
        known = [
            owner
            for owner in self.hostile.owners.values()
            if owner.identity in self.forged or self.may_name(owner.metadata.namespace)
        ]
        if forgery.same_name:  # those that have most to lose
            known = [each for each in known if self.is_waiting(each)] or known
        if not known or forgery.whom % 5 == 0:
            return None
        ref = kit.reference(known[forgery.whom % len(known)])
        return [replace(ref, kind=forgery.kind or ref.kind, controller=forgery.controller)]

    def is_waiting(self, owner: Owner) -> bool:
        return owner.spec.suspend and owner.metadata.namespace == GOOD

    def forged_meta(self, forgery: Forgery) -> dict[str, Any]:
        labels = {names.FLUXQUEUE_JOBID: "7", names.COMPLETION_INDEX: str(forgery.whom % 3)}
        return {
            "labels": {**labels, **(SEEN if forgery.seen else {})},
            "annotations": self.annotations(forgery),
            "owner_references": self.references(forgery),
            "finalizers": ["example.com/never"],
        }

    @rule(forgery=FORGERIES, kind=st.sampled_from(POD_KINDS), cpu=st.integers(1, 4), ours=st.booleans())
    def forge_pod(self, forgery: Forgery, kind: str, cpu: int, ours: bool) -> None:
        """A pod that asks for no room which anybody could give it."""
        number, meta = self.next(), self.forged_meta(forgery)
        scheduler = "fluence" if ours else names.KUBE_SCHEDULER
        asked = spec(str(cpu), scheduler_name=scheduler, scheduling_gates=None if ours else OURS)
        if kind == "lacking":
            meta["annotations"] |= {names.GROUP_LABEL: f"f{number}", names.GROUP_SIZE: MANY}
        elif kind == "other":
            asked = replace(asked, scheduler_name="example", scheduling_gates=OURS if ours else None)
        elif kind == "closed":
            asked = replace(asked, scheduling_gates=[THEIRS, *OURS] if ours else [THEIRS])
        elif kind == "impossible":
            asked = replace(asked, node_selector=NOWHERE)
        pod = self.new_pod(f"f{number}", EVIL, asked, **meta)
        if kind == "pinned":
            pod = pinned(pod, self.node(forgery))
            pod = replace(pod, spec=replace(pod.spec, scheduler_name=names.KUBE_SCHEDULER))
        elif kind == "ended":
            pod = pinned(pod, self.node(forgery))
            where = self.node(forgery) if ours else None
            ended = replace(pod.spec, node_name=where)
            pod = replace(pod, spec=ended, status=replace(pod.status, phase="Failed"))
        self.forged.add(pod.metadata.uid)
        self.hostile.put(pod)
        self.happened()

    @rule(forgery=FORGERIES, kind=st.sampled_from(OWNER_KINDS), cpu=st.integers(1, 4))
    def forge_owner(self, forgery: Forgery, kind: str, cpu: int) -> None:
        """A workload that makes no pods and asks for no room, or for what there is not."""
        if kind == "released":
            forgery = dataclasses.replace(forgery, keys=forgery.keys.union(ANNOTATIONS))
        number, meta = self.next(), self.forged_meta(forgery)
        good = [owner.metadata.name for owner in self.owners(GOOD)]
        name = good[forgery.whom % len(good)] if good and forgery.same_name else f"f{number}"
        labels = SEEN if forgery.seen or kind == "released" else meta["labels"]
        asked = spec(str(cpu), node_selector=NOWHERE, scheduler_name=self.theirs)
        if kind in ("released", "managed", "replicas", "unseen"):
            asked = replace(asked, node_selector=None)
        said = replace(kit.pod("x").metadata, labels=dict(SEEN), annotations=meta["annotations"])
        how: dict[str, Any] = {
            "suspend": kind != "released",
            "parallelism": forgery.size,
            "completions": forgery.size,
            "completion_mode": "Indexed" if forgery.controller else None,
            "managed_by": "example.com/nobody" if kind == "managed" else None,
        }
        which: type[Owner] = Job
        if kind == "replicas":
            which, how = (ReplicaSet if forgery.whom % 2 else Deployment), {"replicas": forgery.size}
        elif kind == "ordered":
            which, how = StatefulSet, {"replicas": forgery.size}
        if kind == "unseen":
            labels = {}
        if kind == "cancelled":
            meta["annotations"] |= {names.CANCELLED: "2020-01-01T00:00:00Z"}
        how["template"] = PodTemplate(metadata=said, spec=asked)
        owner = self.new_owner(name, EVIL, which, **how)
        if owner.identity in self.hostile.owners:
            return
        meta |= {"labels": dict(labels), "generation": 1 + forgery.whom % 4}
        owner = replace(owner, metadata=replace(owner.metadata, **meta))
        self.forged.add(owner.identity)
        self.hostile.lazy.add(owner.identity)
        self.hostile.put(owner)
        self.happened()

    @precondition(lambda self: self.forged)
    @rule(forgery=FORGERIES, choice=CHOICE, gone=st.booleans())
    def forge_anew(self, forgery: Forgery, choice: int, gone: bool) -> None:
        """A forged pod names somebody else, or goes."""
        found = [pod for pod in self.hostile.pods.values() if pod.metadata.uid in self.forged]
        if not found:
            return
        pod = found[choice % len(found)]
        if gone:
            self.hostile.remove(pod)
            return
        meta = self.forged_meta(forgery)
        kept = (names.GROUP_LABEL, names.GROUP_SIZE)
        if names.GROUP_SIZE in pod.annotations:
            meta["annotations"] |= {key: pod.annotations[key] for key in kept}
        self.hostile.put(replace(pod, metadata=replace(pod.metadata, **meta)))

    @rule(forgery=FORGERIES, choice=CHOICE, forgets=st.booleans(), restarts=st.booleans())
    def alter(self, forgery: Forgery, choice: int, forgets: bool, restarts: bool) -> None:
        """What the scheduler wrote on the tenant's pods that run, and on its Jobs, is changed or removed,
        perhaps while no scheduler runs."""
        world = self.hostile
        pods = [key for key in self.honest(bound=True) if key.startswith(f"{EVIL}/")]
        owners = self.owners(EVIL)
        if not pods and not owners:
            return
        at = choice % (len(pods) + len(owners))
        found: Pod | Owner = world.pods[pods[at]] if at < len(pods) else owners[at - len(pods)]
        said = {**found.annotations}
        more = ANNOTATIONS if forgery.same_name else (names.JOBID,)
        forgery = dataclasses.replace(forgery, keys=forgery.keys.union(more))
        new = {key: value for key, value in self.annotations(forgery).items() if key in ANNOTATIONS}
        if not self.alone:
            gang = isinstance(found, Pod) and (
                found.spec.scheduling_group is not None or found.metadata.owner_references
            )
            if gang and not self.splits:
                new.pop(names.JOBID, None)
            if names.DURATION in said:
                new.pop(names.ALLOCATION, None)
        self.lied = self.lied or names.ALLOCATION in new
        changed = {key: value for key, value in said.items() if key not in ANNOTATIONS} if forgets else said
        if not self.alone and forgets:
            kept = (names.ALLOCATION, names.JOBID)
            changed |= {key: said[key] for key in kept if key in said}
        meta = replace(found.metadata, annotations={**changed, **new})
        if isinstance(found, Pod) and not found.metadata.owner_references and found.metadata.labels is None:
            meta = replace(meta, owner_references=self.references(forgery))
        world.put(replace(found, metadata=meta))
        if restarts:
            self.restart(lost=False)
        self.happened()

    @rule(choice=CHOICE, cpu=st.integers(1, 4), size=st.integers(1, 4), turns=st.integers(1, 3))
    def abandon(self, choice: int, cpu: int, size: int, turns: int) -> None:
        """A released Job whose pods do not come: an honest tenant deletes it, a hostile one makes it ask for
        more while nobody looks. What it was granted was granted for something else."""
        world = self.hostile
        found = [
            each
            for each in self.owners(EVIL)
            if each.identity in world.lazy and isinstance(each, Job) and not each.spec.suspend
        ]
        if not found:
            return
        job = found[choice % len(found)]
        for each in self.worlds[:-1]:
            each.remove(each.owners[job.identity])
        made = job.spec.template
        assert made is not None
        wider = replace(made, spec=spec(str(cpu), scheduler_name=made.spec.scheduler_name))
        asked = replace(job.spec, template=wider, parallelism=size, completions=size)
        meta = replace(job.metadata, generation=(job.metadata.generation or 0) + 2 * turns)
        self.forged.add(job.identity)
        world.put(replace(job, metadata=meta, spec=asked))
        self.happened()


TestTwins = TwinMachine.TestCase
TestTwins.settings = settings(
    max_examples=int(os.environ.get("FLUENCE_TWINS", "150")), stateful_step_count=40, deadline=None
)
