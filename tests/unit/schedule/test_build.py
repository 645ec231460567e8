"""One function builds the scheduler that settings describe, for a live cluster and for the one in memory."""

from fluence.kube.access import Access
from fluence.kube.client import Client
from fluence.live.scheduler import LiveScheduler
from fluence.schedule.build import scheduler_for
from fluence.schedule.cycle import Scheduler
from fluence.schedule.settings import SchedulerSettings
from fluence.sim.cluster import EmbeddedCluster

SETTINGS = SchedulerSettings(
    scheduler_name="other",
    match_policy="low",
    queue_policy="conservative",
    queue_depth=7,
    queue_window=90,
    queue_resolution=1000,
    queue_replan=True,
    default_duration=60,
    release_each=True,
    backoff=2.0,
    backoff_max=30.0,
    volume_timeout=5.0,
    topology=("rack=example.com/rack",),
)


def described(scheduler: Scheduler) -> dict[str, object]:
    queue = scheduler.queue
    return {
        "name": scheduler.groups.scheduler,
        "match policy": scheduler.cluster.policy,
        "levels": scheduler.cluster.layout.levels,
        "release each": scheduler.cluster.release_each,
        "queue policy": queue.policy.name,
        "depth": queue.depth,
        "window": queue.window,
        "resolution": queue.resolution,
        "replan": queue.replan,
        "limit": queue.rules[""].default_limit,
        "backoff": scheduler.backoff,
        "volume timeout": scheduler.preparing.timeout,
    }


def test_every_setting_of_the_cycle_reaches_the_scheduler() -> None:
    assert described(scheduler_for(SETTINGS)) == {
        "name": "other",
        "match policy": "low",
        "levels": (("rack", "example.com/rack"),),
        "release each": True,
        "queue policy": "conservative",
        "depth": 7,
        "window": 90_000,
        "resolution": 1000,
        "replan": True,
        "limit": 60_000,
        "backoff": (2_000, 30_000),
        "volume timeout": 5_000,
    }


def test_the_cluster_in_memory_and_the_live_one_have_the_same_scheduler() -> None:
    live = LiveScheduler(Client(Access(server="http://127.0.0.1:1")), SETTINGS)
    embedded = EmbeddedCluster([], settings=SETTINGS)
    assert described(live.scheduler) == described(embedded.scheduler) == described(scheduler_for(SETTINGS))
