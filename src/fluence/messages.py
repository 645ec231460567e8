"""The text of every reason, made at the edge: conditions, events, logs and the programs.

`text` is the only way from a `Reason` to English. A template names the parameters of its code; where a plain
template will not do, a function makes the text.
"""

from __future__ import annotations

from collections.abc import Callable

from fluence.model.reason import Code, Reason

_Template = str | Callable[[Reason], str]

TEMPLATES: dict[Code, _Template] = {
    Code.QUEUED_BEHIND_OTHERS: "jobs in front of it hold what it needs",
}


def text(reason: Reason) -> str:
    """What a user is told."""
    template = TEMPLATES[reason.code]
    if callable(template):
        return template(reason)
    return template.format_map({key: _shown(value) for key, value in reason.params})


def _shown(value: object) -> object:
    return text(value) if isinstance(value, Reason) else value
