import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest
import yaml

from fluence.errors import Conflict, FluenceError, InvalidInput
from fluence.kube.releases import RELEASES, release
from fluence.sandbox import programs
from fluence.sandbox.certs import Authority, write_private
from fluence.sandbox.folders import cache_dir, locked, sandbox_dir
from fluence.sandbox.nodes import NodeKind, check, manifests, read_nodes
from fluence.sandbox.plane import Ports, view_objects
from fluence.sandbox.process import Process, boot_id, spawn, start_time
from fluence.sandbox.proxy import Rule, read_script, verb_of
from fluence.sandbox.sandbox import Sandbox, names


@pytest.fixture(autouse=True)
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)


@pytest.mark.parametrize("name", ["", "..", "a/b", "-a", "A", "a" * 60, "a.b"])
def test_a_name_cannot_lead_out_of_the_folder(name: str) -> None:
    with pytest.raises(InvalidInput, match="sandbox name"):
        sandbox_dir(name)


def test_a_lock_is_exclusive_and_survives_the_folder_being_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "box"
    with locked(folder):
        with pytest.raises(Conflict, match="in use"), locked(folder, wait=False, what="it"):
            pass
        folder.rmdir()
        with locked(folder, wait=False):
            assert folder.exists()


def test_a_part_is_known_by_its_start_time_and_can_be_killed(tmp_path: Path) -> None:
    part = spawn("sleeper", ["sleep", "60"], tmp_path / "log", cwd=tmp_path)
    assert part.is_alive
    assert not Process("x", part.pid, "1", [], boot_id()).is_alive  # the same pid, another process
    assert not Process("x", part.pid, part.started, [], "another boot").is_alive
    os.kill(part.pid, signal.SIGSTOP)
    part.stop(grace_s=0.1)
    assert not part.is_alive
    assert start_time(part.pid) is None


