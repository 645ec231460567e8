"""Policies that refuse: who submitted what, and who may use which queue. Reading them, and the findings.

They are recognized by their expressions and not by their names. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from fluence.admission import users
from fluence.admission.manifests import refusing_policies
from fluence.admission.scopes import AdmissionOptions
from fluence.doctor.admission_checks import admission_with
from fluence.doctor.facts import (
    QUEUES,
    USERS_NAMES,
    Check,
    ClusterFacts,
    DoctorFinding,
    Health,
    Refusal,
    Seen,
    Space,
)
from fluence.doctor.installations import selector_of
from fluence.model.meta import selector_matches
from fluence.names import SUBMITTED_BY
from fluence.schedule.gangs.submitters import NamePolicy, NamePolicyBinding, name_guard

Json = Mapping[str, Any]
_SHOWN: Final = 5
_RENDERED: Final = f"fluence-{users.NAME}"  # by `fluence admission render`
_ASKS: Final = ".resource('queues').name("
_CONTROLLERS: Final = re.compile(r"(request\.userInfo\.username in )\[[^\]]*\]( \?)")
_SPACE: Final = re.compile(r"\s+")
_EXPRESSIONS: Final = {
    "matchConditions": "other match conditions",
    "variables": "other variables",
    "validations": "other validations",
}


# -- reading -------------------------------------------------------------------------------------------------


def read_refusal(policy: Json, bindings: Sequence[Json]) -> Refusal | None:
    """Read a ValidatingAdmissionPolicy; None if it is another policy."""
    meta, spec = policy.get("metadata") or {}, policy.get("spec") or {}
    name = meta.get("name", "")
    texts = [each.get("expression", "") for key in _EXPRESSIONS for each in spec.get(key) or ()]
    if any(_ASKS in text and users.QUEUE_GROUP in text for text in texts):
        protects, found = QUEUES, _access_flaw(policy, bindings)
    elif any(SUBMITTED_BY in text for text in texts):
        protects, found = USERS_NAMES, _names_flaw(policy, bindings)
    else:
        return None
    selector = selector_of(spec.get("matchConstraints") or {})
    return Refusal(name, protects, found, _differs(spec, protects), selector)


def _names_flaw(policy: Json, bindings: Sequence[Json]) -> str:
    """Why the scheduler does not rely on it. It reads the binding of the same name."""
    name = policy["metadata"]["name"]
    own = next((each for each in bindings if (each.get("metadata") or {}).get("name") == name), None)
    guard = msgspec.convert(policy, NamePolicy)
    if own is None or (own.get("spec") or {}).get("policyName") != name:
        return "it has no ValidatingAdmissionPolicyBinding of the same name"
    if name_guard(guard, msgspec.convert(own, NamePolicyBinding)) is not None:
        return ""
    return _flaw(policy, [own]) or "its binding restricts it with matchResources"


def _access_flaw(policy: Json, bindings: Sequence[Json]) -> str:
    name = policy["metadata"]["name"]
    own = [each for each in bindings if (each.get("spec") or {}).get("policyName") == name]
    return _flaw(policy, own) if own else "it has no ValidatingAdmissionPolicyBinding"


def _flaw(policy: Json, bindings: Iterable[Json]) -> str:
    if not any("Deny" in (each["spec"].get("validationActions") or ()) for each in bindings):
        return "its binding does not have the action Deny"
    if (policy["spec"].get("failurePolicy") or "Fail") != "Fail":
        return "its failurePolicy is not Fail"
    return ""


def _differs(spec: Json, protects: str) -> str:
    """What is not as in the policy of this release. The operators that a site lists do not count."""
    options = AdmissionOptions(users=protects == USERS_NAMES, queue_access=protects == QUEUES)
    wanted = refusing_policies(options)[0]["spec"]
    found = [said for key, said in _EXPRESSIONS.items() if _texts(spec, key) != _texts(wanted, key)]
    lacks = sorted(_requests(wanted) - _requests(spec))
    if lacks:
        plurals = dict.fromkeys(plural for _, plural, _ in lacks)
        more = " …" if len(plurals) > _SHOWN else ""
        found.append(f"no rule for {', '.join(list(plurals)[:_SHOWN])}{more}")
    return ", ".join(found)


def _texts(spec: Json, key: str) -> list[str]:
    texts = (each.get("expression", "") for each in spec.get(key) or ())
    return [_CONTROLLERS.sub(r"\1[]\2", _SPACE.sub(" ", text)) for text in texts]


def _requests(spec: Json) -> set[tuple[str, str, str]]:
    rules = (spec.get("matchConstraints") or {}).get("resourceRules") or ()
    return {
        (group, plural, operation)
        for rule in rules
        for group in rule.get("apiGroups") or ()
        for plural in rule.get("resources") or ()
        for operation in rule.get("operations") or ()
    }


def gives_queues(role: Json) -> bool:
    """Whether a ClusterRole gives the right to use queues, by the name of the verb: roles that give every
    right do not count."""
    return any(
        users.QUEUE_GROUP in (rule.get("apiGroups") or ())
        and "queues" in (rule.get("resources") or ())
        and users.QUEUE_VERB in (rule.get("verbs") or ())
        for rule in role.get("rules") or ()
    )


# -- findings ------------------------------------------------------------------------------------------------


def check_refusals(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Whether users can forge who submitted what, and whether anybody asks who may use a queue."""
    yield from _users(facts)
    yield from _queues(facts)


