"""Whoever sees less of a cluster is told less of it, and nothing that is not so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluence import names
from fluence.doctor.diagnose import diagnose
from fluence.doctor.facts import ClusterFacts, EventReport, Installation, LeaseFacts, Replica, Seen
from fluence.doctor.finding import Check, Health, exit_code
from fluence.model.group import Group
from fluence.model.pod import Pod
from tests.unit.doctor.sample import HEALTHY, INSTALLED, LEASE, NOW, ago, pod

_NAMES = st.sampled_from(["fluence", "other"])
_PARTS = ("installations", "leases", "reports", "pods", "groups", "replicas")


@st.composite
def installations(draw: st.DrawFn) -> Installation:
    return replace(
        INSTALLED,
        namespace=draw(st.sampled_from(["fluence-system", "team"])),
        wanted=draw(st.integers(0, 2)),
        ready=draw(st.integers(0, 2)),
        scheduler_name=draw(_NAMES),
        lease=draw(st.booleans()),
        lease_key=draw(st.sampled_from(["fluence-system/fluence", "team/fluence"])),
        image=draw(st.sampled_from(["fluence:1", "fluence:2"])),
    )


@st.composite
def leases(draw: st.DrawFn) -> LeaseFacts:
    return replace(
        LEASE,
        namespace=draw(st.sampled_from(["fluence-system", "team"])),
        holder=draw(st.sampled_from(["", "a", "b"])),
        scheduler_name=draw(st.none() | _NAMES),
        renewed=ago(seconds=draw(st.sampled_from([1, 600]))),
        changed=draw(st.sampled_from([None, None, True, False])),
    )


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    return pod(
        draw(st.sampled_from("abcdef")),
        scheduler=draw(st.sampled_from(["fluence", "other", "default-scheduler"])),
        made=ago(minutes=draw(st.sampled_from([1, 100]))),
        node=draw(st.sampled_from([None, None, "n"])),
        gate=draw(st.sampled_from([None, None, *names.GATES, f"{names.PREFIX}/x", "theirs"])),
        labels=draw(st.sampled_from([None, {names.GROUP_LABEL: "g"}, {names.GROUP_LABEL: "g-producer"}])),
        annotations=draw(
            st.sampled_from(
                [None, {names.DURATION: "1h"}, {f"{names.PREFIX}/nonsense": "1"}, {names.GROUP_SIZE: "x"}]
            )
        ),
        told=draw(st.sampled_from(["", "no room."])),
    )


def unique(items: Any, *, by: Any) -> Any:
    return st.lists(items, max_size=4, unique_by=by).map(tuple).map(Seen)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterFacts:
    reports = st.builds(
        EventReport, st.sampled_from(["a", "b"]), st.integers(0, 3000).map(lambda s: ago(seconds=s))
    )
    replicas = st.builds(
        Replica, st.sampled_from(["s/a", "s/b"]), st.sampled_from(["fluence:1", "fluence:2"])
    )
    groups = st.sampled_from([Group(namespace="ns", name="g", min_count=2)])
    return replace(
        HEALTHY,
        now=NOW,
        installations=draw(unique(installations(), by=lambda each: each.key)),
        leases=draw(unique(leases(), by=lambda each: each.key)),
        reports=draw(st.lists(reports, max_size=4).map(tuple).map(Seen)),
        pods=draw(unique(pods(), by=lambda each: each.key)),
        groups=draw(unique(groups, by=lambda each: each.key)),
        replicas=draw(unique(replicas, by=lambda each: each.key)),
    )


@given(clusters(), st.dictionaries(st.sampled_from(_PARTS), st.integers(0, 3)))
def test_who_sees_less_is_told_nothing_that_is_not_so(facts: ClusterFacts, hidden: dict[str, int]) -> None:
    """Of some kinds a few objects are still seen. Pods and groups are in one namespace: all or none."""
    few = {
        part: kept if part in ("installations", "leases", "reports") else 0 for part, kept in hidden.items()
    }
    parts = {part: Seen(getattr(facts, part).items[:kept], "forbidden") for part, kept in few.items()}
    full, partial = diagnose(facts), diagnose(replace(facts, **parts))
    wrong = {each.check for each in full if each.verdict is Health.WRONG}
    assert {each.check for each in partial if each.verdict is Health.WRONG} <= wrong
    for check in Check:
        verdicts = {each.verdict for each in partial if each.check is check}
        assert verdicts, check
        if verdicts == {Health.OK}:
            assert {each.verdict for each in full if each.check is check} <= {Health.OK}


@given(clusters())
def test_a_cluster_of_which_nothing_is_seen_is_never_called_right(facts: ClusterFacts) -> None:
    blind = replace(facts, **{part: Seen((), "forbidden") for part in _PARTS})
    assert exit_code(diagnose(blind)) == 2
