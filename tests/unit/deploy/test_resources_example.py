"""The files that the quick starts apply have what these need."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from fluence import names
from fluence.commands.resources import check
from fluence.model.external_resources import parse

DEPLOY = Path(__file__).parents[3] / "deploy"
EXAMPLE = DEPLOY / "fluence-resources.yaml"


def test_the_example_of_devices_is_one_that_the_scheduler_reads() -> None:
    found, *_ = yaml.safe_load_all(EXAMPLE.read_text())
    assert (found["metadata"]["name"], found["metadata"]["namespace"]) == (
        names.RESOURCES_CONFIGMAP,
        names.RESOURCES_NAMESPACE,
    )
    tree = parse(found["data"][names.RESOURCES_KEY])
    assert tree.types == ("licence", "qpu", "qubit")
    assert "qrmi_type" in tree.attribute_keys


def kinds(file: str) -> set[tuple[str, str]]:
    documents = filter(None, yaml.safe_load_all((DEPLOY / file).read_text()))
    return {(each["kind"], each["metadata"]["name"]) for each in documents}


def test_the_file_of_resources_brings_the_device_plugin() -> None:
    assert {
        ("ConfigMap", "fluence-resources"),
        ("DaemonSet", "fluence-deviceplugin"),
        ("ServiceAccount", "fluence-deviceplugin"),
    } <= kinds("fluence-resources.yaml")


def test_the_one_file_brings_admission() -> None:
    """Without it the container of the quantum quick start runs with an empty QRMI_BACKEND."""
    assert kinds("fluence-admission.yaml") <= kinds("fluence.yaml")


def test_the_file_of_resources_is_checked_as_it_is() -> None:
    done = CliRunner().invoke(check, [str(EXAMPLE)])
    assert done.exit_code == 0, done.output
    assert "fluxion.flux-framework.org/qpu" in done.output


@pytest.mark.parametrize("file", sorted(DEPLOY.parent.glob("examples/**/*.yaml")), ids=lambda path: path.name)
def test_every_document_of_resources_in_the_examples_is_one_that_the_scheduler_reads(file: Path) -> None:
    if f"name: {names.RESOURCES_CONFIGMAP}" in file.read_text() or file.name == "resources.yaml":
        done = CliRunner().invoke(check, [str(file)])
        assert done.exit_code == 0, done.exception


def test_the_files_of_the_first_readme_are_where_it_has_them() -> None:
    examples = DEPLOY.parent / "examples"
    native = (examples / "cluster" / "1.36" / "2-training.yaml").read_text()
    assert (examples / "podgroup.yaml").read_text() == native
    pod = yaml.safe_load((examples / "quantum-pod.yaml").read_text())
    assert pod["metadata"]["name"] == "sampler"
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"fluxion.flux-framework.org/qpu": 1}
