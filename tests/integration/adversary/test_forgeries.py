"""Any field that the scheduler reads, forged in any kind of object that a tenant may create: innocent pods
are bound in time, their nodes are as free as before, and nobody writes the objects of others.

    FLUENCE_SOAK=200 pytest tests/integration/adversary/test_forgeries.py     what `make soak` runs: 2,400
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fluence import names
from fluence.controller.flux_job import FLUX_JOBS
from fluence.kube.errors import Missing
from fluence.kube.resource import Json
from fluence.model.grant import PodGrant
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.adversary.tenants import Tenancy, tenancy
from tests.integration.adversary.test_tenants import (
    FINALIZER,
    WIDE,
    barren,
    get_job,
    meta_of,
    note,
    pin,
    references,
)
from tests.integration.controller.doors import GATES, SEEN, held_job, held_set, submit, until_phase

ROUNDS = int(os.environ.get("FLUENCE_SOAK", "0")) or 4
OF_A_ROUND = 12
SEED = int(os.environ.get("FLUENCE_SOAK_SEED", "5"))
POLICIES = ("easy", "conservative", "fcfs", "hybrid")
KINDS = ("Pod", "Job", "StatefulSet", "Deployment", "FluxJob")


@dataclass(frozen=True)
class Target:
    """Whom the forgeries are about."""

    job: Any  # as the server has it
    nodes: list[str]
    number: str  # of the job


Forge = Callable[[Json, Json, Target], None]


def _notes(said: Callable[[Target], dict[str, str]]) -> Forge:
    """Annotations, on an object and on its pods."""

    def forge(body: Json, pod: Json, target: Target) -> None:
        for each in (body, pod):
            meta: Any = each.setdefault("metadata", {})
            meta["annotations"] = {**meta.get("annotations", {}), **said(target)}

    return forge


def _labels(said: Callable[[Target], dict[str, str]]) -> Forge:
    def forge(body: Json, pod: Json, target: Target) -> None:
        for each in (body, pod):
            meta: Any = each.setdefault("metadata", {})
            meta["labels"] = {**meta.get("labels", {}), **said(target)}

    return forge


def _spec(said: Callable[[Target], Json]) -> Forge:
    def forge(body: Json, pod: Json, target: Target) -> None:
        spec: Any = pod.get("spec", {})
        spec.update(said(target))

    return forge


def _reference(body: Json, pod: Json, target: Target) -> None:
    meta_of(body).update(ownerReferences=references(target.job), finalizers=[FINALIZER])


def _status(body: Json, pod: Json, target: Target) -> None:
    said = PodGrant(target.nodes[0]).condition()
    condition = {"type": said.type, "status": "True", "reason": said.reason, "message": said.message}
    body["status"] = {"conditions": [condition]}


FIELDS: dict[str, Forge] = {
    "pin": _spec(lambda target: {"affinity": pin(target.nodes[0])}),
    "gate": _spec(lambda target: {"schedulingGates": GATES}),
    "scheduler": _spec(lambda target: {"schedulerName": names.KUBE_SCHEDULER}),
    "seen": _labels(lambda target: SEEN),
    "job label": _labels(lambda target: {names.FLUXQUEUE_JOBID: target.number}),
    "group": _labels(lambda target: {names.GROUP_LABEL: "victim"}),
    "size": _notes(lambda target: {names.GROUP_SIZE: "2"}),
    "number": _notes(lambda target: {names.JOBID: target.number}),
    "allocation": _notes(lambda target: {names.ALLOCATION: '{"start":1,"devices":[["a","qpu",1]]}'}),
    "note": _notes(lambda target: note(target.nodes)),
    "excluded": _notes(lambda target: {names.EXCLUDED: ",".join(target.nodes)}),
    "queued": _notes(lambda target: {names.QUEUED: "1970-01-01T00:00:00Z"}),
    "cancelled": _notes(lambda target: {names.CANCELLED: "1970-01-01T00:00:00Z"}),
    "warned": _notes(lambda target: {names.WARNED: "1970-01-01T00:00:00Z"}),
    "reference": _reference,
    "status": _status,
}


@dataclass(frozen=True)
class Forgery:
    """One object of Mallory's."""

    kind: str
    name: str
    fields: tuple[str, ...]
    wide: bool
    suspended: bool
    then: str  # what she does with it: nothing, renew its notes, forget its references, delete it

    def body(self, t: Tenancy, target: Target) -> Json:
        size = WIDE if self.wide else 2
        if self.kind == "Pod":
            body = t.pod(self.name)
            pod = body
        elif self.kind == "FluxJob":
            spec = {"jobspec": "", "type": 1, "name": target.job["metadata"]["name"], "nodes": 2}
            body = {"apiVersion": FLUX_JOBS.api_version, "kind": "FluxJob", "metadata": {}, "spec": spec}
            meta_of(body)["name"] = self.name
            pod = {"spec": {}}
        elif self.kind == "Job":
            body = held_job(t.f, self.name, size, **t.nowhere)  # type: ignore[arg-type]
            held: Any = body["spec"]
            held["suspend"] = self.suspended or self.wide
            pod = held["template"]
        else:
            body = held_set(t.f, self.kind, self.name, 2 if self.kind == "Deployment" else size, **t.nowhere)
            made: Any = body["spec"]
            pod = made["template"]
        for each in self.fields:
            FIELDS[each](body, pod, target)
        return barren(body) if self.wide and self.kind in ("Job", "StatefulSet") else body

    async def commit(self, t: Tenancy, target: Target) -> None:
        await t.create(self.body(t, target))

    async def go_on(self, t: Tenancy, target: Target) -> None:
        """The garbage collector may have been faster."""
        try:
            if self.then == "renew":
                await t.patch(self.kind, self.name, {"metadata": {"annotations": note(target.nodes)}})
            elif self.then == "forget":
                await t.patch(self.kind, self.name, {"metadata": {"ownerReferences": None}})
            elif self.then == "delete":
                await t.delete(self.kind, self.name)
        except Missing:
            pass


