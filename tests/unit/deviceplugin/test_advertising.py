"""What is written on a node so that it offers the types, and only ours."""

from hypothesis import given
from hypothesis import strategies as st

from fluence.deviceplugin.advertising import status_patch
from fluence.model.meta import ObjectMeta
from fluence.model.node import Node, NodeStatus

QPU, OLD = "fluxion.flux-framework.org/qpu", "fluxion.flux-framework.org/old"


def node(capacity: dict[str, str], allocatable: dict[str, str] | None = None) -> Node:
    given = capacity if allocatable is None else allocatable
    return Node(metadata=ObjectMeta(name="n"), status=NodeStatus(capacity=capacity, allocatable=given))


def test_a_node_without_them_gets_both_numbers() -> None:
    numbers = {QPU: "1000"}
    assert status_patch(node({"cpu": "4"}), {QPU: 1000}) == {
        "status": {"capacity": numbers, "allocatable": numbers}
    }


def test_what_is_there_is_not_written_again_however_it_is_spelt() -> None:
    assert status_patch(node({"cpu": "4", QPU: "1k"}), {QPU: 1000}) is None
    assert status_patch(node({"cpu": "4", QPU: "1000"}), {QPU: 1000}) is None


def test_what_is_gone_goes_and_what_is_not_ours_stays() -> None:
    patch = status_patch(node({"nvidia.com/gpu": "4", OLD: "1k", QPU: "5"}), {QPU: 1000})
    change = {QPU: "1000", OLD: None}
    assert patch == {"status": {"capacity": change, "allocatable": change}}


def test_a_zero_that_a_kubelet_left_behind_goes_when_all_is_removed() -> None:
    """Else the kubelet fails every pod that asks for it, for ever."""
    change = {OLD: None}
    removed = {"status": {"capacity": change, "allocatable": change}}
    assert status_patch(node({OLD: "0"}), {}, zeros=True) == removed
    assert status_patch(node({OLD: "0"}), {}) is None  # it may still write it


NAMES = st.sampled_from([QPU, OLD, "fluxion.flux-framework.org/x", "cpu", "nvidia.com/gpu"])
HELD = st.dictionaries(NAMES, st.sampled_from(["0", "1", "1k", "1000", "5"]))
WANTED = st.dictionaries(st.sampled_from([QPU, OLD]), st.sampled_from([5, 1000]))


@given(HELD, HELD, WANTED)
def test_once_written_there_is_nothing_to_write(
    capacity: dict[str, str], allocatable: dict[str, str], wanted: dict[str, int]
) -> None:
    before = {"capacity": dict(capacity), "allocatable": dict(allocatable)}
    after = {name: dict(held) for name, held in before.items()}
    patch = status_patch(node(capacity, allocatable), wanted)
    changes = patch["status"] if patch is not None else {}
    assert isinstance(changes, dict)
    for field, change in changes.items():
        for name, value in change.items():
            assert name.startswith("fluxion.flux-framework.org/")
            if value is None:
                del after[field][name]
            else:
                after[field][name] = value
    assert status_patch(node(after["capacity"], after["allocatable"]), wanted) is None
    for field, held in after.items():
        ours = {name for name in held if name.startswith("fluxion.") and held[name] != "0"}
        assert ours == set(wanted)
        for name in ("cpu", "nvidia.com/gpu"):
            assert held.get(name) == before[field].get(name)
