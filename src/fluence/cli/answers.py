"""What became of each job, as data, as a table and in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from fluence.cli import view
from fluence.errors import FluenceError, InvalidJobspec
from fluence.match.describe import Share, shares
from fluence.match.matcher import Matcher
from fluence.match.placement import Never, Operation, Outcome, Placed, Wait
from fluence.match.request import Request
from fluence.model import idset

_TITLES = ("JOB", "STATE", "WHERE", "EACH", "START", "END")
_WIDE = (*_TITLES, "RANKS", "TOTAL", "JOBSPEC")
_NONE = "-"


@dataclass(frozen=True, slots=True)
class MatchAnswer:
    """One job and what the matcher said about it."""

    job: int
    name: str
    source: str
    outcome: Outcome
    shares: list[Share] = field(default_factory=list)
    explanation: list[str] = field(default_factory=list)
    explanation_value: Any = None

    @property
    def state(self) -> str:
        match self.outcome:
            case Placed(reserved=True):
                return "later"
            case Placed():
                return "now"
            case Wait():
                return "wait"
            case Never():
                return "never"

    @property
    def reason(self) -> str:
        """Why the job has no place, in a sentence that goes on after its name."""
        if isinstance(self.outcome, Wait):
            return f"waits: {_words(self.outcome.reason)}"
        if isinstance(self.outcome, Never):
            return f"can never start here: {_words(self.outcome.reason)}"
        return ""

    def to_value(self) -> dict[str, Any]:
        value: dict[str, Any] = {"job": self.job, "name": self.name, "jobspec": self.source}
        value["state"] = self.state
        if isinstance(self.outcome, Placed):
            nodes = [share for share in self.shares if share.is_node]
            value |= {
                "start": self.outcome.at,
                "end": self.outcome.end,
                "nodes": view.hosts([share.name for share in nodes]),
                "resources": [
                    {
                        "name": share.name,
                        "rank": share.rank,
                        "node": share.is_node,
                        "exclusive": share.is_whole,
                        "amounts": share.amounts,
                    }
                    for share in self.shares
                ],
            }
        else:
            value["reason"] = self.outcome.reason
            if self.explanation_value is not None:
                value["explanation"] = self.explanation_value
        return value


def answer(
    matcher: Matcher,
    request: Request,
    *,
    job: int,
    name: str,
    source: str,
    now: int,
    reserve: bool,
    explain: bool,
) -> MatchAnswer:
    """Place one job and say what became of it."""
    operation = Operation.ALLOCATE_OR_RESERVE if reserve else Operation.ALLOCATE
    try:
        outcome = matcher.match(operation, request, job=job, now=now)
        if isinstance(outcome, Wait):
            # Fluxion calls a request busy that asks for more nodes than there are; people want to know.
            judged = matcher.match(Operation.JUDGE, request, now=now)
            outcome = judged if isinstance(judged, Never) else outcome
    except FluenceError as error:
        raise InvalidJobspec(str(error), where=source) from None
    if isinstance(outcome, Placed):
        return MatchAnswer(job, name, source, outcome, shares(matcher.graph, outcome))
    if not explain:
        return MatchAnswer(job, name, source, outcome)
    from fluence.match.explain import explain as explain_request

    explanation = explain_request(matcher, request, now=now)
    return MatchAnswer(job, name, source, outcome, [], explanation.lines(), explanation.to_value())


def tabulate(answers: Sequence[MatchAnswer], *, horizon: int, wide: bool = False) -> str:
    """A row per job; a job that has several kinds of things has a row for each."""
    titles = _WIDE if wide else _TITLES
    rows = [row[: len(titles)] for answer in answers for row in _rows(answer, horizon)]
    return view.table(titles, rows)


def notes(answers: Sequence[MatchAnswer]) -> Iterator[str]:
    """A line for each job without a place, and the explanation where one was asked for."""
    for found in answers:
        if found.reason:
            yield f"{click.style(found.name, bold=True)} {found.reason}"
            yield from (f"  {line}" for line in found.explanation)


def _rows(found: MatchAnswer, horizon: int) -> Iterator[list[str]]:
    head = [found.name, view.state(found.state)]
    if not isinstance(found.outcome, Placed):
        yield [*head, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, found.source]
        return
    times = [view.moment(found.outcome.at), view.moment(found.outcome.end, horizon=horizon)]
    tail = [view.amounts(_total(found.shares)) or _NONE, found.source]
    for group in _groups(found.shares):
        ranks = [share.rank for share in group if share.rank is not None]
        yield [
            *head,
            view.hosts([share.name for share in group]),
            _each(group[0]),
            *times,
            idset.encode(ranks) or _NONE,
            *tail,
        ]
        head, times, tail = ["", ""], ["", ""], ["", ""]


def _groups(found: Sequence[Share]) -> list[list[Share]]:
    """Shares that are alike, together."""
    groups: dict[object, list[Share]] = {}
    for share in found:
        key = (share.is_node, share.is_whole, tuple(share.amounts.items()))
        groups.setdefault(key, []).append(share)
    return list(groups.values())


def _each(share: Share) -> str:
    amounts = view.amounts(share.amounts) or "itself"
    return f"{amounts} (all of it)" if share.is_node and share.is_whole else amounts


def _total(found: Sequence[Share]) -> dict[str, int]:
    total: dict[str, int] = {}
    for share in found:
        for type_, amount in share.amounts.items():
            total[type_] = total.get(type_, 0) + amount
    return total


def _words(reason: str) -> str:
    return {
        "busy": "what it needs is taken or down",
        "unsatisfiable": "the graph does not have what it needs, even when empty",
    }.get(reason, reason)
