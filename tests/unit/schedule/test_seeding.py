"""What a queue learns from the history: how long jobs run, and how far its promises can be trusted."""

from __future__ import annotations

from fluence.model.job_state import PastRun
from fluence.queue import Queue
from fluence.queue.job import Submission
from fluence.schedule.history import seed
from tests.unit.schedule.driver import Driver

HOUR = 3_600_000


def run(
    *, user: str = "ada", limit: int | None = HOUR, lasted: int = 600_000, late: int | None = None
) -> PastRun:
    promised = None if late is None else 1_000_000 - late
    return PastRun(user, "", "lab", limit, promised, 0, 1_000_000, 1_000_000 + lasted)


def queue(policy: str = "easy") -> Queue:
    found: Queue = Driver(queue_policy=policy).queue
    return found


def predicted(seeded: Queue, *, user: str = "ada", limit: int | None = HOUR) -> int | None:
    job = Submission("new", 1, 0, limit=limit, user=user, account="lab")
    return seeded.promises.predictor.predict(job, 7, 0)


def test_runs_of_a_user_say_how_long_its_next_job_runs() -> None:
    seeded = queue()
    assert predicted(seeded) == HOUR  # nothing is known but the limit
    assert seed(seeded, [run()] * 5) == 5
    assert predicted(seeded) == 600_000


def test_others_are_expected_to_use_the_same_share_of_their_limit() -> None:
    seeded = queue()
    seed(seeded, [run()] * 5)
    assert predicted(seeded, user="bob", limit=2 * HOUR) == 1_200_000


def test_promises_that_were_missed_make_the_next_ones_wider() -> None:
    kept, missed = queue(), queue()
    assert kept.policy.promise == "record"
    seed(kept, [run(late=0)] * 20)
    seed(missed, [run(late=10 * 60_000)] * 20)
    assert kept.promises.calibration.place < 1 < missed.promises.calibration.place


def test_nonsense_teaches_nothing() -> None:
    seeded = queue()
    assert seed(seeded, [PastRun("ada", "", "lab", 0, None, 0, 10, 5)]) == 0
    assert seed(seeded, [PastRun("ada", "", "lab", 0, None, 0, 5, 10)]) == 1  # a limit of 0 is none
    assert predicted(seeded) == HOUR