def forgeries(rng: random.Random) -> list[Forgery]:
    found = []
    for index in range(OF_A_ROUND):
        kind = rng.choice(KINDS)
        fields = tuple(sorted(rng.sample(list(FIELDS), rng.randint(1, 5))))
        # What stands in the victim's own namespace has this name there.
        name = "victim-job" if kind == "FluxJob" and rng.random() < 0.5 else f"forged-{index}"
        then = rng.choice(("nothing", "renew", "forget", "delete"))
        wide, suspended = rng.random() < 0.3, rng.random() < 0.5
        found.append(Forgery(kind, name, fields, wide, suspended, then))
    return list({(each.kind, each.name): each for each in found}.values())


async def until_free(t: Tenancy, expected: dict[str, int], what: object) -> None:
    await eventually(t.free, expected, what=f"nothing is held: {what}")


async def round_of(t: Tenancy, target: Target, policy: str, rng: random.Random) -> None:
    made = forgeries(rng)
    early, late = made[::2], made[1::2]
    async with t.scheduler(queue_policy=policy):
        await until_free(t, expected := t.free(), "before")
        before = await t.stable()
        async with t.served():
            for each in early:
                await each.commit(t, target)
            await asyncio.sleep(0.5)
        await until_free(t, expected, early)
    for each in late:
        await each.commit(t, target)
    async with t.scheduler(queue_policy=policy):
        async with t.served():
            for each in made:
                await each.go_on(t, target)
            await asyncio.sleep(0.5)
        await until_free(t, expected, made)
    assert await t.written() == before, made
    await t.clear()


async def test_forgeries_of_all_kinds_hold_nothing_and_change_nothing(kube: Kube, audited: None) -> None:
    rng = random.Random(SEED)
    async with tenancy(kube, 4) as t:
        async with t.scheduler():
            await submit(t.f, held_job(t.f, "victim", 2, runs=36_000))
            notes, group = {names.GROUP_SIZE: "2"}, {names.GROUP_LABEL: "victim"}
            await t.f.add(*(t.f.pod(f"gang-{i}", labels=group, annotations=notes) for i in range(2)))
            pods = await t.f.until_bound(4)
            await until_phase(t.f, "victim-job", "Running")
        number = next(pod.annotations[names.JOBID] for name, pod in pods.items() if name.startswith("victim"))
        target = Target(await get_job(t, "victim"), t.f.nodes, number)
        for index in range(ROUNDS):
            state = rng.getrandbits(32)
            try:
                await round_of(t, target, POLICIES[index % len(POLICIES)], random.Random(state))
            except AssertionError as failed:
                pytest.fail(f"round {index}, FLUENCE_SOAK_SEED={SEED}: {failed}")
