import math

import pytest

from fluence.errors import InvalidJobspec
from fluence.model.jobspec import MAX_COUNT, Count, Jobspec, JobspecAttributes, JobspecResource, Task

SLOT = JobspecResource("slot", Count(2, 2), label="s", with_=(JobspecResource("core", Count(4, 4)),))


def document(**parts: str) -> str:
    given = {"version": "1", "resources": "[]", "tasks": "[]", "attributes": ""} | parts
    return "\n".join(f"{key}: {value}" for key, value in given.items() if value != "-")


def node(keys: str) -> str:
    return document(resources=f"[{{type: node, {keys}}}]")


def system(keys: str) -> str:
    return document(attributes=f"{{system: {{{keys}}}}}")


def refusal(text: str | bytes, *, extensions: bool = False) -> str:
    with pytest.raises(InvalidJobspec) as caught:
        Jobspec.parse(text, source="job.yaml", extensions=extensions)
    message = str(caught.value)
    assert "\n" not in message and message.startswith("job.yaml: ")
    return message.removeprefix("job.yaml: ")


def test_a_jobspec_is_read() -> None:
    text = document(
        resources="[{type: node, count: {min: 2}, exclusive: true, unit: u, id: i, with: "
        "[{type: slot, count: 2, label: s, with: [{type: core, count: 4}]}]}]",
        tasks="[{command: [a, 1], slot: s, count: {per_slot: 2}, distribution: d}]",
        attributes="{user: {n: 1}, system: {duration: 60, queue: q, cwd: /, "
        "environment: {A: 1}, x: [yes, 2.0]}}",
    )
    assert Jobspec.parse(text) == Jobspec(
        version=1,
        resources=(JobspecResource("node", Count(2), "u", True, None, "i", (SLOT,)),),
        tasks=(Task(("a", "1"), "s", ("per_slot", "2"), "d"),),
        attributes=JobspecAttributes(60.0, "q", "/", {"A": "1"}, None, {"x": ["yes", 2.0]}, {"n": 1}),
    )
    assert hash(Jobspec.parse(text)) == hash(Jobspec.parse(text))


@pytest.mark.parametrize(
    ("count", "available", "effective"),
    [
        (Count(4, 4), 3, 0), (Count(4, 4), 9, 4), (Count(0, 0), 5, 0), (Count(2), 9, 9), (Count(2), 1, 0),
        (Count(3, 30, "+", 5), 20, 18), (Count(3, 30, "+", 5), 99, 28), (Count(3, 30, "*", 2), 99, 24),
        (Count(3, 30, "*", 2), 23, 12), (Count(2, 300, "^", 2), 999, 256), (Count(2, 300, "^", 2), 255, 16),
        (Count(2, MAX_COUNT, "^", 2**31 - 1), 10**9, 2), (Count(1, MAX_COUNT, "*", 2), 10**12, 2**31),
    ],
)  # fmt: skip
def test_the_effective_count_is_the_largest_that_fits(count: Count, available: int, effective: int) -> None:
    assert count.effective(available) == effective


def test_the_maximum_is_the_last_of_the_series() -> None:
    assert Count(3, 30, "+", 5).maximum == 28
    assert Count(4, 4).maximum == 4
    assert Count(1).maximum == MAX_COUNT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a mapping with version, resources, tasks, attributes, not null"),
        ("- 1", "must be a mapping"),
        (document(extra="1"), "has the unknown key 'extra'"),
        (document(version="0"), "version: must be 1 to 9999, not 0"),
        (document(version="-1"), "version: must be 0 to"),
        (document(version="1.0"), "version: must be a whole number, not 1.0"),
        (document(version="08"), "version: must be a whole number"),
        (node("count: 1, with: [{type: core, count: {min: 0}}]"),
         "resources[0].with[0].count.min: must be at least 1"),
        (document(resources="[{type: '', count: 1}]"), "resources[0].type: must not be empty"),
        (node("count: 4294967296"), "resources[0].count: must be 0 to 4294967295"),
        (node("count: %s" % ("9" * 5000)), "resources[0].count: must be a whole"),
        (node("count: 2-8"), "resources[0].count: must be a whole number, not 2-8"),
        (node("count: 1, color: red"), "resources[0]: has the unknown key 'color'"),
        (node("count: 1, exclusive: True"), "resources[0].exclusive: must be true"),
        (node("count: 1, with: "), "resources[0].with: must be a list"),
        (node("count: 1, count: 2"), "resources[0]: has the key 'count' twice"),
        ('{"version": 1, "resources": [{"a": 1, "a": 2}]}', "resources[0]: has the key 'a' twice"),
        (document(resources="[{[1]: 2}]"), "resources[0]: has a key that is not text"),
        (document(resources="*nobody"), "resources: refers to &nobody, which is not defined"),
        (document(resources="&a [*a]"), "resources[0]: refers to itself through *a"),
        (system("duration: .nan"), "attributes.system.duration: must be 0 or more"),
        (system("duration: -1"), "attributes.system.duration: must be 0 or more"),
        (system("duration: .inf"), "attributes.system.duration: must be 0 or more"),
        (system("duration: 1e999"), "attributes.system.duration: must be a number"),
        (system("duration: 1h"), "attributes.system.duration: must be a number"),
        (system("environment: [a]"), "attributes.system.environment: must be a mapping"),
        (document(attributes="{system: 3}"), "attributes.system: must be a mapping, not 3"),
        (document(attributes="{user: {a: %s}}" % ("9" * 30)), "attributes.user.a: must fit in 64 bits"),
        (document(tasks="[{command: [[]], slot: s, count: {a: 1}}]"), "tasks[0].command[0]: must be text"),
        (document(tasks="[{command: [a], slot: s, count: {}}]"), "tasks[0].count: must have one key"),
        (document(tasks="[{command: [], slot: s, count: {a: 1}, b: 1, c: 1, d: 1}]"), "tasks[0]: has 6"),
        ('{"version": "\\ud800"}', "version: has half a surrogate pair"),
        (b"\xff\xfe\xff", "byte 0 is not UTF-8"),
        ("a\x00b", "is neither YAML nor JSON"),
    ],
)  # fmt: skip
def test_errors_name_the_place(text: str | bytes, message: str) -> None:
    assert refusal(text).startswith(message)


