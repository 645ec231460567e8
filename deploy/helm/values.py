"""Values: the settings of the scheduler as values of the chart, and the schema of all values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from fluence.admission.scopes import OPERATOR_KINDS
from fluence.config import Setting, settings_of
from fluence.match import policy as match_policies
from fluence.queue import policy as queue_policies
from fluence.schedule.settings import SchedulerSettings

BEGIN, END = "# settings: begin", "# settings: end"
# What is another default in a pod than at a desk, and the words that say so.
IN_A_POD: dict[str, tuple[object, str]] = {
    "database-url": (
        "/var/lib/fluence/history.db",
        "See `history` for a Secret, and for a volume that lasts.",
    ),
    "lease-namespace": (None, "Without it: that of the release."),
    "health-address": ("0.0.0.0:10451", "The kubelet asks from outside the pod."),
    "metrics-address": ("127.0.0.1:10452", "For `kubectl port-forward`; to be scraped: `0.0.0.0:10452`."),
    "view-address": ("0.0.0.0:10453", "See `view` for who may read it."),
    "log-format": ("json", ""),
}
TIME = r"^([0-9]+(\.[0-9]+)?(ms|min|s|m|h|d)?)+$"
ADDRESS = r"^(.*:[0-9]{1,5})?$"
PLUGIN = r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*"
PATTERNS = {
    # Of plug-ins only module:name: the name of an entry point cannot be told from a typo.
    "match-policy": f"^({'|'.join(sorted(match_policies.BUILT_IN))}|hi|lo|.*policy=(low|high).*|{PLUGIN})$",
    "queue-policy": f"^({'|'.join(queue_policies.BUILT_IN)}|hybrid[(:][0-9]{{1,6}}[)]?|{PLUGIN})$",
    "queue-priority": f"^(urgency|{PLUGIN})$",
    "queue-predictor": f"^(history|{PLUGIN})$",
    "health-address": ADDRESS,
    "metrics-address": ADDRESS,
    "view-address": ADDRESS,
}
_DEVICE_LIMITS: dict[str, Any] = {
    # NB not propertyNames: helm then names the wrong place.
    "patternProperties": {"^[^/]+/[^/]+$": {"type": "integer", "minimum": 0}},  # QUEUE/TYPE
    "additionalProperties": False,
    "pattern": "^([^/=,]+/[^/=,]+=[0-9]+(,|$))*$",
}
# What an item of a list is, where it is not KEY=VALUE.
ITEMS = dict.fromkeys(("queues", "non-preempting-queues", "scheduler-aliases"), "^[^=,]+$")
# What may stand in a map, and in the text that may be written in its place.
_DURATIONS: dict[str, Any] = {
    "additionalProperties": {"type": ["integer", "string"], "minimum": 1, "pattern": TIME},
    "pattern": f"^([^=,]+={TIME.strip('^$')}(,|$))*$",
}
MAPS: dict[str, dict[str, Any]] = {
    "default-durations": _DURATIONS,
    "max-durations": _DURATIONS,
    "enforce-limits": {
        "additionalProperties": {"enum": ["warn", "end"]},
        "pattern": "^([^=,]+=(warn|end)(,|$))*$",
    },
    "user-device-limits": _DEVICE_LIMITS,
    "queue-device-limits": _DEVICE_LIMITS,
}


def settings_block() -> str:
    """The part of values.yaml between the marks."""
    lines = [BEGIN, "settings:"]
    for setting in settings_of(SchedulerSettings):
        default, more = IN_A_POD.get(setting.key, (setting.default, ""))
        text = f"{setting.text} {more}".strip()
        if setting.unit:
            text += f" In {setting.unit}."
        if setting.choices:
            text += f" One of {', '.join(f'`{each}`' for each in setting.choices)}."
        plain = list(default) if isinstance(default, tuple) else default
        if isinstance(plain, float) and plain.is_integer():
            plain = int(plain)
        value = yaml.safe_dump(plain, default_flow_style=True, width=1000).replace("\n...", "").strip()
        lines += [f"  # {text}", f"  {setting.key}: {value}"]
    return "\n".join([*lines, END])


def with_settings(values: str) -> str:
    """values.yaml with the block as it is now."""
    head, _, rest = values.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + settings_block() + tail


def schema() -> str:
    """values.schema.json. Values that the chart does not know are refused: a typo would else do nothing."""
    document = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart fluence",
        **_closed(OWN | OLD | {"settings": _settings()}),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _settings() -> dict[str, Any]:
    (_,), components = msgspec.json.schema_components([SchedulerSettings], ref_template="{name}")
    fields = components["SchedulerSettings"]["properties"]
    return _closed({each.key: _setting(each, fields[each.field]) for each in settings_of(SchedulerSettings)})


def _setting(setting: Setting, field: Mapping[str, Any]) -> dict[str, Any]:
    """One type keyword and its bounds, so that helm's message names the one that is broken."""
    found: dict[str, Any] = {"description": setting.text}
    if setting.choices:
        return found | {"enum": [*setting.choices]}
    plain = next((each for each in field.get("anyOf", ()) if each.get("type") != "null"), field)
    types: list[str] = {
        "bool": ["boolean"],
        "int": ["integer"],
        "float": ["number"],
        "str": ["string"],
        "list": ["array", "string"],
        "map": ["object", "string"],
    }[setting.kind]
    if setting.unit:
        types, found["pattern"] = [*types, "string"], TIME
    if setting.is_optional or IN_A_POD.get(setting.key, ("",))[0] is None:
        types = [*types, "null"]
    found["type"] = types if len(types) > 1 else types[0]
    for key in ("minimum", "exclusiveMinimum", "maximum", "minLength"):
        if key in plain:
            found[key] = plain[key]
    if setting.kind == "map":
        found |= MAPS[setting.key]
    if setting.kind == "list":
        found["items"] = {"type": "string", "pattern": ITEMS.get(setting.key, "^[^=]+=[^=]+$")}
    if setting.key in PATTERNS:
        found["pattern"] = PATTERNS[setting.key]
    return found


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}


