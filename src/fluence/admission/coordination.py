"""Coordination: a group that shares a quantum computer, split into its producer and those that wait.

The pod with index 0 submits; it is in a group of its own, `<group>-producer`. The others ask for no device
and wait behind a gate until its task is announced. A policy knows one object, so who is first must be on the
pod (an index), and so must be how many there are: a Job says it to its pods when it is made.
"""

from __future__ import annotations

from typing import Final

from fluence import names
from fluence.admission.conditions import (
    ANNOTATIONS,
    LABELS,
    first,
    is_controller,
    is_ours,
    owners,
)
from fluence.admission.edits import (
    POD,
    TEMPLATE,
    Place,
    add_gate,
    add_variables,
    container_asks,
    drop_field,
    drop_resources,
    exists_container,
    set_entries,
    set_field,
)
from fluence.admission.expressions import (
    Convert,
    Each,
    Equal,
    Every,
    Expr,
    Field,
    If,
    Less,
    ListOf,
    MapOf,
    Matches,
    Name,
    Named,
    Not,
    Plus,
    Value,
)
from fluence.admission.hand_off import from_annotation
from fluence.admission.rule import PODS, QUANTUM, AdmissionRule, Site, Warn

SHARED: Final = "shared"
QUANTUM_RESOURCES: Final = tuple(f"{names.DEVICE_PREFIX}{each}" for each in ("qpu", "qubit"))
_SUFFIX: Final = "-producer"
_LONGEST: Final = 63 - len(_SUFFIX)
_READY: Final = names.GATES[0]
_NUMBER: Final = "[1-9][0-9]{0,5}"
ROLE_VARIABLE: Final = "FLUENCE_COORDINATION_ROLE"
TASK_VARIABLE: Final = "FLUENCE_QUANTUM_JOB_ID"


def coordination_rules(site: Site) -> tuple[AdmissionRule, ...]:
    splits = Named(
        "splits",
        Every(
            _is_shared(),
            Equal(_role(), Value("")),
            Not(POD.has("spec", "schedulingGroup")),
            Not(POD.has("spec", "workloadRef")),
            Matches(_index(), "[0-9]{1,9}"),
            Matches(_size(POD), _NUMBER),
            Less(Value(1), Convert("int", _size(POD))),
            Matches(_group(), f"[A-Za-z0-9]([A-Za-z0-9._-]{{0,{_LONGEST - 2}}}[A-Za-z0-9])?"),
        ),
    )
    leads = Equal(Convert("int", _index()), Value(0))
    return (
        # A pod does not know how many its Job makes, so the Job says it when it is made.
        *(_sized(site, kind) for kind in ("Job", "StatefulSet")),
        AdmissionRule("split-producer", QUANTUM, PODS, is_ours(site), Every(splits, leads), _producer()),
        AdmissionRule("split-consumer", QUANTUM, PODS, is_ours(site), Every(splits, Not(leads)), _consumer()),
    )


def _producer() -> tuple[Expr, ...]:
    return (
        set_entries(POD, LABELS, {names.GROUP_LABEL: Plus(_group(), Value(_SUFFIX))}),
        set_entries(
            POD, ANNOTATIONS, {names.COORDINATION_ROLE: Value("producer"), names.GROUP_SIZE: Value("1")}
        ),
        add_variables(ListOf(Value(ROLE_VARIABLE)), lambda name: _plain(name, "producer")),
    )


