"""`fluence doctor` on a real API server: what is wrong is named, its cure cures it, and no more is said.

Schedulers are real, in this process, each with a lease; the installation is the chart's. Its pods are bound
by hand to a simulated node, where they become ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.helm.program import find_helm

from fluence import names
from fluence.doctor.facts import Check
from fluence.doctor.look import Question, look
from fluence.kube.client import Client
from fluence.kube.lease import RENEW
from fluence.kube.releases import release
from fluence.kube.resource import LEASES, PODS
from fluence.live.scheduler import LiveScheduler
from fluence.sandbox.programs import find_programs
from fluence.sandbox.proxy import Proxy
from fluence.sandbox.testing import Kube
from fluence.schedule.settings import SchedulerSettings
from tests.eventually import eventually
from tests.integration.deploy.helm import HelmUser
from tests.integration.rights import resource_of
from tests.integration.schedule.field import Field, field

pytestmark = pytest.mark.release

DOCTOR = [sys.executable, "-m", "fluence.cli", "doctor"]
ROOT = Path(__file__).parents[3]
SCRIPTS = Path(sys.executable).parent


class Report:
    """What the doctor said."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.stderr = done.stderr
        self.found: list[dict[str, str]] = json.loads(done.stdout)["findings"] if done.stdout else []

    def __repr__(self) -> str:
        return f"exit code {self.code}, {self.faults} {self.stderr}"

    @property
    def faults(self) -> list[dict[str, str]]:
        """Other tests on this server have policies and roles for a while, of which it warns too."""
        return [each for each in self.found if each["verdict"] != "ok"]

    def of(self, check: str, *verdicts: str) -> list[dict[str, str]]:
        return [e for e in self.found if e["check"] == check and e["verdict"] in (verdicts or [e["verdict"]])]

    def verdicts(self, check: str) -> set[str]:
        return {each["verdict"] for each in self.of(check)}

    @property
    def wrong(self) -> dict[str, str]:
        return {each["check"]: each["message"] for each in self.found if each["verdict"] == "wrong"}


def kubectl(kube: Kube) -> Path:
    return find_programs(release(kube.version), names=("kubectl",), report=lambda progress: None)["kubectl"]


