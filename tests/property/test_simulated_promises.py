"""`fluence simulate` of manifests, to the end: who starts after its promise has a cause for it in its story.

Random Pods and Jobs on a few nodes, some of which run past their limits, with and without devices that belong
to no node. `FLUENCE_SIMULATIONS=N` runs N of them.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from fluence import names
from fluence.model.job_state import JobState
from fluence.queue.promises import LATE
from fluence.schedule.settings import SchedulerSettings
from fluence.sim import live_cycle
from fluence.sim.live_cycle import Arrival, ManifestWorkload
from tests.amounts import amount

HISTORIES = amount(25, quick=4, soak="FLUENCE_SIMULATIONS")
FIRST = int(os.environ.get("FLUENCE_SEED", "0"))
RUN = "sandbox.fluence.flux-framework.org/run-seconds"
DEVICES = "resources: [{type: qpu, name: a}, {type: qpu, name: b, with: [{type: qubit, count: 9}]}]"


def workload(rng: random.Random, *, overruns: bool) -> ManifestWorkload:
    arrivals = []
    if rng.random() < 0.5:
        meta = {"name": names.RESOURCES_CONFIGMAP, "namespace": "kube-system"}
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
        arrivals.append(Arrival(0, {**body, "data": {names.RESOURCES_KEY: DEVICES}}, "devices"))
    for number in range(rng.randint(4, 18)):
        limit = rng.randint(5, 120)
        runs = rng.randint(1, limit) if not overruns or rng.random() < 0.8 else limit + rng.randint(1, 60)
        notes = {names.DURATION: f"{limit}s", RUN: str(runs)}
        asked = {"cpu": str(rng.randint(1, 4))}
        if arrivals and rng.random() < 0.4:
            asked[f"{names.DEVICE_PREFIX}{rng.choice(('qpu', 'qubit'))}"] = "1"
        box = {"name": "c", "image": "none", "resources": {"requests": asked}}
        spec = {"schedulerName": names.SCHEDULER, "restartPolicy": "Never", "containers": [box]}
        name, size = f"j{number}", rng.choice((1, 1, 2, 3))
        made: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "spec": spec}
        made["metadata"] = {"name": name, "namespace": "default", "annotations": notes}
        if size > 1:
            notes[names.GROUP_SIZE] = str(size)
            template = {"metadata": {"annotations": notes, "labels": {names.GROUP_LABEL: name}}, "spec": spec}
            made = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name, "namespace": "default"},
            }
            made["spec"] = {"parallelism": size, "completions": size, "template": template}
        arrivals.append(Arrival(rng.randint(0, 200) * 1000, made, name))
    return ManifestWorkload(tuple(sorted(arrivals, key=lambda each: each.at)), "random")


def nodes(rng: random.Random) -> list[dict[str, Any]]:
    size = {"cpu": "4", "memory": "8Gi", "pods": "20"}
    return [
        {"metadata": {"name": f"n{number}"}, "status": {"allocatable": size, "capacity": size}}
        for number in range(rng.randint(1, 3))
    ]


@pytest.mark.seeded
@pytest.mark.parametrize("overruns", [False, True])
@pytest.mark.parametrize("policy", ["conservative", "easy", "hybrid"])
def test_who_starts_late_says_why(policy: str, overruns: bool) -> None:
    late = told = 0
    for seed in range(FIRST, FIRST + HISTORIES):
        rng = random.Random(f"{policy}{overruns}{seed}")
        done = live_cycle.simulate(
            workload(rng, overruns=overruns), nodes(rng), settings=SchedulerSettings(queue_policy=policy)
        )
        for record in done.records:
            assert record.start is not None or record.state == JobState.UNSCHEDULABLE, record
            if record.no_later_than is None or record.start is None:
                continue
            told += 1
            if record.start > record.no_later_than + LATE:
                late += 1
                assert record.broken, f"seed {seed}: {record.name} started late, and nothing says why"
    assert told, "nobody had to wait"
    if policy == "conservative" and not overruns:
        assert not late, "a place that is reserved is kept"
