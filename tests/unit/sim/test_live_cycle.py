"""The engine of manifests: the live cycle to its end, cut short, and interrupted."""

from fluence.sandbox.nodes import NodeKind, manifests
from fluence.sim import live_cycle
from fluence.sim.live_cycle import Arrival, ManifestWorkload

from .test_cluster import job

NODES = manifests(NodeKind(count=2, cpu=4))


def workload(*arrivals: tuple[int, str]) -> ManifestWorkload:
    sleep = ("sleep", "10")
    return ManifestWorkload(
        tuple(Arrival(at, job(name, 2, cpu="4", command=sleep), name) for at, name in arrivals), "test"
    )


def test_a_run_to_its_end() -> None:
    done = live_cycle.simulate(workload((0, "a"), (2500, "b")), NODES)
    assert [(each.name, each.submit, each.start, each.end) for each in done.records] == [
        ("default/a", 0, 0, 10_000),
        ("default/b", 2500, 10_000, 20_000),
    ]
    assert (done.capacity, done.now, done.stopped_at) == (8000, 20_000, None)


def test_a_run_that_is_stopped_knows_when() -> None:
    done = live_cycle.simulate(workload((0, "a"), (2500, "b")), NODES, until=5000)
    assert (done.stopped_at, done.interrupted) == (5000, False)
    assert [each.start for each in done.records] == [0, None]


def test_ctrl_c_leaves_what_is_known_by_then() -> None:
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    done = live_cycle.simulate(workload((0, "a"), (2500, "b")), NODES, progress=interrupt)
    assert (done.stopped_at, done.interrupted) == (0, True)
    assert [(each.name, each.start) for each in done.records] == [("default/a", 0)]


def test_arrivals_can_be_scaled_and_are_exact() -> None:
    assert [each.at for each in workload((0, "a"), (2500, "b")).scaled(0.5).arrivals] == [0, 1250]
