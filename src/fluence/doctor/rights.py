"""Rights: what the scheduler's account must be allowed to do, each with its reason, read from the chart's
roles.

`make manifests` writes `rbac.yaml` and `admission-rbac.yaml` beside this file from the chart. So the doctor
checks exactly the rules that an installation has, and the comments above them are the reasons.
"""

from __future__ import annotations

import shlex
from functools import cache
from importlib import resources

import msgspec
import yaml

from fluence.kube.resource import HAND_OFFS

_FOR_METRICS = ("authentication.k8s.io", "authorization.k8s.io")
_LEASES = "leases"


class Right(msgspec.Struct, frozen=True):
    """Verbs on resources of one group, in the whole cluster or, for leases, in one namespace."""

    group: str
    resources: tuple[str, ...]  # pods, pods/binding
    verbs: tuple[str, ...]
    reason: str
    namespace: str = ""  # "": the whole cluster
    name: str = ""  # "": every object

    @property
    def is_for_metrics(self) -> bool:
        """Whether it is needed only for metrics that others may read."""
        return self.group in _FOR_METRICS

    @property
    def spelled(self) -> str:
        """The resources as kubectl spells them: `pods/binding`, `podgroups.scheduling.k8s.io/status`."""
        return ",".join(_spelled(self.group, each) for each in self.resources)

    def reviews(self) -> list[tuple[str, dict[str, str]]]:
        """One question per resource and verb: the verb, and the attributes of an access review."""
        asked = []
        for resource in self.resources:
            plural, _, sub = resource.partition("/")
            for verb in self.verbs:
                what = {"verb": verb, "group": self.group, "resource": plural, "subresource": sub}
                what |= {"namespace": self.namespace, "name": self.name}
                asked.append((verb, {key: value for key, value in what.items() if value}))
        return asked

    def grant(self, subject: str) -> str:
        """The command that grants it to an account or a user."""
        parts = subject.split(":")
        if subject.startswith("system:serviceaccount:") and len(parts) == 4:
            to = f"--serviceaccount={parts[2]}:{parts[3]}"
        else:
            to = f"--user={shlex.quote(subject)}"
        # One role per account and right, so that the names do not collide.
        words = [parts[-1], *self.resources, *self.verbs]
        name = shlex.quote("-".join(words).replace("/", "-"))
        kind, where = ("role", f" -n {self.namespace}") if self.namespace else ("clusterrole", "")
        only = f" --resource-name={self.name}" if self.name else ""
        return (
            f"kubectl create {kind} {name}{where} --verb={','.join(self.verbs)} --resource={self.spelled}"
            f"{only} && kubectl create {kind}binding {name}{where} --{kind}={name} {to}"
        )


def needed_rights(*, lease: str | None, metrics: bool) -> tuple[Right, ...]:
    """The rights of a scheduler with this lease (namespace/name; None: without one), with or without open
    metrics."""
    namespace, _, name = (lease or "").partition("/")
    found = []
    for right in _chart_rights():
        if right.is_for_metrics and not metrics:
            continue
        if right.resources == (_LEASES,):
            if lease is None:
                continue
            named = name if right.name else ""
            found.append(msgspec.structs.replace(right, namespace=namespace, name=named))
        else:
            found.append(right)
    return _once(found)


def _once(rights: list[Right]) -> tuple[Right, ...]:
    """Merge rights that several parts need into one, with all their reasons."""
    found: dict[tuple[object, ...], Right] = {}
    for each in rights:
        key = (each.group, each.resources, each.verbs, each.namespace, each.name)
        known = found.get(key)
        reason = each.reason if known is None else f"{known.reason} {each.reason}"
        found[key] = msgspec.structs.replace(each, reason=reason)
    return tuple(found.values())


def users_rights(policy: str) -> tuple[Right, ...]:
    """The right that the scheduler needs with `users-policy`. The chart gives it only then."""
    plurals = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
    reason = "Whether users are kept from writing who created a pod."
    return (Right("admissionregistration.k8s.io", plurals, ("get", "list", "watch"), reason, name=policy),)


def hand_off_rights(namespace: str) -> tuple[Right, ...]:
    """The rights that the scheduler needs if admission hands devices over: to keep the HandOff in this
    namespace."""
    return tuple(
        msgspec.structs.replace(each, namespace=namespace)
        for each in _file_rights("admission-rbac.yaml")
        if not {"create", "patch"}.isdisjoint(each.verbs) and each.group == HAND_OFFS.group
    )


def webhook_rights(*, configuration: str, namespace: str) -> tuple[Right, ...]:
    """The rights of a webhook: to publish its certificate, and to read the HandOff in this namespace."""
    found = []
    for each in _file_rights("admission-rbac.yaml"):
        if each.resources == ("mutatingwebhookconfigurations",):
            found.append(msgspec.structs.replace(each, name=configuration))
        elif "list" in each.verbs and "patch" not in each.verbs:
            found.append(msgspec.structs.replace(each, namespace=namespace))
    return tuple(found)


def _chart_rights() -> tuple[Right, ...]:
    return _file_rights("rbac.yaml")


@cache
def _file_rights(name: str) -> tuple[Right, ...]:
    return read_rights(resources.files("fluence.doctor").joinpath(name).read_text("utf-8"))


def read_rights(text: str) -> tuple[Right, ...]:
    """The rules of all roles on resources, each with the comment above it or above its role."""
    found = []
    for part in text.split("\n---\n"):
        document = yaml.safe_load(part)
        if document is None or document.get("kind") not in ("Role", "ClusterRole"):
            continue
        for rule, reason in zip(document["rules"], _reasons(part), strict=True):
            if "resources" not in rule:
                continue  # needed by readers of the metrics
            names = rule.get("resourceNames") or [""]
            found += [
                Right(
                    group,
                    tuple(rule["resources"]),
                    tuple(rule["verbs"]),
                    reason,
                    document["metadata"].get("namespace", ""),
                    name,
                )
                for group in rule["apiGroups"]
                for name in names
            ]
    return tuple(found)


def _reasons(part: str) -> list[str]:
    """The comment above each rule. A rule without one has that of the rule before it."""
    found: list[str] = []
    said: list[str] = []
    reason = ""
    for line in map(str.strip, part.splitlines()):
        if line.startswith("#"):
            said.append(line.lstrip("# "))
            continue
        if said:
            reason, said = " ".join(said), []
        if line.startswith(("- apiGroups:", "- nonResourceURLs:")):
            found.append(reason)
    return found


def _spelled(group: str, resource: str) -> str:
    plural, slash, sub = resource.partition("/")
    return f"{plural}.{group}{slash}{sub}" if group else resource
