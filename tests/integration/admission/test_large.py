"""Objects larger than rules look at: refused where a rule would change them, and only there."""

from __future__ import annotations

from typing import Any

import pytest

from fluence import names
from fluence.admission.rule import MAX_CONTAINERS
from fluence.kube.client import Client
from fluence.sandbox.sandbox import Sandbox
from tests.eventually import eventually
from tests.integration.admission.field import attempt, field, policies_for, webhook_for

pytestmark = pytest.mark.release
MANY = MAX_CONTAINERS + 1
QPU = {"limits": {f"{names.DEVICE_PREFIX}qpu": "1"}}


def pod(count: int, scheduler: str, resources: Any, **labels: str) -> dict[str, Any]:
    containers = [{"name": f"c{i}", "image": "x", "resources": resources} for i in range(count)]
    spec = {"schedulerName": scheduler, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "large", "labels": labels}, "spec": spec}


@pytest.mark.parametrize("way", [policies_for, webhook_for])
async def test_what_a_rule_would_change_is_refused_and_everything_else_passes(
    sandbox: Sandbox, way: Any
) -> None:
    async with Client(sandbox.access()) as client, field(client) as at, way(client, at):
        ours = at.options.scheduler
        job: Any = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "large"}}
        job["spec"] = {"template": {"spec": {**pod(MANY, ours, {})["spec"], "restartPolicy": "Never"}}}
        refused = [
            (False, pod(MANY, ours, QPU)),
            (False, pod(3000, ours, QPU)),
            (True, pod(MANY, "default-scheduler", {})),
            (True, job),
        ]
        for held, found in refused:
            where = at.namespace(held)
            _, told = await eventually(  # policies that refuse are in force later than those that change
                lambda where=where, found=found: attempt(client, where, found),  # type: ignore[misc]
                lambda seen: seen[0] == "refused",
            )
            assert "containers and init containers" in told and "use several pods" in told
        passed = [
            (False, pod(MANY, ours, {})),
            (False, pod(MANY, "other", QPU)),
            (True, pod(MANY, "other", {})),
            (True, pod(MANY, "default-scheduler", {}, **{names.QUEUE: names.QUEUE_OFF})),
        ]
        for held, found in passed:
            verdict, made = await attempt(client, at.namespace(held), found)
            assert verdict == "made", made
            assert "schedulingGates" not in made["spec"] and "env" not in made["spec"]["containers"][0]
