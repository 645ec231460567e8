"""The device plugin beside a real kubelet, and what a kubelet and kube-scheduler make of its absence."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from fluence import names
from fluence.kube.releases import release
from fluence.sandbox import plane
from fluence.sandbox.programs import find_programs
from fluence.sandbox.sandbox import Sandbox
from fluence.sandbox.testing import Kube
from tests.integration.sandbox.kubectl import Kubectl, soon
from tests.integration.sandbox.test_real_nodes import pod

pytestmark = pytest.mark.realnodes

QPU, TOKEN = (f"fluxion.flux-framework.org/{each}" for each in ("qpu", "token"))
BOTH = "resources: [{type: qpu, name: sv1, with: [{type: qubit, count: 34}]}]"
THREE = BOTH[:-1] + ", {type: licence, count: 3}]"
ASKS = {"resources": {"limits": {QPU: "1"}}}


def offers(kubectl: Kubectl, node: str) -> dict[str, str]:
    """How many of which external resources a node has."""
    text = kubectl.ok("get", "node", node, "-o", "yaml")
    allocatable: dict[str, str] = yaml.safe_load(text)["status"]["allocatable"]
    return {
        key.removeprefix(names.DEVICE_PREFIX): value
        for key, value in allocatable.items()
        if key.startswith(names.DEVICE_PREFIX) and value != "0"
    }


class Node:
    """One real node as the API server shows it, and programs that run in it."""

    def __init__(self, sandbox: Sandbox, kubectl: Kubectl, number: int) -> None:
        self.sandbox, self.kubectl, self.number = sandbox, kubectl, number
        self.name = f"real-{number}"

    def offers(self) -> dict[str, str]:
        return offers(self.kubectl, self.name)

    def until_offers(self, **wanted: str) -> None:
        soon(self.offers, f"{self.name} offers {wanted}", wanted)

    def spawn(self, log: Path, *command: str, **variables: str) -> subprocess.Popen[bytes]:
        state = self.sandbox.require()
        assert state.real is not None
        node = state.real.nodes(self.sandbox.at.folder)[self.number - 1]
        entered = node.enter(state.parts[node.name].pid, *command)
        with log.open("ab") as out:
            return subprocess.Popen(entered, stdout=out, stderr=out, env={**os.environ, **variables})


@contextlib.contextmanager
def running(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
        assert process.poll() is None, "it ended by itself"
    finally:
        process.terminate()
        assert process.wait(120) is not None


def until_says(log: Path, text: str, times: int = 1) -> None:
    soon(log.read_text, f"{text!r} {times} times", lambda said: said.count(text) >= times)


@pytest.mark.release
def test_a_kubelet_offers_every_type_through_changes_and_its_own_restart(
    real_kube: Kube, tmp_path: Path
) -> None:
    kubectl, log, document = Kubectl(real_kube), tmp_path / "log", tmp_path / "resources.yaml"
    node = Node(real_kube.sandbox, kubectl, 1)
    document.write_text(BOTH)
    command = (sys.executable, "-m", "fluence.cli", "deviceplugin", "run", "--resources", str(document))
    with running(node.spawn(log, *command)):
        node.until_offers(qpu="1k", qubit="1k")

        # A type comes; a pod gets one, and nothing of it is seen in its container.
        document.write_text(THREE)
        node.until_offers(qpu="1k", qubit="1k", licence="1k")
        bare = pod("bare", "env | sort; ls /dev", node="real-1")
        given = pod("given", "env | sort; ls /dev", node="real-1", container=ASKS)
        kubectl.apply(bare, given)
        assert kubectl.until_ended("given").replace("given", "bare") == kubectl.until_ended("bare")

        # The kubelet restarts: it forgets, and removes the sockets.
        assert real_kube.sandbox.restart("kubelet-1") == ["kubelet-1"]
        until_says(log, "fluxion.flux-framework.org/qpu is registered", 2)
        node.until_offers(qpu="1k", qubit="1k", licence="1k")
        kubectl.apply(pod("again", "echo ran", node="real-1", container=ASKS))
        assert kubectl.until_ended("again") == "ran\n"

        # A type goes; a document that cannot be read changes nothing.
        document.write_text(BOTH)
        node.until_offers(qpu="1k", qubit="1k")
        document.write_text("resources: [{typ: qpu}]")
        until_says(log, "line 1")
        assert node.offers() == {"qpu": "1k", "qubit": "1k"}
        document.unlink()
        node.until_offers()


@pytest.mark.release
def test_a_pod_that_is_bound_runs_though_its_node_offers_nothing(real_kube: Kube) -> None:
    """The kubelet ignores extended resources that its node does not have, so our binding needs no plugin."""
    kubectl = Kubectl(real_kube)
    assert "token" not in Node(real_kube.sandbox, kubectl, 2).offers()
    asks = {"resources": {"limits": {TOKEN: "2"}}}
    kubectl.apply(
        pod("named", "echo ran", node="real-2", container=asks),
        pod("bound", "echo ran", schedulerName="nobody", container=asks),
    )
    binding: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "bound", "namespace": real_kube.namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "real-2"},
    }
    path = f"/api/v1/namespaces/{real_kube.namespace}/pods/bound/binding"
    kubectl.ok("create", "--raw", path, "-f", "-", stdin=msgspec.json.encode(binding).decode())
    assert [kubectl.until_ended(each) for each in ("named", "bound")] == ["ran\n", "ran\n"]


@contextlib.contextmanager
def kube_scheduler(kube: Kube, folder: Path) -> Iterator[str]:
    """A kube-scheduler under a name of its own."""
    name, at = f"kube-{kube.namespace}", kube.sandbox.at
    config = plane.scheduler_config(at)
    config["profiles"] = [{"schedulerName": name}]
    file, log = folder / "scheduler.yaml", folder / "scheduler.log"
    file.write_bytes(msgspec.json.encode(config))
    found = release(kube.version)
    program = find_programs(found, names=("kube-scheduler",), report=lambda progress: None)["kube-scheduler"]
    command = [
        f"--config={file}" if each.startswith("--config=") else each
        for each in plane.scheduler(program, at, found.gates)
    ]
    with log.open("wb") as out, running(subprocess.Popen(command, stdout=out, stderr=out)):
        yield name


def test_kube_scheduler_needs_the_numbers_and_advertise_keeps_them(real_kube: Kube, tmp_path: Path) -> None:
    # NB other types than those above: a kubelet remembers what a plugin of its own once had.
    kubectl = Kubectl(real_kube)
    program = (sys.executable, "-m", "fluence.cli", "resources", "advertise")
    env = {**os.environ, "KUBECONFIG": str(real_kube.sandbox.at.kubeconfig())}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.RESOURCES_CONFIGMAP, "namespace": names.RESOURCES_NAMESPACE},
        "data": {names.RESOURCES_KEY: "resources: [{type: token, count: 3}]"},
    }
    system = Kubectl(Kube(real_kube.sandbox, "kube-system", real_kube.version))
    node = Node(real_kube.sandbox, kubectl, 2)
    asks = {"resources": {"limits": {TOKEN: "1"}}}
    selector = {"kubernetes.io/hostname": "real-2"}
    with kube_scheduler(real_kube, tmp_path) as scheduler:
        body = pod("asks", "echo ran", schedulerName=scheduler, nodeSelector=selector, container=asks)
        kubectl.apply(body)
        soon(
            lambda: f"Insufficient {TOKEN}" in kubectl.ok("get", "pod", "asks", "-o", "yaml"),
            "kube-scheduler says what is missing",
        )
        system.apply(config_map)
        log = tmp_path / "advertise.log"
        with log.open("wb") as out, running(subprocess.Popen(program, env=env, stdout=out, stderr=out)):
            assert kubectl.until_ended("asks") == "ran\n"  # on a real kubelet
            node.until_offers(token="1k")
            time.sleep(12)  # the kubelet writes its own status every ten seconds, and leaves ours alone
            assert node.offers() == {"token": "1k"}
            config_map["data"] = {names.RESOURCES_KEY: "resources: [{type: channel, count: 2}]"}
            system.apply(config_map)
            for each in json.loads(kubectl.ok("get", "nodes", "-o", "json"))["items"]:
                name = each["metadata"]["name"]
                soon(partial(offers, kubectl, name), f"{name} offers a channel", {"channel": "1k"})
    once = subprocess.run([*program, "--once"], env=env, capture_output=True, text=True, check=True)
    assert once.stdout == "0 nodes changed\n"
    system.ok("delete", "configmap", names.RESOURCES_CONFIGMAP)
    gone = subprocess.run([*program, "--remove"], env=env, capture_output=True, text=True, check=True)
    assert gone.stdout == "3 nodes changed\n"
    node.until_offers()
