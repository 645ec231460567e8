"""Turns: the order of waiting jobs, by guarantees and weights of queues, and among the jobs of one account.

Jobs are sorted by priority, then by whether the guarantee of their queue covers them, then by how little of
their share their queue and user have used, then by age. A new order breaks no promise: a job that would start
later than promised keeps its place in front of jobs of its priority (`keep_promises`).

Users may decide which of their own jobs goes first, but must not overtake other users that way. So a job with
a higher favour gets the place of an earlier job with the same account, queue and rank; that job gets the next
place of the account, and so on. The account keeps the same places. A place is used up when a job starts in
it, so no place is used twice. A negative favour lowers the rank instead (`RuleBook.rank`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from fluence.model.queues import Resource
from fluence.queue.allocations import Allocation
from fluence.queue.fair_share import Account, FairShare, dominant_share
from fluence.queue.job import JobRecord, Order, Submission
from fluence.queue.pending import Pending
from fluence.queue.quota import QuotaBook, add_amounts

_PROMISED, _WITHIN, _BEYOND = -1, 0, 1
_LAST: Final = 1 << 62
_PLACE: Final = 4  # trailing numbers of an order: its age
_MAX_TRIES: Final = 4  # to find an order that keeps promises; then the old order stays


class Turns:
    """The order of one queue's waiting jobs."""

    def __init__(self, quotas: QuotaBook, shares: FairShare) -> None:
        self.shares = shares
        self._quotas = quotas
        self._promised: dict[JobRecord, int] = {}  # jobs that keep their place
        self._moved = True  # a task has started or ended, or the queues have changed
        # The keys of the last sort, and the promised jobs that they rest on. `apply` uses them again.
        self._sorted_by: tuple[Mapping[JobRecord, int], dict[JobRecord, Order]] = ({}, {})

    def use(self, quotas: QuotaBook) -> None:
        """Other queues are in force."""
        self._quotas = quotas
        self._moved = True
        self.shares.use(quotas.tree)

    def started(self, record: JobRecord, held: Allocation, capacities: Mapping[str, int]) -> None:
        """A task of a job has started."""
        claim = self._quotas.claims[record.key]
        amounts = _by_name(claim.amounts)
        share = dominant_share(amounts, capacities)
        self.shares.started(held.task, (claim.leaf, claim.user), share, held.start)
        self._moved = True

    def ended(self, task: str, now: int) -> None:
        self.shares.ended(task, now)
        self._moved = True

    def recounted(self, record: JobRecord, task: str, capacities: Mapping[str, int], now: int) -> None:
        """A task of a job uses more or less than before."""
        claim = self._quotas.claims[record.key]
        amounts = _by_name(claim.amounts)
        self.shares.changed(task, dominant_share(amounts, capacities), now)
        self._moved = True

    def of_new(self, job: Submission) -> tuple[int, int]:
        """The turn of a new job: behind all jobs of its priority, until the next cycle sorts it."""
        self.shares.rank((job.queue, job.charged))
        return _BEYOND, _LAST

    # -- ordering --------------------------------------------------------------------------------------------

    @staticmethod
    def begin(records: Iterable[JobRecord]) -> None:
        """Add the turn of a new job to orders without turns, so that the sequence stays the same."""
        for record in records:
            record.order = (record.order[0], _BEYOND, _LAST, *record.order[-_PLACE:])

    @staticmethod
    def end(pending: Sequence[JobRecord], others: Iterable[JobRecord]) -> None:
        """Remove turns from orders. Waiting jobs keep their sequence, so that no promise breaks: they
        exchange their places by age accordingly."""
        for record in others:
            record.order = (record.order[0], *record.order[-_PLACE:])
        by_rank: dict[int, list[JobRecord]] = {}
        for record in pending:
            by_rank.setdefault(record.order[0], []).append(record)
        for rank, some in by_rank.items():
            places = sorted(record.order[-_PLACE:-1] for record in some)
            for place, record in zip(places, some, strict=True):
                record.order = (rank, *place, record.order[-1])

    def order(self, records: Sequence[JobRecord], now: int, *, renewed: bool) -> list[JobRecord] | None:
        """The jobs in the order of guarantees and shares; None: the order has not changed. ``renewed``: some
        of them are new."""
        ranked = self.shares.update(now)
        if not ranked and not renewed and not self._moved:
            return None
        self._moved = False
        self._promised = {
            record: place
            for record, place in self._promised.items()
            if record.waiting and record.no_later_than is not None
        }
        return self._sorted(records)

    def keep_promises(
        self, records: list[JobRecord], plan: Callable[[Sequence[JobRecord]], list[int | None]]
    ) -> list[JobRecord]:
        """The same order, or one in which fewer jobs move back, so that it breaks no promise.

        ``plan`` returns the starts of jobs that are planned in an order."""
        before, promised = sorted(records, key=lambda record: record.order), self._promised
        for _ in range(_MAX_TRIES):
            first = _through_promises(records)  # jobs behind the last promise do not delay it
            if before[: len(first)] == first:
                return records
            late = {record for record in _late(first, plan(first)) if record not in self._promised}
            if not late:
                return records
            late |= self._promised.keys()
            places = (record for record in before if record in late)
            self._promised = {record: place for place, record in enumerate(places)}
            records = self._sorted(records)
        self._promised = promised
        return before

    def apply(self, records: Sequence[JobRecord]) -> bool:
        """Store the order of some jobs in their records; returns whether it has changed."""
        promised, keys = self._sorted_by
        if promised is not self._promised:  # no order was found that keeps promises
            keys = self._keys(records)
        self._sorted_by = ({}, {})
        if sorted(records, key=keys.__getitem__) != records:
            return False  # the order stays as it was
        changed = sorted(records, key=lambda record: record.order) != records
        for record in records:
            record.order = keys[record]
        return changed

    def _sorted(self, records: Sequence[JobRecord]) -> list[JobRecord]:
        keys = self._keys(records)
        self._sorted_by = self._promised, keys
        return sorted(records, key=keys.__getitem__)

    def _keys(self, records: Sequence[JobRecord]) -> dict[JobRecord, Order]:
        """The order of each job: its own, with its turn."""
        rank_of: dict[Account, int] = {}
        ranks: dict[JobRecord, int] = {}
        for record in records:
            account = record.job.queue, record.job.charged
            rank = rank_of.get(account)
            if rank is None:
                rank = rank_of[account] = self.shares.rank(account)
            ranks[record] = rank
        within = self._within(records, ranks)
        keys: dict[JobRecord, Order] = {}
        for record in records:
            turn = (_WITHIN if record in within else _BEYOND, ranks[record])
            if record in self._promised:
                turn = (_PROMISED, self._promised[record])
            keys[record] = (record.order[0], *turn, *record.order[-_PLACE:])
        return keys

    def _within(self, records: Sequence[JobRecord], ranks: Mapping[JobRecord, int]) -> set[JobRecord]:
        """The jobs that the guarantee of their queue, or of one above it, covers in addition to running jobs
        and the jobs before them."""
        tree = self._quotas.tree
        if not any(tree.entitled.values()):
            return set()
        used: dict[str, dict[Resource, int]] = {name: {} for name in tree.queues}
        for leaf, amounts in self._quotas.usage().items():
            for name in tree.paths.get(leaf, ()):
                add_amounts(used[name], amounts)
        covered: set[JobRecord] = set()
        for record in sorted(records, key=lambda one: (one.order[0], ranks[one], *one.order[-_PLACE:])):
            claim = self._quotas.claims[record.key]
            path = tree.paths.get(claim.leaf, ())
            if any(_covers(tree.entitled[name], used[name], claim.amounts) for name in path):
                covered.add(record)
                for name in path:
                    add_amounts(used[name], claim.amounts)
        return covered


