"""The hand-off's table: which variable carries which annotation, for the devices that there are."""

from fluence import names
from fluence.model.external_resources import BASE, DeviceTree, hand_off_variables, parse

TREE = """
resources:
  - type: qpu
    name: sv1
    attributes: {vendor: aws, qrmi_type: braket}
    with: [{type: qubit, count: 34, attributes: {native-gates: cz}}]
"""


def test_without_devices_the_names_that_are_always_there() -> None:
    assert hand_off_variables(DeviceTree()) == BASE
    assert BASE["QRMI_BACKEND"] == BASE["FLUXION_BACKEND"] == names.BACKEND


def test_a_variable_for_each_attribute() -> None:
    found = hand_off_variables(parse(TREE))
    assert set(found) - set(BASE) == {"FLUXION_VENDOR", "FLUXION_QRMI_TYPE", "FLUXION_NATIVE_GATES"}
    assert found["FLUXION_NATIVE_GATES"] == f"{names.PREFIX}/attr-native-gates"
    assert found["QRMI_JOB_QPU_TYPES"] == found["FLUXION_QRMI_TYPE"] == f"{names.PREFIX}/attr-qrmi_type"
