"""Who submitted a gang: what the annotation says, when it counts, and whom limits and shares count by it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.meta import LabelSelector, ObjectMeta, Requirement
from fluence.model.owner import Deployment, Job, Owner, PodTemplate, ReplicaSet
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.gangs.submitters import (
    MAX_BYTES,
    NameGuard,
    NamePolicy,
    NamePolicyBinding,
    name_guard,
    submitter,
)
from fluence.schedule.queueing.placeholder import placeholder
from tests.unit.schedule import kit
from tests.unit.schedule.test_cluster_queues import DEFAULT, SECOND, World, member, namespace, queue

T0 = int(kit.T0.timestamp() * 1000)
HOUR = 3_600
NOT_SYSTEM = LabelSelector(
    match_expressions=[
        Requirement(key=names.NAMESPACE_NAME, operator="NotIn", values=["kube-system"]),
        Requirement(key="team", operator="NotIn", values=["others"]),
    ]
)
GUARD = NameGuard(T0 - HOUR * SECOND, NOT_SYSTEM)


def by(user: str) -> dict[str, str]:
    return {names.SUBMITTED_BY: user}


def owned(kind: type[Owner], user: str = "", *, age: int = 0, above: Owner | None = None) -> Owner:
    """An owner with this name on it and in its template."""
    name = f"{kind.kind.lower()}-1"
    notes = by(user) if user else None
    template = PodTemplate(metadata=ObjectMeta(annotations=notes))
    made = kit.owner(name, kind=kind, annotations=notes, parent=above, template=template)
    meta = replace(made.metadata, creation_timestamp=kit.T0 - timedelta(seconds=age))
    return replace(made, metadata=meta)


class TestTheName:
    def test_a_pod_says_who_created_it(self) -> None:
        assert submitter(kit.pod("a", annotations=by("alice")), (), GUARD) == "alice"
        assert submitter(kit.pod("a"), (), GUARD) == ""

    def test_what_is_older_than_the_policy_may_say_anything(self) -> None:
        assert submitter(kit.pod("a", annotations=by("bob"), age=HOUR + 1), (), GUARD) == ""

    def test_a_template_that_is_older_gives_its_pods_no_name(self) -> None:
        job = owned(Job, "bob", age=2 * HOUR)
        assert submitter(kit.pod("a", annotations=by("bob"), owner=job), (job,), GUARD) == ""

    def test_a_pod_that_names_an_older_owner_keeps_the_name_that_admission_wrote(self) -> None:
        for job in (owned(Job, age=2 * HOUR), owned(Job, "bob", age=2 * HOUR)):
            assert submitter(kit.pod("a", annotations=by("alice"), owner=job), (job,), GUARD) == "alice"

    def test_what_an_operator_creates_is_its_users(self) -> None:
        job_set = owned(Deployment, "alice")
        job = owned(ReplicaSet, above=job_set)
        assert submitter(kit.pod("a", owner=job), (job, job_set), GUARD) == "alice"

    def test_a_placeholder_is_its_owners(self) -> None:
        job = owned(Job, "alice")
        assert submitter(placeholder(job, 0), (job,), GUARD) == "alice"
        template = PodTemplate(metadata=ObjectMeta(annotations=by("bob")))  # as in an operator's object
        forged = replace(job, spec=replace(job.spec, template=template))
        assert submitter(placeholder(forged, 0), (forged,), GUARD) == "alice"

    def test_a_name_that_a_controller_copied_from_an_older_owner_does_not_count(self) -> None:
        deployment = owned(Deployment, "bob", age=2 * HOUR)
        copied = owned(ReplicaSet, "bob", above=deployment)
        assert submitter(kit.pod("a", owner=copied), (copied, deployment), GUARD) == ""

    def test_a_long_name_is_shortened_and_stays_one_of_its_own(self) -> None:
        one, other = (
            submitter(kit.pod("a", annotations=by("ü" * 400 + end)), (), GUARD) for end in ("1", "2")
        )
        assert one != other
        assert max(len(each.encode()) for each in (one, other)) <= MAX_BYTES


def policy(**spec: Any) -> NamePolicy:
    found = {
        "metadata": {"name": "users", "creationTimestamp": "2026-09-01T10:00:00Z"},
        "spec": {"failurePolicy": "Fail", "matchConstraints": {"namespaceSelector": {}}, **spec},
    }
    return _read(found, NamePolicy)


def binding(**spec: Any) -> NamePolicyBinding:
    found = {
        "metadata": {"name": "users", "creationTimestamp": "2026-09-01T11:00:00Z"},
        "spec": {"policyName": "users", "validationActions": ["Deny"], **spec},
    }
    return _read(found, NamePolicyBinding)


def _read(found: Any, kind: type[Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(found), type=kind)


class TestThePolicy:
    def test_it_counts_from_shortly_after_the_later_of_policy_and_binding(self) -> None:
        guard = name_guard(policy(), binding())
        assert guard is not None
        assert guard.since == T0 - HOUR * SECOND + 10 * SECOND

    @pytest.mark.parametrize(
        ("made", "bound"),
        [
            (None, binding()),
            (policy(), None),
            (policy(failurePolicy="Ignore"), binding()),
            (policy(), binding(validationActions=["Warn", "Audit"])),
            (policy(), binding(policyName="another")),
            (policy(), binding(matchResources={"resourceRules": []})),
        ],
    )
    def test_one_that_does_not_refuse_everywhere_is_none(self, made: Any, bound: Any) -> None:
        assert name_guard(made, bound) is None

    def test_it_covers_the_namespaces_that_it_selects(self) -> None:
        assert GUARD.covers("a", {})
        assert not GUARD.covers("kube-system", {})
        assert not GUARD.covers("a", {"team": "others"})
        # The label that the server writes is not to be forged.
        assert not GUARD.covers("kube-system", {names.NAMESPACE_NAME: "a"})


def world(*objects: Any, guard: NameGuard | None = GUARD) -> World:
    found = World(DEFAULT, queue("physics", perUser={"running": 1}), guard=guard)
    if objects:
        found.put(*objects)
    return found


def work(name: str, user: str = "", **more: Any) -> Pod:
    return member(name, "physics", annotations=by(user) if user else {}, **more)


class TestLimitsAndShares:
    def test_each_user_of_a_namespace_has_a_limit_of_their_own(self) -> None:
        w = world(*(work(f"{user}-{number}", user) for user in ("alice", "bob") for number in range(2)))
        assert w.bound == {"alice-0", "bob-0"}
        assert w.told["bob-1"].startswith("Waiting for queue physics: bob has jobs 1 of 1 in use")

    def test_a_user_has_one_limit_in_all_namespaces(self) -> None:
        w = world(work("a", "alice", namespace="one"), work("b", "alice", namespace="two"))
        assert len(w.bound) == 1

    def test_service_accounts_count_together_for_their_namespace(self) -> None:
        # An administrator of a namespace creates accounts and gives them roles there.
        made = [f"system:serviceaccount:default:sa-{number}" for number in range(3)]
        w = world(*(work(f"p{number}", user) for number, user in enumerate(made)), work("unnamed"))
        assert len(w.bound) == 1
        w.put(work("ci", "system:serviceaccount:ci:pipeline"), work("alice", "alice"))
        assert len(w.bound) == 3
        (record,) = (each for each in w.scheduler.state.queue.records.values() if "pod:ci" in each.key)
        assert (record.job.user, record.job.payer) == ("system:serviceaccount:ci:pipeline", "ci")

    def test_work_without_a_name_counts_for_its_namespace(self) -> None:
        w = world(work("a"), work("b"), work("c", "alice"), work("d", "alice", age=2 * HOUR))
        assert len(w.bound) == 2
        assert "c" in w.bound

    def test_without_the_policy_names_open_no_second_quota(self) -> None:
        w = world(*(work(f"p{number}", f"user-{number}") for number in range(4)), guard=None)
        assert len(w.bound) == 1

    def test_where_the_policy_does_not_apply_names_open_no_second_quota(self) -> None:
        pods = [work(f"p{number}", f"user-{number}", namespace="kube-system") for number in range(4)]
        assert len(world(*pods).bound) == 1

    def test_shares_are_those_of_users(self) -> None:
        w = world(work("a", "alice"), work("b", "bob"))
        w.wait(30 * SECOND)
        assert set(w.status("physics")["usage"]["users"]) == {"alice", "bob"}

    def test_jobs_are_shown_and_recorded_with_the_user(self) -> None:
        w = world(work("a", "alice", namespace="one"), work("b", "alice", namespace="two"))
        records = w.scheduler.state.queue.records.values()
        assert {record.job.user for record in records} == {"alice"}
        assert {record.job.account for record in records} == {"one", "two"}

    def test_a_restart_counts_as_before(self) -> None:
        w = world(work("a-0", "alice"), work("b-0", "bob"))
        twin = world(*w.objects.values())
        twin.put(work("a-1", "alice"), work("c-0", "carol"))
        assert twin.bound == {"a-0", "b-0", "c-0"}

    def test_the_policy_comes_and_goes(self) -> None:
        w = world(*(work(user, user) for user in ("alice", "bob", "carol")), guard=None)
        assert len(w.bound) == 1
        w.scheduler.set_guard(GUARD)
        w.wait(SECOND)
        assert len(w.bound) == 3
        w.scheduler.set_guard(None)
        w.put(work("dave", "dave"))
        assert len(w.bound) == 3

    def test_a_namespace_that_leaves_the_policy_counts_by_itself(self) -> None:
        w = world(namespace("default"))
        w.put(work("alice", "alice"))
        w.put(namespace("default", team="others"))
        w.put(work("bob", "bob"), work("carol", "carol"))
        assert len(w.bound) == 2  # alice started by herself, then one of the namespace


class TestGangs:
    def test_a_pod_of_another_user_is_no_part_of_a_gang(self) -> None:
        gang: Any = {"labels": {names.GROUP_LABEL: "g"}}
        size = {names.GROUP_SIZE: "2"}
        pods = [kit.pod(user, annotations=by(user) | size, **gang) for user in ("alice", "bob")]
        w = world(*pods)
        assert not w.bound
        made = w.scheduler.state.groups.gang("default/g")
        assert made is not None
        assert made.fault == Reason.of(Code.DIFFERENT_SUBMITTERS, users=("alice", "bob"))
        assert "a group counts for one user" in w.told["alice"]

    def test_service_accounts_of_one_namespace_may_share_a_gang(self) -> None:
        gang: Any = {"labels": {names.GROUP_LABEL: "g"}}
        size = {names.GROUP_SIZE: "2"}
        users = [f"system:serviceaccount:spark:{name}" for name in ("driver", "executor")]
        w = world(*(kit.pod(each[-6:], annotations=by(each) | size, **gang) for each in users))
        assert len(w.bound) == 2

    def test_pods_without_a_name_join_the_gang_of_a_user(self) -> None:
        gang: Any = {"labels": {names.GROUP_LABEL: "g"}}
        size = {names.GROUP_SIZE: "2"}
        w = world(
            kit.pod("a", annotations=by("alice") | size, **gang), kit.pod("b", annotations=size, **gang)
        )
        assert w.bound == {"a", "b"}
        assert {record.job.payer for record in w.scheduler.state.queue.records.values()} == {"alice"}
