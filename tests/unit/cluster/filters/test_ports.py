"""NodePorts by example."""

from __future__ import annotations

from fluence.cluster.filters.gang_rules import once_per_node
from fluence.cluster.filters.ports import HostPorts, PortFilter
from fluence.cluster.layout import DEFAULT
from fluence.cluster.pods import PodTable
from fluence.model.reason import Code
from tests.unit.cluster.build import node, pod
from tests.unit.cluster.filters.columns import columns_of, context, shape


def test_a_port_is_taken_while_its_pod_is_there() -> None:
    pods = PodTable(DEFAULT.types)
    ports = HostPorts(pods, columns_of(node("n1"), node("n2")))
    pods.put(pod("proxy", port=80), "n1", bound=True)
    pods.put(pod("early", port=80), "n9", bound=True)  # its node is not known
    wanted = pod("p", port=80).host_ports()
    assert ports.free(wanted, ()).tolist() == [False, True]
    assert ports.free(wanted, {"uid-proxy"}).tolist() == [True, True]
    assert ports.free(pod("p", port=81).host_ports(), ()).all()
    pods.drop("uid-proxy")
    assert ports.free(wanted, ()).all()


def test_members_with_one_port_never_share_a_node() -> None:
    gang = [pod("a", port=80), pod("b", port=81), pod("c", port=80, labels={"other": "kind"})]
    found = context([node("n1"), node("n2")], [], gang)
    each = PortFilter(
        gang[0].host_ports(), [member.host_ports() for member in gang], found.ports, found.leaving
    )
    for members, node_ in ((1, 0), (2, 1)):
        each.assigned(members, node_, 1)
    ((reason, mask),) = each.open_nodes()
    assert reason.code is Code.HOST_PORTS_IN_USE and mask.tolist() == [True, False]
    assert once_per_node(shape(gang[0]), found) and not once_per_node(shape(pod("d")), found)
