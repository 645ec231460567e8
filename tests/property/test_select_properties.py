"""Properties of the client-side choice: untouched bytes, pure policies, edits that add and never change."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fluence.kubectl.resolve import ResolveOptions, Resolver, Source
from fluence.names import BACKEND, GROUP_LABEL, REQUIRE_BACKEND, SELECT_POLICY, SELECT_RESULT
from fluence.select import (
    Backend,
    BackendAnswer,
    BackendQuery,
    BackendSelection,
    NoBackend,
    ProviderSettings,
    choose,
    parse_pipeline,
)
from fluence.select.edit import load
from fluence.select.workload import decode, encode, split

# -- streams --------------------------------------------------------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12),
    st.sampled_from(
        ["yes", "0o17", "1e3", "---", "# no comment", "a: b", "multi\nline\n", "trailing \n", "'"]
    ),
)
keys = st.one_of(
    st.sampled_from(["kind", "metadata", "spec", "annotations", "labels", "items", "template", "containers"]),
    # So that the stream is read, not only looked at. Nothing here targets Fluence.
    st.just(SELECT_POLICY),
    st.text("abcxyz-./0 ", min_size=1, max_size=8),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
documents = st.one_of(
    st.builds(
        lambda value, flow, indent, width: yaml.safe_dump(
            value, default_flow_style=flow, indent=indent, width=width, allow_unicode=True, sort_keys=False
        ),
        st.dictionaries(keys, values, max_size=5),
        st.sampled_from([None, True, False]),
        st.integers(2, 6),
        st.sampled_from([20, 80]),
    ),
    values.map(lambda value: json.dumps(value, indent=2)),
    st.text("ab:-# \n\t\"'{}[]&*!|>%@\\\r", max_size=40),
)
separators = st.sampled_from(
    ["---\n", "--- # next\n", "---\r\n", "\n---\n\n", "...\n---\n", "%YAML 1.2\n---\n", "---"]
)
streams = st.lists(st.tuples(separators, documents), max_size=5).map(
    lambda parts: "".join(separator + document for separator, document in parts)
)


class OnlyL4:
    """A provider that knows one backend."""

    name = "l4"
    supplies: frozenset[str] | None = None

    def fetch(self, ask: BackendQuery) -> BackendAnswer:
        return BackendAnswer([Backend("l4", attributes={"cost_usd": 1})], offers=frozenset({"l4"}))


def resolve(data: bytes) -> str:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    made = Resolver(ResolveOptions(ProviderSettings()), note=lambda text: None, now=now, providers=[OnlyL4()])
    return "".join(made.stream(Source("x", data)))


@given(streams.map(encode) | st.binary(max_size=200))
@example(b"")
@example(b"---")
@example(b"\xef\xbb\xbf{}\n{}")
@example(b"a: |\n  b\n---\n# select-policy\n\t{")
@example(b"x: \\\nfluence.flux-framework.org/select-policy: min-cost")
@settings(max_examples=400, deadline=None)
def test_streams_that_ask_for_nothing_pass_byte_for_byte(data: bytes) -> None:
    assert encode(resolve(data)) == data


@given(streams)
@settings(deadline=None)
def test_the_documents_of_a_stream_are_the_stream(text: str) -> None:
    assert "".join(split(text)) == text


@given(st.binary(max_size=100))
@settings(deadline=None)
def test_decoding_loses_nothing(data: bytes) -> None:
    assert encode(decode(data)) == data


# -- policies -------------------------------------------------------------------------------------------

NAMES = ["a", "b", "c", "d", "e", "f"]
ATTRIBUTES = ["cost_usd", "queue_size", "memory_gb"]
backends = st.dictionaries(
    st.sampled_from(NAMES),
    st.tuples(
        st.dictionaries(st.sampled_from(ATTRIBUTES), st.integers(0, 4).map(float)),
        st.sampled_from([{}, {"status": "ONLINE"}, {"status": "OFFLINE"}]),
    ),
    max_size=6,
).map(
    lambda found: {n: Backend(n, attributes=numbers, strings=texts) for n, (numbers, texts) in found.items()}
)
steps = st.one_of(
    st.builds(
        "{}-{}".format, st.sampled_from(["min", "max"]), st.sampled_from(["cost", "queue", "memory_gb"])
    ),
    st.builds(
        "require:{}_{}={}".format,
        st.sampled_from(["min", "max"]),
        st.sampled_from(["cost", "queue", "memory_gb"]),
        st.integers(0, 4),
    ),
    st.builds("prefer:{}".format, st.sampled_from(NAMES)),
    st.just("online-only"),
)
pipelines = st.lists(steps, min_size=1, max_size=4).map(",".join)
offers = st.none() | st.frozensets(st.sampled_from(NAMES))


def run(
    policy: str, known: dict[str, Backend], offered: frozenset[str] | None, tolerance: float
) -> BackendSelection | str:
    try:
        return choose(policy, parse_pipeline(policy, tolerance=tolerance), known, offers=offered)
    except NoBackend as error:
        return str(error)


def by_definition(
    policy: str, known: dict[str, Backend], offered: frozenset[str] | None, tolerance: float
) -> str | None:
    """The choice as the documentation has it, written as plainly as possible."""
    full = {"cost": "cost_usd", "queue": "queue_size"}
    pool = sorted(name for name in known if offered is None or name in offered)
    for step in policy.split(","):
        if step == "online-only":
            pool = [n for n in pool if known[n].strings.get("status", "ONLINE") == "ONLINE"]
        elif step.startswith("prefer:"):
            pool = [n for n in pool if n == step[7:]] or pool
        elif step.startswith("require:"):
            key, limit = step[8:].split("=")
            attribute = full.get(key[4:], key[4:])
            pool = [n for n in pool if attribute in known[n].attributes]
            sign = 1 if key.startswith("min") else -1
            pool = [n for n in pool if sign * known[n].attributes[attribute] >= sign * float(limit)]
        else:
            attribute = full.get(step[4:], step[4:])
            width = tolerance if attribute != "memory_gb" else 0
            pool = [n for n in pool if attribute in known[n].attributes]
            sign = 1 if step.startswith("min") else -1
            pool.sort(key=lambda n: sign * known[n].attributes[attribute])
            pool = [
                n
                for n in pool
                if abs(known[n].attributes[attribute] - known[pool[0]].attributes[attribute]) <= width
            ]
    return pool[0] if pool else None


@given(pipelines, backends, offers, st.sampled_from([0.0, 1.0]))
@settings(max_examples=500, deadline=None)
def test_the_choice_is_the_one_of_the_definition(
    policy: str, known: dict[str, Backend], offered: frozenset[str] | None, tolerance: float
) -> None:
    result = run(policy, known, offered, tolerance)
    chosen = result.chosen.name if isinstance(result, BackendSelection) else None
    assert chosen == by_definition(policy, known, offered, tolerance)


@given(pipelines, backends, offers, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_in_which_backends_are_known_does_not_matter(
    policy: str, known: dict[str, Backend], offered: frozenset[str] | None, chance: random.Random
) -> None:
    shuffled = list(known.items())
    chance.shuffle(shuffled)
    assert run(policy, known, offered, 0) == run(policy, dict(shuffled), offered, 0)


@given(pipelines, backends, offers)
@settings(deadline=None)
def test_every_backend_is_accounted_for(
    policy: str, known: dict[str, Backend], offered: frozenset[str] | None
) -> None:
    result = run(policy, known, offered, 0)
    if isinstance(result, BackendSelection):
        kept = [b.name for b in result.ranked]
        assert sorted([*kept, *result.dropped]) == sorted(set(known) | set(offered or ()))


# -- edits ----------------------------------------------------------------------------------------------

plain = st.text("abcdefg", min_size=1, max_size=6)
notes = st.sampled_from(["", "  # why", " # it's {odd}: yes"])
blank = st.sampled_from(["", "\n", "# a comment\n", "\n\n  # an indented one\n"])


@st.composite
def jobs(draw: st.DrawFn) -> str:
    """A Job as people write them: any order, comments, blank lines, indentation, with or without metadata."""
    step = " " * draw(st.integers(1, 5))

    def entries(lines: list[str], depth: int) -> str:
        pad = step * depth
        return "".join(draw(blank) + f"{pad}{line}{draw(notes)}\n" for line in lines)

    quote = draw(st.sampled_from(["", "'", '"']))
    wish = f"{SELECT_POLICY}: {quote}min-cost{quote}"
    extra = [f"{draw(plain)}.x/{i}: {draw(plain)}" for i in range(draw(st.integers(0, 2)))]
    annotations = draw(st.permutations([wish, *extra]))
    metadata = "metadata:\n" + "".join(
        draw(
            st.permutations(
                [
                    entries(["name: job"], 1),
                    f"{step}labels:\n" + entries([f"{GROUP_LABEL}: g"], 2),
                    f"{step}annotations:\n" + entries(annotations, 2),
                ]
            )
        )
    )
    inside = draw(
        st.sampled_from(
            [
                "",
                f"{step * 2}metadata:\n{step * 3}labels: {{a: b}}\n",
                f"{step * 2}metadata:\n{step * 3}annotations:\n{step * 4}a: |\n{step * 5}text\n\n",
                f"{step * 2}metadata: {{annotations: {{a: b}}}}\n",
                f"{step * 2}metadata:\n",
            ]
        )
    )
    pod = f"{step * 2}spec:\n{step * 3}containers:\n{step * 3}- name: c\n{step * 3}  image: i\n"
    template = f"{step}template:{draw(notes)}\n" + "".join(draw(st.permutations([inside, pod])))
    text = "".join(draw(st.permutations(["kind: Job\n", metadata, "spec:\n" + template])))
    text = text if draw(st.booleans()) else text.rstrip("\n")
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


@given(st.lists(st.tuples(jobs(), st.booleans()), min_size=1, max_size=3))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_pin_adds_lines_and_changes_none(parts: list[tuple[str, bool]]) -> None:
    text = "\n---\n".join(job if wants else job.replace(GROUP_LABEL, "other") for job, wants in parts)
    result = resolve(encode(text))
    # Nothing that stood there has gone: every character is still there, in order, and every line but the one
    # of a `metadata` that is empty or in braces, which got its value there.
    rest = iter(result)
    assert all(character in rest for character in text)
    lines = iter(result.splitlines())
    assert all(line in lines for line in text.splitlines() if line.strip(" ").partition(":")[0] != "metadata")
    for (_, wants), before, after in zip(parts, split(text), split(result), strict=True):
        if not wants:
            assert before == after
            continue
        old, new = load(before), load(after)
        assert isinstance(old, dict)
        assert isinstance(new, dict)
        on_job = new["metadata"]["annotations"]
        on_pods = new["spec"]["template"]["metadata"]["annotations"]
        assert json.loads(on_job.pop(SELECT_RESULT))["chosen"] == "l4"
        for place in (on_job, on_pods):
            assert (place.pop(REQUIRE_BACKEND), place.pop(BACKEND)) == ("l4", "l4")
        assert old["metadata"] == new["metadata"]
        before_pods = old["spec"]["template"].get("metadata") or {}
        assert (before_pods.get("annotations") or {}) == on_pods
