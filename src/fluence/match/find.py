"""Find vertices by their attributes and their jobs: the `find` of resource-query and of `fluence graph`.

An expression joins predicates by `and`, `or` or a blank (which means and), from left to right without
precedence; parentheses group. All vertices below a vertex inherit that it is down, allocated or reserved. The
result includes the path from the root to each hit.

Job ids are in the formats of Flux (RFC 19): decimal, hexadecimal, dotted hexadecimal and F58. The mnemonic
and emoji formats need large tables and are not supported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from fluence.errors import InvalidInput
from fluence.graph.columns import Mask
from fluence.graph.selection import Selection
from fluence.graph.writers import Grant
from fluence.model import hostlist

if TYPE_CHECKING:
    from fluence.match.matcher import Matcher


_DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUE = {digit: value for value, digit in enumerate(_DIGITS)}
_DOTTED = re.compile(r"\.".join([r"([0-9A-Fa-f]{1,4})"] * 4))
_F58 = re.compile(rf"[fƒ]([{_DIGITS}]{{1,12}})")
_HEXADECIMAL = re.compile(r"0x([0-9A-Fa-f]{1,16})")
_DECIMAL = re.compile(r"\+?([0-9]{1,20})")
_LIMIT = 2**64


def parse(text: str) -> int:
    """The number of a job id; the prefix `job.` of the key-value store is skipped."""
    bare = text.strip().removeprefix("job.")
    if (found := _DOTTED.fullmatch(bare)) is not None:
        parts = [int(part, 16) for part in found.groups()]
        return parts[0] << 48 | parts[1] << 32 | parts[2] << 16 | parts[3]
    if (found := _F58.fullmatch(bare)) is not None:
        number = 0
        for digit in found[1]:
            number = 58 * number + _VALUE[digit]
        return number % _LIMIT
    if (found := _HEXADECIMAL.fullmatch(bare)) is not None:
        return int(found[1], 16)
    if (found := _DECIMAL.fullmatch(bare)) is not None and int(found[1]) < _LIMIT:
        return int(found[1])
    raise InvalidInput(
        f"{text[:40]!r} is not a valid job id: write it like 42, 0x2a, 0000.0000.0000.002a or fj"
    )


_TOKEN = re.compile(r"[()]|[^\s()]+")
_DEEPEST = 100  # nested parentheses
_JOB_KEYS = ("jobid-alloc", "jobid-reserved", "jobid-span", "jobid-tag")
_VALUES = {
    "status": ("up", "down"),
    "sched-now": ("allocated", "free"),
    "sched-future": ("reserved", "free"),
    "agfilter": ("true", "t", "false", "f"),
}


def find(
    matcher: Matcher,
    criteria: str,
    *,
    now: int = 0,
    clock: int | None = None,
    also: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> Grant:
    """The vertices that an expression selects, with the path to each, ready for a writer.

    ``clock``: show the counts of the filters at this time, or at ``now`` if they are all 0, as Fluxion does
    with the time of day. ``also``: ids that stand for further jobs.
    """
    return _FindSearch(matcher, criteria, now, clock, also).run()


class _FindSearch:
    def __init__(
        self,
        matcher: Matcher,
        criteria: str,
        now: int,
        clock: int | None,
        also: Mapping[int, Sequence[int]],
    ) -> None:
        self.matcher = matcher
        self.criteria = criteria
        self.now, self.clock, self.also = now, clock, also
        self.tree = matcher.tree.shape()
        self.job: int | None = None
        self.filters = False
        self._tokens = _TOKEN.findall(criteria)
        self._at = 0
        self._depth = 0

    def run(self) -> Grant:
        hits = self._expression()
        if self._at != len(self._tokens):
            raise self._wrong(f"nothing opens the parenthesis before {self._tokens[self._at]!r}")
        graph, tree = self.matcher.graph, self.tree
        inside = tree.pre >= 0
        hits &= inside & graph.alive
        extra: dict[int, dict[str, str]] = {}
        if self.filters:
            usage = self._usage()
            counting = np.zeros(graph.rows, np.bool_)
            counting[list(usage)] = True
            extra = {v: {t: f"used:{u}, total:{n}" for t, (u, n) in of.items()} for v, of in usage.items()}
            shown = self._in_unbroken_ways(hits, counting)
        else:
            shown = self._with_ways(hits)
        rows = np.flatnonzero(shown).astype(np.int32)
        selection = Selection.of(tree, rows, graph.size[rows], np.ones(len(rows), np.bool_))
        return Grant(graph, selection, subsystem=self.matcher.subsystems[0], extra=extra, is_found=True)

    # -- the expression --------------------------------------------------------------------------------------

    def _expression(self) -> Mask:
        result = self._term()
        while self._at < len(self._tokens) and self._tokens[self._at] != ")":
            word = self._tokens[self._at]
            if word in ("and", "or"):
                self._at += 1
            other = self._term()
            result = result | other if word == "or" else result & other
        return result

    def _term(self) -> Mask:
        if self._at >= len(self._tokens):
            raise self._wrong("it ends where a predicate such as status=up should stand")
        token = self._tokens[self._at]
        self._at += 1
        if token == "(":
            self._depth += 1
            if self._depth > _DEEPEST:
                raise self._wrong(f"more than {_DEEPEST} parentheses are open")
            result = self._expression()
            self._depth -= 1
            if self._at >= len(self._tokens):
                raise self._wrong("a parenthesis is not closed")
            self._at += 1
            return result
        key, equals, value = token.partition("=")
        if not equals:
            raise self._wrong(f"{token!r} is not a valid predicate: write KEY=VALUE")
        return self._predicate(key, value)

    def _predicate(self, key: str, value: str) -> Mask:
        graph = self.matcher.graph
        lower = value.lower()
        if key in _VALUES and lower not in _VALUES[key]:
            raise self._wrong(f"{key} must be {' or '.join(_VALUES[key])}")
        if key == "status":
            down = self._inherited(~graph.up)
            return down if lower == "down" else ~down
        if key == "sched-now":
            taken = self._inherited(self._held(reserved=False))
            return taken if lower == "allocated" else ~taken
        if key == "sched-future":
            taken = self._inherited(self._held(reserved=True))
            return taken if lower == "reserved" else ~taken
        if key in _JOB_KEYS:
            try:
                job = parse(value)
            except InvalidInput as error:
                raise self._wrong(str(error)) from None
            with suppress(InvalidInput):
                self.job = parse(lower)  # the job of `agfilter` is read after lower-casing, as in Fluxion
            rows = self._of_job(key, job)
            for other in self.also.get(job, ()):
                rows |= self._of_job(key, other)
            return rows
        if key == "agfilter":
            self.filters = lower in ("true", "t")
            return np.full(graph.rows, self.filters, np.bool_)
        if key == "names":
            wanted = set(hostlist.decode(lower))  # names and properties are lower-cased, as in Fluxion
            return np.fromiter((name in wanted for name in graph.name), np.bool_, graph.rows)
        if key == "property":
            result = np.zeros(graph.rows, np.bool_)
            for vertex, properties in graph.properties.items():
                result[vertex] = lower in properties
            return result
        known = ", ".join((*_VALUES, *_JOB_KEYS, "names", "property"))
        raise self._wrong(f"{key!r} is not a valid predicate: choose one of {known}")

    def _wrong(self, why: str) -> InvalidInput:
        return InvalidInput(f"invalid criteria: {self.criteria[:200]}: {why}")

    # -- columns ---------------------------------------------------------------------------------------------

    def _held(self, *, reserved: bool) -> Mask:
        ledger = self.matcher.ledger
        held = np.zeros(self.matcher.graph.rows, np.bool_)
        for job in ledger.jobs.values():
            if job.reserved == reserved:
                held[ledger.vertex[job.spans[ledger.exclusive[job.spans]]]] = True
        return held

    def _of_job(self, key: str, job: int) -> Mask:
        ledger = self.matcher.ledger
        rows = np.zeros(self.matcher.graph.rows, np.bool_)
        record = ledger.jobs.get(job)
        if record is None:
            return rows
        if key == "jobid-span":
            rows[list(self.matcher.filter_usage(now=None, job=job))] = True
            return rows
        if key == "jobid-tag":
            rows[ledger.vertex[record.spans]] = True
        elif record.reserved == (key == "jobid-reserved"):
            rows[ledger.vertex[record.spans[ledger.exclusive[record.spans]]]] = True
        return rows

    def _inherited(self, column: Mask) -> Mask:
        """True for a vertex if the column is True for it or for a vertex above it."""
        tree = self.tree
        marks = np.flatnonzero(column & (tree.pre >= 0))
        steps = np.zeros(len(tree.order) + 1, np.int64)
        np.add.at(steps, tree.pre[marks], 1)
        np.add.at(steps, tree.end[marks], -1)
        covered = np.cumsum(steps)[:-1] > 0
        result = np.zeros(len(column), np.bool_)
        result[tree.order] = covered
        return result

    def _usage(self) -> dict[int, dict[str, tuple[int, int]]]:
        matcher = self.matcher
        if self.job or self.clock is None:
            return matcher.filter_usage(now=self.now, job=self.job or None)
        usage = matcher.filter_usage(now=self.now, job=None)
        for vertex, types in matcher.filter_usage(now=self.clock, job=None).items():
            usage[vertex].update({type_: (used, total) for type_, (used, total) in types.items() if used})
        return usage

    def _in_unbroken_ways(self, hits: Mask, counting: Mask) -> Mask:
        """The vertices with a filter that are hits or have a hit below them. A vertex without a filter
        interrupts the path."""
        tree = self.tree
        shown = np.zeros(len(hits), np.bool_)
        for vertex in tree.order[::-1].tolist():
            if counting[vertex]:
                shown[vertex] = hits[vertex] or any(shown[child] for child in tree.children(vertex))
        return shown

    def _with_ways(self, hits: Mask) -> Mask:
        """The hits and everything above them."""
        tree = self.tree
        before = np.concatenate(([0], np.cumsum(hits[tree.order])))
        result = np.zeros(len(hits), np.bool_)
        result[tree.order] = before[tree.end[tree.order]] - before[tree.pre[tree.order]] > 0
        return result
