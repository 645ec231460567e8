"""Admission objects: which policies, webhooks and Deployments are Fluence's, and what they say of themselves.

They are known by what is in them (the annotation with the names of the rules, the name of a webhook), not by
what they are called; whose pods they look at is in their conditions.
"""

from __future__ import annotations

import base64
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from cryptography import x509

from fluence import names
from fluence.admission.hooks import PATH
from fluence.admission.policy import RULES
from fluence.admission.rule import DEFAULT_HANDLERS, FLUXION
from fluence.admission.scopes import AdmissionOptions, DoorMode, chosen_handlers, scopes
from fluence.doctor.admission_facts import EVERYWHERE, HELD, Authority, Backing, Binding, Hook, Policy
from fluence.doctor.installations import containers_of, environment_of, flag_of, pod_of
from fluence.model.meta import LabelSelector

Json = Mapping[str, Any]

_HOOK_NAME = re.compile(r".+\.flux-framework\.org")
_NAMED = re.compile(r"schedulerName\.orValue\(''\)\s+(?:==|in)\s+('[^']*'|\[[^\]]*\])")
_QUOTED = re.compile(r"'([^']*)'")
_HOLDS = frozenset(("suspend-job", "gate-template", "gate-pod"))
_END = b"-----END CERTIFICATE-----"
_VARIABLES = {"FLUENCE_HANDLERS", "FLUENCE_DOORS", "FLUENCE_SCHEDULER_NAME", "WEBHOOK_NAMESPACE"}


def read_policy(found: Json) -> Policy | None:
    """A policy; None: it is not Fluence's."""
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
        ("pods" if "pods" in plurals else "workloads") + (HELD if rules & _HOLDS else ""),
        _schedulers(spec),
        "paramKind" in spec,  # where the chart leaves this rule out, the annotation names it all the same
        _selector(constraints),
    )


def read_binding(found: Json) -> Binding:
    meta, spec = found.get("metadata") or {}, found.get("spec") or {}
    reference = spec.get("paramRef") or {}
    key = f"{reference.get('namespace', '')}/{reference.get('name', '')}" if reference else ""
    return Binding(
        meta.get("name", ""), spec.get("policyName", ""), key, _selector(spec.get("matchResources") or {})
    )


def read_hooks(configuration: Json) -> Iterator[Hook]:
    """The webhooks of a configuration that are Fluence's."""
    name = (configuration.get("metadata") or {}).get("name", "")
    for each in configuration.get("webhooks") or ():
        client = each.get("clientConfig") or {}
        service = client.get("service") or {}
        path = service.get("path") or client.get("url") or ""
        if not _HOOK_NAME.fullmatch(each.get("name", "")) or f"{PATH}/" not in path:
            continue
        yield Hook(
            name,
            posixpath.basename(path),
            _schedulers(each),
            _selector(each),
            f"{service.get('namespace', '')}/{service.get('name', '')}" if service else "",
            tuple(_authorities(client.get("caBundle") or "")),
            each.get("failurePolicy", "Fail") == "Fail",
        )


def read_backing(service: Json, ready: int, deployments: Sequence[Json]) -> Backing:
    """A Service, how many endpoints of it are ready, and the Deployment of its namespace that it selects."""
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
            account=pod_of(each).get("serviceAccountName") or "default",
            **_said(next(containers_of(each), {})),
        )
    return found


def count_ready(slices: Sequence[Json]) -> int:
    """Endpoints that are ready; one that does not say is."""
    endpoints = [each for one in slices for each in one.get("endpoints") or ()]
    return sum((each.get("conditions") or {}).get("ready") is not False for each in endpoints)


def _said(container: Json) -> dict[str, Any]:
    """What a webhook is started with; nothing if it is not ours or that cannot be seen."""
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
    space = flag_of(words, "--parameters-namespace")
    space = space or say("--namespace", "WEBHOOK_NAMESPACE", "kube-system")
    found: dict[str, Any] = {}
    if space is not None and "$(" not in space:
        found["parameters"] = f"{space}/{names.ADMISSION_PARAMETERS}"
    if handlers is not None:
        found["hands_over"] = FLUXION in chosen_handlers(handlers)[0]
    if handlers is not None and name is not None and doors in tuple(DoorMode):
        options = AdmissionOptions(chosen_handlers(handlers)[0], DoorMode(doors), name)
        found["scopes"] = tuple(each.name for each in scopes(options))
    return found


def _schedulers(of: Json) -> frozenset[str]:
    """The scheduler names that its conditions speak of."""
    text = " ".join(each.get("expression", "") for each in of.get("matchConditions") or ())
    named = {name for part in _NAMED.findall(text) for name in _QUOTED.findall(part)}
    return frozenset(named - {"", names.KUBE_SCHEDULER})


def _selector(of: Json) -> LabelSelector:
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
