"""The policies that refuse, as the doctor sees them: who submitted what, and who may use a queue."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from fluence.admission.manifests import refusing_policies
from fluence.admission.scopes import AdmissionOptions
from fluence.doctor.diagnose import diagnose
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
    Trial,
)
from fluence.doctor.refusals import gives_queues, read_refusal
from fluence.model.meta import LabelSelector, Requirement
from tests.unit.doctor.sample import (
    ACCESS,
    INSTALLED,
    LEASE,
    NAMES,
    VARIABLES,
    admitting,
    ago,
    found,
    having,
    the,
)

UPGRADE = "helm upgrade fluence deploy/helm/fluence -n fluence-system --reuse-values"
USERS_ON, ACCESS_ON = (f"{UPGRADE} --set admission.{each}=true" for each in ("users", "queueAccess"))
MADE = "2026-03-01T11:00:00Z"


def rendered(**options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A policy of this release and its binding, as a server returns them."""
    policy, binding = copy.deepcopy(refusing_policies(AdmissionOptions(handlers=(), **options)))
    for each in (policy, binding):
        each["metadata"]["creationTimestamp"] = MADE
    policy["spec"]["matchConstraints"] |= {"matchPolicy": "Equivalent", "objectSelector": {}}
    return policy, [binding]


def users_policy(**options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return rendered(users=True, **options)


def read(policy: dict[str, Any], bindings: list[dict[str, Any]]) -> Refusal:
    one = read_refusal(policy, bindings)
    assert one is not None
    return one


# -- reading -------------------------------------------------------------------------------------------------


def test_policies_of_this_release_are_in_force_whatever_operators_a_site_has() -> None:
    for options in ({}, {"controllers": ("system:serviceaccount:ops:job-operator", "o'brien")}):
        one = read(*users_policy(**options))
        assert (one.name, one.protects, one.flaw) == ("fluence-users", USERS_NAMES, "")
        assert one.differs == ""
    assert read(*rendered(queue_access=True)) == replace(ACCESS, selector=read(*users_policy()).selector)


def test_another_policy_is_none_of_these() -> None:
    other = {"metadata": {"name": "fluence-pods-warnings"}, "spec": {"validations": [{"expression": "true"}]}}
    assert read_refusal(other, []) is None


@pytest.mark.parametrize("form", ["users", "queue_access"])
def test_what_keeps_a_policy_from_refusing(form: str) -> None:
    policy, (binding,) = rendered(**{form: True})
    assert "no ValidatingAdmissionPolicyBinding" in read(policy, []).flaw
    audits = copy.deepcopy(binding)
    audits["spec"]["validationActions"] = ["Audit"]
    assert read(policy, [audits]).flaw == "its binding does not have the action Deny"
    ignores = copy.deepcopy(policy)
    ignores["spec"]["failurePolicy"] = "Ignore"
    assert read(ignores, [binding]).flaw == "its failurePolicy is not Fail"


def test_the_scheduler_reads_the_binding_of_the_same_name_without_restrictions() -> None:
    policy, (binding,) = users_policy()
    elsewhere = copy.deepcopy(binding)
    elsewhere["metadata"]["name"] = "another"
    assert "of the same name" in read(policy, [elsewhere]).flaw
    restricted = copy.deepcopy(binding)
    restricted["spec"]["matchResources"] = {"namespaceSelector": {"matchLabels": {"team": "a"}}}
    assert read(policy, [restricted]).flaw == "its binding restricts it with matchResources"
    asked, (where,) = rendered(queue_access=True)
    where["metadata"]["name"] = "another"
    assert read(asked, [where]).flaw == ""  # the server does not mind


def test_what_another_version_has_otherwise() -> None:
    policy, bindings = users_policy()
    older = copy.deepcopy(policy)
    older["spec"]["validations"].pop()
    older["spec"]["matchConstraints"]["resourceRules"] = older["spec"]["matchConstraints"]["resourceRules"][
        :3
    ]
    differs = read(older, bindings).differs
    assert differs.startswith("other validations, no rule for ")
    assert "jobsets" in differs
    folded = copy.deepcopy(policy)
    for each in folded["spec"]["validations"]:
        each["expression"] = each["expression"].replace(" || ", "\n|| ")
    assert read(folded, bindings).differs == ""


def test_roles_that_give_the_right_to_use_queues() -> None:
    def role(**rule: list[str]) -> dict[str, Any]:
        return {"rules": [{"apiGroups": ["fluence.flux-framework.org"], "resources": ["queues"], **rule}]}

    assert gives_queues(role(verbs=["use"]))
    assert gives_queues(role(verbs=["get", "use"], resourceNames=["physics"]))
    assert not gives_queues(role(verbs=["get"]))
    assert not gives_queues(role(verbs=["*"]))  # who may do everything relies on nothing
    assert not gives_queues({"rules": None})


# -- who submitted what --------------------------------------------------------------------------------------


def refusing(*found: Refusal, **changes: Any) -> ClusterFacts:
    return admitting(refusals=Seen(found), **changes)


def users(facts: ClusterFacts) -> DoctorFinding:
    return the(facts, Check.USERS_POLICY)


def test_users_count_where_the_policy_is_in_force() -> None:
    (one,) = [each for each in diagnose(having()) if each.check is Check.USERS_POLICY]
    assert (one.verdict, one.object) == (Health.OK, "policy fluence-users")


def test_a_policy_that_is_not_there_not_in_force_or_another() -> None:
    absent = users(refusing(ACCESS))
    assert (absent.verdict, absent.object, absent.cure) == (Health.WRONG, "policy fluence-users", USERS_ON)
    assert absent.message.endswith("limits per user and shares count namespaces instead of users")
    flaw = users(refusing(replace(NAMES, flaw="it has no ValidatingAdmissionPolicyBinding"), ACCESS))
    assert (flaw.verdict, flaw.cure) == (Health.WRONG, USERS_ON)
    assert flaw.message.startswith("it has no ValidatingAdmissionPolicyBinding: ")
    other = users(refusing(replace(ACCESS, name="fluence-users")))
    assert "does not protect who submitted what" in other.message


def test_a_policy_of_another_version_is_a_warning() -> None:
    one = users(refusing(replace(NAMES, differs="no rule for rayjobs"), ACCESS))
    assert (one.verdict, one.cure) == (Health.WARN, USERS_ON)
    assert "of another version (no rule for rayjobs)" in one.message


def test_names_that_nothing_writes() -> None:
    untold = Trial("default", tuple(VARIABLES))
    one = users(admitting(trial=untold))
    assert (one.verdict, one.cure) == (Health.WARN, USERS_ON)
    assert "nothing writes on new pods in default who created them" in one.message
    assert found(admitting(trial=Trial("default", None, "forbidden")), Check.USERS_POLICY) == []
    elsewhere = LabelSelector(match_expressions=[Requirement(key="team", operator="Exists")])
    assert found(refusing(replace(NAMES, selector=elsewhere), ACCESS, trial=untold), Check.USERS_POLICY) == []


def test_without_the_setting_the_policy_is_not_needed() -> None:
    facts = having(
        installations=Seen((replace(INSTALLED, users_policy=""),)),
        leases=Seen((replace(LEASE, users_policy=""),)),
    )
    facts = replace(facts, admission=refusing().admission)
    assert found(facts, Check.USERS_POLICY) == []


def test_the_scheduler_that_leads_knows_its_settings_better_than_its_deployment() -> None:
    one = users(having(installations=Seen((replace(INSTALLED, users_policy=""),))))
    assert (one.verdict, one.object) == (Health.WARN, "deployment fluence-system/fluence")
    assert one.cure == "kubectl -n fluence-system rollout restart deployment/fluence"
    gone = having(leases=Seen((replace(LEASE, renewed=ago(hours=1), changed=False),)))
    assert found(gone, Check.USERS_POLICY) == []


def test_what_cannot_be_read_is_said_of_the_users_policy() -> None:
    older = having(leases=Seen((replace(LEASE, users_policy=None),)))
    assert users(older).verdict is Health.UNSEEN
    hidden = admitting(refusals=Seen((), "validatingadmissionpolicies cannot be read: forbidden"))
    assert users(hidden).verdict is Health.UNSEEN
    nobody = having(installations=Seen((), "forbidden"), leases=Seen((), "forbidden"))
    assert users(nobody).verdict is Health.UNSEEN


def test_the_cure_without_helm_applies_the_policies_and_names_the_setting() -> None:
    by_hand = Seen((replace(INSTALLED, release="", users_policy="mine"),))
    facts = replace(
        refusing(ACCESS), installations=by_hand, leases=Seen((replace(LEASE, users_policy="mine"),))
    )
    assert users(facts).cure == (
        "fluence admission render --users -n fluence-system | kubectl apply -f -; "
        "then set users-policy: fluence-users and start the scheduler again"
    )


# -- who may use a queue -------------------------------------------------------------------------------------


def test_roles_that_nobody_asks_about() -> None:
    one = the(refusing(NAMES), Check.QUEUE_ACCESS)
    assert (one.verdict, one.cure) == (Health.WARN, ACCESS_ON)
    assert one.message.endswith("the roles use-queue-physics have no effect")
    assert found(refusing(NAMES, queue_roles=Seen()), Check.QUEUE_ACCESS) == []
    hidden = the(refusing(NAMES, queue_roles=Seen((), "forbidden")), Check.QUEUE_ACCESS)
    assert hidden.verdict is Health.UNSEEN
    unread = the(admitting(refusals=Seen((), "forbidden")), Check.QUEUE_ACCESS)
    assert unread.verdict is Health.UNSEEN


def test_a_policy_of_queues_that_is_not_in_force_or_of_another_version() -> None:
    one = the(refusing(NAMES, replace(ACCESS, flaw="its failurePolicy is not Fail")), Check.QUEUE_ACCESS)
    assert (one.verdict, one.object, one.cure) == (Health.WRONG, "policy fluence-queue-access", ACCESS_ON)
    older = the(refusing(NAMES, replace(ACCESS, differs="other validations")), Check.QUEUE_ACCESS)
    assert (older.verdict, older.cure) == (Health.WARN, ACCESS_ON)


def test_a_policy_for_other_namespaces_than_those_looked_at_does_not_count() -> None:
    only = LabelSelector(match_labels={"team": "a"})
    broken = Refusal("theirs", QUEUES, "its failurePolicy is not Fail", selector=only)
    assert found(refusing(NAMES, ACCESS, broken), Check.QUEUE_ACCESS) == []
    there = refusing(NAMES, ACCESS, broken, spaces=Seen((Space("a", {"team": "a"}),)))
    assert the(there, Check.QUEUE_ACCESS).object == "policy theirs"
