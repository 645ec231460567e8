"""Admission in the chart: what helm renders is what the program renders, and the server takes it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.helm.manifests import CHART, template

from fluence.admission.manifests import manifests
from fluence.admission.scopes import AdmissionOptions, DoorMode
from fluence.sandbox.testing import Kube
from tests.integration.deploy.helm import HelmUser

pytestmark = pytest.mark.release
KEPT = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Service", "Deployment")


def rendered(*sets: str, version: str = "1.36", parts: tuple[str, ...] = ("admission",)) -> dict[str, Any]:
    arguments = [each for part in parts for each in ("--show-only", f"templates/{part}.yaml")]
    text = template(*arguments, "--kube-version", version, *(each for one in sets for each in ("--set", one)))
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in yaml.safe_load_all(text) if each}


def plain(found: dict[str, Any]) -> dict[str, Any]:
    """Without labels, and without what only an installation has."""
    return {
        name: {
            **each,
            "metadata": {key: each["metadata"][key] for key in each["metadata"] if key != "labels"},
        }
        for name, each in found.items()
        if each["kind"] not in KEPT
    }


@pytest.mark.parametrize("mode", ["policy", "webhook"])
@pytest.mark.parametrize("doors", list(DoorMode))
def test_helm_renders_what_the_program_renders(mode: str, doors: DoorMode) -> None:
    by_helm = rendered(f"admission.mode={mode}", f"admission.doors={doors.value}")
    excluded = ("kube-system", "fluence-system") if doors is DoorMode.CLUSTER else ("kube-system",)
    options = AdmissionOptions(doors=doors, excluded=excluded)
    by_us = manifests(options, namespace="fluence-system", by_webhook=mode == "webhook")
    found = {f"{each['kind']}/{each['metadata']['name']}": each for each in by_us}
    definition = yaml.safe_load((CHART / "crds" / "handoffs.yaml").read_text())
    assert definition == found.pop(f"{definition['kind']}/{definition['metadata']['name']}")
    assert plain(by_helm) == plain(found)


@pytest.mark.parametrize("mode", ["policy", "webhook"])
@pytest.mark.parametrize("controllers", [(), ("system:serviceaccount:a:b", "system:serviceaccount:c:d")])
def test_helm_renders_who_submitted_what_as_the_program_does(
    kube: Kube, tmp_path: Path, mode: str, controllers: tuple[str, ...]
) -> None:
    values = (f"admission.mode={mode}", "admission.users=true", "admission.queueAccess=true")
    listed = [f"admission.controllers={{{','.join(controllers)}}}"] if controllers else []
    by_helm = rendered(*values, *listed)
    options = AdmissionOptions(users=True, controllers=controllers, queue_access=True)
    by_us = manifests(options, namespace="fluence-system", by_webhook=mode == "webhook")
    found = {f"{each['kind']}/{each['metadata']['name']}": each for each in by_us}
    found.pop("CustomResourceDefinition/handoffs.fluence.flux-framework.org")
    assert plain(by_helm) == plain(found)
    for value, name in (("users", "users"), ("queueAccess", "queue-access")):
        left = rendered(f"admission.mode={mode}", f"admission.{value}=false")
        assert f"ValidatingAdmissionPolicy/fluence-{name}" not in left
    user = HelmUser(kube.sandbox, kube.namespace, kube.version, tmp_path)
    mine = [each for each in by_helm.values() if "namespace" not in each["metadata"]]
    if kube.version != "1.35":
        assert user.judge(yaml.safe_dump_all(mine)).count("(server dry run)") == len(mine)


def test_the_scheduler_reads_the_policy_that_keeps_names_and_no_other() -> None:
    parts = ("rbac", "config")
    on = rendered("admission.users=true", "fullnameOverride=mine", parts=parts)
    assert "users-policy: mine-users" in on["ConfigMap/mine-scheduler"]["data"]["fluence.yaml"]
    rules = [
        each for each in on["ClusterRole/mine-scheduler"]["rules"] if "admission" in each["apiGroups"][0]
    ]
    assert [(each["resourceNames"], each["verbs"]) for each in rules] == [
        (["mine-users"], ["get", "list", "watch"])
    ]
    off = rendered(parts=parts)
    rules = off["ClusterRole/fluence-scheduler"]["rules"]
    assert not [each for each in rules if "admission" in each["apiGroups"][0]]
    with pytest.raises(subprocess.CalledProcessError) as fault:
        rendered("admission.users=true", "admission.mode=off")
    assert "set the mode to auto, policy or webhook" in fault.value.stderr


def test_pod_groups_are_patched_only_where_their_size_may_change() -> None:
    """And if gangs may have any."""

    def verbs(*words: str) -> list[str]:
        found = template(*words, "--show-only", "templates/rbac.yaml")
        rules = [
            rule
            for each in yaml.safe_load_all(found)
            if each and each["metadata"]["name"] == "fluence-scheduler"
            for rule in each.get("rules", ())
        ]
        (one,) = (
            each for each in rules if each.get("resources") == ["podgroups"] and "create" in each["verbs"]
        )
        return list(one["verbs"])

    beta = ("--api-versions", "scheduling.k8s.io/v1beta1/PodGroup")
    assert verbs() == ["create"]
    assert verbs(*beta) == ["create", "patch"]
    assert verbs(*beta, "--set", "settings.pod-groups=never") == ["create"]
    assert verbs(*beta, "--set", "admission.handlers={fluxion,quantum}") == ["create"]


@pytest.mark.parametrize("handlers", ["fluxion", "quantum", "gang", "podgroups"])
@pytest.mark.parametrize("doors", list(DoorMode))
def test_handlers_select_rules(kube: Kube, tmp_path: Path, handlers: str, doors: DoorMode) -> None:
    values = (f"admission.handlers={{{handlers}}}", f"admission.doors={doors.value}")
    if handlers == "gang" and doors is DoorMode.OFF:
        with pytest.raises(subprocess.CalledProcessError):  # nothing is left of the template
            rendered(*values)
        return
    found = rendered(*values, "settings.scheduler-name=mine")
    options = AdmissionOptions(handlers=(handlers,), doors=doors, scheduler="mine")
    by_us = {f"{each['kind']}/{each['metadata']['name']}": each for each in manifests(options, namespace="x")}
    by_us = {name: each for name, each in by_us.items() if each["kind"] != "CustomResourceDefinition"}
    assert set(plain(found)) == set(by_us)
    for name, each in by_us.items():
        if each["kind"] == "MutatingAdmissionPolicy":
            ours, theirs = (_for_any_kind(one["spec"]["mutations"]) for one in (each, found[name]))
            assert theirs == ours
            assert (found[name]["spec"]["variables"] or []) == each["spec"]["variables"]
    if kube.version != "1.35":
        user = HelmUser(kube.sandbox, kube.namespace, kube.version, tmp_path)
        mine = [each for each in found.values() if "namespace" not in each["metadata"]]
        assert user.judge(yaml.safe_dump_all(mine)).count("(server dry run)") == len(mine)


def _for_any_kind(mutations: list[Any]) -> list[str]:
    """Without the question for Jobs: the chart's policies also look at StatefulSets, and ask it where ours,
    with a rule for Jobs only, need not."""
    of_jobs = "request.?kind.?kind.orValue('') in ['Job']\n&& ("
    found = [each["jsonPatch"]["expression"] for each in mutations]
    return [
        each.removeprefix(of_jobs).replace(")\n? ", "\n? ", 1) if each.startswith(of_jobs) else each
        for each in found
    ]


def test_a_server_without_policies_gets_the_webhook() -> None:
    both = ("admission", "webhook")
    assert "MutatingWebhookConfiguration/fluence-webhook" in rendered(version="1.35", parts=both)
    assert "MutatingAdmissionPolicy/fluence-pods" in rendered(version="1.36")
    with pytest.raises(subprocess.CalledProcessError) as fault:
        rendered("admission.mode=policy", version="1.35")
    assert "set it to webhook, auto or off" in fault.value.stderr


@pytest.mark.parametrize(
    ("values", "types", "who"),
    [
        ((), ["Ingress"], None),
        (("networkPolicy.enabled=true",), ["Ingress", "Egress"], None),
        (
            ("networkPolicy.webhook.from[0].ipBlock.cidr=10.0.0.0/24",),
            ["Ingress"],
            [{"ipBlock": {"cidr": "10.0.0.0/24"}}],
        ),
    ],
)
def test_only_the_port_of_the_webhook_is_open_by_default(
    values: tuple[str, ...], types: list[str], who: Any
) -> None:
    found = rendered("admission.mode=webhook", *values, parts=("webhook",))["NetworkPolicy/fluence-webhook"]
    spec = found["spec"]
    assert spec["policyTypes"] == types and ("egress" in spec) == ("Egress" in types)
    (rule,) = spec["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8443}] and rule.get("from") == who


def test_an_upgrade_that_keeps_the_values_of_before_has_no_policy_for_the_webhook() -> None:
    without = rendered("admission.mode=webhook", "networkPolicy.webhook=null", parts=("webhook",))
    assert "NetworkPolicy/fluence-webhook" not in without
