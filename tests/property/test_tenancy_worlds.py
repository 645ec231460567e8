"""Order, quota, share, plan and preemption together, in random worlds of several tenants.

Each decision and each state is judged (`tenancy_world`).

- Q1: no limit is passed at any time. Q2: a new process counts the same. Q3: what is counted is legal. Q4: no
  pod within a guarantee waits for borrowers. Q5: no change of queues ends work unless it drains. Q6: a job
  counts in one leaf. Q7: queues that are not valid change nothing.
- F1: no rank breaks a promise. F4: usage survives a crash. F5: it is never negative, NaN or reset. F2 and F3
  are in `test_fair_share`.
- P1: seats are held for a preemptor, and it runs in the end. P2: victims are as few as possible. P3: they do
  not end each other, nor work that has just started. P4: no gang is left below its minimum. P5: each has the
  right. P6: at last nobody is ended any more. P7: nobody else's promise falls. P8: victims end late.

`make soak` plays 10,000 worlds, and 200 crashes and faults of the server at the writes of a preemption.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from fluence import names
from fluence.model.queues import problems
from tests.amounts import amount
from tests.property.tenancy_world import SECOND, TenancyWorld
from tests.unit.schedule import kit
from tests.unit.schedule.preempting import budget, gang, prioritised

WORLDS = amount(40, quick=8, soak="FLUENCE_TENANTS")
SHARDS = 2
POLICIES = ("easy", "conservative", "fcfs", "first-fit")
LEAVES = ("", "a", "b", "c")
Step = tuple[str, dict[str, Any]]


def a_spec(rng: random.Random, parent: str = "") -> dict[str, Any]:
    limit = rng.choice((0, 0, rng.randint(1, 6)))
    guaranteed = rng.choice((0, rng.randint(1, 3)))
    preemption = {
        "within": rng.choice(("", "", "never", "lower", "lower-or-newer")),
        "reclaim": rng.choice(("", "", "never", "lower", "any", "any")),
        "patience": rng.choice(("", "", "10s", "60s")),
        "minRuntime": rng.choice(("", "", "5s", "30s")),
    }
    preemption = {key: value for key, value in preemption.items() if value}
    per_user = rng.choice(({}, {}, {}, {"running": rng.randint(1, 2)}, {"cpu": rng.randint(1, 3)}))
    return {
        **({"parent": parent} if parent else {}),
        **({"limit": {"cpu": limit}} if limit else {}),
        **({"guaranteed": {"cpu": min(guaranteed, limit or guaranteed)}} if guaranteed else {}),
        **({"perUser": per_user} if per_user else {}),
        **({"preemption": preemption} if preemption else {}),
        **({"weight": rng.choice((0, 2, 5))} if rng.random() < 0.3 else {}),
    }


PARENTS = {"default": "", "top": "", "a": "top", "b": "top", "c": ""}


def a_setup(rng: random.Random) -> dict[str, Any]:
    queues = {name: a_spec(rng, parent) if name != "default" else {} for name, parent in PARENTS.items()}
    if rng.random() < 0.5:
        queues["top"] = {}
    return {
        "nodes": rng.randint(1, 3),
        "cpu": rng.randint(1, 4),
        "policy": rng.choice(POLICIES),
        "queues": queues if rng.random() < 0.9 else {},
    }


def a_step(rng: random.Random) -> Step:
    kind = rng.choices(
        ("submit", "wait", "end", "queue", "restart", "crash", "fail", "budget", "break"),
        (10, 5, 2, 1.5, 0.5, 1, 1, 0.5, 0.3),
    )[0]
    if kind == "submit":
        size = rng.choice((1, 1, 1, 2, 3, 4))
        return kind, {
            "size": size,
            "minimum": max(1, size - rng.choice((0, 0, 1, 2))),
            "priority": rng.choice((0, 0, 10, 20, 30)),
            "cpu": rng.randint(1, 2),
            "limit": rng.choice((None, 20, 100)),
            "used": rng.choice((1.0, 1.0, 0.5)),
            "grace": rng.choice((0, 5, 40)),
            "queue": rng.choice(LEAVES),
            "namespace": rng.choice(("default", "default", "other")),
            "app": rng.random() < 0.2,
            "recreated": rng.random() < 0.6,
        }
    if kind == "wait":
        return kind, {"seconds": rng.choice((1, 5, 15, 60, 90))}
    if kind == "end":
        return kind, {"which": rng.random(), "deleted": rng.random() < 0.5}
    if kind == "queue":
        name = rng.choice(("top", "a", "b", "c"))
        spec: dict[str, Any] | None = a_spec(rng, PARENTS[name])
        stop = rng.choice((None, None, None, "hold", "drain"))
        if spec is not None and stop:
            spec["stop"] = stop
        return kind, {"name": name, "spec": None if rng.random() < 0.1 and name != "top" else spec}
    if kind in ("crash", "fail"):
        return kind, {"writes": rng.choice((0, 1, 2, 3, 5, 8, 13))}
    if kind == "budget":
        return kind, {"allowed": rng.randint(0, 2)}
    return kind, {}


def a_world(seed: int) -> tuple[dict[str, Any], list[Step]]:
    rng = random.Random(seed)
    setup = a_setup(rng)
    return setup, [a_step(rng) for _ in range(rng.randint(5, 30))]


class Play:
    """One world, step by step."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.world = TenancyWorld(setup["nodes"], setup["cpu"], queue_policy=setup["policy"])
        self.serial = 0
        if setup["queues"]:
            self.world.use(**setup["queues"])
            self.world.changed = self.world.now

    def submit(self, **some: Any) -> None:
        self.serial += 1
        world, name = self.world, f"p{self.serial}"
        notes = {names.DURATION: f"{some['limit']}s"} if some["limit"] else {}
        notes |= {names.QUEUE: some["queue"]} if some["queue"] and world.queues else {}
        labels = {"app": "db"} if some["app"] else {}
        more: dict[str, Any] = {
            "cpu": str(some["cpu"]),
            "grace": some["grace"],
            "namespace": some["namespace"],
            "annotations": notes,
        }
        if some["recreated"]:
            owner = kit.owner(f"job-{name}", namespace=some["namespace"])
            world.owners.append(owner)
            world.set_owner(owner)
            more["owner"] = owner
        if some["size"] == 1:
            pods = [prioritised(f"{name}-0", some["priority"], labels=labels, **more)]
        else:
            world.minimum[name] = some["minimum"]
            pods = gang(name, some["size"], some["priority"], minimum=some["minimum"], **more)
        for pod in pods:
            if some["recreated"]:
                world.recreated.add(pod.metadata.name)
            if some["limit"]:
                world.lasts[pod.metadata.uid] = round(some["limit"] * some["used"] * SECOND)
        world.happened += 1
        world.add(*pods)
        world.settle(1)

    def wait(self, seconds: int) -> None:
        self.world.settle(seconds)

    def end(self, which: float, deleted: bool) -> None:
        world = self.world
        some = sorted(world.pods)
        if some:
            name = some[int(which * len(some))]
            world.happened += 1
            if deleted or not world.pods[name].spec.node_name:
                world.recreated.discard(name)
                world.remove(name)
            else:
                world.over(name)
            world.settle(1)

    def queue(self, name: str, spec: dict[str, Any] | None) -> None:
        world = self.world
        if not world.queues:
            return
        running, usage, crashes = world.running, world.usage(), world.crashes
        world.write_queue(name, spec)
        self._change()
        tree = world.tree
        assert tree is not None
        for account, value in usage.items() if crashes == world.crashes else ():
            assert world.usage().get(account, 0.0) >= value * 0.99 - 1e-3, (
                "F5: a change of queues resets usage"
            )
        if not tree.drained and running - world.running:
            over = running - world.running - set(world.deleted)
            assert all(each not in world.pods or each in world.deleted for each in over), "Q5"

    def _change(self) -> None:
        world = self.world
        world.happened += 1
        world.edited = True
        world.changed = world.now + 1500
        world.settle(1.5)
        world.changed = world.now

    def break_(self) -> None:
        """Q7: queues that are not valid together change nothing."""
        world = self.world
        if not world.queues or "a" not in world.queues:
            return
        tree, spec = world.tree, world.queues["a"].spec
        if problems([each.queue() for each in world.queues.values()]):
            return
        world.happened += 1
        world.write_queue("a", {**spec, "parent": "nowhere", "limit": {"cpu": 100}})
        crashes = world.crashes
        world.settle(2)
        if crashes == world.crashes:
            assert world.tree is tree, "Q7"
        else:
            world.edited = True  # NB a crash before statuses are written loses the last valid tree
        world.write_queue("a", spec)
        world.settle(2)

    def restart(self) -> None:
        self.world.restart()
        self.world.settle(1)

    def crash(self, writes: int) -> None:
        self.world.cut = writes

    def fail(self, writes: int) -> None:
        self.world.fails = writes

    def budget(self, allowed: int) -> None:
        world = self.world
        world.budgets.clear()
        world.protect(budget("db", allowed, app="db"))
        world.happened += 1

    def finish(self) -> None:
        """P1, P3, P6: when nothing more comes, who had others ended runs or was ended itself, and at last
        nobody is ended any more, though controllers make new pods. No gang is left below its minimum."""
        world = self.world
        world.cut = world.fails = None
        world.settle(200)
        world.preemptors.clear()
        world.settle(700)
        for uid, name in world.preemptors.items():
            pod = world.pods.get(name)
            runs = pod is not None and pod.spec.node_name is not None
            is_over = pod is None or uid in world.killed
            assert runs or is_over, f"P1: others ended for {name}, which does not run"
        before = len(world.killed)
        world.settle(700)
        assert len(world.killed) == before, "P6"
        assert not world.scheduler.state.preemption._earmarks, "P1: an earmark comes to a start"
        world.at_rest()


