"""Build the scheduler that the settings describe: one function for the live cluster and the one in memory."""

from __future__ import annotations

from fluence.schedule.cycle import Scheduler, cluster_for
from fluence.schedule.groups import Groups
from fluence.schedule.settings import SchedulerSettings


def scheduler_for(settings: SchedulerSettings, *, native: bool = False) -> Scheduler:
    """A scheduler that has seen nothing yet; ``native``: the server is known to have PodGroups."""
    return Scheduler(
        Groups(scheduler=settings.scheduler_name, native=native),
        cluster_for(settings.layout(), policy=settings.match_policy, release_each=settings.release_each),
        policy=settings.queue_policy,
        rules=settings.rules(),
        depth=settings.queue_depth,
        window=None if settings.queue_window is None else settings.queue_window * 1000,
        resolution=settings.queue_resolution,
        replan=settings.queue_replan,
        backoff=(int(settings.backoff * 1000), int(settings.backoff_max * 1000)),
        volume_timeout=int(settings.volume_timeout * 1000),
    )
