"""Favours: jobs of one account exchange their places in the queue by the priorities that their user gave
them.

Users may decide which of their own jobs goes first, but must not overtake other users that way. So a job with
a higher favour gets the place of an earlier job with the same account, queue and rank; that job gets the next
place of the account, and so on. The account keeps the same places. A place is used up when a job starts in
it, so no place is used twice. A negative favour lowers the rank instead (`RuleBook.rank`).
"""

from __future__ import annotations

from collections.abc import Iterable

from fluence.queue.job import JobRecord, Order
from fluence.queue.pending import Pending

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
