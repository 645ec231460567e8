"""Group: pods that belong together, in one shape, whatever API or label said so."""

from __future__ import annotations

from datetime import datetime

import msgspec

from fluence.model.meta import Condition

VOLCANO, KAI = "volcano", "kai"
_SYSTEMS = {"scheduling.volcano.sh": VOLCANO, "scheduling.run.ai": KAI}


def system_of(api: str) -> str:
    """The other system that an API group or an API version belongs to. Its PodGroups count only for pods that
    name them by a key of that system. "": Kubernetes' own and the coscheduling plugin's."""
    return _SYSTEMS.get(api.partition("/")[0], "")


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One group of pods. ``min_count`` is None for a group that is no gang: its pods start one by one."""

    namespace: str
    name: str
    uid: str = ""
    min_count: int | None = None
    priority: int | None = None
    priority_class: str | None = None
    preemption_policy: str | None = None
    # True: the group is evicted as one unit; False: its pods may be evicted one by one.
    disrupt_together: bool = False
    topology_key: str | None = None
    workload: str | None = None
    template: str | None = None
    claims: tuple[str, ...] = ()
    # True once the server says that the group has been scheduled; None where it says nothing.
    is_scheduled: bool | None = None
    is_deleting: bool = False
    created: datetime | None = None
    annotations: dict[str, str] | None = None
    conditions: tuple[Condition, ...] = ()
    source: str = ""  # the API version, or the label, that this was read from

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def is_gang(self) -> bool:
        return self.min_count is not None
