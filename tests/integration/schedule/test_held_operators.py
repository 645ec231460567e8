"""Objects of operators in a namespace whose work is held, with the controllers of JobSet, KubeRay and MPI.

Admission is the policies of the server. Kubeflow Trainer does not run here: the JobSet of a TrainJob is made
as it makes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fluence import names
from fluence.admission.manifests import policies
from fluence.admission.queueing import HELD
from fluence.admission.scopes import NAMESPACE_NAME, OPERATOR_KINDS, AdmissionOptions, DoorMode
from fluence.controller.flux_job import FLUX_JOBS, FluxJob
from fluence.kube.client import Client
from fluence.kube.errors import Missing
from fluence.kube.resource import NAMESPACES, PODS, Json
from fluence.model.pod import Pod
from fluence.sandbox.proxy import Rule
from fluence.sandbox.sandbox import Sandbox
from fluence.sandbox.testing import Kube, namespace_in
from tests.eventually import eventually
from tests.integration.admission.field import Field as AdmissionField
from tests.integration.admission.field import attempt, created, policies_for, webhook_for
from tests.integration.admission.field import field as admission_field
from tests.integration.admission.test_agree import all_agree
from tests.integration.controller.doors import doors, serve_flux_jobs, until_phase
from tests.integration.schedule.field import RUN, Field, field
from tests.integration.schedule.killed import killed
from tests.integration.schedule.operated import SIZE, Operated, install, resource_of
from tests.integration.schedule.test_operators import bound_of, fluence
from tests.integration.schedule.test_preemption import priorities
from tests.operator_objects import changes_of, operator_object, random_object
from tests.operators.controllers import running
from tests.operators.programs import find_operators

GRANTED = ("JobSet", "RayCluster")  # what they were released with is in their status
REAL = (*GRANTED, "MPIJob")
KINDS = (*REAL, "RayJob", "TrainJob")
NODES = 4  # of one core: one object starts, and a second does not fit beside it


@pytest.fixture(scope="module")
def operated(own_control_plane: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A control plane with these operators and with FluxJobs."""
    real = [each for each in find_operators() if each.kind in REAL]

    async def start(stack: contextlib.AsyncExitStack) -> None:
        client = await stack.enter_async_context(Client(own_control_plane.access()))
        await serve_flux_jobs(client)
        for operator in real:
            folder = tmp_path_factory.mktemp("operators") / operator.name
            await stack.enter_async_context(running(operator, own_control_plane, client, folder))
        await install(client, "TrainJob")

    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        try:
            runner.run(start(stack))
            yield own_control_plane
        finally:
            runner.run(stack.aclose())


@pytest.fixture
def operators(operated: Sandbox) -> Iterator[Kube]:
    """A namespace there."""
    with namespace_in(operated) as kube:
        yield kube


@contextlib.asynccontextmanager
async def held(operators: Kube) -> AsyncIterator[Field]:
    """A field whose namespace has opted in, once the policies hold work there."""
    async with field(operators, NODES, cpu=1) as f:
        labels = {"metadata": {"labels": {names.NAMESPACE_OPT_IN: names.DOORS_ENABLED}}}
        await f.client.patch(NAMESPACES.raw(), f.namespace, labels)
        only = {"key": NAMESPACE_NAME, "operator": "In", "values": [f.namespace]}
        options = AdmissionOptions(("doors",), DoorMode.NAMESPACES, f.name, selector=(only,))
        try:
            async with created(f.client, policies(options, namespace=f.namespace, prefix=f.namespace)):
                for kind in KINDS:
                    await eventually(partial(is_held, f, kind), what=f"{kind} is held in {f.namespace}")
                await eventually(partial(gates, f), what=f"pods are held in {f.namespace}")
                yield f
        finally:
            for name in await flux_jobs(f):  # the garbage collector may take its time
                with contextlib.suppress(Missing):
                    await f.client.delete(FLUX_JOBS, name, namespace=f.namespace)


async def is_held(f: Field, kind: str) -> bool:
    made: Any = await f.client.create(
        resource_of(kind), body(f, kind, "probe"), namespace=f.namespace, dry_run=True
    )
    return is_suspended(made) and made["metadata"]["labels"][names.SEEN] == names.SEEN_YES


async def gates(f: Field) -> bool:
    made = await f.client.create(PODS, f.pod("probe"), namespace=f.namespace, dry_run=True)
    return made.is_gated


def is_suspended(found: Any) -> bool:
    spec = found["spec"].get("runPolicy", {}) if found["kind"] == "MPIJob" else found["spec"]
    return bool(spec.get("suspend"))