def play(setup: dict[str, Any], steps: list[Step]) -> TenancyWorld:
    played = Play(setup)
    for kind, how in steps:
        getattr(played, "break_" if kind == "break" else kind)(**how)
    played.finish()
    return played.world


@pytest.mark.seeded
@pytest.mark.parametrize("shard", range(SHARDS))
def test_worlds_of_several_tenants(shard: int) -> None:
    for seed in range(shard, WORLDS, SHARDS):
        try:
            play(*a_world(seed))
        except BaseException as error:
            error.add_note(f"in world {seed}")
            raise


ROUNDS = amount(20, quick=5, soak="FLUENCE_PREEMPTION_CRASHES")


def a_full_world(rng: random.Random) -> tuple[dict[str, Any], list[Step], dict[str, Any]]:
    """A cluster full of work, and a gang for which some of that must end: by priority, or for a guarantee."""
    nodes, cpu = rng.randint(1, 3), rng.randint(2, 4)
    reclaims = rng.random() < 0.5
    minimum = rng.choice(({}, {"minRuntime": "5s"}))
    patience = rng.choice(({}, {}, {"patience": "30s"}))
    queues: dict[str, Any] = {
        "default": {},
        "a": {"guaranteed": {"cpu": nodes * cpu}, "preemption": {"reclaim": "any", **minimum, **patience}},
        "b": {"preemption": minimum} if minimum else {},
    }
    common = {"cpu": 1, "used": 1.0, "namespace": "default", "app": False}
    steps: list[Step] = []
    room = nodes * cpu
    while room:
        size = min(room, rng.choice((1, 2, 3, 4)))
        room -= size
        how = {
            "size": size,
            "minimum": max(1, size - rng.choice((0, 0, 1))),
            "priority": 0,
            "limit": rng.choice((None, None, 500)),
            "grace": rng.choice((0, 5, 40)),
            "queue": "b",
            "recreated": rng.random() < 0.5,
        }
        steps.append(("submit", {**common, **how}))
    steps.append(("wait", {"seconds": 10}))
    size = rng.randint(1, min(4, nodes * cpu))
    last: dict[str, Any] = {
        "size": size,
        "minimum": size,
        "priority": 0 if reclaims else 10,
        "limit": None,
        "grace": 5,
    }
    last |= {"queue": "a" if reclaims else "b", "recreated": False, **common}
    return {"nodes": nodes, "cpu": cpu, "policy": rng.choice(POLICIES), "queues": queues}, steps, last


