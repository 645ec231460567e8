"""Real nodes: makes the real nodes of a sandbox, loads images into them, and removes every trace of them."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from fluence.errors import FluenceError
from fluence.sandbox.certs import Authority, write_private
from fluence.sandbox.folders import locked
from fluence.sandbox.images import write_pause
from fluence.sandbox.machine import Machine
from fluence.sandbox.process import Process, spawn
from fluence.sandbox.realnode import MAX_REAL_NODES, Network, RealNode, bridge, cgroup, mark

_READY_S = 120.0
_CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "hugetlb")  # the controllers that kubelets know
_CHOICE = range(128, 255)  # of 10.K.0.0/16


class RealNodesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded plan of a sandbox's real nodes: enough to start them again."""

    count: int
    network: Network
    machine: Machine
    programs: str  # the directory of containerd and its programs
    kubelet: str

    def nodes(self, sandbox: Path) -> list[RealNode]:
        return [RealNode(sandbox, number, self.network) for number in range(1, self.count + 1)]


# The network


def make_network(sandbox: Path) -> Network:
    """Make a bridge for the sandbox, with addresses that are unused on this machine."""
    # All sandboxes of all users choose here; this directory only serves as the lock.
    with locked(Path("/sys/class/net")):
        network = _free_network(sandbox)
        device = bridge(sandbox)
        _ip("link", "add", device, "type", "bridge")
        _ip("address", "add", f"{network.machine}/24", "dev", device)
        _ip("address", "add", f"{network.api}/32", "dev", device)
        _ip("link", "set", device, "up")
    return network


def _free_network(sandbox: Path) -> Network:
    routes = msgspec.json.decode(
        _ip("-json", "-4", "route", "show", "table", "all"), type=list[dict[str, Any]]
    )
    nets = [ipaddress.IPv4Network(item["dst"]) for item in routes if item.get("dst", "default") != "default"]
    taken = [item for item in nets if item.prefixlen > 8]  # 10.0.0.0/8 itself is a company network
    first = int(mark(sandbox), 16) % len(_CHOICE)
    for second in (*_CHOICE[first:], *_CHOICE[:first]):
        whole = ipaddress.IPv4Network(Network(second).whole)
        if not any(item.overlaps(whole) for item in taken):
            return Network(second)
    raise FluenceError(
        "no network is free between 10.128.0.0/16 and 10.254.0.0/16: `ip route` shows who has them"
    )


# A node


def write_files(node: RealNode, plan: RealNodesPlan, authority: Authority, kubeconfig: str) -> None:
    """Write all files that a node reads. ``kubeconfig`` is its own."""
    for folder in node.folders:
        folder.mkdir(parents=True, exist_ok=True)
    node.folder.chmod(0o755)  # a container's root is inside; the sandbox's directory is closed
    pki = node.folder / "pki"
    certificate, key = authority.server(
        f"system:node:{node.name}", group="system:nodes", addresses=(node.address,)
    )
    (pki / "ca.crt").write_bytes(authority.pem)
    (pki / "kubelet.crt").write_bytes(certificate)
    write_private(pki / "kubelet.key", key)
    write_private(pki / "kubeconfig", kubeconfig.encode())
    machine = plan.machine
    (node.folder / "kubelet.yaml").write_text(yaml.safe_dump(node.kubelet_config(cgroups=machine.cgroups)))
    (node.folder / "containerd.toml").write_text(
        node.containerd_config(Path(plan.programs), runc=Path(machine.runc), snapshotter=machine.snapshotter)
    )
    (node.folder / "cni" / "10-sandbox.conflist").write_bytes(msgspec.json.encode(node.cni_config()))
    hosts = node.folder / "certs.d" / "_default"
    hosts.mkdir(parents=True)
    (hosts / "hosts.toml").write_text(node.registry_config())
    for path, text in node.tunables().items():
        path.write_text(text)


