"""`fluence simulate --queues`: two teams with weights 2 : 1, their shares, their waits and their quotas."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fluence.cli.commands import main
from fluence.model.queue_documents import API_VERSION

HEAD = f"apiVersion: {API_VERSION}\nkind: Queue\n"


def queues(**specs: str) -> str:
    return "---\n".join(
        f"{HEAD}metadata: {{name: '{name[1:]}'}}\nspec: {{{spec}}}\n" for name, spec in specs.items()
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two groups that ask for more than there is, at the same rate."""
    chance, at, lines = random.Random(1), 0, ["; MaxProcs: 8"]
    for number in range(1, 161):
        at += chance.randint(5, 60)
        size, runtime, group = chance.choice([1, 2, 4]), chance.randint(60, 1200), 1 + number % 2
        fields = (number, at, -1, runtime, size, -1, -1, size, 2 * runtime, -1, 1, 10 + group, group)
        lines.append(" ".join(map(str, (*fields, -1, 1, group, -1, -1))))
    path = tmp_path / "log.swf"
    path.write_text("\n".join(lines) + "\n")
    return path


def simulate(log: Path, text: str, *args: str) -> Result:
    file = log.with_name("queues.yaml")
    file.write_text(text)
    command = ["simulate", "--trace", str(log), "--cluster", "8x1", "--queues", str(file), "--no-forecast"]
    return CliRunner().invoke(main, [*command, "--queue-field", "group", *args])


def value(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_weights_of_2_to_1_are_seen_in_what_is_used_and_in_the_waits(log: Path) -> None:
    run = value(simulate(log, queues(_1="weight: 2", _2="weight: 1"), "--promises", "1", "-o", "json"))
    tenants = run["tenants"]
    assert tenants["contended"] > 3600
    assert tenants["queues"]["1"]["due"] == pytest.approx(2 / 3, abs=1e-4)
    assert tenants["queues"]["1"]["used"] == pytest.approx(2 / 3, abs=0.05)
    assert tenants["share_error"] < 0.05
    assert tenants["queues"]["1"]["wait_mean"] < tenants["queues"]["2"]["wait_mean"]
    assert not run["promise"]["broken"]
    equal = value(simulate(log, queues(_1="", _2=""), "--promises", "1", "-o", "json"))["tenants"]
    assert equal["queues"]["1"]["used"] == pytest.approx(0.5, abs=0.05)


def test_promises_outrank_shares(log: Path) -> None:
    text = queues(_1="weight: 2", _2="weight: 1")
    few = value(simulate(log, text, "--queue-policy", "fcfs", "--promises", "1", "-o", "json"))
    many = value(simulate(log, text, "--queue-policy", "fcfs", "--promises", "200", "-o", "json"))
    assert not few["promise"]["broken"]
    assert not many["promise"]["broken"]
    assert many["promise"]["waiting"] > few["promise"]["waiting"]
    assert few["tenants"]["share_error"] < many["tenants"]["share_error"]


def test_the_table_has_lines_for_each_queue(log: Path) -> None:
    result = simulate(log, queues(_1="limit: {core: 2}", _2=""))
    assert result.exit_code == 0
    assert "queue 1" in result.output
    assert "share due" in result.output
    lines = [line for line in result.output.splitlines() if "finished" in line]
    assert lines  # jobs of 4 cores never fit into a limit of 2, and are refused
    assert "160" not in lines[0]


def test_without_queues_the_report_is_as_before(log: Path) -> None:
    command = ["simulate", "--trace", str(log), "--cluster", "8x1", "--no-forecast", "-o", "json"]
    assert "tenants" not in value(CliRunner().invoke(main, command))


def test_what_a_queue_file_cannot_say_is_refused(log: Path) -> None:
    result = simulate(log, queues(_1="limit: {cpu: 2}"))
    assert result.exit_code == 1
    assert result.output == "fluence: queue 1: spec.limit.cpu: this cluster has no cpu: use core\n"
    result = simulate(log, queues(_1="limit: {core@fast: 2}"))
    assert "classes of nodes are not counted in simulations" in result.output
    result = simulate(log, queues(_1="parent: x"))
    assert "queue 1: spec.parent: there is no queue x" in result.output
    result = simulate(log, queues(_1=""), "--snapshot", "x.json")
    assert result.exit_code == 2
