"""Users: who submitted what, and who may name which queue.

Admission writes the name of the user who creates an object on the object and on its templates, from which
controllers copy it to the objects that they create. An update keeps the name. A validating policy refuses
objects with another name (`guard`), so the scheduler may rely on it. Another policy asks the authorizer
whether a user may use the queue that an object names (`queue_access`).

Objects created by a controller of Kubernetes are left alone: they have the name from their template, never
that of the controller. Operators are not part of Kubernetes, and no policy knows their templates; objects
created by a listed operator have no name, and the scheduler takes it from the object that owns them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fluence import names
from fluence.admission import cel, patch
from fluence.admission.patch import Incoming, Steps
from fluence.admission.rule import (
    ANNOTATIONS,
    JOBS,
    POD,
    PODS,
    REPLICATED,
    TEMPLATE,
    USERS,
    AdmissionRule,
    Condition,
    Edit,
)
from fluence.model.operators import OPERATORS

NAME: Final = "users"
QUEUE_ACCESS: Final = "queue-access"
QUEUE_GROUP: Final = names.PREFIX
QUEUE_VERB: Final = "use"

_CRON_JOBS: Final = ("CronJob",)
_TEMPLATED: Final = (*JOBS, *REPLICATED, "DaemonSet", "ReplicationController")
_CUSTOM: Final = tuple(each.kind for each in OPERATORS)
KINDS: Final = (*PODS, *_TEMPLATED, *_CRON_JOBS, *_CUSTOM)
PLURALS: Final = {
    "CronJob": ("batch", "v1", "cronjobs"),
    "DaemonSet": ("apps", "v1", "daemonsets"),
    "ReplicationController": ("", "v1", "replicationcontrollers"),
    **{each.kind: (each.group, "*", each.plural) for each in OPERATORS},
}
"""The kinds in addition to those of `scopes`."""
GROUP_RESOURCES: Final = {
    "scheduling.k8s.io": ["podgroups", "workloads"],
    "scheduling.x-k8s.io": ["podgroups"],
    "scheduling.volcano.sh": ["podgroups"],
    "scheduling.run.ai": ["podgroups"],
}
"""Groups of pods, whose annotations count if pods and owners have none."""

_JOB_TEMPLATE: Final = ("spec", "jobTemplate")
_PLACES: Final[tuple[tuple[str, Steps, tuple[str, ...]], ...]] = (
    ("object", POD, KINDS),
    ("template", TEMPLATE, _TEMPLATED),
    ("job-template", _JOB_TEMPLATE, _CRON_JOBS),
    ("pod-template", (*_JOB_TEMPLATE, *TEMPLATE), _CRON_JOBS),
)
"""Where a name is written: a word for it, the steps to it, and the kinds that have it."""

# Accounts of Kubernetes itself. kube-controller-manager has one account, or one for each controller.
_KUBERNETES: Final = ("system:kube-controller-manager",)
_KUBERNETES_PREFIXES: Final = ("system:serviceaccount:kube-system:", "system:node:")
_USER: Final = "request.userInfo.username"
_IS_NEW: Final = "request.operation == 'CREATE'"
_IS_KUBERNETES: Final = cel.either(
    f"{_USER} in {cel.listed(_KUBERNETES)}",
    *(f"{_USER}.startsWith({cel.quoted(each)})" for each in _KUBERNETES_PREFIXES),
)


def user_rules(controllers: Sequence[str] = ()) -> tuple[AdmissionRule, ...]:
    """The rules for every place. ``controllers``: accounts of operators."""
    result = []
    for what, at, kinds in _PLACES:
        concerns, key = _concerns(at), (*at, *ANNOTATIONS, names.SUBMITTED_BY)
        name, clear = _name(key, controllers), _clear(key, controllers)
        result.append(AdmissionRule(f"name-{what}", USERS, kinds, concerns, *name))
        result.append(AdmissionRule(f"clear-{what}", USERS, kinds, concerns, *clear))
    return tuple(result)


def _concerns(at: Steps) -> Condition:
    """New objects, and updates that change the name."""
    key = (*at, *ANNOTATIONS, names.SUBMITTED_BY)
    return Condition(
        f"!{_IS_KUBERNETES} && ({_IS_NEW} || {cel.text(*key)} != {_old(key)})",
        lambda incoming: (
            not _is_kubernetes(incoming.user)
            and (incoming.old is None or incoming.text(*key) != patch.text(incoming.old, *key))
        ),
    )


def _is_kubernetes(user: str) -> bool:
    return user in _KUBERNETES or user.startswith(_KUBERNETES_PREFIXES)


def _name(key: Steps, controllers: Sequence[str]) -> tuple[Condition, Edit]:
    """A new object gets the name of its user. An object that has a name keeps it."""
    place = key[:-1]
    new = cel.if_else(f"{_USER} in {cel.listed(controllers)}", "''", _USER)
    wanted_cel = cel.if_else(_IS_NEW, new, _old(key))

    def wanted(incoming: Incoming) -> str:
        if incoming.old is not None:
            return patch.text(incoming.old, *key)
        return "" if incoming.user in controllers else incoming.user

    return (
        Condition(
            f"!({wanted_cel} in ['', {cel.text(*key)}])",
            lambda incoming: wanted(incoming) not in ("", incoming.text(*key)),
        ),
        Edit(
            cel.set_entries(place, {names.SUBMITTED_BY: wanted_cel}),
            lambda incoming: patch.set_entries(incoming, place, {names.SUBMITTED_BY: wanted(incoming)}),
        ),
    )


def _clear(key: Steps, controllers: Sequence[str]) -> tuple[Condition, Edit]:
    """Remove the name from objects that an operator creates: its user wrote the template, which no policy
    protects."""
    return (
        Condition(
            f"{_IS_NEW} && {_USER} in {cel.listed(controllers)} && {cel.has(*key)}",
            lambda incoming: incoming.old is None and incoming.user in controllers and incoming.has(*key),
        ),
        Edit(cel.drop_field(*key), lambda incoming: [patch.remove(key)]),
    )


def _old(key: Steps) -> str:
    return cel.text(*key, of="oldObject")


# -- policies that refuse ------------------------------------------------------------------------------------


def guard(controllers: Sequence[str]) -> dict[str, Any]:
    """The policy that refuses any other name than admission would write. A new object may have no name, so
    that no user is refused while the rules are not in force yet or the webhook does not answer. The object
    then counts for its namespace."""
    given, before = _values(names.SUBMITTED_BY), _values(names.SUBMITTED_BY, of="oldObject")
    is_named = cel.if_else(
        f"{_USER} in {cel.listed(controllers)}",
        "variables.given.all(x, x == '')",
        f"variables.given.all(x, x in ['', {_USER}])",
    )
    # A user may write their own name on an object without one: it is older than this policy.
    is_kept = (
        "variables.given.transformList(i, x, x == variables.before[i]"
        f" || (variables.before[i] == '' && x == {_USER})).all(x, x)"
    )
    kind = "request.kind.kind"
    key = names.SUBMITTED_BY
    return {
        "failurePolicy": "Fail",
        "matchConditions": [{"name": "is-no-controller", "expression": f"!{_IS_KUBERNETES}"}],
        "variables": [
            {"name": "given", "expression": given},
            {"name": "before", "expression": cel.if_else(_IS_NEW, "variables.given", before)},
        ],
        "validations": [
            {
                "expression": f"!({_IS_NEW}) || {is_named}",
                "messageExpression": f"'{key}: a new ' + {kind} + ' has the name of the user who creates "
                f"it, ' + {_USER} + '; leave the annotation out, and admission writes it'",
                "message": f"{key}: it must be the user who creates the object; leave it out",
                "reason": "Forbidden",
            },
            {
                "expression": f"{_IS_NEW} || {is_kept}",
                "messageExpression": f"'{key}: it says who created this ' + {kind} + "
                "', and cannot be changed; leave it as it is'",
                "message": f"{key}: it says who created an object, and cannot be changed; leave it as it is",
                "reason": "Forbidden",
            },
        ],
    }


def queue_access() -> dict[str, Any]:
    """The policy that asks whether the user may use each queue that an object names. Each question is a
    separate expression, because the server limits the cost of each."""
    queues = [_trimmed(*at, *ANNOTATIONS, names.QUEUE) for _, at, _ in _PLACES]
    before = [_trimmed(*at, *ANNOTATIONS, names.QUEUE, of="oldObject") for _, at, _ in _PLACES]
    validations = []
    for index, (_, at, _) in enumerate(_PLACES):
        queue = f"variables.queues[{index}]"
        is_allowed = (
            f"authorizer.group({cel.quoted(QUEUE_GROUP)}).resource('queues').name({queue})"
            f".check({cel.quoted(QUEUE_VERB)}).allowed()"
        )
        validations.append(
            {
                "expression": f"{queue} in ['', {cel.quoted(names.QUEUE_OFF)}]\n"
                f"|| {queue} in variables.before\n|| {is_allowed}",
                "messageExpression": f"'queue ' + {queue} + ': user ' + {_USER} + ' may not use it; ask an "
                f"administrator for a ClusterRole with the verb {QUEUE_VERB} on queues.{QUEUE_GROUP} and the "
                f"resourceName ' + {queue} + ', or name another queue in the annotation {names.QUEUE}'",
                "message": f"{names.QUEUE}: its user may not use this queue",
                "reason": "Forbidden",
            }
        )
        jobspec = cel.text(*at, *ANNOTATIONS, names.JOBSPEC)
        validations.append(
            {
                # Expressions cannot read JSON. The scheduler refuses a jobspec that names another queue than
                # the annotation beside it.
                "expression": f"{queue} != '' || !({jobspec}.contains('queue') || {jobspec}.contains('\\\\'))"
                f" || ({_unchanged(*at, *ANNOTATIONS, names.JOBSPEC)})",
                "message": f"{names.JOBSPEC}: a jobspec that names a queue needs the annotation "
                f"{names.QUEUE} with the same queue beside it",
                "reason": "Forbidden",
            }
        )
    return {
        "failurePolicy": "Fail",
        "matchConditions": [
            {"name": "is-no-controller", "expression": f"!{_IS_KUBERNETES}"},
            {"name": "names-a-queue", "expression": _names_queue()},
        ],
        "variables": [
            {"name": "queues", "expression": f"[{', '.join(queues)}]"},
            {"name": "before", "expression": cel.if_else(_IS_NEW, "['']", f"[{', '.join(before)}]")},
        ],
        "validations": validations,
    }


def _names_queue() -> str:
    keys = (names.QUEUE, names.JOBSPEC)
    return "\n|| ".join(cel.has(*at, *ANNOTATIONS, key) for _, at, _ in _PLACES for key in keys)


def _trimmed(*key: str, of: str = "object") -> str:
    """As the scheduler reads it."""
    return f"{cel.text(*key, of=of)}.trim()"


def _unchanged(*key: str) -> str:
    return f"!({_IS_NEW}) && {cel.text(*key)} == {_old(key)}"


def _values(key: str, *, of: str = "object") -> str:
    """The annotation in every place that the kind of the object has."""

    def values(kind: str | None) -> str:
        texts = [
            cel.text(*at, *ANNOTATIONS, key, of=of) for _, at, kinds in _PLACES if at == POD or kind in kinds
        ]
        return f"[{', '.join(texts)}]"

    kind = "request.kind.kind"
    return cel.if_else(
        f"{kind} == {cel.quoted(_CRON_JOBS[0])}",
        values(_CRON_JOBS[0]),
        cel.if_else(f"{kind} in {cel.listed(_TEMPLATED)}", values(_TEMPLATED[0]), values(None)),
    )
