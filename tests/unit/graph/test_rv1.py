"""R version 1 becomes a flat cluster, and data for updates."""

import json

import pytest

from fluence.errors import InvalidGraph
from fluence.graph import ResourceGraph, rv1


def entry(rank: object, **children: object) -> dict[str, object]:
    return {"rank": rank, "children": children}


def document(*entries: object, hosts: object = None, **execution: object) -> str:
    nodelist = ["node[0-1]"] if hosts is None else hosts
    return json.dumps({"version": 1, "execution": {"R_lite": entries, "nodelist": nodelist} | execution})


def test_hosts_lie_below_a_cluster_with_their_children_in_order() -> None:
    batch = rv1.read(document(entry("0-1", gpu="0", core="2-3")))
    assert batch.type == ["cluster", "node", "gpu", "core", "core", "node", "gpu", "core", "core"]
    assert batch.name == [
        "cluster0",
        *("node0", "gpu0", "core2", "core3"),
        *("node1", "gpu0", "core2", "core3"),
    ]
    assert batch.id == [0, 0, 0, 2, 3, 1, 0, 2, 3]
    assert batch.rank == [-1, 0, 0, 0, 0, 1, 1, 1, 1]
    assert batch.uniq_id == list(range(9))
    assert batch.edges["containment"] == ([0, 1, 1, 1, 0, 5, 5, 5], [1, 2, 3, 4, 5, 6, 7, 8])
    graph = ResourceGraph()
    graph.extend(batch)
    assert graph.path(8) == "/cluster0/node1/core3"


def test_hosts_pair_up_with_sorted_ranks_while_vertices_keep_the_order_of_entries() -> None:
    batch = rv1.read(document(entry("7,9", core="0"), entry("8", core="0"), hosts=["a[7-8],b", "spare"]))
    nodes = [
        (n, r, i)
        for t, n, r, i in zip(batch.type, batch.name, batch.rank, batch.id, strict=True)
        if t == "node"
    ]
    assert nodes == [("a7", 7, 7), ("b", 9, -1), ("a8", 8, 8)]
    assert [b for t, b in zip(batch.type, batch.basename, strict=True) if t == "node"] == ["a", "b", "a"]


def test_two_ranks_may_share_a_host() -> None:
    graph = ResourceGraph()
    graph.extend(rv1.read(document(entry("0-1", core="0"), hosts=["fluke,fluke"])))
    assert len(graph.vertices_at("/cluster0/fluke")) == 2


def test_properties_are_given_to_nodes_by_their_whole_name() -> None:
    batch = rv1.read(document(entry("0-1", core="0"), properties={"big": "0-1", "arm@core": "1", "far": "5"}))
    assert batch.properties == {1: {"big": ""}, 3: {"arm@core": "", "big": ""}}
    assert rv1.read(document(entry("0", core="0"), properties=None)).properties == {}


def test_the_scheduling_key_is_never_used() -> None:
    text = document(entry("0", core="0"))[:-1] + ', "scheduling": "nonsense"}'
    assert rv1.read(text) == rv1.read(text, force=True)
    assert rv1.decode(text).scheduling == "nonsense"


def test_an_empty_r_is_an_empty_cluster() -> None:
    assert rv1.read(document(hosts=[])).name == ["cluster0"]
    assert rv1.read(document({"rank": "0", "children": {}})).name == ["cluster0", "node0"]


def test_decode_gives_all_that_r_says() -> None:
    r = rv1.decode(
        document(
            entry("0", core="0-1"), entry("1", core="0"), starttime=5.5, expiration=60, properties={"p": "1"}
        )
    )
    assert [(e.ranks, dict(e.children)) for e in r.entries] == [
        ((0,), {"core": (0, 1)}),
        ((1,), {"core": (0,)}),
    ]
    assert r.hosts == {0: "node0", 1: "node1"}
    assert r.properties == {1: ("p",)}
    assert (r.starttime, r.expiration, r.scheduling) == (5.5, 60.0, None)


def test_a_partial_cancel_needs_ranks_only() -> None:
    text = json.dumps({"version": 1, "execution": {"R_lite": [{"rank": "3"}, {"rank": "0-1,3"}]}})
    assert rv1.decode_ranks(text) == [0, 1, 3]
    with pytest.raises(InvalidGraph, match=r"R: execution.R_lite\[0\].rank"):
        rv1.decode_ranks('{"version": 1, "execution": {"R_lite": [{}]}}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "R: this is not JSON"),
        ("[]", "R: the document is a list"),
        ('{"version": NaN}', "R: this is not JSON"),
        ("[" * 5000, "R: "),
        ("\ud800", "R: this is not JSON"),
        ("{}", "R: version: the version is missing"),
        ('{"version": 2}', "R: version: the version is 2"),
        ('{"version": true}', "the version is True"),
        ('{"version": 1}', "R: execution: it is missing or null; it must be an object"),
        ('{"version": 1, "execution": {}}', "R: execution.R_lite: it is missing"),
        (document("x"), "R: execution.R_lite[0]: it is 'x'"),
        (document(entry(0, core="0")), "R: execution.R_lite[0].rank: it is 0"),
        (document(entry("0-", core="0")), "R: execution.R_lite[0].rank: "),
        (document({"rank": "0"}), "R: execution.R_lite[0].children: it is missing"),
        (document(entry("0", core=[0])), "R: execution.R_lite[0].children.core: it is a list"),
        (document(entry("0", core="3-1")), "R: execution.R_lite[0].children.core: "),
        (document(entry("0", **{"": "0"})), "a resource type is empty"),
        (document(entry("0", core="0"), entry("0-1", core="0")), "rank 0 is in R_lite twice"),
        (document(entry("0-2", core="0")), "R_lite has 3 ranks but only 2 hosts are named"),
        (
            document(entry("0", core="0"), hosts="node0"),
            "R: execution.nodelist: the list of hosts is missing",
        ),
        (document(entry("0", core="0"), hosts=[1]), "R: execution.nodelist[0]: it is 1"),
        (document(entry("0", core="0"), hosts=["a[0"]), "R: execution.nodelist[0]: "),
        (document(entry("0", core="0"), hosts=["a" + "9" * 19]), "too large for an id"),
        (document(entry("0", core="0"), properties=[]), "R: execution.properties: it is a list"),
        (document(entry("0", core="0"), properties={"p": 1}), "R: execution.properties.p: it is 1"),
        (document(entry("0", core="0"), properties={"p": "a"}), "R: execution.properties.p: "),
        (document(entry("0", core="0"), starttime=-1), "R: execution.starttime: it is -1"),
        (document(entry("0", core="0"), expiration="never"), "R: execution.expiration: it is 'never'"),
        (document(entry("0", core="0-4000000000")), "R names more than 10,000,000 things"),
        (document(entry("0-4999", core="0-4999")), "R has more than 10,000,000 vertices"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidGraph) as caught:
        rv1.read(text)
    assert message in str(caught.value)
    assert caught.value.where.startswith("R")
    assert "\n" not in str(caught.value)


def test_many_short_texts_that_name_much_are_refused() -> None:
    text = document(entry("0", core="0"), properties={f"p{n}": "0-900" for n in range(9)})
    with pytest.raises(InvalidGraph, match="R names more than 1,000 things"):
        rv1.read(text, limit=1000)
