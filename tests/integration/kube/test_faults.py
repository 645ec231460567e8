"""The reflector against a real API server through the fault proxy: whatever goes wrong, the cache equals a
fresh list."""

import asyncio
import random
import time
from collections.abc import Iterable

import pytest

from fluence.kube.client import Client
from fluence.kube.reflector import Reflector, Timing
from fluence.kube.resource import PODS
from fluence.model.pod import Pod
from fluence.sandbox.proxy import Proxy, Rule
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.unit.kube.serving import until

TIMING = Timing(
    base_s=0.05, cap_s=0.5, slow_s=0.5, watch_min_s=2, watch_max_s=3, idle_extra_s=1, list_timeout_s=10
)

# name, script, whether the fault needs a list to heal
FAULTS: dict[str, list[Rule]] = {
    "list 409": [Rule(path="/pods", status=409, times=2)],
    "429 with Retry-After": [Rule(path="/pods", status=429, retry_after=1, times=2)],
    "429 without": [Rule(path="/pods", status=429, times=2)],
    "500": [Rule(path="/pods", status=500, times=3)],
    "503": [Rule(path="/pods", status=503, times=3)],
    "a cut list": [Rule(verb="list", path="/pods", cut_after=900, times=2)],
    "latency": [Rule(path="/pods", latency_s=0.3, times=6)],
    "dropped watches": [Rule(verb="watch", path="/pods", drop_after=3, times=4)],
    "dropped at once": [Rule(verb="watch", path="/pods", drop_after=0, times=4)],
    "half-open watches": [Rule(verb="watch", path="/pods", hang_after=4, times=2)],
    "410 as an event": [Rule(verb="watch", path="/pods", gone_after=3, times=3)],
    "410 as an answer": [Rule(verb="watch", path="/pods", status=410, after=1, times=3)],
    "500 as an event": [Rule(verb="watch", path="/pods", error_after=2, times=3)],
    "duplicated events": [Rule(verb="watch", path="/pods", duplicate=True)],
    "delayed events": [Rule(verb="watch", path="/pods", delay_s=0.02)],
    "everything": [
        Rule(verb="watch", path="/pods", duplicate=True, drop_after=5, times=2),
        Rule(path="/pods", status=503, every=3, times=4),
        Rule(verb="watch", path="/pods", gone_after=2, times=1),
        Rule(verb="watch", path="/pods", hang_after=2, times=1),
    ],
}


def body(name: str, note: str = "") -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"note": note}},
        "spec": {
            "schedulerName": "nobody",
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "none"}],
        },
    }


async def churn(client: Client, namespace: str, rng: random.Random, names: list[str], *, steps: int) -> None:
    """Pods come, change and go, some under a name that was there before; ``names`` are those that are
    there."""
    for step in range(steps):
        what = rng.random()
        if what < 0.5 or not names:
            name = f"p{rng.randrange(12)}"
            if name not in names:
                await client.create(PODS, body(name, f"made in {step}\u0085"), namespace=namespace)
                names.append(name)
        elif what < 0.8:
            patch = {"metadata": {"annotations": {"note": f"{step}"}}}
            await client.patch(PODS, rng.choice(names), patch, namespace=namespace)
        else:
            name = names.pop(rng.randrange(len(names)))
            await client.delete(PODS, name, namespace=namespace, grace_s=0)


def content(pods: Iterable[Pod]) -> dict[str, str]:
    return {each.metadata.name: each.metadata.resource_version for each in pods}


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming list", "paged list"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_after_any_fault_the_cache_equals_a_fresh_list(kube: Kube, fault: str, streaming: bool) -> None:
    rules = [Rule(**{name: getattr(each, name) for name in Rule.__struct_fields__}) for each in FAULTS[fault]]
    rng = random.Random(fault)
    told: dict[str, str] = {}
    began = time.monotonic()

    def hear(old: Pod | None, new: Pod | None) -> None:
        if old is not None:
            del told[old.metadata.name]
        if new is not None:
            told[new.metadata.name] = new.metadata.resource_version

    async with kube.client() as direct, Proxy(kube.access(), rules) as proxy, Client(proxy.access) as client:
        names: list[str] = []
        await churn(direct, kube.namespace, rng, names, steps=12)
        reflector = Reflector(
            client,
            PODS,
            namespace=kube.namespace,
            timing=TIMING,
            rng=rng,
            streaming_list=streaming,
            page_size=4,
        )
        reflector.store.on_change(hear)
        task = asyncio.create_task(reflector.run())
        try:
            await churn(direct, kube.namespace, rng, names, steps=25)
            await eventually(reflector.synced.is_set, what="it has listed")

            async def known() -> tuple[dict[str, str], ...]:
                fresh = await direct.list(PODS, namespace=kube.namespace)
                return content(fresh.items or ()), content(reflector.store), dict(told)

            await eventually(
                known,
                lambda seen: seen[0] == seen[1] == seen[2],
                what="the cache, and what was told of it, equal a fresh list",
                pause_s=0.1,
            )
            assert reflector.store.handler_errors == 0
            # Bounded: some tries per fault, the pages of its lists, and a watch for every two seconds that
            # the machine took; never a hot loop.
            assert proxy.count() <= 60 + (time.monotonic() - began) / TIMING.watch_min_s, proxy.seen
        finally:
            task.cancel()
            await asyncio.wait({task})


@pytest.mark.parametrize("part", ["kube-apiserver", "etcd"])
async def test_a_restarted_server_is_found_again(kube: Kube, part: str, own_sandbox: Kube) -> None:
    """In a sandbox of its own: others share the run's."""
    async with own_sandbox.client() as client:
        await client.create(PODS, body("before"), namespace=own_sandbox.namespace)
        reflector = Reflector(client, PODS, namespace=own_sandbox.namespace, timing=TIMING)
        task = asyncio.create_task(reflector.run())
        try:
            await until(reflector.synced.is_set)
            await asyncio.to_thread(own_sandbox.sandbox.restart, part)
            await client.create(PODS, body("after"), namespace=own_sandbox.namespace)
            await until(lambda: reflector.store.get("after", own_sandbox.namespace))
            assert reflector.store.get("before", own_sandbox.namespace)
        finally:
            task.cancel()
            await asyncio.wait({task})
            for name in ("before", "after"):
                await client.delete(PODS, name, namespace=own_sandbox.namespace, grace_s=0)


async def test_a_pod_of_a_megabyte_and_odd_characters_is_held(kube: Kube) -> None:
    note = "\u0085\u2028\u0000"[:2] + "x" * 240_000
    async with kube.client() as client:
        await client.create(PODS, body("odd", note), namespace=kube.namespace)
        reflector = Reflector(client, PODS, namespace=kube.namespace, timing=TIMING)
        task = asyncio.create_task(reflector.run())
        try:
            await until(reflector.synced.is_set)
            found = reflector.store.get("odd", kube.namespace)
            assert found is not None
            assert found.annotations["note"] == note
        finally:
            task.cancel()
            await asyncio.wait({task})
