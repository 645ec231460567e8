"""The chart's files agree with the settings of the program, with each other and with the version."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.helm.__main__ import chart_files
from deploy.helm.manifests import CHART, DEPLOY, KIND, kind_config
from deploy.helm.readme import described
from deploy.helm.values import IN_A_POD, with_settings

from fluence.config import load, settings_of
from fluence.kube.releases import RELEASES
from fluence.schedule.settings import SchedulerSettings

ROOT = Path(__file__).parents[3]
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def test_what_is_written_from_the_settings_is_up_to_date() -> None:
    """If not: `make manifests`."""
    stale = [str(path.relative_to(ROOT)) for path, text in chart_files().items() if path.read_text() != text]
    assert not stale


def test_every_setting_is_a_value_with_the_programs_default() -> None:
    known = {each.key: each for each in settings_of(SchedulerSettings)}
    assert list(VALUES["settings"]) == list(known)
    for key, value in VALUES["settings"].items():
        default = known[key].default
        wanted = (
            IN_A_POD[key][0] if key in IN_A_POD else list(default) if isinstance(default, tuple) else default
        )
        assert value == wanted, key
    assert set(SCHEMA["properties"]["settings"]["properties"]) == set(known)


def test_the_defaults_of_the_chart_are_settings_that_the_scheduler_takes(tmp_path: Path) -> None:
    file = tmp_path / "fluence.yaml"
    file.write_text(
        yaml.safe_dump({key: each for key, each in VALUES["settings"].items() if each is not None})
    )
    settings = load(SchedulerSettings, file=str(file)).settings
    assert settings.address(settings.health_address) == ("0.0.0.0", 10451)


def test_a_new_setting_appears_by_itself() -> None:
    without = with_settings("a: 1\n# settings: begin\nsettings: {}\n# settings: end\nb: 2\n")
    assert yaml.safe_load(without) == {"a": 1, "settings": VALUES["settings"], "b": 2}


def test_every_value_is_in_the_schema_and_has_a_row_that_says_what_it_is() -> None:
    assert set(VALUES) <= set(SCHEMA["properties"])
    rows = list(described((CHART / "values.yaml").read_text()))
    assert not [path for path, _, text in rows if not text]
    told = {path.split(".")[0] for path, _, _ in rows}
    assert told == set(VALUES) - {"scheduler"}
    assert {path: value for path, value, _ in rows}["networkPolicy.apiServerPorts"] == [443, 6443]


def test_the_chart_has_the_projects_version() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert about["version"] == about["appVersion"] == project["version"]
    images = yaml.safe_load((DEPLOY / "scheduler/kustomization.yaml").read_text())["images"]
    assert images == [{"name": "fluence", "newName": "fluence", "newTag": project["version"]}]


@pytest.mark.parametrize(("name", "minor"), KIND.items())
def test_kinds_configuration_turns_on_what_the_sandbox_turns_on(name: str, minor: str) -> None:
    """The sandbox starts with these gates in every test: a gate that a release does not know stops it."""
    text = (DEPLOY / name).read_text()
    assert text == kind_config(minor)
    said, release = yaml.safe_load(text), RELEASES[minor]
    assert said["featureGates"] == release.gates and said["featureGates"]["GenericWorkload"] is True
    assert [f"{key}={value}" for key, value in said["runtimeConfig"].items()] == list(release.runtime_config)
    assert [node["role"] for node in said["nodes"]].count("worker") == 2


def test_the_history_is_found_in_the_pod_where_the_scheduler_keeps_it() -> None:
    """`kubectl exec POD -- fluence history` has no settings file: a variable says where it is."""
    (deployment,) = yaml.safe_load_all((DEPLOY / "scheduler" / "deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    said = {variable["name"]: variable.get("value") for variable in container.get("env", ())}
    assert said["FLUENCE_DATABASE_URL"] == VALUES["settings"]["database-url"]


def test_the_role_says_what_it_allows() -> None:
    text = (DEPLOY / "scheduler" / "rbac.yaml").read_text()
    role = next(document for document in yaml.safe_load_all(text) if document["kind"] == "ClusterRole")
    verbs: dict[str, set[str]] = {}
    for rule in role["rules"]:
        for resource in rule["resources"]:
            verbs.setdefault(resource, set()).update(rule["verbs"])
    assert "may not create pods, and may not read secrets" in text
    assert "create" not in verbs["pods"] and "secrets" not in verbs and "*" not in verbs
    said = " ".join(line.lstrip("# ") for line in text.split("apiVersion")[0].splitlines())
    assert ("delete" in verbs["pods"]) == ("delete pods" in said)
    assert ("create" in verbs.get("pods/eviction", set())) == ("evict pods" in said)
    patched = {"pods", "jobs", "deployments", "replicasets", "statefulsets"}
    assert all("patch" in verbs[resource] for resource in patched) and "patch pods, Jobs" in said
