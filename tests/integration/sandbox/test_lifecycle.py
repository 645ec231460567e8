"""The sandbox as a user meets it: the commands, on the release that FLUENCE_TEST_VERSION names."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fluence.sandbox.process import start_time
from fluence.sandbox.testing import needs_sandbox
from tests.eventually import SOON_S, wait_until

VERSION = os.environ.get("FLUENCE_TEST_VERSION", "1.36")
GROUP_VERSION = {"1.35": "v1alpha1", "1.36": "v1alpha2", "1.37": "v1beta1"}[VERSION]
GPU_NODES = """
nodes:
- {name: cpu, count: 2}
- {name: gpu, count: 1, gpu: 8, taints: ["own:NoSchedule"]}
"""

JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "three"},
    "spec": {
        "parallelism": 3,
        "completions": 3,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "c", "image": "busybox", "command": ["sh", "-c", "sleep 1"]}],
            }
        },
    },
}


class Cli:
    """Runs `fluence sandbox …` with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {**os.environ, "XDG_STATE_HOME": str(home / "state")}
        self.env.pop("KUBECONFIG", None)

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("fluence")), "sandbox", *arguments]
        return subprocess.run(
            command, env=self.env, input=stdin, capture_output=True, text=True, timeout=300, check=False
        )

    def ok(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *documents: object) -> None:
        self.ok("kubectl", "apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, documents)))

    def parts(self) -> dict[str, int]:
        (box,) = json.loads(self.ok("status", "-o", "json"))
        return {each["name"]: each["pid"] for each in box["parts"]}


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    needs_sandbox()
    made = Cli(tmp_path)
    yield made
    made.run("down", "--all")


def test_sigterm_while_it_comes_up_leaves_nothing_behind(cli: Cli) -> None:
    command = [sys.executable, "-m", "fluence.cli", "sandbox", "up", "--version", VERSION]
    with subprocess.Popen(command, env=cli.env, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        while "etcd" not in child.stderr.readline():
            assert child.poll() is None
        parts: dict[str, int] = {}
        while not parts:  # etcd at least; it stands still meanwhile, or it might be up before it is ended
            child.send_signal(signal.SIGCONT)
            time.sleep(0.1)
            child.send_signal(signal.SIGSTOP)
            parts = cli.parts()
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGCONT)
        assert child.wait(timeout=SOON_S) == 128 + signal.SIGTERM
        assert "Traceback" not in child.stderr.read()
    assert all(start_time(pid) is None for pid in parts.values())
    assert not (cli.home / "state" / "fluence").exists()


@pytest.mark.release
@pytest.mark.skipif(VERSION == "1.35", reason="its gangs are no objects of their own")
def test_up_run_a_job_and_a_gang_overbook_and_down(cli: Cli, tmp_path: Path) -> None:
    said = cli.ok("up", "--version", VERSION, "--nodes", "10", "--cpu", "4", "--scheduler", "--racks", "2")
    assert "10 of 10 nodes ready" in said
    nodes = cli.ok("kubectl", "get", "nodes", "--no-headers").splitlines()
    assert len(nodes) == 10
    assert all(" Ready " in line for line in nodes)

    group = {
        "apiVersion": f"scheduling.k8s.io/{GROUP_VERSION}",
        "kind": "PodGroup",
        "metadata": {"name": "gang"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}},
    }
    ranks = json.loads(json.dumps(JOB))
    ranks["metadata"]["name"] = "ranks"
    ranks["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
    cli.apply(JOB, group, ranks)
    cli.ok("kubectl", "wait", "--for=condition=complete", "--timeout=240s", "job/three", "job/ranks")
    assert "no findings" in cli.ok("audit")

    # Two pods of four cores on one node of four: KWOK runs both, and the audit says so.
    for name in ("one", "two"):
        cli.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {
                    "nodeName": "node-003",
                    "containers": [
                        {"name": "c", "image": "x", "resources": {"requests": {"cpu": "4"}}},
                    ],
                },
            }
        )
    found = wait_until(lambda: cli.run("audit"), lambda found: found.returncode == 1)
    assert "overcommit: node-003: 8 of 4 cpu given away with default/two" in found.stdout

    parts = cli.parts()
    again = cli.run("up", "--version", VERSION)
    assert again.returncode == 1
    assert again.stderr.strip().startswith("fluence: sandbox 'default' is already up")
    assert "gone" in cli.ok("down")
    assert all(start_time(pid) is None for pid in parts.values())
    assert not (cli.home / "state" / "fluence").exists()
    assert "no sandboxes" in cli.ok("status")


@pytest.mark.parametrize("victim", ["etcd", "kube-apiserver", "kwok", "all"])
def test_down_leaves_nothing_after_a_kill(cli: Cli, victim: str) -> None:
    cli.ok("up", "--version", VERSION, "--nodes", "1", "--name", "victim")
    parts = cli.parts()
    for name, pid in parts.items():
        if victim in (name, "all"):
            os.kill(pid, signal.SIGKILL)
    last = parts["kwok" if victim == "all" else victim]
    wait_until(lambda: start_time(last), None, what="it is gone")
    status = cli.ok("status")
    if victim == "all":
        assert "stale, left behind by a crash; clear it with `fluence sandbox down --name victim`" in status
        assert "1 of 1 nodes" in cli.ok("up", "--version", VERSION, "--nodes", "1", "--name", "victim")
    else:
        assert f"dead: {victim}; start them with" in status
        cli.ok("restart", "--name", "victim")
        cli.ok("kubectl", "--name", "victim", "get", "node", "node-000")
    parts.update(cli.parts())
    cli.ok("down", "--name", "victim")
    assert all(start_time(pid) is None for pid in parts.values())
    assert not (cli.home / "state" / "fluence").exists()


