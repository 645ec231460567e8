"""Nodes that name a device which belongs to no node, and offer too little of it."""

from __future__ import annotations

from fluence.cluster.filters import devices
from fluence.cluster.graph import ClusterGraph
from fluence.model.reason import Code, Reason
from tests.unit.cluster.build import node
from tests.unit.cluster.filters.columns import columns_of
from tests.unit.schedule.kit import pod
from tests.unit.schedule.test_devices import asks

QPU = "fluxion.flux-framework.org/qpu"


def test_a_node_that_names_a_device_and_offers_less_than_is_asked_for_is_closed() -> None:
    columns = columns_of(
        node("silent"),
        node("gone", offers={QPU: "0"}),
        node("one", offers={QPU: "1"}),
        node("many", offers={QPU: "1k"}),
    )
    (found,) = devices.open_nodes(columns, (("qpu", 1),))
    assert found[0] == Reason.of(Code.NODE_OFFERS_TOO_LITTLE, resource=QPU, wanted=1)
    assert found[1].tolist() == [True, False, True, True]
    assert [mask.tolist() for _, mask in devices.open_nodes(columns, (("qpu", 2),))] == [
        [True, False, False, True]
    ]
    assert list(devices.open_nodes(columns, (("licence", 5),))) == []


def test_a_node_is_closed_and_open_again_as_its_kubelet_says() -> None:
    cluster = ClusterGraph()
    cluster.set_node(node("n"))
    sampler = asks("p", qpu=1)
    assert cluster.closed(sampler, "n") is None
    cluster.set_node(node("n", offers={QPU: "0"}))
    closed = cluster.closed(sampler, "n")
    assert closed is not None and closed.code is Code.NODE_OFFERS_TOO_LITTLE
    assert cluster.closed(pod("q"), "n") is None  # who asks for none is not concerned
    cluster.set_node(node("n", offers={QPU: "1k"}))
    assert cluster.closed(sampler, "n") is None
