"""Build: creates a scheduler from settings, and publishes those that decide, so that other programs create
the same.

`fluence explain`, `whatif --live` and similar commands decide in a copy of the cluster. With other settings
than the leader's, they could report free capacity that the leader does not see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from fluence import plugin_loader
from fluence.errors import InvalidInput
from fluence.queue.history import HISTORY
from fluence.queue.history import find as find_predictor
from fluence.queue.rules import find_priority
from fluence.schedule.scheduler import Scheduler, SchedulerConfig
from fluence.schedule.settings import SchedulerSettings

DECIDING: Final = (
    "scheduler_aliases",
    "match_policy",
    "spread_services",
    "queue_policy",
    "queue_priority",
    "queue_predictor",
    "queue_depth",
    "queue_window",
    "queue_resolution",
    "queue_replan",
    "default_duration",
    "default_durations",
    "max_durations",
    "queues",
    "kueue_queues",
    "enforce_limits",
    "enforce_grace",
    "preemption",
    "non_preempting_queues",
    "preemption_budgets",
    "users_policy",
    "pod_groups",
    "user_device_limits",
    "queue_device_limits",
    "scale_up_after",
    "release_each",
    "group_settle",
    "volume_timeout",
    "open_gates",
    "task_discovery_timeout",
    "topology",
    "devices",
    "resources",
    "resources_configmap",
)
_KEYS: Final = {name.replace("_", "-"): name for name in DECIDING}


@dataclass(frozen=True, slots=True)
class PublishedSettings:
    """Settings by field, and the keys that are unknown here: the policy of a plug-in, or a setting of another
    version."""

    values: Mapping[str, object] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def publish(settings: SchedulerSettings) -> str:
    """The settings as JSON, by the keys of the settings file. Defaults are left out."""
    default = SchedulerSettings()
    said = {
        key: getattr(settings, name)
        for key, name in _KEYS.items()
        if getattr(settings, name) != getattr(default, name)
    }
    return msgspec.json.encode(said).decode()


def read_published(text: str) -> PublishedSettings:
    """Read what `publish` of any version wrote."""
    try:
        said = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return PublishedSettings(unknown=("settings",))
    values: dict[str, object] = {}
    unknown = []
    for key, value in said.items():
        name = _KEYS.get(key)
        if name is not None and _is_valid(name, value):
            values[name] = value
        else:
            unknown.append(key)
    return PublishedSettings(values, tuple(unknown))


def _is_valid(name: str, value: object) -> bool:
    if not plugin_loader.is_allowed(value):
        return False  # code that only the Lease names is not imported here
    try:
        msgspec.convert({name: value}, SchedulerSettings)
    except (msgspec.ValidationError, InvalidInput):
        return False
    return True


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
