from fluence.errors import InvalidGraph


def test_an_error_names_the_place_first() -> None:
    assert str(InvalidGraph("must be a string", where="graph.nodes[3].id")) == (
        "graph.nodes[3].id: must be a string"
    )
