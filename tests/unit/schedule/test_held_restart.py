"""A fresh process finds a Job that was let go, some of whose pods wait, run or have ended: the rest of it is
bound under its one number, on the nodes that are left."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.owner import Owner
from fluence.model.pod import PodStatus
from fluence.schedule.events import Bind
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_held import NOW, as_bound, driver, held, let_go, node, rank

SIZE = 3
NODES = [node(name, 1) for name in "abc"]


def cycles(found: Driver, begin: int) -> list[Bind]:
    return [bind for later in range(3) for some in found.cycle(NOW + begin + later).binds for bind in some]


def counted(job: Owner, indexes: list[int]) -> Owner:
    """The Job as its controller writes it once it has seen the ends of pods."""
    done = ",".join(map(str, indexes)) if job.spec.completion_mode == "Indexed" else None
    return replace(job, status=replace(job.status, succeeded=len(indexes), completed_indexes=done))


@pytest.mark.parametrize("mode", ["Indexed", None])
@pytest.mark.parametrize("first", ["runs", "ended"])
def test_what_is_left_of_a_job_is_bound_under_its_number(mode: str | None, first: str) -> None:
    suspended = held("j", SIZE, mode=mode)
    before = driver(*NODES)
    before.set_owner(suspended)
    decisions = before.cycle(NOW)
    job, note = let_go(suspended, decisions), decisions.releases[0].note
    said = {names.JOBID: note.number, names.ALLOCATION: note.allocation}
    for rest in product(("waits", "runs", "ended", "to come"), repeat=SIZE - 1):
        states = (first, *rest)
        found = driver(*NODES)
        found.set_owner(job)
        for index, node_name in note.nodes:
            pod = rank(job, index)
            if states[index] in ("runs", "ended"):
                pod = as_bound(pod, node_name, said)
            if states[index] == "ended":
                pod = replace(pod, status=PodStatus(phase="Succeeded"))
            if states[index] != "to come":
                found.set_pod(pod)
        binds = cycles(found, 1)
        found.set_owner(counted(job, [index for index in range(SIZE) if states[index] == "ended"]))
        binds += cycles(found, 10)
        for index in range(SIZE):
            if states[index] == "to come":
                found.set_pod(rank(job, index))
        binds += cycles(found, 20)
        wanted = {f"j-{index}-x" for index in range(SIZE) if states[index] in ("waits", "to come")}
        assert {bind.pod.metadata.name for bind in binds} == wanted, states
        assert {bind.annotations[names.JOBID] for bind in binds} <= {note.number}, states
