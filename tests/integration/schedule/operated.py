"""Objects of operators on a real control plane, and what their controllers make of them.

The controllers of JobSet, LeaderWorkerSet, Ray and the MPI Operator are the real ones (`tests.operators`).
Those of the Training Operator, of Kubeflow Trainer and of Spark do not run here. Their objects take any
spec, and what these operators make is made as they do.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from fluence import names
from fluence.kube.client import Client
from fluence.kube.errors import AlreadyExists, Missing
from fluence.kube.gangs import CustomResource, Kai, Volcano, discover_custom, discover_operators
from fluence.kube.resource import JOBS, Json, Resource
from fluence.model.operators import OPERATORS
from fluence.model.pod import Pod
from tests.eventually import eventually
from tests.integration.schedule.custom_groups import CRDS, add_group, installed
from tests.integration.schedule.field import RUN, Field

SIZE = 3  # pods of every object here


def resource_of(kind: str) -> Resource[Json]:
    operator = next(each for each in OPERATORS if each.kind == kind)
    return CustomResource(operator, operator.versions[0]).raw()


async def install(client: Client, kind: str) -> None:
    """The definition of a kind whose controller does not run here. It takes any spec, and stays: the server's
    garbage collector needs half a minute to learn of a new one."""
    resource = resource_of(kind)
    schema: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version: Json = {"name": resource.version, "served": True, "storage": True}
    crd: Json = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": resource.name,
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs"},
        },
        "spec": {
            "group": resource.group,
            "scope": "Namespaced",
            "names": {"plural": resource.plural, "singular": kind.lower(), "kind": kind},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    with contextlib.suppress(AlreadyExists):  # KubeRay brings three
        await client.create(CRDS, crd)

    async def served() -> bool:
        try:
            await client.list(resource)
        except Missing:
            return False
        return any(each.kind == kind for each in await discover_operators(client))

    await eventually(served, True, what=f"{kind} is served")


async def uninstall(client: Client, kind: str) -> None:
    """The definition of a kind goes, if it is there, and the kind is no longer served."""
    resource = resource_of(kind)
    with contextlib.suppress(Missing):
        await client.delete(CRDS, resource.name)

    async def served() -> bool:
        try:
            await client.list(resource)
        except Missing:
            return False
        return True

    await eventually(served, False, what=f"{kind} is no longer served")


class Operated:
    """Makes objects of a kind, and what its controller makes of them."""

    def __init__(self, f: Field) -> None:
        self.f = f

    # -- parts -----------------------------------------------------------------------------------------------

    async def custom(self, kind: str, name: str, spec: Json) -> Json:
        resource = resource_of(kind)
        meta = {
            "name": name,
            "annotations": spec.pop("annotations", {}),
            "ownerReferences": spec.pop("owners", []),
        }
        body: Json = {"apiVersion": resource.api_version, "kind": kind, "metadata": meta}
        made = await self.f.client.create(resource, {**body, "spec": spec}, namespace=self.f.namespace)
        return _reference(resource.api_version, kind, made)

    async def delete(self, kind: str, name: str) -> None:
        """As `kubectl delete` does it: the garbage collector deletes what it owns."""
        with contextlib.suppress(Missing):
            await self.f.client.delete(resource_of(kind), name, namespace=self.f.namespace)

    @contextlib.asynccontextmanager
    async def cleared(self, kind: str, *names: str) -> AsyncIterator[None]:
        """Whatever happens, these objects are gone at the end, and all that they own."""
        try:
            yield
        finally:
            for name in names:
                await self.delete(kind, name)
            await self.f.until(lambda pods: not pods, "all is gone")

    async def job(self, name: str, pods: int, labels: dict[str, str], **meta: Any) -> None:
        spec = {**self.f.spec(), "restartPolicy": "Never"}
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": labels, **meta},
            "spec": {
                "parallelism": pods,
                "completions": pods,
                "completionMode": "Indexed",
                "template": {"metadata": {"labels": labels, "annotations": {RUN: "600"}}, "spec": spec},
            },
        }
        await self.f.client.create(JOBS.raw(), body, namespace=self.f.namespace)

    async def pod(self, name: str, labels: dict[str, str], owner: Json) -> None:
        body: Any = self.f.pod(name, labels=labels)
        body["metadata"]["ownerReferences"] = [owner]
        await self.f.add(body)

    @property
    def template(self) -> Json:
        return {"spec": {"schedulerName": self.f.name}}

    # -- operators -------------------------------------------------------------------------------------------

    async def job_set(self, name: str, jobs: Mapping[str, int] | None = None, **spec: Any) -> None:
        """Replicated jobs of so many pods each."""
        replicated = [
            {
                "name": role,
                "template": {
                    "spec": {
                        "parallelism": pods,
                        "completions": pods,
                        "backoffLimit": 0,
                        "template": {
                            "metadata": {"annotations": {RUN: "600"}},
                            "spec": self.f.spec(restartPolicy="Never"),
                        },
                    }
                },
            }
            for role, pods in (jobs or {"head": 1, "workers": SIZE - 1}).items()
        ]
        await self.custom("JobSet", name, {"replicatedJobs": replicated, **spec})

    async def leader_worker_set(self, name: str, **spec: Any) -> None:
        template = {"size": SIZE, "workerTemplate": {"spec": self.f.spec()}}
        await self.custom("LeaderWorkerSet", name, {"leaderWorkerTemplate": template, **spec})

    async def mpi_job(self, name: str, **spec: Any) -> None:
        template = {"metadata": {"annotations": {RUN: "600"}}, "spec": self.f.spec()}
        specs = {
            "Launcher": {"replicas": 1, "template": template},
            "Worker": {"replicas": SIZE - 1, "template": template},
        }
        await self.custom("MPIJob", name, {"mpiReplicaSpecs": specs, **spec})

    async def torch_job(self, name: str, kind: str = "PyTorchJob", workers: int = SIZE - 1) -> None:
        """As Training Operator 1.9 does it."""
        field = {"PyTorchJob": "pytorchReplicaSpecs", "XGBoostJob": "xgbReplicaSpecs"}[kind]
        specs = {
            "Master": {"replicas": 1, "template": self.template},
            "Worker": {"replicas": workers, "template": self.template},
        }
        owner = await self.custom(kind, name, {field: specs})
        for role, pods in (("master", 1), ("worker", workers)):
            for index in range(pods):
                labels = {
                    "training.kubeflow.org/job-name": name,
                    "training.kubeflow.org/operator-name": f"{kind.lower()}-controller",
                    "training.kubeflow.org/replica-index": str(index),
                    names.KUBEFLOW_REPLICA_TYPE: role,
                }
                await self.pod(f"{name}-{role}-{index}", labels, owner)

    async def train_job(self, name: str) -> None:
        """As Kubeflow Trainer 2.0 does it: a JobSet of the same name, whose controller does the rest."""
        owner = await self.custom("TrainJob", name, {"runtimeRef": {"name": "torch-distributed"}})
        await self.job_set(name, {"node": SIZE}, owners=[owner])

    def _ray_cluster(self) -> Json:
        template: Json = {"spec": self.f.spec()}
        group = {"groupName": "work", "replicas": SIZE - 1, "minReplicas": 0, "maxReplicas": 8}
        return {
            "headGroupSpec": {"rayStartParams": {}, "template": template},
            "workerGroupSpecs": [{**group, "rayStartParams": {}, "template": template}],
        }

    async def ray_cluster(self, name: str) -> None:
        await self.custom("RayCluster", name, self._ray_cluster())

    async def ray_job(self, name: str) -> None:
        """Its cluster has a name of its own. Nothing is submitted to it: no Ray runs here."""
        await self.custom(
            "RayJob", name, {"submissionMode": "InteractiveMode", "rayClusterSpec": self._ray_cluster()}
        )

    async def spark(self, name: str) -> None:
        """As Spark Operator 2 and a driver of Spark 4 do it. The driver, which starts first, asks for nothing
        here, so that it does not count."""
        parts = {"schedulerName": self.f.name}
        owner = await self.custom(
            "SparkApplication",
            name,
            {"sparkVersion": "4.0.0", "driver": parts, "executor": {**parts, "instances": SIZE}},
        )
        app = {names.SPARK_APPLICATION: name, "spark-app-selector": f"spark-{name}"}
        labels = {**app, names.SPARK_ROLE: "driver"}
        body: Any = self.f.pod(f"{name}-driver", labels=labels, cpu="0")
        body["metadata"]["ownerReferences"] = [owner]
        (driver,) = await self.f.add(body)
        made: Json = {"metadata": {"name": driver.metadata.name, "uid": driver.metadata.uid}}
        for number in range(1, SIZE + 1):
            labels = {**app, names.SPARK_ROLE: "executor", "spark-exec-id": str(number)}
            await self.pod(f"{name}-{owner['uid']}-exec-{number}", labels, _reference("v1", "Pod", made))

    # -- pods that name a group of another system ------------------------------------------------------------

    async def kueue(self, name: str) -> None:
        await self._members(name, {names.KUEUE_GROUP: name}, {names.KUEUE_SIZE: str(SIZE)})

    async def volcano(self, name: str) -> None:
        await add_group(self.f, Volcano.resource, name, SIZE)
        await self._members(name, {}, {names.VOLCANO_GROUPS[0]: name})

    async def kai(self, name: str) -> None:
        await add_group(self.f, Kai.resource, name, SIZE)
        await self._members(name, {names.KAI_GROUP: name}, {})

    async def yunikorn(self, name: str) -> None:
        groups = json.dumps([{"name": "head", "minMember": 1}, {"name": "work", "minMember": SIZE - 1}])
        notes = {names.YUNIKORN_TASK_GROUP: "work", names.YUNIKORN_TASK_GROUPS: groups}
        await self._members(name, {"applicationId": name}, notes)

    async def _members(self, name: str, labels: dict[str, str], annotations: dict[str, str]) -> None:
        for index in range(SIZE):
            await self.f.add(self.f.pod(f"{name}-{index}", labels=labels, annotations=annotations))

    # -- groups of our own -----------------------------------------------------------------------------------

    async def labelled(self, name: str) -> None:
        """Two Jobs of one group, of which nothing says the size."""
        label = {names.GROUP_LABEL: name}
        await self.job(f"{name}-head", 1, label)
        await self.job(f"{name}-work", SIZE - 1, label)

    async def sized(self, name: str) -> None:
        """A Job with a size, and no name of a group."""
        await self.job(f"{name}-job", SIZE, {}, annotations={names.GROUP_SIZE: str(SIZE)})

    async def native(self, name: str) -> None:
        await self.f.add_group(name, SIZE)
        for index in range(SIZE):
            await self.f.add(self.f.pod(f"{name}-{index}", group=name))

    # -- the end ---------------------------------------------------------------------------------------------

    async def remove(self, kind: str, name: str) -> None:
        """All that a maker has made, but for what the garbage collector deletes."""
        if kind in MAKERS:
            await self.delete(kind, name)
            return
        for job in (await self.f.client.list(JOBS, namespace=self.f.namespace)).items or ():
            if job.metadata.name.startswith(f"{name}-"):
                await self.f.client.delete(JOBS, job.metadata.name, namespace=self.f.namespace)
        for pod in await self.f.pods():
            if pod.startswith(f"{name}-"):
                await self.f.end(pod)


Maker: TypeAlias = Callable[[Operated, str], Awaitable[None]]

MAKERS: dict[str, Maker] = {
    "JobSet": Operated.job_set,
    "LeaderWorkerSet": Operated.leader_worker_set,
    "MPIJob": Operated.mpi_job,
    "PyTorchJob": Operated.torch_job,
    "TrainJob": Operated.train_job,
    "RayCluster": Operated.ray_cluster,
    "RayJob": Operated.ray_job,
    "SparkApplication": Operated.spark,
}
OTHERS: dict[str, Maker] = {
    "kueue": Operated.kueue,
    "volcano": Operated.volcano,
    "kai": Operated.kai,
    "yunikorn": Operated.yunikorn,
}

OWN: dict[str, Maker] = {
    "labelled": Operated.labelled,
    "sized": Operated.sized,
    "native": Operated.native,
}


def _reference(api_version: str, kind: str, made: Any) -> Json:
    meta = made["metadata"]
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }


@contextlib.asynccontextmanager
async def all_kinds(f: Field) -> AsyncIterator[dict[str, Maker]]:
    """Everything that makes gangs; of each, nothing is left at the end."""
    makers = {**MAKERS, **OTHERS, **OWN}
    operated = Operated(f)
    async with contextlib.AsyncExitStack() as stack:
        for groups in (Volcano, Kai):
            spec: Json = {"x-kubernetes-preserve-unknown-fields": True}
            await stack.enter_async_context(installed(f.client, groups.resource, discover_custom, spec=spec))
        try:
            yield makers
        finally:
            for kind in makers:
                await operated.remove(kind, kind.lower())
            await f.end(
                *(name for name, pod in (await f.pods()).items() if not pod.metadata.owner_references)
            )
            await f.until(lambda pods: not pods, "all is gone")


def of(pods: dict[str, Pod], name: str = "") -> dict[str, Pod]:
    """The pods of an object, or of all. A Spark driver starts before the others, and is none of the gang."""
    drivers = [key for key, pod in pods.items() if pod.labels.get(names.SPARK_ROLE) == "driver"]
    return {key: pod for key, pod in pods.items() if key not in drivers and key.startswith(name)}


def bound_of(pods: dict[str, Pod], name: str) -> int:
    """How many pods of an object have nodes."""
    return sum(pod.spec.node_name is not None for pod in of(pods, f"{name}-").values())
