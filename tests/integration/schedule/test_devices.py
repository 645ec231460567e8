"""Devices that belong to no node on a real control plane: handed over with the bind, planned, reloaded."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluence import names
from fluence.deviceplugin.advertising import advertise_once
from fluence.kube.resource import CONFIG_MAPS, EVENTS, NODES, PODS, Json
from fluence.model.pod import Pod
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.schedule.field import Field, field

ONE = "resources: [{type: qpu, name: marrakesh, attributes: {vendor: ibm}, with: [{type: qubit, count: 9}]}]"
EXAMPLES = Path(__file__).parents[3] / "examples" / "select"
EDITS = int(os.environ.get("FLUENCE_EDITS", "25"))


async def declare(f: Field, text: str | None) -> None:
    """The ConfigMap of this test's scheduler; None: it goes."""
    if text is None:
        await f.client.delete(CONFIG_MAPS, names.RESOURCES_CONFIGMAP, namespace=f.namespace)
        return
    body: Json = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.RESOURCES_CONFIGMAP},
        "data": {names.RESOURCES_KEY: text},
    }
    page = await f.client.list(CONFIG_MAPS, namespace=f.namespace)
    if any(each.metadata.name == names.RESOURCES_CONFIGMAP for each in page.items or ()):
        await f.client.patch(
            CONFIG_MAPS.raw(), names.RESOURCES_CONFIGMAP, {"data": body["data"]}, namespace=f.namespace
        )
    else:
        await f.client.create(CONFIG_MAPS.raw(), body, namespace=f.namespace)


async def complaints(f: Field) -> list[Any]:
    page = await f.client.list(EVENTS, namespace=f.namespace)
    return [each for each in page.items or () if each["reason"] == "InvalidResources"]


def settings(f: Field) -> dict[str, Any]:
    return {"resources_configmap": f"{f.namespace}/{names.RESOURCES_CONFIGMAP}"}


def asks(f: Field, name: str, *, limit: int | None = None, runs: float | None = None, **types: int) -> Json:
    notes = {} if limit is None else {names.DURATION: f"{limit}s"}
    body = f.pod(name, annotations=notes, runs=runs)
    wanted = {names.DEVICE_PREFIX + type_: str(count) for type_, count in types.items()}
    box: Any = body["spec"]
    box["containers"][0]["resources"] = {"requests": {"cpu": "1", **wanted}, "limits": wanted}
    return body


def backend(pod: Pod) -> str:
    return pod.annotations.get(names.BACKEND, "")


