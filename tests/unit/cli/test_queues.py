"""`fluence queues check` and `fluence queues tree`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fluence.cli.commands import main
from fluence.model.queue_documents import API_VERSION, parse
from tests.unit.model.test_kueue import SITE

HEAD = f"apiVersion: {API_VERSION}\nkind: Queue\n"
FILE = "---\n".join(
    f"{HEAD}metadata: {{name: {name}}}\nspec: {{{spec}}}\n"
    for name, spec in (
        ("science", ""),
        ("physics", "parent: science, guaranteed: {cpu: 400}, limit: {cpu: 800}, weight: 2"),
        ("chem", "parent: science, guaranteed: {cpu: 100}, perUser: {running: 3}, time: {max: 1d}"),
        ("ops", "namespaces: {matchLabels: {team: ops}}, stop: hold"),
    )
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "queues.yaml"
    path.write_text(FILE)
    return path


def run(*args: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["queues", *args], input=given)


def test_a_valid_file(file: Path) -> None:
    result = run("check", str(file))
    assert result.exit_code == 0
    assert result.output == "4 queues are valid, 3 of them take jobs\n"


def test_every_queue_involved_in_a_fault_is_named() -> None:
    wrong = FILE.replace("parent: science", "parent: sciense")
    result = run("check", "-", given=wrong)
    assert result.exit_code == 1
    line = "spec.parent: there is no queue sciense: did you mean science?"
    assert f"fluence: standard input: queue physics: {line}" in result.output
    assert f"fluence: standard input: queue chem: {line}" in result.output
    value = json.loads(run("check", "-", "-o", "json", given=wrong).output)
    assert value == {
        "valid": False,
        "queues": 4,
        "problems": {"chem": [line], "physics": [line]},
        "notes": {},
    }


def test_a_wrong_field_is_one_line(file: Path) -> None:
    file.write_text(FILE.replace("weight: 2", "weight: -2"))
    result = run("check", str(file))
    assert result.exit_code == 1
    place = f"fluence: {file}: line 6: queue physics: spec.weight"
    assert result.output == f"{place}: must be a number from 0 to 1000000, not -2\n"


def test_names_that_no_cluster_counts_are_noted(file: Path) -> None:
    file.write_text(FILE.replace("limit: {cpu: 800}", "limit: {cpus: 800, nvidia.com/gpu: 4}"))
    result = run("check", str(file))
    assert result.exit_code == 0
    note = "spec.limit: cpus is not counted: did you mean cpu?"
    assert f"fluence: note: queue physics: {note}\n" in result.output
    assert "nvidia.com/gpu" not in result.output
    assert json.loads(run("check", str(file), "-o", "json").stdout)["notes"] == {"physics": [note]}


def test_the_tree(file: Path) -> None:
    result = run("tree", str(file))
    assert result.exit_code == 0
    assert result.output == (
        "QUEUE       ENTITLED  LIMIT    PER USER   WEIGHT  TIME\n"
        "ops         –         –        –          1       –\n"
        "science     cpu 500   –        –          1       –\n"
        "├─ chem     cpu 100   –        running 3  1       max 1d\n"
        "└─ physics  cpu 400   cpu 800  –          2       –\n"
    )
    assert "team=ops" in run("tree", str(file), "-o", "wide").output


def test_what_the_tree_prints_can_be_read_again(file: Path) -> None:
    for form in ("json", "yaml"):
        result = run("tree", str(file), "-o", form)
        assert sorted(parse(result.output), key=lambda queue: queue.name) == sorted(
            parse(FILE), key=lambda queue: queue.name
        )


def test_a_file_or_a_cluster() -> None:
    for command in ("check", "tree"):
        assert run(command).exit_code == 2
        assert run(command, "queues.yaml", "--live").exit_code == 2


def test_objects_of_kueue(tmp_path: Path) -> None:
    path = tmp_path / "kueue.yaml"
    path.write_text(SITE)
    result = run("check", "--kueue", str(path))
    assert result.exit_code == 0
    assert "8 queues are valid, 4 of them take jobs\n" in result.output
    assert "fluence: note: ClusterQueue team-b-cq: lendingLimit: is not kept" in result.output
    assert "      └─ team-b/user-queue" in run("tree", "--kueue", str(path)).output
    path.write_text("kind: Pod\napiVersion: v1\n")
    assert run("check", "--kueue", str(path)).exit_code == 1
    path.write_text("kind: Pod\n  apiVersion: v1\n")
    assert "is not YAML" in run("check", "--kueue", str(path)).output
    assert run("check", "--kueue", "--live", str(path)).exit_code == 2


def test_the_listing_takes_the_same_commands(file: Path) -> None:
    """`fluence queue tree` is what people try first."""
    for args in (("tree", str(file)), ("check", str(file)), ("usage", "--help")):
        short = CliRunner().invoke(main, ["queue", *args])
        assert (short.exit_code, short.output) == (0, run(*args).output.replace("main queues", "main queue"))


def test_the_listing_is_as_it_was(tmp_path: Path) -> None:
    listed = CliRunner().invoke(main, ["queue", "--kubeconfig", str(tmp_path / "none"), "--me"])
    assert listed.exit_code == 1
    assert "no such kubeconfig" in listed.output
    unknown = CliRunner().invoke(main, ["queue", "trees"])
    assert unknown.exit_code == 2
    assert "--start" in CliRunner().invoke(main, ["queue", "--help"]).output


def test_the_help_teaches() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "check" in result.output
    assert "fluence simulate --trace log.swf" in result.output
