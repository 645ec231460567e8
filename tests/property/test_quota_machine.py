"""Queues with quotas under random events, with both planners and all policies: no limit is ever passed.

Q1: at no time from now on do running and reserved work pass a limit. Q2: what the book has counted step by
step is what it would count afresh, and a queue uses what its children use. Q3: quotas are legal after each
event, or a change of the queues has made them illegal and nothing more starts there. Q6: a job counts in one
leaf. Q7: queues that are not valid change nothing.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from fluence.model.queues import PerUser, Queue, QueuesInForce, QueueTree, Resource, Stop
from fluence.queue import Dependency, JobState, Submission
from fluence.queue.job import SECOND
from fluence.queue.quota import JOBS, QuotaBook
from tests.property.test_queue_machine import _SETTINGS, CORES, POLICIES, QueueMachine, act, state_of
from tests.unit.queue.build import cores, graph, nodes, pool

CORE = Resource("core")


def tree(
    top: int | None = 6, a: int | None = 4, b: int | None = None, per_user: PerUser | None = None, **more: Any
) -> list[Queue]:
    def limit(of: int | None) -> dict[Resource, int]:
        return {} if of is None else {CORE: of}

    return [
        Queue("top", limit=limit(top), stop=more.get("stop", Stop.NONE)),
        Queue("a", "top", limit=limit(a), guaranteed={CORE: 2}),
        Queue("b", "top", limit=limit(b), per_user=per_user or PerUser()),
        *([] if more.get("without_c") else [Queue("c", limit=limit(more.get("c")))]),
    ]


TREES = (
    tree(),
    tree(top=None, a=3, c=5),
    tree(top=8, a=8, per_user=PerUser(running=1)),
    tree(top=8, a=4, per_user=PerUser(amounts={CORE: 3})),
    tree(top=4, a=2, b=3, c=2),
    tree(stop=Stop.HOLD),
    tree(without_c=True),
)
INVALID = ([Queue("a", "b"), Queue("b", "a")], [Queue("a", "nowhere")], [Queue("a"), Queue("a")])


class QuotaMachine(QueueMachine):
    """Jobs of three leaves, of two users; the queues change while jobs wait and run."""

    base = staticmethod(pool)

    def make(self, policy: str, **size: int) -> Any:  # type: ignore[override]
        return self.base(policy, queues=QueueTree(TREES[0]), **size)

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: str) -> None:
        super().begin(policy)
        self.in_force = QueuesInForce()
        assert self.in_force.replace(TREES[0])
        self.changed = -1  # when the queues last did

    @rule(
        size=st.integers(1, CORES),
        minutes=st.integers(1, 5),
        priority=st.sampled_from([16, 16, 16, 20]),
        tasks=st.sampled_from([1, 1, 1, 3]),
        after=st.none() | st.tuples(st.sampled_from(["afterok", "afterany"]), st.integers(0, 30)),
        queue=st.sampled_from(["a", "a", "b", "b", "c", "top", "nowhere"]),
        user=st.sampled_from(["ada", "bob"]),
        bounded=st.sampled_from([True, True, True, False]),
    )
    def submit(
        self,
        size: int,
        minutes: int,
        priority: int,
        tasks: int,
        after: tuple[str, int] | None,
        queue: str,
        user: str,
        bounded: bool,
    ) -> None:
        waits: tuple[Dependency, ...] = ()
        if after is not None and self.queue.records:
            keys = list(self.queue.records)
            waits = (Dependency(after[0], keys[after[1] % len(keys)]),)
        job = Submission(
            f"j{len(self.queue.records)}",
            self.request(size),
            self.now,
            limit=minutes * 60 * SECOND if bounded else None,
            priority=priority,
            tasks=tasks,
            after=waits,
            queue=queue,
            user=user,
        )
        self.do("submit", job)

    @rule(which=st.integers(0, len(TREES) - 1))
    def change_queues(self, which: int) -> None:
        assert self.in_force.replace(TREES[which])
        running = set(self.queue.planner.allocations.running)
        self.do("use_queues", self.in_force.tree, self.now)
        self.changed = self.now
        assert set(self.queue.planner.allocations.running) == running, "a change of queues ended a job"
        self.do("cycle", self.now)

    @rule()
    def leave_the_queues_and_return(self) -> None:
        """Without queues all that waited keeps its place and its promise."""
        before = [(record.key, record.no_later_than) for record in self.queue.pending]
        self.do("drop_queues", self.now)
        assert self.queue.quotas is None and self.queue.turns is None
        after = [(record.key, record.no_later_than) for record in self.queue.pending]
        assert [each for each in after if each in before] == before
        assert [record.order for record in self.queue.pending] == sorted(
            record.order for record in self.queue.pending
        )
        self.do("use_queues", self.in_force.tree, self.now)
        self.changed = self.now
        self.do("cycle", self.now)

    @rule(which=st.integers(0, len(INVALID) - 1))
    def offer_invalid_queues(self, which: int) -> None:
        before = self.in_force.tree
        assert not self.in_force.replace(INVALID[which])
        assert self.in_force.tree is before
        assert self.in_force.problems

    # -- what holds ------------------------------------------------------------------------------------------

    @invariant()
    def no_limit_is_passed_at_any_time(self) -> None:
        queue_tree = self.in_force.tree
        allocations = self.queue.planner.allocations
        held = [(*self.of(task), each) for task, each in allocations.running.items()]
        held += [(*self.of(task), each) for task, each in allocations.reserved.items()]
        times = sorted({self.now, *(max(each.start, self.now) for _, _, _, each in held)})
        for name, queue in queue_tree.queues.items():
            below = {leaf for leaf in queue_tree.leaves if name in queue_tree.paths[leaf]}
            limits: list[tuple[str | None, Resource, int]] = [
                (None, CORE, limit) for limit in queue.limit.values()
            ]
            limits += [
                (user, resource, limit)
                for user in ("ada", "bob")
                for resource, limit in (
                    *queue.per_user.amounts.items(),
                    *([(JOBS, queue.per_user.running)] if queue.per_user.running is not None else []),
                )
            ]
            for user, resource, limit in limits:
                for time in times:
                    users = [
                        (1 if resource is JOBS else size, each)
                        for leaf, whose, size, each in held
                        if leaf in below
                        and (user is None or whose == user)
                        and each.start <= time
                        # NB what runs past its end holds what it has
                        and (time < each.end or (not each.reserved and time == self.now))
                    ]
                    if sum(size for size, _ in users) > limit:
                        # The queues have changed: nothing starts there until enough has ended.
                        assert all(not each.reserved and each.start <= self.changed for _, each in users)

    @invariant()
    def the_book_is_what_it_would_count_afresh(self) -> None:
        book, allocations = self.queue.quotas, self.queue.planner.allocations
        assert book is not None
        twin = QuotaBook(self.in_force.tree, self.now)
        twin.claims = book.claims
        for each in (*allocations.running.values(), *allocations.reserved.values()):
            twin.added(each)
        times = [self.now, *(each.start for each in allocations.reserved.values())]
        times += [each.end for each in allocations.running.values()]
        for time in times:
            if time >= self.now:
                assert book.used(time) == twin.used(time)

    @invariant()
    def no_queue_uses_more_than_its_limit_or_the_queues_have_changed(self) -> None:
        book = self.queue.quotas
        assert book is not None
        tree = self.in_force.tree
        usage = {leaf: amounts.get(CORE, 0) for leaf, amounts in book.usage().items()}
        legal = all(
            sum(amount for leaf, amount in usage.items() if name in tree.paths.get(leaf, ()))
            <= queue.limit[CORE]
            for name, queue in tree.queues.items()
            if CORE in queue.limit
        )
        assert legal or any(e.start <= self.changed for e in self.queue.planner.allocations.running.values())

    @invariant()
    def a_job_counts_in_one_leaf_and_only_leaves_take_jobs(self) -> None:
        assert self.queue.quotas is not None
        for record in self.queue.records.values():
            if record.state in (JobState.PENDING, JobState.RESERVED) and record.waiting:
                assert record.job.queue in self.in_force.tree.leaves
            if record.running:
                assert self.queue.quotas.claims[record.key].leaf == record.job.queue

    def of(self, task: str) -> tuple[str, str, int]:
        """The queue, the user and the size of a task, by its job."""
        record = self.queue.records[task if task in self.queue.records else task.rpartition("[")[0]]
        size = self.queue.planner.amounts(record.job.request)["core"]
        return record.job.queue, record.job.user, size

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        twin = self.make(self.policy, nodes=2, cores=CORES // 2)
        for what, args in self.log:
            act(twin, what, *args)
        assert state_of(twin) == state_of(self.queue), "replaying the log gives another state"
        act(self.queue, "use_queues", QueueTree(tree(top=None, a=None)), self.now)
        self.drain()


class GraphQuotaMachine(QuotaMachine):
    base = staticmethod(graph)

    def request(self, size: int) -> Any:
        return cores(size) if size % 2 else nodes(1, min(size, CORES // 2))


TestQuotasOfUnits = QuotaMachine.TestCase
TestQuotasOfUnits.settings = _SETTINGS
TestQuotasOnAGraph = GraphQuotaMachine.TestCase
TestQuotasOnAGraph.settings = settings(_SETTINGS, max_examples=40)
