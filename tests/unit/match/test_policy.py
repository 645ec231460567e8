"""Names, strings and scores of policies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from fluence.errors import InvalidInput
from fluence.match import policy
from fluence.match.matcher import Matcher
from fluence.match.policy import MatchPolicy
from fluence.match.request import Placed
from tests.builders import Sample, cluster, jobspec, resource


def test_every_policy_of_fluxion_is_there() -> None:
    known = {"first", "firstnodex", "low", "lonode", "lonodex", "high", "hinode", "hinodex"}
    assert known | {"locality", "variation"} <= set(policy.names())
    for name in policy.names():
        assert policy.find(name).name == name


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("low", "policy=low"),
        ("high", "policy=high"),
        ("lonode", "policy=low node_centric=true"),
        ("hinode", "policy=high node_centric=true"),
        ("lonodex", "policy=low node_centric=true node_exclusive=true"),
        ("hinodex", "node_exclusive=true  node_centric=true policy=high stop_on_1_matches=false"),
        ("first", "policy=high node_centric=true stop_on_1_matches=true"),
        ("firstnodex", "policy=high node_centric=true node_exclusive=true stop_on_1_matches=true"),
    ],
)
def test_a_name_stands_for_a_string(name: str, spec: str) -> None:
    assert dataclasses.replace(policy.find(spec), name=name) == policy.find(name)


@pytest.mark.parametrize(
    ("spec", "cure"),
    [
        ("lowest", "choose one of"),
        ("", "choose one of"),
        ("policy=middle", "low or high"),
        ("policy=", "low or high"),
        ("node_centric=true", "say policy="),
        ("policy=low node_centric=yes", "true or false"),
        ("policy=low set_stop_on_1_matches=true", "is not a valid setting"),
        ("policy=low other", "is not a valid setting"),
        ("=low", "is not a valid setting"),
    ],
)
def test_another_string_is_refused_with_the_cure(spec: str, cure: str) -> None:
    with pytest.raises(InvalidInput, match=cure):
        policy.find(spec)


def test_scores_are_ids_and_the_node_adds_its_own() -> None:
    graph = cluster(nodes=2, cores=2).load()  # rows: cluster0, node0, core0, core1, node1, core0, core1
    low = policy.find("low")
    assert low.scores(graph).tolist() == [2, 2, 2, 3, 3, 2, 3]
    assert low.node_factor(graph)[[1, 4]].tolist() == [2 * 10_000 + 0, 3 * 10_000 + 3]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("0", 1),
        ("7", 8),
        (" 12", 13),
        ("3rd", 4),
        ("+5", 6),
        ("-1", 10000),
        ("10000", 10000),
        ("9999", 10000),
        ("", 10000),
        ("x", 10000),
        ("²", 10000),
        ("9" * 5000, 10000),
    ],
)
def test_variation_scores_by_the_performance_class(text: str, score: int) -> None:
    graph = cluster(nodes=1, cores=1).load()
    graph.set_property(1, "perf_class", text)
    assert policy.by_performance(graph).tolist() == [10_000, score, 10_000]


def hosts(matcher: Matcher, placed: object) -> list[str]:
    assert isinstance(placed, Placed)
    graph = matcher.graph
    return [graph.name[v] for v in placed.selection.vertices.tolist() if graph.type_name(v) == "node"]


def test_variation_takes_the_best_class_and_follows_a_change() -> None:
    sample = cluster(nodes=3, cores=1)
    matcher = Matcher(sample.load(), "variation")
    one = jobspec(resource("node", 1, resource("slot", 1, resource("core", 1))))
    for vertex, value in zip(matcher.graph.vertices_of_type("node").tolist(), "312", strict=True):
        matcher.graph.set_property(vertex, "perf_class", value)
    assert hosts(matcher, matcher.match("without_allocating", one)) == ["node1"]
    matcher.graph.set_property(matcher.graph.vertices_at("/cluster0/node0")[0], "perf_class", "0")
    assert hosts(matcher, matcher.match("without_allocating", one)) == ["node0"]


def test_locality_prefers_the_highest_run_of_ids() -> None:
    sample = Sample()
    top = sample.add("cluster", None, id=0)
    for id_ in (0, 1, 2, 5, 6, 9):
        sample.add("core", sample.add("node", top, id=id_), id=0)
    matcher = Matcher(sample.load(), "locality")
    two = jobspec(resource("node", 2, resource("slot", 1, resource("core", 1))))
    # Runs are 9, then 5-6, then 0-2: the highest first, in the order in which they were found.
    assert hosts(matcher, matcher.match("allocate", two, job=1)) == ["node5", "node9"]


@pytest.fixture
def forget() -> Iterator[None]:
    before = dict(policy._policies)
    yield
    policy._policies.clear()
    policy._policies.update(before)


@pytest.mark.usefixtures("forget")
def test_a_user_adds_a_policy() -> None:
    coolest = MatchPolicy("coolest", best="low", scores=lambda graph: np.abs(graph.id - 1) + 1)
    policy.register(coolest)
    matcher = Matcher(cluster(nodes=3, cores=1).load(), "coolest")
    one = jobspec(resource("node", 1, resource("slot", 1, resource("core", 1))))
    assert hosts(matcher, matcher.match("allocate", one, job=1)) == ["node1"]
    assert "coolest" in policy.names()


def test_policies_are_also_known_as_the_first_readme_has_them() -> None:
    assert policy.find("hi") is policy.find("high") and policy.find("lo") is policy.find("low")
    assert "hi" not in policy.names()
