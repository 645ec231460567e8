"""The example of devices can be read."""

from pathlib import Path

import yaml

from fluence import names
from fluence.model.resource_document import parse

EXAMPLE = Path(__file__).parents[3] / "deploy" / "fluence-resources.yaml"


def test_the_example_of_devices_is_one_that_the_scheduler_reads() -> None:
    found = yaml.safe_load(EXAMPLE.read_text())
    assert (found["metadata"]["name"], found["metadata"]["namespace"]) == (
        names.RESOURCES_CONFIGMAP,
        names.RESOURCES_NAMESPACE,
    )
    tree = parse(found["data"][names.RESOURCES_KEY])
    assert tree.types == ("licence", "qpu", "qubit")
    assert "qrmi_type" in tree.attribute_keys
