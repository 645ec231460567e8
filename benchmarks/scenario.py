"""What is measured: the same requests in the same order, whoever answers them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

QUEUED = 30
CANCELS = 5
_TEN_DAYS = 864_000

LOAD = "load"
FOUR = "match-4-nodes"
FOUR_HALF = "match-4-nodes-half-full"
SLOTS = "headless-16-slots-core4-gpu1"
CORES = "headless-16-slots-core1"
TOO_MANY = "impossible-too-many-nodes"
NO_SHAPE = "impossible-no-such-node"
RESERVE = "reserve-60-percent"
RESERVE_WHOLE = "reserve-60-percent-whole-nodes"
CANCEL_FOUR = "cancel-4-nodes"
CANCEL_RESERVATION = "cancel-reservation"
MEASURES = (
    LOAD,
    FOUR,
    FOUR_HALF,
    SLOTS,
    CORES,
    TOO_MANY,
    NO_SHAPE,
    RESERVE,
    RESERVE_WHOLE,
    CANCEL_FOUR,
    CANCEL_RESERVATION,
)

API = "api"  # Matcher.match alone
ANSWER = "answer"  # and R written: what Fluxion's own time covers
PROCESS = "process"  # load: from starting the program until it answers


@dataclass(frozen=True, slots=True)
class Answer:
    """One match: how long it took, in each way of timing it, and what came out."""

    seconds: dict[str, float]
    outcome: str  # allocated, reserved@3600, busy, never; with a digest of R
    job: int

    @property
    def is_reserved(self) -> bool:
        return self.outcome.startswith("reserved")


class Engine(Protocol):
    """A matcher that holds the graph already."""

    def match(self, operation: str, jobspec: Path) -> Answer: ...

    def cancel(self, job: int) -> dict[str, float]: ...


@dataclass(slots=True)
class Measure:
    """All samples of one measurement."""

    what: str
    samples: dict[str, list[float]] = field(default_factory=dict)
    outcomes: list[str] = field(default_factory=list)
    note: str = ""

    def add(self, seconds: dict[str, float]) -> None:
        for mode, value in seconds.items():
            self.samples.setdefault(mode, []).append(value)

    def to_value(self) -> dict[str, Any]:
        return {"what": self.what, "samples": self.samples, "outcomes": self.outcomes, "note": self.note}


@dataclass(frozen=True, slots=True)
class Settings:
    """How often, how long, and which measurements."""

    nodes: int
    repeat: int
    budget_s: float  # a measurement stops repeating after this long
    only: frozenset[str]


def jobspecs(nodes: int) -> dict[str, dict[str, Any]]:
    """Every request of the scenario, by name."""
    gang = {"core": 8, "gpu": 1}
    most = math.ceil(0.6 * nodes)
    return {
        "four": _on_nodes(4, gang),
        "slots": _document([_slot(16, {"core": 4, "gpu": 1})]),
        "cores": _document([_slot(16, {"core": 1})]),
        "too-many": _on_nodes(nodes + 1, gang),
        "no-shape": _on_nodes(1, {"core": 64}),
        "fill-whole": _on_nodes(nodes // 4, {"core": 32, "gpu": 4}, duration=_TEN_DAYS),
        "fill-half": _on_nodes(nodes // 2, {"core": 16, "gpu": 2}, duration=_TEN_DAYS),
        "reserve": _on_nodes(most, gang),
        "reserve-whole": _on_nodes(most, {"core": 32}),
    }


def write_jobspecs(nodes: int, folder: Path) -> Path:
    """One file per request, for every engine to read."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in jobspecs(nodes).items():
        _file(folder, name).write_text(json.dumps(value))
    return folder


