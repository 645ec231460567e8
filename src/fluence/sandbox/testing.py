"""Testing: pytest fixtures that give each test a real control plane: one per run, a clean namespace per test.

    pytest_plugins = ["fluence.sandbox.testing"]

    async def test_binds(kube: Kube) -> None:
        async with kube.client() as client:
            await client.create(PODS, pod, namespace=kube.namespace)

``real_nodes`` and ``real_kube`` are the same with two nodes that run containers, and the image busybox on
them. Tests that use them are marked ``realnodes``. Where the machine cannot have them they are skipped, and
what is missing is named; in CI (``CI`` is set) that is a failure.

``FLUENCE_TEST_VERSION`` chooses the release. Under pytest-xdist all workers share one control plane, which
belongs to the run: it goes when the run ends, and the next run clears it away if this one is killed. Where
the programs are neither there nor can be built, the tests fail; with ``FLUENCE_TEST_SKIP_SANDBOX=1`` they
are skipped by name.
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
from fluence.kube.resource import NAMESPACES
from fluence.sandbox.auditor import ask
from fluence.sandbox.folders import locked, state_dir
from fluence.sandbox.gobuild import Progress
from fluence.sandbox.images import find_busybox, write_busybox
from fluence.sandbox.machine import lacking, missing_packages
from fluence.sandbox.nodes import NodeKind
from fluence.sandbox.packages import can_install, install
from fluence.sandbox.process import Process, boot_id, start_time
from fluence.sandbox.programs import find_programs
from fluence.sandbox.releases import CONTROL_PLANE, DEFAULT, NODE, release
from fluence.sandbox.sandbox import Sandbox, clear_stale

NODES = 10
REAL_NODES = 2
PREFIX = "test-"
REAL = "real-"


class Kube(msgspec.Struct, frozen=True):
    """What a test gets: the sandbox, and a namespace that nobody else uses."""

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
    """The end of the run: of the controller, not of a worker."""
    if not hasattr(config, "workerinput"):
        for kind in ("", REAL):
            Sandbox(_name(os.getpid(), kind)).down()


@pytest.fixture(scope="session")
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """The run's control plane, with ten nodes of 32 cores, 128 GiB and 4 GPUs, and no kube-scheduler."""
    return _shared(request.config, "")


@pytest.fixture(scope="session")
def real_nodes(request: pytest.FixtureRequest) -> Sandbox:
    """Another one, with two nodes that run containers, the image busybox on them, and a simulated one."""
    needs_real_nodes()
    return _shared(request.config, REAL)


@pytest.fixture
def kube(sandbox: Sandbox) -> Iterator[Kube]:
    """A namespace of the test's own; it is deleted, with all that is in it, afterwards."""
    with _namespace(sandbox) as found:
        yield found


@pytest.fixture
def real_kube(real_nodes: Sandbox) -> Iterator[Kube]:
    """The same, where containers run."""
    with _namespace(real_nodes) as found:
        yield found


def needs_real_nodes() -> None:
    """Skip the test, and say what is missing, where this machine cannot have real nodes; fail in CI. Debian
    packages are installed if only they are missing and we may."""
    needs_sandbox()
    packages = missing_packages()
    if packages and can_install():
        install(packages)
    missing = lacking(state_dir())
    if missing:
        skip_or_fail(f"needs real nodes: {'; '.join(missing)}")


def needs_package(program: str) -> None:
    """The same for a program of a Debian package of its name."""
    if shutil.which(program) is None and can_install():
        install([program])
    if shutil.which(program) is None:
        skip_or_fail(f"needs {program}: apt-get install {program}")


def skip_or_fail(reason: str, *, module: bool = False) -> NoReturn:
    """What this machine lacks for a test, as ``needs WHAT: HOW``: it is skipped by name, and CI refuses that
    unless FLUENCE_TEST_WITHOUT lists WHAT. ``module``: so is all of a module that is being imported."""
    accepted = os.environ.get("FLUENCE_TEST_WITHOUT", "").split(",")
    what = reason.removeprefix("needs ").partition(":")[0]
    if os.environ.get("CI") and what not in accepted:
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=module)


def needs_sandbox() -> None:
    """Skip the test where FLUENCE_TEST_SKIP_SANDBOX=1 says that there is to be no control plane."""
    if os.environ.get("FLUENCE_TEST_SKIP_SANDBOX") == "1":
        skip_or_fail("needs a control plane: unset FLUENCE_TEST_SKIP_SANDBOX")


def _shared(config: pytest.Config, kind: str) -> Sandbox:
    """The sandbox of the run: one worker starts it, the others find it."""
    needs_sandbox()
    owner = os.getppid() if hasattr(config, "workerinput") else os.getpid()
    found = Sandbox(_name(owner, kind))
    with locked(state_dir()):
        if found.status() != "up":
            clear_stale(PREFIX)
            _start(found, owner, config, real=kind == REAL)
    return found


@contextlib.contextmanager
def _namespace(sandbox: Sandbox) -> Iterator[Kube]:
    namespace = f"t-{uuid.uuid4().hex[:10]}"
    version = os.environ.get("FLUENCE_TEST_VERSION", DEFAULT)

    async def create() -> None:
        async with Client(sandbox.access()) as client:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            await client.create(NAMESPACES, body)
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
            async with asyncio.timeout(30):
                while True:  # pods are refused until the account is there
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
    """Ends the test with the audit: nothing in its namespace may have overbooked a node or broken a rule."""
    yield
    report = asyncio.run(ask(kube.sandbox.at.folder))
    found = [str(each) for each in report.findings if kube.namespace in str(each)]
    assert not found, found


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "release: depends on the Kubernetes release; CI runs it against each")
    config.addinivalue_line("markers", "realnodes: needs nodes that run containers: root, cgroups, runc")


def _start(found: Sandbox, owner: int, config: pytest.Config, *, real: bool) -> None:
    wanted = release(os.environ.get("FLUENCE_TEST_VERSION", DEFAULT))
    told: set[str] = set()

    def report(progress: Progress) -> None:
        if progress.step not in told:
            told.add(progress.step)
            capture = config.pluginmanager.getplugin("capturemanager")
            with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
                print(f"\n{progress.step} …", flush=True)  # noqa: T201

    names = (*CONTROL_PLANE, "kwok", *(NODE if real else ()))
    programs = find_programs(wanted, names=names, report=report)
    found.up(programs, wanted, real_nodes=REAL_NODES if real else 0)
    state = found.require()
    # The sandbox belongs to the run, not to the worker that happened to start it.
    state.owner = Process("owner", owner, start_time(owner) or "", [], boot_id())
    found._save(state)
    found.add_nodes([NodeKind(count=1 if real else NODES, racks=2, gpu=4)])
    if real:
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder, "busybox.tar")
            write_busybox(find_busybox(), archive)
            found.load_image(archive)


def _name(owner: int, kind: str) -> str:
    version = os.environ.get("FLUENCE_TEST_VERSION", DEFAULT).replace(".", "")
    return f"{PREFIX}{kind}{version}-{owner}"
