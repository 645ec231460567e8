"""Recovery: what runs, read from the pods alone; ids come from uids, and each pod says its job and its times.

A pod that was bound by Fluence carries ``jobid`` and ``allocation`` annotations, written with the binding. So
a scheduler that knows nothing finds the jobs that run, under the numbers that they had, with the same ends.
Nodes that the server refused for a group are written on its pods, too, so that they are not tried again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec

from fluence.model.pod import Pod
from fluence.names import ALLOCATION, EXCLUDED, JOBID
from fluence.schedule.annotations import MAX_EXCLUDED_NODES


class AllocationNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pod says of the job that it was started with; times in milliseconds."""

    start: int
    end: int | None = None  # None: it has no limit


@dataclass(frozen=True, slots=True)
class Running:
    """Pods that were started together."""

    number: int
    pods: tuple[Pod, ...]
    start: int
    end: int | None


def annotations_for(number: int, start: int, end: int | None) -> dict[str, str]:
    """What a binding says, to be read again after a restart."""
    return {
        JOBID: str(number),
        ALLOCATION: msgspec.json.encode(AllocationNote(start, end)).decode(),
    }


def excluded_note(nodes: Collection[str]) -> dict[str, str]:
    """What a pod says of the nodes that its group must not have."""
    return {EXCLUDED: ",".join(sorted(nodes)[:MAX_EXCLUDED_NODES])} if nodes else {}


def running(pods: Iterable[Pod], fallback: int, *, now: int, limit: int | None) -> list[Running]:
    """The jobs of one group's bound pods. Pods that say nothing, or nonsense, belong to ``fallback``."""
    groups: dict[int, list[Pod]] = {}
    for pod in pods:
        groups.setdefault(job_of(pod.annotations, fallback), []).append(pod)
    found = []
    for number, members in groups.items():
        said = next((each for pod in members if (each := _allocation(pod)) is not None), None)
        if said is not None:
            found.append(Running(number, tuple(members), min(said.start, now), said.end))
            continue
        start = min((_ms(pod.bound_at) or now) for pod in members)
        found.append(Running(number, tuple(members), min(start, now), start + limit if limit else None))
    return found


def job_of(annotations: Mapping[str, str], fallback: int) -> int:
    """The number of the job that a pod says it belongs to."""
    text = annotations.get(JOBID, "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    return number if 0 < number < 1 << 62 else fallback


def _allocation(pod: Pod) -> AllocationNote | None:
    text = pod.annotations.get(ALLOCATION)
    if text is None:
        return None
    try:
        said = msgspec.json.decode(text, type=AllocationNote)
    except msgspec.MsgspecError:
        return None  # anybody may write annotations
    sane = 0 <= said.start < 1 << 49 and (said.end is None or said.start < said.end < 1 << 49)
    return said if sane else None


def _ms(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp() * 1000)
