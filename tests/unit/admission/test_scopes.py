"""Scopes and manifests: which rules hold where, as policies and as webhooks, never twice for one object."""

import itertools
from typing import Any

import pytest
import yaml

from fluence import names
from fluence.admission.manifests import manifests, policies, service, to_yaml, webhook_configuration
from fluence.admission.scopes import AdmissionOptions, DoorMode, chosen_handlers, scopes

DOORS = tuple(DoorMode)


@pytest.mark.parametrize(
    ("text", "known", "unknown"),
    [
        ("fluxion,quantum,gang", ("fluxion", "quantum", "gang"), ()),
        (" quantum , fluxion,,quantum", ("quantum", "fluxion"), ()),
        ("fluxion,quantim", ("fluxion",), ("quantim",)),
        ("", (), ()),
    ],
)
def test_a_list_selects_and_orders(text: str, known: tuple[str, ...], unknown: tuple[str, ...]) -> None:
    assert chosen_handlers(text) == (known, unknown)


def handlers(options: AdmissionOptions) -> dict[str, list[str]]:
    return {
        scope.name: [key for key, _ in itertools.groupby(scope.rules, lambda each: each.handler)]
        for scope in scopes(options)
    }


def test_rules_stand_in_the_order_of_their_handlers() -> None:
    assert handlers(AdmissionOptions())["pods"] == ["fluxion", "quantum", "podgroups"]
    assert handlers(AdmissionOptions(handlers=("quantum", "fluxion")))["pods"] == ["quantum", "fluxion"]
    assert handlers(AdmissionOptions(handlers=("gang",))) == {}
    held = AdmissionOptions(doors=DoorMode.NAMESPACES)
    order = ["doors", "fluxion", "quantum", "podgroups"]
    assert handlers(held)["pods-held"] == order, "what is held becomes ours first"
    last = AdmissionOptions(handlers=("fluxion", "doors"), doors=DoorMode.NAMESPACES)
    assert handlers(last)["pods-held"] == ["fluxion", "doors"], "unless a site says otherwise"
    assert "pods-held" not in handlers(AdmissionOptions(handlers=("doors",))), "doors are off"


def matches(expressions: Any, labels: dict[str, str]) -> bool:
    """A label selector, as the server reads it."""
    return all(
        (labels.get(each["key"]) in each["values"]) == (each["operator"] == "In") for each in expressions
    )


@pytest.mark.parametrize("doors", DOORS)
@pytest.mark.parametrize("label", [None, "enabled", "disabled", "else"])
def test_a_namespace_is_in_one_scope_and_kube_system_in_none(doors: DoorMode, label: str | None) -> None:
    found = scopes(AdmissionOptions(doors=doors))
    for name, expected in (("team", True), ("kube-system", False)):
        labels = {"kubernetes.io/metadata.name": name}
        if label is not None:
            labels[names.NAMESPACE_OPT_IN] = label
        held = [each for each in found if "Pod" in each.kinds and matches(each.namespaces, labels)]
        assert len(held) == int(expected)
        if expected:
            wanted = {
                DoorMode.OFF: False,
                DoorMode.NAMESPACES: label == "enabled",
                DoorMode.CLUSTER: label != "disabled",
            }[doors]
            assert held[0].name.endswith("-held") == wanted


@pytest.mark.parametrize("doors", DOORS)
def test_policy_and_webhook_look_at_the_same_objects(doors: DoorMode) -> None:
    options = AdmissionOptions(doors=doors, scheduler="mine")
    documents = policies(options, namespace="ns")
    by_policy = [each["spec"] for each in documents if each["kind"] == "MutatingAdmissionPolicy"]
    by_hook = webhook_configuration(options, client=service("s", "ns"))["webhooks"]
    assert len(by_policy) == len(by_hook)
    for policy, hook in zip(by_policy, by_hook, strict=True):
        assert policy["matchConditions"][:1] == hook["matchConditions"]
        assert policy["matchConstraints"]["namespaceSelector"] == hook["namespaceSelector"]
        plain = [{key: each[key] for key in each if key != "scope"} for each in hook["rules"]]
        assert policy["matchConstraints"]["resourceRules"] == plain
        assert {policy["failurePolicy"], hook["failurePolicy"]} == {"Ignore"}
        assert hook["sideEffects"] == "None"
        assert "'mine'" in policy["matchConditions"][0]["expression"]
        assert all(each["operations"] == ["CREATE"] for each in hook["rules"]), "an update never queues again"


def test_manifests_read_back_are_the_same() -> None:
    for by_webhook in (False, True):
        found = manifests(AdmissionOptions(doors=DoorMode.NAMESPACES), namespace="ns", by_webhook=by_webhook)
        assert list(yaml.safe_load_all(to_yaml(found))) == found


def test_only_what_handlers_need_is_made() -> None:
    kinds = [each["kind"] for each in manifests(AdmissionOptions(handlers=("quantum",)), namespace="ns")]
    assert "CustomResourceDefinition" not in kinds
    assert "PriorityClass" in kinds
    listing = manifests(AdmissionOptions(handlers=("podgroups",)), namespace="ns")
    by_name = {each["metadata"]["name"]: each for each in listing if each["kind"].startswith("Mut")}
    assert sorted(by_name) == ["fluence-pods", "fluence-workloads"]
    assert listing[0]["metadata"]["name"] == "handoffs.fluence.flux-framework.org", "it says whether to list"
    assert not [each for each in listing if each["kind"].startswith("Val")], "it needs no bound"


def test_only_policies_that_read_the_hand_off_depend_on_it() -> None:
    """Without the object, the server applies no rule of such a policy: Jobs would not be held."""
    options = AdmissionOptions(doors=DoorMode.NAMESPACES)
    found = {
        each["metadata"]["name"]: "paramKind" in each["spec"]
        for each in policies(options, namespace="ns")
        if each["kind"] == "MutatingAdmissionPolicy"
    }
    assert found == {
        "fluence-pods": True,
        "fluence-workloads": False,
        "fluence-pods-held": True,
        "fluence-workloads-held": False,
        "fluence-operators-held": False,
    }


def test_large_pods_are_not_refused_for_a_pod_group() -> None:
    """Its rule does not look at containers."""
    bounds = [
        each["spec"]["validations"][0]["expression"]
        for each in policies(AdmissionOptions(), namespace="ns")
        if each["metadata"]["name"] == "fluence-pods-bounds" and "validations" in each["spec"]
    ]
    assert len(bounds) == 1 and "params" not in bounds[0] and "listedGroup" not in bounds[0]
    assert manifests(AdmissionOptions(handlers=("gang",)), namespace="ns") == []
