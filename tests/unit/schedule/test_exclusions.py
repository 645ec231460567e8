"""Nodes that a group must not have: refused ones for as long as it is there, others for a minute."""

from __future__ import annotations

from fluence.schedule.gangs.groups import Exclusions


def test_a_refused_node_is_excluded_for_its_group_alone_and_for_good() -> None:
    found = Exclusions()
    found.refuse("g", ["n1"])
    found.refuse("g", ["n2"])
    assert found.of("g") == {"n1", "n2"} and set(found.refused("g")) == {"n1", "n2"}
    assert found.of("other") == frozenset() and not found.refused("other")
    assert found.next_due() is None and found.expire(1 << 50) == []
    assert found.of("g") == {"n1", "n2"}


def test_a_node_without_a_volume_is_open_again_after_a_minute() -> None:
    found = Exclusions()
    found.exclude("g", ["n1"], 1000)
    assert found.of("g") == {"n1"} and not found.refused("g")
    assert found.next_due() == 61_000
    assert found.expire(60_999) == [] and found.of("g") == {"n1"}
    assert found.expire(61_000) == ["g"] and found.of("g") == frozenset()
    assert found.next_due() is None and found.expire(61_000) == []


def test_nodes_without_a_volume_end_one_by_one() -> None:
    found = Exclusions()
    found.exclude("g", ["n1", "n2"], 0)
    found.exclude("g", ["n2"], 5_000)  # tried again too early
    found.exclude("other", ["n1"], 10_000)
    assert found.next_due() == 60_000
    assert found.expire(60_000) == ["g"] and found.of("g") == {"n2"}
    assert found.next_due() == 65_000
    assert found.expire(70_000) == ["g", "other"] and found.next_due() is None


def test_a_group_that_got_its_volumes_may_have_all_nodes_but_the_refused() -> None:
    found = Exclusions()
    found.exclude("g", ["n1"], 0)
    found.refuse("g", ["n2"])
    found.clear("g")
    found.clear("unknown")
    assert found.of("g") == {"n2"} and found.next_due() is None


def test_of_a_group_that_is_gone_no_refusal_is_remembered() -> None:
    found = Exclusions()
    found.refuse("g", ["n1"])
    found.refuse("other", ["n1"])
    found.forget("g")
    found.forget("unknown")
    assert found.of("g") == frozenset() and found.of("other") == {"n1"}
