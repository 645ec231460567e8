"""Policies and webhooks as the manifests have them; what is not Fluence's is passed over."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluence.admission.certificates import issue
from fluence.admission.manifests import policies, service, webhook_configuration
from fluence.admission.scopes import AdmissionOptions, DoorMode, scopes
from fluence.doctor.installations import (
    count_ready,
    read_backing,
    read_binding,
    read_hooks,
    read_policy,
)
from fluence.model.meta import selector_matches

DEPLOY = Path(__file__).parents[3] / "deploy"
DOORS = AdmissionOptions(doors=DoorMode.NAMESPACES, scheduler="mine")


def objects(file: str, kind: str) -> Any:
    documents = yaml.safe_load_all((DEPLOY / file).read_text())
    return [each for each in documents if each and each["kind"] == kind]


def test_the_policies_of_the_manifest() -> None:
    found = [read_policy(each) for each in objects("fluence-admission.yaml", "MutatingAdmissionPolicy")]
    pods, workloads = [each for each in found if each is not None]
    assert (pods.name, pods.scope, pods.schedulers) == ("fluence-pods", "pods", frozenset(("fluence",)))
    assert (pods.hands_over, workloads.hands_over) == (True, False)
    assert selector_matches(pods.selector, {"kubernetes.io/metadata.name": "default"})
    assert not selector_matches(pods.selector, {"kubernetes.io/metadata.name": "kube-system"})
    bindings = map(read_binding, objects("fluence-admission.yaml", "MutatingAdmissionPolicyBinding"))
    assert {each.policy: each.parameters for each in bindings} == {
        "fluence-pods": "fluence-system/fluence-admission",
        "fluence-workloads": "",
    }


@pytest.mark.parametrize("by_webhook", [False, True])
def test_every_scope_is_known_with_its_scheduler_whatever_it_is_called(by_webhook: bool) -> None:
    wanted = [each.name for each in scopes(DOORS)]
    if by_webhook:
        configuration = webhook_configuration(DOORS, client=service("s", "n"), name="x", prefix="y")
        hooks = list(read_hooks(configuration))
        assert {(each.configuration, each.service) for each in hooks} == {("x", "n/s")}
        found = [(each.scope, each.schedulers) for each in hooks]
    else:
        made = [read_policy(each) for each in policies(DOORS, namespace="n", prefix="y")]
        found = [(each.scope, each.schedulers) for each in made if each is not None]
    assert found == [(name, frozenset(("mine",))) for name in wanted]


def test_what_is_not_ours_is_passed_over() -> None:
    theirs = {"name": "x.example.org", "clientConfig": {"service": {"path": "/mutate/pods"}}}
    assert list(read_hooks({"metadata": {"name": "theirs"}, "webhooks": [theirs]})) == []
    assert read_policy({"metadata": {"name": "theirs"}, "spec": {}}) is None


def test_a_bundle_of_authorities_and_of_rubbish() -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    first, second = (issue(["a"], now, timedelta(days=each)) for each in (3, 30))
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    configuration = webhook_configuration(DOORS, client={"url": "https://127.0.0.1:1"})
    bundle = base64.b64encode(first.authority + broken + second.authority).decode()
    configuration["webhooks"][0]["clientConfig"]["caBundle"] = bundle
    configuration["webhooks"][1]["clientConfig"]["caBundle"] = "***"
    one, other, *_ = read_hooks(configuration)
    assert [each.ends for each in one.authorities] == [first.ends, second.ends]
    assert all(each.is_fresh(now) for each in one.authorities)
    assert not one.authorities[0].is_fresh(now + timedelta(days=2.5))
    assert (one.service, other.authorities) == ("", ())


@pytest.fixture
def deployment() -> Any:
    return objects("fluence-webhook.yaml", "Deployment")[0]


def test_what_is_behind_the_service_of_the_manifest(deployment: Any) -> None:
    (found,) = objects("fluence-webhook.yaml", "Service")
    other = {"metadata": {"name": "other"}, "spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}
    backing = read_backing(found, 1, [other, deployment])
    assert backing.subject == "system:serviceaccount:fluence-system:fluence-webhook"
    assert (backing.deployment, backing.wanted, backing.ready) == ("fluence-system/fluence-webhook", 2, 1)
    assert backing.parameters == "fluence-system/fluence-admission"
    assert (backing.hands_over, backing.scopes) == (True, ("pods", "workloads"))
    assert read_backing(found, 0, [other]).deployment == ""


@pytest.mark.parametrize(
    ("change", "hands_over", "scopes"),
    [
        ({"args": ["--handlers=quantum"]}, False, ("pods", "workloads")),
        (
            {"args": ["--doors", "namespaces"]},
            True,
            ("pods", "workloads", "pods-held", "workloads-held", "operators-held"),
        ),
        (
            {"args": ["--doors", "namespaces", "--operators="]},
            True,
            ("pods", "workloads", "pods-held", "workloads-held"),
        ),
        ({"args": ["--handlers", "$(WHICH)"]}, None, None),
        ({"args": [], "envFrom": [{"configMapRef": {"name": "x"}}]}, None, None),
        ({"command": ["sleep", "infinity"]}, None, None),
    ],
)
def test_what_it_is_started_with(deployment: Any, change: Any, hands_over: Any, scopes: Any) -> None:
    deployment["spec"]["template"]["spec"]["containers"][0].update(change)
    backing = read_backing(objects("fluence-webhook.yaml", "Service")[0], 1, [deployment])
    assert (backing.hands_over, backing.scopes) == (hands_over, scopes)


def test_endpoints_that_say_nothing_are_ready() -> None:
    slices = [{"endpoints": [{"conditions": {"ready": True}}, {"conditions": {"ready": False}}, {}]}, {}]
    assert count_ready(slices) == 2
