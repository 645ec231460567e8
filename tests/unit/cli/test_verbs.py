"""The command lines of the verbs that change jobs; what they do is tested on a real server
(tests/integration/schedule/test_verbs.py)."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from fluence.cli.commands import main
from fluence.commands.verbs import VERBS
from fluence.errors import FluenceError
from fluence.kubectl.commands import cli

NO_CLUSTER = ("--kubeconfig", "/nonexistent/kubeconfig")


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
@pytest.mark.parametrize("program", [cli, main])
def test_both_programs_have_each_verb_with_an_example_and_its_exit_codes(
    program: click.Group, verb: str
) -> None:
    done = CliRunner().invoke(program, [verb, "--help"])
    assert done.exit_code == 0
    for part in (f"kubectl fluence {verb}", "--dry-run", "-o, --output", "Exit codes: 0"):
        assert part in done.output


@pytest.mark.parametrize(
    "words",
    [
        ["hold"],
        ["release", "a", "-o", "xml"],
        ["requeue", "a", "--timeout", "soon"],
        ["cancel", "a", "--force"],
        ["priority", "a"],
        ["priority", "a", "high"],
        ["priority", "a", "1001"],
        ["priority", "a", "-1001"],
        ["priority", "a", "1", "--dryrun"],
    ],
)
def test_a_wrong_command_line_is_refused(words: list[str]) -> None:
    assert CliRunner().invoke(cli, words).exit_code == 2


@pytest.mark.parametrize(
    "words", [["hold", "a"], ["priority", "a", "-5"], ["priority", "a", "5", "-n", "lab"]]
)
def test_a_right_one_asks_the_cluster(words: list[str]) -> None:
    done = CliRunner().invoke(cli, [*words, *NO_CLUSTER])
    assert isinstance(done.exception, FluenceError)
    assert "no such kubeconfig" in str(done.exception)
