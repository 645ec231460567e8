"""Checks of admission: whether containers get their backend, by which policies or webhooks, and how to fix
it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from fluence import names
from fluence.doctor.facts import (
    AdmissionFacts,
    Backing,
    Check,
    ClusterFacts,
    DoctorFinding,
    Health,
    Hook,
    Policy,
)
from fluence.model.external_resources import BASE

_TOLD = "FLUXION_BACKEND"
_GATE = "MutatingAdmissionPolicy"
_SHOWN = 5


def check_admission(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Whether containers that request a device learn which one they got."""
    yield from _admission(facts)
    yield from _webhooks(facts)
    yield from _hand_off(facts)
    yield _pod_groups(facts)


def _say(each: Policy | Hook) -> str:
    if isinstance(each, Policy):
        return f"policy {each.name}"
    return f"webhook {each.configuration}"


def _listed(found: Sequence[Policy | Hook]) -> str:
    return ", ".join(dict.fromkeys(map(_say, found)))


# -- hand-over -----------------------------------------------------------------------------------------------


def _admission(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    seen = facts.admission
    found = [*_without_binding(facts), *_switched_off(facts), *_twice(facts)]
    yield from found
    if seen.unseen:
        yield DoctorFinding(Check.ADMISSION, Health.UNSEEN, seen.unseen)
    is_explained = any(each.verdict is Health.WRONG for each in found)
    result = _result(facts)
    if result is not None and not (is_explained and result.verdict is Health.WRONG):
        yield result


def _result(facts: ClusterFacts) -> DoctorFinding | None:
    """Whether containers get their backend, by the dry run or, without one, by the installed objects."""
    check, seen = Check.ADMISSION, facts.admission
    trial, who = seen.trial, seen.hand_over(facts.scheduler_name)
    if trial.variables is not None and _TOLD in trial.variables:
        by = f", by {_listed(who)}" if who else ""
        message = f"a container that asks for a device in {trial.namespace} is told its backend{by}"
        return DoctorFinding(check, Health.OK, message)
    if not who:
        return None if seen.unseen else _nobody(facts)
    if not any(map(seen.surely, who)):
        message = f"whether {_listed(who)} tells containers their backend cannot be seen"
        return DoctorFinding(check, Health.UNSEEN, message)
    if trial.variables is None:
        why = trial.unseen or "no pod was made"
        message = f"{_listed(who)}: there for pods of {facts.scheduler_name}; not tried: {why}"
        return DoctorFinding(check, Health.OK, message)
    return _untold(facts, who)


def _nobody(facts: ClusterFacts) -> DoctorFinding:
    """Nothing is installed: a site may leave admission out, and without devices it is not needed."""
    check, declared = Check.ADMISSION, facts.admission.declared
    nothing = f"no policy and no webhook is there for pods of {facts.scheduler_name}"
    if not declared.has_devices and not declared.unseen and not declared.fault:
        return DoctorFinding(check, Health.OK, f"{nothing}; no devices are declared, so nothing needs it")
    if declared.unseen:
        return DoctorFinding(
            check, Health.UNSEEN, f"{nothing}; whether it is needed is not known: {declared.unseen}"
        )
    message = f"{nothing}: containers that ask for a device are not told which one they got"
    return DoctorFinding(check, Health.WARN, message, cure=put_admission_in(facts))


def _without_binding(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    seen = facts.admission
    for each in seen.policies_for(facts.scheduler_name):
        if not seen.bound(each) and not seen.bindings.unseen:
            message = "it has no MutatingAdmissionPolicyBinding, so the server does not apply it"
            cure = put_admission_in(facts, "policy")
            yield DoctorFinding(Check.ADMISSION, Health.WRONG, message, _say(each), cure)


def _switched_off(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    found = facts.admission.policies_for(facts.scheduler_name)
    if found and facts.gates.get(_GATE) is False:
        message = f"the feature gate {_GATE} is off in kube-apiserver: it is not applied"
        other = put_admission_in(facts, "webhook")
        cure = f"start kube-apiserver with --feature-gates={_GATE}=true, or: {other}"
        yield DoctorFinding(Check.ADMISSION, Health.WRONG, message, _listed(found), cure)


def _twice(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Two of them for one scheduler in one namespace: the second changes nothing, unless they read different
    tables."""
    check, seen = Check.ADMISSION, facts.admission
    who = seen.hand_over(facts.scheduler_name)
    if len(who) < 2:
        return
    if seen.spaces.unseen:
        message = f"whether {_listed(who)} meet in a namespace is not known: {seen.spaces.unseen}"
        yield DoctorFinding(check, Health.UNSEEN, message)
    told: set[str] = set()
    for space in seen.spaces.items:
        here = [each for each in who if seen.applies(each, space)]
        if len(here) < 2 or _listed(here) in told:
            continue
        told.add(_listed(here))
        where = f"in {space.name}, and where labels are alike"
        reads = {key for each in here for key in _reads(each, seen)}
        if len(reads) > 1:
            message = f"they hand over by different HandOffs ({', '.join(sorted(reads))}) {where}"
            verdict = Health.WRONG
        else:
            message = (
                f"they do the same work {where}: one of them is in vain, and after an update they may differ"
            )
            verdict = Health.WARN
        yield DoctorFinding(check, verdict, message, _listed(here), keep_one(facts, here))


def _reads(each: Policy | Hook, seen: AdmissionFacts) -> set[str]:
    """The HandOffs that it reads variables from, if known."""
    if isinstance(each, Policy):
        return {one.parameters for one in seen.bound(each) if one.parameters}
    backing = seen.backing(each)
    return {backing.parameters} if backing is not None and backing.parameters else set()


def _untold(facts: ClusterFacts, who: Sequence[Policy | Hook]) -> DoctorFinding:
    """Something is installed, but a container that requests a device gets no variables."""
    check, seen = Check.ADMISSION, facts.admission
    where = seen.trial.namespace
    message = f"a container that asks for a device in {where} is told nothing"
    space = next((each for each in seen.spaces.items if each.name == where), None)
    if space is None:
        why = seen.spaces.unseen or "there is no such namespace"
        message += f"; whether {_listed(who)} should have told it is not known: {why}"
        return DoctorFinding(check, Health.UNSEEN, message)
    here = [each for each in who if seen.applies(each, space)]
    if not here:
        message = f"{_listed(who)}: there for pods of {facts.scheduler_name}, but not in {where}"
        return DoctorFinding(check, Health.OK, message)
    if not any(map(seen.surely, here)):
        message += f"; whether {_listed(here)} should have told it cannot be seen"
        return DoctorFinding(check, Health.UNSEEN, message)
    return DoctorFinding(check, Health.WRONG, message, _listed(here), _find_out(facts, here))


def _find_out(facts: ClusterFacts, here: Sequence[Policy | Hook]) -> str:
    hook = next((each for each in here if isinstance(each, Hook)), None)
    backing = None if hook is None else facts.admission.backing(hook)
    if backing is not None:
        return show_webhook(backing)
    return (
        "what hand-off says below; if that is right: start kube-apiserver without "
        f"--disable-admission-plugins={_GATE}"
    )


# -- the webhook ---------------------------------------------------------------------------------------------


def _webhooks(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    check, seen = Check.WEBHOOK, facts.admission
    hooks = seen.hooks_for(facts.scheduler_name)
    for unseen in dict.fromkeys(each for each in (seen.hooks.unseen, seen.backings.unseen) if each):
        yield DoctorFinding(check, Health.UNSEEN, unseen)
    if not hooks and not seen.hooks.unseen:
        yield DoctorFinding(check, Health.OK, f"none is configured for pods of {facts.scheduler_name}")
    for name in dict.fromkeys(each.configuration for each in hooks):
        mine = [each for each in hooks if each.configuration == name]
        found = [*_answers(facts, mine), *_trusted(facts, mine)]
        yield from found
        if any(each.service and seen.backing(each) is None for each in mine):
            message = "what is behind its Service is not known"
            yield DoctorFinding(check, Health.UNSEEN, message, f"webhook {name}")
        elif not found:
            yield DoctorFinding(check, Health.OK, _all_right(facts, mine), f"webhook {name}")


def _all_right(facts: ClusterFacts, hooks: Sequence[Hook]) -> str:
    ends = max(each.ends for hook in hooks for each in hook.authorities)
    trusts = f"its certificate is good until {ends:%Y-%m-%d}"
    backing = facts.admission.backing(hooks[0])
    if backing is None:
        return f"it is called by a url; {trusts}"
    return f"{backing.ready} of {backing.wanted} replicas answer behind {backing.service}; {trusts}"


def _answers(facts: ClusterFacts, hooks: Sequence[Hook]) -> Iterator[DoctorFinding]:
    """Whether the webhooks have ready endpoints, and answer all configured scopes."""
    check = Check.WEBHOOK
    for key in dict.fromkeys(each.service for each in hooks if each.service):
        mine = [each for each in hooks if each.service == key]
        backing = facts.admission.backing(mine[0])
        about = f"webhook {mine[0].configuration}"
        then = (
            "new pods are refused" if any(each.refuses for each in mine) else "new pods are left as they are"
        )
        if backing is None:
            continue
        if not backing.exists:
            message = f"its Service {key} is not there: {then}"
            yield DoctorFinding(check, Health.WRONG, message, about, put_admission_in(facts, "webhook"))
        elif backing.ready == 0:
            message = f"no endpoint of its Service {key} is ready: {then}"
            yield DoctorFinding(check, Health.WRONG, message, about, show_webhook(backing))
        elif backing.rollout.stuck:
            message = (
                f"the newest template of {backing.deployment} does not become ready: {backing.rollout.stuck}"
            )
            yield DoctorFinding(check, Health.WRONG, message, about, show_webhook(backing))
        elif backing.ready < backing.wanted:
            message = f"{backing.ready} of {backing.wanted} replicas are ready behind {key}"
            yield DoctorFinding(check, Health.WARN, message, about, show_webhook(backing))
        unknown = sorted({each.scope for each in mine} - set(backing.scopes or (each.scope for each in mine)))
        if unknown:
            message = (
                f"it is asked for {', '.join(unknown)}, which {backing.deployment} does not know: its "
                f"--handlers or --doors are others; {then}"
            )
            yield DoctorFinding(check, Health.WRONG, message, about, put_admission_in(facts, "webhook"))


def _trusted(facts: ClusterFacts, hooks: Sequence[Hook]) -> Iterator[DoctorFinding]:
    """Whether the API server trusts the replicas that answer. Each replica has a certificate authority of its
    own."""
    backing = facts.admission.backing(hooks[0])
    ready = 1 if backing is None else backing.ready
    valid = min(sum(each.is_valid(facts.now) for each in hook.authorities) for hook in hooks)
    fresh = min(sum(each.is_fresh(facts.now) for each in hook.authorities) for hook in hooks)
    ends = max((each.ends for hook in hooks for each in hook.authorities), default=facts.now)
    verdict = Health.WRONG
    if not all(hook.authorities for hook in hooks):
        message = "it has no caBundle: no webhook has told the API server its certificate"
    elif valid == 0:
        message = f"no certificate in its caBundle is valid: the last one ended {ends:%Y-%m-%dT%H:%M:%SZ}"
    elif valid < ready:
        message = (
            f"{ready} replicas answer, each with its certificate, and its caBundle has {valid} valid ones"
        )
    elif fresh < ready:
        verdict = Health.WARN
        late = "its certificate" if ready == 1 else f"the certificate of {ready - fresh} of {ready} replicas"
        message = f"{late} is about to end and was not renewed; the last one ends {ends:%Y-%m-%dT%H:%M:%SZ}"
    else:
        return
    if backing is not None and backing.exists and not ready:
        return  # that no endpoint is ready explains it
    cure = "see what `fluence webhook run` logs: it tells the API server its certificate"
    if backing is not None and backing.deployment:
        cure = show_webhook(backing)
    about = f"webhook {hooks[0].configuration}"
    yield DoctorFinding(Check.WEBHOOK, verdict, message, about, cure)


# -- PodGroups -----------------------------------------------------------------------------------------------


def _pod_groups(facts: ClusterFacts) -> DoctorFinding:
    """Whether new gangs get a PodGroup, and if not, why. They work without one."""
    check, seen, api = Check.POD_GROUPS, facts.admission, facts.gang_api
    version = f"scheduling.k8s.io/{api.version}"
    if seen.trial.is_listed:
        message = f"gangs get a PodGroup of {version}: kubectl get podgroups lists them"
        if "alpha" in api.version:
            message += "; it must be deleted before an upgrade of Kubernetes"
        return DoctorFinding(check, Health.OK, message)
    none = "gangs get no PodGroup and work without"
    if api.unseen:
        return DoctorFinding(check, Health.UNSEEN, api.unseen)
    if api.version in ("", "v1alpha1") or api.lost:
        return DoctorFinding(check, Health.OK, f"{none}: the server has none that pods keep")
    if not (seen.policies_for(facts.scheduler_name) or seen.hooks_for(facts.scheduler_name)):
        if seen.unseen:
            return DoctorFinding(check, Health.UNSEEN, seen.unseen)
        return DoctorFinding(check, Health.OK, f"{none}: admission is not installed")
    kept = [each for each in seen.tables.items if not facts.parameters or each.key in facts.parameters]
    if not kept:
        hidden = seen.tables.unseen
        why = hidden or f"{none}: no scheduler has written a HandOff that says otherwise"
        return DoctorFinding(check, Health.UNSEEN if hidden else Health.OK, why)
    if not any(each.lists_gangs for each in kept):
        setting = "pod-groups is never"
        if "alpha" in api.version:
            setting = f"pod-groups is not always, and the server has them only as {api.version}"
        return DoctorFinding(check, Health.OK, f"{none}: the scheduler's setting {setting}")
    if seen.trial.variables is None or _TOLD not in seen.trial.variables:
        message = f"the scheduler says that gangs get a PodGroup of {version}; not tried where the rules hold"
        return DoctorFinding(check, Health.OK, message)
    message = (
        f"the scheduler says that gangs get a PodGroup of {version}, but a pod of a group in "
        f"{seen.trial.namespace} names none: admission was installed without the handler podgroups"
    )
    return DoctorFinding(check, Health.WARN, message, cure=put_admission_in(facts))


# -- HandOffs ------------------------------------------------------------------------------------------------


def _hand_off(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    check, seen = Check.HAND_OFF, facts.admission
    read = sorted({key for each in seen.hand_over(facts.scheduler_name) for key in _reads(each, seen)})
    found = [each for key in read for each in _table(facts, key)]
    yield from found
    hidden = seen.unseen or seen.backings.unseen
    if hidden:
        yield DoctorFinding(check, Health.UNSEEN, hidden)
    elif not read:
        yield DoctorFinding(check, Health.OK, "nobody reads a HandOff")


def _table(facts: ClusterFacts, key: str) -> Iterator[DoctorFinding]:
    """One HandOff: whether it exists, is kept by a scheduler, and names every attribute."""
    check, seen, about = Check.HAND_OFF, facts.admission, f"handoff {key}"
    table = next((each for each in seen.tables.items if each.key == key), None)
    # A scheduler without a Deployment and a lease is known by the HandOff that it keeps.
    kept = facts.parameters or sorted(each.key for each in seen.tables.items)
    elsewhere = kept and key not in kept and not facts.installations.unseen
    if seen.has_hand_offs is False:
        cure = "kubectl apply -f deploy/helm/fluence/crds/handoffs.yaml"
        message = "its kind is not installed: containers are told nothing"
        yield DoctorFinding(check, Health.WRONG, message, about, cure)
        return
    if elsewhere and not facts.leases.unseen:
        message = f"admission reads it, and the scheduler keeps {', '.join(kept)}"
        cure = put_admission_in(facts)
        yield DoctorFinding(check, Health.WRONG, message, about, cure)
        return
    if table is None:
        if seen.tables.unseen:
            yield DoctorFinding(check, Health.UNSEEN, seen.tables.unseen, about)
        else:
            message = "it is not there: the scheduler that leads makes it, and has not"
            yield DoctorFinding(check, Health.WRONG, message, about, logs(facts))
        return
    declared = seen.declared
    expected = BASE if declared.variables is None else declared.variables
    lacks = {name: to for name, to in sorted(expected.items()) if table.variables.get(name) != to}
    if lacks:
        shown = ", ".join(list(lacks)[:_SHOWN]) + (" …" if len(lacks) > _SHOWN else "")
        message = f"it lacks {shown}, or has them otherwise than {declared.at or 'the devices'} say"
        space, _, name = key.partition("/")
        patch = json.dumps({"spec": {"variables": lacks}})
        cure = f"kubectl -n {space} patch handoff {name} --type merge -p '{patch}'"
        yield DoctorFinding(check, Health.WRONG, message, about, cure)
    elif key not in facts.parameters and (unseen := facts.installations.unseen or facts.leases.unseen):
        yield DoctorFinding(
            check, Health.UNSEEN, f"whether a scheduler keeps it is not known: {unseen}", about
        )
    elif declared.fault:
        message = f"whether it names every attribute is not known: {declared.fault}"
        space, _, name = declared.at.partition("/")
        cure = f"kubectl -n {space} edit configmap {name}"
        yield DoctorFinding(check, Health.WARN, message, about, cure)
    elif declared.unseen:
        message = f"whether it names every attribute is not known: {declared.unseen}"
        yield DoctorFinding(check, Health.UNSEEN, message, about)
    else:
        count = len(table.variables)
        message = f"{count} variables: all that the devices of {declared.at or 'the scheduler'} have"
        yield DoctorFinding(check, Health.OK, message, about)


_CHART = "deploy/helm/fluence"


def put_admission_in(facts: ClusterFacts, mode: str = "", *, doors: bool = False) -> str:
    """The command that installs admission, or installs it again: with policies if the server has them, unless
    ``mode`` is given."""
    mode = mode or ("webhook" if facts.admission.has_policies is False else "policy")
    release = _release(facts, f"admission.mode={mode}", *(["admission.doors=namespaces"] if doors else ()))
    if release:
        return release
    if not facts.own and facts.runs() is False and not facts.runs_no_containers:
        # The chart installs admission with the scheduler. Rendered by itself, it would conflict with the
        # chart.
        return install(facts, *(["admission.mode=webhook"] if mode == "webhook" else ()), doors=doors)
    if mode == "policy":
        return _policies(facts, doors=doors)
    if facts.scheduler_name == names.SCHEDULER and not doors:
        return "kubectl apply -f deploy/fluence-webhook.yaml"
    return install(facts, "admission.mode=webhook", doors=doors)


def admission_with(facts: ClusterFacts, value: str) -> str:
    """The command that installs a policy which refuses: ``users`` or ``queueAccess``, by the chart's name."""
    seen = facts.admission
    mode = "webhook" if seen.has_policies is False else "policy"
    sets = [f"admission.{value}=true"]
    if not seen.policies.items and not seen.hooks.items:
        sets.append(f"admission.mode={mode}")
    release = _release(facts, *sets)
    if release:
        return release
    more = ("--users", "--queue-access")[value != "users"]
    return _policies(facts, more, doors=False)


def install(facts: ClusterFacts, *sets: str, doors: bool = False) -> str:
    """The command that installs the scheduler with admission or, in a sandbox without containers, runs it."""
    name = facts.scheduler_name
    if facts.runs_no_containers:
        own_name = "" if name == names.SCHEDULER else f" --scheduler-name {name}"
        return f"fluence scheduler run{own_name}"
    values = [f"settings.scheduler-name={name}"] if name != names.SCHEDULER else []
    values += [*sets, *(["admission.doors=namespaces"] if doors else ())]
    words = [f"helm install fluence {_CHART} -n {names.INSTALLED_IN} --create-namespace"]
    words += [f"--set {','.join(values)}"] if values else []
    if facts.admission.policies.items or facts.admission.hooks.items:
        words.append("--take-ownership")  # of objects that were applied without Helm, or Helm refuses
    return " ".join(words)


def _policies(facts: ClusterFacts, *more: str, doors: bool) -> str:
    """The command that applies the policies and bindings of this release."""
    words = ["fluence admission render", *more]
    if facts.admission.has_policies is False or (facts.admission.hooks.items and more):
        words.append("--as webhook")
    kept = facts.parameters or [each.key for each in facts.admission.tables.items]
    if kept:
        words.append(f"-n {kept[0].partition('/')[0]}")
    if facts.scheduler_name != names.SCHEDULER:
        words.append(f"--scheduler-name {facts.scheduler_name}")
    if doors or any(each.scope.endswith("-held") for each in facts.admission.policies.items):
        words.append("--doors namespaces")
    return f"{' '.join(words)} | kubectl apply -f -"


def keep_one(facts: ClusterFacts, found: Sequence[Policy | Hook]) -> str:
    """The command that deletes duplicates. Policies stay, because they need no pod and no certificate."""
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
    """The command that shows the log of the scheduler, which writes the HandOff."""
    if not facts.own:
        lease = next((each for each in facts.own_leases if each.is_alive(facts.now)), None)
        if lease is not None:
            return f"see what the scheduler logs that holds the lease {lease.key}: {lease.holder}"
        return install(facts)
    own = facts.own[0]
    return f"kubectl -n {own.namespace} logs deployment/{own.name} --all-containers --tail=20"


def show_webhook(backing: Backing) -> str:
    """The command that shows the webhook's pods, or scales them up from 0."""
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
