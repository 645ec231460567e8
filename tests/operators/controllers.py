"""Controllers: a real controller beside a control plane, with its kind and its webhooks installed.

It runs outside the cluster, so the server calls its webhooks at a port of this machine.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from fluence.kube.client import Client
from fluence.kube.errors import AlreadyExists
from fluence.kube.gangs import discover_operators
from fluence.kube.resource import Json, Resource
from fluence.sandbox.certs import Authority
from fluence.sandbox.sandbox import Sandbox
from tests.eventually import eventually
from tests.integration.live.replica import free_port
from tests.operators.programs import CRDS, PATCHES, WEBHOOKS, Operator

_CRDS: Resource[Json] = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    dict,
    namespaced=False,
)


@contextlib.asynccontextmanager
async def running(operator: Operator, sandbox: Sandbox, client: Client, folder: Path) -> AsyncIterator[None]:
    """The kind is served, the webhooks are called, and the controller works. The kind stays: the server's
    garbage collector needs half a minute to learn of a new one."""
    folder.mkdir()
    for crd in json.loads((operator.folder / CRDS).read_text()):
        with contextlib.suppress(AlreadyExists):  # from a test before this one
            await client.create(_CRDS, crd)

    async def served() -> bool:
        return any(each.kind == operator.kind for each in await discover_operators(client))

    await eventually(served, True, what=f"{operator.kind} is served")
    authority, port = Authority(operator.name), free_port()
    hooks: list[dict[str, Any]] = []
    command = [str(operator.program), *operator.arguments]
    if operator.webhooks:
        hooks = list(_webhooks(operator, port, authority.pem))
        command += ["--config", str(_configure(operator, port, authority, folder))]
    env = {**os.environ, "KUBECONFIG": str(sandbox.at.kubeconfig())}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        for hook in hooks:
            for each in hook["webhooks"]:
                await _answers(each["clientConfig"]["url"], authority.pem, folder / "log")
        for hook in hooks:
            await client.create(_configurations(hook["kind"]), hook)
        yield
        assert process.poll() is None, f"{operator.name} has ended: see {folder}/log"
    finally:
        for hook in hooks:
            await client.delete(_configurations(hook["kind"]), hook["metadata"]["name"])
        process.terminate()
        process.wait()


def _configure(operator: Operator, port: int, authority: Authority, folder: Path) -> Path:
    """The settings of a controller that serves webhooks, and its certificate."""
    for name, content in zip(("tls.crt", "tls.key"), authority.server("localhost"), strict=True):
        (folder / name).write_bytes(content)
    settings = {
        "apiVersion": f"config.{operator.name}.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


def _configurations(kind: str) -> Resource[Json]:
    plural = f"{kind.lower()}s"
    return Resource("admissionregistration.k8s.io", "v1", plural, kind, dict, namespaced=False)


def _webhooks(operator: Operator, port: int, authority: bytes) -> Iterator[dict[str, Any]]:
    """The configurations, patched as the project does it for an installation: those for pods are called only
    for its own."""
    found = yaml.safe_load_all((operator.folder / WEBHOOKS).read_text())
    for configuration, name in zip(found, PATCHES, strict=True):
        for patch in yaml.safe_load((operator.folder / name).read_text()):
            assert patch["op"] == "replace"
            configuration["webhooks"][int(patch["path"].rpartition("/")[2])] = patch["value"]
        for hook in configuration["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            bundle = base64.b64encode(authority).decode()
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
        configuration["metadata"]["name"] = f"{operator.name}-{name.partition('-')[0]}"
        yield configuration


async def _answers(url: str, authority: bytes, log: Path) -> None:
    """Wait until a webhook is there: it refuses what is not a review."""
    trusted = ssl.create_default_context(cadata=authority.decode())

    async def status() -> int:
        try:
            async with aiohttp.ClientSession() as session, session.post(url, ssl=trusted) as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def there() -> bool:
        return await status() not in (0, 404)

    await eventually(there, True, what=f"{url} answers; see {log}")
