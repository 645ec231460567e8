"""What is said about limits: who overruns, who is warned, who is ended."""

from __future__ import annotations

from fluence.messages.rendering import Templates, values
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


LIMITS: Templates = {
    Code.WAITS_FOR_OVERRUN: lambda reason: f"waits for {reason['what']}, which runs {_passed(reason)}",
    Code.WAITS_FOR_UNLIMITED: lambda reason: f"start unknown: waits for {reason['what']}, which has no limit",
    Code.LIMIT_PASSED: _warned,
    Code.ENDED_AT_LIMIT: lambda reason: f"it ran {_passed(reason)}, and is ended",
    Code.NOT_ENDED_AT_LIMIT: lambda reason: (
        f"it runs {_passed(reason)}, and could not be ended yet: {reason['error']}"
    ),
}