def body(f: Field, kind: str, name: str, **spec: Any) -> Json:
    """An object as a user writes it, who has never heard of a scheduler."""
    pod = f.spec(restartPolicy="Never" if kind == "JobSet" else "Always")
    del pod["schedulerName"]
    template = {"metadata": {"annotations": {RUN: "600"}}, "spec": pod}
    if kind == "JobSet":
        jobs, counts = (("head", 1), ("workers", SIZE - 1)), ("parallelism", "completions")
        made: Json = {
            "replicatedJobs": [
                {
                    "name": role,
                    "template": {
                        "spec": {**dict.fromkeys(counts, n), "backoffLimit": 0, "template": template}
                    },
                }
                for role, n in jobs
            ]
        }
    elif kind in ("RayCluster", "RayJob"):
        group = {"groupName": "work", "replicas": SIZE - 1, "minReplicas": 0, "maxReplicas": 8}
        made = {
            "headGroupSpec": {"rayStartParams": {}, "template": template},
            "workerGroupSpecs": [{**group, "rayStartParams": {}, "template": template}],
        }
        if kind == "RayJob":
            made = {"rayClusterSpec": made, "entrypoint": "true", "shutdownAfterJobFinishes": True}
    elif kind == "TrainJob":
        made = {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": SIZE}}
    else:
        made = {
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": template},
                "Worker": {"replicas": SIZE - 1, "template": template},
            }
        }
    api = resource_of(kind).api_version
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": {**made, **spec}}


async def submit(f: Field, kind: str, name: str, **spec: Any) -> None:
    await f.client.create(resource_of(kind), body(f, kind, name, **spec), namespace=f.namespace)


async def object_of(f: Field, kind: str, name: str) -> Any:
    return await f.client.get(resource_of(kind), name, namespace=f.namespace)


@contextlib.asynccontextmanager
async def controlled(f: Field, kind: str, *names_: str) -> AsyncIterator[Operated]:
    """Whatever makes the pods of these objects, if no controller does."""
    operated = Operated(f)
    tasks = [asyncio.create_task(make_job_set(f, name)) for name in names_ if kind == "TrainJob"]
    async with operated.cleared(kind, *names_):
        try:
            yield operated
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def make_job_set(f: Field, name: str) -> None:
    """As Kubeflow Trainer does it: a JobSet of the same name, which is suspended as long as the TrainJob."""
    resource, suspended = resource_of("JobSet"), None
    while True:
        with contextlib.suppress(Missing):
            found = await object_of(f, "TrainJob", name)
            if suspended is None:
                owner = {"apiVersion": found["apiVersion"], "kind": "TrainJob", "controller": True}
                owner |= {"name": name, "uid": found["metadata"]["uid"]}
                made: Any = body(f, "JobSet", name, suspend=is_suspended(found))
                made["metadata"]["ownerReferences"] = [owner]
                await f.client.create(resource, made, namespace=f.namespace)
            elif suspended != is_suspended(found):
                change = {"spec": {"suspend": is_suspended(found)}}
                await f.client.patch(resource, name, change, namespace=f.namespace)
            suspended = is_suspended(found)
        await asyncio.sleep(0.1)


async def flux_jobs(f: Field) -> dict[str, FluxJob]:
    page = await f.client.list(FLUX_JOBS, namespace=f.namespace)
    return {each.metadata.name: each for each in page.items or ()}


def all_bound(name: str) -> Callable[[dict[str, Pod]], bool]:
    return lambda pods: bound_of(pods, name) == SIZE


@pytest.mark.parametrize("kind", KINDS)
async def test_an_object_is_held_shown_released_and_cancelled_as_one(operators: Kube, kind: str) -> None:
    """Two objects, and room for one of them. The second has no pods while it waits. Deleting the FluxJob of
    the first suspends it, and the second starts."""
    async with held(operators) as f, doors(f), controlled(f, kind, "one", "two"):
        await submit(f, kind, "one")
        await f.until(all_bound("one"), "the first starts")
        await submit(f, kind, "two")
        first, second = (f"{name}-{kind.lower()}" for name in ("one", "two"))
        await until_phase(f, first, "Running")
        waits = await until_phase(f, second, "Pending", "Reserved")
        assert waits.spec.nodes == SIZE
        assert waits.status.reason == "TooFewSeats", waits
        assert waits.owner is not None and (waits.owner.kind, waits.owner.name) == (kind, "two")
        assert set(await flux_jobs(f)) == {first, second}
        assert not [name for name in await f.pods() if name.startswith("two-")]
        assert is_suspended(await object_of(f, kind, "two"))
        told = await fluence(f, "explain", f"{kind.lower()}/two", "--scheduler-name", f.name)
        assert told["state"] == "Pending", told
        assert told["gang"]["minimum"] == SIZE, told
        seats = sorted(pod.spec.node_name for pod in (await f.pods()).values() if pod.spec.node_name)
        running = (await flux_jobs(f))[first].status
        assert sorted(running.nodes or ()) == seats

        await f.client.delete(FLUX_JOBS, first, namespace=f.namespace)
        await f.until(all_bound("two"), "the second starts")
        cancelled = await object_of(f, kind, "one")
        assert is_suspended(cancelled)
        assert names.CANCELLED in cancelled["metadata"]["annotations"]
        assert bound_of(await f.pods(), "one") == 0
        assert set(await flux_jobs(f)) == {second}


