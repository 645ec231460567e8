"""Real nodes come and go: nothing of them is left on the machine, whatever was killed."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fluence.sandbox.images import find_busybox, write_busybox
from fluence.sandbox.process import start_time
from fluence.sandbox.realnode import bridge, cgroup
from fluence.sandbox.testing import needs_real_nodes
from tests.eventually import SOON_S
from tests.integration.sandbox.kubectl import soon
from tests.integration.sandbox.test_lifecycle import VERSION, Cli

pytestmark = pytest.mark.realnodes

UP = ("up", "--version", VERSION, "--nodes", "0", "--real-nodes", "1")
# Where programs of a node would write, were they not shut in.
PLACES = (
    "/run",
    "/var/lib",
    "/var/log",
    "/opt",
    "/etc",
    "/etc/cni",
    "/usr/libexec",
    "/var/run/netns",
    "/tmp",
)
NAMES = re.compile(r"kube|containerd|cni|nri|runc|netns")
TUNABLES = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
SLEEPER = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "sleeper"},
    "spec": {
        "nodeName": "real-1",
        "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}],
        "containers": [
            {
                "name": "c",
                "image": "busybox",
                "command": ["sleep", "1000"],
                "volumeMounts": [{"name": "memory", "mountPath": "/memory"}],
            }
        ],
    },
}


def traces(folder: Path) -> dict[str, object]:
    """All of the machine that real nodes touch. Other sandboxes may come and go meanwhile, so devices and
    cgroups are compared by this one's name, or without theirs."""

    def said(*command: str) -> str:
        if shutil.which(command[0]) is None:
            return ""
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    links = {each["ifname"] for each in json.loads(said("ip", "-json", "link"))}
    groups = {str(each) for each in Path("/sys/fs/cgroup").glob("*") if each.is_dir()}
    groups |= {str(each) for each in Path("/sys/fs/cgroup").glob("*/*") if each.is_dir()}
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "links": {each for each in links if bridge(folder) in each or not each.startswith("flu")},
        "cgroups": {each for each in groups if cgroup(folder) in each or "/fluence-" not in each},
        "mounts": {line.split(" ", 3)[3] for line in mounts},
        "namespaces": said("ip", "netns"),
        "rules": re.sub(r"#.*|\[\d+:\d+\]", "", said("iptables-save")) + said("nft", "list", "ruleset"),
        "tunables": [Path("/proc/sys", each).read_text() for each in TUNABLES],
        "files": {str(each) for place in PLACES for each in Path(place).glob("*") if NAMES.search(each.name)},
        "processes": processes(folder),
    }


def processes(folder: Path, *, of: set[str] | None = None) -> dict[int, str]:
    """Processes that name the folder, or that are in the namespaces ``of``."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().decode("utf-8", "replace").replace("\0", " ")
            kind = (entry / "comm").read_text()
            if f"{folder}/" in line or (of and str((entry / "ns" / "pid").readlink()) in of):
                found[int(entry.name)] = f"{kind.strip()}: {line}"
        except OSError:  # it has ended, or is not ours to look at
            continue
    return found


def descendants(pid: int) -> Iterator[int]:
    yield pid
    for task in Path("/proc", str(pid), "task").glob("*"):
        for child in (task / "children").read_text().split():
            yield from descendants(int(child))


class House(Cli):
    """A sandbox with one real node and a container on it; it knows how the machine was before."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.folder = home / "state" / "fluence" / "sandbox" / "default"
        self.before = traces(self.folder)
        self.namespaces: set[str] = set()

    def inhabit(self) -> None:
        archive = self.home / "busybox.tar"
        write_busybox(find_busybox(), archive)
        assert "loaded docker.io/library/busybox:latest" in self.ok("load", str(archive))
        soon(
            lambda: self.run("kubectl", "get", "serviceaccount", "default").returncode == 0,
            "pods have an account",
        )
        self.apply(SLEEPER)
        self.ok("kubectl", "wait", "--for=condition=Ready", "--timeout=240s", "pod/sleeper")
        self.remember()

    def remember(self) -> None:
        """The node's namespace of processes, and those of the containers in it."""
        found = descendants(self.parts()["real-1"])
        self.namespaces = {str(Path("/proc", str(pid), "ns", "pid").readlink()) for pid in found}
        assert len(self.namespaces) >= 3  # the node's, the pod's, the container's

    def inside(self) -> dict[int, str]:
        return processes(self.folder, of=self.namespaces)

    def assert_nothing_left(self) -> None:
        soon(self.inside, "its processes end", {})
        after = traces(self.folder)
        for what, was in self.before.items():
            assert after[what] == was, what
        assert not (self.home / "state" / "fluence").exists()


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if start_time(pid) is not None]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    needs_real_nodes()
    made = House(tmp_path)
    yield made
    made.run("down", "--all")


