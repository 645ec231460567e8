"""Installations: which Deployments, policies and webhooks belong to Fluence, and how they are configured.

They are recognized by their content and not by their names: the program that a container runs, the annotation
with the names of the rules, the name of a webhook. The schedulers whose pods they change are in their match
conditions.
"""

from __future__ import annotations

import base64
import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import yaml
from cryptography import x509

from fluence import names
from fluence.admission.manifests import RULES, WEBHOOK_PATH
from fluence.admission.queueing import HELD as HELD_KINDS
from fluence.admission.rule import DEFAULT_HANDLERS, FLUXION
from fluence.admission.scopes import (
    OPERATOR_KINDS,
    OPERATORS,
    AdmissionOptions,
    DoorMode,
    chosen_handlers,
    scopes,
)
from fluence.config import settings_of
from fluence.doctor.facts import (
    EVERYWHERE,
    HELD,
    Authority,
    Backing,
    Binding,
    Hook,
    Installation,
    Policy,
    Rollout,
)
from fluence.model.meta import LabelSelector
from fluence.schedule.settings import SchedulerSettings
from fluence.yaml_loader import load

Json = Mapping[str, Any]
FindConfig = Callable[[str, str], Mapping[str, str] | None]
"""Returns the data of a ConfigMap by namespace and name; None if it cannot be read."""

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
        "users_policy",
        "resources",
        "resources_configmap",
    )
}
_LOOPBACK = re.compile(r"(127\.|localhost:|\[::1\]:)")
_FALSE = ("false", "0", "no", "off")


def is_scheduler(deployment: Json) -> bool:
    """Whether it has the labels of the chart, or a container runs `fluence scheduler run`."""
    labels = _meta(deployment).get("labels") or {}
    if (labels.get("app.kubernetes.io/name"), labels.get("app.kubernetes.io/component")) == (
        "fluence",
        "scheduler",
    ):
        return True
    return any(_is_ours(each) for each in containers_of(deployment))


def read_installation(deployment: Json, find_config: FindConfig) -> Installation:
    """The settings and the state of a Deployment of ours."""
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
        rollout=rollout_of(deployment),
        scheduler_name=said["scheduler_name"],
        lease=None if lease is None else lease.lower() not in _FALSE,
        lease_key=lease_key(),
        opens_metrics=None if address is None else bool(address) and _LOOPBACK.match(address) is None,
        flux_jobs=None if flux_jobs is None else flux_jobs.lower() not in _FALSE,
        users_policy=said["users_policy"],
        devices_at=None if said["resources"] else said["resources_configmap"],
        release=labels.get("app.kubernetes.io/instance", "") if by_helm else "",
        selector=(spec.get("selector") or {}).get("matchLabels") or {},
    )


def rollout_of(deployment: Json) -> Rollout:
    """The progress of the newest template. A status of an older generation does not count."""
    status = deployment.get("status") or {}
    if (status.get("observedGeneration") or 0) < (_meta(deployment).get("generation") or 0):
        return Rollout()
    progress: Json = next(
        (each for each in status.get("conditions") or () if each.get("type") == "Progressing"), {}
    )
    has_failed = progress.get("status") == "False" and progress.get("reason") != "DeploymentPaused"
    stuck = progress.get("message") or progress.get("reason") or "no progress" if has_failed else ""
    return Rollout(status.get("updatedReplicas") or 0, stuck)


