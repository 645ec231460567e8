"""Realnodes: makes a sandbox's real nodes, loads images into them, and takes every trace of them away."""

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
from fluence.sandbox.realnode import MOST, Network, RealNode, bridge, cgroup, mark

_READY_S = 30.0
_CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "hugetlb")  # that kubelets know
_CHOICE = range(128, 255)  # of 10.K.0.0/16


class RealNodesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is written down about a sandbox's real nodes: enough to start them again."""

    count: int
    network: Network
    machine: Machine
    programs: str  # the folder of containerd and its kin
    kubelet: str

    def nodes(self, sandbox: Path) -> list[RealNode]:
        return [RealNode(sandbox, number, self.network) for number in range(1, self.count + 1)]


# The network


def make_network(sandbox: Path) -> Network:
    """A bridge of the sandbox's own, with addresses that nobody on this machine uses."""
    # All sandboxes of all users choose here; the folder has nothing to do with it but to be there.
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
    nets = [ipaddress.IPv4Network(each["dst"]) for each in routes if each.get("dst", "default") != "default"]
    taken = [each for each in nets if each.prefixlen > 8]  # all of 10.0.0.0/8 leads to a company's network
    first = int(mark(sandbox), 16) % len(_CHOICE)
    for second in (*_CHOICE[first:], *_CHOICE[:first]):
        whole = ipaddress.IPv4Network(Network(second).whole)
        if not any(each.overlaps(whole) for each in taken):
            return Network(second)
    raise FluenceError(
        "no network is free between 10.128.0.0/16 and 10.254.0.0/16: `ip route` shows who has them"
    )


# A node


def write_files(node: RealNode, plan: RealNodesPlan, authority: Authority, kubeconfig: str) -> None:
    """All that a node reads; ``kubeconfig`` is its own."""
    for folder in node.folders:
        folder.mkdir(parents=True, exist_ok=True)
    node.folder.chmod(0o755)  # NB a container's own root is within; the sandbox's folder is closed
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
    """Start a node, part by part; each is to be written down before the next is asked for."""
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
    """Have the node's containerd take in an OCI archive."""
    command = [str(programs / "ctr"), "--namespace", "k8s.io", "images", "import", "-"]
    with archive.open("rb") as content:
        run_in(node, init, command, what=f"importing {archive}", stdin=content.fileno())


def run_in(
    node: RealNode, init: Process, command: list[str], *, what: str, stdin: int = subprocess.DEVNULL
) -> None:
    """Run a command within a node; an error has its last words."""
    done = subprocess.run(
        node.enter(init.pid, *command), stdin=stdin, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        why = " ".join(done.stderr.split())[-400:] or f"exit code {done.returncode}"
        raise FluenceError(f"node {node.name}: {what} failed: {why}")


def _plug_in(node: RealNode, pid: int) -> None:
    """A cable from the bridge to the node, and the machine's way to its pods."""
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
    """Network devices and cgroups, by their names: also those that nobody had time to write down. The
    processes are gone, and with them the mounts."""
    if os.geteuid() != 0:
        return
    device = bridge(sandbox)
    for link in (*(f"{device}-{number}" for number in range(1, MOST + 1)), device):
        _remove_link(link)
    for top in _cgroup_mounts():
        _remove_cgroup(top / cgroup(sandbox).lstrip("/"))


def _remove_link(link: str) -> None:
    if Path("/sys/class/net", link).exists():
        with contextlib.suppress(FluenceError):  # its peer's namespace may be taking it along just now
            _ip("link", "delete", link)


def _make_cgroups(node: RealNode) -> None:
    for top in _cgroup_mounts():
        own = top / node.cgroup.lstrip("/")
        own.mkdir(parents=True, exist_ok=True)
        _switch_on(top, own.parent)


def _switch_on(*folders: Path) -> None:
    """With version 2 a cgroup has the controllers that those above it hand down; the kubelet wants all."""
    for folder in folders:
        controllers = folder / "cgroup.controllers"
        names = controllers.read_text().split() if controllers.exists() else []
        for name in names:
            if name in _CONTROLLERS:
                (folder / "cgroup.subtree_control").write_text(f"+{name}")


def _cgroup_mounts() -> list[Path]:
    """Where cgroups are: one place with version 2, one for each controller with version 1."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(each[1]) for each in mounts if each[2] in ("cgroup", "cgroup2")]


def _remove_cgroup(top: Path) -> None:
    """From the leaves up; a process that was killed may hold its cgroup for another moment."""
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
