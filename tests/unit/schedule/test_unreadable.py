"""What cannot be read holds a gang back with the cure; it never makes single pods out of a gang."""

from __future__ import annotations

import pytest

from fluence import names
from fluence.schedule.groups import Groups
from tests.unit.schedule.kit import GROUP, SIZE, owner, pod, ranks

BAD_SIZES = ["0", "-3", "three", "2.5", "1e3", "٣", "0x8", "８", "100001", "9" * 40]


@pytest.mark.parametrize("text", BAD_SIZES)
@pytest.mark.parametrize("spelling", names.GROUP_SIZES)
def test_a_size_that_cannot_be_read_holds_the_gang_of_its_owner(text: str, spelling: str) -> None:
    groups, job = Groups(), owner("j", parallelism=2)
    groups.set_owner(job)
    for each in ranks(2, owner=job, annotations={spelling: text}):
        groups.set_pod(each)
    (gang,) = groups.gangs()
    assert not gang.is_single and not gang.is_ready and gang.fault


@pytest.mark.parametrize("text", BAD_SIZES)
def test_a_size_that_cannot_be_read_holds_a_pod_without_an_owner(text: str) -> None:
    groups = Groups()
    groups.set_pod(pod("p", annotations={SIZE: text}))
    (gang,) = groups.gangs()
    assert not gang.is_ready and gang.fault


def test_a_size_that_cannot_be_read_on_the_owner_holds_its_pods() -> None:
    groups, job = Groups(), owner("j", parallelism=2, annotations={SIZE: "0x8"})
    groups.set_owner(job)
    for each in ranks(2, owner=job):
        groups.set_pod(each)
    (gang,) = groups.gangs()
    assert gang.key == "default/job:j" and not gang.is_ready and gang.fault


def test_a_group_name_that_cannot_be_read_holds_the_pod() -> None:
    groups = Groups()
    groups.set_pod(pod("p", annotations={GROUP: "../../etc"}))
    (gang,) = groups.gangs()
    assert not gang.is_ready and gang.fault


@pytest.mark.parametrize("key", [names.DURATION, names.SOFT_DURATION])
def test_a_duration_that_cannot_be_read_holds_the_gang(key: str) -> None:
    groups = Groups()
    groups.set_pod(pod("p", annotations={key: "soon"}))
    (gang,) = groups.gangs()
    assert not gang.is_ready and gang.fault
