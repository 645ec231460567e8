"""The Deployments of Fluence and what their settings say; what cannot be seen stays open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fluence.doctor.facts import Rollout
from fluence.doctor.installations import is_scheduler, read_installation, rollout_of, trouble_of

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


CRASHES: dict[str, Any] = {
    "name": "scheduler",
    "restartCount": 4,
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
    "lastState": {"terminated": {"exitCode": 2}},
}
NO_IMAGE: dict[str, Any] = {
    "name": "scheduler",
    "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}},
}
STARTS: dict[str, Any] = {"name": "scheduler", "state": {"waiting": {"reason": "ContainerCreating"}}}
RUNS: dict[str, Any] = {"name": "scheduler", "restartCount": 1, "state": {"running": {}}}


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        (CRASHES, "container scheduler: CrashLoopBackOff after 4 restarts, last exit code 2"),
        (NO_IMAGE, "container scheduler: ErrImagePull: not found"),
        (STARTS, ""),
        (RUNS, ""),
    ],
)
def test_a_container_that_does_not_run_says_why(status: Any, trouble: str) -> None:
    assert trouble_of({"status": {"containerStatuses": [status]}}) == trouble
    assert trouble_of({"status": {"initContainerStatuses": [status]}}) == trouble


def test_a_rollout_is_read_from_the_status_of_its_generation(chart: Any) -> None:
    timed_out = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    chart["metadata"]["generation"] = 3
    chart["status"] = {"observedGeneration": 3, "updatedReplicas": 1, "conditions": [timed_out]}
    assert rollout_of(chart) == Rollout(1, "ProgressDeadlineExceeded")
    chart["status"]["observedGeneration"] = 2
    assert rollout_of(chart) == Rollout()
    paused = {"type": "Progressing", "status": "False", "reason": "DeploymentPaused"}
    chart["status"] = {"observedGeneration": 3, "updatedReplicas": 2, "conditions": [paused]}
    assert rollout_of(chart) == Rollout(2)