def test_a_zombie_whose_threads_still_run_is_not_gone(tmp_path: Path) -> None:
    """A killed kube-apiserver for a moment: its port is still taken, and a new one could not listen."""
    code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=[600]).start(); "
    code += "ctypes.CDLL(None).pthread_exit(None)"
    part = spawn("part", [sys.executable, "-c", code], tmp_path / "log", cwd=tmp_path)
    deadline = time.monotonic() + 120
    while ") Z " not in Path(f"/proc/{part.pid}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert part.is_alive
    part.stop()
    assert not part.is_alive


def test_a_stale_sandbox_is_noticed_and_cleared(tmp_path: Path) -> None:
    box = Sandbox("old")
    box.at.folder.mkdir(parents=True)
    assert box.status() == "stale"
    assert names() == ["old"]
    stray = tmp_path / "bin" / "etcd"
    stray.parent.mkdir()
    stray.symlink_to(sys.executable)
    process = subprocess.Popen([stray, "-c", "import time; time.sleep(60)", f"--data-dir={box.at.data}"])
    time.sleep(0.2)
    assert box.down()
    assert start_time(process.pid) is None
    process.returncode = -signal.SIGKILL  # reaped already: nothing for Popen to wait for
    assert names() == []
    assert not box.down()


def test_users_of_the_view_may_do_on_a_sandbox_what_they_may_with_the_chart() -> None:
    def allowed(rules: list[dict[str, list[str]]]) -> set[tuple[str, str]]:
        return {(what, verb) for rule in rules for what in rule["resources"] for verb in rule["verbs"]}

    manifest = Path(__file__).parents[3] / "deploy" / "scheduler" / "view.yaml"
    (role,) = (
        each
        for each in yaml.safe_load_all(manifest.read_text())
        if each["kind"] == "ClusterRole" and each["metadata"]["name"] == "fluence-view-reader"
    )
    objects = view_objects(Ports(1, 2, 3))["/apis/rbac.authorization.k8s.io/v1/clusterroles"]
    assert allowed(objects["rules"]) == allowed(role["rules"])


def test_nodes_are_dealt_out_to_racks_in_blocks() -> None:
    made = manifests(NodeKind(name="gpu", count=4, racks=2, gpu=8, taints=["own=x:NoSchedule"]))
    labels = [each["metadata"]["labels"] for each in made]
    assert [each["topology.kubernetes.io/rack"] for each in labels] == [
        "rack-0",
        "rack-0",
        "rack-1",
        "rack-1",
    ]
    assert made[3]["metadata"]["name"] == "gpu-003"
    assert made[0]["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert made[0]["spec"] == {"taints": [{"key": "own", "value": "x", "effect": "NoSchedule"}]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: [{cpus: 3}]", "unknown field `cpus`"),
        ("nodes: [{cpu: lots}]", "nodes[0].cpu: 'lots' is not a quantity"),
        ("nodes: [{taints: [x]}]", "write KEY[=VALUE]:EFFECT"),
        ("nodes: [{}, {}]", "each needs its own name"),
        ("{", "not YAML"),
        ("- a", "expected a list `nodes`"),
    ],
)
def test_a_wrong_node_file_is_named_with_field_and_cure(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_nodes(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_negative_amount_is_refused() -> None:
    with pytest.raises(InvalidInput, match="negative"):
        check(NodeKind(memory="-1"), where="--memory")


def test_a_release_is_known_by_any_of_its_spellings() -> None:
    assert release("v1.36.4") is release("1.36") is RELEASES["1.36"]
    with pytest.raises(InvalidInput, match=r"choose 1\.35, 1\.36, 1\.37"):
        release("1.20")


@pytest.mark.parametrize("minor", RELEASES)
def test_the_go_module_of_a_release_pins_every_staging_module(minor: str) -> None:
    wanted = RELEASES[minor]
    text = (programs.GOMOD / wanted.module / "go.mod").read_text()
    assert f"k8s.io/kubernetes {wanted.version}" in text
    staged = wanted.version.replace("v1.", "v0.")
    replaced = [line for line in text.splitlines() if "=>" in line]
    assert len(replaced) >= 30
    assert all(line.endswith(staged) for line in replaced)


def fake_go(tmp_path: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "path" / "go"
    go.parent.mkdir(exist_ok=True)
    go.write_text(
        f'#!/bin/sh\nif [ "$1" = version ]; then echo go version go1.26.8 linux/amd64; exit; fi\n'
        f'echo "$@" >> {tmp_path}/calls\n{body}\n'
    )
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(programs, "_PAUSES_S", (0, 0))


WRITE = """
if [ "$1" = build ]; then
    while [ "$1" != -o ]; do shift; done
    out=$2; shift 2
    for package; do echo made > "$out$(basename "${package%/v3}")"; done
fi
"""


def test_a_build_goes_on_where_it_stopped_and_is_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path, WRITE, monkeypatch)
    bins = programs.cached("etcd", release("1.36")).parent
    bins.mkdir(parents=True)
    (bins / "etcd").write_text("made before the interruption")
    steps: list[str] = []
    found = programs.find_programs(release("1.36"), report=lambda each: steps.append(each.step))
    assert set(found) == {
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubectl",
        "kwok",
    }
    assert (bins / "etcd").read_text() == "made before the interruption"
    assert not list(bins.glob(".*.part"))
    calls = (tmp_path / "calls").read_text()
    assert "component-base/version.gitVersion=v1.36.4" in calls
    assert "building 4 programs (kube-apiserver, …)" in steps and "building kwok" in steps
    assert " go.etcd.io/" not in calls.splitlines()[1]  # it was there
    programs.find_programs(release("1.36"), report=lambda each: steps.append("again"))
    assert (tmp_path / "calls").read_text() == calls


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_build_waits_and_an_interrupted_one_leaves_nothing(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two users meet: the first presses Ctrl-C, the second then goes on by itself."""
    work = "mkdir ${GOTMPDIR:-$TMPDIR}/go-build$$"  # as go does, and does not remove when interrupted
    fake_go(tmp_path, f"{work}; while [ -e {tmp_path}/slow ]; do sleep 0.1; done; {WRITE}", monkeypatch)
    (tmp_path / "slow").touch()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    command = [str(Path(sys.executable).with_name("fluence")), "sandbox", "build"]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    with start() as first:
        assert first.stderr is not None
        says_what_it_builds(first.stderr)
        assert first.stderr.readline().startswith("downloading Go modules (0:00 of about 1")
        with start() as second:
            assert second.stderr is not None
            says_what_it_builds(second.stderr)
            assert second.stderr.readline().startswith("waiting for another build to finish (0:00 of about")
            first.send_signal(number)
            assert "interrupted; the next build continues from here" in first.stderr.read()
            assert first.wait() == 128 + number
            assert second.stderr.readline().startswith("downloading Go modules")
            (tmp_path / "slow").unlink()
            told = second.stderr.read()
            assert "building kwok" in told
            assert second.wait() == 0
    assert list((tmp_path / "tmp").iterdir()) == []


def says_what_it_builds(stream: IO[str]) -> None:
    names = "etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, kwok"
    assert stream.readline() == f"This machine has no {names} of Kubernetes 1.36 yet.\n"
    assert re.fullmatch(r"They are built now, once, into .*: about \d+ minutes on .*\n", stream.readline())


def test_a_busy_proxy_is_asked_again_and_a_real_error_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = f"n=$(wc -l < {tmp_path}/calls)"
    busy = f'{count}; if [ $n -lt 3 ]; then echo "429 Too Many Requests" >&2; exit 1; fi; {WRITE}'
    fake_go(tmp_path, busy, monkeypatch)
    programs.find_programs(release("1.36"), names=("etcd",), report=lambda each: None)
    assert len((tmp_path / "calls").read_text().splitlines()) == 4
    (tmp_path / "calls").unlink()
    fake_go(tmp_path, 'echo "checksum mismatch" >&2; exit 1', monkeypatch)
    with pytest.raises(FluenceError, match="downloading Go modules failed: checksum mismatch"):
        programs.find_programs(release("1.37"), names=("etcd",), report=lambda each: None)
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


def test_a_program_on_path_is_taken_if_its_version_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, said in (
        ("kube-apiserver", "Kubernetes v1.36.9"),
        ("etcd", "etcd Version: 3.5.1"),
        ("kwok", "kwok version v0.8.0"),
    ):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho '{said}'\n")
        path.chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    assert programs.existing("kube-apiserver", release("1.36")) == tmp_path / "kube-apiserver"
    assert programs.existing("kube-apiserver", release("1.37")) is None
    assert programs.existing("etcd", release("1.36")) is None  # too old for streaming lists
    assert programs.existing("kwok", release("1.36")) == tmp_path / "kwok"


def test_private_files_are_private(tmp_path: Path) -> None:
    cert, key = Authority("x").client("me", "system:masters")
    assert cert.startswith(b"-----BEGIN CERTIFICATE")
    write_private(tmp_path / "key", key)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert cache_dir().is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("method", "path", "query", "verb"),
    [
        ("GET", "/api/v1/pods", {}, "list"),
        ("GET", "/api/v1/pods", {"watch": "true"}, "watch"),
        ("GET", "/api/v1/namespaces/a/pods", {}, "list"),
        ("GET", "/api/v1/namespaces/a/pods/b", {}, "get"),
        ("GET", "/api/v1/namespaces/a", {}, "get"),
        ("GET", "/apis/batch/v1/jobs", {}, "list"),
        ("GET", "/apis/batch/v1/namespaces/a/jobs/b", {}, "get"),
        ("GET", "/version", {}, "get"),
        ("POST", "/api/v1/namespaces/a/pods", {}, "create"),
        ("PATCH", "/api/v1/namespaces/a/pods/b/status", {}, "patch"),
    ],
)
def test_requests_have_kubernetes_verbs(method: str, path: str, query: dict[str, str], verb: str) -> None:
    assert verb_of(method, path, query) == verb


def test_a_rule_lets_some_through_and_then_counts() -> None:
    rule = Rule(verb="create", path="binding$", status=503, after=1, every=2, times=2)
    hits = [rule.applies("create", "/x/binding") for _ in range(8)]
    assert hits == [False, True, False, True, False, False, False, False]
    assert not rule.applies("get", "/x/binding")


def test_a_script_is_read_and_its_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text("- {verb: watch, drop_after: 3}\n")
    assert read_script(path)[0].drop_after == 3
    path.write_text("- {verbs: watch}\n")
    with pytest.raises(InvalidInput, match="unknown field `verbs`"):
        read_script(path)
