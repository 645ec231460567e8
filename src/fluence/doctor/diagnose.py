"""Diagnose: checks of the scheduler, of the server and of external resources, and all findings in order.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from fluence import names
from fluence.doctor.admission_checks import check_admission, install, put_admission_in
from fluence.doctor.facts import (
    Check,
    ClusterFacts,
    DoctorFinding,
    Health,
    Installation,
    LeaseFacts,
    RightAnswer,
)
from fluence.doctor.pod_checks import check_doors, check_pods
from fluence.doctor.refusals import check_refusals
from fluence.kube.gangs import GROUP
from fluence.kube.releases import RELEASES
from fluence.model.external_resources import containers_without_backend
from fluence.model.node import Node
from fluence.names import DEVICE_PREFIX
from fluence.units import format_duration

HANDOVER = timedelta(seconds=60)
"""How long after a change of leader the former one may still send queued events."""


def check_scheduler(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """All checks of the program itself."""
    yield from _rights(facts)
    yield from _deployments(facts)
    yield from _versions(facts)
    yield from _leases(facts)
    yield from _one_scheduler(facts)


# -- rights --------------------------------------------------------------------------------------------------


def _rights(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    for rights in (facts.rights, *facts.webhook_rights):
        if rights.unseen:
            yield DoctorFinding(Check.RIGHTS, Health.UNSEEN, rights.unseen, object=rights.account)
        for answer in rights.answers:
            yield _right(answer, rights.account, says_nothing=rights.is_own and bool(rights.unseen))


def _right(answer: RightAnswer, account: str, *, says_nothing: bool) -> DoctorFinding:
    right = answer.right
    where = f" in {right.namespace}" if right.namespace else ""
    name = f" {right.name}" if right.name else ""
    what = f"{right.spelled}{name}{where}: {right.reason}"
    if not answer.lacks:
        return DoctorFinding(Check.RIGHTS, Health.OK, f"may {','.join(right.verbs)} {what}", object=account)
    # The rights of the user say nothing about those of the scheduler, and nothing needs both.
    verdict = Health.UNSEEN if says_nothing else Health.WRONG
    message = f"may not {','.join(answer.lacks)} {what}"
    return DoctorFinding(
        Check.RIGHTS, verdict, message, object=account, cure="" if says_nothing else right.grant(account)
    )


# -- replicas and versions -----------------------------------------------------------------------------------


def _deployments(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    check, seen = Check.DEPLOYMENT, facts.installations
    for each in facts.own:
        yield _deployment(facts, each)
    for replica in facts.replicas.items:
        if replica.trouble:
            namespace, _, name = replica.key.partition("/")
            pod = f"kubectl -n {namespace}"
            cure = f"{pod} describe pod/{name} && {pod} logs pod/{name} --previous"
            yield DoctorFinding(check, Health.WRONG, replica.trouble, f"pod {replica.key}", cure)
    for each in seen.items:
        if each.scheduler_name is None:
            message = "runs a Fluence scheduler; its name and lease are in settings that cannot be read"
            yield DoctorFinding(
                check, Health.UNSEEN, message, f"deployment {each.key}", _see_config(each.namespace)
            )
    if seen.unseen:
        yield DoctorFinding(check, Health.UNSEEN, seen.unseen)
    elif not facts.own and not any(each.scheduler_name is None for each in seen.items):
        others = ", ".join(f"{each.key} ({each.scheduler_name})" for each in seen.items)
        message = f"no Deployment runs a scheduler named {facts.scheduler_name}"
        message += f"; of other names: {others}" if others else ""
        if facts.runs():
            yield DoctorFinding(check, Health.OK, f"{message}; one runs outside of any Deployment")
        else:
            yield DoctorFinding(check, Health.WARN, message, cure=install(facts))


def _deployment(facts: ClusterFacts, each: Installation) -> DoctorFinding:
    check, name = Check.DEPLOYMENT, f"deployment {each.key}"
    state = f"{each.ready} of {each.wanted} replicas ready, {each.image or 'no image'}"
    if each.wanted == 0:
        others = [
            one.key for one in facts.own_leases if one.is_alive(facts.now) and one.key != each.lease_key
        ]
        if others:
            message = f"it is scaled to 0; the scheduler that runs holds the lease {others[0]}"
            return DoctorFinding(check, Health.OK, message, name)
        cure = f"kubectl -n {each.namespace} scale deployment/{each.name} --replicas=2"
        return DoctorFinding(check, Health.WRONG, "it is scaled to 0", name, cure)
    if each.ready == 0:
        cure = f"kubectl -n {each.namespace} describe deployment/{each.name} && {_logs(each)}"
        return DoctorFinding(check, Health.WRONG, state, name, cure)
    if each.rollout.stuck:
        message = f"{state}; the newest template does not become ready: {each.rollout.stuck}"
        return DoctorFinding(check, Health.WRONG, message, name, _logs(each))
    if each.ready < each.wanted:
        return DoctorFinding(check, Health.WARN, state, name, _logs(each))
    if each.rollout.updated is not None and each.rollout.updated < each.wanted:
        updated = f"{each.rollout.updated} of {each.wanted} have the newest template"
        message = f"{state}; {updated}: a rollout is under way"
        cure = f"kubectl -n {each.namespace} rollout status deployment/{each.name}"
        return DoctorFinding(check, Health.WARN, message, name, cure)
    return DoctorFinding(check, Health.OK, state, name)


def _versions(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Replicas whose images differ: an update is in progress or stuck."""
    check = Check.REPLICA_VERSIONS
    unseen = facts.replicas.unseen or facts.installations.unseen
    running: dict[str, list[str]] = {}
    for each in facts.replicas.items:
        running.setdefault(each.image, []).append(each.key)
    wanted = sorted({each.image for each in facts.own if each.wanted})
    if len(running) > 1 or len(wanted) > 1:
        images = "; ".join(f"{image}: {', '.join(sorted(keys))}" for image, keys in sorted(running.items()))
        cure = "; ".join(
            f"kubectl -n {each.namespace} rollout status deployment/{each.name}" for each in facts.own
        )
        message = f"replicas of different versions: {images or ', '.join(wanted)}"
        yield DoctorFinding(check, Health.WARN, message, cure=cure)
    elif unseen:
        yield DoctorFinding(check, Health.UNSEEN, unseen)
    elif running:
        yield DoctorFinding(check, Health.OK, f"all replicas run {next(iter(running))}")
    else:
        yield DoctorFinding(check, Health.OK, "there are no replicas that could differ")