FAULTS = "426 2090 2331 2700 3149 3420 3474 3814 3920 5949 7660 8864 10753 10856 20696 20910 21206 21765"


@pytest.mark.parametrize("seed", [int(seed) for seed in FAULTS.split()])
def test_worlds_that_found_a_fault(seed: int) -> None:
    """A change that is taken back broke a promise (2090, 2331); quota was held for too short a time after a
    change (3149); work behind others in a strict order ended them again and again (3420); others ended
    for a pod whose gang was about to end (3814); an earmark was released twice (3920); seats
    went to others that ask for as much (7660); work was spared at the time at which it was to end for quota
    (10753); an order was repeated against a budget that came later (10856), or against the rules of a queue
    (21765); a gang ended without its surplus, which was to end for others (20696); more work ended than was
    needed, because sums forgot the seats of pods that were gone (426); nobody repeated an order on which an
    earmark counted (2700), or it was repeated when the gang had lost another pod (3474); a guarantee was
    reclaimed by the end of work that then continued (5949), or with work that has an earmark (8864); an
    earmark for which a reservation was given up went to others (20910); an end that was decided and taken
    back at once counted as a loss (21206)."""
    play(*a_world(seed))


def a_crash(seed: int) -> None:
    """Preempt once in peace. Then crash, or have the server fail, at one write of the same preemption:
    nobody is ended beside those, and the preemptor runs as before."""
    rng = random.Random(seed)
    setup, steps, last = a_full_world(rng)
    peaceful = Play(setup)
    for kind, how in steps:
        getattr(peaceful, kind)(**how)
    peaceful.world.writes = 0
    peaceful.submit(**last)
    writes = peaceful.world.writes
    peaceful.finish()
    hit = Play(setup)
    for kind, how in steps:
        getattr(hit, kind)(**how)
    world = hit.world
    at = rng.randrange(writes + 1)
    world.cut, world.fails = (at, None) if rng.random() < 0.7 else (None, at)
    hit.submit(**last)
    hit.finish()
    name = f"p{hit.serial}-"
    assert {pod for pod in world.running if pod.startswith(name)} == {
        pod for pod in peaceful.world.running if pod.startswith(name)
    }, "no earmark is lost"
    ended, needed = (len({pod.metadata.uid for pod in each.ended_pods}) for each in (world, peaceful.world))
    assert ended <= needed, f"{ended} were ended where {needed} sufficed"


@pytest.mark.seeded
def test_crashes_and_faults_at_each_write_of_a_preemption() -> None:
    for seed in range(ROUNDS):
        try:
            a_crash(seed)
        except BaseException as error:
            error.add_note(f"in round {seed}")
            raise