_TEXT: dict[str, Any] = {"type": "string"}
_FLAG: dict[str, Any] = {"type": "boolean"}
_ANY: dict[str, Any] = {"type": "object"}
_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
_AMOUNTS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"type": ["number", "string", "null"], "minimum": 0, "pattern": _QUANTITY},
}
_RESOURCES: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"limits": _AMOUNTS, "requests": _AMOUNTS, "claims": {"type": "array"}},
}
_LIST: dict[str, Any] = {"type": "array", "items": {"type": "object"}}
_WORDS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
_PULL: dict[str, Any] = {"enum": ["Always", "IfNotPresent", "Never"]}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_PORT: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 65535}
_DIGEST: dict[str, Any] = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
ALERTS = (
    "FluenceDown",
    "FluenceNoLeader",
    "FluenceNothingScheduled",
    "FluenceQueueAge",
    "FluencePromisesBroken",
    "FluenceQuarantine",
    "FluenceHistoryBehind",
    "FluenceSlowCycles",
    "FluenceResourcesInvalid",
)
_ALERT = _closed(
    {
        "enabled": _FLAG,
        "threshold": {"type": ["number", "string"], "pattern": r"^[0-9]+(\.[0-9]+)?(ms|[smhdwy])?$"},
        "for": {"type": "string", "pattern": "^([0-9]+(ms|[smhdwy]))+$"},
        "severity": _TEXT,
    }
)

