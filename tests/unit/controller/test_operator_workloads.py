"""FluxJobs of operators' objects: one for each, and none for what it makes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fluence.controller.flux_job import Workload, spec_of, workload_of
from fluence.controller.unstarted import resource_of
from fluence.model.operators import CustomOwner, suspended
from fluence.model.pod import Pod
from fluence.schedule.queueing.placeholder import reference
from tests.unit.schedule import kit
from tests.unit.schedule.test_held import SEEN
from tests.unit.schedule.test_held_operators import KINDS, held


def pod_of(owner: CustomOwner) -> Pod:
    pod = kit.pod("p", labels=SEEN)
    return replace(pod, metadata=replace(pod.metadata, owner_references=[reference(owner)]))


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_has_one_flux_job_and_its_pods_have_none(kind: str) -> None:
    top = held(kind)
    found = workload_of(top, "fluence", (kind,))
    assert found is not None
    assert found.flux_job == f"x-{kind.lower()}"
    made = spec_of(found, None)
    assert (made.type, made.name, made.nodes) == (5, "x", 3)
    assert found.reference.api_version == top.api_version
    assert resource_of(found).plural == top.operator.plural
    assert found.is_suspendable
    assert workload_of(pod_of(top), "fluence", (kind,)) is None


def test_pods_of_a_kind_that_is_not_known_have_one_each() -> None:
    """The scheduler may not read it, so nothing else stands for them."""
    assert workload_of(pod_of(held("RayCluster")), "fluence", ()) is not None


@pytest.mark.parametrize(
    "kind,wanted", [("JobSet", {"suspend": True}), ("MPIJob", {"runPolicy": {"suspend": True}})]
)
def test_what_suspends_an_object(kind: str, wanted: object) -> None:
    assert suspended(held(kind)) == wanted


def test_an_object_that_was_not_held_is_not_written() -> None:
    found = Workload(held(labels={}))
    assert not found.is_suspendable and not found.is_written
    assert found.member() is None
