"""Testing: pytest fixtures that give each test a real control plane: one per run, a clean namespace per test.

    pytest_plugins = ["fluence.sandbox.testing"]

    async def test_binds(kube: Kube) -> None:
        async with kube.client() as client:
            await client.create(PODS, pod, namespace=kube.namespace)

``real_nodes`` and ``real_kube`` are the same with two nodes that run containers and have the image busybox.
Tests that use them are marked ``realnodes``. If the machine cannot have real nodes, they are skipped with a
list of what is missing; in CI (``CI`` is set) they fail.

``FLUENCE_TEST_VERSION`` chooses the release. With pytest-xdist all workers share one control plane, which
belongs to the run: it is removed when the run ends, and by the next run if this one is killed. If the
programs are missing and cannot be built, the tests fail; with ``FLUENCE_TEST_SKIP_SANDBOX=1`` they are
skipped by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from fluence.errors import FluenceError
from fluence.kube.access import Access
from fluence.kube.client import Client
from fluence.kube.releases import DEFAULT, release
from fluence.kube.resource import NAMESPACES
from fluence.sandbox.auditor import ask
from fluence.sandbox.folders import locked, state_dir
from fluence.sandbox.images import can_install, find_busybox, install, write_busybox
from fluence.sandbox.machine import lacking, missing_packages
from fluence.sandbox.nodes import NodeKind
from fluence.sandbox.process import Process, boot_id, start_time
from fluence.sandbox.programs import CONTROL_PLANE, NODE, Progress, find_programs
from fluence.sandbox.sandbox import Sandbox, clear_stale

NODES = 10
REAL_NODES = 2
PREFIX = "test-"
REAL = "real-"


class Kube(msgspec.Struct, frozen=True):
    """What a test gets: the sandbox, and a namespace of its own."""

    sandbox: Sandbox
    namespace: str
    version: str

    def access(self) -> Access:
        return self.sandbox.access()

    def client(self, **options: Any) -> Client:
        return Client(self.access(), **options)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


def pytest_unconfigure(config: pytest.Config) -> None:
    """At the end of the run, remove the sandboxes; in the controller, not in a worker."""
    if not hasattr(config, "workerinput"):
        for kind in ("", REAL):
            Sandbox(_name(os.getpid(), kind)).down()


@pytest.fixture(scope="session")
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """The control plane of the run, with ten nodes of 32 cores, 128 GiB and 4 GPUs, and without
    kube-scheduler."""
    return _shared(request.config, "")


@pytest.fixture(scope="session")
def real_nodes(request: pytest.FixtureRequest) -> Sandbox:
    """Another control plane, with two nodes that run containers and have the image busybox, and a simulated
    one."""
    needs_real_nodes()
    return _shared(request.config, REAL)


@pytest.fixture
def kube(sandbox: Sandbox) -> Iterator[Kube]:
    """A namespace for one test. Afterwards it is deleted with everything in it."""
    with namespace_in(sandbox) as namespace:
        yield namespace


@pytest.fixture
def real_kube(real_nodes: Sandbox) -> Iterator[Kube]:
    """The same on nodes that run containers."""
    with namespace_in(real_nodes) as namespace:
        yield namespace


def needs_real_nodes() -> None:
    """If this machine cannot have real nodes, skip the test and say what is missing; fail in CI. If only
    Debian packages are missing and we may install them, they are installed."""
    needs_sandbox()
    packages = missing_packages()
    if packages and can_install():
        install(packages)
    missing = lacking(state_dir())
    if missing:
        skip_or_fail(f"needs real nodes: {'; '.join(missing)}")


def needs_package(program: str) -> None:
    """The same for the program of a Debian package with its name."""
    if shutil.which(program) is None and can_install():
        install([program])
    if shutil.which(program) is None:
        skip_or_fail(f"needs {program}: apt-get install {program}")


def skip_or_fail(reason: str, *, module: bool = False) -> NoReturn:
    """Skip a test that lacks something on this machine, given as ``needs WHAT: HOW``. In CI it fails unless
    FLUENCE_TEST_WITHOUT lists WHAT. ``module``: skip a whole module during its import."""
    accepted = os.environ.get("FLUENCE_TEST_WITHOUT", "").split(",")
    what = reason.removeprefix("needs ").partition(":")[0]
    if os.environ.get("CI") and what not in accepted:
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=module)


def needs_sandbox() -> None:
    """Skip the test if FLUENCE_TEST_SKIP_SANDBOX=1."""
    if os.environ.get("FLUENCE_TEST_SKIP_SANDBOX") == "1":
        skip_or_fail("needs a control plane: unset FLUENCE_TEST_SKIP_SANDBOX")


def _shared(config: pytest.Config, kind: str) -> Sandbox:
    """The sandbox of the run: one worker starts it, the others find it."""
    needs_sandbox()
    owner = os.getppid() if hasattr(config, "workerinput") else os.getpid()
    sandbox = Sandbox(_name(owner, kind))
    with locked(state_dir()):
        if sandbox.status() != "up":
            clear_stale(PREFIX)
            _start(sandbox, owner, config, real=kind == REAL)
    return sandbox


@contextlib.contextmanager
def namespace_in(sandbox: Sandbox) -> Iterator[Kube]:
    """A new namespace, which is deleted at the end."""
    namespace = f"t-{uuid.uuid4().hex[:10]}"
    version = os.environ.get("FLUENCE_TEST_VERSION", DEFAULT)

    async def create() -> None:
        async with Client(sandbox.access()) as client:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            await client.create(NAMESPACES, body)
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
            async with asyncio.timeout(120):
                while True:  # pods are refused until the account exists
                    try:
                        await client.request("GET", path)
                        return
                    except FluenceError:
                        await asyncio.sleep(0.05)

    async def delete() -> None:
        async with Client(sandbox.access()) as client:
            await client.delete(NAMESPACES, namespace)

    asyncio.run(create())
    yield Kube(sandbox, namespace, version)
    asyncio.run(delete())


@pytest.fixture
def audited(kube: Kube) -> Iterator[None]:
    """Ends the test with the audit: no pod in its namespace may have overcommitted a node or broken a
    rule."""
    yield
    report = asyncio.run(ask(kube.sandbox.at.folder))
    findings = [str(finding) for finding in report.findings if kube.namespace in str(finding)]
    assert not findings, findings


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "release: depends on the Kubernetes release; CI runs it against each")
    config.addinivalue_line("markers", "realnodes: needs nodes that run containers: root, cgroups, runc")


def _start(sandbox: Sandbox, owner: int, config: pytest.Config, *, real: bool) -> None:
    wanted = release(os.environ.get("FLUENCE_TEST_VERSION", DEFAULT))
    reported: set[str] = set()

    def report(progress: Progress) -> None:
        if progress.step not in reported:
            reported.add(progress.step)
            capture = config.pluginmanager.getplugin("capturemanager")
            with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
                print(f"\n{progress.step} …", flush=True)  # noqa: T201

    names = (*CONTROL_PLANE, "kwok", *(NODE if real else ()))
    programs = find_programs(wanted, names=names, report=report)
    sandbox.up(programs, wanted, real_nodes=REAL_NODES if real else 0)
    state = sandbox.require()
    # The sandbox belongs to the run, not to the worker that started it.
    state.owner = Process("owner", owner, start_time(owner) or "", [], boot_id())
    sandbox._save(state)
    sandbox.add_nodes([NodeKind(count=1 if real else NODES, racks=2, gpu=4)])
    if real:
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder, "busybox.tar")
            write_busybox(find_busybox(), archive)
            sandbox.load_image(archive)


def _name(owner: int, kind: str) -> str:
    version = os.environ.get("FLUENCE_TEST_VERSION", DEFAULT).replace(".", "")
    return f"{PREFIX}{kind}{version}-{owner}"
