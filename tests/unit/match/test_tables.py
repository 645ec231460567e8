"""The tables of the index: what they keep, and that they keep no more than they should."""

from __future__ import annotations

import numpy as np

from fluence.match.matcher import Matcher
from tests.builders import cluster


def test_the_rows_that_a_constraint_excludes_are_those_of_the_mask_at_hand() -> None:
    """A mask that is gone may leave its id to the next one."""
    index = Matcher(cluster(nodes=4, cores=1).load(), "low").index
    for row in range(index.graph.rows):
        allowed = np.ones(index.graph.rows, np.bool_)
        allowed[row] = False
        assert index.banned(allowed).tolist() == [row]
        del allowed
