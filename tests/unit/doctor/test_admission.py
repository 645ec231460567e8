"""Admission in the doctor's eyes: who hands devices over, what it reads, and who holds work back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluence import names
from fluence.doctor.diagnose import diagnose
from fluence.doctor.facts import (
    Authority,
    Check,
    ClusterFacts,
    Declared,
    GangApiFacts,
    Health,
    Hook,
    Policy,
    RightAnswer,
    RightFacts,
    Seen,
    Space,
    Table,
    Trial,
)
from fluence.doctor.rights import hand_off_rights, webhook_rights
from fluence.model.external_resources import BASE
from tests.unit.cluster.build import node
from tests.unit.doctor.sample import (
    AUTHORITY,
    BACKING,
    BINDING,
    HAND_OFF,
    HEALTHY,
    HELD,
    HOOK,
    INSTALLED,
    LEASE,
    OURS,
    POLICY,
    VARIABLES,
    admitting,
    ago,
    by_webhook,
    found,
    having,
    the,
)

UPGRADE = "helm upgrade fluence deploy/helm/fluence -n fluence-system --reuse-values"
UNTOLD = Trial("default", ())
UNTRIED = Trial("default", None, "pods may not be created")
NOBODY: dict[str, Any] = {"policies": Seen(), "bindings": Seen(), "trial": UNTOLD}
ENABLED = Space("team", {names.NAMESPACE_OPT_IN: "enabled"})
HELD_POLICY = Policy("fluence-pods-held", "pods-held", OURS, selector=HELD)
HELD_BINDING = replace(BINDING, name="fluence-pods-held", policy="fluence-pods-held")
WITH_DOORS: dict[str, Any] = {
    "policies": Seen((POLICY, HELD_POLICY)),
    "bindings": Seen((BINDING, HELD_BINDING)),
    "spaces": Seen((Space("default"), ENABLED)),
}
NO_LIST = "mutatingwebhookconfigurations cannot be read: forbidden"


def wrong(facts: ClusterFacts) -> dict[Check, str]:
    return {each.check: each.message for each in diagnose(facts) if each.verdict is Health.WRONG}


# -- who hands over ------------------------------------------------------------------------------------------


def test_a_webhook_in_place_of_policies_is_as_healthy() -> None:
    findings = diagnose(by_webhook())
    assert [each for each in findings if each.verdict is not Health.OK] == []
    (one,) = [each for each in findings if each.check is Check.WEBHOOK]
    assert one.message == (
        "2 of 2 replicas answer behind fluence-system/fluence-webhook; "
        "its certificate is good until 2026-03-26"
    )


def test_without_devices_nobody_misses_admission_and_with_them_it_is_a_warning() -> None:
    classical = admitting(**NOBODY, declared=Declared("kube-system/fluence-resources", variables=BASE))
    assert found(classical, Check.ADMISSION) == []
    one = the(admitting(**NOBODY), Check.ADMISSION)
    assert one.verdict is Health.WARN
    assert one.cure == f"{UPGRADE} --set admission.mode=policy"


@pytest.mark.parametrize(
    ("has_policies", "cure"),
    [
        (True, "fluence admission render -n fluence-system | kubectl apply -f -"),
        (False, "kubectl apply -f deploy/fluence-webhook.yaml"),
    ],
)
def test_the_cure_is_what_this_server_can_do(has_policies: bool, cure: str) -> None:
    by_hand = Seen((replace(INSTALLED, release=""),))
    facts = replace(admitting(**NOBODY, has_policies=has_policies), installations=by_hand)
    assert the(facts, Check.ADMISSION).cure == cure


def test_a_policy_without_its_binding_is_not_applied() -> None:
    facts = admitting(bindings=Seen(), trial=UNTOLD)
    one = the(facts, Check.ADMISSION)
    assert (one.verdict, one.object) == (Health.WRONG, "policy fluence-pods")
    assert one.cure == f"{UPGRADE} --set admission.mode=policy"
    hidden = admitting(bindings=Seen((), "forbidden"), trial=UNTOLD)
    assert the(hidden, Check.ADMISSION).verdict is Health.UNSEEN


def test_a_gate_that_is_off_makes_policies_idle() -> None:
    facts = replace(admitting(trial=UNTOLD), gates={"MutatingAdmissionPolicy": False})
    assert "the feature gate MutatingAdmissionPolicy is off" in the(facts, Check.ADMISSION).message


def test_a_container_that_is_told_nothing_where_somebody_should_have_told_it() -> None:
    one = the(admitting(trial=UNTOLD), Check.ADMISSION)
    assert (one.verdict, one.object) == (Health.WRONG, "policy fluence-pods")
    assert one.message == "a container that asks for a device in default is told nothing"
    elsewhere = replace(POLICY, selector=HELD)
    assert found(admitting(policies=Seen((elsewhere,)), trial=UNTOLD), Check.ADMISSION) == []
    blind = admitting(trial=UNTOLD, spaces=Seen((), "namespaces cannot be read"))
    assert the(blind, Check.ADMISSION).verdict is Health.UNSEEN


def test_what_may_not_be_tried_is_judged_by_what_is_there() -> None:
    (one,) = [each for each in diagnose(admitting(trial=UNTRIED)) if each.check is Check.ADMISSION]
    assert one.verdict is Health.OK
    assert "not tried: pods may not be created" in one.message
    unknown = by_webhook(trial=UNTRIED, backings=Seen((replace(BACKING, hands_over=None),)))
    assert the(unknown, Check.ADMISSION).verdict is Health.UNSEEN


def test_policies_of_another_scheduler_are_none_of_ours() -> None:
    theirs = replace(POLICY, schedulers=frozenset(("other",)))
    assert the(admitting(policies=Seen((theirs,)), trial=UNTOLD), Check.ADMISSION).verdict is Health.WARN


def test_a_policy_and_a_webhook_for_the_same_pods() -> None:
    both: dict[str, Any] = {"hooks": Seen((HOOK,)), "backings": Seen((BACKING,))}
    one = the(admitting(**both), Check.ADMISSION)
    assert (one.verdict, one.object) == (Health.WARN, "policy fluence-pods, webhook fluence-webhook")
    assert one.cure == "kubectl delete mutatingwebhookconfiguration fluence-webhook"
    differs = replace(BACKING, parameters="other/fluence-admission")
    one = the(admitting(**{**both, "backings": Seen((differs,))}), Check.ADMISSION)
    assert one.verdict is Health.WRONG
    assert "different HandOffs (fluence-system/fluence-admission, other/fluence-admission)" in one.message
    apart = {**both, "hooks": Seen((replace(HOOK, selector=HELD),))}
    assert found(admitting(**apart), Check.ADMISSION) == []


# -- the webhook ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backing", "verdict", "says", "cure"),
    [
        ({"exists": False, "ready": 0}, Health.WRONG, "is not there", "helm upgrade fluence"),
        ({"ready": 0}, Health.WRONG, "no endpoint", "logs deployment/fluence-webhook"),
        ({"ready": 0, "wanted": 0}, Health.WRONG, "no endpoint", "scale deployment/fluence-webhook --rep"),
        ({"ready": 1}, Health.WARN, "1 of 2 replicas are ready", "logs deployment/fluence-webhook"),
        ({"scopes": ("workloads",)}, Health.WRONG, "it is asked for pods, which", "admission.mode=webhook"),
    ],
)
def test_a_webhook_that_does_not_answer(backing: Any, verdict: Health, says: str, cure: str) -> None:
    one = the(by_webhook(backings=Seen((replace(BACKING, **backing),))), Check.WEBHOOK)
    assert (one.verdict, one.object) == (verdict, "webhook fluence-webhook")
    assert says in one.message
    assert cure in one.cure


def test_one_that_must_answer_is_named_as_such() -> None:
    gone = Seen((replace(BACKING, ready=0),))
    assert "left as they are" in the(by_webhook(backings=gone), Check.WEBHOOK).message
    strict = Seen((replace(HOOK, refuses=True),))
    assert "new pods are refused" in the(by_webhook(backings=gone, hooks=strict), Check.WEBHOOK).message


OLD = Authority(ago(days=28), ago(days=-2))  # should have been renewed eight days ago
ENDED = Authority(ago(days=31), ago(days=1))


@pytest.mark.parametrize(
    ("bundle", "verdict", "says"),
    [
        ((), Health.WRONG, "it has no caBundle"),
        ((ENDED, ENDED), Health.WRONG, "the last one ended 2026-02-28T12:00:00Z"),
        ((ENDED, AUTHORITY), Health.WRONG, "2 replicas answer, each with its certificate"),
        ((OLD, AUTHORITY), Health.WARN, "of 1 of 2 replicas is about to end"),
        ((OLD, OLD), Health.WARN, "the last one ends 2026-03-03T12:00:00Z"),
        ((OLD, ENDED, AUTHORITY, AUTHORITY), None, ""),  # of replicas that are gone
    ],
)
def test_certificates(bundle: tuple[Authority, ...], verdict: Health | None, says: str) -> None:
    facts = by_webhook(hooks=Seen((replace(HOOK, authorities=bundle),)))
    if verdict is None:
        assert found(facts, Check.WEBHOOK) == []
        return
    one = the(facts, Check.WEBHOOK)
    assert one.verdict is verdict
    assert says in one.message
    assert "logs deployment/fluence-webhook" in one.cure


def test_a_webhook_at_a_url_has_a_certificate_and_no_service() -> None:
    by_url = by_webhook(hooks=Seen((replace(HOOK, service=""),)), backings=Seen())
    assert found(by_url, Check.WEBHOOK) == []
    ended = by_webhook(hooks=Seen((replace(HOOK, service="", authorities=(ENDED,)),)), backings=Seen())
    assert the(ended, Check.WEBHOOK).verdict is Health.WRONG


def test_the_rights_of_the_webhook_are_asked_for_too() -> None:
    rights = webhook_rights(configuration="mine", namespace="there")
    assert [(each.resources, each.namespace, each.name) for each in rights] == [
        (("mutatingwebhookconfigurations",), "", "mine"),
        (("handoffs",), "there", names.ADMISSION_PARAMETERS),
    ]
    reasons = [each.reason for each in (*rights, *hand_off_rights("there"))]
    assert [each.split()[:3] for each in reasons] == [
        ["The", "webhook", "tells"],
        ["Which", "variables", "there"],
        ["Which", "variable", "of"],
        ["Which", "variable", "of"],
    ]
    account = "system:serviceaccount:fluence-system:fluence-webhook"
    lacks = RightFacts(account, answers=tuple(RightAnswer(each, each.verbs) for each in rights))
    told = found(having(webhook_rights=(lacks,)), Check.RIGHTS)
    assert {(each.verdict, each.object) for each in told} == {(Health.WRONG, account)}
    assert "--resource=handoffs.fluence.flux-framework.org" in told[1].cure
    assert BACKING.subject == account


# -- PodGroups -----------------------------------------------------------------------------------------------

BETA = GangApiFacts("v1beta1", ("v1", "v1beta1"), ())
LISTING = Seen((Table(HAND_OFF, VARIABLES, lists_gangs=True),))
LISTED = replace(HEALTHY.admission.trial, is_listed=True)


@pytest.mark.parametrize(
    ("api", "admission", "says"),
    [
        (BETA, {"tables": LISTING, "trial": LISTED}, "gangs get a PodGroup of scheduling.k8s.io/v1beta1"),
        (HEALTHY.gang_api, {"tables": LISTING, "trial": LISTED}, "deleted before an upgrade"),
        (HEALTHY.gang_api, {}, "pod-groups is not always, and the server has them only as v1alpha2"),
        (BETA, {}, "the scheduler's setting pod-groups is never"),
        (BETA, {"tables": Seen()}, "no scheduler has written a HandOff"),
        (BETA, {"tables": LISTING, "trial": UNTRIED}, "not tried where the rules hold"),
        (BETA, NOBODY, "admission is not installed"),
        (GangApiFacts("", ("v1",)), {"tables": LISTING}, "the server has none that pods keep"),
        (GangApiFacts("v1beta1", (), ("spec.schedulingGroup",)), {}, "the server has none that pods keep"),
    ],
)
def test_whether_gangs_get_pod_groups_and_why_not(
    api: GangApiFacts, admission: dict[str, Any], says: str
) -> None:
    facts = replace(admitting(**admission), gang_api=api)
    (one,) = (each for each in diagnose(facts) if each.check is Check.POD_GROUPS)
    assert one.verdict is Health.OK and says in one.message


def test_admission_without_the_handler_that_the_scheduler_counts_on() -> None:
    one = the(replace(admitting(tables=LISTING), gang_api=BETA), Check.POD_GROUPS)
    assert one.verdict is Health.WARN and "without the handler podgroups" in one.message
    assert one.cure.startswith("helm upgrade") or "fluence admission render" in one.cure


# -- the HandOff ---------------------------------------------------------------------------------------------


def test_a_hand_off_that_is_missing_or_whose_kind_is() -> None:
    gone = the(admitting(tables=Seen()), Check.HAND_OFF)
    assert (gone.verdict, gone.object) == (Health.WRONG, f"handoff {HAND_OFF}")
    assert gone.cure.startswith("kubectl -n fluence-system logs deployment/fluence")
    assert the(admitting(tables=Seen((), "forbidden")), Check.HAND_OFF).verdict is Health.UNSEEN
    kind = the(admitting(tables=Seen(), has_hand_offs=False), Check.HAND_OFF)
    assert kind.cure == "kubectl apply -f deploy/helm/fluence/crds/handoffs.yaml"


def test_a_hand_off_that_lacks_attributes_and_the_command_that_adds_them() -> None:
    one = the(admitting(tables=Seen((Table(HAND_OFF, BASE),))), Check.HAND_OFF)
    assert one.verdict is Health.WRONG
    assert "it lacks FLUXION_VENDOR" in one.message
    assert one.cure == (
        "kubectl -n fluence-system patch handoff fluence-admission --type merge -p "
        '\'{"spec": {"variables": {"FLUXION_VENDOR": "fluence.flux-framework.org/attr-vendor"}}}\''
    )
    more = {**VARIABLES, "A_SITES_OWN": names.BACKEND}
    assert found(admitting(tables=Seen((Table(HAND_OFF, more),))), Check.HAND_OFF) == []


def test_a_scheduler_that_runs_in_no_deployment_is_not_started_again() -> None:
    """Of a sandbox, or by hand: its lease says that it runs, and where its HandOff is."""
    lease = replace(LEASE, namespace="kube-system", holder="laptop_1")
    by_hand: dict[str, Any] = {"installations": Seen(), "leases": Seen((lease,))}
    reads = replace(BINDING, parameters="kube-system/fluence-admission")
    missing = replace(admitting(tables=Seen(), bindings=Seen((reads,))), **by_hand)
    one = the(missing, Check.HAND_OFF)
    assert one.cure == "see what the scheduler logs that holds the lease kube-system/fluence: laptop_1"
    mismatch = the(replace(admitting(tables=Seen()), **by_hand), Check.HAND_OFF)
    assert "admission reads it, and the scheduler keeps kube-system/fluence-admission" in mismatch.message
    assert mismatch.cure == "fluence admission render -n kube-system | kubectl apply -f -"
    for finding in diagnose(missing):
        assert "helm install" not in finding.cure


def test_a_scheduler_without_a_lease_is_known_by_the_hand_off_that_it_keeps() -> None:
    table = Table("kube-system/fluence-admission", VARIABLES)
    facts = replace(admitting(tables=Seen((table,))), installations=Seen(), leases=Seen())
    one = the(facts, Check.HAND_OFF)
    assert "the scheduler keeps kube-system/fluence-admission" in one.message


def test_a_scheduler_that_leads_elsewhere_than_the_one_that_is_installed() -> None:
    """The one file on a sandbox: its policies read the HandOff of a Deployment that does not start."""
    leads = replace(LEASE, namespace="kube-system", holder="laptop_1")
    idle = replace(INSTALLED, ready=0, release="")
    tables = Seen((Table("kube-system/fluence-admission", VARIABLES),))
    facts = replace(admitting(tables=tables), installations=Seen((idle,)), leases=Seen((leads,)))
    one = the(facts, Check.HAND_OFF)
    assert "admission reads it, and the scheduler keeps kube-system/fluence-admission" in one.message
    assert one.cure == "fluence admission render -n kube-system | kubectl apply -f -"


def test_one_cure_installs_the_scheduler_and_admission() -> None:
    """Admission that was rendered by itself would be in the way of the chart."""
    nothing = replace(admitting(**NOBODY), installations=Seen(), leases=Seen())
    install = "helm install fluence deploy/helm/fluence -n fluence-system --create-namespace"
    cures = {each.cure for each in diagnose(nothing) if "fluence" in each.cure and "kubectl" not in each.cure}
    assert cures == {install}
    rendered = replace(HEALTHY, installations=Seen(), leases=Seen())
    assert the(rendered, Check.DEPLOYMENT).cure == f"{install} --take-ownership"


def test_nothing_is_deployed_to_a_sandbox_that_runs_no_containers() -> None:
    simulated = Seen((node("n", labels={names.SIMULATED: "true"}),))
    empty = admitting(**NOBODY, tables=Seen())
    nothing = replace(empty, installations=Seen(), leases=Seen(), nodes=simulated)
    assert the(nothing, Check.DEPLOYMENT).cure == "fluence scheduler run"
    assert the(nothing, Check.ADMISSION).cure == "fluence admission render | kubectl apply -f -"
    assert not [each for each in diagnose(nothing) if "helm" in each.cure]


def test_a_hand_off_that_nobody_keeps() -> None:
    elsewhere = replace(BINDING, parameters="old/fluence-admission")
    table = Table("old/fluence-admission", VARIABLES)
    one = the(admitting(bindings=Seen((elsewhere,)), tables=Seen((table,))), Check.HAND_OFF)
    assert (one.verdict, one.object) == (Health.WRONG, "handoff old/fluence-admission")
    assert f"the scheduler keeps {HAND_OFF}" in one.message


def test_devices_that_cannot_be_read_leave_it_open() -> None:
    at = "kube-system/fluence-resources"
    bad = the(admitting(declared=Declared(at, fault="line 3: a name is missing")), Check.HAND_OFF)
    assert (bad.verdict, bad.cure) == (Health.WARN, "kubectl -n kube-system edit configmap fluence-resources")
    hidden = the(admitting(declared=Declared(at, unseen="forbidden")), Check.HAND_OFF)
    assert hidden.verdict is Health.UNSEEN


# -- doors ---------------------------------------------------------------------------------------------------


def test_a_labelled_namespace_that_nobody_serves() -> None:
    one = the(admitting(spaces=Seen((Space("default"), ENABLED))), Check.DOORS)
    assert (one.verdict, one.object) == (Health.WRONG, "namespace team")
    assert one.cure == f"{UPGRADE} --set admission.mode=policy --set admission.doors=namespaces"
    assert found(admitting(**WITH_DOORS), Check.DOORS) == []
    hidden = admitting(spaces=Seen((ENABLED,)), hooks=Seen((), NO_LIST))
    assert the(hidden, Check.DOORS).verdict is Health.UNSEEN


def test_a_webhook_serves_doors_too_and_stays_the_one_that_does() -> None:
    spaces = Seen((Space("default"), ENABLED))
    one = the(by_webhook(spaces=spaces), Check.DOORS)
    assert "--set admission.mode=webhook --set admission.doors=namespaces" in one.cure
    held = Hook("fluence-webhook", "pods-held", OURS, HELD, HOOK.service, HOOK.authorities)
    serving = replace(BACKING, scopes=("pods", "pods-held"))
    served = by_webhook(spaces=spaces, hooks=Seen((HOOK, held)), backings=Seen((serving,)))
    assert wrong(served) == {}
    # The webhook was not told: the server asks for what it does not know.
    untold = by_webhook(spaces=spaces, hooks=Seen((HOOK, held)))
    assert "it is asked for pods-held" in the(untold, Check.WEBHOOK).message


def test_who_sees_only_some_of_what_holds_work_back_is_not_told_that_all_is_right() -> None:
    """A webhook that is hidden may hold it back as well, for another scheduler."""
    hidden = admitting(**WITH_DOORS, hooks=Seen((), "forbidden"))
    one = the(hidden, Check.DOORS)
    assert one.verdict is Health.UNSEEN and "whether something else holds it too" in one.message


def test_held_work_that_nobody_lets_go() -> None:
    facts = admitting(**WITH_DOORS)
    off = replace(facts, installations=Seen((replace(INSTALLED, flux_jobs=False),)))
    one = the(off, Check.DOORS)
    assert "flux-jobs is off" in one.message
    assert one.cure.endswith("--set settings.flux-jobs=true")
    idle = replace(facts, installations=Seen(), leases=Seen())
    assert "no scheduler named fluence runs" in the(idle, Check.DOORS).message


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("team", "disabled", None),
        ("team", "true", Health.WARN),
        ("kube-system", "enabled", Health.WRONG),
    ],
)
def test_labels_that_do_nothing(name: str, value: str, verdict: Health | None) -> None:
    facts = admitting(spaces=Seen((Space("default"), Space(name, {names.NAMESPACE_OPT_IN: value}))))
    assert [each.verdict for each in found(facts, Check.DOORS)] == ([verdict] if verdict else [])


def test_a_kind_of_flux_jobs_from_another_version_is_told() -> None:
    """helm installs CRDs once and never upgrades them, and fluxqueue has one of the same name."""
    stale = admitting(dropped=("noLaterThan", "queued"))
    one = the(stale, Check.FLUX_JOBS)
    assert (one.verdict, one.cure) == (Health.WARN, "kubectl apply -f deploy/crds/fluxjobs.yaml")
    assert one.message.endswith("drops what it does not know: status.noLaterThan, status.queued")
    off = replace(stale, installations=Seen((replace(INSTALLED, flux_jobs=False),)))
    assert found(off, Check.FLUX_JOBS) == []


def test_flux_jobs_need_their_kind_where_they_are_on() -> None:
    without = admitting(has_flux_jobs=False)
    one = the(without, Check.FLUX_JOBS)
    assert (one.verdict, one.cure) == (Health.WARN, "kubectl apply -f deploy/crds/fluxjobs.yaml")
    off = replace(without, installations=Seen((replace(INSTALLED, flux_jobs=False),)))
    assert found(off, Check.FLUX_JOBS) == []
    hidden = replace(without, installations=Seen((), "forbidden"))
    assert the(hidden, Check.FLUX_JOBS).verdict is Health.UNSEEN
    assert the(admitting(has_flux_jobs=None), Check.FLUX_JOBS).verdict is Health.UNSEEN