def run_cure(kube: Kube, cure: str) -> None:
    """Word for word, where its user has the sources, helm and kubectl."""
    path = f"{kubectl(kube).parent}:{find_helm().parent}:{SCRIPTS}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "KUBECONFIG": str(kube.sandbox.at.kubeconfig())}
    done = subprocess.run(
        ["bash", "-ec", cure], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def ask(kube: Kube, *arguments: str, kubeconfig: Path | None = None, name: str | None = None) -> Report:
    """The doctor's answer about this test's namespace and scheduler."""
    config = kubeconfig or kube.sandbox.at.kubeconfig()
    words = [*DOCTOR, "-o", "json", "-n", kube.namespace, "--kubeconfig", str(config)]
    words += ["--scheduler-name", name or f"fluence-{kube.namespace}", *arguments]
    return Report(subprocess.run(words, capture_output=True, text=True, check=False, timeout=300))


async def asked(f: Field, *arguments: str) -> Report:
    return await asyncio.to_thread(ask, f.kube, *arguments)


async def until_wrong(f: Field, *checks: str) -> Report:
    """The doctor's answer when these checks fail, and no others."""
    return await eventually(
        lambda: asked(f), lambda report: set(report.wrong) == set(checks), what=f"wrong: {checks}"
    )


@contextlib.asynccontextmanager
async def leading(f: Field, lease: str = "fluence", **more: Any) -> AsyncIterator[LiveScheduler]:
    """A scheduler of the field's name that holds this lease."""
    async with f.kube.client() as client:
        settings = SchedulerSettings(
            scheduler_name=f.name, lease_name=lease, lease_namespace=f.namespace, backoff=0.25, **more
        )
        live = LiveScheduler(client, settings)
        stop = asyncio.Event()
        task = asyncio.create_task(live.run(stop))
        try:
            await eventually(lambda: live.leads or task.done(), what="it leads")
            assert not task.done(), await task  # type: ignore[func-returns-value]
            yield live
        finally:
            stop.set()
            await task


@pytest.fixture
def user(kube: Kube, tmp_path: Path) -> Iterator[HelmUser]:
    found = HelmUser(kube.sandbox, kube.namespace, kube.version, tmp_path)
    yield found
    for each in yaml.safe_load(found.helm("list", "--all", "--short", "--output", "yaml")) or ():
        found.helm("uninstall", each, "--no-hooks")


def install(user: HelmUser, kube: Kube, **values: Any) -> None:
    settings = {"scheduler-name": f"fluence-{kube.namespace}", "lease-namespace": kube.namespace}
    # Where there are no policies it would be a webhook, which simulated nodes do not run.
    admission = {"mode": "off" if kube.version == "1.35" else "policy"}
    user.install(f"fluence-{kube.namespace}", values={"settings": settings, "admission": admission, **values})


def as_default(kube: Kube, user: HelmUser, folder: Path) -> Path:
    """A kubeconfig of the namespace's default account, which may do nothing by itself."""
    config = yaml.safe_load(kube.sandbox.at.kubeconfig().read_text())
    config["users"][0]["user"] = {"token": user.kubectl("create", "token", "default").strip()}
    mine = folder / "mine.kubeconfig"
    mine.write_text(yaml.safe_dump(config))
    return mine


async def make_ready(f: Field) -> None:
    """The installation's pods get a node, and run there as simulated pods do."""
    pods = await f.until(
        lambda pods: sum(name.startswith("fluence-") for name in pods) == 2, "two pods of the installation"
    )
    for name in (each for each in pods if each.startswith("fluence-")):
        await f.client.bind(pods[name], f.nodes[0])
    path = f"/apis/apps/v1/namespaces/{f.namespace}/deployments/fluence-{f.namespace}"

    async def ready() -> object:
        return json.loads(await f.client.request("GET", path))["status"].get("readyReplicas")

    await eventually(ready, 2, what="both are ready")


async def test_a_healthy_cluster(kube: Kube, user: HelmUser) -> None:
    install(user, kube)
    async with field(kube, 1) as f, leading(f):
        await make_ready(f)
        await f.add(f.pod("a"))
        await f.until_bound(["a"])
        report = await eventually(lambda: asked(f), lambda report: not report.faults, what="nothing is wrong")
        assert report.code == 0
        assert {each["check"] for each in report.found} == set(Check)
        (lease,) = report.of("lease")
        assert lease["object"] == f"lease {kube.namespace}/fluence"
        account = f"system:serviceaccount:{kube.namespace}:fluence-{kube.namespace}-scheduler"
        assert {each["object"] for each in report.of("rights")} == {account}


async def test_a_crash_loop_beside_replicas_that_are_ready(kube: Kube, user: HelmUser) -> None:
    """A rollout keeps the old pods until the new one is ready: two of two are."""
    install(user, kube)
    async with field(kube, 1) as f, leading(f):
        await make_ready(f)
        old = set(await f.pods())
        user.kubectl("rollout", "restart", f"deployment/fluence-{f.namespace}")
        pods = await f.until(lambda pods: bool(set(pods) - old), "a pod of the new template")
        (new,) = set(pods) - old
        waiting = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
        crashes = {
            "name": "scheduler",
            "image": "fluence",
            "imageID": "",
            "ready": False,
            "restartCount": 4,
            "state": {"waiting": waiting},
            "lastState": {"terminated": {"exitCode": 1}},
        }
        status = {"status": {"phase": "Running", "containerStatuses": [crashes]}}
        await f.client.patch(PODS, new, status, namespace=f.namespace, subresource="status")
        report = await until_wrong(f, "deployment")
        assert report.wrong["deployment"] == (
            "container scheduler: CrashLoopBackOff after 4 restarts, last exit code 1"
        )
        assert report.code == 1


def test_an_account_without_rights_has_each_named_and_the_cures_give_them(kube: Kube, user: HelmUser) -> None:
    install(user, kube, rbac={"create": False})
    account = f"fluence-{kube.namespace}-scheduler"
    report = ask(kube)
    missing = report.of("rights", "wrong")
    assert report.code == 1
    assert len(missing) == len(report.of("rights")) >= 10
    assert any("may not create pods/binding: Where pods go" in each["message"] for each in missing)
    named = ask(kube, "--as", f"system:serviceaccount:{kube.namespace}:{account}")
    assert named.of("rights") == report.of("rights")
    try:
        for each in missing:
            run_cure(kube, each["cure"])
        cured = with_rights(kube)
        assert len(cured.of("rights")) == len(missing)
    finally:
        for kind in ("clusterrole", "clusterrolebinding"):
            listed = user.kubectl("get", kind, "--output", "name").split()
            made = [each for each in listed if f"/{account}-" in each]
            user.kubectl("delete", *made)


def test_flux_jobs_of_another_version_are_told_and_cured(own_sandbox: Kube, tmp_path: Path) -> None:
    """fluxqueue's kind has the same name, helm upgrades none, and the server drops what it does not know."""
    kube = own_sandbox
    user = HelmUser(kube.sandbox, kube.namespace, kube.version, tmp_path)
    current = ROOT / "deploy" / "crds" / "fluxjobs.yaml"
    stale = yaml.safe_load(current.read_text())
    for version in stale["spec"]["versions"]:
        status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        del status["queued"], status["noLaterThan"]
    (tmp_path / "stale.yaml").write_text(yaml.safe_dump(stale))
    try:
        user.kubectl("apply", "-f", str(tmp_path / "stale.yaml"))
        install(user, kube)
        (told,) = said(kube, "flux-jobs", "warn")
        assert told["message"].endswith(": status.noLaterThan, status.queued")
        run_cure(kube, told["cure"])
        assert said(kube, "flux-jobs", "ok")
    finally:
        user.helm("uninstall", f"fluence-{kube.namespace}", "--no-hooks")
        user.kubectl(
            "apply", "-f", str(current)
        )  # NB deleting it now, while it is stored anew, may never end


def said(kube: Kube, check: str, verdict: str) -> list[dict[str, str]]:
    """What a check says once the server publishes what it was given."""
    report = asyncio.run(
        eventually(lambda: ask(kube), lambda report: report.of(check, verdict), what=f"{check}: {verdict}")
    )
    return report.of(check, verdict)


def with_rights(kube: Kube, *arguments: str, kubeconfig: Path | None = None) -> Report:
    """The doctor's answer once the authorizer knows the roles that were made."""
    return asyncio.run(
        eventually(
            lambda: ask(kube, *arguments, kubeconfig=kubeconfig),
            lambda report: report.verdicts("rights") == {"ok"},
            what="all rights are there",
        )
    )


def test_who_may_do_nothing_is_told_what_he_cannot_see_and_nothing_wrong(
    kube: Kube, user: HelmUser, tmp_path: Path
) -> None:
    install(user, kube)
    mine = as_default(kube, user, tmp_path)
    report = ask(kube, kubeconfig=mine)
    assert report.wrong == {}
    assert report.code == 2
    seen = [each for each in report.found if each["verdict"] == "ok"]
    # What discovery tells everybody, and queues, which everybody may read.
    assert {each["check"] for each in seen} <= {"server-version", "coscheduling", "flux-jobs", "rights"}
    assert all("queues" in each["message"] for each in seen if each["check"] == "rights")
    messages = " ".join(each["message"] for each in report.of("pods-without-scheduler"))
    assert "cannot list resource" in messages
    told = ask(kube, "--as", f"system:serviceaccount:{kube.namespace}:default", kubeconfig=mine)
    (one,) = told.of("rights")
    assert "neither subjectaccessreviews nor impersonation" in one["message"]


def test_who_may_impersonate_learns_the_rights_of_the_scheduler(
    kube: Kube, user: HelmUser, tmp_path: Path
) -> None:
    install(user, kube)
    account = f"system:serviceaccount:{kube.namespace}:fluence-{kube.namespace}-scheduler"
    role = f"impersonate-{kube.namespace}"
    user.kubectl("create", "role", role, "--verb=impersonate", "--resource=serviceaccounts")
    user.kubectl(
        "create", "rolebinding", role, f"--role={role}", f"--serviceaccount={kube.namespace}:default"
    )
    mine = as_default(kube, user, tmp_path)
    report = with_rights(kube, "--as", account, kubeconfig=mine)
    assert len(report.of("rights")) >= 10


@pytest.mark.only("1.36", "1.37")
async def test_admission_that_is_half_there_and_the_commands_that_make_it_whole(
    kube: Kube, user: HelmUser
) -> None:
    install(user, kube)
    binding = f"mutatingadmissionpolicybinding/fluence-{kube.namespace}-pods"
    label = f"{names.NAMESPACE_OPT_IN}={names.DOORS_ENABLED}"
    variable = json.dumps([{"op": "remove", "path": "/spec/variables/QRMI_BACKEND"}])
    harm = {
        "admission": ("delete", binding),
        "doors": ("label", "namespace", kube.namespace, label),
    }
    async with field(kube, 1) as f, leading(f):
        await make_ready(f)
        report = await until_wrong(f)
        (listing,) = report.of("pod-groups")
        off = "setting pod-groups is not always"
        said = off if kube.version == "1.36" else "gangs get a PodGroup of scheduling.k8s.io/v1beta1"
        assert listing["verdict"] == "ok" and said in listing["message"]
        for check, words in harm.items():
            user.kubectl(*words)
            report = await until_wrong(f, check)
            (found,) = report.of(check, "wrong")
            await asyncio.to_thread(run_cure, kube, found["cure"])
            await until_wrong(f)
        # The HandOff needs no doctor: the scheduler that leads watches it.
        user.kubectl("patch", "handoff", names.ADMISSION_PARAMETERS, "--type=json", "--patch", variable)
        await eventually(
            lambda: (
                "QRMI_BACKEND" in user.kubectl("get", "handoff", names.ADMISSION_PARAMETERS, "-o", "yaml")
            ),
            what="the variable is back",
        )


@pytest.mark.only("1.36", "1.37")
async def test_policies_that_refuse_and_the_commands_that_put_them_in_force(
    kube: Kube, user: HelmUser
) -> None:
    admission = {"mode": "policy", "users": True, "queueAccess": True}
    install(user, kube, admission=admission)
    prefix = f"fluence-{kube.namespace}"
    kinds = "validatingadmissionpolicy,validatingadmissionpolicybinding"
    audit = json.dumps({"spec": {"validationActions": ["Audit"]}})
    binding = "validatingadmissionpolicybinding"
    harm: dict[str, list[tuple[str, ...]]] = {
        "users-policy": [("delete", kinds, f"{prefix}-users"), ("delete", binding, f"{prefix}-users")],
        "queue-access": [("patch", binding, f"{prefix}-queue-access", "--type=merge", "--patch", audit)],
    }
    role = f"use-queues-{kube.namespace}"
    async with field(kube, 1) as f, leading(f, users_policy=f"{prefix}-users"):
        await make_ready(f)
        await until_wrong(f)
        assert (await asked(f)).verdicts("users-policy") == {"ok"}
        for check, ways in harm.items():
            for words in ways:
                user.kubectl(*words)
                report = await until_wrong(f, check)
                (found,) = report.of(check, "wrong")
                await asyncio.to_thread(run_cure, kube, found["cure"])
                await until_wrong(f)
        rule = {"apiGroups": [names.PREFIX], "resources": ["queues"], "verbs": ["use"]}
        version = "rbac.authorization.k8s.io/v1"
        body: Any = {
            "apiVersion": version,
            "kind": "ClusterRole",
            "metadata": {"name": role},
            "rules": [rule],
        }
        await f.client.create(resource_of(body), body)
        try:
            user.kubectl("delete", kinds, f"{prefix}-queue-access")
            report = await eventually(
                lambda: asked(f), lambda report: bool(report.of("queue-access", "warn")), what="it warns"
            )
            (told,) = report.of("queue-access", "warn")
            assert role in told["message"]
            await asyncio.to_thread(run_cure, kube, told["cure"])
            assert (await asked(f)).verdicts("queue-access") == {"ok"}
        finally:
            await f.client.delete(resource_of(body), role)


def test_gates_that_are_off(gateless: Kube) -> None:
    report = ask(gateless)
    (api,) = report.of("gang-api")
    assert api["verdict"] == "warn"
    assert "--feature-gates=GenericWorkload=true" in api["cure"]
    assert "GenericWorkload" in report.of("feature-gates", "warn")[0]["message"]
    assert report.code == 0
    assert ask(gateless, "--strict").code == 1


async def test_two_schedulers_of_one_name(kube: Kube) -> None:
    async with field(kube, 1) as f, leading(f, "one") as first:
        alone = await asked(f)
        assert alone.verdicts("one-scheduler") == {"ok"}
        async with leading(f, "two") as second:
            report = await asked(f)
            assert report.code == 1
            (found,) = report.of("one-scheduler")
            assert found["verdict"] == "wrong"
            assert first.identity in found["message"]
            assert second.identity in found["message"]
        again = await asked(f)
        assert again.verdicts("one-scheduler") == {"ok"}


async def test_two_installations_of_one_name_and_the_command_that_stops_one(
    kube: Kube, user: HelmUser
) -> None:
    install(user, kube)
    settings = {"scheduler-name": f"fluence-{kube.namespace}", "lease-name": "other"}
    user.install(
        f"second-{kube.namespace}", values={"settings": {**settings, "lease-namespace": kube.namespace}}
    )
    (found,) = ask(kube).of("one-scheduler")
    assert found["verdict"] == "wrong"
    assert found["cure"].endswith("--replicas=0")
    user.kubectl(*found["cure"].split()[3:])
    assert ask(kube).verdicts("one-scheduler") == {"ok"}


async def test_pods_that_name_a_scheduler_while_none_runs(kube: Kube) -> None:
    async with field(kube, 1) as f:
        await f.add(f.pod("a"), f.pod("b"))
        report = await until_wrong(f, "pods-without-scheduler")
        assert report.code == 1
        assert f"{kube.namespace}/a, {kube.namespace}/b" in report.wrong["pods-without-scheduler"]
        async with leading(f):
            await f.until_bound(["a", "b"])
            await until_wrong(f)


async def test_a_group_that_waits_for_long_and_why(kube: Kube) -> None:
    label = {names.GROUP_LABEL: "huge", names.GROUP_SIZE: "3"}
    async with field(kube, 1, cpu=2) as f, leading(f):
        await f.add(*(f.pod(f"p{i}", labels=label, cpu="1") for i in range(3)))
        await f.until_told("p0")
        await asyncio.sleep(1.5)  # creation times are whole seconds
        assert (await asked(f)).verdicts("waiting-groups") == {"ok"}

        async def one_says_what_its_pods_do() -> dict[str, str] | None:
            """NB what is told has the number of nodes, which those of other tests change."""
            told = await f.until_told("p0")
            (one,) = (await asked(f, "--waiting-longer-than", "1s")).of("waiting-groups")
            return one if told.split(".")[0] in one["message"] else None

        one = await eventually(one_says_what_its_pods_do, what="the doctor says what the pods do")
        assert one is not None
        assert one["verdict"] == "warn"
        assert one["object"] == f"group {kube.namespace}/huge"
        assert "3 of 3 pods wait" in one["message"]
        words = [*DOCTOR[:-1], *one["cure"].split()[1:], "--kubeconfig", str(kube.sandbox.at.kubeconfig())]
        done = await asyncio.to_thread(
            subprocess.run, words, capture_output=True, text=True, check=True, timeout=300
        )
        assert f"group {kube.namespace}/huge: " in done.stdout


async def test_gates_and_annotations_that_are_left_over(kube: Kube) -> None:
    """Where the scheduler opens no gates; one that does lets go whoever waits for a producer that is gone."""
    gate = names.GATES[0]
    async with field(kube, 1) as f, leading(f, open_gates=False):
        producer = f.pod("producer", labels={names.GROUP_LABEL: "q-producer"})
        consumer = f.pod("c", labels={names.GROUP_LABEL: "q"}, schedulingGates=[{"name": gate}])
        theirs = f.pod("t", annotations={names.DURATION: "1h"}, schedulerName="another")
        misspelt = f.pod("m", annotations={f"{names.PREFIX}/duraton": "1h"})
        await f.add(producer, consumer, theirs, misspelt)
        await f.until_bound(["producer", "m"])
        report = await asked(f)
        assert report.verdicts("orphaned-gates") == {"ok"}
        assert {each["object"] for each in report.of("annotations", "warn")} == {
            f"pod {kube.namespace}/t",
            f"pod {kube.namespace}/m",
        }
        await f.end("producer")
        orphaned = (await asked(f)).of("orphaned-gates")
        assert [each["verdict"] for each in orphaned] == ["wrong"]
        assert gate in orphaned[0]["message"]


async def test_a_lease_that_nobody_renews_and_one_whose_clock_differs(kube: Kube) -> None:
    name, held = f"fluence-{kube.namespace}", datetime.now(UTC) - timedelta(hours=1)

    def body(at: datetime) -> dict[str, Any]:
        stamp = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        notes = {names.SCHEDULER_NAME: name, RENEW: "gone_1 10"}
        spec = {
            "holderIdentity": "gone_1",
            "leaseDurationSeconds": 3,
            "renewTime": stamp,
            "acquireTime": stamp,
        }
        return {"metadata": {"name": "fluence", "annotations": notes}, "spec": spec}

    async with kube.client() as client:
        await client.create(LEASES, body(held), namespace=kube.namespace)
        (dead,) = (await asyncio.to_thread(ask, kube)).of("lease")
        assert dead["verdict"] == "wrong"
        assert "gone_1 held it and no longer renews it: the last time was 1h" in dead["message"]

        async def renew() -> None:
            for second in range(600):
                await client.patch(
                    LEASES, "fluence", body(held + timedelta(seconds=second)), namespace=kube.namespace
                )
                await asyncio.sleep(0.5)

        renewing = asyncio.create_task(renew())
        try:
            (alive,) = (await asyncio.to_thread(ask, kube)).of("lease")
        finally:
            renewing.cancel()
        assert alive["verdict"] == "ok"
        assert "its clock differs" in alive["message"]


async def test_nothing_is_written(kube: Kube) -> None:
    async with Proxy(kube.access()) as proxy, Client(proxy.access) as client:
        await look(client, Question(namespace=kube.namespace))
        page = await client.list(PODS, namespace=kube.namespace)
    assert not page.items  # the one that was tried was a dry run
    written = {(each.verb, each.path.rpartition("/")[2]) for each in proxy.seen} - {("get", "")}
    sent = {each for each in written if each[0] not in ("get", "list", "watch")}
    assert ("create", "selfsubjectaccessreviews") in sent
    assert sent <= {
        ("create", "pods"),
        ("create", "selfsubjectreviews"),
        ("create", "selfsubjectaccessreviews"),
        ("create", "subjectaccessreviews"),
    }


async def test_the_role_in_the_documentation_is_enough(kube: Kube, user: HelmUser, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    role = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    role["metadata"]["name"] = name = f"doctor-{kube.namespace}"
    user.kubectl("create", "--filename", "-", text=yaml.safe_dump(role))
    try:
        to = f"--serviceaccount={kube.namespace}:default"
        user.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", to)
        install(user, kube)
        async with field(kube, 1) as f, leading(f):
            await make_ready(f)
            mine = as_default(kube, user, tmp_path)
            report = await eventually(
                lambda: asyncio.to_thread(ask, kube, kubeconfig=mine),
                lambda report: not report.faults,
                what="nothing is wrong",
            )
            assert report.code == 0
    finally:
        user.kubectl("delete", "clusterrole,clusterrolebinding", name)


def test_a_server_that_does_not_answer_cannot_be_looked_at(kube: Kube, tmp_path: Path) -> None:
    config = yaml.safe_load(kube.sandbox.at.kubeconfig().read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    gone = tmp_path / "gone.kubeconfig"
    gone.write_text(yaml.safe_dump(config))
    report = ask(kube, kubeconfig=gone)
    assert (report.code, report.found) == (2, [])
    assert len(report.stderr.splitlines()) == 1


@pytest.mark.parametrize("form", ["table", "wide", "yaml"])
def test_as_a_plugin_of_kubectl_it_says_the_same(gateless: Kube, form: str) -> None:
    """On a cluster that other tests do not change meanwhile: the doctor looks at all of it."""
    env = {**os.environ, "PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
    words = [str(kubectl(gateless)), "fluence", "doctor", "-n", gateless.namespace, "-o", form]
    words += ["--kubeconfig", str(gateless.sandbox.at.kubeconfig()), "--scheduler-name", "nobody"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=300)
    same = subprocess.run([*DOCTOR, *words[3:]], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == same.stdout
    if form == "yaml":
        assert {each["check"] for each in yaml.safe_load(done.stdout)["findings"]} == set(map(str, Check))
    else:
        assert done.stdout.startswith("CHECK")
        assert ("may create pods/binding" in done.stdout) == (form == "wide")
