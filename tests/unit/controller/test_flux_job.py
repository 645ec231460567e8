"""The CRD, the struct and what is applied agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from fluence.controller.flux_job import (
    GROUP,
    TYPES,
    VERSION,
    FluxJob,
    FluxJobSpec,
    FluxJobStatus,
    applied,
    applied_status,
)
from fluence.model.meta import OwnerReference

CRD = Path(__file__).parents[3] / "deploy" / "crds" / "fluxjobs.yaml"


@pytest.fixture(scope="module")
def schema() -> Any:
    crd = yaml.safe_load(CRD.read_text())
    assert crd["metadata"]["name"] == f"fluxjobs.{GROUP}"
    assert crd["spec"]["names"]["shortNames"] == ["fj"]
    (version,) = crd["spec"]["versions"]
    assert version["name"] == VERSION and "status" in version["subresources"]
    columns = [each["name"] for each in version["additionalPrinterColumns"]]
    assert columns[:4] == ["State", "Position", "Start", "Reason"]
    return version["schema"]["openAPIV3Schema"]["properties"]


def fields(of: type[Any]) -> set[str]:
    return {each.encode_name for each in msgspec.structs.fields(of)}


def test_every_field_of_the_struct_is_in_the_schema(schema: Any) -> None:
    assert fields(FluxJobSpec) <= set(schema["spec"]["properties"])
    assert fields(FluxJobStatus) == set(schema["status"]["properties"])
    assert set(schema["spec"]["properties"]) - fields(FluxJobSpec) == {"object", "resources"}  # fluxqueue's


def test_status_strings_are_fluxqueues(schema: Any) -> None:
    assert schema["status"]["properties"]["submitStatus"]["enum"] == [
        *("statusNew", "statusSubmit", "statusError", "statusCancel"),
    ]
    assert sorted(TYPES.values()) == [0, 1, 2, 3, 4]


def test_what_is_applied_reads_back() -> None:
    owner = OwnerReference(api_version="batch/v1", kind="Job", name="j", uid="u", controller=True)
    spec = FluxJobSpec(jobspec="version: 1", type=1, name="j", duration=60, nodes=3)
    found = msgspec.convert(applied("j-job", "default", spec, owner), FluxJob)
    assert found.spec == spec and found.owner == owner
    assert found.metadata.finalizers is None  # a namespace can be deleted while no scheduler runs
    made = FluxJobStatus(submit_status="statusSubmit", phase="Pending", position=3)
    assert msgspec.convert(applied_status("j-job", "default", made), FluxJob).status == made
