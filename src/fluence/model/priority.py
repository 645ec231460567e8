"""PriorityClass: the number behind a name, which the server writes into pods when they are made."""

from __future__ import annotations

from fluence.model.meta import ObjectMeta, Wire


class PriorityClass(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False
