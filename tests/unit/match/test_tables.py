"""The tables of the index: what they keep, and that they keep no more than they should."""

from __future__ import annotations

import numpy as np

from fluence.graph.ledger import LedgerJob
from fluence.match.matcher import Matcher
from tests.builders import cluster, jobspec, resource


def test_the_rows_that_a_constraint_excludes_are_those_of_the_mask_at_hand() -> None:
    """A mask that is gone may leave its id to the next one."""
    index = Matcher(cluster(nodes=4, cores=1).load(), "low").index
    for row in range(index.graph.rows):
        allowed = np.ones(index.graph.rows, np.bool_)
        allowed[row] = False
        assert index.banned(allowed).tolist() == [row]
        del allowed


def test_what_a_job_does_is_worked_out_once_and_forgotten_with_the_job() -> None:
    matcher = Matcher(cluster(nodes=2, cores=2).load(), "low")
    wanted = jobspec(resource("node", 1, resource("slot", 1, resource("core", 1))), duration=10)
    effects = matcher.index.effects(("any",))
    made: list[int] = []

    def make(job: LedgerJob) -> int:
        made.append(job.id)
        return job.id

    for number in range(500):
        matcher.match("allocate", wanted, job=number)
        job = matcher.info(number)
        assert effects.of(job, make) == effects.of(job, make) == number
        matcher.cancel(number)
    assert made == list(range(500))
    assert len(effects._known) <= 2 * len(matcher.ledger.jobs) + 65
    assert matcher.index.effects(("any",)) is effects
    for number in range(200):
        matcher.index.effects((number,))
    assert len(matcher.index._effects) <= 64


def test_the_weights_of_removed_vertices_are_forgotten() -> None:
    matcher = Matcher(cluster(nodes=2, cores=2).load(), "first")
    wanted = jobspec(resource("node", 2, resource("slot", 1, resource("core", 1))), duration=10)
    matcher.match("allocate", wanted, job=1)
    (node,) = matcher.graph.vertices_at("/cluster0/node1")
    assert node in matcher.visit_order._weights
    matcher.remove_path("/cluster0/node1")
    assert node not in matcher.visit_order._weights
    assert set(matcher.visit_order._weights) == set(matcher.graph.vertices_at("/cluster0/node0"))
