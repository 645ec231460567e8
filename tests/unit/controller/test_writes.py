"""A status is written when something changed that a user can see, however long the queue and the wait."""

from __future__ import annotations

import asyncio
import random

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from fluence.controller.flux_job import Workload
from fluence.kube.errors import Invalid, Status, Unreachable
from fluence.schedule.events import Changed
from tests.unit.controller.queue_of_jobs import QueueOfJobs
from tests.unit.schedule.test_held import held, node


async def test_a_job_costs_a_bounded_number_of_writes_over_its_life() -> None:
    queue = QueueOfJobs(nodes=1)
    queue.submit(60)
    decisions = queue.settle()
    while decisions.releases:
        decisions = queue.run_through(decisions)
    assert len(queue.writes) == 60
    # Made, told why it waits, 13 places at most on its way to the front, started, running, ended.
    assert max(queue.writes.values()) <= 20, queue.writes.most_common(3)


async def test_a_queue_that_stands_still_writes_nothing() -> None:
    queue = QueueOfJobs(nodes=1)
    queue.submit(30)
    for _ in range(5):
        queue.settle()
    before = sum(queue.writes.values())
    for _ in range(20):
        queue.settle()
    assert sum(queue.writes.values()) == before


async def test_a_flux_job_is_made_with_the_reason_for_which_its_workload_waits() -> None:
    queue = QueueOfJobs(nodes=1)
    queue.submit(1000)
    queue.settle()
    assert len(queue.writes) == 1000
    more = {name: count for name, count in queue.writes.items() if count > 2}
    assert not more, f"{len(more)} FluxJobs were written more often than once and their status once"


async def test_a_restart_writes_nothing_that_stands_there_already() -> None:
    queue = QueueOfJobs(nodes=0)
    queue.submit(1000)
    queue.settle()
    again = queue.restarted()
    again.controller._dirty.update(dict.fromkeys(again.controller._workloads))
    again.controller.round()  # before its first cycle, as when the list of FluxJobs comes first
    again.settle()
    assert not again.writes, again.writes.most_common(3)


async def test_jobs_of_one_second_keep_their_places_over_a_restart() -> None:
    queue = QueueOfJobs(nodes=1)
    for name in random.Random(12).sample([f"j{index}" for index in range(300)], 300):
        queue.submit_named(name)
        if name.endswith("7"):
            queue.cycle()
    queue.settle()
    before = queue.order()
    assert before != sorted(before)
    again = queue.restarted()
    again.settle()
    assert again.order() == before
    # The one that was being let go is let go again.
    assert len(again.writes) <= 1, again.writes.most_common(3)


async def test_a_flux_job_whose_status_changes_before_it_is_written_is_made_all_the_same() -> None:
    queue = QueueOfJobs(nodes=0)
    queue.submit(20)
    queue.look()
    queue.live._put(Changed(None, node("n0", 1)))
    assert queue.look().releases
    queue.write()
    assert len(queue.made) == 20


async def test_nothing_is_decided_before_the_server_has_said_whether_it_has_flux_jobs() -> None:
    """A scheduler that takes over would not know what held Jobs were told."""
    controller = QueueOfJobs(nodes=0).controller  # whose server is not there
    with capture_logs() as said:
        async with controller._client, asyncio.timeout(60):
            looks = asyncio.create_task(controller._served())
            while not said:
                await asyncio.sleep(0.01)
            looks.cancel()
    assert [each["event"] for each in said] == ["cannot find out whether FluxJobs are served"]
    assert not controller.ready.is_set()


def refused() -> Invalid:
    return Invalid(
        "PATCH fluxjobs", Status(code=422, reason="Invalid", message="metadata.name: Invalid value")
    )


async def test_what_the_server_refuses_is_not_tried_again_until_the_workload_changes() -> None:
    queue = QueueOfJobs(nodes=0)
    queue.submit(1)
    queue.settle()
    (job,) = queue.jobs.values()
    controller, key = queue.controller, ("default", "j0-job")
    controller._sent.pop(key)
    controller._failed(Workload(job), refused())
    for _ in range(3):
        controller._again(job.metadata.uid)
        queue.look()
    assert controller._writer.get(key) is None
    status = replace(job.status, succeeded=0, failed_indexes="")
    queue._put_job(replace(job, status=status))
    queue.look()
    assert controller._writer.get(key) is None
    meta = replace(job.metadata, annotations={"changed": "yes"})
    queue._put_job(replace(job, metadata=meta))
    queue.look()
    assert controller._writer.get(key) is not None


async def test_what_fails_is_tried_again_after_ever_longer_pauses() -> None:
    queue = QueueOfJobs(nodes=0)
    queue.submit(1)
    queue.settle()
    (job,) = queue.jobs.values()
    loop = asyncio.get_running_loop()
    pauses = []
    for _ in range(8):
        queue.controller._failed(Workload(job), Unreachable("no answer"))
        due = max(handle.when() for handle in loop._scheduled)  # type: ignore[attr-defined]
        pauses.append(round(due - loop.time()))
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]


async def test_workloads_of_all_namespaces_are_compared_in_turn() -> None:
    queue = QueueOfJobs(nodes=0)
    queue.submit(5)
    other = held("good", 1)
    queue._put_job(replace(other, metadata=replace(other.metadata, namespace="good", uid="good")))
    queue.look()
    uids = [job.metadata.uid for job in queue.jobs.values()]
    assert list(queue.controller._in_turn(uids))[:2] == [uids[0], "good"]


@given(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", fullmatch=True))
@example("a" * 253)
@example("a" * 230 + "." * 22 + "b")
def test_every_workload_has_a_valid_name_for_its_flux_job(name: str) -> None:
    made = Workload(held(name, 1)).flux_job
    assert len(made) <= 253
    assert made.endswith("-job") and made[0].isalnum()
    if len(name) <= 249:
        assert made == f"{name}-job"
    cut = made.removesuffix("-job").rpartition("-")[0] if len(name) > 249 else name
    assert name.startswith(cut) and not cut.endswith(("-", "."))


def test_long_names_that_begin_alike_are_told_apart() -> None:
    one, other = (Workload(held("a" * 252 + end, 1)).flux_job for end in "xy")
    assert one != other and one == Workload(held("a" * 252 + "x", 1)).flux_job
