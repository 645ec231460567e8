"""NodeResourcesFit by example: what a node lacks, and whether for ever."""

from __future__ import annotations

from fluence.cluster.diagnosis import resource_reasons
from fluence.cluster.graph import ClusterGraph
from fluence.cluster.layout import DEFAULT
from fluence.model.reason import Code, Reason
from fluence.units import MAX_AMOUNT
from tests.unit.cluster.build import node, pod


def lacking(needs: dict[str, int]) -> list[tuple[tuple[Reason, ...], list[bool]]]:
    cluster = ClusterGraph()
    cluster.load(
        [node("n1"), node("n2", cpu="8", gpu="1"), node("n3", cpu="1")], [pod("x", on="n1", cpu="3")]
    )
    seats = cluster.fit
    found = resource_reasons(needs, seats, seats.look(0), DEFAULT)
    return [(dict(reason.params)["resources"], mask.tolist()) for reason, mask in found]  # type: ignore[misc]


def short(code: Code, resource: str, wanted: int, largest: int | None = None) -> Reason:
    return Reason.of(code, resource=resource, wanted=wanted, largest=largest)


def test_busy_and_too_small_are_told_apart() -> None:
    assert lacking({"cpu": 2000}) == [
        ((short(Code.RESOURCE_INSUFFICIENT, "cpu", 2000),), [False, True, True]),
        ((short(Code.RESOURCE_TOO_SMALL, "cpu", 2000),), [True, True, False]),
    ]
    assert lacking({"cpu": 500}) == []


def test_all_that_a_node_lacks_is_one_reason_in_kubernetes_words() -> None:
    both = (
        short(Code.RESOURCE_INSUFFICIENT, "cpu", 2000),
        short(Code.RESOURCE_TOO_SMALL, "nvidia.com/gpu", 1),
    )
    assert lacking({"cpu": 2000, "gpu": 1})[0] == (both, [False, True, True])


def test_beyond_counting_the_largest_node_is_told() -> None:
    found = (short(Code.RESOURCE_TOO_SMALL, "cpu", MAX_AMOUNT + 1, 8000),)
    assert lacking({"cpu": MAX_AMOUNT + 1}) == [(found, [False, False, False])]
