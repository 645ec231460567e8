"""Lists of host names written as text, `node[0-3,7],login1` (RFC 29).

A `Hostlist` answers whether a name is in it without spelling the names out, so a huge range costs nothing;
`decode` spells them out and is bounded. `encode` compresses names in the order given, to the same text as
flux-core's `hostlist_encode`.

`split` takes a host name apart as Fluxion does: a base, and the number at the end.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod

from fluence.errors import InvalidGraph, InvalidInput

MAX_RANGE = 2**20  # hosts in one range, as in flux-core
MAX_HOSTS = 2**20  # hosts that `decode` spells out
MAX_GROUPS = 8  # bracket groups in one name

_TOKEN = re.compile(r"(?:\[[^\]]*\]|[^\[\], \t])+")
_PIECE = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")
_SUFFIX = re.compile(r"[0-9]+\Z")
_ULONG_MAX = 2**64 - 1

Span = tuple[int, int, int]  # first, last, and the width to which numbers are padded with zeros


@dataclass(frozen=True)
class Numbers:
    """What one pair of brackets holds: spans in the order given."""

    spans: tuple[Span, ...]

    @cached_property
    def size(self) -> int:
        return sum(last - first + 1 for first, last, _ in self.spans)

    @cached_property
    def _by_width(self) -> dict[int, tuple[list[int], list[int]]]:
        """Per width, disjoint ascending spans as two columns, ready for bisection."""
        columns: dict[int, tuple[list[int], list[int]]] = {}
        for first, last, width in sorted(self.spans):
            firsts, lasts = columns.setdefault(width, ([], []))
            if lasts and first <= lasts[-1] + 1:
                lasts[-1] = max(lasts[-1], last)
            else:
                firsts.append(first)
                lasts.append(last)
        return columns

    def __contains__(self, digits: str) -> bool:
        if len(digits) > 20:
            return False
        number = int(digits)
        for width, (firsts, lasts) in self._by_width.items():
            at = bisect_right(firsts, number) - 1
            if at >= 0 and number <= lasts[at] and f"{number:0{width}d}" == digits:
                return True
        return False

    def __iter__(self) -> Iterator[str]:
        for first, last, width in self.spans:
            for number in range(first, last + 1):
                yield f"{number:0{width}d}"


Piece = str | Numbers
Pattern = tuple[Piece, ...]


@dataclass(frozen=True)
class Hostlist:
    """A parsed hostlist: test names with ``in``, count them with ``size``, iterate to spell them out."""

    patterns: tuple[Pattern, ...] = field(default=())

    @cached_property
    def size(self) -> int:
        return sum(prod(p.size for p in pattern if isinstance(p, Numbers)) for pattern in self.patterns)

    @cached_property
    def _names(self) -> frozenset[str]:
        """The hosts written without brackets."""
        return frozenset(p[0] for p in self.patterns if len(p) == 1 and isinstance(p[0], str))

    @cached_property
    def _ranges(self) -> tuple[Pattern, ...]:
        return tuple(p for p in self.patterns if not (len(p) == 1 and isinstance(p[0], str)))

    def __contains__(self, name: str) -> bool:
        return name in self._names or any(_fits(pattern, name) for pattern in self._ranges)

    def __iter__(self) -> Iterator[str]:
        for pattern in self.patterns:
            for pieces in product(*((p,) if isinstance(p, str) else p for p in pattern)):
                yield "".join(pieces)


def parse(text: str) -> Hostlist:
    """Read *text*: hosts separated by commas, blanks or tabs, as many of these as one likes."""
    patterns: list[Pattern] = []
    at = 0
    while at < len(text):
        if text[at] in ", \t":
            at += 1
            continue
        match = _TOKEN.match(text, at)
        end = at if match is None else match.end()
        if match is None or (end < len(text) and text[end] not in ", \t"):
            raise InvalidInput(f"hostlist {_show(text)} has unbalanced brackets; write it like node[0-3,7]")
        patterns.append(_parse_token(match[0], text))
        at = end
    return Hostlist(tuple(patterns))


def decode(text: str, *, limit: int = MAX_HOSTS) -> list[str]:
    """The names in *text*, in order, repeats kept; more than *limit* are refused."""
    hosts = parse(text)
    if hosts.size > limit:
        raise InvalidInput(f"hostlist {_show(text)} holds {hosts.size} hosts; at most {limit} are allowed")
    return list(hosts)


def encode(names: Iterable[str]) -> str:
    """The text for *names* in the order given: neighbours share brackets, runs become ranges."""
    groups: list[tuple[str, list[list[int]]]] = []  # a prefix with its spans, or a name without
    for name in names:
        if not name or any(c in ",[] \t" for c in name):
            raise InvalidInput(f"{_show(name)} is no host name: empty, or with a comma, bracket or blank")
        match = _SUFFIX.search(name)
        if match is None or len(match[0]) > 64 or int(match[0]) > _ULONG_MAX:
            groups.append((name, []))
            continue
        prefix, digits = name[: match.start()], match[0]
        number, width = int(digits), len(digits)
        if not (groups and groups[-1][1] and groups[-1][0] == prefix):
            groups.append((prefix, [[number, number, width]]))
            continue
        spans = groups[-1][1]
        tail = spans[-1]
        joint = _joint_width(tail, number, width) if tail[1] + 1 == number else None
        if joint is None:
            spans.append([number, number, width])
        else:
            tail[1], tail[2] = number, joint
    return ",".join(_encode_group(prefix, spans) for prefix, spans in groups)


def _encode_group(prefix: str, spans: list[list[int]]) -> str:
    inner = ",".join(
        f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}"
        for first, last, width in spans
    )
    needs_brackets = len(spans) > 1 or (bool(spans) and spans[0][0] != spans[0][1])
    return f"{prefix}[{inner}]" if needs_brackets else prefix + inner


def _joint_width(span: list[int], number: int, width: int) -> int | None:
    """A width that renders the span's first number and *number* both as they were written, if any does."""
    first, _, span_width = span
    if f"{number:0{span_width}d}" == f"{number:0{width}d}":
        return span_width
    if f"{first:0{width}d}" == f"{first:0{span_width}d}":
        return width
    return None