@pytest.mark.parametrize("victims", ["", "containerd: containerd-shim", "kubelet: sleep:", "pause:", "all"])
def test_down_leaves_nothing_of_a_real_node(house: House, victims: str) -> None:
    """Whatever is killed before: programs of the node, a container, the node's first process, or all."""
    house.ok(*UP)
    house.inhabit()
    inside = house.inside()
    for victim in victims.split():
        chosen = [pid for pid, kind in inside.items() if victim == "all" or kind.startswith(victim)]
        assert chosen, inside
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):  # it went with another
                os.kill(pid, signal.SIGKILL)
        soon(partial(living, chosen), f"{victim} is dead", [])
    assert "gone" in house.ok("down")
    house.assert_nothing_left()


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGTERM, "starting node"),
        (signal.SIGINT, "making 0"),
        (signal.SIGKILL, "starting etcd"),
        (signal.SIGKILL, "starting node"),
        (signal.SIGKILL, "making 0"),
    ],
)
def test_an_up_that_is_ended_leaves_nothing(house: House, number: signal.Signals, moment: str) -> None:
    """What is killed outright cannot clean up: `down` does, also what was never written down."""
    command = [sys.executable, "-m", "fluence.cli", "sandbox", *UP]
    with subprocess.Popen(command, env=house.env, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        while not (line := child.stderr.readline()).startswith(moment):
            assert line, "it ended before"
        child.send_signal(number)
        assert child.wait(timeout=SOON_S) == (-number if number == signal.SIGKILL else 128 + number)
        said = child.stderr.read()
        assert not [word for word in ("Traceback", "Warning", "ignored in") if word in said], said
    if number == signal.SIGKILL:
        assert house.folder.exists()
        house.ok("down")
    house.assert_nothing_left()


def test_a_dead_part_and_a_dead_node_are_started_again(house: House) -> None:
    house.ok(*UP)
    house.inhabit()
    os.kill(house.parts()["kubelet-1"], signal.SIGKILL)
    soon(lambda: house.ok("status"), "status says so", lambda said: "dead: kubelet-1" in said)
    assert "started again: kubelet-1" in house.ok("restart")

    def answers() -> bool:
        return house.run("kubectl", "exec", "sleeper", "--", "hostname").stdout == "sleeper\n"

    soon(answers, "the kubelet finds its containers again")

    os.kill(house.parts()["real-1"], signal.SIGKILL)
    dead = "dead: real-1, containerd-1, kubelet-1"
    soon(lambda: house.ok("status"), "status says so", lambda said: dead in said)
    assert "started again: real-1" in house.ok("restart")

    soon(answers, "the node runs its pod again, as after a reboot")
    house.remember()
    house.ok("down")
    house.assert_nothing_left()


def test_a_loaded_image_needs_real_nodes(house: House) -> None:
    house.ok("up", "--version", VERSION, "--nodes", "1")
    done = house.run("load", str(house.home / "x.tar"))
    assert done.returncode == 1
    assert "has no real nodes, and simulated ones need no images; start one with" in done.stderr
