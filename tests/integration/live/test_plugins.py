"""The policy of docs/api.md, as it stands there, decides on a real control plane; whatif asks as it would."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from fluence.kube.resource import NODES
from fluence.sandbox.proxy import Proxy
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.live.replica import Replica
from tests.integration.schedule.field import Field, field

PAGE = Path(__file__).parents[3] / "docs" / "api.md"
LABEL = "example.com/temperature"
REFERENCE = "coolest:coolest"
FUNCTION_LINES = 5


def documented_policy() -> str:
    (module,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    function = module.partition("def ")[2].partition("\n\n")[0]
    assert len(function.splitlines()) == FUNCTION_LINES
    return str(module)


@contextlib.asynccontextmanager
async def running(f: Field, folder: Path, *flags: str) -> AsyncIterator[Replica]:
    """A scheduler in a process of its own, with the documented policy on its path."""
    async with Proxy(f.kube.access()) as proxy:
        replica = Replica(f, folder, proxy.access, "--queue-policy", "easy", *flags)
        (folder / "site" / "coolest.py").write_text(documented_policy())
        try:
            await replica.start()
            await replica.leads()
            yield replica
        finally:
            await replica.end()


async def heat(f: Field, *temperatures: int) -> None:
    for name, temperature in zip(f.nodes, temperatures, strict=True):
        await f.client.patch(NODES, name, {"metadata": {"labels": {LABEL: str(temperature)}}})


async def test_the_documented_policy_places_pods_and_follows_labels(kube: Kube, tmp_path: Path) -> None:
    async with field(kube, 3) as f:
        await heat(f, 70, 20, 60)
        async with running(f, tmp_path, "--match-policy", REFERENCE):
            await f.add(f.pod("first"))
            await f.until_bound(["first"])
            assert (await f.homes())["first"] == f.nodes[1]
            await heat(f, 10, 20, 60)
            numbers = itertools.count()

            async def home_of_another() -> str | None:
                name = f"second-{next(numbers)}"
                await f.add(f.pod(name))
                pods = await f.until_bound([name])
                await f.end(name)
                return pods[name].spec.node_name

            # The label comes by a watch of its own, before a pod or after it.
            await eventually(home_of_another, f.nodes[0], what="it follows the label")


async def test_a_policy_that_fails_is_logged_and_counted_and_pods_start(kube: Kube, tmp_path: Path) -> None:
    async with field(kube, 2) as f:
        await heat(f, 70, 20)
        await f.client.patch(NODES, f.nodes[0], {"metadata": {"labels": {LABEL: "hot"}}})
        async with running(f, tmp_path, "--match-policy", REFERENCE) as replica:
            await f.add(f.pod("p"))
            await f.until_bound(["p"])
            await replica.says("plug-in failed")
            assert "invalid literal for int()" in replica.said
            assert 'fluence_faults_total{kind="plugin"}' in (await replica.ask("/metrics"))[1]


async def test_whatif_imports_what_the_lease_names_only_if_it_may(kube: Kube, tmp_path: Path) -> None:
    async with field(kube, 1) as f, running(f, tmp_path, "--match-policy", REFERENCE) as replica:
        manifest, settings = tmp_path / "pod.yaml", tmp_path / "settings.yaml"
        manifest.write_text(yaml.safe_dump(f.pod("new")))
        settings.write_text(f"scheduler-name: {f.name}\nlease-namespace: {f.namespace}\n")
        words = [sys.executable, "-m", "fluence.cli", "whatif", str(manifest), "--live", "-n", f.namespace]
        words += ["--kubeconfig", str(kube.sandbox.at.kubeconfig()), "--config", str(settings)]
        environ = {**os.environ, "PYTHONPATH": str(replica.folder / "site")}

        async def ask(*more: str) -> subprocess.CompletedProcess[str]:
            return await asyncio.to_thread(
                subprocess.run, [*words, *more], capture_output=True, text=True, env=environ, timeout=300
            )

        refused, allowed = await ask(), await ask("--plugin", REFERENCE)
        assert "the scheduler's match-policy: not known here" in refused.stderr, refused
        assert (allowed.returncode, allowed.stderr) == (0, ""), allowed
