"""Installations: which Deployments are Fluence schedulers, and what their settings say of name and lease.

Settings come from the file (a ConfigMap), the environment and the flags, in this order, as `fluence.config`
has it. A source that cannot be seen leaves open what no later source says.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from fluence.config import settings_of
from fluence.doctor.facts import Installation
from fluence.schedule.settings import SchedulerSettings
from fluence.yaml_loader import load

Json = Mapping[str, Any]
FindConfig = Callable[[str, str], Mapping[str, str] | None]
"""The data of the ConfigMap with this namespace and name; None: it cannot be seen."""

_SETTINGS = {
    each.field: each
    for each in settings_of(SchedulerSettings)
    if each.field
    in (
        "scheduler_name",
        "lease",
        "lease_name",
        "lease_namespace",
        "metrics_address",
        "flux_jobs",
        "resources",
        "resources_configmap",
    )
}
_LOOPBACK = re.compile(r"(127\.|localhost:|\[::1\]:)")
_FALSE = ("false", "0", "no", "off")


def is_scheduler(deployment: Json) -> bool:
    """It says so by the labels of the chart, or a container runs `fluence scheduler run`."""
    labels = _meta(deployment).get("labels") or {}
    if (labels.get("app.kubernetes.io/name"), labels.get("app.kubernetes.io/component")) == (
        "fluence",
        "scheduler",
    ):
        return True
    return any(_is_ours(each) for each in containers_of(deployment))


def read_installation(deployment: Json, find_config: FindConfig) -> Installation:
    """What a Deployment of ours says."""
    meta, spec, status = _meta(deployment), _spec(deployment), deployment.get("status") or {}
    pod = pod_of(deployment)
    container = next(filter(_is_ours, containers_of(deployment)), next(containers_of(deployment), {}))
    said = _settings(container, pod, lambda name: find_config(meta["namespace"], name))

    def lease_key() -> str | None:
        namespace, name = said["lease_namespace"], said["lease_name"]
        return None if namespace is None or name is None else f"{namespace}/{name}"

    address, lease, flux_jobs = said["metrics_address"], said["lease"], said["flux_jobs"]
    labels = meta.get("labels") or {}
    by_helm = labels.get("app.kubernetes.io/managed-by") == "Helm"
    return Installation(
        namespace=meta["namespace"],
        name=meta["name"],
        account=pod.get("serviceAccountName") or "default",
        image=container.get("image", ""),
        wanted=1 if spec.get("replicas") is None else spec["replicas"],
        ready=status.get("readyReplicas") or 0,
        scheduler_name=said["scheduler_name"],
        lease=None if lease is None else lease.lower() not in _FALSE,
        lease_key=lease_key(),
        opens_metrics=None if address is None else bool(address) and _LOOPBACK.match(address) is None,
        flux_jobs=None if flux_jobs is None else flux_jobs.lower() not in _FALSE,
        devices_at=None if said["resources"] else said["resources_configmap"],
        release=labels.get("app.kubernetes.io/instance", "") if by_helm else "",
        selector=(spec.get("selector") or {}).get("matchLabels") or {},
    )


def _settings(
    container: Json, pod: Json, find_config: Callable[[str], Mapping[str, str] | None]
) -> dict[str, str | None]:
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    said: dict[str, str | None] = {field: each.show(each.default) for field, each in _SETTINGS.items()}
    env, from_elsewhere = environment_of(container, {each.variable for each in _SETTINGS.values()})
    file = flag_of(words, "--config") or env.get("FLUENCE_CONFIG")
    if file:
        document = _file(file, container, pod, find_config)
        for field, setting in _SETTINGS.items():
            if document is None:
                said[field] = None
            elif setting.key in document:
                said[field] = _text(document[setting.key])
    for field, setting in _SETTINGS.items():
        if setting.variable in from_elsewhere:
            said[field] = None
        said[field] = env.get(setting.variable, said[field])
        given = flag_of(words, setting.flag)
        said[field] = said[field] if given is None else given
        if setting.kind == "bool":
            said[field] = "true" if setting.flag in words else said[field]
            said[field] = "false" if f"--no-{setting.key}" in words else said[field]
    # $(NAME) is put in by the kubelet.
    return {field: None if "$(" in (value or "") else value for field, value in said.items()}


def _file(
    path: str, container: Json, pod: Json, find_config: Callable[[str], Mapping[str, str] | None]
) -> Mapping[str, Any] | None:
    """The document at a path in a container, if it comes from a ConfigMap that can be seen."""
    volumes = {each.get("name"): each for each in pod.get("volumes") or ()}
    for mount in container.get("volumeMounts") or ():
        at = mount.get("mountPath", "")
        if path != at and not path.startswith(f"{at.rstrip('/')}/"):
            continue
        source = (volumes.get(mount.get("name")) or {}).get("configMap")
        if source is None:
            continue
        key = mount.get("subPath") or posixpath.relpath(path, at)
        key = next((each["key"] for each in source.get("items") or () if each.get("path") == key), key)
        text = (find_config(source.get("name", "")) or {}).get(key)
        try:
            document = load(text) if text is not None else None
        except yaml.YAMLError:
            return None
        return document if isinstance(document, dict) else ({} if text == "" else None)
    return None


def environment_of(container: Json, wanted: set[str]) -> tuple[dict[str, str], set[str]]:
    """Variables with a value, and those, among the wanted, whose value comes, or may come, from another
    object."""
    listed = container.get("env") or ()
    given = {each["name"]: each.get("value", "") for each in listed if "valueFrom" not in each}
    if container.get("envFrom"):
        return given, wanted
    return given, {each["name"] for each in listed if "valueFrom" in each}


def flag_of(words: Sequence[str], flag: str) -> str | None:
    found = None
    for word, behind in zip(words, [*words[1:], ""], strict=True):
        if word == flag and behind and not behind.startswith("--"):
            found = behind
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_ours(container: Json) -> bool:
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    names = {posixpath.basename(each) for each in words}
    return {"scheduler", "run"} <= names and bool({"fluence", "fluence.cli"} & names)


def _meta(deployment: Json) -> Any:
    return deployment.get("metadata") or {}


def _spec(deployment: Json) -> Any:
    return deployment.get("spec") or {}


def pod_of(deployment: Json) -> Any:
    return (_spec(deployment).get("template") or {}).get("spec") or {}


def containers_of(deployment: Json) -> Iterator[Json]:
    yield from pod_of(deployment).get("containers") or ()
