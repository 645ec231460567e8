"""One function builds the scheduler that settings describe, for a live cluster and for the one in memory."""

from dataclasses import replace

import pytest

from fluence.cluster.layout import GraphLayout
from fluence.errors import InvalidInput
from fluence.kube.access import Access
from fluence.kube.client import Client
from fluence.live.scheduler import LiveScheduler
from fluence.queue.rules import QueueRules
from fluence.schedule.build import scheduler_for
from fluence.schedule.events import Bind
from fluence.schedule.overruns import LimitMode
from fluence.schedule.scheduler import SchedulerConfig
from fluence.schedule.settings import SchedulerSettings
from fluence.sim.cluster import EmbeddedCluster
from tests.unit.schedule import kit

SETTINGS = SchedulerSettings(
    scheduler_name="other",
    match_policy="low",
    queue_policy="conservative",
    queue_depth=7,
    queue_window=90,
    queue_resolution=1000,
    queue_replan=True,
    default_duration=60,
    enforce_limits={"-": "warn", "batch": "end"},
    enforce_grace=90,
    release_each=True,
    group_settle=9.5,
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
        rules={
            "": QueueRules(default_limit=60_000),
            "batch": QueueRules(enforced=True, grace=90_000),
        },
        queues=frozenset(("batch",)),
        enforce={"": LimitMode.WARN, "batch": LimitMode.END},
        enforce_grace=90_000,
        depth=7,
        window=90_000,
        resolution=1000,
        replan=True,
        backoff=(2_000, 30_000),
        settle=9_500,
        volume_timeout=5_000,
    )


def test_the_cluster_in_memory_and_the_live_one_have_the_same_scheduler() -> None:
    live = LiveScheduler(Client(Access(server="http://127.0.0.1:1")), SETTINGS).scheduler.config
    embedded = EmbeddedCluster([], settings=SETTINGS).scheduler.config
    assert embedded.native and not live.native  # that is asked of the server later
    assert live.looks and not embedded.looks  # for kinds that are installed later
    assert replace(live, native=True, looks=False, timer=None, queue_statuses=False) == embedded


# Settings that are no business of the cycle: the edge reads them itself.
EDGE = {
    "kueue_queues",
    "users_policy",
    "pod_groups",
    "scheduler_aliases",
    "traces",
    "kubeconfig",
    "context",
    "resources",
    "resources_configmap",
    "qps",
    "in_flight",
    "flux_jobs",
    "gather",
    "history",
    "database_url",
    "history_age",
    "history_size",
    "lease",
    "lease_name",
    "lease_namespace",
    "lease_duration",
    "lease_renew",
    "lease_retry",
    "stuck_after",
    "health_address",
    "metrics_address",
    "view_address",
    "log_format",
    "log_level",
}
OTHERS = {
    "scheduler_name": "other",
    "match_policy": "low",
    "spread_services": False,
    "queue_policy": "fcfs",
    "queue_priority": "fluence.queue.policy:fcfs",
    "queue_predictor": "fluence.queue.history:History",
    "queue_depth": 7,
    "queue_window": 90,
    "queue_resolution": 1000,
    "queue_replan": True,
    "default_duration": 60,
    "default_durations": {"debug": "30m"},
    "max_durations": {"debug": "1h"},
    "queues": ("debug",),
    "enforce_limits": {"batch": "warn"},
    "enforce_grace": 90,
    "preemption": False,
    "non_preempting_queues": ("batch",),
    "preemption_budgets": "soft",
    "user_device_limits": {"batch/qpu": 1},
    "queue_device_limits": {"-/qpu": 1},
    "scale_up_after": 600,
    "release_each": True,
    "group_settle": 9.5,
    "backoff": 2.0,
    "backoff_max": 30.0,
    "volume_timeout": 5.0,
    "task_discovery_timeout": 5.0,
    "open_gates": False,
    "topology": ("rack=example.com/rack",),
    "devices": ("example.com/fpga=fpga",),
}


def test_every_setting_is_for_the_edge_or_for_the_cycle() -> None:
    assert set(SchedulerSettings.__struct_fields__) == EDGE | OTHERS.keys()


@pytest.mark.parametrize("name", OTHERS)
def test_each_setting_changes_the_scheduler_by_itself(name: str) -> None:
    plain = scheduler_for(SchedulerSettings()).config
    assert scheduler_for(SchedulerSettings(**{name: OTHERS[name]})).config != plain  # type: ignore[arg-type]


def test_a_scheduler_has_what_its_config_says() -> None:
    state = scheduler_for(SETTINGS, native=True).state
    assert (state.groups.scheduler, state.groups.native) == ("other", True)
    assert state.volumes.timeout == 5_000
    bind = Bind(kit.pod("a"), "n1", "default/pod:a", {})
    for pause in (2_000, 4_000, 8_000, 16_000, 30_000):
        state.retries.add(bind, 0)
        assert state.retries.next_due() == pause


def test_settings_and_a_config_have_the_same_defaults() -> None:
    assert scheduler_for(SchedulerSettings()).config == SchedulerConfig(layout=SchedulerSettings().layout())


def test_the_default_scheduler_is_a_name_and_no_alias() -> None:
    """By the name, reasons say whether pods without schedulerName are placed by kube-scheduler."""
    with pytest.raises(InvalidInput, match="default-scheduler cannot be an alias: set scheduler-name to it"):
        SchedulerSettings(scheduler_aliases=("default-scheduler",))
    assert SchedulerSettings(scheduler_name="default-scheduler", scheduler_aliases=("fluence",))
