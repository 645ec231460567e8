"""One function builds the scheduler that settings describe, for a live cluster and for the one in memory."""

from dataclasses import replace

from fluence.cluster.layout import GraphLayout
from fluence.kube.access import Access
from fluence.kube.client import Client
from fluence.live.scheduler import LiveScheduler
from fluence.queue.rules import QueueRules
from fluence.schedule.build import scheduler_for
from fluence.schedule.scheduler import SchedulerConfig
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


def test_every_setting_of_the_cycle_reaches_the_scheduler() -> None:
    assert scheduler_for(SETTINGS).config == SchedulerConfig(
        scheduler_name="other",
        layout=GraphLayout(levels=(("rack", "example.com/rack"),)),
        match_policy="low",
        release_each=True,
        queue_policy="conservative",
        rules={"": QueueRules(default_limit=60_000)},
        depth=7,
        window=90_000,
        resolution=1000,
        replan=True,
        backoff=(2_000, 30_000),
        volume_timeout=5_000,
    )


def test_the_cluster_in_memory_and_the_live_one_have_the_same_scheduler() -> None:
    live = LiveScheduler(Client(Access(server="http://127.0.0.1:1")), SETTINGS).scheduler.config
    embedded = EmbeddedCluster([], settings=SETTINGS).scheduler.config
    assert embedded.native and not live.native  # that is asked of the server later
    assert replace(live, native=True, timer=None) == embedded
