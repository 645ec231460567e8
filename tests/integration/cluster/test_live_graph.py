"""`fluence graph --live` and the cluster graph, against a real API server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from click.testing import CliRunner

from fluence.cli import main
from fluence.cluster.graph import ClusterGraph, job_number
from fluence.cluster.layout import RACK, GraphLayout
from fluence.graph.graph import ResourceGraph
from fluence.kube.resource import NODES, PODS
from fluence.match.matcher import Matcher
from fluence.match.request import Placed
from fluence.model.jobspec import Jobspec
from fluence.placer.placer import GangPlacement, GangRequest
from fluence.sandbox.testing import Kube
from tests.gangs import compiled

LEVEL = f"rack={RACK}"
# As fluxqueue and fluxnetes write them.
CORES = """
version: 1
resources:
  - {type: node, count: 2, with: [{type: slot, count: 1, label: default, with: [{type: core, count: 8}]}]}
tasks: [{command: [app], slot: default, count: {per_slot: 1}}]
attributes: {system: {duration: 3600}}
"""


def body(name: str, **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "fluence-test",
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "c",
                    "image": "none",
                    "resources": {"limits": {"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "1"}},
                }
            ],
            **spec,
        },
    }


def fluence(kube: Kube, *args: str) -> str:
    config = str(Path(kube.sandbox.at.kubeconfig()))
    done = CliRunner().invoke(main, ["graph", "--live", "--kubeconfig", config, *args])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_live_graph_shows_nodes_and_what_runs_on_them(kube: Kube, audited: None) -> None:
    async def bind() -> str:
        async with kube.client() as client:
            made = await client.create(PODS, body("solver"), namespace=kube.namespace)
            cluster = ClusterGraph()
            everything = (await client.list(PODS)).items or ()
            cluster.load((await client.list(NODES)).items or (), everything)
            gang = compiled(cluster, [made])
            assert isinstance(gang, GangRequest)
            found = cluster.try_now(gang, now=0)  # other tests' pods may have all that a node has
            assert isinstance(found, GangPlacement)
            node = found.nodes[made.metadata.uid]
            await client.bind(made, node)
            return node

    node = asyncio.run(bind())

    # Other tests' pods run on the same nodes; ours are known by their namespace.
    value = json.loads(fluence(kube, "-o", "json"))
    (job,) = [each for each in value["jobs"] if each["namespace"] == kube.namespace]
    assert job == {
        "namespace": kube.namespace,
        "job": "Pod/solver",
        "scheduler": "fluence-test",
        "pods": 1,
        "nodes": [node],
        "holds": {"cpu": 1500, "memory": 2**30, "nvidia.com/gpu": 1, "pods": 1},
    }
    # Other tests have nodes of their own there meanwhile.
    used = {each["resource"]: each for each in value["usage"]}
    assert used["cpu"]["size"] >= 320_000 and used["cpu"]["used"] >= 1500
    assert used["nvidia.com/gpu"]["size"] >= 40 and used["nvidia.com/gpu"]["used"] >= 1

    text = fluence(kube)
    sizes = {line.split()[0]: line.split()[1] for line in text.splitlines() if len(line.split()) > 1}
    assert int(sizes["nvidia.com/gpu"]) >= 40
    assert any(kube.namespace in line and "Pod/solver" in line for line in text.splitlines())

    tree = fluence(kube, "-o", "tree", "--level", LEVEL)
    assert "node-[000-009]" in tree or "node-[000-004]" in tree
    assert "(rack)" in tree or "rack" in tree

    graph = ResourceGraph.parse(fluence(kube, "-o", "jgf", "--level", LEVEL))
    assert len(graph.vertices_of_type("node")) >= 10
    assert len(graph.vertices_of_type("gpu")) >= 40
    assert len(graph.vertices_of_type("rack")) >= 2
    # The jobspecs of the predecessors ask for cores.
    assert len(graph.vertices_of_type("core")) >= 320
    assert isinstance(Matcher(graph).match("allocate", Jobspec.parse(CORES), job=1, now=0), Placed)


async def test_a_gang_that_is_bound_to_its_seats_passes_the_audit(kube: Kube, audited: None) -> None:
    async with kube.client() as client:
        for number in range(4):
            await client.create(PODS, body(f"rank-{number}"), namespace=kube.namespace)
        pods = (await client.list(PODS, namespace=kube.namespace)).items or []
        everything = (await client.list(PODS)).items or []
        cluster = ClusterGraph(GraphLayout(levels=(("rack", RACK),)), policy="low")
        cluster.load((await client.list(NODES)).items or (), everything)
        gang = compiled(cluster, pods)
        assert isinstance(gang, GangRequest)
        seated = cluster.allocate(gang, job=job_number(kube.namespace), now=1)
        assert isinstance(seated, GangPlacement)
        for pod in pods:
            await client.bind(pod, seated.nodes[pod.metadata.uid])
        before = {type_: cluster.fit.free(type_).tolist() for type_ in cluster.fit.types}
        for pod in (await client.list(PODS, namespace=kube.namespace)).items or ():
            assert pod.spec.node_name == seated.nodes[pod.metadata.uid]
            cluster.set_pod(pod)
        assert {type_: cluster.fit.free(type_).tolist() for type_ in cluster.fit.types} == before


def test_a_cluster_that_is_not_there_is_one_line() -> None:
    done = CliRunner().invoke(main, ["graph", "--live", "--kubeconfig", "/nowhere"])
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1 and "/nowhere" in done.stderr
