"""Held Jobs and ReplicaSets in a world that changes, fails and restarts: none starts in part, no seat stays.

The world of `test_scheduler_machine` with owners and the controllers that make their pods: a Job is let go,
and makes pods one by one, a ReplicaSet makes gated ones; users suspend, change, scale and delete them.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from fluence import names
from fluence.model.grant import is_delegated, pinned_node
from fluence.model.meta import Condition, ObjectMeta, Requirement
from fluence.model.owner import Job, Owner, PodTemplate, ReplicaSet, StatefulSet
from fluence.model.pod import (
    Affinity,
    Container,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    ResourceRequirements,
    SchedulingGate,
)
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import (
    Bind,
    BindOutcome,
    BindResult,
    Changed,
    Release,
    ReleaseFinished,
    ReleaseResult,
)
from tests.property.test_scheduler_machine import Machine
from tests.unit.schedule import kit

SEEN = {names.SEEN: names.SEEN_YES}
GATES = [SchedulingGate(name=names.GATE_FLUXQUEUE)]


class HeldMachine(Machine):
    """``owners`` by name are the truth, as pods are; ``releasing`` is sent and not answered."""

    def fresh(self):  # type: ignore[no-untyped-def]
        if not hasattr(self, "owners"):
            self.owners: dict[str, Owner] = {}
            self.releasing: dict[str, Release] = {}
            self.handing: dict[str, Bind] = {}
            self.decided: set[str] = set()  # pods that are where the scheduler wanted them
        return super().fresh()

    def put_owner(self, owner: Owner) -> None:
        self.owners[owner.metadata.name] = owner
        self.scheduler.set_owner(owner)

    def change(self, owner: Owner, **spec: object) -> Owner:
        """A change of the spec is another generation."""
        meta = replace(owner.metadata, generation=(owner.metadata.generation or 0) + 1)
        changed = replace(owner, metadata=meta, spec=replace(owner.spec, **spec))
        self.put_owner(changed)
        return changed

    def jobs(self, *, suspended: bool | None = None) -> list[Job]:
        found = [each for each in self.owners.values() if isinstance(each, Job)]
        return [each for each in found if suspended is None or each.spec.suspend == suspended]

    def pods_of(self, owner: Owner) -> list[Pod]:
        uid = owner.metadata.uid
        return [
            pod
            for pod in self.pods.values()
            if any(ref.uid == uid for ref in pod.metadata.owner_references or ())
        ]

    # -- users -----------------------------------------------------------------------------------------------

    @rule(size=st.integers(1, 4), cpu=st.integers(1, 2), indexed=st.booleans())
    def submit_job(self, size: int, cpu: int, indexed: bool) -> None:
        self.made += 1
        job = kit.owner(
            f"j{self.made}",
            labels=dict(SEEN),
            suspend=True,
            parallelism=size,
            completions=size,
            completion_mode="Indexed" if indexed else None,
            template=template(cpu, gated=False),
        )
        meta = replace(job.metadata, creation_timestamp=self.time(), generation=1)
        self.put_owner(replace(job, metadata=meta))

    @rule(size=st.integers(2, 4), cpu=st.integers(1, 2))
    def submit_ordered(self, size: int, cpu: int) -> None:
        """A StatefulSet that makes a pod when the one before it runs."""
        self.made += 1
        made = kit.owner(
            f"o{self.made}",
            kind=StatefulSet,
            labels=dict(SEEN),
            replicas=size,
            template=template(cpu, gated=True),
        )
        self.put_owner(replace(made, metadata=replace(made.metadata, creation_timestamp=self.time())))

    @rule(size=st.integers(1, 4), cpu=st.integers(1, 2), theirs=st.booleans())
    def submit_replicas(self, size: int, cpu: int, theirs: bool) -> None:
        """``theirs``: kube-scheduler binds its pods where the plan says."""
        self.made += 1
        made = kit.owner(
            f"r{self.made}",
            kind=ReplicaSet,
            labels=dict(SEEN),
            replicas=size,
            template=template(cpu, gated=True, scheduler=names.KUBE_SCHEDULER if theirs else "fluence"),
        )
        self.put_owner(replace(made, metadata=replace(made.metadata, creation_timestamp=self.time())))

    @precondition(lambda self: self.jobs(suspended=True))
    @rule(data=st.data(), size=st.integers(1, 4), cpu=st.integers(1, 2))
    def change_job(self, data: st.DataObject, size: int, cpu: int) -> None:
        job = data.draw(st.sampled_from(self.jobs(suspended=True)))
        if not job.succeeded:
            self.change(job, parallelism=size, completions=size, template=template(cpu, gated=False))

    @precondition(lambda self: self.jobs(suspended=False))
    @rule(data=st.data())
    def suspend_job(self, data: st.DataObject) -> None:
        """Its controller deletes the pods."""
        job = data.draw(st.sampled_from(self.jobs(suspended=False)))
        if job.is_finished:
            return
        self.change(job, suspend=True)
        for pod in self.pods_of(job):
            if not pod.is_terminal:
                del self.pods[pod.metadata.name]
                self.scheduler.remove_pod(pod)

    @rule(data=st.data(), size=st.integers(0, 4))
    def scale(self, data: st.DataObject, size: int) -> None:
        sets = [each for each in self.owners.values() if not isinstance(each, Job)]
        if sets:
            self.change(data.draw(st.sampled_from(sets)), replicas=size)

    @rule(data=st.data())
    def delete_owner(self, data: st.DataObject) -> None:
        if self.owners:
            owner = self.owners.pop(data.draw(st.sampled_from(sorted(self.owners))))
            self.scheduler.handle(Changed(owner, None))
            for pod in self.pods_of(owner):
                del self.pods[pod.metadata.name]
                self.scheduler.remove_pod(pod)

    # -- controllers -----------------------------------------------------------------------------------------

    @rule()
    def control(self) -> None:
        """Each makes or deletes one pod, or counts one that ended."""
        for owner in list(self.owners.values()):
            (self.control_job if isinstance(owner, Job) else self.control_replicas)(owner)

    def control_job(self, job: Owner) -> bool:
        if job.spec.suspend or job.is_finished:
            return False
        pods = self.pods_of(job)
        assert job.spec.completions is not None
        done = [pod for pod in pods if pod.status.phase == "Succeeded"]
        if len(done) != job.succeeded and len(done) > job.succeeded:
            ends = [Condition(type="Complete", status="True")] if len(done) >= job.spec.completions else None
            indexes = None
            if job.spec.completion_mode == "Indexed":
                found = sorted({int(pod.labels[names.COMPLETION_INDEX]) for pod in done})
                indexes = ",".join(map(str, found))
            status = replace(job.status, succeeded=len(done), conditions=ends, completed_indexes=indexes)
            self.put_owner(replace(job, status=status))
            return True
        alive = [pod for pod in pods if not pod.is_terminal]
        if len(alive) + len(done) >= job.spec.completions:
            return False
        taken = {pod.labels.get(names.COMPLETION_INDEX) for pod in (*alive, *done)}
        labels = dict(SEEN)
        if job.spec.completion_mode == "Indexed":
            index = next(i for i in range(job.spec.completions) if str(i) not in taken)
            labels[names.COMPLETION_INDEX] = str(index)
        self.make(job, labels)
        return True

    def control_replicas(self, owner: Owner) -> bool:
        pods = [pod for pod in self.pods_of(owner) if not pod.is_terminal]
        wanted = owner.spec.replicas or 0
        if isinstance(owner, StatefulSet):
            return self.control_ordered(owner, pods, wanted)
        if len(pods) < wanted:
            self.make(owner, dict(SEEN))
        elif len(pods) > wanted:
            pod = min(pods, key=lambda each: (each.spec.node_name is not None, each.metadata.name))
            del self.pods[pod.metadata.name]
            self.scheduler.remove_pod(pod)
        return len(pods) != wanted

    def control_ordered(self, owner: Owner, pods: list[Pod], wanted: int) -> bool:
        by_index = {int(pod.labels[names.POD_INDEX]): pod for pod in pods}
        extra = [index for index in by_index if index >= wanted]
        if extra:
            pod = by_index[max(extra)]
            del self.pods[pod.metadata.name]
            self.scheduler.remove_pod(pod)
            return True
        for index in range(wanted):
            there = by_index.get(index)
            if there is None:
                self.make(owner, {**SEEN, names.POD_INDEX: str(index)})
                return True
            if there.spec.node_name is None:
                return False  # the next comes when this one runs
        return False

    def make(self, owner: Owner, labels: dict[str, str]) -> None:
        made = owner.spec.template
        assert made is not None
        pod = self.new_pod(f"{owner.metadata.name}-{self.made}", owner=owner, labels=labels)
        self.put(replace(pod, spec=made.spec))

    # -- the scheduler ---------------------------------------------------------------------------------------

    def judge(self, decisions: Decisions) -> None:
        super().judge(decisions)
        for release in decisions.releases:
            self.releasing[release.key] = release
        of_job: dict[str, list[Bind]] = {}
        for bind in (each for binds in decisions.binds for each in binds):
            for ref in bind.pod.metadata.owner_references or ():
                if ref.kind == "Job":
                    of_job.setdefault(ref.name, []).append(bind)
        for name, binds in of_job.items():
            job = self.owners.get(name)
            if job is None or all(self.scheduler.retries.was_tried(bind.uid) for bind in binds):
                continue
            assert job.spec.completions is not None
            placed = [pod for pod in self.pods_of(job) if pod.spec.node_name]
            flight = [bind for bind in self.flight.values() if bind.pod in self.pods_of(job)]
            there = len(placed) + len(flight) + len(binds)
            assert placed or there >= job.spec.completions, f"{name}: {there} of {job.spec.completions}"
        self.judge_held()

    def judge_held(self) -> None:
        """What is held for pods that have not come is nobody else's: nodes are never overcommitted by what
        we decided ourselves. A reservation that is due and has not begun counts for nothing yet."""
        seats = self.scheduler.cluster.fit
        foreign = {
            pod.spec.node_name
            for pod in self.pods.values()
            if pod.spec.node_name and pod.metadata.uid not in self.decided
        }
        changed = {name for name, each in self.nodes.items() if each.spec.unschedulable}
        for name, at in seats.position.items():
            if name in self.nodes and name not in foreign and name not in changed:
                taken = [
                    seat.needs.get("cpu", 0)
                    for each in seats.jobs.values()
                    if not each.reserved
                    for seat in each.placements.values()
                    if seat.node == name
                ]
                assert sum(taken) <= seats.size("cpu")[at], f"{name} is overcommitted"

    @precondition(lambda self: self.releasing)
    @rule(data=st.data(), fate=st.sampled_from(["ok", "ok", "lost", "again"]))
    def answer_release(self, data: st.DataObject, fate: str) -> None:
        self.carry_out(self.releasing.pop(data.draw(st.sampled_from(sorted(self.releasing)))), fate)

    def carry_out(self, release: Release, fate: str) -> None:
        job = self.owners.get(release.owner.metadata.name)
        if job is None:
            outcome = BindOutcome.GONE
        elif fate == "again" or job.metadata.generation != release.owner.metadata.generation:
            outcome = BindOutcome.AGAIN
        else:
            assert job.spec.suspend, "let go twice"
            self.put_owner(release.carried_out(job))
            if fate == "lost":
                return
            outcome = BindOutcome.BOUND
        self.scheduler.handle(ReleaseFinished(ReleaseResult(release, outcome)), now=self.now)

    # -- kube-scheduler --------------------------------------------------------------------------------------

    def take(self, binds: list[Bind]) -> None:
        """What kube-scheduler binds is handed over, if nothing is stale."""
        super().take([bind for bind in binds if not is_delegated(bind.pod)])
        theirs = [bind for bind in binds if is_delegated(bind.pod)]
        stale = any(self.is_stale(bind) for bind in theirs)
        for bind in theirs:
            if stale:
                gone = self.pods.get(bind.pod.metadata.name) is None
                outcome = BindOutcome.GONE if gone else BindOutcome.STALE
                self.scheduler.told(BindResult(bind, outcome), self.now)
            else:
                self.handing[bind.uid] = bind

    @precondition(lambda self: self.handing)
    @rule(data=st.data(), fate=st.sampled_from(["ok", "ok", "lost", "again"]))
    def answer_hand_over(self, data: st.DataObject, fate: str) -> None:
        self.hand_over(self.handing.pop(data.draw(st.sampled_from(sorted(self.handing)))), fate)

    def hand_over(self, bind: Bind, fate: str) -> None:
        pod = self.pods.get(bind.pod.metadata.name)
        if pod is None:
            outcome = BindOutcome.GONE
        elif self.is_stale(bind):
            outcome = BindOutcome.STALE
        elif fate == "again":
            outcome = BindOutcome.AGAIN
        else:
            assert pod.is_gated, "handed over twice"
            pin = Requirement(key="metadata.name", operator="In", values=[bind.node])
            terms = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[pin])])
            affinity = Affinity(node_affinity=NodeAffinity(required=terms))
            spec = replace(pod.spec, scheduling_gates=None, affinity=affinity)
            self.put(replace(bind.granted(pod), spec=spec))
            self.decided.add(pod.metadata.uid)
            if fate == "lost":
                return
            outcome = BindOutcome.HANDED_OVER
        self.scheduler.told(BindResult(bind, outcome), self.now)

    @rule()
    def kube_scheduler(self) -> None:
        """It binds what is pinned to a node that is there; what is pinned to one that went is deleted."""
        for pod in list(self.pods.values()):
            node = None if pod.spec.node_name or pod.is_terminal else pinned_node(pod)
            if node in self.nodes:
                self.put(replace(pod, spec=replace(pod.spec, node_name=node)))
            elif node is not None:
                del self.pods[pod.metadata.name]
                self.scheduler.remove_pod(pod)

    def bound(self, pod: Pod, bind: Bind) -> Pod:
        found = super().bound(pod, bind)
        self.decided.add(pod.metadata.uid)
        return replace(found, spec=replace(found.spec, scheduling_gates=None))

    @rule()
    def fault(self) -> None:
        """Something fails that is nobody's: the state is built anew while writes are under way."""
        self.scheduler.scheduler._rebuild(self.now)

    @rule()
    def crash(self) -> None:
        self.releasing.clear()
        self.handing.clear()
        super().crash()
        for owner in self.owners.values():
            self.scheduler.set_owner(owner)

    def work(self) -> int:
        return super().work() + sum(job.spec.completions or 0 for job in self.jobs())

    def live(self, ms: int) -> None:
        super().live(ms)
        for _ in range(100):
            busy = bool(self.releasing or self.handing)
            for uid in sorted(self.handing):
                self.hand_over(self.handing.pop(uid), "ok")
            self.kube_scheduler()
            for uid in sorted(self.releasing):
                self.carry_out(self.releasing.pop(uid), "ok")
            for owner in list(self.owners.values()):
                busy |= (self.control_job if isinstance(owner, Job) else self.control_replicas)(owner)
            if not busy:
                break
            self.cycle()
        else:
            raise AssertionError("controllers never rest")
        super().live(1)

    def teardown(self) -> None:
        """Sets are scaled to nothing first: they would make pods for ever."""
        if hasattr(self, "owners"):
            for owner in [each for each in self.owners.values() if not isinstance(each, Job)]:
                self.change(owner, replicas=0)
        super().teardown()


def template(cpu: int, *, gated: bool, scheduler: str = "fluence") -> PodTemplate:
    one = Container(name="c", resources=ResourceRequirements(requests={"cpu": str(cpu)}))
    spec = PodSpec(scheduler_name=scheduler, containers=[one], scheduling_gates=GATES if gated else None)
    return PodTemplate(metadata=ObjectMeta(labels=dict(SEEN)), spec=spec)


TestHeld = HeldMachine.TestCase
TestHeld.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
