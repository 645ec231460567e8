"""The priority that users give among their own: places are exchanged within one account, and others are not
passed."""

from __future__ import annotations

from random import Random

from fluence.queue import Queue
from fluence.queue.job import JobRecord
from fluence.queue.turns import MAX_MEMBERS
from tests.unit.queue.build import job, pool


def queue_of() -> Queue:
    """One core, which is in use."""
    queue = pool("easy", cores=1)
    queue.submit(job("running", 1, 60, account="x"))
    queue.cycle(0)
    return queue


def add(queue: Queue, key: str, *, account: str = "a", **more: int) -> JobRecord:
    return queue.submit(job(key, 1, 60, 1, account=account, **more))


def order(queue: Queue) -> str:
    return " ".join(record.key for record in queue.pending)


def check(queue: Queue) -> None:
    """The records are sorted, and can be found."""
    records = list(queue.pending)
    assert records == sorted(records, key=lambda record: record.order)
    assert all(queue.pending.place(record) == place for place, record in enumerate(records))


def test_a_favour_exchanges_places_within_its_account() -> None:
    queue = queue_of()
    for key, account in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b"), ("a3", "a")):
        add(queue, key, account=account)
    queue.reprioritise("a3", 16, 2, favour=5)
    assert order(queue) == "a3 b1 a1 b2 a2"
    check(queue)


def test_nobody_is_passed_by_a_favour_of_another_account() -> None:
    """The others stand where they would stand without it, whatever an account does, and each of its places is
    used once."""
    for seed in range(200):
        random, plain, favoured = Random(seed), queue_of(), queue_of()
        alive: list[str] = []
        for step in range(30):
            match random.randint(0, 3):
                case 0 | 1:
                    key = f"{random.choice('ab')}{step}"
                    alive.append(key)
                    for queue in (plain, favoured):
                        add(queue, key, account=key[0])
                case 2 if mine := [key for key in alive if key.startswith("a")]:
                    favoured.reprioritise(random.choice(mine), 16, 2, favour=random.randint(0, 9))
                case 3 if alive:
                    key = random.choice(alive)
                    alive.remove(key)
                    for queue in (plain, favoured):
                        queue.cancel(key, 2)
            check(favoured)
            owners = [[record.job.account for record in queue.pending] for queue in (plain, favoured)]
            assert owners[0] == owners[1], seed
            mine_now = [record for record in favoured.pending if record.job.account == "a"]
            assert mine_now == sorted(mine_now, key=lambda each: -each.job.favour)


def test_a_place_is_used_once() -> None:
    queue = queue_of()
    for key, account in (("a1", "a"), ("b1", "b"), ("a2", "a")):
        add(queue, key, account=account)
    queue.reprioritise("a2", 16, 2, favour=1)
    queue.finish("running", 3)
    assert [start.task for start in queue.cycle(3)] == ["a2"]
    assert order(queue) == "b1 a1", "a2 used the place of a1"


def test_one_that_leaves_gives_the_places_back() -> None:
    queue = queue_of()
    for key, account in (("a1", "a"), ("b1", "b"), ("a2", "a")):
        add(queue, key, account=account)
    queue.reprioritise("a2", 16, 2, favour=1)
    queue.cancel("a2", 3)
    assert order(queue) == "a1 b1"


def test_a_negative_favour_goes_behind_all_of_its_priority() -> None:
    queue = queue_of()
    add(queue, "low", account="b", priority=10)
    add(queue, "a1", favour=-1)
    add(queue, "a2")
    add(queue, "b1", account="b")
    assert order(queue) == "a2 b1 a1 low"


def test_other_queues_and_ranks_are_not_exchanged() -> None:
    queue = queue_of()
    add(queue, "high", priority=20)
    add(queue, "a1")
    add(queue, "a2", favour=9)
    assert order(queue) == "high a2 a1"


def test_more_jobs_than_exchange_their_places_keep_them() -> None:
    queue = queue_of()
    for number in range(MAX_MEMBERS + 1):
        add(queue, f"a{number}")
    queue.reprioritise("a9", 16, 2, favour=1)
    assert next(iter(queue.pending)).key == "a0"
    queue.cancel("a7", 2)
    queue.reprioritise("a9", 16, 2, favour=2)
    assert next(iter(queue.pending)).key == "a9"
    check(queue)