@pytest.mark.parametrize("kind", GRANTED)
async def test_an_object_is_completed_after_a_kill_at_each_of_its_steps(
    operators: Kube, tmp_path: Path, kind: str
) -> None:
    """The scheduler is killed before it writes what the object has, before it releases it, when it is
    released, and when one pod is bound. Others that came meanwhile never take its nodes."""
    plural = resource_of(kind).plural

    async def release(f: Field) -> bool:
        return not is_suspended(await object_of(f, kind, "x"))

    async def granted(f: Field) -> bool:
        found = (await object_of(f, kind, "x")).get("status", {}).get("conditions", [])
        return any(each["type"] == names.GRANTED for each in found)

    async def one_bound(f: Field) -> bool:
        return bound_of(await f.pods(), "x") == 1

    slow = partial(Rule, latency_s=60)
    steps: list[tuple[Rule, Callable[[Field], Any] | None]] = [
        (slow(verb="patch", path=f"/{plural}/x/status$"), None),
        (slow(verb="patch", path=f"/{plural}/x$"), granted),
        (slow(verb="create", path="/pods/x-.*/binding$"), release),
        (slow(verb="create", path="/pods/x-.*/binding$", after=1), one_bound),
    ]
    async with held(operators) as f, controlled(f, kind, "x"), greedy_pods(f) as add_greedy:
        for number, (rule, reached) in enumerate(steps):
            async with killed(f, [rule], tmp_path) as run:
                await run.led()
                if number == 0:
                    await submit(f, kind, "x")
                    await asyncio.sleep(2)  # nothing shows that it is about to write
                elif reached is not None:
                    async with run.explained():
                        await eventually(partial(reached, f), what=f"step {number}")
                await run.stop(signal.SIGKILL)
            assert bound_of(await f.pods(), "x") == int(number == 3)
            if number == 2:  # what it was granted is not free to others
                await add_greedy()
        async with doors(f):
            pods = await f.until(all_bound("x"), "all of it starts")
            assert bound_of(pods, "greedy") <= NODES - SIZE
            await until_phase(f, f"x-{kind.lower()}", "Running")


