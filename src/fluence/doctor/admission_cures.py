"""Admission cures: the commands that put admission right, by helm where it was installed by helm."""

from __future__ import annotations

from collections.abc import Sequence

from fluence import names
from fluence.doctor.admission_facts import Backing, Hook, Policy
from fluence.doctor.facts import ClusterFacts

_CHART = "deploy/helm/fluence"


def put_admission_in(facts: ClusterFacts, mode: str = "", *, doors: bool = False) -> str:
    """Install it, or install it again: by policies where the server has them, unless a mode is said."""
    mode = mode or ("webhook" if facts.admission.has_policies is False else "policy")
    release = _release(facts, f"admission.mode={mode}", *(["admission.doors=namespaces"] if doors else ()))
    if release:
        return release
    if mode == "policy":
        return _policies(facts, doors=doors)
    if facts.scheduler_name == names.SCHEDULER and not doors:
        return "kubectl apply -f deploy/fluence-webhook.yaml"
    sets = f"settings.scheduler-name={facts.scheduler_name},admission.mode=webhook"
    sets += ",admission.doors=namespaces" if doors else ""
    return f"helm install fluence {_CHART} -n fluence-system --create-namespace --set {sets}"


def _policies(facts: ClusterFacts, *, doors: bool) -> str:
    """The policies and their bindings as this release makes them; what is right stays as it is."""
    words = ["fluence admission render"]
    if facts.parameters:
        words.append(f"-n {facts.parameters[0].partition('/')[0]}")
    if facts.scheduler_name != names.SCHEDULER:
        words.append(f"--scheduler-name {facts.scheduler_name}")
    if doors or any(each.scope.endswith("-held") for each in facts.admission.policies.items):
        words.append("--doors namespaces")
    return f"{' '.join(words)} | kubectl apply -f -"


def keep_one(facts: ClusterFacts, found: Sequence[Policy | Hook]) -> str:
    """Of several that do the same, policies stay: they need no pod and no certificate."""
    hooks = dict.fromkeys(each.configuration for each in found if isinstance(each, Hook))
    policies = [each for each in found if isinstance(each, Policy)]
    if hooks and policies:
        return f"kubectl delete mutatingwebhookconfiguration {' '.join(hooks)}"
    if hooks:
        return f"kubectl delete mutatingwebhookconfiguration {' '.join(list(hooks)[1:])}".rstrip()
    more = " ".join(each.name for each in policies[1:])
    return f"kubectl delete mutatingadmissionpolicy,mutatingadmissionpolicybinding {more}"


def flux_jobs_on(facts: ClusterFacts) -> str:
    return _release(facts, "settings.flux-jobs=true") or "start the scheduler with --flux-jobs"


def logs(facts: ClusterFacts) -> str:
    """What the scheduler says of the HandOff, which it writes."""
    if not facts.own:
        return f"start a scheduler named {facts.scheduler_name}: it makes it"
    own = facts.own[0]
    return f"kubectl -n {own.namespace} logs deployment/{own.name} --all-containers --tail=20"


def show_webhook(backing: Backing) -> str:
    """What became of the webhook's pods; more of them if none are wanted."""
    space, _, service = backing.service.partition("/")
    _, _, name = backing.deployment.partition("/")
    if not name:
        return f"kubectl -n {space} describe service/{service}"
    if backing.wanted == 0:
        return f"kubectl -n {space} scale deployment/{name} --replicas=2"
    return (
        f"kubectl -n {space} describe deployment/{name} && "
        f"kubectl -n {space} logs deployment/{name} --tail=20"
    )


def _release(facts: ClusterFacts, *sets: str) -> str:
    own = next((each for each in facts.own if each.release), None)
    if own is None:
        return ""
    values = " ".join(f"--set {each}" for each in sets)
    return f"helm upgrade {own.release} {_CHART} -n {own.namespace} --reuse-values {values}"
