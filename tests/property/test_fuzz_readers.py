"""Whatever a reader is given, it answers with a graph or with one line that says what is wrong."""

import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fluence.errors import InvalidGraph
from fluence.graph import Batch, ResourceGraph, grug, hwloc, rv1

LIMIT = 2_000

RECIPE = """<?xml version="1.0" encoding="UTF-8"?>
<graphml><key id="root" for="node" attr.name="root"><default>0</default></key>
<key id="type" for="node" attr.name="type"/><key id="basename" for="node" attr.name="basename"/>
<key id="size" for="node" attr.name="size"/><key id="sub" for="node" attr.name="subsystem"/>
<key id="e_sub" for="edge" attr.name="e_subsystem"/><key id="how" for="edge" attr.name="gen_method"/>
<key id="n" for="edge" attr.name="multi_scale"/><key id="scope" for="edge" attr.name="id_scope"/>
<key id="up" for="edge" attr.name="as_tgt_uplvl"/>
<graph edgedefault="directed">
<node id="a"><data key="root">1</data><data key="type">cluster</data><data key="basename">c</data></node>
<node id="b"><data key="type">node</data><data key="basename">n</data><data key="size">2</data></node>
<node id="d"><data key="type">core</data><data key="basename">d</data></node>
<node id="p"><data key="root">1</data><data key="type">p</data><data key="sub">power</data></node>
<node id="q"><data key="type">node</data><data key="sub">power</data></node>
<edge source="a" target="b"><data key="n">3</data></edge>
<edge source="b" target="d"><data key="n">2</data><data key="scope">1</data></edge>
<edge source="p" target="q"><data key="e_sub">power</data><data key="how">ASSOCIATE_IN</data></edge>
<edge source="q" target="b"><data key="e_sub">power</data><data key="how">ASSOCIATE_BY_PATH_IN</data>
<data key="up">2</data></edge>
</graph></graphml>"""

TOPOLOGY = """<?xml version="1.0"?><!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology version="2.0">
<object type="Machine" cpuset="0x00000003" complete_cpuset="0x00000003" allowed_cpuset="0x00000003">
<info name="HostName" value="node7"/>
<object type="NUMANode" cpuset="0x00000003" complete_cpuset="0x00000003" nodeset="0x1"/>
<object type="Package" cpuset="0x00000003" complete_cpuset="0x00000003">
<object type="L2Cache" depth="2" cache_size="1024" cpuset="0x00000001">
<object type="Core" cpuset="0x00000001">
<object type="PU" cpuset="0x00000001"/></object></object>
<object type="Group" cpuset="0x00000002"><object type="Core" cpuset="0x00000002">
<object type="PU" cpuset="0x00000002"/></object></object>
<object type="Bridge"><object type="PCIDev"><object type="OSDev" name="sda" osdev_type="0">
<info name="Size" value="4000000"/></object>
<object type="OSDev" name="cuda0" osdev_type="5"/></object></object>
</object></object></topology>"""

R = json.dumps(
    {
        "version": 1,
        "execution": {
            "R_lite": [
                {"rank": "0-1,3", "children": {"core": "0-3", "gpu": "0"}},
                {"rank": "2", "children": {}},
            ],
            "nodelist": ["node[0-2]", "login"],
            "properties": {"fast": "0,2", "arm@core": "1"},
            "starttime": 0.0,
            "expiration": 3600,
        },
    }
)


def read_grug(text: str | bytes) -> Batch:
    return grug.read(text, limit=LIMIT)


def read_links(text: str | bytes) -> None:
    grug.read(text, limit=LIMIT, links=True)


def read_old_hwloc(text: str | bytes) -> Batch:
    if isinstance(text, str):
        return hwloc.read(text.replace(' version="2.0"', ""))
    return hwloc.read(text.replace(b' version="2.0"', b""))


def read_ranks(text: str | bytes) -> None:
    rv1.decode_ranks(text)


def read_rv1(text: str | bytes) -> Batch:
    return rv1.read(text, limit=LIMIT)


READERS = [
    pytest.param(read_grug, RECIPE, id="grug"),
    pytest.param(read_links, RECIPE, id="grug with links"),
    pytest.param(hwloc.read, TOPOLOGY, id="hwloc"),
    pytest.param(read_old_hwloc, TOPOLOGY, id="hwloc 1"),
    pytest.param(read_rv1, R, id="rv1"),
    pytest.param(read_ranks, R, id="ranks of rv1"),
]
PIECES = st.sampled_from(
    (
        '"',
        *(
            "",
            "0",
            "-1",
            "9" * 12,
            "9" * 40,
            "1e9",
            "0-4000000",
            "<",
            ">",
            "/>",
            "&a;",
            "null",
            "NaN",
            "{",
            "]",
        ),
        *(
            "a",
            "b",
            "node",
            "power",
            "Machine",
            "Group",
            "OSDev",
            "MULTIPLY",
            "ASSOCIATE_IN",
            "0xf...f",
            "\x00",
        ),
    )
)


@st.composite
def mutated(draw: st.DrawFn, text: str) -> str:
    """A text with a few places cut out, replaced or doubled."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12) | st.integers(0, 300)))
        text = text[:start] + draw(PIECES | st.just(text[start:end] * 2)) + text[end:]
    return text


@st.composite
def reworded(draw: st.DrawFn, text: str) -> str:
    """A text that is still well formed: one value takes the place of another."""
    words = sorted(
        {w for w in text.replace(">", '"').replace("<", '"').split('"') if w.strip() and len(w) < 20}
    )
    for _ in range(draw(st.integers(1, 4))):
        text = text.replace(draw(st.sampled_from(words)), draw(st.sampled_from(words) | PIECES), 1)
    return text


def attempt(read: Callable[[str | bytes], Batch | None], text: str | bytes) -> None:
    try:
        batch = read(text)
        if batch is not None:
            ResourceGraph().extend(batch)
    except InvalidGraph as error:
        assert error.where
        assert "\n" not in str(error)


@pytest.mark.parametrize(("read", "text"), READERS)
@settings(max_examples=150, deadline=2000, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_changed_documents_are_read_or_refused(
    read: Callable[[str | bytes], Batch | None], text: str, data: st.DataObject
) -> None:
    attempt(read, data.draw(mutated(text) | reworded(text)))


@pytest.mark.parametrize(("read", "text"), READERS)
@settings(max_examples=60, deadline=2000, suppress_health_check=list(HealthCheck))
@given(noise=st.text() | st.binary())
@example(noise="")
@example(noise="\ud800")
@example(noise=b"\xff\xfe<\x00a\x00/\x00>\x00")
def test_noise_is_refused(read: Callable[[str | bytes], Batch | None], text: str, noise: str | bytes) -> None:
    attempt(read, text)
    attempt(read, noise)