@contextlib.asynccontextmanager
async def greedy_pods(f: Field) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Adds pods that would take all nodes; they are gone at the end."""
    greedy = [f"greedy-{index}" for index in range(NODES)]
    try:
        yield lambda: f.add(*map(f.pod, greedy))
    finally:
        await f.end(*(set(greedy) & set(await f.pods())))


async def test_a_held_job_set_in_order_starts_one_job_after_the_other(operators: Kube) -> None:
    async with held(operators) as f, doors(f), controlled(f, "JobSet", "ordered"):
        await submit(f, "JobSet", "ordered", startupPolicy={"startupPolicyOrder": "InOrder"})
        await f.until(all_bound("ordered"), "both stages start")
        await until_phase(f, "ordered-jobset", "Running")
        assert set(await flux_jobs(f)) == {"ordered-jobset"}


async def test_a_held_job_set_that_restarts_keeps_its_flux_job(operators: Kube) -> None:
    async with held(operators) as f, doors(f), controlled(f, "JobSet", "again"):
        await submit(f, "JobSet", "again", failurePolicy={"maxRestarts": 1})
        first = await f.until(
            lambda pods: len(pods) == SIZE and all(pod.status.phase == "Running" for pod in pods.values()),
            "all run",
        )
        failed = {"status": {"phase": "Failed"}}
        await f.client.patch(
            PODS.raw(), next(iter(first)), failed, namespace=f.namespace, subresource="status"
        )
        await f.until(
            lambda pods: (
                len([name for name, pod in pods.items() if pod.spec.node_name and name not in first]) == SIZE
            ),
            "all of it runs again",
        )
        await until_phase(f, "again-jobset", "Running")


async def test_an_object_that_is_preempted_is_suspended_and_starts_again_as_a_whole(operators: Kube) -> None:
    kind, urgent = "JobSet", ("urgent-0", "urgent-1")
    async with held(operators) as f, priorities(f) as classes, doors(f), controlled(f, kind, "low"):
        await submit(f, kind, "low")
        await f.until(all_bound("low"), "it starts")
        try:
            high = partial(f.pod, priorityClassName=classes["high"], terminationGracePeriodSeconds=0)
            await f.add(*map(high, urgent))
            await f.until(lambda pods: bound_of(pods, "urgent") == 2, "others take its nodes")
            assert is_suspended(await object_of(f, kind, "low"))
            await f.until(lambda pods: bound_of(pods, "low") == 0, "its pods end")
            await until_phase(f, "low-jobset", "Pending", "Reserved")
        finally:
            await f.end(*(set(urgent) & set(await f.pods())))
        await f.until(all_bound("low"), "it starts again")
        await until_phase(f, "low-jobset", "Running")


@pytest.mark.parametrize("kind", GRANTED)
async def test_an_object_that_its_user_unsuspends_waits_behind_the_gate(operators: Kube, kind: str) -> None:
    """Nor does a condition of its own in the place of ours give it anything: the server drops a status that
    comes with the spec."""
    async with held(operators) as f, doors(f), controlled(f, kind, "first", "pushy"):
        await submit(f, kind, "first")
        await f.until(all_bound("first"), "the first starts")
        await submit(f, kind, "pushy")
        await until_phase(f, f"pushy-{kind.lower()}", "Pending", "Reserved")
        grant = {"type": names.GRANTED, "status": "True", "reason": "Released", "message": "{}"}
        grant["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        by_hand = {"spec": {"suspend": False}, "status": {"conditions": [grant]}}
        await f.client.patch(resource_of(kind), "pushy", by_hand, namespace=f.namespace)
        found = await object_of(f, kind, "pushy")
        conditions = found.get("status", {}).get("conditions", [])
        assert not any(each["type"] == names.GRANTED for each in conditions)
        pods = await f.until(lambda pods: len(pods) == 2 * SIZE, "its pods are there")
        waiting = [pod for name, pod in pods.items() if name.startswith("pushy-")]
        assert all(pod.is_gated and not pod.spec.node_name for pod in waiting)
        await until_phase(f, f"pushy-{kind.lower()}", "Pending", "Reserved")
        await f.client.delete(resource_of(kind), "first", namespace=f.namespace)
        await f.until(all_bound("pushy"), "it starts in its turn")
        assert set(await flux_jobs(f)) == {f"pushy-{kind.lower()}"}


def any_object(rng: random.Random, number: int) -> dict[str, Any]:
    """Objects of each kind in held and other namespaces: all changes by themselves, then any of them."""
    kind = OPERATOR_KINDS[number // 2 % len(OPERATOR_KINDS)]
    at, changes = number // 2 // len(OPERATOR_KINDS), changes_of(kind)
    if at >= len(changes):
        return random_object(rng, kind)
    found = operator_object(kind)
    changes[at].apply(found)
    return found


OBJECTS = max(400, int(os.environ.get("FLUENCE_ADMISSIONS", "0")))


@pytest.mark.parametrize("serving", [policies_for, webhook_for])
async def test_policies_and_webhook_make_of_operators_objects_what_the_python_rules_make(
    operated: Sandbox,
    serving: Callable[[Client, AdmissionField], contextlib.AbstractAsyncContextManager[Any]],
) -> None:
    """With the definitions of JobSet, Ray and MPI as they publish them: policies see typed objects."""
    async with Client(operated.access()) as client, admission_field(client, users=True) as at:
        for kind in OPERATOR_KINDS:
            await install(client, kind)
        async with serving(client, at):
            await until_suspended(client, at)
            await all_agree(client, at, any_object, OBJECTS)


async def until_suspended(client: Client, at: AdmissionField) -> None:
    async def running() -> list[str]:
        """NB a kind that has just been defined is not served at once."""
        tried = {kind: await attempt(client, at.namespace(True), operator_object(kind)) for kind in HELD}
        return [kind for kind, (how, made) in tried.items() if how != "made" or not _suspended(made)]

    await eventually(running, [], what="objects are suspended")


def _suspended(found: Any) -> bool:
    for step in ("spec", *HELD[found["kind"]].suspend):
        found = found.get(step, {})
    return found is True
