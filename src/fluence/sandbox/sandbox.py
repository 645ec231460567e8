"""Sandbox: writes the files of one control plane, starts it, checks it and removes it, by name.

Its parts run on their own, each identified by pid and start time in ``state.json``; there is no daemon. A
sandbox is

    up         every part runs
    degraded   some part has died: ``restart`` brings it back, with its data
    stale      none runs, or the machine was restarted: ``up`` and ``down`` clear it away
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import random
import shutil
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import msgspec
import yaml

from fluence import event_loop
from fluence.errors import Conflict, FluenceError, InvalidInput, NotFound
from fluence.kube.access import Access, find_access
from fluence.kube.client import Client
from fluence.kube.errors import ONCE, KubeError, Unauthorized
from fluence.kube.releases import Release
from fluence.kube.resource import NODES
from fluence.sandbox import plane, realnodes
from fluence.sandbox.certs import Authority, new_key, private_pem, public_pem, write_private
from fluence.sandbox.folders import locked, sandbox_dir, state_dir
from fluence.sandbox.machine import Machine, look
from fluence.sandbox.nodes import NodeKind, create_nodes, wait_ready
from fluence.sandbox.plane import PlaneDirectories, Ports
from fluence.sandbox.process import Process, boot_id, spawn, start_time
from fluence.sandbox.realnode import MAX_REAL_NODES, RealNode
from fluence.sandbox.realnodes import RealNodesPlan, import_image, make_network, remove_traces, start_node
from fluence.sandbox.registry import add_image

STAGES = Path(__file__).with_name("stages.yaml")
# user, group, and the name of the kubeconfig
USERS = (
    ("kubernetes-admin", "system:masters", "admin"),
    ("system:kube-controller-manager", None, "kube-controller-manager"),
    ("system:kube-scheduler", None, "kube-scheduler"),
    ("kwok", "system:masters", "kwok"),
)


def write_files(
    name: str, at: PlaneDirectories, ports: Ports, real: realnodes.RealNodesPlan | None = None
) -> None:
    """Write all files. The authority that signs the certificates is discarded at the end, so nothing can be
    signed later."""
    for folder in (at.folder, at.folder / "pki", at.folder / "logs", at.data):
        folder.mkdir(mode=0o700, exist_ok=True)
    at.folder.chmod(0o700)
    authority, account_key = Authority(name), new_key()
    front_proxy = Authority(f"{name} front proxy")  # must not be the users' authority
    at.pki("ca.crt").write_bytes(authority.pem)
    at.pki("front-proxy-ca.crt").write_bytes(front_proxy.pem)
    issued = {
        "etcd": authority.server("etcd"),
        "apiserver": authority.server("kube-apiserver", addresses=(ports.host,)),
        "etcd-client": authority.client("kube-apiserver-etcd-client"),
        "front-proxy-client": front_proxy.client("front-proxy-client"),
        "kubelet-client": authority.client("kube-apiserver-kubelet-client", "system:masters"),
    }
    for part, (cert, key) in issued.items():
        at.pki(f"{part}.crt").write_bytes(cert)
        write_private(at.pki(f"{part}.key"), key)
    write_private(at.pki("sa.key"), private_pem(account_key))
    at.pki("sa.pub").write_bytes(public_pem(account_key))

    def access(user: str, group: str | None) -> str:
        return kubeconfig(name, ports.server, authority.pem, *authority.client(user, group))

    for user, group, owner in USERS:
        write_private(at.kubeconfig(owner), access(user, group).encode())
    for node in real.nodes(at.folder) if real is not None else ():
        assert real is not None
        realnodes.write_files(node, real, authority, access(f"system:node:{node.name}", "system:nodes"))
    at.images.mkdir(exist_ok=True)
    shutil.copy(STAGES, at.stages)
    at.scheduler_config.write_text(yaml.safe_dump(plane.scheduler_config(at)))


def kubeconfig(name: str, server: str, ca: bytes, cert: bytes, key: bytes) -> str:
    def encoded(content: bytes) -> str:
        return base64.b64encode(content).decode()

    context = f"fluence-sandbox-{name}"
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "clusters": [
                {"name": context, "cluster": {"server": server, "certificate-authority-data": encoded(ca)}}
            ],
            "users": [
                {
                    "name": context,
                    "user": {"client-certificate-data": encoded(cert), "client-key-data": encoded(key)},
                }
            ],
            "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        },
        sort_keys=False,
    )


READY_S = 180.0
NODE_PARTS = ("real", "containerd", "kubelet")
PARTS = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "audit", "fluence"),
    *("registry", *(f"{part}-{number}" for number in range(1, MAX_REAL_NODES + 1) for part in NODE_PARTS)),
)
CORE = ("etcd", "kube-apiserver")
_MODULES = (  # parts that run in Python
    *(b"\0fluence.sandbox.auditor\0", b"\0fluence.cli\0scheduler\0", b"\0fluence.sandbox.registry\0"),
)
# The first process of a real node, and its wrappers: all others end with it.
_HOLDERS = ("pause", "unshare", "nsenter")
_OUR_PORTS = range(20_000, 30_000)  # below those of connections and of NodePorts

Say = Callable[[str], None]


class SandboxState(msgspec.Struct):
    """The recorded state of a running sandbox."""

    name: str
    version: str
    ports: Ports
    parts: dict[str, Process]
    gates: dict[str, bool]
    created: float
    # The process that the sandbox belongs to (a test run). When it is gone, the sandbox may be removed.
    owner: Process | None = None
    real: RealNodesPlan | None = None


class Sandbox:
    """One sandbox. ``up`` and ``down`` are idempotent; every method is synchronous and may run in a
    thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.at = PlaneDirectories(sandbox_dir(name))
        self._dir = self.at.folder

    # What is there

    def load(self) -> SandboxState | None:
        try:
            return msgspec.json.decode(self.at.state.read_bytes(), type=SandboxState)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def status(self) -> str:
        """``up``, ``degraded``, ``stale`` or ``none``."""
        if not self._dir.exists():
            return "none"
        state = self.load()
        if state is None:
            return "stale"
        alive = [process.is_alive for process in state.parts.values()]
        if not any(alive) or (state.owner is not None and not state.owner.is_alive):
            return "stale"
        return "up" if all(alive) else "degraded"

    def require(self) -> SandboxState:
        """The state of a sandbox. Raises NotFound if it does not exist."""
        state = self.load()
        if state is None:
            others = ", ".join(names()) or "none"
            raise NotFound(
                f"no sandbox named {self.name!r} (there: {others}); start one with `fluence sandbox up`"
            )
        return state

    def access(self) -> Access:
        self.require()
        return find_access(kubeconfig=self.at.kubeconfig())

    # Starting

    def up(
        self,
        programs: dict[str, Path],
        release: Release,
        *,
        scheduler: bool = False,
        fluence: bool = False,
        audit: bool = True,
        gates: dict[str, bool] | None = None,
        owned: bool = False,
        real_nodes: int = 0,
        controllers: str = plane.NEEDED,
        say: Say = lambda text: None,
    ) -> SandboxState:
        """Start the control plane and wait until it answers. A stale one with the same name is removed first.
        ``real_nodes`` are started with it; simulated ones are added later. ``controllers``: those that
        workloads need, or all."""
        machine = look(self._dir) if real_nodes else None
        extras = [
            part
            for part, wanted in (("kube-scheduler", scheduler), ("audit", audit), ("fluence", fluence))
            if wanted
        ]
        with locked(self._dir, wait=False, what=f"sandbox {self.name!r}"):
            if self.status() in ("up", "degraded"):
                raise Conflict(
                    f"sandbox {self.name!r} is already {self.status()}; `fluence sandbox down` it first, "
                    "or choose another --name"
                )
            if self.load() is not None:
                say("clearing away a stale sandbox")
            for tries_left in (2, 1, 0):
                self._clear(keep_folder=True)
                try:
                    state = self._prepare(programs, release, gates or {}, owned, machine, real_nodes)
                    self._start(state, programs, release, extras, controllers, say)
                    return state
                except BaseException as error:
                    # Another program may take a port between choosing and using it.
                    if (
                        tries_left
                        and isinstance(error, FluenceError)
                        and "address already in use" in str(error)
                    ):
                        continue
                    self._clear()
                    raise
            raise AssertionError("unreachable")

    def _prepare(
        self,
        programs: dict[str, Path],
        release: Release,
        more_gates: dict[str, bool],
        owned: bool,
        machine: Machine | None,
        real_nodes: int,
    ) -> SandboxState:
        """Choose ports and addresses, and write every file."""
        etcd, peer, api, health, view = free_ports(5)
        ports, real = Ports(etcd, peer, api, health, view), None
        if machine is not None:
            network = make_network(self._dir)
            real = RealNodesPlan(
                count=real_nodes,
                network=network,
                machine=machine,
                programs=str(programs["containerd"].parent),
                kubelet=str(programs["kubelet"]),
            )
            ports = msgspec.structs.replace(ports, api=443, host=network.api, services=network.services)
        write_files(self.name, self.at, ports, real)
        owner = Process("owner", os.getpid(), start_time(os.getpid()) or "", [], boot_id()) if owned else None
        gates = {**release.gates, **more_gates}
        state = SandboxState(self.name, release.version, ports, {}, gates, time.time(), owner, real)
        self._save(state)
        return state

    def _start(
        self,
        state: SandboxState,
        programs: dict[str, Path],
        release: Release,
        extras: list[str],
        controllers: str,
        say: Say,
    ) -> None:
        at, ports, gates, real = self.at, state.ports, state.gates, state.real is not None

        def start(part: str, command: list[str]) -> None:
            state.parts[part] = spawn(part, command, at.log(part), cwd=at.folder)
            self._save(state)

        say("starting etcd and kube-apiserver")
        start("etcd", plane.etcd(programs["etcd"], at, ports))
        server = plane.apiserver(programs["kube-apiserver"], at, ports, release, gates, real=real)
        start("kube-apiserver", server)
        self._wait_ready(state)
        say("starting the controllers")
        manager = plane.controller_manager(
            programs["kube-controller-manager"], at, release, gates, real=real, controllers=controllers
        )
        start("kube-controller-manager", manager)
        if "kube-scheduler" in extras:
            start("kube-scheduler", plane.scheduler(programs["kube-scheduler"], at, gates))
        start("kwok", plane.kwok(programs["kwok"], at, real=real))
        if "audit" in extras:
            start("audit", plane.audit(at))
        if "fluence" in extras:
            event_loop.run(lambda: self._register_view(ports))
            start("fluence", plane.fluence(at, ports))
        self._wait_default_account(state)
        if state.real is not None:
            start("registry", plane.registry(at, state.real.network.registry))
            for node in state.real.nodes(at.folder):
                say(f"starting node {node.name}")
                self._start_node(state, node)
            event_loop.run(lambda: self._wait(state, self._has_real_nodes, "the real nodes", parts=PARTS))
        if "fluence" in extras:
            event_loop.run(
                lambda: self._wait(state, self._follows, "Fluence's scheduler to start", parts=PARTS)
            )
        if "audit" in extras:
            event_loop.run(lambda: self._wait(state, self._audits, "the audit to start", parts=PARTS))

    def _start_node(self, state: SandboxState, node: RealNode) -> None:
        assert state.real is not None
        for process in start_node(node, state.real, self.at.folder / "logs"):
            state.parts[process.name] = process
            self._save(state)

    def load_image(self, archive: Path, say: Say = lambda text: None) -> list[str]:
        """Load an OCI archive into every real node and into the sandbox's registry. Returns the names of its
        images."""
        state = self.require()
        if state.real is None:
            raise InvalidInput(
                f"sandbox {self.name!r} has no real nodes, and simulated ones need no images; "
                "start one with `fluence sandbox up --real-nodes 1`"
            )
        names = add_image(archive, self.at.images)
        for node in state.real.nodes(self._dir):
            init = state.parts[node.name]
            if not init.is_alive:
                raise FluenceError(f"node {node.name} is dead; `fluence sandbox restart` it first")
            say(f"importing into {node.name}")
            import_image(node, init, Path(state.real.programs), archive)
        return names

    def add_nodes(
        self,
        kinds: list[NodeKind],
        *,
        report: Callable[[int], None] = lambda ready: None,
    ) -> tuple[int, int]:
        """Make nodes and wait until they are Ready. Returns (requested, ready)."""

        async def work() -> tuple[int, int]:
            async with Client(self.access()) as client:
                real = self.require().real
                count = await create_nodes(client, kinds) + (real.count if real else 0)
                return count, await wait_ready(client, count, patience_s=60.0, report=report)

        return event_loop.run(work)

    def restart(self, part: str | None = None) -> list[str]:
        """Kill one part and start it again; without a name, start all that have died."""
        with locked(self._dir, what=f"sandbox {self.name!r}"):
            state = self.require()
            if part is not None and part not in state.parts:
                there = ", ".join(state.parts)
                raise NotFound(f"sandbox {self.name!r} has no part {part!r} (there: {there})")
            chosen = [name for name in PARTS if name in state.parts]
            chosen = [
                name for name in chosen if name == part or (part is None and not state.parts[name].is_alive)
            ]
            for node in state.real.nodes(self._dir) if state.real else ():
                if node.name in chosen:  # its first process: the others end and start with it
                    state.parts[node.name].stop()
                    self._start_node(state, node)
            for name in chosen:
                old = state.parts[name]
                if name.startswith("real-") or (part is None and old.is_alive):
                    continue
                old.stop(grace_s=0.0)
                state.parts[name] = spawn(
                    name, old.command, self.at.log(name), cwd=self.at.folder, wrapped=old.wrapper > 0
                )
                self._save(state)
                if name in CORE and all(state.parts[core].is_alive for core in CORE):
                    self._wait_ready(state)
        return chosen

    # Stopping

    def down(self) -> bool:
        """Stop every part and remove every file. Returns False if there was nothing."""
        if not self._dir.exists():
            return False
        with locked(self._dir, what=f"sandbox {self.name!r}"):
            self._clear()
        return True

    def _clear(self, *, keep_folder: bool = False) -> None:
        state = self.load()
        processes = _strays(self._dir)
        if state is not None:
            # Clients first, so that none of them fills its log with errors about the others.
            processes = [state.parts[part] for part in reversed(PARTS) if part in state.parts] + processes
        for process in processes:
            process.stop()
        remove_traces(self._dir)
        if keep_folder:  # the lock is on the folder itself
            for path in self._dir.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        else:
            shutil.rmtree(self._dir, ignore_errors=True)
            for folder in (state_dir(), state_dir().parent):  # remove empty parents
                with contextlib.suppress(OSError):
                    folder.rmdir()

    # Details

    def _save(self, state: SandboxState) -> None:
        part = self.at.state.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        part.replace(self.at.state)

    def _wait_ready(self, state: SandboxState) -> None:
        """Wait until /readyz succeeds. If a part dies meanwhile, the error has the end of its log."""
        event_loop.run(lambda: self._wait(state, self._is_ready, "the API server to be ready", parts=CORE))

    def _wait_default_account(self, state: SandboxState) -> None:
        """Wait for the service account `default`, which the controller manager creates: until then pods are
        refused."""
        event_loop.run(lambda: self._wait(state, self._has_account, "the controllers to start", parts=PARTS))

    async def _wait(
        self,
        state: SandboxState,
        check: Callable[[Client], Awaitable[None]],
        what: str,
        *,
        parts: tuple[str, ...],
    ) -> None:
        deadline = time.monotonic() + READY_S
        async with Client(self.access()) as client:
            while True:
                try:
                    await check(client)
                    return
                except Unauthorized:
                    raise  # waiting will not help
                except KubeError as error:
                    why = str(error)
                for process in state.parts.values():
                    if process.name in parts and not process.is_alive:
                        raise FluenceError(f"{process.name} died: {log_tail(self.at.log(process.name))}")
                if time.monotonic() > deadline:
                    raise FluenceError(
                        f"waited {READY_S:.0f} s for {what}: {why}; see `fluence sandbox logs`"
                    )
                await asyncio.sleep(0.1)

    @staticmethod
    async def _is_ready(client: Client) -> None:
        await client.request("GET", "/readyz", timeout_s=10.0, retry=ONCE)

    async def _register_view(self, ports: Ports) -> None:
        async with Client(self.access()) as client:
            for path, body in plane.view_objects(ports).items():
                await client.request("POST", path, body=msgspec.json.encode(body))

    async def _follows(self, client: Client) -> None:
        """Check that Fluence's scheduler has seen the cluster."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10.0)) as session,
                session.get(f"http://127.0.0.1:{self.require().ports.fluence}/readyz") as answer,
            ):
                if answer.status != 200:
                    raise KubeError(f"Fluence's scheduler: {(await answer.text()).strip()}")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise KubeError(f"Fluence's scheduler does not answer yet: {error}") from None

    async def _audits(self, client: Client) -> None:
        """Check that the audit has seen the cluster: its socket is opened after that."""
        if not self.at.audit_socket.exists():
            raise KubeError("the audit does not answer yet")

    @staticmethod
    async def _has_account(client: Client) -> None:
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        await client.request("GET", path, timeout_s=10.0, retry=ONCE)

    async def _has_real_nodes(self, client: Client) -> None:
        real = self.require().real
        for node in real.nodes(self._dir) if real else ():
            current = await client.get(NODES, node.name)
            if not current.is_ready:
                message = next(
                    (
                        condition.message
                        for condition in current.status.conditions or ()
                        if condition.type == "Ready"
                    ),
                    "",
                )
                raise KubeError(f"node {node.name} is not Ready: {message}")


def names() -> list[str]:
    """All sandboxes on this machine, in any state."""
    if not state_dir().exists():
        return []
    return sorted(folder.name for folder in state_dir().iterdir() if folder.is_dir())


def clear_stale(prefix: str) -> None:
    """Remove the sandboxes with this prefix whose owners were killed. A name that ends in the pid of a living
    process belongs to that process, which may have killed parts of the sandbox on purpose."""
    for name in names():
        owner = name.rpartition("-")[2]
        if name.startswith(prefix) and not (owner.isdigit() and Path(f"/proc/{owner}").exists()):
            try:
                orphan = Sandbox(name)
            except InvalidInput:
                continue
            if orphan.status() == "stale":
                orphan.down()


def log_tail(log: Path) -> str:
    """The end of a log, on one line, for an error message."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return "it left no log"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line or line.startswith(("F", "E"))] or lines
    return " | ".join(errors[-3:])[-600:] or "it said nothing"


def free_ports(count: int) -> list[int]:
    """Ports that are free now. All are held until the last is found, so that they differ. None is one that
    the kernel gives to connections, which could take it before our program listens."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for port in random.sample(_OUR_PORTS, len(_OUR_PORTS)):
            if len(ports) == count:
                break
            holder = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                holder.bind(("127.0.0.1", port))
                ports.append(port)
        return ports


def _strays(folder: Path) -> list[Process]:
    """Processes whose command line names this sandbox's directory: a crash may have prevented recording
    them."""
    strays = []
    marks = [f"{folder}/".encode(), str(folder).encode() + b"\0"]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            program = Path(os.fsdecode(line.split(b"\0")[0])).name
            if (
                program not in PARTS
                and program not in _HOLDERS
                and not any(module in line for module in _MODULES)
            ):
                continue
            if entry.stat().st_uid == os.getuid() and any(mark in line for mark in marks):
                pid = int(entry.name)
                strays.append(Process(program, pid, start_time(pid) or "", [], boot_id()))
    return strays
