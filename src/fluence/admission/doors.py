"""Doors: new work is held back until its turn: Jobs are suspended, everything else is gated.

What carries the label `fluxqueue.seen` is left alone, so nothing is held twice.
"""

from __future__ import annotations

from typing import Final

from fluence import names
from fluence.admission.conditions import ANNOTATIONS, LABELS, is_controller, owners, texts
from fluence.admission.edits import POD, TEMPLATE, Place, add_gate, set_entries, set_field
from fluence.admission.expressions import (
    Among,
    Call,
    Convert,
    EachAt,
    Either,
    Equal,
    Every,
    Exists,
    Expr,
    Field,
    If,
    Less,
    ListOf,
    Name,
    Named,
    Not,
    Plus,
    Remainder,
    Times,
    Value,
)
from fluence.admission.rule import DOORS, JOBS, PODS, REPLICATED, AdmissionRule, Site

_CRITICAL: Final = ("system-cluster-critical", "system-node-critical")
_MIRROR: Final = "kubernetes.io/config.mirror"
_CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789-."


def door_rules(site: Site) -> tuple[AdmissionRule, ...]:
    seen = {names.SEEN: Value(names.SEEN_YES)}
    labelled = set_entries(POD, LABELS, seen)
    relabelled = set_entries(TEMPLATE, LABELS, seen)
    selected = set_entries(TEMPLATE, LABELS, {**seen, names.SELECTOR: _selector()})
    is_named = Not(Equal(POD.field("metadata", "name"), Value("")))
    is_free = Not(Exists(owners(), "o", is_controller()))
    off = Every(_is_off(POD), Not(_is_off(TEMPLATE)), is_free)
    passed = set_entries(TEMPLATE, ANNOTATIONS, {names.QUEUE: Value(names.QUEUE_OFF)})
    job = Every(
        _is_in(TEMPLATE),
        Not(POD.field("spec", "suspend", default=False)),  # by its user: its pods are held when it goes on
        Among(POD.field("spec", "managedBy"), texts("", "kubernetes.io/job-controller")),
        # Who else makes a Job may undo what is done to it; its pods are held instead.
        Either(is_free, Exists(owners(), "o", is_controller("CronJob"))),
    )
    pod = Every(
        _is_in(POD),
        Not(POD.has("spec", "nodeName")),  # a gate and a node are refused together
        Not(POD.has(*ANNOTATIONS, _MIRROR)),
        Not(Exists(owners(), "o", is_controller("DaemonSet", "Node"))),
    )
    suspended = set_field(POD, ("spec", "suspend"), Value(True))
    gated = If(is_named, selected, relabelled), add_gate(TEMPLATE, names.GATE_FLUXQUEUE)
    # A Deployment would make its ReplicaSet again and again if its template became another.
    replicated = Every(_is_in(TEMPLATE), is_free)
    work, new = (*JOBS, *REPLICATED), _is_new(site, TEMPLATE)
    taken = _taken(site, TEMPLATE)
    return (
        AdmissionRule("pass-on-opt-out", DOORS, work, new, off, (passed,)),
        AdmissionRule("suspend-job", DOORS, JOBS, new, job, (labelled, relabelled, suspended, taken)),
        AdmissionRule("gate-template", DOORS, REPLICATED, new, replicated, (labelled, *gated, taken)),
        AdmissionRule(
            "gate-pod",
            DOORS,
            PODS,
            _is_new(site, POD),
            pod,
            (labelled, add_gate(POD, names.GATE_FLUXQUEUE), _taken(site, POD)),
        ),
    )


def _is_new(site: Site, at: Place) -> Expr:
    """What is not held yet, and is bound by nobody else's scheduler."""
    return Every(
        *(Not(each.has(*LABELS, names.SEEN)) for each in dict.fromkeys((POD, at))),
        Among(at.field("spec", "schedulerName"), texts("", names.KUBE_SCHEDULER, site.scheduler)),
    )


def _is_in(at: Place) -> Expr:
    """What has not opted out, and is no part of the cluster itself."""
    return Every(
        *(Not(_is_off(each)) for each in dict.fromkeys((POD, at))),
        Not(Among(at.field("spec", "priorityClassName"), texts(*_CRITICAL))),
    )


def _is_off(at: Place) -> Expr:
    return Either(
        *(Equal(at.field(*where, names.QUEUE), Value(names.QUEUE_OFF)) for where in (LABELS, ANNOTATIONS))
    )


def _taken(site: Site, at: Place) -> Expr:
    """Our scheduler's name, unless kube-scheduler shall bind it where we say."""
    delegated = Either(
        Value(site.delegate),
        Equal(at.field(*ANNOTATIONS, names.BIND), Value(names.BIND_KUBE_SCHEDULER)),
        Less(Value(0), Call("size", at.field("spec", "resourceClaims", default=[]))),
    )
    return If(delegated, ListOf(), set_field(at, ("spec", "schedulerName"), Value(site.scheduler)))


def _selector() -> Expr:
    """`<kind>-<name>-<namespace>`; a label has 63 characters, so a longer one ends with a number for it."""
    kind = Call("lowerAscii", Field(Name("request"), ("kind", "kind")))
    namespace = Field(Name("request"), ("namespace",))
    whole = Named("whole", Plus(kind, Value("-"), POD.field("metadata", "name"), Value("-"), namespace))
    letter = Plus(Call("indexOf", Value(_CHARACTERS), (Name("l"),)), Value(2))
    weight = Remainder(Plus(Times(Name("i"), Value(7919)), Value(104_729)), Value(1_000_003))
    letters = EachAt(Call("split", whole, (Value(""),)), "i", "l", Times(letter, weight))
    number = Remainder(Call("sum", letters), Value(999_999_937))
    short = Plus(Call("substring", whole, (Value(0), Value(50))), Value("-"), Convert("string", number))
    return If(Less(Value(63), Call("size", whole)), short, whole)