def _parse_token(token: str, text: str) -> Pattern:
    pieces: list[Piece] = []
    for match in _PIECE.finditer(token):
        pieces.append(match[2] if match[2] is not None else _parse_numbers(match[1], text))
    if sum(isinstance(p, Numbers) for p in pieces) > MAX_GROUPS:
        raise InvalidInput(f"hostlist {_show(text)} has over {MAX_GROUPS} brackets in one name; split it")
    return tuple(pieces)


def _parse_numbers(inner: str, text: str) -> Numbers:
    spans: list[Span] = []
    for part in inner.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise InvalidInput(f"hostlist {_show(text)}: {_show(part)} is no number or range; write [0-3,7]")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise InvalidInput(f"hostlist {_show(text)}: range {_show(part)} descends; turn it around")
        if last - first + 1 > MAX_RANGE:
            raise InvalidInput(
                f"hostlist {_show(text)}: {_show(part)} holds over {MAX_RANGE} hosts; split it"
            )
        spans.append((first, last, len(match[1])))
    return Numbers(tuple(spans))


def _fits(pattern: Pattern, name: str) -> bool:
    if not pattern:
        return not name
    head, rest = pattern[0], pattern[1:]
    if isinstance(head, str):
        return name.startswith(head) and _fits(rest, name[len(head) :])
    digits = 0
    while digits < min(len(name), 20) and name[digits] in "0123456789":
        digits += 1
    return any(name[:n] in head and _fits(rest, name[n:]) for n in range(digits, 0, -1))


def _show(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


_NUMBER_AT_END = re.compile(r"[0-9]+\Z")
_LARGEST = 2**63 - 1


def split(hostname: str, *, where: str) -> tuple[str, int]:
    """``node07`` is ``("node", 7)``; without a number the id is -1; a number alone is its own base."""
    found = _NUMBER_AT_END.search(hostname)
    if found is None:
        return hostname, -1
    digits = found[0].lstrip("0")
    if len(digits) > 19 or int(digits or "0") > _LARGEST:
        raise InvalidGraph(
            f"the number at the end of host name {hostname[:40]!r} is too large for an id", where=where
        )
    return hostname[: found.start()] or hostname, int(digits or "0")
