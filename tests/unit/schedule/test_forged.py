"""Names, times and references that somebody made up, and what they do to others: nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fluence import names
from fluence.model.reason import Code
from fluence.queue.history import History
from fluence.queue.job import Submission
from fluence.schedule.settings import SchedulerSettings
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_devices import QPUS, asks
from tests.unit.schedule.test_devices import World as DeviceWorld
from tests.unit.schedule.test_groups import only
from tests.unit.schedule.test_promised_starts import NOW, SECOND, node

# -- users and queues ----------------------------------------------------------------------------------------


def test_the_name_of_another_namespaces_user_takes_nothing_of_that_users_limit() -> None:
    rules = SchedulerSettings(user_device_limits={"batch/licence": 1}).rules()
    world = DeviceWorld(QPUS, cpu="16", rules=rules)
    ada = {names.QUEUE: "batch", names.USER: "ada"}
    assert world.run(asks("evil", namespace="evil", licence=1, annotations=ada)).keys() == {"evil"}
    assert world.run(asks("good", namespace="good", licence=1, annotations=ada)).keys() == {"good"}


def test_runs_under_the_name_of_another_namespaces_user_teach_nothing_about_that_user() -> None:
    history = History()
    good, evil = (
        Submission("k", None, 0, limit=100 * SECOND, user="ada", account=each) for each in ("good", "evil")
    )
    history.learn(good, 1, 90 * SECOND)
    for _ in range(50):
        history.learn(evil, 1, 1)
    assert history.predict(good, 1, 0) == history.predict(good, 2, 0) == 90 * SECOND


@pytest.mark.parametrize("key", [names.USER, names.QUEUE])
def test_a_name_longer_than_any_name_is_refused_and_not_kept(key: str) -> None:
    found = only(kit.pod("a", annotations={key: "x" * 254}))
    assert found.fault is not None and found.fault.code is Code.ANNOTATION_TOO_LONG
    assert len(found.user) < 100 and found.queue == ""


# -- age -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", ["group", "member"])
def test_a_group_or_an_ended_member_that_is_kept_for_its_age_lets_nobody_go_first(old: str) -> None:
    driver = Driver(native=True)
    driver.set_node(node("n0", 2))
    year = 365 * 86_400
    if old == "group":
        driver.set_group(kit.group("g", 1, created=kit.T0 - timedelta(seconds=year)))
        driver.set_pod(kit.pod("evil", field="g", cpu="2"))
    else:
        note = {kit.SIZE: "1"}
        labels = {kit.GROUP: "g"}
        driver.set_pod(kit.pod("kept", age=year, phase="Succeeded", labels=labels, annotations=note))
        driver.set_pod(kit.pod("evil", labels=labels, annotations=note, cpu="2"))
    driver.set_pod(kit.pod("good", namespace="good", age=60, cpu="2"))
    (binds,) = driver.cycle(NOW).binds
    assert [bind.pod.metadata.name for bind in binds] == ["good"]
