"""Past jobs: the history for one reader: jobs in namespaces whose pods they may list, and sums of them.

The database is opened read-only for each request, and queried from the thread of the view. One request
queries it at a time and waits for a few seconds at most; the scheduler and its writer never wait. Nothing of
other namespaces is shown, and nothing about where the history is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec
import structlog

from fluence.errors import FluenceError
from fluence.model.job_state import JobState
from fluence.units import format_amount, parse_rfc3339, rfc3339
from fluence.web import resources as wire
from fluence.web.access import Refused, User

if TYPE_CHECKING:  # SQL is loaded with the first query, so that the scheduler starts without it
    from fluence.store.history_store import HistoryStore
    from fluence.store.queries import JobFilter

PATIENCE_S = 5.0  # for an answer of the database, and for the turn of a request
KINDS: Final[Mapping[str, tuple[str, type[msgspec.Struct]]]] = {
    "history": ("PastJobList", wire.PastJob),
    "usage": ("UsageList", wire.Usage),
}
"""By resource: the kind of the list and the type of a row."""
_FRESH_S: Final = 5.0  # how long the names of namespaces are cached
_MAX_VALUES: Final = 100  # in one filter
_MAX_STARS: Final = 4  # in the pattern of a name: more would make the query slow
_MAX_NUMBER: Final = (1 << 63) - 1
_FILTERS: Final = frozenset(
    ("namespace", "user", "queue", "state", "name", "job", "scheduler", "since", "until")
)
PARAMETERS: Final = {"history": _FILTERS | {"limit", "continue"}, "usage": _FILTERS | {"by"}}
_BUSY: Final = "the history cannot be read now: its database does not answer in time; try again"

log = structlog.get_logger("fluence.view")
T = TypeVar("T")


class PastReader(Protocol):
    """The user who reads the history."""

    @property
    def everything(self) -> bool: ...

    @property
    def namespaces(self) -> frozenset[str]: ...

    @property
    def unchecked(self) -> int: ...


class PastQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query of the history."""

    resource: str
    which: JobFilter
    by: tuple[str, ...] = ()


def parse_past(resource: str, namespace: str, given: Mapping[str, str], user: User) -> PastQuery:
    """Parse a query. `Refused` says what is wrong."""
    from fluence.store.queries import SUMS, JobFilter

    allowed = PARAMETERS[resource] | {"timeout", "timeoutSeconds"}
    unknown = sorted(set(given) - allowed)
    if unknown:
        there = ", ".join(sorted(PARAMETERS[resource]))
        raise Refused(400, f"{unknown[0][:40]}: no such parameter of {resource}; there are {there}")
    names = _values(given, "name")
    for name in names:
        if name.count("*") > _MAX_STARS or len(name) > 300:
            raise Refused(400, f"name: at most {_MAX_STARS} stars and 300 characters")
    by = _values(given, "by")
    if resource == "usage" and (not by or set(by) - set(SUMS)):
        raise Refused(400, f"by: say by what, separated by commas: {', '.join(SUMS)}")
    return PastQuery(
        resource=resource,
        by=by,
        which=JobFilter(
            users=user.own_names(_values(given, "user")),
            namespaces=(namespace,) if namespace else _values(given, "namespace"),
            queues=_values(given, "queue"),
            states=[_state(text) for text in _values(given, "state")],
            names=names,
            jobs=[_number(text, "job") for text in _values(given, "job")],
            scheduler=given.get("scheduler"),
            since=_time(given, "since"),
            until=_time(given, "until"),
            before=_token(given.get("continue", "")),
        ),
    )


def _values(given: Mapping[str, str], key: str) -> tuple[str, ...]:
    values = tuple(dict.fromkeys(part for part in given.get(key, "").split(",") if part))
    if len(values) > _MAX_VALUES:
        raise Refused(400, f"{key}: at most {_MAX_VALUES} values")
    return values


def _state(text: str) -> JobState:
    try:
        return JobState(text.lower())
    except ValueError:
        there = ", ".join(state.value for state in JobState)
        raise Refused(400, f"state: {text[:40]!r} is not one of {there}") from None


def _number(text: str, key: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= _MAX_NUMBER):
        raise Refused(400, f"{key}: {text[:40]!r} is not a number that this API has given")
    return int(text)


def _time(given: Mapping[str, str], key: str) -> int | None:
    if key not in given:
        return None
    at = parse_rfc3339(given[key])
    if at is None:
        raise Refused(400, f"{key}: {given[key][:40]!r} is not a time such as 2026-11-16T08:30:00Z")
    return at // 1000


def _token(text: str) -> tuple[int, int, int] | None:
    if not text:
        return None
    head, *parts = text.split(".")
    if head != "h" or len(parts) != 3:
        raise Refused(400, "continue: not one that this API has given")
    submitted, job, run = (_number(part, "continue") for part in parts)
    return submitted, job, run


