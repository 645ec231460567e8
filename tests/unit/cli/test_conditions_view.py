"""Rows of the queue by what pods say of themselves, where the view API does not answer."""

from __future__ import annotations

from typing import Any

import pytest

from fluence import names
from fluence.commands.conditions_view import rows

MADE = {"creationTimestamp": "2026-01-01T00:00:00Z"}
JOB = {"kind": "Job", "name": "j", "controller": True}


class Server:
    """Has one page of pods."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = pods

    def get(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        return {"items": list(self.pods), "metadata": {}}


def pod(name: str, group: str = "", labels: dict[str, str] | None = None, **meta: Any) -> dict[str, Any]:
    link = {"schedulingGroup": {"podGroupName": group}} if group else {}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": labels or {}, **MADE, **meta},
        "spec": {"schedulerName": names.SCHEDULER, **link},
        "status": {"phase": "Pending"},
    }


@pytest.mark.parametrize(
    ("group", "labels", "meta", "row"),
    [
        ("native", {names.GROUP_LABEL: "train"}, {}, ("Group", "native")),
        ("train.fluence", {names.GROUP_LABEL: "train"}, {}, ("Group", "train")),
        ("job.j.fluence", {}, {"ownerReferences": [JOB]}, ("Job", "j")),
        ("", {names.GROUP_LABEL: "train"}, {}, ("Group", "train")),
    ],
)
def test_a_gang_has_the_name_that_its_users_gave_it(
    group: str, labels: dict[str, str], meta: dict[str, Any], row: tuple[str, str]
) -> None:
    """A PodGroup that only lists it does not name it."""
    server: Any = Server(*(pod(name, group, labels, **meta) for name in ("a", "b")))
    assert [(each["kind"], each["name"], each["pods"]) for each in rows(server, "default")] == [(*row, 2)]
