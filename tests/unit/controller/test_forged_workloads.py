"""FluxJobs and owners that somebody changed or made up: no promise grows, and nobody else is written to."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.controller import standing as standings
from fluence.controller.flux_job import FluxJob, FluxJobSpec, FluxJobStatus
from fluence.model.meta import LabelSelector, ObjectMeta
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.schedule import restart
from fluence.schedule.events import Changed
from fluence.schedule.queueing.placeholder import placeholder
from fluence.schedule.restart import PriorPromise, Promise, Takeover
from tests.unit.controller.queue_of_jobs import QueueOfJobs
from tests.unit.controller.test_standing import told
from tests.unit.schedule import kit
from tests.unit.schedule.test_held import NOW, driver, gated, held, node, template

HOUR = 3_600_000
PROMISE = Promise(NOW + HOUR)


def taken_over(job: Owner, *pods: Pod, owner: Owner | None = None) -> PriorPromise | None:
    """What the pods of a gang were told if this Job was, which has become another one since."""
    found = Takeover({job.identity: PriorPromise(PROMISE, 7, job.metadata.generation)})
    found.begin(["g"], now=0)
    return found.told("g", "g", pods, lambda pod: (owner or job,) if pod.metadata.owner_references else ())


def grown(job: Owner) -> Owner:
    more = replace(job.spec, parallelism=1000, completions=1000)
    return replace(job, spec=more, metadata=replace(job.metadata, generation=2))


def test_a_job_that_is_as_it_was_keeps_its_promise() -> None:
    job = held("j", 2)
    assert taken_over(job, *(placeholder(job, each) for each in range(2))) == PriorPromise(PROMISE, 7, 1)


def test_a_held_job_that_grows_while_no_scheduler_looks_is_told_anew() -> None:
    job = held("j", 2)
    found = taken_over(job, *(placeholder(job, each) for each in range(9)), owner=grown(job))
    assert found == PriorPromise(None, 7, 1)


def test_a_group_that_gets_another_member_while_no_scheduler_looks_is_told_anew() -> None:
    job = held("j", 1)
    assert taken_over(job, placeholder(job, 0), kit.pod("more")) == PriorPromise(None, 7, 1)


def test_a_pod_that_names_a_job_which_does_not_claim_it_is_no_part_of_what_was_promised() -> None:
    job = held("j", 1, selector=LabelSelector(match_labels={"of": "j"}))
    mine = kit.pod("mine", owner=job, labels={"of": "j"})
    assert taken_over(job, mine) == PriorPromise(PROMISE, 7, 1)
    assert taken_over(job, mine, kit.pod("forged", owner=job)) == PriorPromise(None, 7, 1)


def test_what_a_start_was_promised_for_is_in_the_status_and_not_in_the_spec() -> None:
    found = driver(node("n0", 2), queue_policy="conservative")
    notes = restart.annotations_for(7, NOW, NOW + HOUR)
    found.set_pod(kit.pod("busy", cpu="2", node="n0", phase="Running", annotations=notes))
    job = held("j", 2, annotations={names.DURATION: "1h"})
    found.set_owner(job)
    found.cycle(NOW)
    made = told(found, job, position=1)
    assert made.no_later_than is not None
    forged = FluxJobSpec(duration=0)  # no limit: whatever it asks for now would be covered
    said = standings.told(forged, made, job.metadata.uid)
    assert said is not None and said.promise is not None
    assert (said.promise.limit, said.generation) == (HOUR, 1)
    assert not said.promise.covers(2 * HOUR)
    another = standings.told(forged, made, "another Job of that name, to which the FluxJob was given")
    assert another is None or another.promise is None


def test_a_flux_job_is_for_the_workload_that_controls_it() -> None:
    mine, theirs = kit.reference(held("mine")), kit.reference(held("theirs"))
    first = replace(mine, controller=False)
    found = FluxJob(
        metadata=ObjectMeta(name="mine-job", namespace="default", owner_references=[first, theirs])
    )
    assert found.owner == theirs and found.workload == held("theirs").identity


def test_the_condition_goes_with_the_promise() -> None:
    found = driver(node("n0", 2))
    job = held("j", 2)
    found.set_owner(job)
    kinds = [each.type for each in told(found, job, FluxJobStatus()).conditions or ()]
    assert names.START_PROMISED not in kinds


@pytest.mark.parametrize(("labels", "count"), [({}, 0), ({"of": "theirs"}, 1)])
async def test_a_pod_that_names_a_job_gets_it_a_flux_job_only_if_the_job_claims_it(
    labels: dict[str, str], count: int
) -> None:
    queue = QueueOfJobs(nodes=1)
    selector = LabelSelector(match_labels={"of": "theirs"})
    theirs = kit.owner("theirs", parallelism=1, completions=1, selector=selector, template=template())
    queue.live._put(Changed(None, theirs))
    queue.live._put(Changed(None, gated("evil", owner=theirs, labels={names.SEEN: "yes", **labels})))
    queue.settle()
    queue.settle()
    assert len(queue.made) == count
