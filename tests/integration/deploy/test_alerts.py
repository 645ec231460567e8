"""The chart's alerts in a real Prometheus, beside a scheduler in which each fault was made; the dashboard's
queries on the same metrics; and the runbook, which has a section for each alert."""

from __future__ import annotations

import json
import re
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml
from deploy.helm.manifests import CHART, DEPLOY, template
from deploy.helm.values import ALERTS

from fluence import names
from fluence.kube.resource import LEASES
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.live.replica import LEASE, Replica, lease_of
from tests.integration.schedule.field import Field, field
from tests.prometheus import Prometheus, check_rules

JOB = "fluence-scheduler"
# So that a test need not wait for an hour. The conditions are those of the chart.
AT_ONCE: dict[str, dict[str, Any]] = {
    **{name: {"for": "0s"} for name in ALERTS},
    "FluenceNothingScheduled": {"for": "0s", "threshold": "5s"},
    "FluenceQueueAge": {"for": "0s", "threshold": 5},
    "FluencePromisesBroken": {"for": "0s", "threshold": 0},
    "FluenceSlowCycles": {"for": "0s", "threshold": "1.0"},
}
# A fault of the scheduler's own: one pod that it cannot handle.
POISON = """
from fluence.schedule.cycle import SchedulingCycle
_observe = SchedulingCycle.observe

def observe(self, event, now):
    if getattr(getattr(getattr(event, "new", None), "metadata", None), "name", "") == "poison":
        raise RuntimeError("made by the test")
    _observe(self, event, now)

SchedulingCycle.observe = observe
"""
DEVICES = "resources:\n  - {type: licence, name: solver, count: 4}\n"


def rules(alerts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The rules of the chart with some values."""
    arguments = ["--set", "prometheusRule.enabled=true", "--show-only", "templates/prometheusrule.yaml"]
    for name, values in alerts.items():
        for key, value in values.items():
            flag = "--set-string" if isinstance(value, str) else "--set"
            arguments += [flag, f"prometheusRule.alerts.{name}.{key}={str(value).lower()}"]
    document: dict[str, Any] = yaml.safe_load(template(*arguments))
    spec: dict[str, Any] = document["spec"]
    return spec


def named(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in spec["groups"] for rule in group["rules"]}


def test_every_alert_is_valid_and_has_a_section_in_the_runbook() -> None:
    alerts = named(spec := rules({}))
    check_rules(spec)
    assert tuple(alerts) == ALERTS
    runbook = (DEPLOY.parent / "docs" / "runbook.md").read_text()
    assert re.findall(r"^## (\w+)$", runbook, re.M) == list(ALERTS)
    assert {rule["annotations"]["runbook_url"] for rule in alerts.values()} == {
        f"docs/runbook.md#{name.lower()}" for name in ALERTS
    }
    assert not named(rules({"FluenceDown": {"enabled": False}})).keys() >= {"FluenceDown"}


def test_the_dashboard_is_one_that_the_sidecar_finds() -> None:
    rendered = yaml.safe_load(
        template("--set", "dashboard.enabled=true", "--show-only", "templates/dashboard.yaml")
    )
    assert rendered["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(rendered["data"]["fluence.json"]) == dashboard()


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((CHART / "dashboards" / "fluence.json").read_text())
    return document


async def test_each_alert_fires_when_its_fault_was_made(kube: Kube, tmp_path: Path) -> None:
    database, devices = tmp_path / "history.db", tmp_path / "resources.yaml"
    devices.write_text(DEVICES)
    flags = ("--database-url", str(database), "--resources", str(devices))
    async with field(kube, 1, cpu=1) as f, f.proxy:
        replica = Replica(f, tmp_path / "replica", f.proxy.access, *flags)
        with (replica.folder / "site" / "slow_policy.py").open("a") as module:
            module.write(POISON)
        folder = tmp_path / "prometheus"
        folder.mkdir()
        try:
            await replica.start()
            await replica.leads()
            targets = {JOB: f"127.0.0.1:{replica.metrics}"}
            async with Prometheus.run(folder, rules(AT_ONCE), targets) as prometheus:
                up = f'up{{job="{JOB}"}} == 1'
                await eventually(lambda: prometheus.query(up), what="it is read", timeout_s=120)
                assert await eventually(prometheus.firing, set(), what="nothing is wrong") == set()
                await _make_faults(f, replica, prometheus, database, devices)
                await _every_panel_answers(prometheus)
                await replica.end()
                await prometheus.fires("FluenceDown")
                await _give_the_lease_to_another(f)
                await replica.start()
                await prometheus.fires("FluenceNoLeader")
        finally:
            await replica.end()


async def _make_faults(
    f: Field, replica: Replica, prometheus: Prometheus, database: Path, devices: Path
) -> None:
    # The first runs past its limit, which nothing enforces: the promise to the second is broken.
    limit = {names.DURATION: "4s"}
    await f.add(f.pod("first", annotations=limit))
    await f.until_bound(["first"])
    await f.add(f.pod("second", annotations=limit))
    await f.until_told("second")
    for alert in ("FluencePromisesBroken", "FluenceNothingScheduled", "FluenceQueueAge"):
        await prometheus.fires(alert)
    replica.make_slow(3)
    await f.add(f.pod("third"))
    await prometheus.fires("FluenceSlowCycles")
    await f.add(f.pod("poison"))
    await prometheus.fires("FluenceQuarantine")
    devices.write_text("resources: 1\n")
    await prometheus.fires("FluenceResourcesInvalid")
    held = sqlite3.connect(database, isolation_level=None)
    try:
        held.execute("BEGIN EXCLUSIVE")
        await f.add(f.pod("fourth"))
        await prometheus.fires("FluenceHistoryBehind")
    finally:
        held.close()


async def _every_panel_answers(prometheus: Prometheus) -> None:
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":  # Grafana reads `label_values(SERIES, LABEL)` as these labels
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
            assert asked is not None, variable["query"]
            values = {each["metric"].get(asked[2]) for each in await prometheus.query(asked[1])}
            assert values == {JOB}, f"{variable['name']}: {values}"
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$job", JOB).replace("$__rate_interval", "1m")
            series = await prometheus.query(expression)
            assert series, f"{panel['title']}: no answer to {expression}"


async def _give_the_lease_to_another(f: Field) -> None:
    lease = await lease_of(f)
    assert lease is not None
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    spec = {"holderIdentity": "somebody-else", "leaseDurationSeconds": 600, "renewTime": now}
    body = msgspec.json.encode({"spec": spec})
    path = LEASES.path(LEASE, namespace=f.namespace)
    await f.client.request("PATCH", path, body=body, content_type="application/merge-patch+json")
