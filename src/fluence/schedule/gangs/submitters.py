"""Submitters: the user who submitted a gang, by the annotation that admission writes on pods and workloads.

The annotation counts only where a policy of the API server keeps users from writing it (`NameGuard`), and
only on objects that were created after the policy was in force. An older template may contain any name, and
pods created from it later have that name: a name in such a template does not count. Pods without a name, as
an operator creates them, belong to the user of the object that owns them. The same holds for placeholders: no
server has stored them, and the templates of operators contain what their users wrote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from fluence import names
from fluence.model.meta import KubeObject, LabelSelector, ObjectMeta, Wire, selector_matches
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.schedule.queueing.placeholder import is_placeholder

MAX_BYTES: Final = 253
"""The longest name: it is part of every row of the history, and of the status of queues."""
_ACCOUNT: Final = "system:serviceaccount:"
_SETTLES_MS: Final = 10_000
"""How long after a policy was created every replica of the API server follows it."""


class _Constraints(Wire, frozen=True):
    namespace_selector: LabelSelector | None = None


class _PolicySpec(Wire, frozen=True):
    failure_policy: str = "Fail"
    match_constraints: _Constraints = _Constraints()


class NamePolicy(KubeObject, frozen=True):
    """The fields of the ValidatingAdmissionPolicy that protects the annotation."""

    spec: _PolicySpec = _PolicySpec()


class _BindingSpec(Wire, frozen=True):
    policy_name: str = ""
    validation_actions: list[str] | None = None
    match_resources: dict[str, object] | None = None


class NamePolicyBinding(KubeObject, frozen=True):
    """The binding that puts the policy in force."""

    spec: _BindingSpec = _BindingSpec()


class NameGuard(Struct, frozen=True):
    """Since when only admission writes the annotation, and in which namespaces."""

    since: int  # ms
    namespaces: LabelSelector

    def covers(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return selector_matches(self.namespaces, {**labels, names.NAMESPACE_NAME: namespace})


def name_guard(policy: NamePolicy | None, binding: NamePolicyBinding | None) -> NameGuard | None:
    """The guard that a policy and its binding form; None if they do not refuse every such write."""
    if policy is None or binding is None or policy.spec.failure_policy != "Fail":
        return None
    bound, selector = binding.spec, policy.spec.match_constraints.namespace_selector
    if bound.policy_name != policy.metadata.name or "Deny" not in (bound.validation_actions or ()):
        return None
    created = [each.metadata.creation_timestamp for each in (policy, binding)]
    if bound.match_resources is not None or None in created:
        return None
    since = max(_ms(each) for each in created if each is not None)
    return NameGuard(since + _SETTLES_MS, selector or LabelSelector())


def submitter(pod: Pod, owners: Sequence[Owner], guard: NameGuard) -> str:
    """The submitter of a pod, from the pod and its owners, nearest first; "" if unknown."""
    chain: list[Pod | Owner] = [*owners] if is_placeholder(pod) else [pod, *owners]
    for index, each in enumerate(chain):
        name = _name(each.metadata)
        if name and not _is_older(each.metadata, guard):
            above = (each for each in chain[index + 1 :] if isinstance(each, Owner))
            old = (each for each in above if _is_older(each.metadata, guard))
            return "" if any(name in _names(each) for each in old) else _shortened(name)
    return ""


def payer_of(user: str) -> str:
    """The account that limits and shares count for a user. The service accounts of a namespace count
    together, as their namespace: its administrators can create as many of them as they like."""
    namespace, colon, _ = user.removeprefix(_ACCOUNT).partition(":")
    return namespace if user.startswith(_ACCOUNT) and namespace and colon else user


def _names(owner: Owner) -> tuple[str, str]:
    """Names that controllers may have copied from an owner."""
    template = owner.spec.template
    return _name(owner.metadata), "" if template is None else _name(template.metadata)


def _name(meta: ObjectMeta) -> str:
    return (meta.annotations or {}).get(names.SUBMITTED_BY, "")


def _is_older(meta: ObjectMeta, guard: NameGuard) -> bool:
    created = meta.creation_timestamp
    return created is None or _ms(created) < guard.since


def _shortened(name: str) -> str:
    content = name.encode()
    if len(content) <= MAX_BYTES:
        return name
    digest = hashlib.sha256(content).hexdigest()[:16]
    return f"{content[: MAX_BYTES - 17].decode(errors='ignore')}~{digest}"


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