# -- lease ---------------------------------------------------------------------------------------------------


def _leases(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    found = facts.own_leases
    for each in found:
        yield _lease(each, facts)
    for each in facts.leases.items:
        if each.scheduler_name is None and each not in found and each.is_alive(facts.now):
            message = f"{each.holder} holds it, a Fluence that does not say which scheduler name it serves"
            yield DoctorFinding(Check.LEASE, Health.WARN, message, f"lease {each.key}", "update that Fluence")
    leaseless = [each for each in facts.own if each.lease is False and each.ready]
    for one in leaseless:
        yield DoctorFinding(
            Check.LEASE, Health.OK, "runs without a lease, as its settings say", f"deployment {one.key}"
        )
    if facts.leases.unseen:
        yield DoctorFinding(Check.LEASE, Health.UNSEEN, facts.leases.unseen)
    elif not found and not leaseless:
        verdict = Health.WRONG if any(each.wanted and each.lease for each in facts.own) else Health.WARN
        message = f"no lease of a scheduler named {facts.scheduler_name}: it has never led here"
        cure = _logs(facts.own[0]) if facts.own else install(facts)
        yield DoctorFinding(Check.LEASE, verdict, message, cure=cure)


def _lease(each: LeaseFacts, facts: ClusterFacts) -> DoctorFinding:
    check, name, age = Check.LEASE, f"lease {each.key}", each.age_s(facts.now)
    wanted = next((one for one in facts.own if one.lease_key == each.key), None)
    cure = _logs(wanted) if wanted is not None else install(facts)
    if not each.holder:
        message = "nobody holds it: it was given back when the last scheduler stopped"
        verdict = Health.WRONG if wanted is not None and wanted.wanted else Health.WARN
        return DoctorFinding(check, verdict, message, name, cure)
    ago = "at an unknown time" if age is None else f"{format_duration(max(0, int(age)))} ago"
    if each.is_alive(facts.now):
        since = f" since {each.acquired:%Y-%m-%dT%H:%M:%SZ}" if each.acquired is not None else ""
        skew = "; its clock differs from this one" if each.changed else ""
        message = f"{each.holder} holds it{since} and renewed it {ago}{skew}"
        return DoctorFinding(check, Health.OK, message, name)
    message = f"{each.holder} held it and no longer renews it: the last time was {ago}"
    return DoctorFinding(check, Health.WRONG, message, name, cure)


# -- one scheduler -------------------------------------------------------------------------------------------


def _one_scheduler(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Two schedulers with one name bind each other's pods: gangs start in part, and nodes are used twice."""
    check, name = Check.ONE_SCHEDULER, facts.scheduler_name
    found = [*_two_leases(facts), *_two_deployments(facts), *_foreign_reports(facts)]
    yield from found
    if found:
        return
    unseen = next(
        (each for each in (facts.installations.unseen, facts.leases.unseen, facts.reports.unseen) if each), ""
    )
    if unseen:
        yield DoctorFinding(check, Health.UNSEEN, f"whether another serves {name!r} is not known: {unseen}")
    else:
        yield DoctorFinding(check, Health.OK, f"no two schedulers are named {name}")


def _two_leases(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    alive = [each for each in facts.own_leases if each.is_alive(facts.now)]
    if len(alive) < 2:
        return
    held = "; ".join(f"{each.key} by {each.holder}" for each in alive)
    by_key = {each.lease_key: each for each in facts.own}
    # Stop one that is not the oldest and that a command can stop.
    alive.sort(key=lambda each: (each.key not in by_key, str(each.acquired or "")))
    stop = next((by_key[each.key] for each in reversed(alive) if each.key in by_key), None)
    cure = (
        _stop(stop)
        if stop is not None
        else f"stop the scheduler that runs as {alive[-1].holder}, or start it with another --scheduler-name"
    )
    message = (
        f"{len(alive)} schedulers are named {facts.scheduler_name}, each with a lease of its own: {held}"
    )
    yield DoctorFinding(Check.ONE_SCHEDULER, Health.WRONG, message, facts.scheduler_name, cure)


def _two_deployments(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    active = [each for each in facts.own if each.wanted]
    leases = {each.lease_key if each.lease else each.key for each in active}
    for each in active:
        if each.lease is False and each.wanted > 1:
            cure = f"kubectl -n {each.namespace} scale deployment/{each.name} --replicas=1"
            message = f"{each.wanted} replicas without a lease: all of them bind pods"
            yield DoctorFinding(Check.ONE_SCHEDULER, Health.WRONG, message, f"deployment {each.key}", cure)
    if len(active) < 2:
        return
    listed = ", ".join(each.key for each in active)
    if len(leases) > 1:
        message = f"Deployments of one scheduler name with different leases: {listed}"
        yield DoctorFinding(
            Check.ONE_SCHEDULER, Health.WRONG, message, facts.scheduler_name, _stop(active[-1])
        )
    else:
        message = f"Deployments that share a scheduler name and a lease, so that one of them waits: {listed}"
        yield DoctorFinding(
            Check.ONE_SCHEDULER, Health.WARN, message, facts.scheduler_name, _stop(active[-1])
        )


def _foreign_reports(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Events in the scheduler's name from an instance that does not hold the lease, while another one
    does."""
    alive = [each for each in facts.own_leases if each.is_alive(facts.now)]
    if len(alive) == 1 and alive[0].acquired is not None:
        lease, since = alive[0], alive[0].acquired + HANDOVER
        others = sorted(
            {r.instance for r in facts.reports.items if r.instance != lease.holder and r.at > since}
        )
        why = f"while {lease.holder} holds the lease {lease.key}"
    elif not facts.own_leases and not facts.leases.unseen and not _unnamed(facts):
        # Without a lease. With one, two replicas that lead in turns are normal.
        others = _interleaved(facts)
        why = "in turns"
    else:
        return
    if others:
        message = f"events in the name of {facts.scheduler_name} were reported by {', '.join(others)} {why}"
        cure = (
            f"kubectl get events -A --field-selector reportingComponent={facts.scheduler_name} -o wide; "
            "stop one of them, or give it another name"
        )
        yield DoctorFinding(Check.ONE_SCHEDULER, Health.WRONG, message, facts.scheduler_name, cure)


def _unnamed(facts: ClusterFacts) -> bool:
    return any(each.scheduler_name is None for each in facts.leases.items)


def _interleaved(facts: ClusterFacts) -> list[str]:
    """Instances that reported in turns with another one. A restart does not look like that."""
    spans: dict[str, tuple[datetime, datetime]] = {}
    for report in sorted(facts.reports.items, key=lambda each: each.at):
        first, _ = spans.get(report.instance, (report.at, report.at))
        spans[report.instance] = (first, report.at)
    return sorted(
        {
            one
            for one, (first, last) in spans.items()
            for other, (begun, ended) in spans.items()
            if one != other and (first < begun < last or begun < first < ended)
        }
    )


# -- cures ---------------------------------------------------------------------------------------------------


def _logs(each: Installation) -> str:
    return f"kubectl -n {each.namespace} logs deployment/{each.name} --all-containers --tail=20"


def _stop(each: Installation) -> str:
    return f"kubectl -n {each.namespace} scale deployment/{each.name} --replicas=0"


def _see_config(namespace: str) -> str:
    return f"ask as somebody who may: kubectl auth can-i get configmaps -n {namespace}"


_SHOWN = 5
_OFFER_AGAIN = (
    "start the device plugin again; or, five minutes after it stopped: fluence resources advertise --remove"
)


def check_resources(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Everything about external resources except their hand-off."""
    yield from _offered(facts)
    yield from _unset_variables(facts)


def _offered(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Types with amount 0 on a node: its device plugin is gone, and the kubelet fails every pod that requests
    one."""
    check, declared = Check.OFFERED_RESOURCES, facts.admission.declared
    if facts.nodes.unseen:
        yield DoctorFinding(check, Health.UNSEEN, facts.nodes.unseen)
        return
    exhausted: dict[tuple[str, ...], list[str]] = {}
    for node in facts.nodes.items:
        types = _types_at_zero(node)
        if not (declared.unseen or declared.fault):  # a type that is not declared cannot be requested
            types = tuple(type_ for type_ in types if type_ in declared.types)
        if types:
            exhausted.setdefault(types, []).append(node.name)
    for types, nodes in exhausted.items():
        resources = ", ".join(f"{DEVICE_PREFIX}{type_}: 0" for type_ in types)
        is_everywhere = len(nodes) == len(facts.nodes.items)
        where = "no node takes pods that request it" if is_everywhere else "pods that request it go elsewhere"
        kubelets = f"the kubelets of {_some(sorted(nodes))}"
        message = f"{kubelets} offer {resources}, because their device plugin is gone: {where}"
        yield DoctorFinding(check, Health.WRONG if is_everywhere else Health.WARN, message, cure=_OFFER_AGAIN)
    if not exhausted:
        yield DoctorFinding(check, Health.OK, "no node stopped offering an external resource")


def _types_at_zero(node: Node) -> tuple[str, ...]:
    offered = node.offered_devices().items()
    return tuple(sorted(resource.removeprefix(DEVICE_PREFIX) for resource, n in offered if n <= 0))


def _unset_variables(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Containers that run, or will run, without the variables of their backend, because admission came too
    late."""
    check = Check.UNSET_VARIABLES
    pods = sorted(
        pod.key
        for pod in facts.pods.items
        if pod.spec.scheduler_name == facts.scheduler_name
        and not pod.is_terminal
        and pod.annotations.get(names.MISSING_VARIABLES) != "ignore"
        and containers_without_backend(pod)
    )
    if pods:
        have = "has a container" if len(pods) == 1 else "have containers"
        message = (
            f"{_some(pods)} {have} without the variables of the backend (QRMI_BACKEND, FLUXION_BACKEND): "
            "admission did not set them"
        )
        mend = "" if facts.admission.hand_over(facts.scheduler_name) else f"{put_admission_in(facts)}; then "
        yield DoctorFinding(check, Health.WARN, message, cure=f"{mend}delete and create the pods again")
    elif facts.pods.unseen:
        yield DoctorFinding(check, Health.UNSEEN, facts.pods.unseen)
    else:
        yield DoctorFinding(check, Health.OK, "no pod lacks the variables of its backend")


def _some(items: list[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


_ORDER: dict[Check | Health, int] = {check: place for place, check in enumerate(Check)}
_ORDER |= {each: i for i, each in enumerate((Health.WRONG, Health.WARN, Health.UNSEEN, Health.OK))}


def diagnose(facts: ClusterFacts) -> Sequence[DoctorFinding]:
    """All findings. Each check has at least one, so that a missing finding is never taken for health."""
    found = [
        *check_server(facts),
        *check_scheduler(facts),
        *check_admission(facts),
        *check_refusals(facts),
        *check_resources(facts),
        *check_doors(facts),
        *check_pods(facts),
    ]
    return sorted(found, key=lambda each: (_ORDER[each.check], _ORDER[each.verdict]))


_TESTED = sorted(tuple(int(part) for part in minor.split(".")) for minor in RELEASES)


def check_server(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Everything that only the administrators of the control plane can change."""
    yield _version(facts)
    yield _gang_api(facts)
    yield _gates(facts)
    yield _coscheduling(facts)


def _version(facts: ClusterFacts) -> DoctorFinding:
    check, server = Check.SERVER_VERSION, facts.server
    if server is None:
        return DoctorFinding(check, Health.UNSEEN, "the server does not say its version (GET /version)")
    first, last = (".".join(map(str, each)) for each in (_TESTED[0], _TESTED[-1]))
    try:
        release = server.release
    except (ValueError, IndexError):
        said = server.git_version or "nothing"
        return DoctorFinding(check, Health.UNSEEN, f"its version cannot be read: it says {said!r}")
    if release in _TESTED:
        return DoctorFinding(check, Health.OK, f"{server.git_version}: tested with {first} to {last}")
    what = "older than what" if release < _TESTED[0] else "newer than what"
    return DoctorFinding(
        check,
        Health.WARN,
        f"{server.git_version}: {what} Fluence is tested with, {first} to {last}",
        cure=f"try your workloads on a release that is tested: fluence sandbox up --version {last}",
    )


def _gang_api(facts: ClusterFacts) -> DoctorFinding:
    check, api = Check.GANG_API, facts.gang_api
    if api.unseen:
        return DoctorFinding(check, Health.UNSEEN, api.unseen)
    if not api.version:
        listed = ", ".join(api.served) or "none"
        return DoctorFinding(
            check,
            Health.WARN,
            f"the server serves no {GROUP} version with gangs (there: {listed}): gangs by labels work, "
            "PodGroups of Kubernetes do not",
            cure=_switch_on(facts),
        )
    served = f"{GROUP}/{api.version} is served"
    if api.lost:
        return DoctorFinding(
            check,
            Health.WRONG,
            f"{served}, but pods lose {', '.join(api.lost)} without a word: their gangs fall apart",
            cure=_switch_on(facts),
        )
    if api.lost is None and not facts.gates.get("GenericWorkload"):
        return DoctorFinding(
            check,
            Health.UNSEEN,
            f"{served}; whether pods keep their group is not known: a dry run of a pod is not allowed",
        )
    return DoctorFinding(check, Health.OK, f"{served}, and pods keep their group")


def _gates(facts: ClusterFacts) -> DoctorFinding:
    check = Check.FEATURE_GATES
    wanted = _wanted_gates(facts)
    if facts.gates_unseen:
        if facts.gang_api.version and facts.gang_api.lost == ():
            return DoctorFinding(check, Health.OK, "on where it matters: pods keep their group")
        return DoctorFinding(check, Health.UNSEEN, facts.gates_unseen)
    off = [name for name in wanted if not facts.gates.get(name)]
    on = ", ".join(name for name in wanted if name not in off)
    if not off:
        return DoctorFinding(check, Health.OK, f"{on or 'none is needed'}: on in kube-apiserver")
    message = f"{', '.join(off)}: off in kube-apiserver"
    verdict = Health.WARN
    return DoctorFinding(check, verdict, message, cure=_switch_on(facts))


def _coscheduling(facts: ClusterFacts) -> DoctorFinding:
    check, name = Check.COSCHEDULING, "podgroups.scheduling.x-k8s.io"
    if facts.coscheduling is None:
        return DoctorFinding(check, Health.UNSEEN, f"whether {name} is installed cannot be seen")
    if facts.coscheduling:
        return DoctorFinding(check, Health.OK, f"{name} is installed, and its PodGroups are read too")
    return DoctorFinding(check, Health.OK, f"{name} is not installed; nothing needs it")


def _minor(facts: ClusterFacts) -> str:
    """The release whose gates are named: the server's, or the nearest known one."""
    try:
        release = facts.server.release if facts.server is not None else _TESTED[-1]
    except (ValueError, IndexError):
        release = _TESTED[-1]
    nearest = min(max(release, _TESTED[0]), _TESTED[-1])
    return ".".join(map(str, nearest))


def _wanted_gates(facts: ClusterFacts) -> list[str]:
    return list(RELEASES[_minor(facts)].gates)


def _switch_on(facts: ClusterFacts) -> str:
    release = RELEASES[_minor(facts)]
    gates = ",".join(f"{name}=true" for name in release.gates)
    serves = ",".join(release.runtime_config)
    return (
        f"start kube-apiserver with --feature-gates={gates} --runtime-config={serves}, "
        "kube-controller-manager and kube-scheduler with the same gates"
    )
