"""What pods of no job take of their nodes, and devices that more use than there are."""

from __future__ import annotations

from fluence.cluster.graph import ClusterGraph
from fluence.cluster.pods import is_usage
from fluence.model.meta import ObjectMeta, OwnerReference
from fluence.model.pod import Pod
from fluence.placer.placer import GangPlacement, GangRequest
from tests.gangs import compiled
from tests.unit.cluster.build import bound, node, pod


def cluster_of(*pods: Pod, gpu: str = "2") -> ClusterGraph:
    cluster = ClusterGraph(policy="low")
    cluster.load([node("n1", gpu=gpu)], pods)
    return cluster


def seat(cluster: ClusterGraph, one: Pod, job: int, policy: str = "low") -> object:
    gang = compiled(cluster, [one], policy=policy)
    assert isinstance(gang, GangRequest)
    return cluster.allocate(gang, job=job, now=0)


def test_all_pods_of_a_node_are_one_record() -> None:
    cluster = cluster_of(*(pod(f"x{i}", on="n1") for i in range(3)))
    (number,) = cluster.fit.jobs
    assert is_usage(number) and not is_usage(1) and cluster.jobs == {}
    assert cluster.fit.free("cpu").tolist() == [1000] and cluster.fit.free("pods").tolist() == [7]


def test_pods_of_the_node_itself_leave_it_whole() -> None:
    owner = [OwnerReference(kind="DaemonSet", name="d", controller=True)]
    daemon = pod("daemon", on="n1")
    meta = ObjectMeta(name="daemon", uid="uid-daemon", owner_references=owner)
    cluster = cluster_of(Pod(metadata=meta, spec=daemon.spec))
    assert isinstance(seat(cluster, pod("p"), 1, "lonodex"), GangPlacement)
    cluster.release(1)
    cluster.set_pod(pod("x", on="n1"))
    assert not isinstance(seat(cluster, pod("p"), 1, "lonodex"), GangPlacement)


def test_a_device_that_comes_free_goes_to_who_lacks_one() -> None:
    cluster = cluster_of(pod("x", on="n1", gpu="2"), pod("y", on="n1", gpu="1"))
    overcommit = cluster._overcommit
    cluster.sync()
    assert "n1" in overcommit and cluster.fit.free("gpu").tolist() == [0]
    cluster.remove_pod("uid-x")
    cluster.sync()
    assert "n1" not in overcommit and cluster.fit.free("gpu").tolist() == [1]


def test_a_job_that_shares_a_device_gets_its_own() -> None:
    cluster = cluster_of()
    one = pod("a", gpu="1")
    seat(cluster, one, 1)
    cluster.set_pod(bound(one, "n1"))
    cluster.set_pod(pod("x", on="n1", gpu="2"))
    cluster.sync()
    assert cluster._overcommit.jobs("n1")
    cluster.remove_pod("uid-x")
    cluster.sync()
    assert not cluster._overcommit.jobs("n1") and cluster.fit.free("gpu").tolist() == [1]
    cluster.remove_node("n1")
    assert "n1" not in cluster._overcommit
