"""Seats against a plain account of what they mean: loops, no columns, one question at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fluence.graph.graph import CONTAINMENT, Batch, Mask, ResourceGraph
from fluence.match import policy as policies
from fluence.match.matcher import Matcher
from fluence.match.request import Extensions, Never, Wait
from fluence.placer.gang_fit import GangFit
from fluence.placer.placer import Attempt, GangHolding, GangPlacement, GangRequest, Members, PodPlacement
from tests.property.model import jobs_at

POOLS = ("cpu", "memory", "pods")
HORIZON = 1000


def build(nodes: list[dict[str, int]]) -> ResourceGraph:
    batch = Batch()
    root = batch.roots[CONTAINMENT] = batch.vertex("cluster", id=0, uniq_id=0)
    zones = []
    for zone in range(2):
        zones.append(batch.vertex("zone", id=zone, uniq_id=len(batch.type)))
        batch.edge(root, zones[-1])
    for number, sizes in enumerate(nodes):
        node = batch.vertex("node", id=number, uniq_id=len(batch.type), rank=number, up=sizes["up"] > 0)
        batch.edge(zones[number % 2], node)
        for type_ in POOLS:
            if sizes[type_]:
                row = batch.vertex(type_, id=0, uniq_id=len(batch.type), size=sizes[type_])
                batch.edge(node, row)
        for gpu in range(sizes["gpu"]):
            batch.edge(node, batch.vertex("gpu", id=gpu, uniq_id=len(batch.type)))
    graph = ResourceGraph()
    graph.extend(batch)
    return graph


class Apart:
    """A rule about other pods: nobody shares a node with somebody of the gang, and some sit one by one."""

    def __init__(self, alone: tuple[bool, ...], nodes: int) -> None:
        self.alone_, self.nodes = alone, nodes

    def begin(self, at: int) -> Attempt:
        return _Apart(self)

    def order(self, turns: list[int]) -> list[int]:
        return turns


class _Apart:
    def __init__(self, rule: Apart) -> None:
        self.rule = rule
        self.used: set[int] = set()

    def one_at_a_time(self, members: int) -> bool:
        return self.rule.alone_[members]

    def open_nodes(self, members: int) -> Mask:
        mask = np.ones(self.rule.nodes, np.bool_)
        mask[list(self.used)] = False
        return mask

    def score(self, members: int) -> None:
        return None

    def required_free(self, members: int) -> None:
        return None

    def assign(self, members: int, node: int, count: int) -> None:
        self.used.add(node)


# -- the oracle ----------------------------------------------------------------------------------------------


@dataclass
class Oracle:
    """The same answers, found by looking at each vertex."""

    fit: GangFit

    @property
    def matcher(self) -> Matcher:
        return self.fit.matcher

    def end(self, at: int, duration: int | None) -> int:
        return HORIZON if duration is None else min(at + duration, HORIZON)

    def earliest(
        self, gang: GangRequest, now: int, duration: int | None
    ) -> tuple[int, dict[object, str]] | str:
        found = self.now(gang, now, duration)
        if not isinstance(found, str):
            return now, found
        if found == "never":
            return "never"
        for time in sorted({t for t in self.matcher.ledger.times() if now < t < HORIZON}):
            window = Books(self, time, self.end(time, duration))
            nodes = self.arrange(gang, window, time)
            if nodes is not None:
                return time, nodes
        return "wait"

    def now(self, gang: GangRequest, now: int, duration: int | None) -> dict[object, str] | str:
        nodes = self.arrange(gang, Books(self, now, self.end(now, duration)), now)
        if nodes is not None:
            return nodes
        bare = GangRequest(gang.members, gang.minimum, gang.policy)
        return "wait" if self.arrange(bare, Books(self, None, 0), now) is not None else "never"

    def order(self, policy: policies.MatchPolicy) -> list[int]:
        graph = self.matcher.graph
        nodes = np.flatnonzero(graph.alive & (graph.type == graph.types.code("node"))).tolist()
        if policy.stop_early:
            return nodes[::-1]
        scores = policy.scores(graph)
        nodes = [node for node in nodes if scores[node] > 0]
        return sorted(nodes, key=lambda node: scores[node] if policy.ascending else -scores[node])

    def arrange(self, gang: GangRequest, books: Books, at: int) -> dict[object, str] | None:
        policy = policies.find(gang.policy) if isinstance(gang.policy, str) else gang.policy
        turns = sorted(range(len(gang.members)), key=lambda i: (self.slack(gang.members[i], books), i))
        tried: set[int] = set()
        while True:
            sat, stuck = self.attempt(gang, turns, books.copy(), at, policy, partial=False)
            if stuck is None:
                return sat
            if stuck in tried or turns[0] == stuck:
                break
            tried.add(stuck)
            turns = [stuck, *(turn for turn in turns if turn != stuck)]
        if gang.minimum is None or gang.minimum >= gang.size:
            return None
        sat, _ = self.attempt(gang, turns, books.copy(), at, policy, partial=True)
        return sat if len(sat) >= max(gang.minimum, 1) else None

    def slack(self, members: Members, books: Books) -> int:
        count = len(members.pods)
        total = 0
        for i, node in enumerate(self.fit.nodes.tolist()):
            if self.allowed(members, i, node):
                scratch, seats = books.copy(), 0
                while seats < min(members.most or count, count) and scratch.fits(members, node):
                    scratch.take(members, node)
                    seats += 1
                total += seats
        return total * 1000 // count

    def allowed(self, members: Members, i: int, node: int) -> bool:
        graph, tree = self.matcher.graph, self.matcher.tree
        if members.allowed is not None:
            return bool(members.allowed[i])
        return all(bool(graph.up[v]) for v in (node, *tree.ancestors(node)))

    def attempt(
        self,
        gang: GangRequest,
        turns: list[int],
        books: Books,
        at: int,
        policy: policies.MatchPolicy,
        *,
        partial: bool,
    ) -> tuple[dict[object, str], int | None]:
        sitting = gang.rules.begin(at) if gang.rules is not None else None
        place = {row: i for i, row in enumerate(self.fit.nodes.tolist())}
        sat: dict[object, str] = {}
        mine: set[int] = set()
        for turn in turns:
            members = gang.members[turn]
            order = self.order(policy)
            if members.score is not None:
                score = members.score
                order.sort(key=lambda node: -score[place[node]])
            together = (
                sitting.open_nodes(turn) if sitting is not None and not sitting.one_at_a_time(turn) else None
            )
            used: dict[int, int] = {}
            for pod in members.pods:
                open_ = together
                if sitting is not None and sitting.one_at_a_time(turn):
                    open_ = sitting.open_nodes(turn)
                for node in order:
                    if not self.allowed(members, place[node], node) or not books.fits(members, node):
                        continue
                    if open_ is not None and not open_[place[node]]:
                        continue
                    if members.most is not None and used.get(node, 0) >= members.most:
                        continue
                    if policy.node_exclusive and node not in mine and books.touched(node):
                        continue
                    books.take(members, node)
                    used[node] = used.get(node, 0) + 1
                    sat[pod] = self.matcher.graph.name[node]
                    if sitting is not None and sitting.one_at_a_time(turn):
                        sitting.assign(turn, place[node], 1)
                        mine.add(node)
                    break
            for node, count in used.items():
                mine.add(node)
                if sitting is not None and not sitting.one_at_a_time(turn):
                    sitting.assign(turn, place[node], count)
            if sum(used.values()) < len(members.pods) and not partial:
                return sat, turn
        return sat, None


@dataclass
class Books:
    """What is free in a window; None: everything."""

    oracle: Oracle
    start: int | None
    end: int
    taken: dict[int, int] = field(default_factory=dict)

    def copy(self) -> Books:
        return Books(self.oracle, self.start, self.end, dict(self.taken))

    def free(self, row: int) -> int:
        matcher = self.oracle.matcher
        if self.start is None:
            free = int(matcher.graph.size[row])
        else:
            free = matcher.ledger.available(row, self.start, self.end)
        return free - self.taken.get(row, 0)

    def touched(self, node: int) -> bool:
        return self.start is not None and self.oracle.matcher.ledger.is_shared(node, self.start, self.end)

    def below(self, node: int, type_: str) -> list[int]:
        matcher = self.oracle.matcher
        return [row for row in matcher.tree.children(node) if matcher.graph.type_name(row) == type_]

    def fits(self, members: Members, node: int) -> bool:
        if self.free(node) < 1:
            return False
        for type_, amount in members.needs.items():
            rows = self.below(node, type_)
            if type_ == "gpu":
                if sum(self.free(row) > 0 for row in rows) < amount:
                    return False
            elif amount and sum(self.free(row) for row in rows) < amount:
                return False
        return True

    def take(self, members: Members, node: int) -> None:
        for type_, amount in members.needs.items():
            rows = self.below(node, type_)
            if type_ == "gpu":
                for row in [row for row in rows if self.free(row) > 0][:amount]:
                    self.taken[row] = self.taken.get(row, 0) + 1
            elif amount:
                self.taken[rows[0]] = self.taken.get(rows[0], 0) + amount


# -- the machine ---------------------------------------------------------------------------------------------

sizes = st.fixed_dictionaries(
    {
        "cpu": st.integers(0, 6),
        "memory": st.integers(1, 6),
        "pods": st.integers(1, 4),
        "gpu": st.integers(0, 3),
        "up": st.sampled_from([1, 1, 1, 0]),
    }
)
needs = st.dictionaries(st.sampled_from([*POOLS, "gpu"]), st.integers(0, 3), min_size=1)
POLICIES = [*policies.names(), "policy=high node_exclusive=true"]
durations = st.one_of(st.none(), st.integers(1, 12))


class SeatMachine(RuleBasedStateMachine):
    @initialize(nodes=st.lists(sizes, min_size=1, max_size=5))
    def start(self, nodes: list[dict[str, int]]) -> None:
        self.count = len(nodes)
        graph = build(nodes)
        quantities = frozenset(POOLS)
        self.matcher = Matcher(graph, "low", horizon=HORIZON, extensions=Extensions(quantities=quantities))
        self.fit = GangFit(self.matcher)
        self.fit.look(0)
        self.oracle = Oracle(self.fit)
        self.now = 0
        self.next = 1

    @st.composite
    @staticmethod
    def _gang(draw: st.DrawFn, self: SeatMachine) -> GangRequest:
        members = []
        for group in range(draw(st.integers(1, 3))):
            count = draw(st.integers(1, 4))
            mask = st.lists(st.booleans(), min_size=self.count, max_size=self.count)
            score = st.lists(st.integers(0, 2), min_size=self.count, max_size=self.count)
            members.append(
                Members(
                    tuple(f"{self.next}-{group}-{i}" for i in range(count)),
                    draw(needs),
                    np.array(draw(mask), np.bool_) if draw(st.booleans()) else None,
                    np.array(draw(score), np.int64) if draw(st.booleans()) else None,
                    draw(st.sampled_from([None, None, 1, 2])),
                )
            )
        alone = tuple(draw(st.booleans()) for _ in members)
        rules = Apart(alone, self.count) if draw(st.integers(0, 3)) == 0 else None
        total = sum(len(each.pods) for each in members)
        minimum = draw(st.one_of(st.none(), st.integers(1, total)))
        return GangRequest(tuple(members), minimum, draw(st.sampled_from(POLICIES)), rules)  # type: ignore[arg-type]

    @rule(data=st.data(), duration=durations)
    def seat(self, data: st.DataObject, duration: int | None) -> None:
        gang = data.draw(self._gang(self))
        expected = self.oracle.now(gang, self.now, duration)
        before = self.matcher.ledger.generation
        tried = self.fit.try_now(gang, now=self.now, duration=duration)
        assert self.matcher.ledger.generation == before
        found = self.fit.allocate(gang, job=self.next, now=self.now, duration=duration)
        assert type(tried) is type(found)
        self.compare(gang, found, expected)

    @rule(data=st.data(), duration=durations)
    def reserve(self, data: st.DataObject, duration: int | None) -> None:
        gang = data.draw(self._gang(self))
        expected = self.oracle.earliest(gang, self.now, duration)
        found = self.fit.reserve(gang, job=self.next, now=self.now, duration=duration)
        if isinstance(found, GangPlacement):
            assert not isinstance(expected, str), expected
            assert found.at == expected[0]
            assert found.reserved == (found.at > self.now)
            self.compare(gang, found, expected[1])
        else:
            assert isinstance(expected, str)
            self.compare(gang, found, expected)

    def compare(
        self, gang: GangRequest, found: GangPlacement | Wait | Never, expected: dict[object, str] | str
    ) -> None:
        if isinstance(found, GangPlacement):
            assert found.nodes == expected
            total, least = gang.size, gang.size if gang.minimum is None else gang.minimum
            assert least <= len(found.placements) == total - len(found.left)
            owned = [row for seat in found.placements for row in seat.devices]
            assert len(owned) == len(set(owned)) == sum(seat.needs.get("gpu", 0) for seat in found.placements)
            self.next += 1
        else:
            assert expected == ("wait" if isinstance(found, Wait) else "never")
            assert self.next not in self.fit.jobs

    def gangs(self) -> list[int]:
        return sorted(job for job, held in self.fit.jobs.items() if isinstance(held, GangHolding))

    @precondition(lambda self: self.gangs())
    @rule(data=st.data(), duration=durations)
    def undo(self, data: st.DataObject, duration: int | None) -> None:
        """What was placed, given back and prolonged since a mark is taken back, for all who follow."""
        view, ledger = self.fit.look(self.now), self.matcher.ledger
        before = view.free.tolist(), view.users.tolist(), list(self.fit.availability.events)
        jobs = {job: dict(self.fit.jobs[job].placements) for job in self.gangs()}
        mark = ledger.mark()
        for job in data.draw(st.lists(st.sampled_from(self.gangs()), unique=True)):
            if data.draw(st.booleans()):
                self.fit.release(job)
            else:
                self.fit.prolong(job, ledger.jobs[job].end + 1)
        gang = data.draw(self._gang(self))
        self.fit.reserve(gang, job=99_999, now=self.now, duration=duration)
        self.matcher.undo(mark)
        ledger.settle()
        view = self.fit.look(self.now)
        assert (view.free.tolist(), view.users.tolist(), self.fit.availability.events) == before
        assert {job: self.fit.jobs[job].placements for job in self.gangs()} == jobs

    @precondition(lambda self: self.gangs())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.gangs()))
        seats = list(self.fit.jobs[job].placements)
        if data.draw(st.booleans()):
            freed = self.fit.release(job)
            assert [seat.pod for seat in freed] == seats
            assert job not in self.fit.jobs
        else:
            gone = data.draw(st.lists(st.sampled_from(seats), unique=True))
            self.fit.release(job, gone)
            left = list(self.fit.jobs[job].placements) if job in self.fit.jobs else []
            assert left == [pod for pod in seats if pod not in gone]

    @precondition(lambda self: self.fit.jobs)
    @rule(data=st.data(), more=st.integers(1, 5))
    def prolong(self, data: st.DataObject, more: int) -> None:
        """Only what no reservation is in the way of, or capacity would not hold."""
        job = data.draw(st.sampled_from(sorted(self.fit.jobs)))
        record = self.matcher.ledger.jobs[job]
        others = [other for other in self.matcher.ledger.jobs.values() if other.id != job]
        if record.end < HORIZON - more and not any(
            other.start < record.end + more and other.end > record.end for other in others
        ):
            self.fit.prolong(job, record.end + more)

    @rule(step=st.integers(1, 8))
    def advance(self, step: int) -> None:
        self.now += step
        self.fit.look(self.now)

    @rule(data=st.data())
    def others_use_the_matcher(self, data: st.DataObject) -> None:
        """Somebody else records in the ledger: the columns notice."""
        self.matcher.ledger.add(
            10_000 + self.next,
            start=self.now,
            end=self.now + 1,
            reserved=False,
            vertices=self.fit.nodes[:0],
            needs=np.empty(0, np.int64),
            exclusive=np.empty(0, np.bool_),
        )
        self.next += 1

    @invariant()
    def columns_are_the_ledger(self) -> None:
        ledger, graph = self.matcher.ledger, self.matcher.graph
        view = self.fit.availability.at(self.now)
        for row in range(graph.rows):
            assert view.free[row] == ledger.available(row, self.now, self.now + 1)
            assert view.users[row] == sum(j.start <= self.now < j.end for j in jobs_at(ledger, row))
        assert view.free[-1] == 0

    @invariant()
    def nothing_is_over_capacity(self) -> None:
        ledger, graph = self.matcher.ledger, self.matcher.graph
        for row in range(graph.rows):
            assert ledger.available(row, 0, HORIZON) >= 0, graph.path(row)

    def teardown(self) -> None:
        if not hasattr(self, "fit"):
            return
        for job in list(self.matcher.ledger.jobs):
            self.fit.release(job) if job in self.gangs() else self.matcher.cancel(job)
        view = self.fit.availability.at(self.now)
        assert (view.free[:-1] == self.matcher.graph.size).all()
        assert not view.users.any()
        assert not self.fit.availability.events


SeatMachine.TestCase.settings = settings(stateful_step_count=10)
TestSeats = SeatMachine.TestCase


def test_pods_that_run_already_are_held_whether_they_fit_or_not() -> None:
    matcher = Matcher(
        build([{"cpu": 2, "memory": 2, "pods": 2, "gpu": 1, "up": 1}]),
        extensions=Extensions(quantities=frozenset(POOLS)),
    )
    seats = GangFit(matcher)
    seats.hold(1, [PodPlacement("a", "node0", {"cpu": 5, "gpu": 3, "pods": 1})], start=0)
    assert seats.free("cpu").tolist() == [-3]
    assert seats.free("gpu").tolist() == [0]
    gang = GangRequest((Members(("b",), {"cpu": 1}),))
    assert seats.allocate(gang, job=2, now=0) == Wait("busy")
    assert isinstance(
        seats.allocate(GangRequest((Members(("b",), {"pods": 1}),)), job=2, now=0), GangPlacement
    )
    seats.release(1)
    assert isinstance(seats.allocate(gang, job=3, now=0), GangPlacement)
