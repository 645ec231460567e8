"""Who may read metrics that are on the network: a real server's TokenReview and SubjectAccessReview."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml
from deploy.helm.manifests import template

from fluence.kube.client import Client
from fluence.kube.reviews import Reviews
from fluence.sandbox.proxy import Proxy
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.live.replica import SOON_S, Replica
from tests.integration.rights import resource_of
from tests.integration.schedule.field import field


def roles() -> dict[str, dict[str, Any]]:
    """The ClusterRoles of the chart when its metrics are on the network."""
    text = template("--set", "settings.metrics-address=0.0.0.0:10452", "--show-only", "templates/rbac.yaml")
    return {
        each["metadata"]["name"]: each
        for each in yaml.safe_load_all(text)
        if each is not None and each["kind"] == "ClusterRole"
    }


def named(name: str, rules: list[Any], account: str, namespace: str) -> list[dict[str, Any]]:
    """A role of the test's own, and who has it."""
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        },
    ]


@contextlib.asynccontextmanager
async def granted(client: Client, bodies: list[dict[str, Any]]) -> AsyncIterator[None]:
    for body in bodies:
        await apply(client, body)
    try:
        yield
    finally:
        for body in bodies:
            await client.delete(resource_of(body), body["metadata"]["name"])


async def apply(client: Client, body: dict[str, Any]) -> None:
    await client.apply(resource_of(body), body, namespace=body["metadata"].get("namespace"), manager="test")


async def token(client: Client, namespace: str, name: str) -> str:
    """A new account's."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    await client.request("POST", path, body=msgspec.json.encode(account))
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await client.request("POST", f"{path}/{name}/token", body=msgspec.json.encode(asked))
    return str(msgspec.json.decode(answer)["status"]["token"])


@contextlib.asynccontextmanager
async def readers(kube: Kube, client: Client) -> AsyncIterator[tuple[str, str]]:
    """The token of one who may read, by the role in the chart, and of one who may not."""
    rules = roles()["fluence-metrics-reader"]["rules"]
    async with granted(client, named(f"reader-{kube.namespace}", rules, "reader", kube.namespace)):
        yield await token(client, kube.namespace, "reader"), await token(client, kube.namespace, "other")


async def test_metrics_on_the_network_are_for_those_who_may_read_them(kube: Kube, tmp_path: Path) -> None:
    async with (
        field(kube, 1) as f,
        readers(kube, f.client) as (reader, other),
        Proxy(kube.access()) as proxy,
        aiohttp.ClientSession() as session,
    ):
        replica = Replica(f, tmp_path, proxy.access)
        replica.flags += ["--metrics-address", f"0.0.0.0:{replica.metrics}"]
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE

        async def ask(said: str) -> tuple[int, str]:
            url = f"https://127.0.0.1:{replica.metrics}/metrics"
            async with session.get(url, headers={"Authorization": said}, ssl=tls) as answer:
                return answer.status, await answer.text()

        try:
            await replica.start()
            await replica.leads()
            asked = proxy.count("create", "tokenreviews")
            assert (await ask(""))[0] == 401
            assert proxy.count("create", "tokenreviews") == asked
            assert (await ask("Bearer made.up.token"))[0] == 401
            assert (await ask(f"Bearer {other}"))[0] == 403
            # The authorizer follows roles by a watch of its own; a refusal is kept a while.
            _, text = await eventually(
                lambda: ask(f"Bearer {reader}"), lambda said: said[0] == 200, what="the reader may", pause_s=1
            )
            assert 'leader_election_master_status{name="leader"} 1.0' in text
            asked = len(proxy.seen)
            assert (await ask(f"Bearer {reader}"))[0] == 200
            assert not [each for each in proxy.seen[asked:] if "reviews" in each.path], "it is remembered"
            assert (await replica.ask("/healthz")) == (200, "ok\n")
            assert reader not in replica.said and other not in replica.said
        finally:
            await replica.end()


async def test_an_account_may_ask_who_reads_by_the_rules_of_the_chart(kube: Kube) -> None:
    asking = ("authentication.k8s.io", "authorization.k8s.io")
    rules = [each for each in roles()["fluence-scheduler"]["rules"] if each["apiGroups"][0] in asking]
    space, account = kube.namespace, "asks"
    access = msgspec.structs.replace(kube.access(), impersonate=f"system:serviceaccount:{space}:{account}")
    async with kube.client() as admin, readers(kube, admin) as (reader, _), Client(access) as client:
        assert await Reviews(client, path="/metrics")(reader) == 503, "without the right to ask"
        async with granted(admin, named(f"asks-{kube.namespace}", rules, account, space)):
            await eventually(lambda: Reviews(client, path="/metrics")(reader), 200, timeout_s=SOON_S)
            assert await Reviews(client, path="/secret")(reader) == 403
            assert await Reviews(client, path="/metrics")("x" * 100_000) == 401
