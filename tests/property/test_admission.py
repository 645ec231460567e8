"""Admission on any object: twice is once, and pods of other schedulers are as they were."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluence import names
from fluence.admission.patch import apply
from fluence.admission.review import Admitted, admit, answer
from fluence.admission.scopes import AdmissionOptions, DoorMode, scopes
from fluence.errors import InvalidInput
from tests.admission_objects import VARIABLES, pod, workload

SCOPES = scopes(AdmissionOptions(doors=DoorMode.NAMESPACES))
objects = st.randoms(use_true_random=False).map(lambda rng: pod(rng) if rng.random() < 0.6 else workload(rng))


def through(found: dict[str, Any], held: bool) -> Admitted:
    kind = found["kind"]
    for scope in SCOPES:
        if kind in scope.kinds and scope.name.endswith("-held") == held:
            return admit(scope, found, kind=kind, namespace="ns", variables=VARIABLES)
    return Admitted(found)


@given(objects, st.booleans())
def test_once_is_enough_and_the_patch_is_the_change(found: dict[str, Any], held: bool) -> None:
    before = copy.deepcopy(found)
    made = through(found, held)
    assert found == before
    assert apply(found, made.patch) == made.object
    assert not through(made.object, held).patch


@given(objects)
def test_objects_of_other_schedulers_are_as_they_were(found: dict[str, Any]) -> None:
    spec = found["spec"] if found["kind"] == "Pod" else found["spec"]["template"]["spec"]
    spec["schedulerName"] = "other"
    assert through(found, False).object is found
    meta = found["metadata"] if found["kind"] == "Pod" else found["spec"]["template"]["metadata"]
    if names.SEEN not in (meta.get("labels") or {}):
        assert through(found, True).object is found


@given(objects, st.booleans())
def test_nothing_is_lost_but_devices_of_those_who_wait(found: dict[str, Any], held: bool) -> None:
    made = through(found, held).object
    for each, after in zip(_containers(found), _containers(made), strict=True):
        own = {one["name"]: one for one in each.get("env") or ()}
        now = {one["name"]: one for one in after.get("env") or ()}
        assert own.items() <= now.items()
        for side in ("limits", "requests"):
            lost = {*each.get("resources", {}).get(side, {})} - {*after.get("resources", {}).get(side, {})}
            assert not lost or "consumer" in str(made["metadata"]["annotations"])
            assert all(key.startswith(names.DEVICE_PREFIX) for key in lost)


def _containers(found: dict[str, Any]) -> list[dict[str, Any]]:
    spec = found["spec"] if found["kind"] == "Pod" else found["spec"]["template"]["spec"]
    return [*spec["containers"], *spec.get("initContainers", ())]


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_answered_or_named(body: bytes) -> None:
    try:
        answer(body, SCOPES[0], VARIABLES)
    except InvalidInput as error:
        assert "\n" not in str(error)


_keys = st.sampled_from(
    (
        *("metadata", "spec", "labels", "annotations", "containers", "env", "name", "resources", "limits"),
        names.COORDINATION,
    )
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(_keys, values, max_size=4), st.booleans())
def test_any_json_is_admitted_or_named(found: dict[str, Any], held: bool) -> None:
    spec = found.get("spec")
    if isinstance(spec, dict):
        spec["schedulerName"] = "fluence"
    try:
        through({**found, "kind": "Pod"}, held)
    except InvalidInput as error:
        assert "\n" not in str(error)
