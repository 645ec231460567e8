"""Facts in, findings out: each thing that can be wrong is named, with its cure, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluence import names
from fluence.doctor.diagnose import diagnose
from fluence.doctor.facts import (
    Check,
    DoctorFinding,
    EventReport,
    GangApiFacts,
    Health,
    Replica,
    RightAnswer,
    RightFacts,
    Rollout,
    Seen,
    exit_code,
)
from fluence.kube.resource import ServerVersion
from fluence.model.owner import Group
from fluence.model.pod import Pod
from tests.unit.doctor.sample import ACCOUNT, HEALTHY, INSTALLED, LEASE, ago, found, having, pod, the

OTHER = replace(INSTALLED, namespace="other", lease_key="other/fluence")
NO_LIST = "deployments cannot be read: forbidden"


def test_a_healthy_cluster_has_every_check_and_nothing_but_ok() -> None:
    findings = diagnose(HEALTHY)
    assert [each for each in findings if each.verdict is not Health.OK] == []
    assert list(dict.fromkeys(each.check for each in findings)) == list(Check)
    assert exit_code(findings) == 0


@pytest.mark.parametrize(
    ("verdicts", "code", "strict"),
    [
        ((), 0, 0),
        ((Health.OK, Health.WARN), 0, 1),
        ((Health.UNSEEN, Health.OK), 2, 2),
        ((Health.UNSEEN, Health.WARN), 2, 1),
        ((Health.UNSEEN, Health.WRONG), 1, 1),
    ],
)
def test_exit_codes(verdicts: tuple[Health, ...], code: int, strict: int) -> None:
    findings = [DoctorFinding(Check.LEASE, each, "") for each in verdicts]
    assert exit_code(findings) == code
    assert exit_code(findings, strict=True) == strict


# -- the server ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("minor", "word"), [("34", "older"), ("38+", "newer")])
def test_a_release_that_is_not_tested_is_a_warning(minor: str, word: str) -> None:
    one = the(having(server=ServerVersion(f"v1.{minor}.0", "1", minor)), Check.SERVER_VERSION)
    assert one.verdict is Health.WARN
    assert word in one.message


def test_gates_that_are_off_are_named_with_the_flags_of_that_release() -> None:
    off = having(gang_api=GangApiFacts("", ("v1",)), gates=dict.fromkeys(HEALTHY.gates, False))
    api = the(off, Check.GANG_API)
    assert api.verdict is Health.WARN
    assert "--feature-gates=GenericWorkload=true,GangScheduling=true" in api.cure
    assert "scheduling.k8s.io/v1alpha2=true" in api.cure
    assert the(off, Check.FEATURE_GATES).message.startswith("GenericWorkload, GangScheduling")
    newer = replace(off, server=ServerVersion("v1.37.1", "1", "37"))
    assert "scheduling.k8s.io/v1beta1=true" in the(newer, Check.GANG_API).cure


def test_an_api_whose_field_pods_lose_is_wrong() -> None:
    one = the(
        having(gang_api=GangApiFacts("v1alpha2", ("v1alpha2",), ("spec.schedulingGroup",))), Check.GANG_API
    )
    assert one.verdict is Health.WRONG
    assert "spec.schedulingGroup" in one.message


def test_gates_that_cannot_be_read_matter_only_where_nothing_else_tells() -> None:
    hidden = having(gates={}, gates_unseen="/metrics cannot be read")
    assert found(hidden, Check.FEATURE_GATES) == []
    untried = replace(hidden, gang_api=GangApiFacts("v1alpha2", ("v1alpha2",), None))
    assert the(untried, Check.FEATURE_GATES).verdict is Health.UNSEEN
    assert the(untried, Check.GANG_API).verdict is Health.UNSEEN


# -- rights --------------------------------------------------------------------------------------------------


def lacking(resource: str) -> tuple[RightAnswer, ...]:
    return tuple(
        RightAnswer(each.right, each.right.verbs if resource in each.right.resources else ())
        for each in HEALTHY.rights.answers
    )


def test_a_right_that_lacks_is_named_with_its_reason_and_the_command() -> None:
    one = the(having(rights=RightFacts(ACCOUNT, answers=lacking("pods/binding"))), Check.RIGHTS)
    assert one.verdict is Health.WRONG
    assert one.object == ACCOUNT
    assert one.message == "may not create pods/binding: Where pods go, and why they wait."
    assert "--verb=create --resource=pods/binding" in one.cure
    assert "--serviceaccount=fluence-system:fluence-scheduler" in one.cure


def test_ones_own_rights_say_nothing_of_a_scheduler_that_is_there() -> None:
    own = RightFacts("me", is_own=True, answers=lacking("pods/binding"), unseen="cannot be asked for")
    assert {each.verdict for each in found(having(rights=own), Check.RIGHTS)} == {Health.UNSEEN}
    alone = replace(own, unseen="")
    assert the(having(rights=alone), Check.RIGHTS).verdict is Health.WRONG


# -- replicas, lease, names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "ready", "verdict", "cure"),
    [
        (2, 1, Health.WARN, "logs deployment/fluence"),
        (2, 0, Health.WRONG, "describe deployment/fluence"),
        (0, 0, Health.WRONG, "scale deployment/fluence --replicas=2"),
    ],
)
def test_replicas_that_are_not_ready(wanted: int, ready: int, verdict: Health, cure: str) -> None:
    one = the(having(installations=Seen((replace(INSTALLED, wanted=wanted, ready=ready),))), Check.DEPLOYMENT)
    assert one.verdict is verdict
    assert cure in one.cure


def test_one_that_is_scaled_to_0_is_not_started_beside_another() -> None:
    elsewhere = replace(LEASE, namespace="kube-system", holder="laptop_1")
    off = Seen((replace(INSTALLED, wanted=0, ready=0),))
    assert found(having(installations=off, leases=Seen((elsewhere,))), Check.DEPLOYMENT) == []


def test_a_crash_loop_beside_ready_replicas_is_wrong() -> None:
    """A rollout keeps the old pods until the new ones are ready, so all that are wanted are ready."""
    looping = Replica(
        "fluence-system/new", "fluence:0.1.0", "container scheduler: CrashLoopBackOff after 4 restarts"
    )
    facts = having(replicas=Seen((Replica("fluence-system/old", "fluence:0.1.0"), looping)))
    wrong = [one for one in diagnose(facts) if one.verdict is Health.WRONG]
    assert [(one.check, one.object, one.message) for one in wrong] == [
        (Check.DEPLOYMENT, "pod fluence-system/new", looping.trouble)
    ]
    assert "kubectl -n fluence-system logs pod/new --previous" in wrong[0].cure


@pytest.mark.parametrize(
    ("rollout", "verdict", "message"),
    [
        (Rollout(1), Health.WARN, "1 of 2 have the newest template: a rollout is under way"),
        (Rollout(1, "has timed out progressing."), Health.WRONG, "does not become ready: has timed out"),
    ],
)
def test_a_rollout_that_does_not_become_ready(rollout: Rollout, verdict: Health, message: str) -> None:
    one = the(having(installations=Seen((replace(INSTALLED, rollout=rollout),))), Check.DEPLOYMENT)
    assert one.verdict is verdict and message in one.message


@pytest.mark.parametrize("rollout", [Rollout(2), Rollout()])
def test_a_rollout_that_is_complete_or_unknown_is_no_fault(rollout: Rollout) -> None:
    assert not found(having(installations=Seen((replace(INSTALLED, rollout=rollout),))), Check.DEPLOYMENT)


def test_replicas_of_different_versions_are_named() -> None:
    two = Seen((Replica("s/a", "fluence:0.1.0"), Replica("s/b", "fluence:0.2.0")))
    one = the(having(replicas=two), Check.REPLICA_VERSIONS)
    assert "fluence:0.1.0: s/a; fluence:0.2.0: s/b" in one.message


def test_a_lease_that_is_not_renewed_is_wrong_unless_it_was_seen_to_change() -> None:
    old = replace(LEASE, renewed=ago(minutes=5))
    assert (
        "no longer renews it: the last time was 5m" in the(having(leases=Seen((old,))), Check.LEASE).message
    )
    assert found(having(leases=Seen((replace(old, changed=True),))), Check.LEASE) == []
    ahead = replace(LEASE, renewed=ago(minutes=-5), changed=False)
    assert the(having(leases=Seen((ahead,))), Check.LEASE).verdict is Health.WRONG


def test_a_lease_given_back_while_replicas_are_wanted_is_wrong() -> None:
    assert the(having(leases=Seen((replace(LEASE, holder=""),))), Check.LEASE).verdict is Health.WRONG


def test_two_live_leases_of_one_name_are_two_schedulers() -> None:
    by_hand = replace(LEASE, namespace="kube-system", holder="laptop_7", acquired=ago(minutes=2))
    one = the(having(leases=Seen((LEASE, by_hand))), Check.ONE_SCHEDULER)
    assert one.verdict is Health.WRONG
    assert "fluence-system/fluence by host_1; kube-system/fluence by laptop_7" in one.message
    dead = replace(by_hand, renewed=ago(hours=1))
    assert found(having(leases=Seen((LEASE, dead))), Check.ONE_SCHEDULER) == []
    renamed = replace(by_hand, scheduler_name="other")
    assert found(having(leases=Seen((LEASE, renamed))), Check.ONE_SCHEDULER) == []


def test_two_deployments_of_one_name_with_two_leases() -> None:
    one = the(having(installations=Seen((INSTALLED, OTHER))), Check.ONE_SCHEDULER)
    assert one.verdict is Health.WRONG
    assert one.cure == "kubectl -n other scale deployment/fluence --replicas=0"
    shared = replace(OTHER, lease_key=INSTALLED.lease_key)
    assert the(having(installations=Seen((INSTALLED, shared))), Check.ONE_SCHEDULER).verdict is Health.WARN
    off = replace(OTHER, wanted=0)
    assert found(having(installations=Seen((INSTALLED, off))), Check.ONE_SCHEDULER) == []


def test_replicas_without_a_lease_are_schedulers_of_one_name() -> None:
    free = replace(INSTALLED, lease=False)
    one = the(having(installations=Seen((free,)), leases=Seen()), Check.ONE_SCHEDULER)
    assert "2 replicas without a lease" in one.message


def test_events_by_one_who_does_not_hold_the_lease() -> None:
    after, at_handover = ago(minutes=5), ago(minutes=59, seconds=30)
    stranger = Seen((EventReport("old_1", after), EventReport("host_1", after)))
    one = the(having(reports=stranger), Check.ONE_SCHEDULER)
    assert "reported by old_1 while host_1 holds" in one.message
    former = Seen((EventReport("old_1", at_handover), EventReport("host_1", after)))
    assert found(having(reports=former), Check.ONE_SCHEDULER) == []


def test_without_a_lease_two_that_report_in_turns_are_two_and_a_restart_is_not() -> None:
    bare = having(installations=Seen(), leases=Seen())
    turns = [EventReport(name, ago(minutes=m)) for name, m in (("a", 9), ("b", 8), ("a", 7))]
    assert (
        "reported by a, b in turns"
        in the(replace(bare, reports=Seen(tuple(turns))), Check.ONE_SCHEDULER).message
    )
    assert found(replace(bare, reports=Seen(tuple(turns[:2]))), Check.ONE_SCHEDULER) == []
    gone = replace(LEASE, holder="")  # with a lease they may lead in turns
    led = having(leases=Seen((gone,)), reports=Seen(tuple(turns)))
    assert found(led, Check.ONE_SCHEDULER) == []


# -- pods and groups -----------------------------------------------------------------------------------------


def test_pods_that_name_a_scheduler_that_does_not_run() -> None:
    waiting = Seen((pod("a"), pod("b"), pod("bound", node="n"), pod("theirs", scheduler="default-scheduler")))
    none = having(pods=waiting, installations=Seen(), leases=Seen())
    one = the(none, Check.PODS_WITHOUT_SCHEDULER)
    assert one.verdict is Health.WRONG
    assert "2 pods that name fluence wait: ns/a, ns/b" in one.message
    assert one.cure.startswith("helm install")
    assert found(having(pods=waiting), Check.PODS_WITHOUT_SCHEDULER) == []
    hidden = replace(none, installations=Seen((), NO_LIST))
    assert the(hidden, Check.PODS_WITHOUT_SCHEDULER).verdict is Health.UNSEEN


def test_a_group_that_waits_for_long_says_what_it_was_told() -> None:
    label = {names.GROUP_LABEL: "big"}
    told = "0/2 nodes are free. Start expected 2026-03-01T13:00Z."
    pods = Seen(tuple(pod(f"p{i}", made=ago(hours=2), labels=label, told=told) for i in range(2)))
    one = the(having(pods=pods), Check.WAITING_GROUPS)
    assert one.verdict is Health.WARN
    assert one.object == "group ns/big"
    assert "2 of 2 pods wait for 2h" in one.message
    assert told in one.message
    assert one.cure == "fluence explain group big -n ns"
    assert found(having(pods=pods, waits_s=3 * 3600), Check.WAITING_GROUPS) == []


def test_a_pod_that_nobody_told_why_it_waits_is_wrong() -> None:
    one = the(having(pods=Seen((pod("a", made=ago(hours=2)),))), Check.WAITING_GROUPS)
    assert (one.verdict, one.object) == (Health.WRONG, "pod ns/a")
    assert "no scheduler has said why" in one.message


def test_a_gate_whose_producer_is_gone() -> None:
    gated = pod("c", gate="quantum.braket/ready", labels={names.GROUP_LABEL: "q"})
    one = the(having(pods=Seen((gated,))), Check.ORPHANED_GATES)
    assert one.verdict is Health.WRONG
    assert "no pod of the group q-producer is left" in one.message
    assert one.cure == "kubectl -n ns delete pod/c"
    producer = pod("p", node="n", labels={names.GROUP_LABEL: "q-producer"})
    assert found(having(pods=Seen((gated, producer))), Check.ORPHANED_GATES) == []
    named = pod("d", gate=f"{names.PREFIX}/later", annotations={names.DEPENDS_ON_PRODUCER: "ns/p"})
    assert found(having(pods=Seen((named, producer))), Check.ORPHANED_GATES) == []
    assert "its producer p is gone" in the(having(pods=Seen((named,))), Check.ORPHANED_GATES).message
    theirs = pod("k", gate="kueue.x-k8s.io/admission", labels={names.GROUP_LABEL: "q"})
    assert found(having(pods=Seen((theirs,))), Check.ORPHANED_GATES) == []


def test_a_producer_may_wait_itself_or_be_a_job() -> None:
    def waits(name: str, producer: str, **more: Any) -> Pod:
        notes = {names.DEPENDS_ON_PRODUCER: producer}
        return pod(name, gate="quantum.braket/ready", annotations=notes, **more)

    first, second, third = pod("one", node="n"), waits("two", "one"), waits("three", "two")
    assert found(having(pods=Seen((first, second, third))), Check.ORPHANED_GATES) == []
    alone = waits("a", "both", labels={names.GROUP_LABEL: "both"})
    assert "its producer both is gone" in the(having(pods=Seen((alone,))), Check.ORPHANED_GATES).message
    reason = the(having(pods=Seen((waits("a", "one", made=ago(hours=2)), first))), Check.WAITING_GROUPS)
    assert "waits for producer one to announce its task" in reason.message


def test_annotations_that_mean_nothing_or_nothing_there() -> None:
    misspelt = pod("a", node="n", annotations={f"{names.PREFIX}/duraton": "1h"})
    one = the(having(pods=Seen((misspelt,))), Check.ANNOTATIONS)
    assert f"did you mean {names.DURATION}?" in one.message
    assert one.cure == f"kubectl -n ns annotate pod a {names.PREFIX}/duraton-"
    theirs = pod("b", scheduler="default-scheduler", annotations={names.DURATION: "1h"})
    assert (
        "the scheduler is default-scheduler" in the(having(pods=Seen((theirs,))), Check.ANNOTATIONS).message
    )
    group = Group(namespace="ns", name="g", annotations={f"{names.PREFIX}/wishes": "x"})
    assert the(having(groups=Seen((group,))), Check.ANNOTATIONS).object == "podgroup ns/g"
    known = pod("c", node="n", annotations={names.JOBID: "1", f"{names.PREFIX}/attr-cost": "2"})
    assert found(having(pods=Seen((known,))), Check.ANNOTATIONS) == []
