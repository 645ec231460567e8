"""What the match service of the chart sees of a cluster: by its own rights, queues and their quotas, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from fluence.kube.client import Client
from fluence.kube.listing import list_cluster
from fluence.match.request import Operation
from fluence.sandbox.testing import Kube
from fluence.schedule.settings import SchedulerSettings
from fluence.service.engine import Match, Refusal
from fluence.service.live_engine import LiveEngine
from tests.integration.rights import resource_of, until_allowed
from tests.integration.schedule.field import field
from tests.integration.schedule.test_queues import installed, put, queue
from tests.unit.service.graphs import slots_only

_TEMPLATE = Path(__file__).parents[3] / "deploy" / "helm" / "fluence" / "templates" / "service.yaml"
_GROUP = "rbac.authorization.k8s.io"
_USER = "match-service"


def chart_rules() -> list[dict[str, Any]]:
    """The rules of the template's ClusterRole, in which nothing is filled in."""
    (role,) = [part for part in _TEMPLATE.read_text().split("\n---\n") if "kind: ClusterRole\n" in part]
    rules: list[dict[str, Any]] = yaml.safe_load(role[role.index("rules:") :])["rules"]
    return rules


def asked(pods: int, cores: int, queue_: str) -> str:
    found = json.loads(slots_only(pods, cores))
    found["attributes"]["system"]["queue"] = queue_
    return json.dumps(found)


async def test_a_queue_and_its_quota_are_seen_by_the_charts_rights(own_sandbox: Kube) -> None:
    api, meta = f"{_GROUP}/v1", {"name": _USER}
    role: dict[str, object] = {
        "apiVersion": api,
        "kind": "ClusterRole",
        "metadata": meta,
        "rules": chart_rules(),
    }
    binding: dict[str, object] = {
        "apiVersion": api,
        "kind": "ClusterRoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": _USER},
        "subjects": [{"apiGroup": _GROUP, "kind": "User", "name": _USER}],
    }
    assert {verb for rule in chart_rules() for verb in rule["verbs"]} == {"list"}
    async with field(own_sandbox, 2, cpu=4) as f, installed(f.client):
        for body in (role, binding):
            await f.client.apply(resource_of(body), body, manager="test")
        try:
            await until_allowed(f.client, _USER, chart_rules())
            await put(f.client, queue("small", limit={"cpu": 2}))
            async with Client(replace(own_sandbox.access(), impersonate=_USER)) as ours:
                listing = await list_cluster(ours, None)
            assert not listing.notes
            assert [each.name for each in listing.queues] == ["small"]
            # The taint keeps pods of other tests away, which a request does not tolerate either.
            listing.nodes = [replace(node, spec=replace(node.spec, taints=None)) for node in listing.nodes]
            live = LiveEngine(lambda: listing, SchedulerSettings(), namespace=f.namespace)
            fits = live.match(Operation.ALLOCATE, asked(2, 1, "small"), job=-1, now=0)
            assert isinstance(fits, Match)
            over = live.match(Operation.ALLOCATE, asked(3, 1, "small"), job=-1, now=0)
            assert isinstance(over, Refusal)
            assert "small" in over.words
        finally:
            for body in (binding, role):
                await f.client.delete(resource_of(body), _USER)
