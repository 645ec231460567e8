"""`fluence admission`: manifests out, and what would become of an object."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from fluence.cli import main

POD = """
kind: Pod
metadata: {name: a}
spec:
  schedulerName: fluence
  containers: [{name: c, image: x, resources: {limits: {fluxion.flux-framework.org/qpu: 1}}}]
---
kind: Service
metadata: {name: s}
"""


def run(*arguments: str, text: str | None = None) -> Result:
    result = CliRunner().invoke(main, ["admission", *arguments], input=text)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_manifests_are_yaml_that_kubectl_reads() -> None:
    found = list(yaml.safe_load_all(run("render", "--doors", "namespaces", "-n", "here").stdout))
    assert [each["kind"] for each in found[:2]] == ["CustomResourceDefinition", "PriorityClass"]
    assert found[3]["spec"]["paramRef"]["namespace"] == "here"
    bindings = [each for each in found if each["kind"] == "MutatingAdmissionPolicyBinding"]
    assert {each["metadata"]["name"] for each in bindings} == {
        *("fluence-pods", "fluence-workloads", "fluence-pods-held", "fluence-workloads-held"),
        "fluence-operators-held",
    }


def test_a_webhook_is_rendered_from_the_same_rules() -> None:
    found = list(yaml.safe_load_all(run("render", "--as", "webhook").stdout))
    assert found[-1]["kind"] == "MutatingWebhookConfiguration"
    assert found[-1]["webhooks"][0]["clientConfig"]["service"]["path"] == "/mutate/pods"


def test_a_handler_that_there_is_not_is_warned_of_and_left_out() -> None:
    result = run("render", "--handlers", "quantim,quantum")
    assert "no handler is called 'quantim', it is left out; did you mean quantum?" in result.stderr
    assert "CustomResourceDefinition" not in result.stdout


def test_try_shows_what_a_manifest_becomes() -> None:
    found = list(yaml.safe_load_all(run("try", "-", text=POD).stdout))
    assert found[0]["spec"]["containers"][0]["env"][0]["name"] == "FLUXION_BACKEND"
    assert found[1] == {"kind": "Service", "metadata": {"name": "s"}}


def test_try_knows_the_attributes_of_the_devices(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("resources: [{type: qpu, name: q, attributes: {vendor: ibm}}]")
    result = run("try", "-", "--resources", str(tmp_path / "r.yaml"), "-o", "diff", text=POD)
    assert "+    - name: FLUXION_VENDOR" in result.stdout


def test_try_names_the_rules() -> None:
    result = run("try", "-", "-o", "rules", "--doors", "cluster", text=POD)
    assert "pod/a      gate-pod, copy-device-limits, hand-over-backend" in result.stdout
    assert "service/s  -" in result.stdout


def test_try_names_the_pod_group_of_a_gang_where_gangs_have_one() -> None:
    gang = POD.replace("{name: a}", "{name: a, labels: {fluence.flux-framework.org/group: train}}")
    assert "schedulingGroup" not in run("try", "-", text=gang).stdout
    (found, _) = yaml.safe_load_all(run("try", "-", "--pod-groups", text=gang).stdout)
    assert found["spec"]["schedulingGroup"] == {"podGroupName": "train.fluence"}


def test_try_reads_lists() -> None:
    items = [next(yaml.safe_load_all(POD))] * 2
    result = run("try", "-", "-o", "rules", text=yaml.safe_dump({"kind": "List", "items": items}))
    assert result.stdout.count("pod/a") == 2


@pytest.mark.parametrize("text", ["[1]", "a: [", "kind: Pod\nmetadata: 7"])
def test_what_is_no_object_is_one_line(text: str) -> None:
    result = run("try", "-", text=text)
    assert result.exit_code == 1
    assert result.stderr.startswith("fluence: standard input: ")
    assert result.stderr.count("\n") == 1


def test_a_field_of_the_wrong_type_names_the_object() -> None:
    spec = "{schedulerName: fluence, containers: [7], initContainers: 7}"
    result = run("try", "-", text=f"{{kind: Pod, metadata: {{name: a}}, spec: {spec}}}")
    assert result.exit_code == 1
    assert result.stderr.startswith("fluence: pod/a: a field is not of the type")
