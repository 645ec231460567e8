"""Whatever a document of devices says, it is read or refused in one line; what is read can be offered."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fluence.model.external_resources import MAX_DEVICES, InvalidResources, parse

WORDS = (
    "resources", "attributes", "backends", "type", "name", "count", "with", "parent", "status", "offline",
    "qpu", "num_qubits", "vendor", "0", "-1", "3", "1e9", "null", "~", "&a", "*a", "? ", "{", "}", "[", "]",
    ":", ": ", ",", "\n", "\n- ", "\n  ", "  - ", "'", '"', "#", "|", "!!set", "<<", "\t", "\x00", "é",
)  # fmt: skip
VALID = """
resources:
- {type: qpu, name: a, count: 2, attributes: s, with: [{type: q, count: 3}]}
attributes: {s: {v: w}}
"""


@st.composite
def changed(draw: st.DrawFn) -> str:
    """A valid document with some pieces replaced."""
    text = VALID
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        until = draw(st.integers(at, min(len(text), at + 12)))
        text = text[:at] + draw(st.sampled_from(WORDS)) + text[until:]
    return text


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=changed() | st.text() | st.lists(st.sampled_from(WORDS)).map("".join))
@example(text="resources: &a [{type: x, with: *a}]")
@example(text="\ud800")
@example(text="a: &a [&b [&c [*a, *b, *c], *a], *b]\nresources: *a")
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        tree = parse(text)
    except InvalidResources as refused:
        assert "\n" not in str(refused)
        return
    devices = list(tree.walk())
    assert len(devices) <= MAX_DEVICES
    assert len({backend.name for backend in tree.backends}) == len(tree.backends)
    for device in devices:
        assert device.count >= 1
        assert all(device.attributes.values())
        assert len({child.name for child in device.children}) == len(device.children)
