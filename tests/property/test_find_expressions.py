"""`find` against an evaluator that looks at one vertex at a time, and against nonsense."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from fluence.errors import FluenceError
from fluence.match import policy
from fluence.match.find import find
from fluence.match.matcher import Matcher
from fluence.model import hostlist, idset
from tests.builders import Sample
from tests.property.model import spans_at
from tests.property.strategies import PROPERTIES, graphs, jobspecs

Test = Callable[[int], bool]


def held(matcher: Matcher, vertex: int, *, reserved: bool | None, job: int | None, alone: bool) -> bool:
    ledger = matcher.ledger
    return any(
        (not alone or bool(ledger.exclusive[span]))
        and (reserved is None or record.reserved == reserved)
        and (job is None or record.id == job)
        for span in spans_at(ledger, vertex)
        if (record := ledger.job_at[ledger.owner[span]]) is not None
    )


def predicate(matcher: Matcher, word: str) -> Test:
    graph, tree = matcher.graph, matcher.tree
    key, _, value = word.partition("=")

    def inherited(test: Test) -> Test:
        return lambda v: test(v) or any(test(up) for up in tree.ancestors(v))

    match key:
        case "status":
            down = inherited(lambda v: not graph.up[v])
            return down if value == "down" else lambda v: not down(v)
        case "sched-now":
            taken = inherited(lambda v: held(matcher, v, reserved=False, job=None, alone=True))
            return taken if value == "allocated" else lambda v: not taken(v)
        case "sched-future":
            promised = inherited(lambda v: held(matcher, v, reserved=True, job=None, alone=True))
            return promised if value == "reserved" else lambda v: not promised(v)
        case "jobid-alloc":
            return lambda v: held(matcher, v, reserved=False, job=int(value), alone=True)
        case "jobid-reserved":
            return lambda v: held(matcher, v, reserved=True, job=int(value), alone=True)
        case "jobid-tag":
            return lambda v: held(matcher, v, reserved=None, job=int(value), alone=False)
        case "names":
            return lambda v: graph.name[v] in hostlist.decode(value)
        case _:
            return lambda v: value in graph.properties.get(v, {})


PREDICATES = st.one_of(
    st.sampled_from(
        [
            "status=up",
            "status=down",
            "sched-now=allocated",
            "sched-now=free",
            "sched-future=reserved",
            "sched-future=free",
            "names=node[0-1]",
            "names=core0,cluster0,gpu1",
            *(f"property={name}" for name in PROPERTIES),
        ]
    ),
    st.builds(
        "{}={}".format,
        st.sampled_from(["jobid-alloc", "jobid-reserved", "jobid-tag"]),
        st.integers(1, 4),
    ),
)
JOINS = st.sampled_from([" and ", " or ", " "])


@st.composite
def expressions(draw: st.DrawFn, depth: int = 2) -> tuple[str, list[object]]:
    """The text, and the same as a list: term, join, term, join, term …; a term is a word or such a list."""
    text, parts = "", list[object]()
    for i in range(draw(st.integers(1, 3))):
        if i:
            join = draw(JOINS)
            text += join
            parts.append(join.strip() or "and")
        if depth and draw(st.integers(0, 3)) == 0:
            inner, part = draw(expressions(depth - 1))
            text += draw(st.sampled_from([f"({inner})", f"( {inner} )"]))
            parts.append(part)
        else:
            word = draw(PREDICATES)
            text += word
            parts.append(word)
    return text, parts


def evaluate(matcher: Matcher, parts: list[object], vertex: int) -> bool:
    result, join = True, "and"
    for i, part in enumerate(parts):
        if i % 2:
            join = str(part)
            continue
        if isinstance(part, list):
            here = evaluate(matcher, part, vertex)
        else:
            here = predicate(matcher, str(part))(vertex)
        result = result or here if join == "or" else result and here
    return result


@given(data=st.data(), sample=graphs(), name=st.sampled_from(["low", "first", "hinodex"]))
def test_find_agrees_with_looking_at_every_vertex(data: st.DataObject, sample: Sample, name: str) -> None:
    matcher = Matcher(sample.load(), name)
    for job in range(1, 4):
        with contextlib.suppress(FluenceError):
            matcher.match("allocate_orelse_reserve", data.draw(jobspecs(sample)), job=job)
    text, parts = data.draw(expressions(), label="expression")
    tree = matcher.tree
    hits = {v for v in tree.order.tolist() if evaluate(matcher, parts, v)}
    shown = hits | {up for v in hits for up in tree.ancestors(v)}
    selection = find(matcher, text).selection
    assert set(selection.vertices.tolist()) == shown
    assert selection.vertices.tolist() == sorted(shown, key=lambda v: int(tree.post[v]))


def small() -> Matcher:
    sample = Sample()
    cluster = sample.add("cluster", None, id=0)
    for i in range(2):
        node = sample.add("node", cluster, id=i, rank=i)
        sample.add("core", node, id=0, rank=i)
    return Matcher(sample.load())


MATCHER = small()


@given(
    text=st.one_of(
        st.text(max_size=40),
        st.lists(
            st.one_of(PREDICATES, st.sampled_from(["(", ")", "and", "or", "=", "jobid-tag=x", "agfilter=t"])),
            max_size=8,
        ).map(" ".join),
        st.builds("{}={}".format, st.sampled_from(["jobid-span", "names", "property", "status"]), st.text()),
    )
)
@example("jobid-alloc=²")
@example("jobid-alloc=" + "9" * 5000)
@example("(" * 5000 + "status=up" + ")" * 5000)
@example("(" * 100_000)
@example("names=node[0-99999999]")
@example("jobid-span=7 and agfilter=true")
def test_any_text_is_an_expression_or_an_error_of_one_line(text: str) -> None:
    try:
        find(MATCHER, text)
    except FluenceError as error:
        assert "\n" not in str(error) or "\n" in text


@given(
    text=st.one_of(
        st.text(max_size=30),
        st.lists(
            st.sampled_from(
                ["policy=low", "policy=", "policy=high", "node_centric=true", "x=1", "=", "first", "policy"]
            ),
            max_size=4,
        ).map(" ".join),
    )
)
def test_any_text_is_a_policy_or_an_error(text: str) -> None:
    try:
        found = policy.find(text)
    except FluenceError:
        return
    assert found.name == text
    assert found.best in ("low", "high")


@given(text=st.one_of(st.text(max_size=30), st.text("0123456789-,[]", max_size=30)))
@example("9" * 5000)
@example("0-4294967294")
def test_any_text_is_an_idset_or_an_error(text: str) -> None:
    try:
        ids = idset.decode(text)
    except FluenceError:
        return
    assert ids == sorted(set(ids))
