"""The Queue object of the API server: its spec from the administrator, and its status from the scheduler.

`fluence.model.queue_documents` parses the spec as strictly as a file. Only the scheduler and other accounts
with the right to write ``queues/status`` can change the status; its numbers are checked nevertheless.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fluence.model import queue_documents
from fluence.model.document import JsonValue
from fluence.model.meta import KubeObject, ObjectMeta
from fluence.model.queues import Queue
from fluence.units import parse_rfc3339, rfc3339

MAX_USERS: Final = 500  # of one queue whose usage is kept; the usage of others is kept as a sum
OTHERS: Final = ""  # the name of that sum
MAX_PREEMPTED: Final = 256  # controllers per queue whose preempted pods are counted
_MAX_USAGE: Final = 1e15
_MAX_COUNT: Final = 1_000_000


class QueueObject(KubeObject, frozen=True):
    """A Queue. Spec and status are unparsed, as the server sent them."""

    kind: str = queue_documents.KIND
    spec: Any = None
    status: Any = None

    @classmethod
    def of(cls, queue: Queue) -> QueueObject:
        """The object of a queue, as on a server."""
        document = queue_documents.to_value(queue)
        meta = ObjectMeta(name=queue.name, uid=f"queue-{queue.name}", generation=1)
        return cls(metadata=meta, spec=document["spec"])

    @property
    def name(self) -> str:
        return self.metadata.name

    def queue(self) -> Queue:
        """The parsed queue; raises `queue_documents.InvalidQueue`."""
        return self._read(self.spec)

    def last_in_force(self) -> Queue | None:
        """The spec that was in force when the scheduler wrote the status: an earlier one, or the current one.
        None: no spec was, or it cannot be parsed."""
        status = self.status if isinstance(self.status, Mapping) else {}
        try:
            return self._read(status.get("inForce", self.spec))
        except queue_documents.InvalidQueue:
            return None

    def _read(self, spec: object) -> Queue:
        return queue_documents.read(
            {
                "apiVersion": queue_documents.API_VERSION,
                "kind": queue_documents.KIND,
                "metadata": {"name": self.name},
                "spec": spec,
            }
        )

    def usage(self, now: int) -> tuple[int, dict[str, float]] | None:
        """The usage of its users, and the time at which it was written, in milliseconds; None: there is no
        valid usage. A time in the future counts as now."""
        status = self.status if isinstance(self.status, Mapping) else {}
        written = status.get("usage")
        if not isinstance(written, Mapping) or not isinstance(written.get("users"), Mapping):
            return None
        at = parse_rfc3339(str(written.get("at", ""))[:40])
        if at is None:
            return None
        return min(at // 1000, now), dict(_believed(written["users"]))

    def preempted(self) -> dict[str, int]:
        """The number of preempted pods of each controller, as the scheduler wrote it; invalid entries are
        left out."""
        status = self.status if isinstance(self.status, Mapping) else {}
        written = status.get("preempted")
        pairs = list(written.items())[:MAX_PREEMPTED] if isinstance(written, Mapping) else []
        return {
            str(key)[:64]: count
            for key, count in pairs
            if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= _MAX_COUNT
        }


def _believed(users: Mapping[object, object]) -> Iterator[tuple[str, float]]:
    for number, (user, text) in enumerate(users.items()):
        if number > MAX_USERS:
            return
        try:
            value = float(text) if isinstance(text, str) and len(text) <= 40 else math.nan
        except ValueError:
            continue
        if isinstance(user, str) and len(user) <= 253 and 0 <= value <= _MAX_USAGE:
            yield user, value


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The status of a queue. Amounts and figures are texts for people."""

    name: str
    uid: str
    generation: int
    is_valid: bool
    reason: str
    message: str
    is_active: bool
    entitled: str = ""
    limit: str = ""
    used: Mapping[str, str] = field(default_factory=dict)
    borrowed: str = ""  # usage beyond its guarantee
    running: int = 0
    waiting: int = 0
    share: str = ""  # usage over the share of its weight
    in_force: Queue | None = None  # an earlier spec that still counts
    usage: Mapping[str, float] = field(default_factory=dict)  # cluster-seconds by user
    at: int = 0  # ms: when that was
    preempted: Mapping[str, int] = field(default_factory=dict)  # pods that ended for others, by controller

    def document(self, since: Mapping[str, str]) -> dict[str, JsonValue]:
        """The status as it is written. ``since``: the time of the last transition, by condition."""
        conditions: list[JsonValue] = [
            {
                "type": type_,
                "status": "True" if holds else "False",
                "reason": reason,
                "message": message,
                "observedGeneration": self.generation,
                "lastTransitionTime": since[type_],
            }
            for type_, (holds, reason, message) in self.conditions.items()
        ]
        status: dict[str, JsonValue] = {
            "observedGeneration": self.generation,
            "conditions": conditions,
            "entitled": self.entitled,
            "limit": self.limit,
            "used": dict(self.used),
            "inUse": ", ".join(f"{name} {amount}" for name, amount in self.used.items()),
            "borrowed": self.borrowed,
            "running": self.running,
            "waiting": self.waiting,
            "share": self.share,
        }
        if self.in_force is not None:
            status["inForce"] = queue_documents.to_value(self.in_force)["spec"]
        if self.usage:
            users: dict[str, JsonValue] = {user: f"{value:.17g}" for user, value in self.usage.items()}
            status["usage"] = {"at": rfc3339(self.at * 1000, "milliseconds"), "users": users}
        if self.preempted:
            status["preempted"] = dict(self.preempted)
        return status

    @property
    def conditions(self) -> dict[str, tuple[bool, str, str]]:
        active = "it is in force" if self.is_active else "it is not in force: see the condition Valid"
        return {
            "Valid": (self.is_valid, self.reason, self.message),
            "Active": (self.is_active, "InForce" if self.is_active else "NotInForce", active),
        }