def test_pods_run_fail_and_stop_as_they_are_told(cli: Cli, tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(GPU_NODES)
    cli.ok("up", "--version", VERSION, "--node-file", str(nodes), "--scheduler")
    wide = cli.ok("kubectl", "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}")
    assert wide.split() == ["cpu-000", "cpu-001", "gpu-000"]
    note = "sandbox.fluence.flux-framework.org"

    def pod(name: str, notes: dict[str, str], **spec: object) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "annotations": {f"{note}/{key}": value for key, value in notes.items()},
            },
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}], **spec},
        }

    hooked = {"name": "c", "image": "x", "lifecycle": {"preStop": {"sleep": {"seconds": 12}}}}
    cli.apply(
        pod("ends", {"run-seconds": "1"}),
        pod("fails", {"run-seconds": "1", "exit-code": "3"}),
        pod("stays", {}),
        pod("slow", {"stop-seconds": "12"}, terminationGracePeriodSeconds=180),
        pod("hooked", {}, terminationGracePeriodSeconds=180, containers=[hooked]),
    )

    def phases() -> dict[str, str]:
        said = cli.ok("kubectl", "get", "pods", "-o", "json")
        return {each["metadata"]["name"]: each["status"]["phase"] for each in json.loads(said)["items"]}

    wanted = {"ends": "Succeeded", "fails": "Failed"} | dict.fromkeys(("stays", "slow", "hooked"), "Running")
    wait_until(phases, wanted)
    began = time.monotonic()
    cli.ok("kubectl", "delete", "pod", "stays", "slow", "hooked", "--wait=false")
    seen = wait_until(phases, lambda seen: "stays" not in seen)
    if time.monotonic() - began < 11.5:  # a machine that is starved may be later than they are
        assert seen.get("slow") == seen.get("hooked") == "Running"
    wait_until(phases, lambda seen: not {"slow", "hooked"} & set(seen))
    assert 11.5 < time.monotonic() - began < 179  # when it said, not when its grace was over
    assert "no findings" in cli.ok("audit")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["kubectl", "get", "nodes"],
            "no sandbox named 'default' (there: none); start one with `fluence sandbox up`",
        ),
        (
            ["up", "--version", "1.20"],
            "Kubernetes 1.20 is not one that the sandbox knows; choose 1.35",
        ),
        (["up", "--memory", "lots"], "'lots' is not a quantity"),
        (["up", "--node-file", "/nowhere.yaml"], "/nowhere.yaml: No such file or directory"),
        (["up", "--name", "../x"], "sandbox name '../x'"),
        (["up", "--feature-gate", "X"], "write NAME=true or NAME=false"),
        (["logs", "--name", "gone"], "no sandbox named 'gone'"),
        (["audit"], "no sandbox named 'default'"),
    ],
)
def test_mistakes_are_said_in_one_line(cli: Cli, arguments: list[str], words: str) -> None:
    done = cli.run(*arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


CRON_JOB = {
    "apiVersion": "batch/v1",
    "kind": "CronJob",
    "metadata": {"name": "each-minute"},
    "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": JOB["spec"]}},
}
REPLICATION_CONTROLLER = {
    "apiVersion": "v1",
    "kind": "ReplicationController",
    "metadata": {"name": "two"},
    "spec": {
        "replicas": 2,
        "selector": {"app": "two"},
        "template": {
            "metadata": {"labels": {"app": "two"}},
            "spec": {"containers": [{"name": "c", "image": "busybox"}]},
        },
    },
}
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "few"},
    "spec": {"hard": {"pods": "50"}},
}


def test_all_controllers_run_on_request(cli: Cli) -> None:
    cli.ok("up", "--nodes", "1", "--version", VERSION, "--scheduler", "--controllers", "all")
    cli.apply(CRON_JOB, REPLICATION_CONTROLLER, QUOTA)

    def field(kind: str, name: str, path: str) -> str:
        return cli.run("kubectl", "get", kind, name, "-o", f"jsonpath={{{path}}}").stdout

    for kind, name, path, wanted in (
        ("replicationcontroller", "two", ".status.readyReplicas", "2"),
        ("resourcequota", "few", ".status.hard.pods", "50"),
        ("configmap", "kube-root-ca.crt", ".metadata.name", "kube-root-ca.crt"),
        ("serviceaccount", "default", ".metadata.name", "default"),
    ):
        wait_until(partial(field, kind, name, path), wanted, what=f"{kind} {name}")
    wait_until(
        lambda: field("cronjob", "each-minute", ".status.lastScheduleTime"),
        what="the CronJob has made a Job",
        timeout_s=2 * SOON_S,
    )
