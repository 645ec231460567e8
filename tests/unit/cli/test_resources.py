"""`fluence resources check` and `fluence task announce` as users call them."""

from pathlib import Path

import msgspec
import pytest

from .conftest import DEMO, Run

DOCUMENT = str(DEMO / "resources.yaml")


def test_what_a_document_declares_is_shown_per_type(run: Run) -> None:
    done = run("resources", "check", DOCUMENT)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].split() == ["RESOURCE", "COUNT", "OFFLINE"]
    assert "fluxion.flux-framework.org/qpu" in done.out
    listed = msgspec.json.decode(run("resources", "check", DOCUMENT, "-o", "json").out)
    assert {each["type"] for each in listed["types"]} == {"licence", "qpu", "qubit"}


@pytest.mark.parametrize("text", ["", "# nothing\n", "resources: []\n"])
def test_a_blank_document_is_classical(run: Run, text: str) -> None:
    done = run("resources", "check", "-", stdin=text)
    assert (done.code, done.out) == (0, "declares nothing: the cluster is classical\n")


def test_a_wrong_document_names_its_line_and_ends_with_one(process: Run, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("resources:\n  - {type: qpu, name: a}\n  - {type: qpu, nmae: b}\n")
    done = process("resources", "check", str(path))
    assert done.code == 1
    assert done.is_one_line_error(f"{path}: line 3", "did you mean `name`?")
    assert process("resources", "check", "-", stdin="\nresources: x\n").is_one_line_error("stdin: line 2")
    assert process("resources", "check", str(tmp_path / "none")).is_one_line_error("No such file")


def test_a_file_that_is_no_text_is_told(process: Run, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"resources: \xff")
    assert process("resources", "check", str(path)).is_one_line_error("not UTF-8")


def test_a_manifest_of_the_config_map_is_read_as_what_is_in_it(run: Run, process: Run) -> None:
    manifest = (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: fluence-resources, namespace: kube-system}\n"
        "data:\n  resources.yaml: |\n    resources:\n      - {type: TYPE, name: a}\n"
    )
    assert "qpu" in run("resources", "check", "-", stdin=manifest.replace("TYPE", "qpu")).out
    wrong = process("resources", "check", "-", stdin=manifest.replace("TYPE", "node"))
    assert wrong.is_one_line_error("resources.yaml: line 2")


def test_a_task_must_be_one_line(process: Run) -> None:
    for task in ("", "  ", "a\nb", "x" * 1025):
        assert process("task", "announce", "--", task).is_one_line_error("ID", "one line")


def test_whose_task_it_is_must_be_known(process: Run, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(
        "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [], current-context: x,"
        " contexts: [{name: x, context: {cluster: c}}]}"
    )
    done = process("task", "announce", "t", KUBECONFIG=str(config), KUBERNETES_SERVICE_HOST="", POD_NAME="")
    assert done.is_one_line_error("which pod?") and done.code == 2


def test_both_ways_to_end_at_once_are_one_too_many(process: Run) -> None:
    assert process("resources", "advertise", "--once", "--remove").is_one_line_error("--once and --remove")
