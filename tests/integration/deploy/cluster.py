"""A cluster whose nodes run containers, with Fluence's image on them, and Fluence installed by its chart."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fluence.kube.releases import release
from fluence.sandbox.auditor import ask
from fluence.sandbox.images import find_busybox, write_busybox
from fluence.sandbox.nodes import NodeKind
from fluence.sandbox.programs import CONTROL_PLANE, NODE, find_programs
from fluence.sandbox.sandbox import Sandbox
from fluence.sandbox.testing import PREFIX, needs_real_nodes
from tests.eventually import wait_until
from tests.integration.conftest import VERSION
from tests.integration.deploy.helm import HelmUser

T = TypeVar("T")
SPACE = "fluence-system"
SOON_S = 120.0


@contextlib.contextmanager
def real_cluster(name: str, image: Path, folder: Path, *, simulated: int = 0) -> Iterator[Sandbox]:
    """Two real nodes with Fluence's image and busybox on them, and kube-scheduler beside."""
    needs_real_nodes()
    found, wanted = Sandbox(f"{PREFIX}{name}-{os.getpid()}"), release(VERSION)
    names = (*CONTROL_PLANE, "kwok", *NODE)
    programs = find_programs(wanted, names=names, report=lambda progress: None)
    found.up(programs, wanted, scheduler=True, real_nodes=2, owned=True)
    try:
        if simulated:
            found.add_nodes([NodeKind(count=simulated)])
        busybox = folder / "busybox.tar"
        write_busybox(find_busybox(), busybox)
        for archive in (image, busybox):
            found.load_image(archive)
        yield found
    finally:
        found.down()


def installed(box: Sandbox, folder: Path, *, values: Mapping[str, Any] | None = None) -> HelmUser:
    """Somebody who has installed Fluence by helm, where pod security is restricted."""
    user = HelmUser(box, SPACE, VERSION, folder)
    user.kubectl("create", "namespace", SPACE)
    user.kubectl("label", "namespace", SPACE, "pod-security.kubernetes.io/enforce=restricted")
    more = ("--set", "view.apiService=true", "--wait", "--timeout", "240s")
    user.install("fluence", *more, values=values)
    return user


def until(look: Callable[[], T], what: str, wanted: Callable[[T], Any] | T = bool) -> T:
    return wait_until(look, wanted, what=what, timeout_s=SOON_S, pause_s=0.5)


def logged(user: HelmUser, *arguments: str, wanted: Callable[[str], Any] | str) -> str:
    """What containers have printed. The runtime may write the last line of a log only after the container
    is seen to have ended."""
    return until(lambda: user.kubectl("logs", *arguments), f"the log of {' '.join(arguments)}", wanted)


def pods(user: HelmUser, selector: str) -> list[dict[str, Any]]:
    return user.items("pods", "--selector", selector)


def schedulers(user: HelmUser) -> list[dict[str, Any]]:
    """The pods of the installation."""
    return pods(user, "app.kubernetes.io/component=scheduler")


def findings(box: Sandbox) -> list[str]:
    """Of the audit of everything that ever happened on this cluster."""
    report = asyncio.run(ask(box.at.folder))
    return [str(each) for each in report.findings]
