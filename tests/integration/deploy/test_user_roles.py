"""What users with Kubernetes' standard roles may do with Fluence's objects in one namespace, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from deploy.helm.manifests import DEPLOY

from fluence import names
from fluence.cli import main
from tests.eventually import wait_until
from tests.integration.deploy.helm import HelmUser, Refused

FLUX_JOB = {
    "apiVersion": "jobs.converged-computing.org/v1alpha1",
    "kind": "FluxJob",
    "metadata": {"name": "train-job"},
    "spec": {"type": 1, "name": "train"},
}
# Which roles may do what.
RIGHTS: dict[tuple[str, str], set[str]] = {
    ("list", "fluxjobs"): {"view", "edit", "admin"},
    ("watch", "fluxjobs"): {"view", "edit", "admin"},
    ("delete", "fluxjobs"): {"edit", "admin"},
    ("create", "fluxjobs"): set(),
    ("patch", "fluxjobs"): set(),
    ("patch", "fluxjobs --subresource=status"): set(),
    ("list", "podgroups.scheduling.k8s.io"): {"view", "edit", "admin"},
    ("create", "podgroups.scheduling.k8s.io"): {"edit", "admin"},
    ("patch", "podgroups.scheduling.k8s.io --subresource=status"): set(),
}


def may(user: HelmUser, name: str, verb: str, what: str, namespace: str) -> bool:
    command = ("auth", "can-i", verb, *what.split(), "--as", name, "--namespace", namespace)
    try:
        return user.kubectl(*command).strip() == "yes"
    except Refused as refused:  # `no` is an exit code, and nothing on stderr
        assert not str(refused), refused
        return False


@pytest.fixture
def roles(user: HelmUser) -> Iterator[None]:
    """Users that are named after their roles in the test's namespace."""
    # Tests beside this one install the chart, which makes roles of these names.
    text = (
        (DEPLOY / "scheduler" / "users.yaml")
        .read_text()
        .replace("name: fluence-", f"name: {user.namespace}-")
    )
    user.kubectl("apply", "--server-side", "--filename", str(DEPLOY / "crds" / "fluxjobs.yaml"))
    user.kubectl("wait", "--for=condition=Established", "crd/fluxjobs.jobs.converged-computing.org")
    user.kubectl("apply", "--server-side", "--filename", "-", text=text)
    for role in ("view", "edit", "admin"):
        user.kubectl("create", "rolebinding", f"the-{role}", f"--clusterrole={role}", f"--user=a-{role}")
    # Each role is aggregated by itself, and the authorizer follows later.
    for (verb, what), holders in RIGHTS.items():
        for role in sorted(holders):
            wait_until(
                lambda role=role, verb=verb, what=what: may(user, f"a-{role}", verb, what, user.namespace),  # type: ignore[misc]
                what=f"the role {role} has been aggregated: {verb} {what}",
            )
    yield
    user.kubectl("delete", "--filename", "-", text=text)


def test_standard_roles_reach_fluence_in_their_own_namespace(user: HelmUser, roles: None) -> None:
    wrong = {
        (verb, what, role)
        for (verb, what), roles in RIGHTS.items()
        for role in ("view", "edit", "admin")
        if may(user, f"a-{role}", verb, what, user.namespace) != (role in roles)
    }
    assert not wrong
    assert not may(user, "a-admin", "list", "fluxjobs", "default")


def test_a_user_with_edit_reads_and_cancels_but_does_not_forge(user: HelmUser, roles: None) -> None:
    body = yaml.safe_dump(FLUX_JOB)
    with pytest.raises(Refused, match="cannot create resource"):
        as_user(user, "a-edit", "create", "--filename", "-", text=body)
    user.kubectl("create", "--filename", "-", text=body)
    assert "train-job" in as_user(user, "a-view", "get", "fj")
    with pytest.raises(Refused, match="cannot delete resource"):
        as_user(user, "a-view", "delete", "fj", "train-job")
    as_user(user, "a-edit", "delete", "fj", "train-job")


def as_user(user: HelmUser, name: str, *arguments: str, text: str | None = None) -> str:
    return user.kubectl("--as", name, *arguments, text=text)


HELD_JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train", "labels": {names.SEEN: names.SEEN_YES}},
    "spec": {
        "suspend": True,
        "template": {
            "metadata": {"labels": {names.SEEN: names.SEEN_YES}},
            "spec": {
                "schedulerName": "fluence-roles",
                "restartPolicy": "Never",
                "containers": [{"name": "c", "image": "none"}],
            },
        },
    },
}


def test_a_user_with_edit_asks_why_a_held_job_waits(user: HelmUser, roles: None, tmp_path: Path) -> None:
    """By the account's own token: what it may not see is named, and nothing is Forbidden."""
    user.kubectl("create", "serviceaccount", "ada")
    user.kubectl(
        "create", "rolebinding", "ada", "--clusterrole=edit", f"--serviceaccount={user.namespace}:ada"
    )
    config = yaml.safe_load(user.kubectl("config", "view", "--raw", "--minify"))
    token = user.kubectl("create", "token", "ada").strip()
    config["users"] = [{"name": entry["name"], "user": {"token": token}} for entry in config["users"]]
    file = tmp_path / "ada.yaml"
    file.write_text(yaml.safe_dump(config))
    own = ("--kubeconfig", str(file))
    account = f"system:serviceaccount:{user.namespace}:ada"
    for verb, what in (("create", "jobs.batch"), ("list", "fluxjobs"), ("list", "pods")):
        wait_until(
            lambda verb=verb, what=what: may(user, account, verb, what, user.namespace),  # type: ignore[misc]
            what=f"ada may {verb} {what}",
        )
    user.kubectl(*own, "create", "--filename", "-", text=yaml.safe_dump(HELD_JOB))
    user.kubectl("create", "--filename", "-", text=yaml.safe_dump(FLUX_JOB))
    assert "train-job" in user.kubectl(*own, "get", "fj")
    for words in (["job/train"], ["train"], ["job", "train"]):
        where = [*own, "-n", user.namespace, "--scheduler-name", "fluence-roles", "-o", "json"]
        done = CliRunner().invoke(main, ["explain", *words, *where])
        assert done.exit_code == 0, done.output
        value = json.loads(done.stdout)
        assert (value["kind"], value["state"], value["gang"]["waiting"]) == ("job", "Pending", 1)
        assert value["notes"][-1].startswith(
            "with these rights pods of other namespaces and nodes cannot be seen"
        )
