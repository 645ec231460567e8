"""Fluence's side: load a graph in a fresh process, run the scenario on it, print a JSON line per result."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fluence.graph import ResourceGraph
from fluence.graph import files as graph_files
from fluence.graph.writers import Grant, write
from fluence.match.matcher import Matcher
from fluence.match.request import Never, Placed
from fluence.model.jobspec import Jobspec
from scenario import ANSWER, API, Answer, Measure, Settings, digest, run

FORMAT = "rv1_nosched"


class Fluence:
    """A matcher, timed through its Python API."""

    def __init__(self, matcher: Matcher, clock: Callable[[], float]) -> None:
        self.matcher = matcher
        self._clock = clock
        self._jobs = 0
        self._texts: dict[Path, bytes] = {}
        self._parsed: dict[Path, Jobspec] = {}

    def match(self, operation: str, jobspec: Path) -> Answer:
        # Fluxion starts its clock when it has read the file, and stops it when R is written. So does the time
        # of the whole answer; the time of the API is that of a program which keeps its jobspecs.
        if jobspec not in self._texts:
            self._texts[jobspec] = jobspec.read_bytes()
            self._parsed[jobspec] = Jobspec.parse(self._texts[jobspec], source=str(jobspec))
        self._jobs += 1
        matcher, clock = self.matcher, self._clock
        before = clock()
        request = matcher.compile(Jobspec.parse(self._texts[jobspec], source=str(jobspec)))
        parsing = clock() - before
        assert request.needs
        parsed = self._parsed[jobspec]
        began = clock()
        outcome = matcher.match(operation, parsed, job=self._jobs)
        matched = clock()
        text = ""
        if isinstance(outcome, Placed):
            text = write(Grant(matcher.graph, outcome.selection, outcome.at, outcome.end), FORMAT)
        written = clock()
        if isinstance(outcome, Placed):
            told = f"reserved@{outcome.at} " if outcome.reserved else "allocated "
            told += digest(text)
        else:
            told = "never" if isinstance(outcome, Never) else "busy"
        return Answer({API: matched - began, ANSWER: parsing + written - began}, told, self._jobs)

    def cancel(self, job: int) -> dict[str, float]:
        began = self._clock()
        self.matcher.cancel(job)
        return {API: self._clock() - began}


def peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6


def _say(event: str, value: dict[str, Any]) -> None:
    print(json.dumps({"event": event, **value}), flush=True)


def main() -> None:
    options = json.loads(sys.argv[1])
    clock = time.process_time if options["clock"] == "cpu" else time.perf_counter
    began = clock()
    graph = ResourceGraph()
    graph.extend(graph_files.read(options["graph"], "jgf"))
    matcher = Matcher(graph, options["policy"])
    seconds = clock() - began
    _say("ready", {"seconds": seconds, "cpu": time.process_time(), "memory_mb": peak_mb()})
    settings = Settings(options["nodes"], options["repeat"], options["budget_s"], frozenset(options["only"]))

    def emit(measure: Measure) -> None:
        _say("measure", measure.to_value())

    run(Fluence(matcher, clock), Path(options["jobspecs"]), settings, emit)


if __name__ == "__main__":
    main()