OWN: dict[str, Any] = {
    "replicas": _COUNT,
    "image": _closed(
        {
            "repository": {"type": "string", "minLength": 1},
            "tag": _TEXT,
            "digest": _DIGEST,
            "pullPolicy": _PULL,
        }
    ),
    "imagePullSecrets": _LIST,
    "nameOverride": _TEXT,
    "fullnameOverride": _TEXT,
    "resources": _RESOURCES,
    "priorityClassName": _TEXT,
    "terminationGracePeriodSeconds": _COUNT,
    "podLabels": _WORDS,
    "podAnnotations": _WORDS,
    "nodeSelector": _WORDS,
    "tolerations": _LIST,
    "affinity": _ANY,
    "topologySpreadConstraints": _LIST,
    "env": _LIST,
    "volumes": _LIST,
    "volumeMounts": _LIST,
    "history": _closed(
        {
            "existingSecret": _TEXT,
            "secretKey": {"type": "string", "minLength": 1},
            "volume": _closed(
                {
                    "persistent": _FLAG,
                    "existingClaim": _TEXT,
                    "size": {"type": "string", "pattern": "^[0-9]+([KMGT]i?)?$"},
                    "storageClassName": _TEXT,
                }
            ),
        }
    ),
    "serviceAccount": _closed({"create": _FLAG, "name": _TEXT, "annotations": _WORDS}),
    "rbac": _closed({"create": _FLAG, "aggregate": _FLAG}),
    "view": _closed({"apiService": _FLAG, "everyone": _FLAG}),
    "devicePlugin": _closed(
        {
            "enabled": _FLAG,
            "capacity": {"type": "integer", "minimum": 1, "maximum": 32768},
            "namespace": {"type": "string", "minLength": 1},
            "directory": {"type": "string", "pattern": "^/"},
            "priorityClassName": _TEXT,
            "resources": _RESOURCES,
        }
    ),
    "matchService": _closed(
        {
            "enabled": _FLAG,
            "graph": {"enum": ["live", "client"]},
            "port": _PORT,
            "nodePort": _FLAG,
            "from": _LIST,
            "tlsSecret": _TEXT,
            "clientCertificates": _FLAG,
            "state": _closed(
                {
                    "persistent": _FLAG,
                    "existingClaim": _TEXT,
                    "size": {"type": "string", "pattern": "^[0-9]+([KMGT]i?)?$"},
                    "storageClassName": _TEXT,
                }
            ),
            "args": {"type": "array", "items": {"type": "string", "pattern": "^--"}},
            "resources": _RESOURCES,
        }
    ),
    "podDisruptionBudget": _closed(
        {"enabled": _FLAG, "maxUnavailable": {"type": ["integer", "string"], "pattern": "^[0-9]+%$"}}
    ),
    "serviceMonitor": _closed({"enabled": _FLAG, "interval": _TEXT, "labels": _WORDS, "endpoint": _ANY}),
    "prometheusRule": _closed(
        {
            "enabled": _FLAG,
            "labels": _WORDS,
            "job": _TEXT,
            "runbook": _TEXT,
            "alerts": _closed(dict.fromkeys(ALERTS, _ALERT)),
        }
    ),
    "dashboard": _closed({"enabled": _FLAG, "labels": _WORDS}),
    "networkPolicy": _closed(
        {
            "enabled": _FLAG,
            "metricsFrom": _LIST,
            "apiServerCIDRs": {"type": "array", "items": {"type": "string", "pattern": "/[0-9]+$"}},
            "apiServerPorts": {"type": "array", "items": _PORT},
            "egress": _LIST,
            "webhook": _closed({"enabled": _FLAG, "from": _LIST}),
        }
    ),
    "admission": _closed(
        {
            "mode": {"enum": ["auto", "policy", "webhook", "off"]},
            "handlers": {"type": "array", "items": {"enum": ["fluxion", "quantum", "gang", "podgroups"]}},
            "doors": {"enum": ["off", "namespaces", "cluster"]},
            "operators": {"type": "array", "items": {"enum": [*OPERATOR_KINDS]}},
            "exceptNamespaces": {"type": "array", "items": _TEXT},
            "namespaceSelector": _LIST,
            "users": _FLAG,
            "controllers": {"type": "array", "items": {"type": "string", "pattern": "^[^'\\\\,\\s]+$"}},
            "queueAccess": _FLAG,
            "priorityClass": _FLAG,
            "webhook": _closed({"replicas": _COUNT, "resources": _RESOURCES}),
        }
    ),
    "global": _ANY,  # what helm gives to every chart that is part of another
}
# Of the charts of flux-k8s, fluxnetes and fluxqueue.
OLD: dict[str, Any] = {
    "scheduler": _closed(
        {
            "name": _TEXT,
            "image": _TEXT,
            "replicaCount": _COUNT,
            "leaderElect": _FLAG,
            "sidecarimage": _TEXT,
            "policy": {"type": "string", "pattern": PATTERNS["match-policy"]},
            "pullPolicy": _PULL,
            "sidecarPullPolicy": _TEXT,
            "loggingLevel": {"type": ["string", "integer"]},
            "enableExternalService": _FLAG,
            "port": {"type": ["integer", "string"]},
            "ports": {"type": "array"},
            "type": _TEXT,
        }
    ),
    "sidecar": {
        "type": "object",
        "properties": {"policy": {"type": "string", "pattern": PATTERNS["match-policy"]}},
    },
    **dict.fromkeys(("controller", "controllerManager", "database", "metricsService", "plugins"), _ANY),
    **dict.fromkeys(("postgres", "webhookService"), _ANY),
    "pluginConfig": {"type": "array"},
    "enableCertManager": _FLAG,
    "kubernetesClusterDomain": _TEXT,
}
