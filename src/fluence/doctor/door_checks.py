"""Checks of the doors: namespaces whose work shall be held back, who holds it, and who lets it go."""

from __future__ import annotations

from collections.abc import Iterator

from fluence import names
from fluence.controller.flux_job import FLUX_JOBS
from fluence.doctor.admission_cures import flux_jobs_on, logs, put_admission_in
from fluence.doctor.admission_facts import HELD, Hook, Policy, Space
from fluence.doctor.facts import ClusterFacts
from fluence.doctor.finding import Check, DoctorFinding, Health

_LABEL = names.NAMESPACE_OPT_IN
_DISABLED = "disabled"
_CLOSED = "kube-system"
_APPLY = "kubectl apply -f deploy/crds/fluxjobs.yaml"


def check_doors(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Whether work that is to be queued is held, and whether what is held is let go."""
    yield from _doors(facts)
    yield _flux_jobs(facts)


def _doors(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    check, spaces = Check.DOORS, facts.admission.spaces
    labelled = [each for each in spaces.items if _LABEL in each.labels]
    for each in labelled:
        yield from _space(facts, each)
    if spaces.unseen:
        yield DoctorFinding(check, Health.UNSEEN, spaces.unseen)
    elif not labelled:
        yield DoctorFinding(check, Health.OK, f"no namespace is labelled {_LABEL}={names.DOORS_ENABLED}")


def _space(facts: ClusterFacts, space: Space) -> Iterator[DoctorFinding]:
    check, seen, about = Check.DOORS, facts.admission, f"namespace {space.name}"
    value = space.labels[_LABEL]
    if value == _DISABLED:
        yield DoctorFinding(check, Health.OK, "its work is never held back, as its label says", about)
        return
    if value != names.DOORS_ENABLED:
        message = f"{_LABEL}={value} means nothing: it is {names.DOORS_ENABLED} or {_DISABLED}"
        cure = f"kubectl label namespace {space.name} --overwrite {_LABEL}={names.DOORS_ENABLED}"
        yield DoctorFinding(check, Health.WARN, message, about, cure)
        return
    everybody: list[Policy | Hook] = [*seen.policies.items, *seen.hooks.items]
    holders = [each for each in everybody if each.scope.endswith(HELD) and seen.applies(each, space)]
    if not holders:
        yield _unserved(facts, space)
        return
    yield from _let_go(facts, space, holders)


def _unserved(facts: ClusterFacts, space: Space) -> DoctorFinding:
    check, seen, about = Check.DOORS, facts.admission, f"namespace {space.name}"
    if seen.unseen:
        message = f"whether somebody holds its work back is not known: {seen.unseen}"
        return DoctorFinding(check, Health.UNSEEN, message, about)
    off = f"kubectl label namespace {space.name} {_LABEL}-"
    if space.name == _CLOSED:
        message = "it is labelled, and nothing is ever held back there"
        return DoctorFinding(check, Health.WRONG, message, about, off)
    message = "it is labelled, and no policy or webhook holds its work back: it starts at once, unqueued"
    by = "webhook" if seen.hooks_for(facts.scheduler_name) else ""
    return DoctorFinding(check, Health.WRONG, message, about, put_admission_in(facts, by, doors=True))


def _let_go(facts: ClusterFacts, space: Space, holders: list[Policy | Hook]) -> Iterator[DoctorFinding]:
    """What is held waits for ever unless a scheduler with FluxJobs runs."""
    check, about = Check.DOORS, f"namespace {space.name}"
    schedulers = sorted({name for each in holders for name in each.schedulers})
    if len(schedulers) > 1:
        message = f"admission for several schedulers holds its work back: {', '.join(schedulers)}"
        yield DoctorFinding(check, Health.WARN, message, about, "leave one of them without doors")
    unseen = facts.installations.unseen or facts.leases.unseen or facts.reports.unseen
    is_ours = facts.scheduler_name in schedulers
    if is_ours and unseen:
        message = f"its work is held back; whether it is let go is not known: {unseen}"
        yield DoctorFinding(check, Health.UNSEEN, message, about)
    elif is_ours and facts.own and all(each.flux_jobs is False for each in facts.own):
        message = f"its work is held back, and {facts.scheduler_name} does not let it go: flux-jobs is off"
        yield DoctorFinding(check, Health.WRONG, message, about, flux_jobs_on(facts))
    elif is_ours and facts.runs() is False:
        message = f"its work is held back, and no scheduler named {facts.scheduler_name} runs to let it go"
        yield DoctorFinding(check, Health.WRONG, message, about, logs(facts))
    elif len(schedulers) < 2:
        message = f"its work is held back until {''.join(schedulers) or 'a scheduler'} starts it"
        yield DoctorFinding(check, Health.OK, message, about)


def _flux_jobs(facts: ClusterFacts) -> DoctorFinding:
    check, kind = Check.FLUX_JOBS, FLUX_JOBS.name
    there = facts.admission.has_flux_jobs
    dropped = ", ".join(f"status.{each}" for each in facts.admission.dropped)
    if there and dropped and any(each.flux_jobs for each in facts.own):
        message = f"{kind} is of another version, and the server drops what it does not know: {dropped}"
        return DoctorFinding(check, Health.WARN, message, cure=_APPLY)
    if there:
        return DoctorFinding(check, Health.OK, f"{kind} is installed")
    if there is None:
        return DoctorFinding(check, Health.UNSEEN, f"whether {kind} is installed cannot be seen")
    if facts.installations.unseen or any(each.flux_jobs is None for each in facts.own):
        why = facts.installations.unseen or "its settings cannot be read"
        message = f"{kind} is not installed; whether a scheduler keeps FluxJobs is not known: {why}"
        return DoctorFinding(check, Health.UNSEEN, message)
    if not any(each.flux_jobs for each in facts.own):
        why = "flux-jobs is off" if facts.own else "no Deployment of ours wants it"
        return DoctorFinding(check, Health.OK, f"{kind} is not installed, and {why}")
    message = (
        f"{kind} is not installed, and flux-jobs is on: nobody sees where held work stands, or can cancel it"
    )
    return DoctorFinding(check, Health.WARN, message, cure=_APPLY)