@pytest.mark.release
async def test_two_want_one_machine_and_a_third_goes_first(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f:
        await declare(f, ONE)
        async with f.scheduler(**settings(f)):
            await f.add(asks(f, "first", limit=600, runs=600, qpu=1))
            pods = await f.until_bound(["first"])
            assert backend(pods["first"]) == "marrakesh"
            assert pods["first"].annotations[f"{names.ATTRIBUTE}vendor"] == "ibm"
            await f.add(asks(f, "second", limit=60, runs=1, qpu=1))
            told = await f.until_told("second", "Starts by")
            assert told.startswith("Waiting for marrakesh until ")
            assert "expected" in told
            await f.add(asks(f, "third", limit=20, runs=1))
            pods = await f.until_bound(["third"])
            assert pods["second"].spec.node_name is None, "the third went first"
            ended = {"status": {"phase": "Succeeded"}}
            await f.client.patch(PODS.raw(), "first", ended, namespace=f.namespace, subresource="status")
            pods = await f.until_bound(["second"])
            assert backend(pods["second"]) == "marrakesh"


async def test_devices_come_change_and_go_without_a_restart(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, f.scheduler(**settings(f)) as live:
        await f.add(asks(f, "a", qpu=1))
        await f.until_told("a", "no external resources are configured")
        await declare(f, ONE)
        assert backend((await f.until_bound(["a"]))["a"]) == "marrakesh"
        await declare(f, "resources: [{typ: qpu}]")
        said = await eventually(live.remark)
        assert "line 1: a resource has no field 'typ'; did you mean `type`?" in said
        found = await eventually(lambda: complaints(f))
        assert found[0]["regarding"]["kind"] == "ConfigMap" and "did you mean" in found[0]["note"]
        await eventually(live.metrics.text, lambda text: b"fluence_resources_invalid 1.0" in text)
        await declare(f, ONE.replace("name: marrakesh", "name: marrakesh, status: offline"))
        await f.add(asks(f, "b", qpu=1))
        await f.until_told("b", "marrakesh is offline")
        await declare(f, ONE.replace("marrakesh", "fez"))
        assert backend((await f.until_bound(["b"]))["b"]) == "fez"
        await eventually(live.metrics.text, lambda text: b"fluence_resources_invalid 0.0" in text)
        await declare(f, None)
        await f.add(asks(f, "c", qpu=1))
        await f.until_told("c", "no external resources are configured")


async def test_a_device_is_still_held_after_a_restart(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f:
        await declare(f, ONE)
        async with f.scheduler(**settings(f)):
            await f.add(asks(f, "a", qpu=1))
            await f.until_bound(["a"])
        await f.add(asks(f, "b", qpu=1))
        async with f.scheduler(**settings(f)):
            await f.until_told("b", "Waiting for marrakesh")
            await f.end("a")
            await f.until_bound(["b"])


async def test_a_file_declares_devices_in_place_of_the_configmap(kube: Kube, tmp_path: Any) -> None:
    path = tmp_path / "resources.yaml"
    async with field(kube, 1) as f, f.scheduler(resources=str(path)):
        await f.add(asks(f, "a", qpu=1))
        await f.until_told("a", "no external resources are configured")
        path.write_text(ONE)
        assert backend((await f.until_bound(["a"]))["a"]) == "marrakesh"


async def test_edits_at_random_while_gangs_come_and_go(kube: Kube, audited: None) -> None:
    """Whatever the document says, nothing is given twice; `FLUENCE_EDITS=1000` edits a thousand times."""
    rng = random.Random(15)
    async with field(kube, 2, cpu=16) as f, f.scheduler(**settings(f)):
        count: dict[str, int] = {}
        for number in range(EDITS):
            some = rng.sample("abcdef", rng.randint(0, 6))
            count = {name: rng.randint(1, 2) for name in some}
            entries = ", ".join(f"{{type: qpu, name: {name}, count: {n}}}" for name, n in count.items())
            await declare(f, rng.choice([f"resources: [{entries}]", f"resources: [{entries}"]))
            await f.add(asks(f, f"p{number}", runs=rng.uniform(0.2, 1.0), qpu=1))
            held: dict[str, int] = {}
            for pod in (await f.pods()).values():
                if pod.spec.node_name and not pod.is_terminal:
                    held[backend(pod)] = held.get(backend(pod), 0) + 1
            assert all(n <= 2 for n in held.values()), held
        await declare(f, "resources: [{type: qpu, name: a, count: 2}, {type: qpu, name: b, count: 2}]")
        await f.until(
            lambda pods: all(pod.is_terminal for pod in pods.values()), "all have run", timeout_s=120
        )


@pytest.mark.release
async def test_no_pod_goes_where_the_device_plugin_is_gone_until_the_zeros_are_removed(kube: Kube) -> None:
    """A kubelet leaves 0 when its plugin is switched off, and would fail every pod that comes."""
    async with field(kube, 1) as f:
        await declare(f, ONE)
        zero = {f"{names.DEVICE_PREFIX}qpu": "0"}
        body = {"status": {"capacity": zero, "allocatable": zero}}
        await f.client.patch(NODES.raw(), f.nodes[0], body, subresource="status")
        async with f.scheduler(**settings(f)):
            await f.add(asks(f, "a", qpu=1), f.pod("plain"))
            await f.until_bound(["plain"])
            await f.until_told("a", f"Insufficient {names.DEVICE_PREFIX}qpu (1 requested, its kubelet offers")
            await advertise_once(f.client, {}, zeros=True)  # fluence resources advertise --remove
            assert backend((await f.until_bound(["a"]))["a"]) == "marrakesh"


def conditions(pod: Pod) -> str:
    return " ".join(condition.message for condition in pod.status.conditions or ())


async def warnings(f: Field, reason: str) -> list[Any]:
    page = await f.client.list(EVENTS, namespace=f.namespace)
    return [each["regarding"]["name"] for each in page.items or () if each["reason"] == reason]


async def test_a_pod_whose_containers_would_not_know_their_backend_is_warned_or_held(kube: Kube) -> None:
    async with field(kube, 1) as f:
        await declare(f, ONE)
        async with f.scheduler(**settings(f)):
            held = asks(f, "held", qpu=1)
            meta: Any = held["metadata"]
            meta["annotations"] = {names.MISSING_VARIABLES: "hold"}
            await f.add(held)
            await f.until(
                lambda pods: "no variable has the name of its backend" in conditions(pods["held"]),
                "it is told why it is held",
            )
            await f.add(asks(f, "blind", qpu=1))
            await f.until_bound(["blind"])
            await eventually(lambda: warnings(f, "VariablesMissing"), ["blind"])


async def test_the_example_of_generic_gpus_runs_from_our_files_to_a_bound_pod(kube: Kube) -> None:
    """Seed 001: the offers, the attributes and the pod; the choice on the user's machine, then the bind."""
    program = [str(Path(sys.executable).with_name("kubectl-fluence")), "select", "--providers", "file"]
    files = ["-f", str(EXAMPLES / "generic-gpu.yaml")]
    files += ["--attributes", str(EXAMPLES / "generic-attributes.yaml")]
    done = subprocess.run([*program, *files], capture_output=True, text=True, check=True)
    pod = yaml.safe_load(done.stdout)
    assert pod["metadata"]["annotations"][names.BACKEND] == "gpu-l4"
    # As an older client has it, which writes no other pin.
    del pod["metadata"]["annotations"][names.REQUIRE_BACKEND]
    async with field(kube, 1) as f:
        offers = yaml.safe_load((EXAMPLES / "offers.yaml").read_text())
        await declare(f, offers["data"][names.RESOURCES_KEY])
        own: Any = f.pod("any")["spec"]
        pod["spec"] |= {key: value for key, value in own.items() if key != "containers"}
        async with f.scheduler(**settings(f)):
            await f.add(pod)
            bound = (await f.until_bound(["training-leader"]))["training-leader"]
            assert backend(bound) == "gpu-l4"
            assert bound.annotations[f"{names.ATTRIBUTE}vendor"] == "nvidia"