class PastJobs:
    """``opened`` opens the history for reading, ``cluster`` returns the cluster whose jobs are shown, and
    ``now`` is in ms."""

    def __init__(
        self, opened: Callable[[], HistoryStore], cluster: Callable[[], str], now: Callable[[], int]
    ) -> None:
        self._opened = opened
        self._cluster = cluster
        self._now = now
        self._turn = asyncio.Lock()
        self._spaces: tuple[int, frozenset[str]] | None = None  # and when they were read

    async def namespaces(self) -> Collection[str]:
        """The namespaces with jobs in the history."""
        if self._spaces is None or self._now() - self._spaces[0] > 1000 * _FRESH_S:
            from fluence.store import queries

            found = await self._ask(lambda store: queries.find_namespaces(store, self._cluster()))
            self._spaces = (self._now(), found)
        return self._spaces[1]

    async def page(
        self, reader: PastReader, query: PastQuery, limit: int, scheduler: str
    ) -> Callable[[], wire.ItemList]:
        """A function that makes a page of the history, newest first, or all sums."""
        now = self._now()
        which = _narrowed(query.which, reader, self._cluster(), now)
        kind = KINDS[query.resource][0]
        meta = wire.ListMeta(
            resource_version="0",
            taken=rfc3339(now * 1000),
            scheduler=scheduler,
            unchecked_namespaces=reader.unchecked,
        )
        if which is None:
            return partial(wire.ItemList, kind=kind, metadata=meta, items=[], gaps=[])

        from fluence.store import queries

        async def ask(store: HistoryStore) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
            gaps = await queries.find_gaps(store, which)
            if query.by:
                return await queries.sum_jobs(store, which, query.by, now), gaps
            return await queries.find_jobs(store, which, most=limit + 1), gaps

        rows, gaps = await self._ask(ask)
        rows = rows if query.by else rows[::-1]
        if not query.by and len(rows) > limit:
            last = rows[limit - 1]
            token = f"h.{last['submitted']}.{last['job']}.{last['run']}"
            meta = msgspec.structs.replace(meta, continue_=token)

        def make() -> wire.ItemList:
            items: list[msgspec.Struct]
            items = (
                [_usage(row, query.by) for row in rows] if query.by else [_job(row) for row in rows[:limit]]
            )
            return wire.ItemList(kind=kind, metadata=meta, items=items, gaps=_gaps(gaps))

        return make

    async def _ask(self, question: Callable[[HistoryStore], Awaitable[T]]) -> T:
        """Run one query. A query that takes too long runs to its end, and the next one waits for it."""
        async with _turn_of(self._turn) as release:

            async def work() -> T:
                try:
                    async with self._opened() as store:
                        return await question(store)
                finally:
                    release()

            task = asyncio.create_task(work())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait({task}, timeout=PATIENCE_S)
            if not task.done():
                raise Refused(503, _BUSY)
            try:
                return task.result()
            except FluenceError as error:
                log.warning("the view cannot read the history", reason=str(error))
                raise Refused(503, "the history cannot be read now: the scheduler's log says why") from None


@contextlib.asynccontextmanager
async def _turn_of(lock: asyncio.Lock) -> AsyncIterator[Callable[[], None]]:
    """A lock that the work releases, even after its client has left."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            await lock.acquire()
    except TimeoutError:
        raise Refused(503, _BUSY) from None
    yield lock.release


def _narrowed(which: JobFilter, reader: PastReader, cluster: str, now: int) -> JobFilter | None:
    """The filter, limited to what the reader may see; None if that is nothing."""
    spaces = which.namespaces
    if not reader.everything:
        seen = sorted(reader.namespaces)
        spaces = [space for space in spaces if space in reader.namespaces] if spaces else seen
        if not spaces:
            return None
    return replace(which, namespaces=spaces, cluster=cluster, now=now)


def _stamp(at: int | None) -> str | None:
    return None if at is None else rfc3339(at * 1000, "milliseconds")


def _job(row: Mapping[str, Any]) -> wire.PastJob:
    silent = bool(row["silent"])
    asked: dict[str, int] = json.loads(row["requests"])
    return wire.PastJob(
        id=str(row["job"]),
        run=row["run"],
        state=JobState.UNKNOWN.value if silent else row["state"],
        namespace=row["namespace"],
        name=row["name"],
        kind=row["kind"],
        gang=row["key"],
        user=row["username"],
        queue=row["queue"],
        priority=row["priority"],
        pods=row["pods"],
        minimum=row["minimum"],
        requests={name: format_amount(name, value) for name, value in asked.items()},
        nodes=row["nodes"],
        devices=[device for device in row["devices"].split(",") if device],
        limit=None if row["walltime"] is None else row["walltime"] // 1000,
        submitted=_stamp(row["submitted"]) or "",
        no_later_than=_stamp(row["no_later_than"]),
        expected=_stamp(row["expected"]),
        started=_stamp(row["started"]),
        ended=_stamp(row["ended"]),
        seen=_stamp(row["updated"]) if silent else None,
        lost=silent,
        broken=row["broken"],
        reason=row["reason"],
        codes=[code for code in row["codes"].split(",") if code],
        scheduler=row["scheduler"],
        cluster=row["cluster"],
    )


def _usage(row: Mapping[str, Any], by: Collection[str]) -> wire.Usage:
    return wire.Usage(
        **{key: row[key] for key in by},
        **{key: row[key] for key in ("jobs", "started", "completed", "failed", "timeout", "cancelled")},
        wait=None if row["waited"] is None else float(row["waited"]) / 1000,
        ran=float(row["ran"]) / 1000,
        cpu=float(row["cpu"]) / 1_000_000,
        gpu=float(row["gpus"]) / 1000,
    )


def _gaps(rows: Collection[Mapping[str, Any]]) -> list[wire.Gap]:
    return [
        wire.Gap(began=_stamp(row["began"]) or "", ended=_stamp(row["ended"]) or "", lost=row["lost"])
        for row in rows
    ]
