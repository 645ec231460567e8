"""The webhook as its users install it: by the chart, in place of policies, called through its Service."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from cryptography import x509
from deploy.helm.manifests import DEPLOY
from deploy.helm.program import find_helm

from fluence import names
from fluence.kube.client import Client
from fluence.kube.errors import TooManyRequests
from fluence.kube.releases import release
from fluence.kube.resource import PODS
from fluence.model.pod import Pod
from fluence.sandbox.programs import find_programs
from fluence.sandbox.sandbox import Sandbox
from tests.integration.conftest import VERSION
from tests.integration.deploy.cluster import SPACE, findings, installed, logged, pods, real_cluster, until
from tests.integration.deploy.helm import HelmUser

pytestmark = [pytest.mark.realnodes, pytest.mark.release]

ROOT = DEPLOY.parent
SAMPLER = ROOT / "examples" / "quantum-pod.yaml"
HELD = ROOT / "examples" / "fluxqueue" / "job.yaml"
WEBHOOK = "deployment/fluence-webhook"
VALUES = {"replicas": 1, "admission": {"mode": "webhook"}}
OF_ADMISSION = ("admission", "webhook", "hand-off", "doors", "flux-jobs", "rights")
LIFE_S = 30


@pytest.fixture(scope="module")
def box(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with real_cluster("webhook", image, tmp_path_factory.mktemp("images")) as found:
        yield found


@pytest.fixture(scope="module")
def admin(box: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> HelmUser:
    """Has installed Fluence with the webhook, and declared devices."""
    found = installed(box, tmp_path_factory.mktemp("helm"), values=VALUES)
    found.kubectl("apply", "--namespace", "kube-system", "--filename", str(DEPLOY / "fluence-resources.yaml"))
    until(
        lambda: "FLUXION_VENDOR" in found.kubectl("get", "handoffs", "--output", "json"),
        "attributes are told",
    )
    return found


@pytest.fixture(scope="module")
def user(box: Sandbox, admin: HelmUser, tmp_path_factory: pytest.TempPathFactory) -> HelmUser:
    return HelmUser(box, "default", VERSION, tmp_path_factory.mktemp("user"))


def webhooks(admin: HelmUser) -> list[dict[str, Any]]:
    return pods(admin, "app.kubernetes.io/component=webhook")


def authorities(admin: HelmUser) -> list[list[x509.Certificate]]:
    """Whom the API server trusts, for each webhook of the configuration."""
    found = admin.get("mutatingwebhookconfiguration", "fluence-webhook")["webhooks"]
    bundles = [base64.b64decode(each["clientConfig"].get("caBundle", "")) for each in found]
    return [x509.load_pem_x509_certificates(each) if each else [] for each in bundles]


def told(user: HelmUser, *, scheduler: str = "fluence") -> set[str]:
    """The variables that the container of a new pod would get beside its own."""
    pod = yaml.safe_load(SAMPLER.read_text())
    pod["spec"]["schedulerName"] = scheduler
    text = yaml.safe_dump(pod)
    made = json.loads(
        user.kubectl("create", "--dry-run=server", "--output", "json", "--filename", "-", text=text)
    )
    own, found = (each["spec"]["containers"][0].get("env", ()) for each in (pod, made))
    return {each["name"] for each in found} - {each["name"] for each in own}


class Asking:
    """Somebody who makes pods that ask for a device, as dry runs, one after the other, while a block runs."""

    def __init__(self, box: Sandbox) -> None:
        self.count = 0
        self.missed: list[str] = []
        self._box = box
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._ask()))

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _ask(self) -> None:
        pod = yaml.safe_load(SAMPLER.read_text())
        async with Client(self._box.access()) as client:
            while not self._stop.is_set():
                made: Any = await client.create(PODS.raw(), pod, namespace="default", dry_run=True)
                env = {each["name"] for each in made["spec"]["containers"][0].get("env", ())}
                if "QRMI_BACKEND" not in env:
                    self.missed.append(f"{datetime.now(UTC):%H:%M:%S.%f}")
                self.count += 1
                await asyncio.sleep(0.02)


class Doctor:
    """`fluence doctor` as an administrator calls it, from outside of the cluster."""

    def __init__(self, box: Sandbox) -> None:
        self._config = str(box.at.kubeconfig())
        command = [sys.executable, "-m", "fluence.cli", "doctor", "-o", "json", "--kubeconfig", self._config]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.stdout, done.stderr
        self.found = [each for each in json.loads(done.stdout)["findings"] if each["check"] in OF_ADMISSION]

    @property
    def complaints(self) -> list[dict[str, str]]:
        return [each for each in self.found if each["verdict"] != "ok"]

    def of(self, check: str) -> dict[str, str]:
        (one,) = [each for each in self.found if each["check"] == check]
        return one

    def __repr__(self) -> str:
        return repr(self.complaints)

    def cure(self, complaint: dict[str, str]) -> None:
        """Run what it says, word for word, where its user has the sources."""
        kubectl = find_programs(release(VERSION), names=("kubectl",), report=lambda progress: None)["kubectl"]
        path = f"{kubectl.parent}:{find_helm().parent}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "KUBECONFIG": self._config}
        command = ["bash", "-ec", complaint["cure"]]
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def until_complains(box: Sandbox, *checks: str) -> Doctor:
    """The doctor, once these checks complain and no others."""
    return until(
        lambda: Doctor(box),
        f"complaints of {checks or 'nothing'}",
        lambda doctor: {each["check"] for each in doctor.complaints} == set(checks),
    )


def test_its_pods_are_ready_with_the_rights_of_the_chart_and_the_server_trusts_each(admin: HelmUser) -> None:
    mine = webhooks(admin)
    assert {each["spec"]["nodeName"] for each in mine} == {"real-1", "real-2"}
    for each in mine:
        assert each["spec"]["serviceAccountName"] == "fluence-webhook"
        (container,) = each["status"]["containerStatuses"]
        assert (container["ready"], container["restartCount"]) == (True, 0)
    assert [len(each) for each in authorities(admin)] == [2, 2]  # for pods and for workloads
    if VERSION != "1.35":
        assert not admin.items("mutatingadmissionpolicies.admissionregistration.k8s.io")


def test_a_container_is_told_its_backend_through_the_service(user: HelmUser) -> None:
    until(lambda: "FLUXION_VENDOR" in told(user), "the webhook knows the attributes")
    user.kubectl("apply", "--filename", str(SAMPLER))
    user.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=240s", "pod/sampler")
    assert user.get("pod", "sampler")["metadata"]["annotations"][names.BACKEND] == "ibm_marrakesh"
    wanted = "submitting sampler job to ibm_marrakesh of ibm, a ibm-quantum-system\n"
    logged(user, "sampler", wanted=wanted)
    user.kubectl("delete", "pod", "sampler")


def test_pods_of_other_schedulers_are_as_they_were(user: HelmUser) -> None:
    assert told(user, scheduler="default-scheduler") == set()
    until(lambda: told(user), "others are told", lambda env: env >= {"FLUXION_BACKEND", "QRMI_BACKEND"})


def test_the_doctor_finds_nothing_wrong(box: Sandbox, admin: HelmUser) -> None:
    doctor = until_complains(box)
    assert doctor.of("admission")["message"] == (
        "a container that asks for a device in default is told its backend, by webhook fluence-webhook"
    )
    assert doctor.of("webhook")["message"].startswith(
        f"2 of 2 replicas answer behind {SPACE}/fluence-webhook"
    )
    account = f"system:serviceaccount:{SPACE}:fluence-webhook"
    assert account in {each["object"] for each in doctor.found if each["check"] == "rights"}


def test_a_right_that_is_taken_away_is_named_and_the_cure_gives_it_back(
    box: Sandbox, admin: HelmUser
) -> None:
    admin.kubectl("delete", "role", "fluence-webhook")
    doctor = until_complains(box, "rights")
    (complaint,) = doctor.complaints
    assert complaint["object"] == f"system:serviceaccount:{SPACE}:fluence-webhook"
    assert complaint["message"].startswith("may not list,watch handoffs.fluence.flux-framework.org")
    doctor.cure(complaint)
    until_complains(box)


def test_a_namespace_that_nobody_serves_is_found_and_the_cure_has_its_work_held(
    box: Sandbox, admin: HelmUser, user: HelmUser
) -> None:
    space = ("--namespace", "held")
    user.kubectl("create", "namespace", "held")
    user.kubectl("label", "namespace", "held", f"{names.NAMESPACE_OPT_IN}={names.DOORS_ENABLED}")
    doctor = until_complains(box, "doors")
    assert doctor.of("doors")["object"] == "namespace held"
    doctor.cure(doctor.of("doors"))
    admin.kubectl("rollout", "status", WEBHOOK, "--timeout=240s")

    def is_held() -> bool:
        made = user.kubectl("create", *space, "--dry-run=server", "--output", "json", "--filename", str(HELD))
        return json.loads(made)["spec"].get("suspend") is True

    until(is_held, "new work is held back through the Service")
    until_complains(box)
    user.kubectl("apply", *space, "--filename", str(HELD))
    user.kubectl("wait", *space, "--for=condition=complete", "--timeout=240s", "job/job")
    user.kubectl("delete", "namespace", "held", "--timeout=240s")


def test_nobody_is_missed_while_its_pods_and_then_their_certificates_are_replaced(
    box: Sandbox, admin: HelmUser
) -> None:
    with Asking(box) as asking:
        admin.kubectl("set", "env", WEBHOOK, f"WEBHOOK_CERTIFICATE_LIFE={LIFE_S}s")
        admin.kubectl("rollout", "status", WEBHOOK, "--timeout=240s")
        until(lambda: len(webhooks(admin)) == 2, "the former pods are gone")
        replaced = asking.count
        mine = {each["metadata"]["uid"] for each in webhooks(admin)}
        before = {each.serial_number: each.not_valid_after_utc for each in authorities(admin)[0]}
        soon = datetime.now(UTC) + timedelta(seconds=LIFE_S)
        ends = max(each for each in before.values() if each < soon)  # those of the pods before live for weeks
        until(lambda: datetime.now(UTC) > ends, "the certificates that they began with are no longer valid")
        asked = asking.count
        until(lambda: asking.count > asked + 5, "it is asked once more")
    assert asking.missed == []
    assert 0 < replaced < asked
    assert {each.serial_number for each in authorities(admin)[0]} - set(before)
    now = webhooks(admin)
    assert {each["metadata"]["uid"] for each in now} == mine
    assert all(each["status"]["containerStatuses"][0]["restartCount"] == 0 for each in now)
    until_complains(box)
    admin.kubectl("set", "env", WEBHOOK, "WEBHOOK_CERTIFICATE_LIFE-")
    admin.kubectl("rollout", "status", WEBHOOK, "--timeout=240s")


def test_a_drain_takes_one_at_a_time_and_nobody_is_missed(box: Sandbox, admin: HelmUser) -> None:
    until(lambda: len(webhooks(admin)) == 2, "the former pods are gone")
    budget = ("poddisruptionbudget", "fluence-webhook")
    until(lambda: admin.get(*budget)["status"]["disruptionsAllowed"] == 1, "both are counted")
    first, second = (msgspec.convert(each, Pod) for each in webhooks(admin))

    async def drain() -> None:
        async with Client(box.access()) as client:
            await client.evict(first)
            with pytest.raises(TooManyRequests):
                await client.evict(second)

    with Asking(box) as asking:
        asyncio.run(drain())
        admin.kubectl("rollout", "status", WEBHOOK, "--timeout=240s")
        until(lambda: first.metadata.uid not in {each["metadata"]["uid"] for each in webhooks(admin)}, "gone")
    assert asking.missed == [] and asking.count


def test_without_it_the_server_goes_on_and_the_doctor_knows_the_cure(
    box: Sandbox, admin: HelmUser, user: HelmUser
) -> None:
    admin.kubectl("scale", WEBHOOK, "--replicas=0")
    until(lambda: not webhooks(admin), "its pods are gone")
    until(lambda: told(user) == set(), "a new pod is left as it is")  # and it is not refused
    doctor = until_complains(box, "admission", "webhook")
    assert {each["verdict"] for each in doctor.complaints} == {"wrong"}
    assert doctor.of("webhook")["message"] == (
        f"no endpoint of its Service {SPACE}/fluence-webhook is ready: new pods are left as they are"
    )
    doctor.cure(doctor.of("webhook"))
    admin.kubectl("rollout", "status", WEBHOOK, "--timeout=240s")
    until(lambda: "FLUXION_BACKEND" in told(user), "it serves again")
    until_complains(box)


def test_an_uninstall_takes_it_away(box: Sandbox, admin: HelmUser, user: HelmUser) -> None:
    admin.helm("uninstall", "fluence", "--wait", "--timeout", "240s")
    assert admin.get("mutatingwebhookconfiguration", "fluence-webhook") is None
    assert admin.get("clusterrole", "fluence-webhook") is None
    until(lambda: told(user), "the server does not call it any more", set())
    doctor = Doctor(box)
    assert doctor.of("admission")["verdict"] == "warn"  # devices are declared, and nobody hands them over
    assert not findings(box)