def start_node(node: RealNode, plan: RealNodesPlan, logs: Path) -> Iterator[Process]:
    """Start a node, part by part. The caller records each part before it asks for the next."""
    programs = Path(plan.programs)
    _remove_link(node.link)
    shutil.rmtree(node.folder / "run")  # as after a reboot
    (node.folder / "run").mkdir()
    init = spawn(
        node.name, node.init(programs / "pause"), logs / f"{node.name}.log", cwd=node.folder, wrapped=True
    )
    yield init
    _plug_in(node, init.pid)
    run_in(node, init, ["sh", "-c", node.setup(plan.count)], what="setting it up")
    _make_cgroups(node)
    for part, command in (
        (f"containerd-{node.number}", node.containerd(programs)),
        (f"kubelet-{node.number}", node.kubelet(Path(plan.kubelet))),
    ):
        yield spawn(part, node.enter(init.pid, *command), logs / f"{part}.log", cwd=node.folder, wrapped=True)
        if part.startswith("containerd"):
            _wait_containerd(node, init, programs)
            archive = node.folder / "pause.tar"
            write_pause(programs / "pause", archive)
            import_image(node, init, programs, archive)


def import_image(node: RealNode, init: Process, programs: Path, archive: Path) -> None:
    """Import an OCI archive into the node's containerd."""
    command = [str(programs / "ctr"), "--namespace", "k8s.io", "images", "import", "-"]
    with archive.open("rb") as content:
        run_in(node, init, command, what=f"importing {archive}", stdin=content.fileno())


def run_in(
    node: RealNode, init: Process, command: list[str], *, what: str, stdin: int = subprocess.DEVNULL
) -> None:
    """Run a command inside a node. An error has the end of its output."""
    done = subprocess.run(
        node.enter(init.pid, *command), stdin=stdin, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        why = " ".join(done.stderr.split())[-400:] or f"exit code {done.returncode}"
        raise FluenceError(f"node {node.name}: {what} failed: {why}")


def _plug_in(node: RealNode, pid: int) -> None:
    """Connect the node to the bridge, and add the machine's route to its pods."""
    device = bridge(node.sandbox)
    _ip("link", "add", node.link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _ip("link", "set", node.link, "master", device, "up")
    _ip("route", "replace", node.network.pods(node.number), "via", node.address, "dev", device)


def _wait_containerd(node: RealNode, init: Process, programs: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while True:
        try:
            run_in(node, init, [str(programs / "ctr"), "version"], what="starting containerd")
            return
        except FluenceError:
            if time.monotonic() > deadline or not init.is_alive:
                raise
            time.sleep(0.1)


# The end


def remove_traces(sandbox: Path) -> None:
    """Remove network devices and cgroups by their names, including those that were never recorded. The
    processes are gone, and with them the mounts."""
    if os.geteuid() != 0:
        return
    device = bridge(sandbox)
    for link in (*(f"{device}-{number}" for number in range(1, MAX_REAL_NODES + 1)), device):
        _remove_link(link)
    for top in _cgroup_mounts():
        _remove_cgroup(top / cgroup(sandbox).lstrip("/"))


def _remove_link(link: str) -> None:
    if Path("/sys/class/net", link).exists():
        with contextlib.suppress(FluenceError):  # its peer's namespace may be removing it right now
            _ip("link", "delete", link)


def _make_cgroups(node: RealNode) -> None:
    for top in _cgroup_mounts():
        own = top / node.cgroup.lstrip("/")
        own.mkdir(parents=True, exist_ok=True)
        _switch_on(top, own.parent)


def _switch_on(*folders: Path) -> None:
    """Enable all controllers. With version 2, a cgroup only has the controllers that its parents pass down,
    and the kubelet wants all."""
    for folder in folders:
        controllers = folder / "cgroup.controllers"
        names = controllers.read_text().split() if controllers.exists() else []
        for name in names:
            if name in _CONTROLLERS:
                (folder / "cgroup.subtree_control").write_text(f"+{name}")


def _cgroup_mounts() -> list[Path]:
    """Where cgroups are mounted: one place with version 2, one per controller with version 1."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")]


def _remove_cgroup(top: Path) -> None:
    """Remove from the leaves up. A killed process may hold its cgroup for another moment."""
    deadline = time.monotonic() + 10.0
    for path, _, _ in os.walk(top, topdown=False):
        while True:
            try:
                Path(path).rmdir()
                break
            except FileNotFoundError:
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise FluenceError(f"cgroup {path} cannot be removed: {error.strerror}") from None
                time.sleep(0.05)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FluenceError(f"ip {' '.join(arguments)}: {' '.join(done.stderr.split())}")
    return done.stdout
