"""Whoever sees less of a cluster is told less of it, and nothing that is not so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluence import names
from fluence.doctor.diagnose import diagnose
from fluence.doctor.facts import (
    EVERYWHERE,
    QUEUES,
    USERS_NAMES,
    AdmissionFacts,
    Authority,
    Backing,
    Binding,
    Check,
    ClusterFacts,
    Declared,
    EventReport,
    Health,
    Hook,
    Installation,
    LeaseFacts,
    Policy,
    Refusal,
    Replica,
    Seen,
    Space,
    Table,
    Trial,
    exit_code,
)
from fluence.model.external_resources import BASE
from fluence.model.owner import Group
from fluence.model.pod import Pod
from tests.unit.doctor.sample import (
    ADMISSION,
    AUTHORITY,
    HAND_OFF,
    HEALTHY,
    HELD,
    INSTALLED,
    LEASE,
    NOT_HELD,
    NOW,
    VARIABLES,
    ago,
    pod,
)

_NAMES = st.sampled_from(["fluence", "other"])
_PARTS = ("installations", "leases", "reports", "pods", "groups", "replicas")
_ADMISSION = ("policies", "bindings", "hooks", "backings", "tables", "spaces", "refusals", "queue_roles")
_SELECTORS = st.sampled_from([EVERYWHERE, NOT_HELD, HELD])
_SCOPES = st.sampled_from(["pods", "pods-held", "workloads"])
_USERS = st.sampled_from([None, "", "fluence-users", "fluence-users"])
_HAND_OFFS = st.sampled_from([HAND_OFF, "team/fluence-admission"])


@st.composite
def installations(draw: st.DrawFn) -> Installation:
    return replace(
        INSTALLED,
        namespace=draw(st.sampled_from(["fluence-system", "team"])),
        wanted=draw(st.integers(0, 2)),
        ready=draw(st.integers(0, 2)),
        scheduler_name=draw(_NAMES),
        lease=draw(st.booleans()),
        lease_key=draw(st.sampled_from(["fluence-system/fluence", "team/fluence"])),
        image=draw(st.sampled_from(["fluence:1", "fluence:2"])),
        flux_jobs=draw(st.sampled_from([None, True, True, False])),
        users_policy=draw(_USERS),
    )


@st.composite
def leases(draw: st.DrawFn) -> LeaseFacts:
    return replace(
        LEASE,
        namespace=draw(st.sampled_from(["fluence-system", "team"])),
        holder=draw(st.sampled_from(["", "a", "b"])),
        scheduler_name=draw(st.none() | _NAMES),
        renewed=ago(seconds=draw(st.sampled_from([1, 600]))),
        changed=draw(st.sampled_from([None, None, True, False])),
        users_policy=draw(_USERS),
    )


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    return pod(
        draw(st.sampled_from("abcdef")),
        scheduler=draw(st.sampled_from(["fluence", "other", "default-scheduler"])),
        made=ago(minutes=draw(st.sampled_from([1, 100]))),
        node=draw(st.sampled_from([None, None, "n"])),
        gate=draw(st.sampled_from([None, None, *names.GATES, f"{names.PREFIX}/x", "theirs"])),
        labels=draw(st.sampled_from([None, {names.GROUP_LABEL: "g"}, {names.GROUP_LABEL: "g-producer"}])),
        annotations=draw(
            st.sampled_from(
                [None, {names.DURATION: "1h"}, {f"{names.PREFIX}/nonsense": "1"}, {names.GROUP_SIZE: "x"}]
            )
        ),
        told=draw(st.sampled_from(["", "no room."])),
    )


@st.composite
def hooks(draw: st.DrawFn) -> Hook:
    valid, old = AUTHORITY, Authority(ago(days=28), ago(days=-2))
    ended = Authority(ago(days=31), ago(days=1))
    return Hook(
        draw(st.sampled_from(["one", "two"])),
        draw(_SCOPES),
        frozenset({draw(_NAMES)}),
        draw(_SELECTORS),
        draw(st.sampled_from(["s/one", "s/two", ""])),
        draw(st.lists(st.sampled_from([valid, old, ended]), max_size=3).map(tuple)),
        draw(st.booleans()),
    )


@st.composite
def admissions(draw: st.DrawFn) -> AdmissionFacts:
    policies = st.builds(
        Policy,
        st.sampled_from(["a", "b"]),
        _SCOPES,
        _NAMES.map(lambda name: frozenset({name})),
        st.booleans(),
        _SELECTORS,
    )
    bindings = st.builds(Binding, st.sampled_from("xyz"), st.sampled_from(["a", "b"]), _HAND_OFFS, _SELECTORS)
    backings = st.builds(
        Backing,
        st.sampled_from(["s/one", "s/two"]),
        st.booleans(),
        st.integers(0, 2),
        st.sampled_from(["", "s/webhook"]),
        st.integers(0, 2),
        scopes=st.sampled_from([None, ("pods",), ("pods", "pods-held", "workloads")]),
        hands_over=st.sampled_from([None, True, False]),
        parameters=st.none() | _HAND_OFFS,
    )
    tables = st.builds(Table, _HAND_OFFS, st.sampled_from([BASE, VARIABLES]))
    refusals = st.builds(
        Refusal,
        st.sampled_from(["fluence-users", "fluence-queue-access"]),
        st.sampled_from([USERS_NAMES, QUEUES]),
        st.sampled_from(["", "", "it has no binding"]),
        st.sampled_from(["", "", "other validations"]),
        _SELECTORS,
    )
    labels = st.sampled_from([{}, *({names.NAMESPACE_OPT_IN: each} for each in ("enabled", "disabled", "x"))])
    spaces = st.builds(Space, st.sampled_from(["default", "team"]), labels)
    return replace(
        ADMISSION,
        has_hand_offs=draw(st.booleans()),
        has_flux_jobs=draw(st.booleans()),
        policies=draw(unique(policies, by=lambda each: each.name)),
        bindings=draw(unique(bindings, by=lambda each: each.name)),
        hooks=draw(unique(hooks(), by=lambda each: (each.configuration, each.scope))),
        backings=draw(unique(backings, by=lambda each: each.service)),
        tables=draw(unique(tables, by=lambda each: each.key)),
        spaces=draw(unique(spaces, by=lambda each: each.name)),
        declared=draw(
            st.sampled_from([ADMISSION.declared, Declared("a/b", variables=BASE), Declared("a/b", fault="?")])
        ),
        refusals=draw(unique(refusals, by=lambda each: each.name)),
        queue_roles=draw(unique(st.sampled_from(["use-a", "use-b"]), by=lambda each: each)),
        trial=draw(st.sampled_from([ADMISSION.trial, Trial("default", ()), Trial("default", None, "no")])),
    )


def unique(items: Any, *, by: Any) -> Any:
    return st.lists(items, max_size=4, unique_by=by).map(tuple).map(Seen)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterFacts:
    reports = st.builds(
        EventReport, st.sampled_from(["a", "b"]), st.integers(0, 3000).map(lambda s: ago(seconds=s))
    )
    replicas = st.builds(
        Replica, st.sampled_from(["s/a", "s/b"]), st.sampled_from(["fluence:1", "fluence:2"])
    )
    groups = st.sampled_from([Group(namespace="ns", name="g", min_count=2)])
    return replace(
        HEALTHY,
        now=NOW,
        installations=draw(unique(installations(), by=lambda each: each.key)),
        leases=draw(unique(leases(), by=lambda each: each.key)),
        reports=draw(st.lists(reports, max_size=4).map(tuple).map(Seen)),
        pods=draw(unique(pods(), by=lambda each: each.key)),
        groups=draw(unique(groups, by=lambda each: each.key)),
        replicas=draw(unique(replicas, by=lambda each: each.key)),
        admission=draw(admissions()),
    )


@given(clusters(), st.dictionaries(st.sampled_from([*_PARTS, *_ADMISSION]), st.integers(0, 3)))
def test_who_sees_less_is_told_nothing_that_is_not_so(facts: ClusterFacts, hidden: dict[str, int]) -> None:
    """Of some kinds a few objects are still seen. Pods and groups are in one namespace: all or none."""
    whole = ("pods", "groups", "replicas")
    few = {part: 0 if part in whole else kept for part, kept in hidden.items()}

    def hide(of: Any, parts: tuple[str, ...]) -> dict[str, Any]:
        return {
            each: Seen(getattr(of, each).items[: few[each]], "forbidden") for each in parts if each in few
        }

    less = replace(facts.admission, **hide(facts.admission, _ADMISSION))
    full, partial = diagnose(facts), diagnose(replace(facts, **hide(facts, _PARTS), admission=less))
    wrong = {each.check for each in full if each.verdict is Health.WRONG}
    assert {each.check for each in partial if each.verdict is Health.WRONG} <= wrong
    for check in Check:
        verdicts = {each.verdict for each in partial if each.check is check}
        assert verdicts, check
        if verdicts == {Health.OK}:
            assert {each.verdict for each in full if each.check is check} <= {Health.OK}


@given(clusters())
def test_what_is_wrong_has_a_cure(facts: ClusterFacts) -> None:
    for each in diagnose(facts):
        assert each.cure or each.verdict is not Health.WRONG, each


@given(clusters())
def test_a_cluster_of_which_nothing_is_seen_is_never_called_right(facts: ClusterFacts) -> None:
    nothing: dict[str, Any] = dict.fromkeys([*_PARTS, *_ADMISSION], Seen((), "forbidden"))
    blind = replace(facts.admission, **{each: nothing[each] for each in _ADMISSION})
    findings = diagnose(replace(facts, **{each: nothing[each] for each in _PARTS}, admission=blind))
    assert exit_code(findings) == 2
