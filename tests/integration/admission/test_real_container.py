"""The hand-off seen from inside a container: what it prints is what the scheduler wrote on its pod."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from fluence import names
from fluence.kube.resource import CONFIG_MAPS, PODS
from fluence.live.scheduler import LiveScheduler
from fluence.model.external_resources import hand_off_variables, parse
from fluence.sandbox.testing import Kube
from fluence.schedule.settings import SchedulerSettings
from tests.eventually import eventually
from tests.integration.admission.field import attempt, field, policies_for
from tests.integration.sandbox.kubectl import Kubectl

pytestmark = [pytest.mark.realnodes, pytest.mark.release]

DEVICES = """
resources:
  - {type: qpu, name: far, attributes: {vendor: ibm, qrmi_type: ibm-quantum-system}}
  - {type: qpu, name: near, attributes: {vendor: aws, qrmi_type: braket}}
"""
SAYS = "echo $QRMI_BACKEND $FLUXION_BACKEND $FLUXION_VENDOR $QRMI_JOB_QPU_RESOURCES $QRMI_JOB_QPU_TYPES $MINE"


def sampler(scheduler: str) -> dict[str, Any]:
    container = {
        "name": "sampler",
        "image": "busybox",
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", SAYS],
        "env": [{"name": "MINE", "value": "on-$(QRMI_BACKEND)"}],
        "resources": {"limits": {f"{names.DEVICE_PREFIX}qpu": "1"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "sampler", "annotations": {names.REQUIRE_BACKEND: "near"}},
        "spec": {"schedulerName": scheduler, "restartPolicy": "Never", "containers": [container]},
    }


@pytest.mark.only("1.36", "1.37")
async def test_a_container_prints_the_backend_that_its_pod_got(real_kube: Kube) -> None:
    async with (
        real_kube.client(qps=0) as client,
        field(client, own_scheduler=True) as at,
        policies_for(client, at),
    ):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "devices"}}
        data = {"data": {names.RESOURCES_KEY: DEVICES}}
        await client.create(CONFIG_MAPS.raw(), body | data, namespace=at.plain)
        settings = SchedulerSettings(
            scheduler_name=at.run,
            lease=False,
            lease_namespace=at.plain,
            resources_configmap=f"{at.plain}/devices",
        )
        live, stop = LiveScheduler(client, settings), asyncio.Event()
        running = asyncio.create_task(live.run(stop))
        try:
            space = at.namespace(False)
            # The server reads the table of variables later than the leader writes it.
            wanted = hand_off_variables(parse(DEVICES)).keys()
            await eventually(
                lambda: attempt(client, space, sampler(at.run)),
                lambda made: {each["name"] for each in made[1]["spec"]["containers"][0]["env"]} >= wanted,
                what=f"containers get {sorted(wanted)}",
            )
            await client.create(PODS.raw(), sampler(at.run), namespace=space)
            found: Any = await eventually(
                lambda: client.get(PODS.raw(), "sampler", namespace=space),
                lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"),
                what="its container has ended",
                timeout_s=120,
            )
            assert found["metadata"]["annotations"][names.BACKEND] == "near"
            kubectl = Kubectl(msgspec.structs.replace(real_kube, namespace=space))
            wanted_log = "near near aws near braket on-near\n"
            await asyncio.to_thread(kubectl.logged, "sampler", wanted=wanted_log)
        finally:
            stop.set()
            await running
