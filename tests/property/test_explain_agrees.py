"""The explanation agrees with the matcher, whatever the graph, the jobs, the policy and the request."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fluence.errors import InvalidJobspec
from fluence.graph.graph import Batch, ResourceGraph
from fluence.match import policy as policies
from fluence.match.explain import Explanation, explain
from fluence.match.matcher import Matcher, NothingHeld
from fluence.match.request import Placed, Window
from fluence.model.constraint import parse as constraint
from fluence.model.jobspec import Count, Jobspec, JobspecAttributes, JobspecResource

POLICIES = [
    "first", "firstnodex", "low", "high", "lonode", "hinode", "lonodex", "hinodex", "locality", "variation"
]  # fmt: skip
BELOW = {
    "cluster": ("rack", "node", "storage_node"),
    "rack": ("node", "ssd"),
    "node": ("socket", "core", "gpu", "memory"),
    "socket": ("core", "gpu", "memory"),
    "storage_node": ("ssd",),
}
TYPES = ("cluster", "rack", "node", "storage_node", "socket", "core", "gpu", "memory", "ssd")


@st.composite
def graphs(draw: st.DrawFn) -> ResourceGraph:
    """A cluster whose parts are alike, or each its own."""
    batch = Batch()
    regular = draw(st.booleans())
    widths = {
        (above, below): draw(st.integers(0, 1 if above == "socket" else 2))
        for above, types in BELOW.items()
        for below in types
    }
    sizes = draw(st.sampled_from([(1, 1), (2, 2), (4, 4), (0, 4)]))
    down = draw(st.sampled_from([0, 0, 1, 3]))

    def grow(type_: str, parent: int | None) -> None:
        row = len(batch.type)
        batch.vertex(
            type_,
            id=row if draw(st.booleans()) else row % 3,
            uniq_id=row,
            rank=row if type_ == "node" else -1,
            size=draw(st.integers(*sizes)) if type_ in ("memory", "ssd") else 1,
            up=not down or row == 0 or draw(st.integers(0, 12)) >= down,
            properties={"fast": ""} if draw(st.booleans()) else None,
        )
        if parent is not None:
            batch.edge(parent, row)
        for child in BELOW.get(type_, ()):
            wide = widths[type_, child] if regular else draw(st.integers(0, 2))
            for _ in range(wide + (child == "core")):
                if len(batch.type) < 70:
                    grow(child, row)

    grow("cluster", None)
    grow("node", 0)
    batch.roots["containment"] = 0
    graph = ResourceGraph()
    for type_ in TYPES:
        graph.types.code(type_)
    graph.extend(batch)
    return graph


@st.composite
def counts(draw: st.DrawFn) -> Count:
    least = draw(st.integers(1, 3))
    kind = draw(st.integers(0, 7))
    if kind == 0:
        return Count(least)
    if kind == 1:
        return Count(least, least + draw(st.integers(0, 4)), "+", draw(st.integers(1, 3)))
    if kind == 2:
        return Count(least, least * 8, "*", 2)
    return Count(least, least)


@st.composite
def resources(draw: st.DrawFn, depth: int = 0, above: str = "cluster") -> JobspecResource:
    near = BELOW.get(above, ())
    type_ = draw(st.sampled_from(["slot", *near, *near, *TYPES[1:]]))
    below: list[JobspecResource] = []
    inside = above if type_ == "slot" else type_
    if depth < 3 and (type_ == "slot" or inside in BELOW):
        size = draw(st.sampled_from([1, 1, 1, 2] if type_ == "slot" else [0, 1, 1, 1, 2]))
        below = [draw(resources(depth + 1, inside)) for _ in range(size)]
    return JobspecResource(
        type_,
        draw(counts()) if depth else Count(draw(st.sampled_from([1, 1, 2, 3]))),
        exclusive=draw(st.sampled_from([None] * 8 + [True, True, False])),
        label="x" if type_ == "slot" else None,
        with_=tuple(below),
    )


def chain(*levels: tuple[str, int]) -> JobspecResource:
    """A request that is a plain chain, such as node > slot > core."""
    below: tuple[JobspecResource, ...] = ()
    for type_, count in reversed(levels):
        below = (
            JobspecResource(type_, Count(count, count), label="x" if type_ == "slot" else None, with_=below),
        )
    return below[0]


@st.composite
def usual(draw: st.DrawFn) -> JobspecResource:
    """What people ask for, most of which fits somewhere."""
    few = st.integers(1, 2)
    leaf = (draw(st.sampled_from(["core", "core", "memory", "gpu"])), draw(st.integers(1, 3)))
    node, slot, rack = ("node", draw(few)), ("slot", draw(few)), ("rack", 1)
    levels = draw(
        st.sampled_from(
            [(node, slot, leaf), (slot, leaf), (slot, node), (rack, node, slot, leaf), (slot, node, leaf),
             (node, ("socket", 1), slot, leaf)]
        )
    )  # fmt: skip
    wanted = chain(*levels)
    return replace(wanted, exclusive=True) if wanted.type == "node" and draw(st.booleans()) else wanted


@st.composite
def jobspecs(draw: st.DrawFn, odd: bool = True) -> Jobspec:
    several = draw(st.sampled_from([1, 1, 1, 2])) if odd else 1
    one = resources() if odd and draw(st.booleans()) else usual()
    wanted = draw(st.lists(one, min_size=several, max_size=several))
    limit = draw(
        st.sampled_from([None] * 5 + [{"properties": ["fast"]}, {"not": [{"properties": ["fast"]}]}])
    )
    attributes = JobspecAttributes(
        duration=draw(st.sampled_from([None, 5, 10])),
        constraints=None if limit is None else constraint(limit),
    )
    return Jobspec(version=1, resources=tuple(wanted), tasks=(), attributes=attributes)


JOBS = st.lists(jobspecs(odd=False), max_size=6)


def attempt(matcher: Matcher, operation: str, jobspec: Jobspec, **options: Any) -> bool:
    try:
        return isinstance(matcher.match(operation, jobspec, **options), Placed)
    except NothingHeld:
        return True
    except InvalidJobspec:
        return False


def fill(matcher: Matcher, jobs: list[Jobspec]) -> None:
    for number, job in enumerate(jobs):
        operation = "allocate_orelse_reserve" if number % 2 else "allocate"
        attempt(matcher, operation, job, job=number, now=number // 2)


def assert_consistent(found: Explanation) -> None:
    for level in found.levels:
        assert level.considered == level.fit + sum(level.causes.values())
        assert min(level.considered, level.fit, level.units, *level.causes.values(), 0) == 0
        assert sum(count for _, count in level.lacks) <= level.too_small
    assert "\n" not in found.summary()
    assert all(found.lines())
    json.dumps(found.to_value())


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    graph=graphs(),
    jobs=JOBS,
    wanted=jobspecs(),
    policy=st.sampled_from(POLICIES),
    now=st.sampled_from([0, 0, 3, 7, 12]),
    data=st.data(),
)
def test_the_verdict_is_the_matchers(
    graph: ResourceGraph, jobs: list[Jobspec], wanted: Jobspec, policy: str, now: int, data: st.DataObject
) -> None:
    matcher = Matcher(graph, policy, horizon=1000)
    fill(matcher, jobs)
    for vertex in data.draw(st.lists(st.integers(1, graph.rows - 1), max_size=2)):
        matcher.set_status(graph.path(vertex) or "", up=data.draw(st.booleans()))
    again = data.draw(st.sampled_from([wanted, *jobs]))

    found = explain(matcher, again, now=now)

    assert_consistent(found)
    judged = attempt(matcher, "satisfiability", again, now=now)
    fits = attempt(matcher, "without_allocating", again, now=now)
    assert found.verdict == ("fits" if fits else "wait" if judged else "never")
    if found.verdict != "fits":
        assert found.nearest
    if found.verdict != "wait":
        assert not found.blocking


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    graph=graphs(),
    jobs=JOBS,
    wanted=jobspecs(),
    policy=st.sampled_from(POLICIES),
    flexible=st.booleans(),
    second=st.booleans(),
)
def test_what_the_columns_cannot_say_the_search_decides(
    graph: ResourceGraph, jobs: list[Jobspec], wanted: Jobspec, policy: str, flexible: bool, second: bool
) -> None:
    assume(flexible or second)
    if second:  # a vertex with two parents
        batch = Batch()
        batch.edge(~0, ~(graph.rows - 1))
        graph.extend(batch)
    matcher = Matcher(graph, policy, horizon=1000, flexible=flexible)
    fill(matcher, jobs)

    found = explain(matcher, wanted)

    assert not found.exact
    assert_consistent(found)
    judged = attempt(matcher, "satisfiability", wanted)
    fits = attempt(matcher, "without_allocating", wanted)
    assert found.verdict == ("fits" if fits else "wait" if judged else "never")


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs(), jobs=JOBS, wanted=jobspecs(), policy=st.sampled_from(POLICIES))
def test_waiting_for_the_blocking_jobs_is_enough(
    graph: ResourceGraph, jobs: list[Jobspec], wanted: Jobspec, policy: str
) -> None:
    """Cancel who blocks, again and again: in the end the request fits, or only what is down is in the way."""
    matcher = Matcher(graph, policy, horizon=1000)
    fill(matcher, jobs)
    found = explain(matcher, wanted)
    while found.blocking:
        for job in found.blocking:
            matcher.cancel(job)
        found = explain(matcher, wanted)
    if found.exact and graph.up.all():
        assert found.verdict != "wait"


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs(), jobs=JOBS, wanted=jobspecs(), policy=st.sampled_from(POLICIES))
def test_the_units_of_the_top_level_are_all_that_can_be_had(
    graph: ResourceGraph, jobs: list[Jobspec], wanted: Jobspec, policy: str
) -> None:
    matcher = Matcher(graph, policy, horizon=1000)
    fill(matcher, jobs)
    top = wanted.resources[0]

    def fits(count: int) -> bool:
        asked = replace(wanted, resources=(replace(top, count=Count(count, count)),))
        return matcher.search.find(matcher.compile(asked), Window(0, 1000)).selection is not None

    alone = replace(wanted, resources=(top,), attributes=replace(wanted.attributes, duration=None))
    found = explain(matcher, alone)
    if found.exact:
        units = found.levels[0].units
        assert not fits(units + 1)
        assert not units or fits(units)


def test_every_policy_is_covered() -> None:
    assert {
        name for name in policies.names() if policies.find(name).scores.__module__.startswith("fluence")
    } <= {*POLICIES}
