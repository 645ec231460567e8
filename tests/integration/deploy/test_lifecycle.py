"""Install, upgrade, roll back and uninstall by helm on a real API server; and the manifests without helm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.helm.manifests import CHART, DEPLOY, everything

from fluence.sandbox.testing import Kube
from tests.eventually import wait_until
from tests.integration.deploy.helm import HelmUser, Refused

pytestmark = pytest.mark.release

KINDS = (
    "serviceaccounts,roles,rolebindings,configmaps,deployments,replicasets,pods,poddisruptionbudgets,"
    "networkpolicies,services,secrets,leases"
)
GIVEN = ("kube-root-ca.crt", "default")  # in every namespace


@pytest.fixture
def user(kube: Kube, tmp_path: Path) -> Iterator[HelmUser]:
    found = HelmUser(kube.sandbox, kube.namespace, kube.version, tmp_path)
    yield found
    # Roles of the cluster would outlive the namespace.
    for release in yaml.safe_load(found.helm("list", "--all", "--short", "--output", "yaml")) or ():
        found.helm("uninstall", release, "--no-hooks")


@pytest.fixture
def name(user: HelmUser) -> str:
    """A release that no other test has: its ClusterRole is the cluster's."""
    return f"fluence-{user.namespace}"


def things(user: HelmUser, name: str) -> set[str]:
    """All that is in the namespace, and the cluster's roles of this release."""
    mine = [each for each in user.items(KINDS) if each["metadata"]["name"] not in GIVEN]
    wide = user.items(
        "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingadmissionpolicies"
    )
    if user.version != "1.35":
        wide += user.items("mutatingadmissionpolicies,mutatingadmissionpolicybindings")
    mine += [each for each in wide if each["metadata"]["name"].startswith(name)]
    return {f"{each['kind']}/{each['metadata']['name']}" for each in mine}


def deployment(user: HelmUser, name: str) -> dict[str, Any]:
    found: dict[str, Any] = user.get("deployment", name)
    return found


def checksum(user: HelmUser, name: str) -> str:
    return str(deployment(user, name)["spec"]["template"]["metadata"]["annotations"]["checksum/config"])


def test_its_pods_are_allowed_where_pod_security_is_restricted(user: HelmUser, name: str) -> None:
    label = "pod-security.kubernetes.io/enforce=restricted"
    user.kubectl("label", "namespace", user.namespace, label)
    user.install(name)
    wait_until(lambda: user.items("pods"), lambda pods: len(pods) == 2, what="two pods by the ReplicaSet")
    broken = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": []}}
    broken["spec"] = {"containers": [{"name": "c", "image": "i"}]}
    with pytest.raises(Refused, match="violates PodSecurity"):
        user.kubectl("create", "--filename", "-", text=yaml.safe_dump(broken))


def test_changed_settings_are_new_pods_and_the_same_settings_are_not(user: HelmUser, name: str) -> None:
    user.install(name)
    first = checksum(user, name)
    before = deployment(user, name)["metadata"]["generation"]
    user.upgrade(name)
    assert deployment(user, name)["metadata"]["generation"] == before
    user.upgrade(name, "--set", "podDisruptionBudget.maxUnavailable=2")
    assert checksum(user, name) == first
    user.upgrade(name, "--set", "settings.match-policy=lonode")
    assert checksum(user, name) != first
    config = user.get("configmap", f"{name}-scheduler")["data"]["fluence.yaml"]
    assert yaml.safe_load(config)["match-policy"] == "lonode"
    wait_until(
        lambda: user.items("replicasets"), lambda sets: len(sets) == 2, what="one for the new settings"
    )

    user.helm("rollback", name, "1")
    assert checksum(user, name) == first
    config = user.get("configmap", f"{name}-scheduler")["data"]["fluence.yaml"]
    assert yaml.safe_load(config)["match-policy"] == "first"


def test_another_version_is_another_image(user: HelmUser, name: str, tmp_path: Path) -> None:
    user.install(name)
    user.helm(
        "package", str(CHART), "--version", "9.8.7", "--app-version", "9.8.7", "--destination", str(tmp_path)
    )
    user.helm("upgrade", name, str(tmp_path / "fluence-9.8.7.tgz"))
    found = deployment(user, name)
    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "fluence:9.8.7"
    assert found["metadata"]["labels"]["app.kubernetes.io/version"] == "9.8.7"
    # What Deployments select by cannot be changed: a version in it would end every upgrade.
    assert "9.8.7" not in str(found["spec"]["selector"])
    user.helm("rollback", name)
    assert deployment(user, name)["spec"]["template"]["spec"]["containers"][0]["image"] != "fluence:9.8.7"


def test_an_uninstall_leaves_nothing_but_what_users_made(user: HelmUser, name: str) -> None:
    before = things(user, name)
    user.kubectl("create", "configmap", "mine")
    pod = {"schedulerName": "fluence", "containers": [{"name": "c", "image": "i"}]}
    theirs = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "work"}, "spec": pod}
    user.kubectl("create", "--filename", "-", text=yaml.safe_dump(theirs))
    uid = user.get("pod", "work")["metadata"]["uid"]

    user.install(name, "--set", "networkPolicy.enabled=true")
    # As the schedulers do.
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "fluence"}}
    user.kubectl("create", "--filename", "-", text=yaml.safe_dump(lease))
    user.upgrade(name, "--set", "settings.queue-policy=conservative")
    made = things(user, name) - before
    assert {f"Deployment/{name}", f"ClusterRole/{name}-scheduler", "Lease/fluence"} <= made
    assert f"ValidatingAdmissionPolicy/{name}-pods-warnings" in made

    user.helm("uninstall", name)
    left = before | {"ConfigMap/mine", "Pod/work"}
    wait_until(lambda: things(user, name), left)
    assert user.get("pod", "work")["metadata"]["uid"] == uid
    user.install(name)  # and nothing is in the way of the next one


def test_a_refused_upgrade_changes_nothing(user: HelmUser, name: str) -> None:
    user.install(name)
    before = deployment(user, name)["metadata"]["resourceVersion"]
    with pytest.raises(Refused, match="settings/queue-policy"):
        user.upgrade(name, "--set", "settings.queue-policy=esay")
    assert deployment(user, name)["metadata"]["generation"] == 1
    assert yaml.safe_load(user.helm("history", name, "--output", "yaml"))[-1]["revision"] == 1
    assert before


def test_what_is_rendered_from_the_chart_is_up_to_date() -> None:
    """If not: `make manifests`."""
    stale = [
        str(path.relative_to(DEPLOY.parent))
        for path, text in everything().items()
        if path.read_text() != text
    ]
    assert not stale


def test_the_one_file_and_kustomize_are_the_same_and_the_server_takes_them(user: HelmUser) -> None:
    def objects(text: str) -> dict[str, Any]:
        found = [each for each in yaml.safe_load_all(text) if each]
        return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}

    one = objects((DEPLOY / "fluence.yaml").read_text())
    built = user.kubectl("kustomize", str(DEPLOY / "scheduler"))
    assert objects(built) == one
    # The namespace is not there in a dry run, so the rest is asked for in one that is.
    here = yaml.safe_dump_all(
        each
        | {
            "metadata": each["metadata"]
            | ({"namespace": user.namespace} if "namespace" in each["metadata"] else {})
        }
        for each in one.values()
    )
    assert user.judge(here).count("(server dry run)") == len(one) > 8
