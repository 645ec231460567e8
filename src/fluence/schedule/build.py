"""Build: creates a scheduler from settings, in the same way for the live scheduler and the embedded
cluster."""

from __future__ import annotations

from collections.abc import Callable

from fluence.queue.history import HISTORY
from fluence.queue.history import find as find_predictor
from fluence.queue.rules import find_priority
from fluence.schedule.scheduler import Scheduler, SchedulerConfig
from fluence.schedule.settings import SchedulerSettings


def scheduler_for(
    settings: SchedulerSettings,
    *,
    native: bool = False,
    systems: frozenset[str] = frozenset(),
    looks: bool = False,
    history: bool = False,
    queue_statuses: bool = True,
    timer: Callable[[], float] | None = None,
) -> Scheduler:
    """``native``: the server has PodGroups. ``systems``: other systems whose PodGroups it has. ``looks``:
    unknown kinds of operators are looked up. ``history``: entries for the history are made.
    ``queue_statuses``: statuses of Queues are made. ``timer`` returns seconds and limits the time of
    plug-ins."""
    predictor = settings.queue_predictor
    return Scheduler(
        SchedulerConfig(
            scheduler_name=settings.scheduler_name,
            native=native,
            systems=systems,
            looks=looks,
            layout=settings.layout(),
            match_policy=settings.match_policy,
            spread_services=settings.spread_services,
            release_each=settings.release_each,
            queue_policy=settings.queue_policy,
            priority=find_priority(settings.queue_priority),
            predictor=None if predictor == HISTORY else find_predictor(predictor),
            rules=settings.rules(),
            queues=settings.queue_names(),
            depth=settings.queue_depth,
            window=None if settings.queue_window is None else settings.queue_window * 1000,
            resolution=settings.queue_resolution,
            replan=settings.queue_replan,
            backoff=(int(settings.backoff * 1000), int(settings.backoff_max * 1000)),
            settle=int(settings.group_settle * 1000),
            volume_timeout=int(settings.volume_timeout * 1000),
            enforce=settings.enforced_queues(),
            enforce_grace=settings.enforce_grace * 1000,
            preemption=settings.preemption_rules(),
            open_gates=settings.open_gates,
            announce_timeout=int(settings.task_discovery_timeout * 1000),
            scale_up_after=None if settings.scale_up_after is None else settings.scale_up_after * 1000,
            history=history,
            queue_statuses=queue_statuses,
            timer=timer,
        )
    )
