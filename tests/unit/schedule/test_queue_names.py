"""Queues that settings name: others are refused, and so are durations above a maximum."""

from __future__ import annotations

from typing import Any

import pytest

from fluence import names
from fluence.errors import InvalidInput
from fluence.live.metrics import Metrics
from fluence.messages import texts
from fluence.model.job_state import JobState
from fluence.schedule.build import scheduler_for
from fluence.schedule.events import Changed
from fluence.schedule.settings import SchedulerSettings
from tests.unit.cluster.build import node
from tests.unit.schedule import kit

NOW = int(kit.T0.timestamp() * 1000)


def outcome(settings: SchedulerSettings, **annotations: str) -> str:
    """`started`, or why it does not start; and the metric says the same."""
    scheduler = scheduler_for(settings)
    keys = {"queue": names.QUEUE, "duration": names.DURATION}
    pod = kit.pod("a", annotations={keys[key]: text for key, text in annotations.items()})
    decisions = scheduler.handle([Changed(None, node("n1")), Changed(None, pod)], NOW)
    metrics = Metrics(scheduler, profile="fluence")
    metrics.refresh()
    refused = [line for line in metrics.text().decode().splitlines() if line.startswith("fluence_refused_")]
    assert len(refused) == 5
    if decisions.binds:
        assert all(line.endswith(" 0.0") for line in refused)
        return "started"
    (waiting,) = decisions.waiting
    assert waiting.report.state is JobState.UNSCHEDULABLE
    (reason,) = waiting.reasons
    assert f'fluence_refused_groups{{reason="{reason.code.value}"}} 1.0' in refused
    return texts(waiting.reasons)


@pytest.mark.parametrize(
    "settings",
    [
        {"enforce_limits": {"debug": "end"}},
        {"default_durations": {"debug": "30m"}},
        {"max_durations": {"debug": "30m"}},
        {"queue_device_limits": {"debug/qpu": 1}},
        {"user_device_limits": {"debug/qpu": 1}},
        {"queues": ("debug",)},
        {"non_preempting_queues": ("debug",)},
    ],
)
def test_a_misspelt_queue_does_not_escape_the_rules_of_the_one_that_was_meant(
    settings: dict[str, Any],
) -> None:
    made = SchedulerSettings(**settings)
    assert outcome(made, queue="debgu", duration="5m") == "Queue 'debgu' does not exist: did you mean debug?"
    assert outcome(made, queue="debug", duration="5m") == "started"
    assert outcome(made) == "started"


def test_more_queues_are_named_in_a_setting_of_their_own() -> None:
    assert (
        outcome(SchedulerSettings(queues=("batch",), enforce_limits={"debug": "end"}), queue="batch")
        == "started"
    )
    any_name = SchedulerSettings(queues=("*",), enforce_limits={"debug": "end"})
    assert outcome(any_name, queue="mine") == "started"
    assert outcome(SchedulerSettings(enforce_limits={"-": "end"}), queue="mine") == "started"


def test_off_is_not_the_name_of_a_queue() -> None:
    """It keeps work from being held; the rules for pods without a queue are those that count."""
    assert outcome(SchedulerSettings(queues=("debug",)), queue="off") == "started"
    most = SchedulerSettings(max_durations={"-": "1h"})
    assert outcome(most, queue="off", duration="2h").startswith("Its time limit of 2 h exceeds the maximum")


def test_a_duration_above_the_maximum_of_its_queue_is_refused() -> None:
    made = SchedulerSettings(max_durations={"debug": "30m", "-": "2h"})
    text = "Its time limit of 1 h exceeds the maximum of queue debug, 30 min: request less"
    assert outcome(made, queue="debug", duration="1h") == text
    assert outcome(made, queue="debug", duration="30m") == "started"
    assert outcome(made, duration="1h") == "started"
    assert outcome(made, duration="3h").startswith(
        "Its time limit of 3 h exceeds the maximum of jobs without"
    )


def test_maxima_are_durations_and_not_below_the_default() -> None:
    with pytest.raises(InvalidInput, match=r"max-durations.*2h30m"):
        SchedulerSettings(max_durations={"debug": "long"})
    with pytest.raises(InvalidInput, match=r"max-durations.*lower the default"):
        SchedulerSettings(max_durations={"debug": "10m"}, default_durations={"debug": "30m"})
