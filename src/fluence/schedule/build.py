"""Build: a scheduler from its settings; the live scheduler and the embedded cluster are built alike."""

from __future__ import annotations

from collections.abc import Callable

from fluence.schedule.scheduler import Scheduler, SchedulerConfig
from fluence.schedule.settings import SchedulerSettings


def scheduler_for(
    settings: SchedulerSettings,
    *,
    native: bool = False,
    systems: frozenset[str] = frozenset(),
    history: bool = False,
    timer: Callable[[], float] | None = None,
) -> Scheduler:
    """``native``: the server has PodGroups. ``systems``: the other systems of which it has them. ``history``:
    what happens to jobs is to be told to the history. ``timer`` gives seconds, to bound what plug-ins
    take."""
    return Scheduler(
        SchedulerConfig(
            scheduler_name=settings.scheduler_name,
            native=native,
            systems=systems,
            layout=settings.layout(),
            match_policy=settings.match_policy,
            release_each=settings.release_each,
            queue_policy=settings.queue_policy,
            rules=settings.rules(),
            depth=settings.queue_depth,
            window=None if settings.queue_window is None else settings.queue_window * 1000,
            resolution=settings.queue_resolution,
            replan=settings.queue_replan,
            backoff=(int(settings.backoff * 1000), int(settings.backoff_max * 1000)),
            settle=int(settings.group_settle * 1000),
            volume_timeout=int(settings.volume_timeout * 1000),
            enforce=settings.enforced_queues(),
            enforce_grace=settings.enforce_grace * 1000,
            open_gates=settings.open_gates,
            announce_timeout=int(settings.task_discovery_timeout * 1000),
            history=history,
            timer=timer,
        )
    )
