"""What a machine lacks: skipped by name, refused in CI, and told at the end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.needs import NEEDS, lacks, untested

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_lacking_skips_and_in_ci_fails_unless_it_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs traces: set FLUENCE_TRACES to "):
        lacks("traces")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="needs traces: "):
        lacks("traces")
    monkeypatch.setenv("FLUENCE_TEST_WITHOUT", "recorded sessions,traces")
    with pytest.raises(pytest.skip.Exception, match="needs traces: "):
        lacks("traces")


def test_the_end_of_a_run_says_what_was_not_tested_and_how_to_get_it() -> None:
    reasons = ["Skipped: needs aws: install it", "Skipped: a Workload of 1.35 has no status"]
    reasons += ["Skipped: needs real nodes: only root can make them; no runc"] * 2
    assert list(untested(reasons)) == [
        "   2 tests  containers that run: the image, the hand-off, kubelets",
        "            needs real nodes: only root can make them; no runc",
        "   1 test   queues of AWS Braket by the program aws",
        "            needs aws: install it",
    ]
    assert list(untested([])) == []


def test_every_skip_for_what_a_machine_lacks_has_its_part_of_the_promise() -> None:
    """By the sources: `lacks("…")`, and what the plug-in for control planes says."""
    named: set[str] = set()
    for path in [*(ROOT / "tests").rglob("*.py"), ROOT / "src/fluence/sandbox/testing.py"]:
        if path == Path(__file__):
            continue
        text = path.read_text()
        named.update(re.findall(r'\blacks\("([^"]+)"', text))
        named.update(re.findall(r'skip_or_fail\(f?"needs ([^:{]+):', text))
        named.update(re.findall(r'needs_package\("([^"]+)"\)', text))
        assert not re.search(r'(skip\(|reason=)f?"needs ', text), f"{path}: use lacks() or skip_or_fail()"
    assert named - {"wanted"} == set(NEEDS)
