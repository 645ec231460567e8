"""Diagnose: checks of the server and of external resources, and all findings in the order of their codes.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fluence import names
from fluence.doctor.admission_checks import check_admission, put_admission_in
from fluence.doctor.facts import Check, ClusterFacts, DoctorFinding, Health
from fluence.doctor.pod_checks import check_doors, check_pods
from fluence.doctor.refusals import check_refusals
from fluence.doctor.scheduler_checks import check_scheduler
from fluence.kube.gangs import GROUP
from fluence.kube.releases import RELEASES
from fluence.model.external_resources import containers_without_backend
from fluence.model.node import Node
from fluence.names import DEVICE_PREFIX

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
