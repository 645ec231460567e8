"""The running cluster behind the service: what the scheduler would do, and nothing taken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from fluence.errors import InvalidInput, InvalidJobspec, NotFound
from fluence.kube.listing import ClusterListing
from fluence.match.request import Operation
from fluence.model.queue_documents import QueueObject
from fluence.sandbox.nodes import NodeKind, manifests
from fluence.schedule.settings import SchedulerSettings
from fluence.service.engine import Match, ReadOnly, Refusal
from fluence.service.live_engine import LiveEngine
from fluence.sim.cluster import EmbeddedCluster
from tests.unit.service.graphs import document, jobspec, slots_only
from tests.unit.sim.test_cluster import job


def engine(
    *documents: dict[str, Any],
    labels: Sequence[dict[str, str]] = (),
    queues: Sequence[QueueObject] = (),
    notes: Sequence[str] = (),
) -> LiveEngine:
    """Four nodes with four cores each, which have these labels, and on which these run."""
    nodes = manifests(NodeKind(count=4, cpu=4))
    for node, more in zip(nodes, labels, strict=False):
        node["metadata"]["labels"] |= more
    cluster = EmbeddedCluster(nodes)
    for each in documents:
        cluster.apply(each)
    cluster.settle()
    listing = ClusterListing(
        nodes=cluster.nodes,
        pods=list(cluster.pods.values()),
        owners=list(cluster._owners.values()),
        queues=list(queues),
        notes=list(notes),
        native=True,
    )
    return LiveEngine(lambda: listing, SchedulerSettings())


def match(live: LiveEngine, text: str, operation: Operation = Operation.ALLOCATE, **more: Any) -> Any:
    return live.match(operation, text, job=-1, now=0, **more)


def busy(count: int) -> dict[str, Any]:
    found = job("solver", count, cpu="4", command=("sleep", "3600"))
    found["metadata"]["annotations"]["fluence.flux-framework.org/duration"] = "1h"
    return found


def test_what_fits_says_where_and_takes_nothing() -> None:
    live = engine(busy(1))
    answers = [match(live, slots_only(3, 3), format_="jgf_verbose") for _ in range(2)]
    for found in answers:
        assert isinstance(found, Match)
        assert (found.job, found.reserved, len(found.shares)) == (-1, False, 3)
        assert all(share.amounts == {"core": 3} for share in found.shares)
    first, second = answers
    assert [share.name for share in first.shares] == [share.name for share in second.shares]
    nodes = json.loads(first.allocation)["graph"]["nodes"]
    names = {node["metadata"]["basename"] for node in nodes if node["metadata"]["type"] == "node"}
    assert names == {share.node_id for share in first.shares}


def test_a_node_above_the_slots_keeps_pods_apart() -> None:
    together = match(engine(), slots_only(2, 2))
    apart = match(engine(), jobspec(2, 2))
    assert len(together.shares) == 1
    assert len(apart.shares) == 2


def test_busy_later_and_impossible() -> None:
    live = engine(busy(3))
    now = match(live, slots_only(2, 4))
    assert isinstance(now, Refusal)
    assert now.verdict == "busy"
    assert "it would wait" in now.words
    later = match(live, slots_only(2, 4), Operation.ALLOCATE_OR_RESERVE)
    assert later.reserved
    assert later.at > 0
    never = match(live, slots_only(1, 64))
    assert (never.verdict, bool(never.words)) == ("impossible", True)
    assert isinstance(match(live, slots_only(2, 4), Operation.JUDGE), Match)
    assert live.explain(slots_only(2, 4), now=0).verdict == "wait"
    assert live.explain(slots_only(1, 1), now=0).verdict == "fits"


def constrained(text: str, **system: Any) -> str:
    found = json.loads(text)
    found["attributes"]["system"] |= system
    return json.dumps(found)


def homes(answer: Any) -> set[str]:
    assert isinstance(answer, Match), answer
    return {share.name for share in answer.shares}


def test_constraints_hold_for_the_nodes_of_the_cluster() -> None:
    live = engine(labels=[{"disk": "ssd"}, {"disk": "ssd"}, {"gpu": "a100"}])
    names = sorted(homes(match(live, jobspec(4, 1))))
    ssd = homes(match(live, constrained(jobspec(2, 1), constraints={"properties": ["disk"]})))
    assert len(ssd) == 2
    never = match(live, constrained(jobspec(3, 1), constraints={"properties": ["disk"]}))
    assert isinstance(never, Refusal)
    plain = homes(match(live, constrained(jobspec(2, 1), constraints={"properties": ["^disk"]})))
    assert not plain & ssd
    one = constrained(jobspec(1, 1), constraints={"hostlist": [names[2]]})
    assert homes(match(live, one)) == {names[2]}
    both = {"and": [{"hostlist": names[:3]}, {"not": [{"properties": ["disk"]}]}]}
    assert homes(match(live, constrained(jobspec(1, 1), constraints=both))) <= plain
    busy_there = match(live, constrained(slots_only(2, 4), constraints={"hostlist": [names[2]]}))
    assert isinstance(busy_there, Refusal)


def test_a_zone_above_the_nodes_keeps_pods_in_it() -> None:
    zones = [{"topology.kubernetes.io/zone": zone} for zone in "aabb"]
    live = engine(labels=zones)
    nodes = [{"type": "node", "count": 2, "with": json.loads(slots_only(1, 3))["resources"]}]
    text = document([{"type": "zone", "count": 1, "with": nodes}], 60)
    found = match(live, text)
    by_zone = [{"a": {"0", "1"}, "b": {"2", "3"}}[zone] for zone in "ab"]
    assert any({name[-1] for name in homes(found)} <= zone for zone in by_zone)
    nodes[0]["count"] = 3
    wide = document([{"type": "zone", "count": 1, "with": nodes}], 60)
    assert isinstance(match(live, wide), Refusal)
    assert len(homes(match(engine(), wide))) == 3  # without zones, the cluster is one


def test_a_queue_with_a_quota_counts() -> None:
    limits = {"apiVersion": "fluence.flux-framework.org/v1alpha1", "kind": "Queue"}
    body = {**limits, "metadata": {"name": "small", "uid": "u"}, "spec": {"limit": {"cpu": 2}}}
    live = engine(queues=[msgspec.convert(body, QueueObject)])
    assert isinstance(match(live, constrained(slots_only(1, 2), queue="small")), Match)
    over = match(live, constrained(slots_only(1, 3), queue="small"))
    assert isinstance(over, Refusal)
    assert "small" in over.words


def test_what_could_not_be_read_is_said() -> None:
    live = engine(busy(4), notes=["queues cannot be read: forbidden"])
    assert "note: queues cannot be read: forbidden" in match(live, slots_only(1, 1)).words
    assert "queues cannot be read" in live.explain(slots_only(1, 1), now=0).nearest


def test_jobs_and_graph_of_the_cluster() -> None:
    live = engine(busy(2))
    (entry,) = live.jobs()
    assert (entry.name, entry.size) == ("default/solver", 2)
    assert live.job(entry.job, "")[0].name == "default/solver"
    found = live.find("status=up", now=0, format_="jgf")
    nodes = {share.name for share in match(live, slots_only(2, 4)).shares}
    assert nodes <= {path.rpartition("/")[2] for path in found.paths}
    assert json.loads(live.render("jgf"))["graph"]["nodes"]
    types = {each.type: each.count for each in live.statistics().types}
    assert types["node"] == 4


def test_nothing_can_be_changed() -> None:
    live = engine()
    for call in (
        lambda: live.grow("{}"),
        lambda: live.shrink(["/cluster0"]),
        lambda: live.set_status("/cluster0", up=False),
        lambda: live.partial_cancel(1, "", "jgf"),
        lambda: live.update(1, "", "jgf", at=0, duration=1, now=0, name="", format_=""),
    ):
        with pytest.raises(ReadOnly):
            call()
    with pytest.raises(NotFound):
        live.cancel(1)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (jobspec(2, 1, slots=2), "count"),
        (document([{"type": "core", "count": 1}], 0), "resources"),
        (document([{"type": "rack", "count": 2, "with": []}], 0), "resources"),
        (slots_only(1_000_000, 1), "count"),
        (jobspec(1, 1, whole=True), r"resources\[0\].exclusive"),
        (document([{"type": "zone", "count": 2, "with": []}], 0), r"resources\[0\].count"),
        (
            slots_only(1, 1)
            .replace('"core"', '"memory"')
            .replace('"count": 1}]', '"count": 1, "unit": "X"}]'),
            "unit",
        ),
    ],
)
def test_what_cannot_be_asked_is_said(text: str, place: str) -> None:
    with pytest.raises(InvalidJobspec, match=place):
        match(engine(), text)


def test_other_formats_are_refused() -> None:
    with pytest.raises(InvalidInput, match="format"):
        match(engine(), slots_only(1, 1), format_="rv1")
