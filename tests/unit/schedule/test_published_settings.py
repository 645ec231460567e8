"""What a leader says of its settings: others decide by them, and nothing else is said."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluence.config import load
from fluence.schedule.build import DECIDING, publish, read_published, scheduler_for
from fluence.schedule.settings import SchedulerSettings

VALUES: dict[str, list[Any]] = {
    "match_policy": ["lonode", "high"],
    "queue_policy": ["fcfs", "easy", "conservative"],
    "queue_depth": [1, 32],
    "queue_window": [None, 60],
    "queue_resolution": [1, 500],
    "queue_replan": [True, False],
    "default_duration": [None, 3600],
    "default_durations": [{}, {"debug": "30m"}],
    "max_durations": [{}, {"debug": "1h", "-": "2d"}],
    "queues": [(), ("debug", "batch"), ("*",)],
    "enforce_limits": [{}, {"debug": "end", "-": "warn"}],
    "enforce_grace": [0, 60],
    "user_device_limits": [{}, {"-/qpu": 1}],
    "queue_device_limits": [{}, {"debug/qpu": 2}],
    "release_each": [True, False],
    "volume_timeout": [1.5, 600.0],
    "open_gates": [True, False],
    "task_discovery_timeout": [5.0, 60.0],
    "topology": [(), ("rack=example.com/rack", "zone=topology.kubernetes.io/zone")],
    "devices": [(), ("example.com/fpga=fpga",)],
    "resources": [None, "/etc/fluence/resources.yaml"],
    "resources_configmap": ["", "physics/devices"],
}
some_settings = st.fixed_dictionaries({}, optional={key: st.sampled_from(of) for key, of in VALUES.items()})


@given(some_settings)
def test_who_reads_them_decides_alike(chosen: dict[str, Any]) -> None:
    leader = SchedulerSettings(**chosen)
    found = read_published(publish(leader))
    assert not found.unknown
    own = load(SchedulerSettings, base=found.values).settings
    assert {name: getattr(own, name) for name in DECIDING} == {
        name: getattr(leader, name) for name in DECIDING
    }
    assert (own.rules(), own.layout()) == (leader.rules(), leader.layout())


@given(some_settings)
def test_a_user_who_says_otherwise_is_heard(chosen: dict[str, Any]) -> None:
    found = read_published(publish(SchedulerSettings(**chosen)))
    own = load(
        SchedulerSettings,
        base=found.values,
        environ={"FLUENCE_MATCH_POLICY": "hinode"},
        flags={"queue_policy": "fcfs"},
    )
    assert (own.settings.match_policy, own.settings.queue_policy) == ("hinode", "fcfs")


def test_nothing_is_said_that_decides_nothing() -> None:
    secret = SchedulerSettings(
        database_url="postgresql://me:secret@db/fluence", kubeconfig="/home/me/config", match_policy="high"
    )
    assert json.loads(publish(secret)) == {"match-policy": "high"}
    assert publish(SchedulerSettings()) == "{}"


def test_all_that_a_scheduler_is_built_from_is_said() -> None:
    """But for its name, which stands beside it, and how long it pauses after a bind that failed."""
    used: set[str] = set()

    class Watched(SchedulerSettings, frozen=True, kw_only=True):
        def __getattribute__(self, name: str) -> Any:
            used.add(name)
            return super().__getattribute__(name)

    watched = Watched()
    used.clear()
    scheduler_for(watched)
    fields = {each.name for each in msgspec.structs.fields(SchedulerSettings)}
    assert {"match_policy", "topology", "user_device_limits"} <= used
    assert (used & fields) - set(DECIDING) == {"scheduler_name", "backoff", "backoff_max"}


@pytest.mark.parametrize(
    ("text", "unknown", "values"),
    [
        ("", ("settings",), {}),
        ("[1]", ("settings",), {}),
        ('{"match-policy":"ours","queue-depth":7}', ("match-policy",), {"queue_depth": 7}),
        ('{"queue-depth":"many","colour":"red"}', ("queue-depth", "colour"), {}),
        ('{"database-url":"sqlite:///x","kubeconfig":"/x"}', ("database-url", "kubeconfig"), {}),
        ('{"topology":["rack"]}', ("topology",), {}),
    ],
)
def test_what_means_nothing_here_is_named_and_left_out(
    text: str, unknown: tuple[str, ...], values: dict[str, Any]
) -> None:
    found = read_published(text)
    assert (found.unknown, found.values) == (unknown, values)


@given(st.text() | st.recursive(st.none() | st.booleans() | st.text(), st.lists).map(json.dumps))
def test_whatever_stands_there_is_read(text: str) -> None:
    load(SchedulerSettings, base=read_published(text).values)
