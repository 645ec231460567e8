"""CEL texts, and patches as the webhook applies them. That rules agree in both is shown on a real server."""

import pytest

from fluence.admission import cel
from fluence.admission.patch import Incoming, add_gate, apply, field, set_entries
from fluence.admission.scopes import VARIABLES
from fluence.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (cel.text("spec", "env"), "object.?spec.?env.orValue('')"),
        (cel.has("a", "b/c", of="c"), "c.?a[?'b/c'].hasValue()"),
        (cel.listed(["a", "'\\b"]), "['a', '\\'\\\\b']"),
        (
            cel.drop_field("spec", "x"),
            "(object.?spec.?x.hasValue() ? [JSONPatch{op: 'remove', path: '/spec/x'}] : [])",
        ),
        (
            cel.set_entries(("metadata", "labels"), {"a/b": "'x'"}),
            (
                "((object.?metadata.?labels.hasValue() ? [] : "
                "[JSONPatch{op: 'add', path: '/metadata/labels', value: {}}])\n"
                "+ [JSONPatch{op: 'add', path: '/metadata/labels/a~1b', value: 'x'}])"
            ),
        ),
    ],
)
def test_pieces_of_cel(text: str, expected: str) -> None:
    assert text == expected


def test_variables_are_found_also_through_others_and_in_their_order() -> None:
    table = {"a": "1", "b": "variables.a + 1", "c": "2", "d": "variables.b"}
    assert list(cel.variables_in(["variables.d == 3"], table)) == ["a", "b", "d"]


def test_no_variable_reads_one_that_comes_later() -> None:
    """The server evaluates them in their order."""
    for number, expression in enumerate(VARIABLES.values()):
        earlier = list(VARIABLES)[:number]
        assert set(cel.variables_in([expression], VARIABLES)) <= set(earlier)


def test_a_map_and_its_parents_are_created_where_they_are_missing() -> None:
    into = ("spec", "template", "metadata", "labels")
    workload = Incoming({"spec": {"template": {"metadata": None}}}, "Job", "ns", {})
    patch = set_entries(workload, into, {"a/b": "x"})
    assert field(apply(workload.object, patch), *into) == {"a/b": "x"}
    again = Incoming(apply(workload.object, patch), "Job", "ns", {})
    assert [operation["path"] for operation in set_entries(again, into, {"c": "y"})] == [
        "/spec/template/metadata/labels/c"
    ]


def test_a_gate_is_added_once() -> None:
    pod = Incoming({"spec": {"schedulingGates": [{"name": "mine"}]}}, "Pod", "ns", {})
    gated = apply(pod.object, add_gate(pod, ("spec",), "g"))
    assert gated["spec"]["schedulingGates"] == [{"name": "mine"}, {"name": "g"}]
    assert add_gate(Incoming(gated, "Pod", "ns", {}), ("spec",), "g") == []


def test_a_patch_leaves_the_original_alone() -> None:
    before = {"a": [1, 2], "b": {"c/d": 1}}
    operations = [
        {"op": "add", "path": "/a/0", "value": 0},
        {"op": "add", "path": "/a/-", "value": 3},
        {"op": "remove", "path": "/b/c~1d"},
    ]
    assert apply(before, operations) == {"a": [0, 1, 2, 3], "b": {}}  # type: ignore[arg-type]
    assert before == {"a": [1, 2], "b": {"c/d": 1}}


@pytest.mark.parametrize("path", ["/x/y", "/a/9/z", "/a/x"])
def test_a_path_that_leads_nowhere_is_named(path: str) -> None:
    with pytest.raises(InvalidInput, match=path):
        apply({"a": [1]}, [{"op": "add", "path": path, "value": 1}])
