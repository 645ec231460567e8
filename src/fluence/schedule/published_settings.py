"""Published settings: the settings that decide, written by the leader on its Lease, so that other programs
use them too.

`fluence explain`, `whatif --live` and similar commands decide in a copy of the cluster. With other settings
than the leader's, they could report free capacity that the leader does not see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from fluence import plugin_loader
from fluence.errors import InvalidInput
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
