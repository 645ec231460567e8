"""The pytest plug-in of a round: writes a line of JSON per test that ran, with the number of its examples."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import msgspec
import pytest
from hypothesis.statistics import collector

from tests.explore.findings import Ran

OUTPUT = "FLUENCE_EXPLORE_OUTPUT"
EXAMPLES = pytest.StashKey[int]()


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Count what Hypothesis tries, also in tests that run a state machine by themselves."""
    item.stash[EXAMPLES] = 0

    def count(statistics: dict[str, Any]) -> None:
        phases = (each for each in statistics.values() if isinstance(each, dict))
        item.stash[EXAMPLES] += sum(len(each.get("test-cases", ())) for each in phases)

    with collector.with_value(count):  # type: ignore[arg-type]
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    report = (yield).get_result()
    if report.when == "call" or report.failed:
        failure, where = "", ""
        if report.failed:
            failure = report.longreprtext
            crash = getattr(report.longrepr, "reprcrash", None)
            kind = type(call.excinfo.value).__name__ if call.excinfo is not None else ""
            where = f"{crash.path}:{crash.lineno}: {kind}" if crash is not None else kind
        ran = Ran(item.nodeid, item.stash.get(EXAMPLES, 0), call.duration, failure=failure, where=where)
        with open(os.environ[OUTPUT], "ab") as file:  # noqa: PTH123
            file.write(msgspec.json.encode(ran) + b"\n")
