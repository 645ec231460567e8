"""The arithmetic of component-helpers/resource, by example."""

import msgspec
import pytest

from fluence.model.node import Node, Taint, forbids, tolerates
from fluence.model.pod import Pod, Toleration, pod_requests, ports_clash


def pod(**spec: object) -> Pod:
    status = spec.pop("status", {})
    return msgspec.convert({"metadata": {"name": "p", "namespace": "n"}, "spec": spec, "status": status}, Pod)


def container(
    name: str = "c", *, limits: dict[str, str] | None = None, always: bool = False, **requests: str
) -> dict[str, object]:
    made: dict[str, object] = {"name": name, "resources": {"requests": requests, "limits": limits or {}}}
    if always:
        made["restartPolicy"] = "Always"
    return made


def test_containers_add_up_and_a_pod_costs_one_of_pods() -> None:
    found = pod_requests(
        pod(containers=[container(cpu="500m", memory="1Gi"), container(cpu="1", memory="1Mi")])
    )
    assert found == {"cpu": 1500, "memory": 2**30 + 2**20, "pods": 1}


def test_sums_round_up_once_not_per_container() -> None:
    assert pod_requests(pod(containers=[container(cpu="500u"), container(cpu="500u")]))["cpu"] == 1


def test_init_containers_count_by_their_peak() -> None:
    found = pod_requests(
        pod(containers=[container(cpu="1")], initContainers=[container(cpu="3"), container(cpu="2")])
    )
    assert found["cpu"] == 3000


def test_sidecars_add_to_the_containers_and_to_later_init_containers() -> None:
    init = [container("a", cpu="4"), container("s", cpu="1", always=True), container("b", cpu="4")]
    assert pod_requests(pod(containers=[container(cpu="2")], initContainers=init))["cpu"] == 5000
    before = [container("a", cpu="4"), container("b", cpu="4"), container("s", cpu="1", always=True)]
    assert pod_requests(pod(containers=[container(cpu="2")], initContainers=before))["cpu"] == 4000


def test_a_missing_request_is_the_limit() -> None:
    assert pod_requests(pod(containers=[container(limits={"cpu": "2", "nvidia.com/gpu": "4"}, cpu="1")])) == {
        "cpu": 1000,
        "nvidia.com/gpu": 4,
        "pods": 1,
    }


def test_pod_level_requests_replace_cpu_memory_and_hugepages_only() -> None:
    found = pod_requests(
        pod(
            containers=[container(cpu="1", memory="1Gi", **{"example.com/nic": "1"})],  # type: ignore[arg-type]
            resources={"requests": {"cpu": "3", "example.com/nic": "9"}},
        )
    )
    assert found == {"cpu": 3000, "memory": 2**30, "example.com/nic": 1, "pods": 1}


def test_overhead_comes_on_top_of_everything() -> None:
    found = pod_requests(
        pod(containers=[container(cpu="1")], resources={"requests": {"cpu": "3"}}, overhead={"cpu": "250m"})
    )
    assert found["cpu"] == 3250


def test_a_resize_in_progress_costs_the_larger_of_wish_and_reality() -> None:
    status = {
        "containerStatuses": [
            {"name": "c", "allocatedResources": {"cpu": "4"}, "resources": {"requests": {"cpu": "2"}}}
        ]
    }
    shrinking = pod(containers=[container(cpu="1")], status=status)
    assert pod_requests(shrinking, bound=True)["cpu"] == 4000
    assert pod_requests(shrinking)["cpu"] == 1000


def test_an_infeasible_resize_costs_only_what_runs() -> None:
    status = {
        "containerStatuses": [
            {"name": "c", "allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "2"}}}
        ],
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
    }
    assert pod_requests(pod(containers=[container(cpu="64")], status=status), bound=True)["cpu"] == 2000


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (Toleration(key="a", operator="Exists"), True),
        (Toleration(key="a", value="x", effect="NoSchedule"), True),
        (Toleration(key="a", value="y"), False),
        (Toleration(operator="Exists"), True),
        (Toleration(), False),
        (Toleration(key="a", operator="Exists", effect="NoExecute"), False),
    ],
)
def test_tolerations(toleration: Toleration, expected: bool) -> None:
    assert tolerates(toleration, Taint(key="a", value="x", effect="NoSchedule")) is expected


def test_a_node_forbids_by_selector_affinity_and_taint_and_says_why() -> None:
    node = msgspec.convert(
        {
            "metadata": {"name": "n1", "labels": {"disk": "ssd", "gen": "7"}},
            "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]},
        },
        Node,
    )
    tolerant = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}
    assert forbids(node, pod()) == "taint gpu:NoSchedule is not tolerated"
    assert forbids(node, pod(**tolerant)) is None
    assert (
        forbids(node, pod(**tolerant, nodeSelector={"disk": "hdd"})) == "nodeSelector disk=hdd does not match"
    )

    def affine(*terms: dict[str, object]) -> Pod:
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        return pod(**tolerant, affinity={"nodeAffinity": rule})

    assert (
        forbids(node, affine({"matchExpressions": [{"key": "gen", "operator": "Gt", "values": ["6"]}]}))
        is None
    )
    assert forbids(
        node, affine({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]})
    )
    assert forbids(node, affine({})) == "required node affinity does not match"
    assert forbids(node, affine({}, {"matchExpressions": [{"key": "disk", "operator": "Exists"}]})) is None


def test_host_ports_clash_on_the_wildcard_address() -> None:
    def ports(**port: object) -> frozenset[tuple[str, str, int]]:
        return pod(containers=[{"name": "c", "ports": [port]}]).host_ports()

    assert ports_clash(ports(hostPort=80), ports(hostPort=80, hostIP="10.0.0.1"))
    assert not ports_clash(ports(hostPort=80, hostIP="10.0.0.2"), ports(hostPort=80, hostIP="10.0.0.1"))
    assert not ports_clash(ports(hostPort=80), ports(hostPort=80, protocol="UDP"))
    assert not ports(containerPort=80)
