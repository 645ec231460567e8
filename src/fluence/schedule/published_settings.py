"""Published settings: what a leader decides by, said on its Lease, so that others ask what it asks.

`fluence explain`, `whatif --live` and their like decide in a copy of the cluster. With other settings than
the leader's they would say that there is room where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from fluence.errors import InvalidInput
from fluence.schedule.settings import SchedulerSettings

DECIDING: Final = (
    "match_policy",
    "queue_policy",
    "queue_depth",
    "queue_window",
    "queue_resolution",
    "queue_replan",
    "default_duration",
    "default_durations",
    "enforce_limits",
    "enforce_grace",
    "user_device_limits",
    "queue_device_limits",
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
    """By field, and the keys of those that mean nothing here: a plug-in's policy, or another version's."""

    values: Mapping[str, object] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def publish(settings: SchedulerSettings) -> str:
    """JSON, by the keys of the file; what is as by default is left out."""
    default = SchedulerSettings()
    said = {
        key: getattr(settings, name)
        for key, name in _KEYS.items()
        if getattr(settings, name) != getattr(default, name)
    }
    return msgspec.json.encode(said).decode()


def read_published(text: str) -> PublishedSettings:
    """What `publish` said, by whatever version."""
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
    try:
        msgspec.convert({name: value}, SchedulerSettings)
    except (msgspec.ValidationError, InvalidInput):
        return False
    return True
