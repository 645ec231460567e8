"""What nodes say of themselves, in columns."""

from __future__ import annotations

import pytest

from fluence.cluster import columns as module
from fluence.model.node import Taint
from tests.unit.cluster.build import HOST, ZONE, node
from tests.unit.cluster.filters.columns import columns_of


def test_a_label_is_a_column_of_codes() -> None:
    columns = columns_of(node("n1", zone="a"), node("n2", zone="b"), node("n3", zone="a"), node("n4"))
    zone = columns.label(ZONE)
    assert zone.equals("a").tolist() == [True, False, True, False] and not zone.equals("c").any()
    assert zone.of_values(["b", "c"]).tolist() == [False, True, False, False]
    assert zone.present.tolist() == [True, True, True, False]
    assert zone.where(lambda value: value > "a").tolist() == [False, True, False, False]
    assert not zone.is_unique and columns.label(HOST).is_unique
    assert not columns.label("nobody").present.any()


def test_a_change_moves_the_generation_and_only_that_node() -> None:
    columns = columns_of(node("n1", zone="a"), node("n2", zone="b"))
    zone, before = columns.label(ZONE), columns.generation
    taint = Taint(key="x", effect="NoSchedule")
    columns.update(node("n2", zone="a", unschedulable=True, ready=False, taints=[taint]))
    assert columns.generation == before + 1 and columns.label(ZONE) is zone
    assert zone.equals("a").all()
    assert columns.schedulable.tolist() == columns.ready.tolist() == [True, False]
    assert columns.taints(0) == () and columns.taints(1) == (taint,)


def test_labels_that_were_asked_for_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_LABELS", 2)
    columns = columns_of(node("n1"))
    first, _ = columns.label("a"), columns.label("b")
    assert columns.label("a") is first
    columns.label("c")
    assert columns.label("a") is first and set(columns._labels) == {"a", "c"}