def trouble_of(pod: Json) -> str:
    """Why a container of a pod does not run. One that is being created or has ended by itself is fine."""
    status = pod.get("status") or {}
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (each.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason") or ""
        if reason in ("", "ContainerCreating", "PodInitializing"):
            continue
        text = f"container {each.get('name', '')}: {reason}"
        if restarts := each.get("restartCount"):
            ended = (each.get("lastState") or {}).get("terminated") or {}
            code = f", last exit code {ended['exitCode']}" if "exitCode" in ended else ""
            text += f" after {restarts} restart{'s' if restarts > 1 else ''}{code}"
        elif waiting.get("message"):
            text += f": {waiting['message']}"
        return text
    return ""


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
    # The kubelet replaces $(NAME).
    return {field: None if "$(" in (value or "") else value for field, value in said.items()}


def _file(
    path: str, container: Json, pod: Json, find_config: Callable[[str], Mapping[str, str] | None]
) -> Mapping[str, Any] | None:
    """The document at a path in a container, if it comes from a readable ConfigMap."""
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
    """Variables with a value, and the wanted ones whose value comes, or may come, from another object."""
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


_HOOK_NAME = re.compile(r".+\.flux-framework\.org")
_NAMED = re.compile(r"schedulerName\.orValue\(''\)\s+(?:==|in)\s+('[^']*'|\[[^\]]*\])")
_QUOTED = re.compile(r"'([^']*)'")
_HOLDS = frozenset(
    ("suspend-job", "gate-template", "gate-pod", *(f"suspend-{each.lower()}" for each in OPERATOR_KINDS))
)
_END = b"-----END CERTIFICATE-----"
_VARIABLES = {
    *("FLUENCE_HANDLERS", "FLUENCE_DOORS", "FLUENCE_SCHEDULER_NAME", "FLUENCE_OPERATORS"),
    "WEBHOOK_NAMESPACE",
}
_CUSTOM = {each.plural for each in HELD_KINDS.values()}


def read_policy(found: Json) -> Policy | None:
    """Read a policy; None if it is not Fluence's."""
    meta, spec = found.get("metadata") or {}, found.get("spec") or {}
    listed = (meta.get("annotations") or {}).get(RULES)
    if listed is None:
        return None
    rules = {each.strip() for each in listed.split(",")}
    constraints = spec.get("matchConstraints") or {}
    plurals = [
        each for rule in constraints.get("resourceRules") or () for each in rule.get("resources") or ()
    ]
    return Policy(
        meta.get("name", ""),
        _objects(plurals) + (HELD if rules & _HOLDS else ""),
        _schedulers(spec),
        "paramKind" in spec,  # if the chart leaves this rule out, the annotation still names it
        selector_of(constraints),
    )


def _objects(plurals: Collection[str]) -> str:
    """The name that the scope of a policy begins with."""
    if "pods" in plurals:
        return "pods"
    return OPERATORS if _CUSTOM & set(plurals) else "workloads"


def read_binding(found: Json) -> Binding:
    meta, spec = found.get("metadata") or {}, found.get("spec") or {}
    reference = spec.get("paramRef") or {}
    key = f"{reference.get('namespace', '')}/{reference.get('name', '')}" if reference else ""
    return Binding(
        meta.get("name", ""), spec.get("policyName", ""), key, selector_of(spec.get("matchResources") or {})
    )


def read_hooks(configuration: Json) -> Iterator[Hook]:
    """The webhooks of a configuration that belong to Fluence."""
    name = (configuration.get("metadata") or {}).get("name", "")
    for each in configuration.get("webhooks") or ():
        client = each.get("clientConfig") or {}
        service = client.get("service") or {}
        path = service.get("path") or client.get("url") or ""
        if not _HOOK_NAME.fullmatch(each.get("name", "")) or f"{WEBHOOK_PATH}/" not in path:
            continue
        yield Hook(
            name,
            posixpath.basename(path),
            _schedulers(each),
            selector_of(each),
            f"{service.get('namespace', '')}/{service.get('name', '')}" if service else "",
            tuple(_authorities(client.get("caBundle") or "")),
            each.get("failurePolicy", "Fail") == "Fail",
        )


def read_backing(service: Json, ready: int, deployments: Sequence[Json]) -> Backing:
    """A Service, the number of its ready endpoints, and the Deployment in its namespace that it selects."""
    meta = service.get("metadata") or {}
    space, name = meta.get("namespace", ""), meta.get("name", "")
    selector = (service.get("spec") or {}).get("selector") or {}
    found = Backing(f"{space}/{name}", ready=ready)
    for each in deployments:
        labels = ((each.get("spec") or {}).get("template") or {}).get("metadata", {}).get("labels") or {}
        if not selector or not selector.items() <= labels.items():
            continue
        replicas = each["spec"].get("replicas")
        found = Backing(
            found.service,
            ready=ready,
            deployment=f"{space}/{each['metadata']['name']}",
            wanted=1 if replicas is None else replicas,
            rollout=rollout_of(each),
            account=pod_of(each).get("serviceAccountName") or "default",
            **_said(next(containers_of(each), {})),
        )
    return found


def count_ready(slices: Sequence[Json]) -> int:
    """The number of ready endpoints. An endpoint without a condition counts as ready."""
    endpoints = [each for one in slices for each in one.get("endpoints") or ()]
    return sum((each.get("conditions") or {}).get("ready") is not False for each in endpoints)


def _said(container: Json) -> dict[str, Any]:
    """The settings of a webhook; empty if it is not ours or they cannot be read."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    env, elsewhere = environment_of(container, _VARIABLES)

    def say(flag: str, variable: str, default: str) -> str | None:
        given = flag_of(words, flag)
        if given is None:
            given = None if variable in elsewhere else env.get(variable, default)
        return None if given is None or "$(" in given else given

    if not {"webhook", "run"} <= {posixpath.basename(each) for each in words}:
        return {}
    handlers = say("--handlers", "FLUENCE_HANDLERS", ",".join(DEFAULT_HANDLERS))
    doors = say("--doors", "FLUENCE_DOORS", DoorMode.OFF.value)
    name = say("--scheduler-name", "FLUENCE_SCHEDULER_NAME", names.SCHEDULER)
    operators = say("--operators", "FLUENCE_OPERATORS", ",".join(OPERATOR_KINDS)) or ""
    space = flag_of(words, "--parameters-namespace")
    space = space or say("--namespace", "WEBHOOK_NAMESPACE", "kube-system")
    found: dict[str, Any] = {}
    if space is not None and "$(" not in space:
        found["parameters"] = f"{space}/{names.ADMISSION_PARAMETERS}"
    if handlers is not None:
        found["hands_over"] = FLUXION in chosen_handlers(handlers)[0]
    if handlers is not None and name is not None and doors in tuple(DoorMode):
        kinds = tuple(operators.split(","))
        options = AdmissionOptions(chosen_handlers(handlers)[0], DoorMode(doors), name, operators=kinds)
        found["scopes"] = tuple(each.name for each in scopes(options))
    return found


def _schedulers(of: Json) -> frozenset[str]:
    """The scheduler names in its match conditions."""
    text = " ".join(each.get("expression", "") for each in of.get("matchConditions") or ())
    named = {name for part in _NAMED.findall(text) for name in _QUOTED.findall(part)}
    return frozenset(named - {"", names.KUBE_SCHEDULER})


def selector_of(of: Json) -> LabelSelector:
    """The namespaces that a policy, a binding or a webhook applies to."""
    found = of.get("namespaceSelector")
    return EVERYWHERE if not found else msgspec.convert(found, LabelSelector)


def _authorities(bundle: str) -> Iterator[Authority]:
    try:
        parts = base64.b64decode(bundle).split(_END)
    except ValueError:
        return
    for part in parts:
        try:
            found = x509.load_pem_x509_certificate(part.strip() + b"\n" + _END)
        except ValueError:
            continue
        yield Authority(found.not_valid_before_utc, found.not_valid_after_utc)
