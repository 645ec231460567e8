"""The document that declares devices: both schemas, what is inherited, and every fault with its line."""

from __future__ import annotations

import pytest

from fluence.model.external_resources import InvalidResources, parse, variable

TREE = """
resources:
  - type: qpu
    name: sv1
    attributes: braket
    with:
      - {type: qubit, count: 34, attributes: {region: ""}}
  - {type: licence, name: solver, count: 4, parent: rack-2, attributes: {vendor: ours}}
  - type: qpu
    count: 2
    status: offline
    with: [{type: qubit, count: 5}, {type: qubit, count: 6}]
attributes:
  braket: {vendor: aws, region: us-east-1}
"""


def test_a_tree_has_names_counts_and_attributes_that_children_inherit_and_clear() -> None:
    tree = parse(TREE)
    sv1, solver, *others = tree.backends
    assert (sv1.type, sv1.name, sv1.count, dict(sv1.attributes)) == (
        "qpu", "sv1", 1, {"vendor": "aws", "region": "us-east-1"},
    )  # fmt: skip
    assert [(c.type, c.name, c.count, dict(c.attributes)) for c in sv1.children] == [
        ("qubit", "qubit0", 34, {"vendor": "aws"})
    ]
    assert (solver.count, solver.parent, sv1.parent) == (4, "rack-2", "cluster")
    assert tree.types == ("licence", "qpu", "qubit")
    assert tree.attribute_keys == ("region", "vendor")
    assert [each.name for each in others] == ["qpu0", "qpu1"]


def test_an_entry_with_something_below_it_is_as_many_devices_as_it_counts() -> None:
    first, second = parse(TREE).backends[2:]
    assert [(c.name, c.count) for c in first.children] == [("qubit0", 5), ("qubit1", 6)]
    assert first.children == second.children
    assert not any(device.online for device in (*first.walk(), *second.walk()))


def test_the_older_schema_is_a_qpu_with_qubits_each() -> None:
    text = "backends:\n- {name: ibm_fez, num_qubits: 156, vendor: ibm, qrmi_type: qiskit-runtime-service}\n"
    (fez,) = parse(text).backends
    assert (fez.type, fez.name, fez.count) == ("qpu", "ibm_fez", 1)
    assert dict(fez.attributes) == {"vendor": "ibm", "qrmi_type": "qiskit-runtime-service"}
    assert [(c.type, c.count) for c in fez.children] == [("qubit", 156)]


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# nothing yet\n", "~", "resources: []", "resources:", "backends: []"]
)
def test_a_blank_document_declares_nothing(text: str) -> None:
    assert parse(text).backends == ()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("quantum: yes", "line 1: the document has no field 'quantum'"),
        ("version: 1", "line 1: has no `resources`"),
        ("resources: 3", "line 1: `resources` must be a list"),
        ("- type: qpu", "line 1: the document must be a mapping"),
        ("resources:\n- name: x", "line 2: has no `type`"),
        ("resources:\n- typ: qpu", "line 2: a resource has no field 'typ'; did you mean `type`?"),
        ("resources:\n- {type: node}", "line 2: type 'node' is what nodes have"),
        ("resources:\n- {type: a b}", "line 2: `type` 'a b' must be letters"),
        ("resources:\n- {type: qpu, count: 0}", "line 2: `count` must be a whole number from 1"),
        ("resources:\n- {type: qpu, count: 1.5}", "line 2: `count` must be a whole number from 1"),
        ("resources:\n- {type: qpu, status: down}", "line 2: `status` must be `online` or"),
        ("resources:\n- {type: qpu, type: qpu}", "line 2: 'type' stands twice in a resource"),
        ("resources:\n- {type: qpu, name: a}\n- {type: x, name: a}", "line 3: 'a' is also on line 2"),
        ("resources: [{type: qpu, name: a}, {type: x, name: a}]", "line 1: 'a' is also on line 1"),
        ("resources:\n- {type: qpu}\n- {type: x, name: qpu0}", "line 3: 'qpu0' is also on line 2"),
        ("resources:\n- {type: q, with: [{type: x, parent: n}]}", "line 2: only a resource at the top has"),
        ("resources:\n- {type: q, attributes: brakt}\nattributes: {braket: {}}",
         "line 2: no set of attributes is called 'brakt'; did you mean `braket`?"),
        ("resources:\n- {type: q, attributes: {backend: x}}", "line 2: `backend` is the name of the device"),
        ("resources:\n- {type: q, attributes: {a.b: 1, a-b: 2}}", "line 2: 'a-b' and 'a.b' would be"),
        ("resources:\n- {type: q, attributes: {a: [1]}}", "line 2: attribute 'a' must be text or a number"),
        ("resources: []\nbackends: []", "line 2: has both `resources` and the older `backends`"),
        ("backends:\n- {num_qubits: 3}", "line 2: has no `name`"),
        ("resources: &a [{type: x, with: *a}]", "line 1: refers to itself through an alias"),
        ("resources:\n- {type: x, count: 20000, with: [{type: y}]}", "line 2: makes it over 10000 devices"),
        ("x: [", "line 2: "),
    ],
)  # fmt: skip
def test_a_fault_names_its_line_and_its_cure(text: str, fault: str) -> None:
    with pytest.raises(InvalidResources) as raised:
        parse(text, source="r.yaml")
    message = str(raised.value)
    assert message.startswith(f"r.yaml: {fault}")
    assert "\n" not in message


def test_an_attribute_has_a_variable() -> None:
    assert variable("qrmi_type") == "FLUXION_QRMI_TYPE"
    assert variable("device-arn.x") == "FLUXION_DEVICE_ARN_X"