def _consumer() -> tuple[Expr, ...]:
    def entry(name: Expr) -> Expr:
        task = from_annotation(name, Value(names.QUANTUM_JOB_ID))
        return If(Equal(name, Value(ROLE_VARIABLE)), _plain(name, "consumer"), task)

    unclassed = Equal(POD.field("spec", "priorityClassName"), Value(""))
    classed = Plus(
        set_field(POD, ("spec", "priorityClassName"), Value(names.QUANTUM_CLASS)),
        drop_field(
            POD, "spec", "priority"
        ),  # that of no class, which the server gave it; it computes it anew
    )
    return (
        set_entries(POD, LABELS, {names.GROUP_LABEL: _group()}),
        set_entries(
            POD,
            ANNOTATIONS,
            {
                names.COORDINATION_ROLE: Value("consumer"),
                names.GROUP_SIZE: Convert("string", Plus(Convert("int", _size(POD)), Value(-1))),
                names.DEPENDS_ON_KIND: Value("quantum-submit"),
                names.DEPENDS_ON_PRODUCER: Plus(_group(), Value(_SUFFIX)),
                names.DEPENDS_ON_GATE: Value(_READY),
            },
        ),
        add_gate(POD, _READY),
        If(unclassed, classed, ListOf()),
        drop_resources(QUANTUM_RESOURCES),
        add_variables(ListOf(Value(ROLE_VARIABLE), Value(TASK_VARIABLE)), entry),
    )


def _sized(site: Site, kind: str) -> AdmissionRule:
    """The size of a shared group on the template of whatever makes its pods."""
    said = _size(POD)  # on the Job itself
    if kind == "Job":
        # The server makes it 1 where it is not said, whatever the completions are.
        at_once = POD.field("spec", "parallelism", default=1)
        completions = POD.field("spec", "completions", default=0)
        fewer = Every(POD.has("spec", "completions"), Less(completions, at_once))
        counted: Expr = If(fewer, completions, at_once)
    else:
        counted = POD.field("spec", "replicas", default=1)
    size = If(Matches(said, _NUMBER), said, Convert("string", counted))
    when = Every(
        Equal(TEMPLATE.field(*ANNOTATIONS, names.COORDINATION), Value(SHARED)),
        Equal(_size(TEMPLATE), Value("")),
    )
    edit = set_entries(TEMPLATE, ANNOTATIONS, {names.GROUP_SIZE: size})
    return AdmissionRule(
        f"size-shared-{kind.lower()}", QUANTUM, (kind,), is_ours(site, TEMPLATE), when, (edit,)
    )


def _is_shared() -> Expr:
    return Named(
        "shared",
        Every(
            Equal(POD.field(*ANNOTATIONS, names.COORDINATION), Value(SHARED)),
            Not(POD.has("spec", "nodeName")),  # a gate and a node are refused together
            exists_container(container_asks(QUANTUM_RESOURCES)),
        ),
    )


def _role() -> Expr:
    return POD.field(*ANNOTATIONS, names.COORDINATION_ROLE)


def _index() -> Expr:
    keys = (names.COMPLETION_INDEX, names.POD_INDEX)
    return Named("index", first(*(POD.field(*where, key) for key in keys for where in (ANNOTATIONS, LABELS))))


def _size(at: Place) -> Expr:
    """As `schedule.group_labels.declared_size` reads it: annotations first."""
    said = first(*(at.field(*where, key) for where in (ANNOTATIONS, LABELS) for key in names.GROUP_SIZES))
    return Named("size" if at == POD else "templateSize", said)


def _group() -> Expr:
    """The name by label or annotation, else that of the Job or StatefulSet that made the pod."""
    given = [POD.field(*where, key) for where in (LABELS, ANNOTATIONS) for key in names.GROUP_NAMES]
    owner = Each(owners(), "o", Field(Name("o"), ("name",)), is_controller("Job", "StatefulSet"))
    return Named("group", first(*given, Convert("string", Field(owner, (0,)))))


def _plain(name: Expr, value: str) -> Expr:
    return MapOf((("name", name), ("value", Value(value))))


def coordination_warnings(site: Site) -> tuple[Warn, ...]:
    left = Every(is_ours(site), _is_shared(), Equal(_role(), Value("")))
    message = (
        f"{names.COORDINATION}: shared has no effect on this pod: it needs an index (an Indexed Job or a "
        f"StatefulSet), a group of at most 54 characters and a {names.GROUP_SIZE} over 1; it starts by itself"
    )
    return (Warn("not-shared", QUANTUM, PODS, left, message),)