def run(engine: Engine, folder: Path, settings: Settings, emit: Callable[[Measure], None]) -> None:
    """Carry out every wanted measurement; each leaves the graph empty behind it."""
    matcher = _Runner(engine, folder, settings, emit)
    matcher.repeat(FOUR, "allocate", "four", cancel=CANCEL_FOUR)
    matcher.repeat(SLOTS, "allocate", "slots")
    matcher.repeat(CORES, "allocate", "cores")
    matcher.repeat(TOO_MANY, "allocate_with_satisfiability", "too-many")
    matcher.repeat(NO_SHAPE, "allocate_with_satisfiability", "no-shape")
    if FOUR_HALF in settings.only:
        held = matcher.place("fill-whole", "fill-half")
        matcher.repeat(FOUR_HALF, "allocate", "four")
        for job in held:
            engine.cancel(job)
    matcher.queue(RESERVE, "reserve", cancel=CANCEL_RESERVATION)
    matcher.queue(RESERVE_WHOLE, "reserve-whole")


@dataclass(slots=True)
class _Runner:
    engine: Engine
    folder: Path
    settings: Settings
    emit: Callable[[Measure], None]

    def repeat(self, what: str, operation: str, request: str, *, cancel: str | None = None) -> None:
        """The same request again and again, each time on the same empty (or filled) cluster."""
        if not self.settings.only & {what, cancel}:
            return
        matched, cancelled = Measure(what), Measure(cancel or "")
        stop = time.perf_counter() + self.settings.budget_s
        for _ in range(self.settings.repeat):
            answer = self.engine.match(operation, _file(self.folder, request))
            matched.add(answer.seconds)
            matched.outcomes.append(answer.outcome)
            if answer.outcome not in ("busy", "never"):
                cancelled.add(self.engine.cancel(answer.job))
            if time.perf_counter() > stop:
                break
        self._give(matched)
        self._give(cancelled)

    def queue(self, what: str, request: str, *, cancel: str | None = None) -> None:
        """Thirty jobs, one behind the other; then cancel them from the last."""
        if not self.settings.only & {what, cancel}:
            return
        matched, cancelled = Measure(what), Measure(cancel or "")
        stop = time.perf_counter() + self.settings.budget_s
        answers: list[Answer] = []
        for _ in range(QUEUED):
            answer = self.engine.match("allocate_orelse_reserve", _file(self.folder, request))
            answers.append(answer)
            matched.outcomes.append(answer.outcome)
            if answer.is_reserved:
                matched.add(answer.seconds)
            if time.perf_counter() > stop:
                break
        if len(answers) < QUEUED:
            matched.note = f"stopped after {len(answers)} of {QUEUED}: over {self.settings.budget_s:g} s"
        self._give(matched)
        sampled = 0
        for answer in reversed(answers):
            seconds = self.engine.cancel(answer.job)
            if answer.is_reserved and sampled < CANCELS:
                cancelled.add(seconds)
                sampled += 1
        self._give(cancelled)

    def place(self, *requests: str) -> list[int]:
        return [self.engine.match("allocate", _file(self.folder, name)).job for name in requests]

    def _give(self, measure: Measure) -> None:
        if measure.what in self.settings.only:
            self.emit(measure)


def digest(text: str) -> str:
    """A short name for an R, whatever the order of its keys and groups."""
    import hashlib

    value = json.loads(text)
    groups = value.get("execution", {}).get("R_lite", [])
    groups.sort(key=lambda group: json.dumps(group, sort_keys=True))
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _on_nodes(count: int, slot: dict[str, int], *, duration: int = 3600) -> dict[str, Any]:
    return _document([{"type": "node", "count": count, "with": [_slot(1, slot)]}], duration=duration)


def _slot(count: int, members: dict[str, int]) -> dict[str, Any]:
    inside = [{"type": type_, "count": n} for type_, n in members.items()]
    return {"type": "slot", "count": count, "label": "default", "with": inside}


def _document(resources: list[dict[str, Any]], *, duration: int = 3600) -> dict[str, Any]:
    task = {"command": ["app"], "slot": "default", "count": {"per_slot": 1}}
    system = {"duration": duration}
    return {"version": 9999, "resources": resources, "tasks": [task], "attributes": {"system": system}}
