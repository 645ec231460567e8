"""`make explore`: what it makes of many rounds, and the program itself on a property that does not hold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.explore.findings import Findings, Ran, Round, shortened

ROOT = Path(__file__).resolve().parents[2]
FIRST, SECOND = Round("m.py", 1, 11), Round("m.py", 2, 22)
TEXT = """
    def test_a(n):
>       assert n < 10
E       assert 10 < 10
E       Falsifying example: test_a(
E           n=10,
E       )

m.py:7: AssertionError
"""


def test_examples_and_seconds_of_a_test_are_added_up_and_its_seeds_kept() -> None:
    findings = Findings()
    assert findings.add(FIRST, Ran("m.py::a", 50, 1.5)) is None
    assert findings.add(SECOND, Ran("m.py::a", 70, 0.5)) is None
    assert findings.add(SECOND, Ran("m.py::b", 0, 2.0)) is None
    tried = findings.tests["m.py::a"]
    assert (tried.rounds, tried.examples, tried.seconds, tried.seeds) == (2, 120, 2.0, [1, 2])
    assert findings.summary(125) == "2 tests, 3 runs, 120 examples in 2:05: no counterexample"


def test_a_failure_is_new_once_and_its_shortest_account_is_kept() -> None:
    findings = Findings()
    long = Ran("m.py::a", 5, 1.0, failure=TEXT.replace("n=10", "n=1000"), where="m.py:7: AssertionError")
    short = Ran("m.py::a", 5, 1.0, failure=TEXT, where="m.py:7: AssertionError")
    found = findings.add(FIRST, long)
    assert found is not None and "n=1000" in found.account and "--hypothesis-seed=1 " in found.command
    assert findings.add(SECOND, short) is None
    assert found.rounds == 2 and "n=10," in found.account and "--hypothesis-seed=2 " in found.command
    assert findings.add(FIRST, long) is None
    assert "n=10," in found.account


def test_another_place_or_another_test_is_another_failure() -> None:
    findings = Findings()
    for test, where in (("a", "m.py:7"), ("a", "m.py:8"), ("b", "m.py:7")):
        assert findings.add(FIRST, Ran(test, 1, 1.0, failure=TEXT, where=where)) is not None
    assert findings.summary(1).endswith("3 failures")


def test_the_account_of_a_failure_is_the_error_and_the_example() -> None:
    assert shortened(TEXT).splitlines()[:2] == ["    assert 10 < 10", "    Falsifying example: test_a("]
    assert shortened("  Killed\n") == "Killed"


def test_the_report_names_what_was_tried_and_what_failed() -> None:
    findings = Findings()
    findings.add(FIRST, Ran("m.py::a", 50, 1.5))
    findings.add(FIRST, Ran("m.py::b", 5, 1.0, failure=TEXT, where="m.py:7"))
    told = json.loads(findings.report(60))
    assert told["tests"]["m.py::a"] == {"rounds": 1, "examples": 50, "seconds": 1.5, "seeds": [1]}
    (failure,) = told["failures"]
    assert failure["test"] == "m.py::b" and failure["where"] == "m.py:7"
    assert failure["command"].startswith("PYTHONHASHSEED=11 FLUENCE_SEED=1 ")


def explore(folder: Path, *words: str) -> subprocess.Popen[str]:
    report = folder / "report.json"
    command = [sys.executable, "-m", "tests.explore", "--workers", "1", "--report", str(report), *words]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def test_the_program_prints_a_counterexample_once_goes_on_and_fails(tmp_path: Path) -> None:
    module = tmp_path / "test_wrong.py"
    module.write_text(
        "from hypothesis import given, strategies as st\n"
        "@given(st.integers())\ndef test_small(n): assert n < 10\n"
        "@given(st.integers())\ndef test_whole(n): assert n == int(n)\n"
        "def test_without_examples(): assert False\n"
    )
    with explore(tmp_path, "--rounds", "2", str(module)) as process:
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 1, said
    assert said.count("FAILED") == 1 and "n=10," in said
    told = json.loads((tmp_path / "report.json").read_bytes())
    assert [each["rounds"] for each in told["failures"]] == [2]
    tried = {test.rpartition("::")[2]: each for test, each in told["tests"].items()}
    assert tried.keys() == {"test_small", "test_whole"} and tried["test_whole"]["examples"] >= 200
    assert len(set(tried["test_whole"]["seeds"])) == 2, "each round has seeds of its own"


def test_a_module_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    module = tmp_path / "test_broken.py"
    module.write_text("import nowhere_at_all\n")
    with explore(tmp_path, "--rounds", "1", str(module)) as process:
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 1 and "nowhere_at_all" in said


def test_ctrl_c_ends_the_search_with_a_report(tmp_path: Path) -> None:
    module = tmp_path / "test_slow.py"
    begun = tmp_path / "begun"
    module.write_text(
        "import pathlib, time\nfrom hypothesis import given, settings, strategies as st\n"
        "@settings(deadline=None)\n@given(st.integers())\n"
        f"def test_slow(n):\n    pathlib.Path({str(begun)!r}).touch()\n    time.sleep(0.1)\n"
    )
    with explore(tmp_path, "--minutes", "60", str(module)) as process:
        deadline = time.monotonic() + 120
        while not begun.exists():
            assert process.poll() is None and time.monotonic() < deadline, "no round began within 120 s"
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "Traceback" not in said and "no counterexample" in said
    assert json.loads((tmp_path / "report.json").read_bytes())["failures"] == []