def _by_name(amounts: Mapping[Resource, int]) -> dict[str, int]:
    """Amounts by resource, without the parts on classes of nodes."""
    return {resource.name: amount for resource, amount in amounts.items() if not resource.node_class}


def _through_promises(records: list[JobRecord]) -> list[JobRecord]:
    """The jobs up to the last one with a promise."""
    end = len(records)
    while end and records[end - 1].no_later_than is None:
        end -= 1
    return records[:end]


def _late(records: Sequence[JobRecord], starts: Sequence[int | None]) -> list[JobRecord]:
    return [
        record
        for record, start in zip(records, starts, strict=True)
        if record.no_later_than is not None and (start is None or start > record.no_later_than)
    ]


def _covers(
    entitled: Mapping[Resource, int], used: Mapping[Resource, int], amounts: Mapping[Resource, int]
) -> bool:
    """Whether a guarantee has a resource that a job requests, and enough left of all such resources."""
    named = [resource for resource in amounts if resource in entitled]
    return bool(named) and all(used.get(one, 0) + amounts[one] <= entitled[one] for one in named)


MAX_MEMBERS = 500  # jobs that exchange their places: the cost of a change grows with their number
_Class = tuple[int, str, str]  # rank, account, queue: jobs exchange places only within a class


class Favours:
    """The classes in which a waiting job has a favour. Without such a job, this costs nothing."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._members: dict[_Class, set[JobRecord]] = {}
        self._favoured: dict[_Class, set[JobRecord]] = {}  # those of them with a favour

    def entered(self, record: JobRecord) -> list[JobRecord]:
        """A job has entered the queue at its own place; returns the jobs that moved back."""
        key = _class(record)
        members = self._members.get(key)
        if members is None:
            if record.job.favour <= 0:
                return []
            members = {other for other in self._pending if _class(other) == key}
            self._members[key] = members
        members.add(record)
        favoured = self._favoured.setdefault(key, set())
        if record.job.favour > 0:
            favoured.add(record)
        elif all(_place(other) < _place(record) for other in favoured):
            return []  # it is behind all favoured jobs already
        if len(members) > MAX_MEMBERS:
            return []
        return self._assign(members, sorted(_place(each) for each in members))

    def regroup(self) -> None:
        """The queues of waiting jobs have changed; all keep their places."""
        self._members.clear()
        self._favoured.clear()
        for record in self._pending:
            if record.job.favour > 0:
                self._favoured.setdefault(_class(record), set()).add(record)
        for record in self._pending if self._favoured else ():
            if _class(record) in self._favoured:
                self._members.setdefault(_class(record), set()).add(record)

    def started(self, record: JobRecord) -> None:
        """A job has started: its place is used up."""
        self._leave(record)

    def withdraws(self, record: JobRecord) -> bool:
        """A job is about to leave the queue without a start: it gives up the place that it came with, if the
        account still has that, and the others get theirs back. Returns whether any job moved."""
        members = self._members.get(_class(record))
        if members is None or record not in members:
            return False
        if len(members) > MAX_MEMBERS:
            self._leave(record)
            return False
        places = sorted(_place(each) for each in members)
        own = (*record.order[:-4], record.job.submit, record.job.queued, record.order[-1])
        given_up = own if own in places else _place(record)
        moves = given_up != _place(record)
        places.remove(given_up)
        self._assign(members - {record}, places, (record, given_up))
        self._leave(record)
        return moves

    def _leave(self, record: JobRecord) -> None:
        key = _class(record)
        members = self._members.get(key)
        if members is not None:
            members.discard(record)
            self._favoured[key].discard(record)
            if not self._favoured[key]:
                del self._members[key], self._favoured[key]

    def _assign(
        self,
        members: Iterable[JobRecord],
        places: list[tuple[int, ...]],
        *more: tuple[JobRecord, tuple[int, ...]],
    ) -> list[JobRecord]:
        """Give the places to the members, the highest favour first; returns the jobs that moved back."""
        wanted = sorted(members, key=lambda each: (-each.job.favour, _place(each)))
        moves = [*zip(wanted, places, strict=True), *more]
        changed = [(record, place) for record, place in moves if _place(record) != place]
        later = [record for record, place in changed if place > _place(record)]
        self._pending.exchange({record: _order(place, record) for record, place in changed})
        return later


def _class(record: JobRecord) -> _Class:
    return record.order[0], record.job.payer or record.job.account, record.job.queue


def _place(record: JobRecord) -> tuple[int, ...]:
    return record.order[:-1]


def _order(place: tuple[int, ...], record: JobRecord) -> Order:
    return *place, record.order[-1]
