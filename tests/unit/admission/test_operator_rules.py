"""Which objects of operators are suspended at admission, and that nothing else of them is changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fluence import names
from fluence.admission.review import Admitted, admit
from fluence.admission.scopes import OPERATOR_KINDS, AdmissionOptions, DoorMode, scopes
from fluence.model.operators import OPERATORS
from tests.operator_objects import Change, changes_of, operator_object

SCOPE = next(
    each for each in scopes(AdmissionOptions(doors=DoorMode.NAMESPACES)) if each.name == "operators-held"
)


def admitted(found: Any) -> Admitted:
    return admit(SCOPE, found, kind=found["kind"], namespace="ns", variables={})


@pytest.mark.parametrize("kind", OPERATOR_KINDS)
def test_a_new_object_is_suspended_and_marked_and_nothing_else(kind: str) -> None:
    found = operator_object(kind)
    made = admitted(found).object
    assert made["metadata"].pop("labels") == {names.SEEN: names.SEEN_YES}
    operator = next(each for each in OPERATORS if each.kind == kind)
    inner = made["spec"]
    for step in operator.suspend[:-1]:
        inner = inner[step]
    assert inner.pop(operator.suspend[-1]) is True
    wanted = copy.deepcopy(found)
    if len(operator.suspend) > 1:
        wanted["spec"].setdefault(operator.suspend[0], {})
    assert made == wanted
    assert admitted(found).rules == (f"suspend-{kind.lower()}",)


@pytest.mark.parametrize(
    "kind,change",
    [
        pytest.param(kind, change, id=f"{kind} {change.name}")
        for kind in OPERATOR_KINDS
        for change in changes_of(kind)
    ],
)
def test_an_object_is_left_alone_if_others_decide_about_it(kind: str, change: Change) -> None:
    found = operator_object(kind)
    change.apply(found)
    assert bool(admitted(found).patch) == change.is_held


def test_what_is_held_is_not_held_again() -> None:
    made = admitted(operator_object("JobSet")).object
    assert not admitted(made).patch


@pytest.mark.parametrize(
    "change", [{"shutdownAfterJobFinishes": False}, {"clusterSelector": {"a": "b"}}, {"rayClusterSpec": None}]
)
def test_a_ray_job_that_cannot_be_suspended_is_left_alone(change: Any) -> None:
    found = operator_object("RayJob")
    found["spec"].update(change)
    assert not admitted(found).patch


def test_a_site_chooses_the_kinds() -> None:
    options = AdmissionOptions(doors=DoorMode.NAMESPACES, operators=("JobSet",))
    (found,) = [each for each in scopes(options) if each.name == "operators-held"]
    assert found.kinds == ("JobSet",)
    options = AdmissionOptions(doors=DoorMode.NAMESPACES, operators=())
    assert "operators-held" not in [each.name for each in scopes(options)]
