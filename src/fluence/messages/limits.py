"""What is said about limits: who overruns, who is warned, who is ended."""

from __future__ import annotations

from fluence.messages.rendering import Templates, all_of, count, values
from fluence.messages.times import stamp
from fluence.model.reason import Code, Reason
from fluence.units import spell_duration


def _passed(reason: Reason) -> str:
    limit, since = values(reason)["limit"], values(reason)["since"]
    return f"past its limit of {spell_duration(limit)} since {stamp(since)}"


def _warned(reason: Reason) -> str:
    ends = values(reason)["ends"]
    then = "nothing ends it" if ends is None else f"it will be ended at {stamp(ends)}"
    return f"it runs {_passed(reason)}: {then}"


def _holder(reason: Reason) -> str:
    told = values(reason)
    more = f" and {told['more']} more of its group" if told["more"] else ""
    return f"{_word(told['kind'])} {told['namespace']}/{told['name']}{more}"


def _holders(reason: Reason, one: str, several: str) -> str:
    """Those of other namespaces: `1 pod of another namespace that has no limit`."""
    kinds = values(reason)["holders"]
    shown = all_of(tuple(count(number, _word(kind)) for kind, number in kinds))
    if sum(number for _, number in kinds) == 1:
        return f"{shown} of another namespace that {one}"
    return f"{shown} of other namespaces that {several}"


def _word(kind: str) -> str:
    return "pod" if kind == "Pod" else kind


LIMITS: Templates = {
    Code.WAITS_FOR_OVERRUN: lambda reason: f"waits for {_holder(reason)}, which runs {_passed(reason)}",
    Code.WAITS_FOR_OVERRUN_OF_OTHERS: lambda reason: (
        f"waits for {_holders(reason, 'runs past its limit', 'run past their limits')}"
    ),
    Code.WAITS_FOR_UNLIMITED: lambda reason: (
        f"start unknown: waits for {_holder(reason)}, which has no limit"
    ),
    Code.WAITS_FOR_UNLIMITED_OF_OTHERS: lambda reason: (
        f"start unknown: waits for {_holders(reason, 'has no limit', 'have no limit')}"
    ),
    Code.LIMIT_PASSED: _warned,
    Code.ENDED_AT_LIMIT: lambda reason: f"it ran {_passed(reason)}, and is ended",
    Code.NOT_ENDED_AT_LIMIT: lambda reason: (
        f"it runs {_passed(reason)}, and could not be ended yet: {reason['error']}"
    ),
}
