"""The cluster in memory: controllers, nodes and a clock that jumps, around the live scheduler's cycle."""

from typing import Any

import pytest

from fluence.errors import InvalidInput
from fluence.sandbox.nodes import NodeKind, manifests
from fluence.sim.cluster import EmbeddedCluster


def cluster(count: int = 2, cpu: int = 4) -> EmbeddedCluster:
    return EmbeddedCluster(manifests(NodeKind(count=count, cpu=cpu)))


def template(cpu: str = "1", command: tuple[str, ...] = (), **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "command": list(command), "resources": {"requests": {"cpu": cpu}}}
    return {"spec": {"schedulerName": "fluence", "containers": [container], **spec}}


def job(name: str, count: int, **pods: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "annotations": {
                "fluence.flux-framework.org/group": name,
                "fluence.flux-framework.org/group-size": str(count),
            },
        },
        "spec": {
            "parallelism": count,
            "completions": count,
            "completionMode": "Indexed",
            "template": template(restartPolicy="Never", **pods),
        },
    }


def homes(found: EmbeddedCluster) -> list[str | None]:
    return [pod.spec.node_name for pod in found.pods.values()]


def test_a_job_runs_for_its_sleep_and_makes_room_for_the_next() -> None:
    found = cluster()
    found.apply(job("first", 2, cpu="3", command=("sh", "-c", "sleep 2m")))
    found.apply(job("second", 2, cpu="3"))  # no sleep: a second, as in the sandbox
    found.settle()
    began = found.clock.now()
    assert [node is None for node in homes(found)] == [False, False, True, True]
    while found.step():
        pass
    assert found.clock.now() - began == 121
    assert {pod.status.phase for pod in found.pods.values()} == {"Succeeded"}


def test_ranks_have_names_and_indexes_as_the_job_controller_gives_them() -> None:
    found = cluster()
    found.apply(job("ranks", 3))
    assert [pod.metadata.name[:-5] for pod in found.pods.values()] == ["ranks-0-", "ranks-1-", "ranks-2-"]
    key = "batch.kubernetes.io/job-completion-index"
    assert [pod.labels[key] for pod in found.pods.values()] == ["0", "1", "2"]


def test_a_deployment_makes_pods_through_a_replicaset_and_they_never_end() -> None:
    found = cluster()
    spec = {"replicas": 2, "template": template(command=("sleep", "1"))}
    found.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec})
    found.settle()
    assert None not in homes(found)
    assert {ref.kind for pod in found.pods.values() for ref in pod.metadata.owner_references or ()} == {
        "ReplicaSet"
    }
    assert not found.step()


@pytest.mark.parametrize(
    ("version", "kind"), [("v1", "Secret"), ("apps/v1", "StatefulSet"), ("scheduling.k8s.io/v9", "PodGroup")]
)
def test_what_it_does_not_play_is_refused(version: str, kind: str) -> None:
    with pytest.raises(InvalidInput, match=kind):
        cluster().apply({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": {}})


def test_a_job_that_was_started_and_not_bound_yet_has_all_its_pods() -> None:
    """Ctrl-C may come between the two."""
    found = cluster()
    found.apply(job("ranks", 2))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    found.on_pod(interrupt)
    with pytest.raises(KeyboardInterrupt):
        found.settle()
    (only,) = found.jobs()
    assert (only.key, only.started is None, len(only.pods) > 0) == ("default/ranks", False, True)


def waiting(name: str, kind: str) -> dict[str, Any]:
    said = {
        "fluence.flux-framework.org/depends-on-producer": "first",
        "fluence.flux-framework.org/depends-on-kind": kind,
    }
    spec = template(schedulingGates=[{"name": "quantum.braket/ready"}], restartPolicy="Never")["spec"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": said}, "spec": spec}


def test_pods_that_wait_for_a_producer_are_let_go_at_its_end_or_when_it_is_silent() -> None:
    found = cluster()
    found.apply(waiting("second", "finished"))
    found.apply(waiting("third", "quantum-submit"))
    first = job("first", 2, command=("sh", "-c", "sleep 10m"))
    first["spec"]["parallelism"] = 1  # between its pods all that are there have ended
    del first["metadata"]["annotations"]
    found.apply(first)
    found.settle()
    began = found.clock.now()
    starts: dict[str, float] = {}
    while found.step():
        for pod in found.pods.values():
            if pod.spec.node_name is not None:
                starts.setdefault(pod.metadata.name, found.clock.now() - began)
    assert (starts["third"], starts["second"]) == (300, 1200)
