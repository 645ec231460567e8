"""`order` is std::sort of libstdc++, ties included.

The vectors were recorded from g++ 12.2 with -O2: name, scores, and the positions after
`std::sort(scores, less)`. The killers are McIlroy's adversary run against that very sort, so that quicksort
goes too deep and the heapsort is reached.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluence.graph.columns import Ints
from fluence.match import candidates as sort
from fluence.match.candidates import CandidateGroup, arranged

VECTORS = json.loads(Path(__file__).with_name("std_sort_vectors.json").read_text())


@pytest.mark.parametrize(
    ("scores", "positions"),
    [vector[1:] for vector in VECTORS],
    ids=[f"{i}-{name}-{len(scores)}" for i, (name, scores, _) in enumerate(VECTORS)],
)
def test_recorded_orders(scores: list[int], positions: list[int]) -> None:
    column = np.array(scores, np.int64)
    assert sort.order(column, len(scores)).tolist() == positions
    for wanted in {0, 1, 2, 7, 16, 17, len(scores) // 2}:
        assert sort.order(column, wanted).tolist() == positions[:wanted]
    groups = [CandidateGroup(score, 1, [(i, 1, False, -1)]) for i, score in enumerate(scores)]
    assert [group.edges[0][0] for group in arranged(groups, ascending=True)] == positions
    mirrored = [CandidateGroup(-score, 1, [(i, 1, False, -1)]) for i, score in enumerate(scores)]
    assert [group.edges[0][0] for group in arranged(mirrored, ascending=False)] == positions
    assert column.tolist() == scores, "the argument is left alone"


def test_some_vectors_reach_the_heapsort(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[int] = []
    heapsort = sort._heapsort

    def counted(value: Ints, place: Ints, first: int, last: int) -> None:
        reached.append(last - first)
        heapsort(value, place, first, last)

    monkeypatch.setattr(sort, "_heapsort", counted)
    for _, scores, positions in VECTORS:
        assert sort.order(np.array(scores, np.int64), len(scores)).tolist() == positions
    assert len(reached) >= 5
    assert max(reached) > 16


@given(
    scores=st.one_of(
        st.lists(st.integers(0, 3), max_size=80),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=80),
        st.builds(lambda n, k: [i % k for i in range(n)], st.integers(0, 300), st.integers(1, 9)),
    ),
    wanted=st.integers(0, 320),
)
def test_it_is_a_sorted_permutation_and_a_part_is_the_start_of_the_whole(
    scores: list[int], wanted: int
) -> None:
    column = np.array(scores, np.int64)
    whole = sort.order(column, len(scores)).tolist()
    assert sorted(whole) == list(range(len(scores)))
    assert [scores[i] for i in whole] == sorted(scores)
    assert sort.order(column, wanted).tolist() == whole[:wanted]
