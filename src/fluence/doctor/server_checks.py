"""Checks of the server: its release, its gang APIs and their feature gates."""

from __future__ import annotations

from collections.abc import Iterator

from fluence.doctor.facts import ClusterFacts
from fluence.doctor.finding import Check, DoctorFinding, Health
from fluence.kube.gangs import GROUP
from fluence.sandbox.releases import RELEASES

_TESTED = sorted(tuple(int(part) for part in each.split(".")) for each in RELEASES)


def check_server(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Everything that only the operators of the control plane can change."""
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
    """The release whose gates to name: the server's, or the nearest that is known."""
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
