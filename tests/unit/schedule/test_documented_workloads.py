"""Every manifest of docs/workloads.md is the gang that the page says, with the pods that controllers make.

Those whose controllers can run here are also run on a real control plane (`test_operators.py`).
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from fluence import names
from fluence.kube.gangs import CustomGroups, Kai, SigPodGroup, Volcano
from fluence.model.operators import OPERATORS, read_owner
from fluence.model.owner import Job, Owner
from fluence.model.pod import Pod
from fluence.schedule.gangs.groups import Groups

PAGE = Path(__file__).parents[3] / "docs" / "workloads.md"
KINDS = frozenset(each.kind for each in OPERATORS)


def blocks() -> Iterator[list[dict[str, Any]]]:
    """The manifests of the page, those of one block together."""
    for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL):
        yield list(yaml.safe_load_all(text))


def titled(block: list[dict[str, Any]]) -> str:
    return "+".join(
        f"{each.get('apiVersion', 'part').partition('/')[0]}:{each.get('kind', '')}" for each in block
    )


class Made:
    """What is on the server when controllers have done their work."""

    def __init__(self) -> None:
        self.groups = Groups(native=True, systems=("volcano", "kai"))
        self.groups.follow(KINDS)

    def owner(self, manifest: dict[str, Any], *, above: dict[str, Any] | None = None) -> dict[str, Any]:
        """Add an object, and answer with a reference to it."""
        meta = {**manifest["metadata"], "namespace": "default", "uid": f"uid-{manifest['metadata']['name']}"}
        meta["uid"] += manifest["kind"]
        if above is not None:
            meta["ownerReferences"] = [above]
        body = {**manifest, "metadata": meta}
        kind, version = manifest["kind"], manifest["apiVersion"]
        operator = next((each for each in OPERATORS if each.kind == kind), None)
        found: Owner
        if operator is not None:
            assert version in [f"{operator.group}/{each}" for each in operator.versions]
            found = read_owner(operator, json.dumps(body).encode())
        else:
            found = msgspec.convert(body, Job, strict=False)
        self.groups.set_owner(found)
        return {
            "apiVersion": version,
            "kind": kind,
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
        }

    def pods(
        self, name: str, count: int, template: dict[str, Any], labels: dict[str, str], above: Any = None
    ) -> None:
        for index in range(count):
            meta = copy.deepcopy(template.get("metadata", {}))
            meta |= {"name": f"{name}-{index}", "namespace": "default", "uid": f"uid-{name}-{index}"}
            meta["labels"] = {**meta.get("labels", {}), **labels}
            if above is not None:
                meta["ownerReferences"] = [above]
            pod = msgspec.convert({"metadata": meta, "spec": template.get("spec", {})}, Pod, strict=False)
            assert pod.spec.scheduler_name == "fluence", f"{name}: the line that the page says to add"
            self.groups.set_pod(pod)

    def pod_group(self, adapter: CustomGroups, manifest: dict[str, Any]) -> None:
        meta = {**manifest["metadata"], "namespace": "default", "uid": "uid-group"}
        item = msgspec.convert({**manifest, "metadata": meta}, SigPodGroup)
        self.groups.set_group(adapter.group(item))

    def job(
        self, manifest: dict[str, Any], *, above: Any = None, labels: dict[str, str] | None = None
    ) -> None:
        ref, spec = self.owner(manifest, above=above), manifest["spec"]
        self.pods(
            manifest["metadata"]["name"], spec.get("parallelism", 1), spec["template"], labels or {}, ref
        )

    def sizes(self) -> dict[str, tuple[int, int]]:
        found = {}
        for gang in self.groups.gangs():
            assert gang.is_ready, (gang.key, gang.missing, gang.fault)
            found[gang.key.removeprefix("default/")] = (len(gang), gang.minimum)
        return found


# -- what controllers make -----------------------------------------------------------------------------------


def plain(made: Made, *block: dict[str, Any]) -> None:
    """Pods, Jobs and PodGroups of Volcano and KAI. A pod stands for two: the page says so."""
    for each in block:
        if each["kind"] == "Pod":
            made.pods("train", 2, each, {})
        elif each["kind"] == "Job":
            made.job(each)
        else:
            adapter = Volcano() if "volcano" in each["apiVersion"] else Kai()
            assert each["apiVersion"] == adapter.resource.api_version
            made.pod_group(adapter, each)


def job_set(made: Made, manifest: dict[str, Any], above: Any = None) -> None:
    ref = made.owner(manifest, above=above)
    for each in manifest["spec"]["replicatedJobs"]:
        name = f"{manifest['metadata']['name']}-{each['name']}-0"
        labels = {names.JOBSET_REPLICATED_JOB: each["name"], names.JOBSET_RESTART: "0"}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, **each["template"]}
        body["metadata"] = {"name": name}
        made.job(body, above=ref, labels=labels)


def leader_worker_set(made: Made, manifest: dict[str, Any]) -> None:
    ref, spec = made.owner(manifest), manifest["spec"]
    template = spec["leaderWorkerTemplate"]["workerTemplate"]
    for group in range(spec["replicas"]):
        labels = {names.LWS_NAME: manifest["metadata"]["name"], names.LWS_GROUP_INDEX: str(group)}
        made.pods(f"lead-{group}", 1, template, {**labels, names.LWS_WORKER_INDEX: "0"}, ref)
        leader = {"apiVersion": "v1", "kind": "Pod", "name": "lead", "uid": "lead", "controller": True}
        more = {**labels, names.LWS_WORKER_INDEX: "1"}
        made.pods(f"work-{group}", spec["leaderWorkerTemplate"]["size"] - 1, template, more, leader)


def replicas(made: Made, manifest: dict[str, Any]) -> None:
    """MPIJob and PyTorchJob."""
    ref = made.owner(manifest)
    (field,) = [key for key in manifest["spec"] if key.endswith("ReplicaSpecs")]
    for role, each in manifest["spec"][field].items():
        made.pods(
            role.lower(), each["replicas"], each["template"], {names.KUBEFLOW_REPLICA_TYPE: role.lower()}, ref
        )


def train_job(made: Made, runtime: dict[str, Any], manifest: dict[str, Any]) -> None:
    ref = made.owner(manifest)
    assert manifest["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert manifest["spec"]["runtimeRef"]["kind"] == runtime["kind"]
    spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
    for each in spec["replicatedJobs"]:
        each["template"]["spec"] |= dict.fromkeys(
            ("parallelism", "completions"), manifest["spec"]["trainer"]["numNodes"]
        )
    meta = {"name": manifest["metadata"]["name"]}
    job_set(
        made,
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta, "spec": spec},
        ref,
    )


def ray_cluster(made: Made, manifest: dict[str, Any]) -> None:
    ref, spec = made.owner(manifest), manifest["spec"]
    made.pods("head", 1, spec["headGroupSpec"]["template"], {names.RAY_GROUP: "headgroup"}, ref)
    for each in spec["workerGroupSpecs"]:
        made.pods("worker", each["replicas"], each["template"], {names.RAY_GROUP: each["groupName"]}, ref)


def spark(made: Made, manifest: dict[str, Any]) -> None:
    ref, spec = made.owner(manifest), manifest["spec"]
    app = {names.SPARK_APPLICATION: manifest["metadata"]["name"]}
    for role, count, above in (("driver", 1, ref), ("executor", spec["executor"]["instances"], None)):
        template = {"spec": {"schedulerName": spec[role]["schedulerName"]}}
        driver = {"apiVersion": "v1", "kind": "Pod", "name": "d", "uid": "d", "controller": True}
        made.pods(role, count, template, {**app, names.SPARK_ROLE: role}, above or driver)


def part(made: Made, fragment: dict[str, Any]) -> None:
    """Two lines for the template of any other controller."""
    made.pods("any", 5, {**fragment, "spec": {"schedulerName": "fluence"}}, {})


DOCUMENTED: dict[str, tuple[Callable[..., None], dict[str, tuple[int, int]]]] = {
    "v1:Pod": (plain, {"kueue:train": (2, 2)}),
    "scheduling.volcano.sh:PodGroup+batch:Job": (plain, {"volcano:train": (3, 3)}),
    "scheduling.run.ai:PodGroup+v1:Pod": (plain, {"kai:train": (2, 2)}),
    "batch:Job": (plain, {"yunikorn:train-1": (3, 3)}),
    "jobset.x-k8s.io:JobSet": (job_set, {"jobset:train": (5, 5)}),
    "leaderworkerset.x-k8s.io:LeaderWorkerSet": (
        leader_worker_set,
        {"leaderworkerset:llm/0": (4, 4), "leaderworkerset:llm/1": (4, 4)},
    ),
    "kubeflow.org:MPIJob": (replicas, {"mpijob:lammps": (5, 5)}),
    "kubeflow.org:PyTorchJob": (replicas, {"pytorchjob:mnist": (4, 4)}),
    "trainer.kubeflow.org:TrainingRuntime+trainer.kubeflow.org:TrainJob": (
        train_job,
        {"jobset:mnist": (4, 4)},
    ),
    "ray.io:RayCluster": (ray_cluster, {"raycluster:ray": (4, 4)}),
    "sparkoperator.k8s.io:SparkApplication": (
        spark,
        {"pod:driver-0": (1, 1), "sparkapplication:spark-pi/executors": (3, 3)},
    ),
    "part:": (part, {"train": (5, 5)}),
}


def test_every_manifest_of_the_page_has_a_test() -> None:
    assert sorted(titled(block) for block in blocks()) == sorted(DOCUMENTED)


@pytest.mark.parametrize("block", list(blocks()), ids=titled)
def test_a_manifest_of_the_page_is_the_gang_that_it_says(block: list[dict[str, Any]]) -> None:
    make, sizes = DOCUMENTED[titled(block)]
    made = Made()
    make(made, *block)
    assert made.sizes() == sizes
