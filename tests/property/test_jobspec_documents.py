"""Jobspecs survive writing; nothing that is read does harm."""

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fluence.errors import InvalidJobspec
from fluence.model.constraint import Constraint
from fluence.model.jobspec import MAX_COUNT, Count, Jobspec, JobspecAttributes, JobspecResource, Task

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [
        "null",
        "~",
        "yes",
        "true",
        "1e3",
        "0x1f",
        "010",
        "1.",
        "-",
        "? a",
        "a: b",
        "#",
        "=",
        "<<",
        "2026-01-01",
        "\x85",
        "*",
    ]
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
fixed = st.integers(0, MAX_COUNT).map(lambda n: Count(n, n))
ranges = st.builds(
    lambda op, least, more, operand: Count(least, min(least + more, MAX_COUNT), op, operand),
    st.sampled_from("+*^"),
    st.integers(2, 2**31),
    st.integers(0, 2**32),
    st.integers(2, 2**31 - 1),
)
counts = fixed | ranges | st.integers(1, MAX_COUNT).map(Count)
maybe = st.none() | texts
resources = st.recursive(
    st.builds(
        JobspecResource,
        texts.filter(lambda t: t not in ("", "slot")),
        counts,
        maybe,
        st.none() | st.booleans(),
        maybe,
    ),
    lambda inner: st.builds(
        JobspecResource,
        st.just("slot"),
        counts,
        label=texts,
        id=maybe,
        with_=st.lists(inner, max_size=3).map(tuple),
    ),
    max_leaves=5,
)
tasks = st.builds(
    Task,
    st.lists(texts, max_size=3).map(tuple),
    texts,
    st.tuples(texts, texts),
    maybe,
    st.dictionaries(texts, texts, max_size=2),
)
properties = texts.map(lambda t: "^" + "".join(c for c in t if c not in "!&'\"^`|()"))
constraints = st.recursive(
    st.builds(Constraint, st.just("properties"), st.lists(properties, max_size=2).map(tuple))
    | st.just(Constraint())
    | st.sampled_from([("n[0-3]", "a"), (), ("x",)]).map(lambda v: Constraint("hostlist", v))
    | st.sampled_from([("0-3",), (), ("1", "4,7")]).map(lambda v: Constraint("ranks", v)),
    lambda inner: st.builds(
        Constraint, st.sampled_from(["and", "or", "not"]), children=st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=5,
)
KNOWN = ("duration", "queue", "cwd", "environment", "constraints")
attributes = st.builds(
    JobspecAttributes,
    st.none() | st.floats(0, allow_infinity=False, allow_nan=False).map(abs),
    maybe,
    maybe,
    st.dictionaries(texts, texts, max_size=3),
    st.none() | constraints,
    st.dictionaries(texts.filter(lambda t: t not in KNOWN), json_values, max_size=2),
    json_values,
)
jobspecs = st.builds(
    Jobspec,
    st.lists(resources, max_size=3).map(tuple),
    st.lists(tasks, max_size=2).map(tuple),
    attributes,
    st.integers(1, 9999),
)

VALID = b"""version: 9999
resources: &r
  - type: slot
    count: {min: 1, max: 8, operator: "*", operand: 2}
    label: "foo"
    with: [{type: node, count: 1, exclusive: true}]
tasks:
  - command: [ "app" ]
    slot: foo
    count: {per_slot: 1}
attributes:
  user: *r
  system:
    duration: 3600.5
    constraints: {and: [{hostlist: ["n[0-3]"]}, {ranks: ["0,2-3"]}, {properties: ["^a"]}]}
"""


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobspecs)
def test_what_is_written_reads_the_same(jobspec: Jobspec) -> None:
    assert Jobspec.parse(jobspec.to_json()) == jobspec
    assert Jobspec.parse(jobspec.to_yaml()) == jobspec
    assert Jobspec.from_value(jobspec.to_value()) == jobspec


def read_or_refuse(text: str | bytes) -> None:
    for extensions in (False, True):
        try:
            jobspec = Jobspec.parse(text, extensions=extensions)
        except InvalidJobspec as e:
            assert "\n" not in str(e)
            assert len(str(e)) < 500
        else:
            assert Jobspec.parse(jobspec.to_yaml()) == jobspec


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60))
@example("{")
@example("!<\x00>")
@example("%YAML 9.9\n---\n")
@example("? ? ? a")
@example("\ud800")
def test_random_text_is_refused_politely(text: str | bytes) -> None:
    read_or_refuse(text)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.tuples(st.integers(0, len(VALID)), st.integers(0, 6), st.binary(max_size=6) | st.sampled_from(
            [b"*r", b"&r ", b"!!int ", b"'", b"[", b"]", b"{", b"}", b"~", b"-1", b"9" * 30, b".nan", b"0x",
             b": ", b"\n"]
        )),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_damaged_documents_are_read_or_refused(damages: list[tuple[int, int, bytes]]) -> None:
    text = VALID
    for at, length, replacement in damages:
        text = text[:at] + replacement + text[at + length :]
    read_or_refuse(text)


@given(
    json_values,
    st.sampled_from([(), ("resources",), ("tasks",), ("attributes",), ("resources", 0), ("version",)]),
)
def test_any_value_anywhere_is_read_or_refused(value: object, place: tuple[str | int, ...]) -> None:
    document: object = {"version": 1, "resources": [{}], "tasks": [], "attributes": {}}
    if not place:
        document = value
    elif len(place) == 1:
        document = {**document, place[0]: value}  # type: ignore[dict-item]
    else:
        document = {**document, "resources": [value, {"type": "node", "count": value}]}  # type: ignore[dict-item]
    try:
        Jobspec.from_value(document)
    except InvalidJobspec as e:
        assert "\n" not in str(e)