def test_deep_documents_are_refused() -> None:
    for deep in ("[" * 100_000, '{"version": ' * 100_000, '{"a": ' + "[" * 200 + "]" * 200 + "}"):
        assert "nested over 100 levels" in refusal(deep) or "neither YAML nor JSON" in refusal(deep)
    assert "nested over 100" in refusal(document(attributes="{user: " + "[" * 200 + "]" * 200 + "}"))


def test_multiplying_aliases_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert "through its aliases" in refusal("\n".join(lines))


def test_plain_python_values_are_read() -> None:
    value = {
        "version": 1,
        "resources": [{"type": "slot", "count": 2, "label": "s", "with": ({"type": "core", "count": 4},)}],
        "tasks": [],
        "attributes": {"system": {"duration": 1.5, "constraints": {"properties": ["a"]}}},
    }
    jobspec = Jobspec.from_value(value)
    assert jobspec.resources == (SLOT,)
    assert jobspec.attributes.duration == 1.5
    loop: list[object] = []
    loop += [loop, loop]
    bad = (loop, {1: 2}, object(), b"", {"version": math.nan}, {"version": 10**5000}, {"version": {1, 2}})
    for wrong in bad:
        with pytest.raises(InvalidJobspec):
            Jobspec.from_value({"version": 1, "resources": [], "tasks": [], "attributes": {"user": wrong}})
        with pytest.raises(InvalidJobspec):
            Jobspec.from_value(wrong)


@pytest.mark.parametrize(
    ("duration", "seconds"), [("", 100), ("0", 100), ("0.2", 1), ("99.5", 100), ("7", 7)]
)
def test_durations_round_up_and_default_to_the_whole_graph(duration: str, seconds: int) -> None:
    system = f"{{system: {{duration: {duration}}}}}" if duration else ""
    assert Jobspec.parse(document(attributes=system)).duration_s(100) == seconds


@pytest.mark.parametrize("duration", [100.5, 101.0, -1.0, math.nan, math.inf])
def test_durations_that_no_graph_has_are_refused(duration: float) -> None:
    with pytest.raises(InvalidJobspec, match=r"attributes\.system\.duration"):
        Jobspec((), attributes=JobspecAttributes(duration)).duration_s(100)


@pytest.mark.parametrize(
    ("count", "meaning"),
    [
        ("2-8", Count(2, 8)), ("'[2-8]'", Count(2, 8)), ("2+", Count(2)), ("2-64:2:*", Count(2, 64, "*", 2)),
        ("3-9:3", Count(3, 9, "+", 3)), ("'2,4,8'", Count(2, 8, "*", 2)), ("'2,4,16'", Count(2, 16, "^", 2)),
        ("'3,5,7'", Count(3, 7, "+", 2)), ("'1-3,4'", Count(1, 4)), ("{min: 2, max: 5}", Count(2, 5)),
        ("5", Count(5, 5)),
    ],
)  # fmt: skip
def test_extensions_read_the_counts_of_rfc_14(count: str, meaning: Count) -> None:
    text = document(resources=f"[{{type: node, count: {count}}}]")
    assert Jobspec.parse(text, extensions=True).resources[0].count == meaning
    if count != "5":
        refusal(text)


@pytest.mark.parametrize(
    "count", ["4,9,16", "0-3", "8-2", "bar", "1-3:0", "1-9:2:^", "", "0,1", "1-99999999999"]
)
def test_extensions_refuse_counts_that_are_no_series(count: str) -> None:
    text = document(resources=f"[{{type: node, count: '{count}'}}]")
    assert refusal(text, extensions=True).startswith("resources[0].count")


def test_written_properties_are_in_quotes() -> None:
    jobspec = Jobspec.parse(document(attributes='{system: {constraints: {properties: ["gpu"]}}}'))
    assert '- "gpu"' in jobspec.to_yaml()


def test_only_the_first_document_of_a_file_is_read() -> None:
    assert Jobspec.parse(document() + "\n---\nfoo: bar: baz\n").version == 1
