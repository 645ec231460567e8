"""The rights that are asked for are the chart's, each with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from fluence.doctor.rights import Right, needed_rights, read_rights

RBAC = Path(__file__).parents[3] / "deploy" / "scheduler" / "rbac.yaml"


def test_every_rule_of_the_installation_is_asked_for_with_a_reason() -> None:
    installed = read_rights(RBAC.read_text())
    needed = needed_rights(lease="fluence-system/fluence", metrics=False)
    assert {replace(each, reason="") for each in needed} == {replace(each, reason="") for each in installed}
    assert all(each.reason in next(of.reason for of in needed if same(of, each)) for each in installed)
    assert all(each.reason.endswith(".") for each in installed)
    rules = [
        rule
        for document in yaml.safe_load_all(RBAC.read_text())
        if document["kind"] in ("Role", "ClusterRole")
        for rule in document["rules"]
    ]
    assert len(installed) == len(rules)


def same(one: Right, other: Right) -> bool:
    return replace(one, reason="") == replace(other, reason="")


def test_what_several_parts_need_is_one_right_so_that_each_cure_can_be_run() -> None:
    rights = needed_rights(lease="kube-system/fluence", metrics=True)
    grants = [each.grant("system:serviceaccount:s:fluence") for each in rights]
    assert len(set(grants)) == len(grants)
    (patch,) = [each for each in rights if each.resources == ("pods",) and each.verbs == ("patch",)]
    assert "flux-jobs" in patch.reason and "open-gates" in patch.reason


def test_the_lease_and_the_metrics_follow_the_settings() -> None:
    rights = needed_rights(lease="a/b", metrics=True)
    assert [(each.namespace, each.name) for each in rights if each.resources == ("leases",)] == [
        ("a", ""),
        ("a", "b"),
    ]
    assert any(each.is_for_metrics for each in rights)
    assert not [each for each in needed_rights(lease=None, metrics=False) if each.resources == ("leases",)]


@pytest.mark.parametrize(
    ("subject", "name", "to"),
    [
        ("system:serviceaccount:a:b", "b", "--serviceaccount=a:b"),
        ("jane", "jane", "--user=jane"),
        ("O'Neil", "'O'\"'\"'Neil", "--user='O'\"'\"'Neil'"),
    ],
)
def test_the_cure_grants_exactly_this(subject: str, name: str, to: str) -> None:
    (status,) = [
        each for each in needed_rights(lease=None, metrics=False) if each.resources == ("podgroups/status",)
    ]
    role = f"{name}-podgroups-status-patch" + ("'" if name.startswith("'") else "")
    assert status.grant(subject) == (
        f"kubectl create clusterrole {role} --verb=patch --resource=podgroups.scheduling.k8s.io/status && "
        f"kubectl create clusterrolebinding {role} --clusterrole={role} {to}"
    )
