"""The Deployments of Fluence and what their settings say; what cannot be seen stays open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fluence.doctor.installations import is_scheduler, read_installation

DEPLOY = Path(__file__).parents[3] / "deploy"


def objects(kind: str) -> Any:
    documents = yaml.safe_load_all((DEPLOY / "fluence.yaml").read_text())
    return next(each for each in documents if each and each["kind"] == kind)


@pytest.fixture
def chart() -> Any:
    return objects("Deployment")


def config(namespace: str, name: str) -> Any:
    assert (namespace, name) == ("fluence-system", "fluence-scheduler")
    return objects("ConfigMap")["data"]


def container(deployment: Any) -> Any:
    return deployment["spec"]["template"]["spec"]["containers"][0]


def test_the_chart_is_read_as_it_is_installed(chart: Any) -> None:
    assert is_scheduler(chart)
    found = read_installation(chart, config)
    assert found.subject == "system:serviceaccount:fluence-system:fluence-scheduler"
    assert (found.scheduler_name, found.lease, found.lease_key) == ("fluence", True, "fluence-system/fluence")
    assert (found.wanted, found.ready, found.image) == (2, 0, "fluence:0.1.0")
    assert found.opens_metrics is False
    assert found.selector["app.kubernetes.io/component"] == "scheduler"
    assert (found.flux_jobs, found.devices_at) == (True, "kube-system/fluence-resources")
    assert found.release == ""  # the manifest is for those without helm


def test_helm_says_which_release_it_is_and_a_file_of_devices_cannot_be_seen(chart: Any) -> None:
    chart["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"
    container(chart)["command"] += ["--no-flux-jobs", "--resources=/etc/devices.yaml"]
    found = read_installation(chart, config)
    assert (found.release, found.flux_jobs, found.devices_at) == ("fluence", False, None)


def test_settings_that_cannot_be_seen_stay_open(chart: Any) -> None:
    found = read_installation(chart, lambda namespace, name: None)
    assert (found.scheduler_name, found.lease, found.lease_key) == (None, None, None)


def test_variables_and_flags_go_before_the_file(chart: Any) -> None:
    container(chart)["env"] = [
        {"name": "FLUENCE_SCHEDULER_NAME", "value": "second"},
        {"name": "FLUENCE_LEASE_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
    ]
    container(chart)["command"] += ["--lease-name=two", "--no-lease"]
    found = read_installation(chart, config)
    assert (found.scheduler_name, found.lease, found.lease_key) == ("second", False, None)
    container(chart)["command"] += ["--scheduler-name", "third"]
    assert read_installation(chart, lambda namespace, name: None).scheduler_name == "third"


def test_one_made_by_hand_is_known_by_its_command() -> None:
    spec = {"containers": [{"name": "c", "args": ["/usr/bin/fluence", "scheduler", "run"]}]}
    deployment = {"metadata": {"name": "a", "namespace": "b"}, "spec": {"template": {"spec": spec}}}
    assert is_scheduler(deployment)
    found = read_installation(deployment, lambda namespace, name: None)
    assert (found.scheduler_name, found.lease_key, found.wanted) == ("fluence", "kube-system/fluence", 1)
    spec["containers"][0]["args"] = ["kube-scheduler"]
    assert not is_scheduler(deployment)


@pytest.mark.parametrize(
    "change", [{"envFrom": [{"configMapRef": {"name": "x"}}]}, {"args": ["--scheduler-name", "$(NAME)"]}]
)
def test_what_comes_from_elsewhere_stays_open(chart: Any, change: dict[str, Any]) -> None:
    container(chart).update(change)
    assert read_installation(chart, config).scheduler_name is None