def _users(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    check, refusals, name = Check.USERS_POLICY, facts.admission.refusals, facts.users_policy
    if name is None:
        why = facts.leases.unseen or facts.installations.unseen or "its settings cannot be read"
        message = f"whether the scheduler has the setting users-policy is not known: {why}"
        yield DoctorFinding(check, Health.UNSEEN, message)
        return
    yield from _not_restarted(facts, name)
    if not name:
        message = "users-policy is not set: limits per user and shares count namespaces"
        yield DoctorFinding(check, Health.OK, message)
        return
    about = f"policy {name}"
    found = next((each for each in refusals.items if each.name == name), None)
    instead = "limits per user and shares count namespaces instead of users"
    cure = admission_with(facts, "users")
    if cure.startswith("fluence") and name != _RENDERED:
        cure += f"; then set users-policy: {_RENDERED} and start the scheduler again"
    if found is None:
        if refusals.unseen:
            yield DoctorFinding(check, Health.UNSEEN, refusals.unseen, about)
            return
        message = f"users-policy names it, and it is not there, or is no policy of Fluence: {instead}"
        yield DoctorFinding(check, Health.WRONG, message, about, cure)
    elif found.protects != USERS_NAMES:
        message = f"users-policy names it, and it does not protect who submitted what: {instead}"
        yield DoctorFinding(check, Health.WRONG, message, about, cure)
    elif found.flaw:
        yield DoctorFinding(check, Health.WRONG, f"{found.flaw}: {instead}", about, cure)
    elif found.differs:
        message = f"it is of another version ({found.differs}): users may write another submitter"
        yield DoctorFinding(check, Health.WARN, message, about, cure)
    else:
        yield _written(facts, found, cure)


def _written(facts: ClusterFacts, found: Refusal, cure: str) -> DoctorFinding:
    """Whether new pods get the name of their user, by the dry run."""
    check, trial, about = Check.USERS_POLICY, facts.admission.trial, f"policy {found.name}"
    spaces = facts.admission.spaces
    space = next((each for each in spaces.items if each.name == trial.namespace), None)
    if trial.variables is not None and space is None and spaces.unseen and not trial.submitter:
        message = f"whether new pods get the name of their user is not known: {spaces.unseen}"
        return DoctorFinding(check, Health.UNSEEN, message, about)
    if trial.variables is not None and space is not None and _covers(found, space) and not trial.submitter:
        message = (
            f"nothing writes on new pods in {space.name} who created them, so they count for their namespace"
        )
        return DoctorFinding(check, Health.WARN, message, about, cure)
    message = "limits per user and shares count users: other users cannot write who submitted a job"
    return DoctorFinding(check, Health.OK, message, about)


def _covers(found: Refusal, space: Space) -> bool:
    return selector_matches(found.selector, {"kubernetes.io/metadata.name": space.name, **space.labels})


def _not_restarted(facts: ClusterFacts, running: str) -> Iterator[DoctorFinding]:
    if facts.installations.unseen:
        message = f"whether a Deployment has another users-policy is not known: {facts.installations.unseen}"
        yield DoctorFinding(Check.USERS_POLICY, Health.UNSEEN, message)
    for each in facts.own:
        if each.users_policy is not None and each.users_policy != running:
            message = (
                f"its settings have users-policy: {each.users_policy or 'none'}, and the scheduler that "
                f"leads was started with {running or 'none'}"
            )
            cure = f"kubectl -n {each.namespace} rollout restart deployment/{each.name}"
            about = f"deployment {each.key}"
            yield DoctorFinding(Check.USERS_POLICY, Health.WARN, message, about, cure)


def _queues(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    check, refusals, roles = Check.QUEUE_ACCESS, facts.admission.refusals, facts.admission.queue_roles
    spaces, policies = facts.admission.spaces, [each for each in refusals.items if each.protects == QUEUES]
    found = [each for each in policies if any(_covers(each, space) for space in spaces.items)]
    unseen = refusals.unseen or (spaces.unseen if len(found) < len(policies) else "")
    if unseen:
        yield DoctorFinding(check, Health.UNSEEN, unseen)
    elif not found:
        yield _unasked(roles, admission_with(facts, "queueAccess"))
    for each in found:
        about, cure = f"policy {each.name}", admission_with(facts, "queueAccess")
        if each.flaw:
            message = f"{each.flaw}: users may name every queue that is open to their namespace"
            yield DoctorFinding(check, Health.WRONG, message, about, cure)
        elif each.differs:
            message = f"it is of another version ({each.differs}): some objects are not asked about"
            yield DoctorFinding(check, Health.WARN, message, about, cure)
        else:
            yield DoctorFinding(
                check, Health.OK, "users need the right to use the queue that they name", about
            )


def _unasked(roles: Seen[str], cure: str) -> DoctorFinding:
    check, nobody = Check.QUEUE_ACCESS, "no policy asks whether a user may use a queue"
    if roles.items:
        named = ", ".join(roles.items[:_SHOWN]) + (" …" if len(roles.items) > _SHOWN else "")
        message = f"{nobody}: the roles {named} have no effect"
        return DoctorFinding(check, Health.WARN, message, cure=cure)
    if roles.unseen:
        return DoctorFinding(
            check, Health.UNSEEN, f"{nobody}; whether roles rely on it is not known: {roles.unseen}"
        )
    return DoctorFinding(check, Health.OK, f"{nobody}, and no role relies on it: namespaces decide")
