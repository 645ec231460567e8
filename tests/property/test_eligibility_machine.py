"""Whole histories of Jobs that depend on each other or are held: nothing starts before it may, in any order
of events, over restarts, and what may start does."""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from fluence import names
from fluence.model.meta import Condition
from fluence.model.owner import Job
from fluence.model.pod import Pod
from fluence.schedule.events import Changed, Object
from tests.unit.cluster.build import bound, ended, node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NAMES = st.sampled_from("abc")
KINDS = ("after", "afterany", "afterok", "afternotok")
TERMS = st.lists(st.tuples(st.sampled_from(KINDS), NAMES), max_size=2)
HELD = st.sampled_from((False, False, False, True))
SOON = st.booleans()  # a cycle runs at once, before the next event
BEGIN = int(kit.T0.timestamp() * 1000)


class Machine(RuleBasedStateMachine):
    """One namespace with Jobs of one pod, and room for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = BEGIN
        self.made = 0
        self.objects: dict[str, Object] = {"node": node("n1", cpu="64", pods="90")}
        self.pending: list[Changed] = []  # events that the scheduler has not seen
        self.wanted: dict[str, tuple[str, list[tuple[str, str]], bool]] = {}  # by uid: how, terms, held
        self.seen: dict[tuple[str, str], tuple[str, str]] = {}  # what a consumer's name means: uid, state
        self.started: set[str] = set()  # uids
        self.driver = self.fresh()

    def fresh(self) -> Driver:
        driver = Driver()
        driver.handle(*(Changed(None, each) for each in self.objects.values()), now=self.now)
        return driver

    def put(self, key: str, item: Object | None) -> None:
        old = self.objects.pop(key, None)
        if item is not None:
            self.objects[key] = item
        self.pending.append(Changed(old, item))

    def job(self, name: str) -> Job | None:
        found = self.objects.get(f"Job/{name}")
        return found if isinstance(found, Job) else None

    # -- what users and controllers do -----------------------------------------------------------------------

    @initialize(first=NAMES, jobs=st.permutations("abc"), terms=st.lists(TERMS, min_size=3, max_size=3))
    def begin(self, first: str, jobs: list[str], terms: list[list[tuple[str, str]]]) -> None:
        for name, some in zip(jobs, terms, strict=True):
            self.create(name, [] if name == first else some, False, False, False, False)
        self.cycle(1)

    @rule(name=NAMES, terms=TERMS, any_=st.booleans(), held=HELD, pod_first=st.booleans(), soon=SOON)
    def create(
        self, name: str, terms: list[tuple[str, str]], any_: bool, held: bool, pod_first: bool, soon: bool
    ) -> None:
        if self.job(name) is not None:
            return
        self.made += 1
        notes = {names.DURATION: "1h", **({names.HOLD: "true"} if held else {})}
        if terms:
            notes[names.DEPENDS_ON] = ("?" if any_ else ",").join(f"{kind}:{of}" for kind, of in terms)
        job = kit.owner(name, parallelism=1, completions=1, annotations=notes or None)
        uid = f"job-{self.made}"
        job = replace(job, metadata=replace(job.metadata, uid=uid, creation_timestamp=kit.T0))
        pod = kit.pod(f"{name}-0", owner=job, uid=f"pod-{self.made}")
        self.wanted[uid] = ("any" if any_ else "all", terms, held)
        pairs: list[tuple[str, Object]] = [(f"Job/{name}", job), (f"Pod/{name}-0", pod)]
        for key, item in reversed(pairs) if pod_first else pairs:
            self.put(key, item)
        if soon:
            self.cycle(1)

    @rule(name=NAMES, ok=st.booleans(), delete=st.booleans(), soon=SOON)
    def end(self, name: str, ok: bool, delete: bool, soon: bool) -> None:
        job, pod = self.job(name), self.objects.get(f"Pod/{name}-0")
        if job is None or not isinstance(pod, Pod) or pod.spec.node_name is None or job.is_finished:
            return
        self.put(f"Pod/{name}-0", ended(pod, phase="Succeeded" if ok else "Failed"))
        condition = Condition(type="Complete" if ok else "Failed", status="True")
        status = type(job.status)(conditions=[condition], succeeded=int(ok), failed=int(not ok))
        self.put(f"Job/{name}", replace(job, status=status))
        if delete:
            self.remove(name, soon)
        elif soon:
            self.cycle(1)

    @rule(name=NAMES, soon=SOON)
    def remove(self, name: str, soon: bool) -> None:
        if self.job(name) is not None:
            self.put(f"Pod/{name}-0", None)
            self.put(f"Job/{name}", None)
        if soon:
            self.cycle(1)

    @rule(name=NAMES)
    def runs(self, name: str) -> None:
        job, pod = self.job(name), self.objects.get(f"Pod/{name}-0")
        if job is not None and isinstance(pod, Pod) and pod.spec.node_name and not job.is_finished:
            self.put(f"Job/{name}", replace(job, status=type(job.status)(ready=1)))

    @rule(name=NAMES, held=st.booleans())
    def hold_or_release(self, name: str, held: bool) -> None:
        job = self.job(name)
        if job is not None:
            uid = job.metadata.uid
            notes = {key: value for key, value in job.annotations.items() if key != names.HOLD}
            notes |= {names.HOLD: "true"} if held else {}
            self.put(f"Job/{name}", replace(job, metadata=replace(job.metadata, annotations=notes or None)))
            self.wanted[uid] = (*self.wanted[uid][:2], held)

    @rule(ok=st.booleans(), delete=st.booleans(), soon=SOON)
    def end_all(self, ok: bool, delete: bool, soon: bool) -> None:
        for name in "abc":
            self.end(name, ok, delete, soon)

    @rule()
    def restart(self) -> None:
        self.pending.clear()
        self.seen.clear()
        self.driver = self.fresh()

    # -- what the scheduler does -----------------------------------------------------------------------------

    @rule(later=st.sampled_from((1, 1_000, 60_000)))
    def cycle(self, later: int) -> None:
        self.now += later
        for event in self.pending:
            self.look(event)
        self.driver.handle(*self.pending, now=self.now)
        self.pending.clear()
        self.see_all()
        for _ in range(20):
            decisions = self.driver.cycle(self.now)
            for bind in (bind for binds in decisions.binds for bind in binds):
                key = f"Pod/{bind.pod.metadata.name}"
                pod = self.objects[key]
                assert isinstance(pod, Pod)
                job = self.job(bind.pod.metadata.name.removesuffix("-0"))
                assert job is not None
                assert self.may_start(job), f"{job.metadata.name} starts too early"
                self.started.add(job.metadata.uid)
                self.put(key, bound(bind.carried_out(pod), bind.node))
                self.driver.handle(self.pending.pop())
                self.see_all()
            if not decisions.binds and not self.driver.scheduler.has_more:
                break
        else:
            raise AssertionError("it does not come to rest")

    def look(self, event: Changed) -> None:
        """The outcome of a producer that some consumer knows, as events show it."""
        item = event.object
        if isinstance(item, Job):
            for key, (uid, state) in self.seen.items():
                if uid == item.metadata.uid and state not in ("ok", "failed", "gone"):
                    now = state_of(item)
                    if event.new is None and now not in ("ok", "failed"):
                        now = "gone"
                    self.seen[key] = (uid, now)

    def see_all(self) -> None:
        """A cycle looks up the names of all consumers that it knows."""
        for item in self.objects.values():
            if isinstance(item, Job) and f"Pod/{item.metadata.name}-0" in self.objects:
                for _, name in self.wanted[item.metadata.uid][1]:
                    producer = self.job(name)
                    if producer is not None and (item.metadata.uid, name) not in self.seen:
                        self.seen[item.metadata.uid, name] = (producer.metadata.uid, state_of(producer))

    def may_start(self, job: Job) -> bool:
        how, terms, held = self.wanted[job.metadata.uid]
        if held:
            return False
        if not terms or state_of(job) != "waiting" or job.metadata.uid in self.started:
            return True
        holds = []
        for kind, name in terms:
            _, state = self.seen.get((job.metadata.uid, name), ("", "unknown"))
            over = ("ok", "failed", "gone")
            opens = {
                "after": ("started", *over),
                "afterany": over,
                "afterok": ("ok",),
                "afternotok": ("failed",),
            }
            holds.append(state in opens[kind])
        return any(holds) if how == "any" else all(holds)

    @invariant()
    def what_may_start_has_started(self) -> None:
        if self.pending:
            return
        for item in self.objects.values():
            if isinstance(item, Job) and not item.is_finished:
                pod = self.objects.get(f"Pod/{item.metadata.name}-0")
                if isinstance(pod, Pod) and not pod.spec.node_name and self.now > BEGIN:
                    assert not self.may_start(item) or self.was_not_asked(), f"{item.metadata.name} waits"

    def was_not_asked(self) -> bool:
        """A restart has seen the objects, and no cycle has run since."""
        return not self.driver.scheduler.state.takeover.has_begun


def state_of(job: Job) -> str:
    ends = {each.type for each in job.status.conditions or ()}
    if ends:
        return "failed" if "Failed" in ends else "ok"
    return "started" if job.status.ready else "waiting"


TestEligibility = Machine.TestCase
TestEligibility.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_long_histories() -> None:
    """Hypothesis prefers short histories; a dependency that opens wrongly is mostly seen in a long one."""
    for seed in range(120):
        random, machine = Random(seed), Machine()

        def coin(random: Random = random) -> bool:
            return random.random() < 0.5

        def terms(random: Random = random) -> list[tuple[str, str]]:
            return [(random.choice(KINDS), random.choice("abc")) for _ in range(random.randint(0, 2))]

        machine.begin(random.choice("abc"), random.sample("abc", 3), [terms() for _ in range(3)])
        for _ in range(40):
            name = random.choice("abc")
            match random.randint(0, 7):
                case 0 | 1:
                    machine.create(name, terms(), coin(), coin() and coin(), coin(), coin())
                case 2 | 3:
                    machine.end(name, coin(), coin(), coin())
                case 4:
                    machine.remove(name, coin())
                case 5:
                    machine.runs(name)
                case 6:
                    machine.hold_or_release(name, coin())
                case 7:
                    machine.restart()
            machine.cycle(1_000)
            machine.what_may_start_has_started()
