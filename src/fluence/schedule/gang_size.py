"""Sizes: how many pods of a gang must start together, and how many that still leaves to place.

The order (interfaces of all five predecessors): the PodGroup's minCount or minMember; a size said on a pod or
its owner; what the owners run at a time; 1. A said size may be smaller than the owner's and still wins.

A gang that runs is not asked to start together again: members that run or have succeeded count, so the
replacement of a failed rank needs no company. Members that are being deleted do not: they may belong to a Job
that was deleted and made anew under its name. When nothing of a gang runs it starts together, all of it that
its Jobs still have to complete; but members that were bound beside those that still wait, and ended before
these were bound too, count: the gang has begun, and the rest of it follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fluence.model.group import Group
from fluence.model.meta import OwnerReference
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.schedule.group_labels import size_of


@dataclass(frozen=True, slots=True)
class GangSize:
    """How many, and who says so."""

    minimum: int
    pods: int  # that there will be at a time, as far as owners and sizes say
    source: str
    waits: str = ""  # what must be known first


def declared(
    pods: Sequence[Pod],
    owners: Sequence[Owner],
    *,
    group: Group | None,
    above: Sequence[Owner] = (),
    unseen: Sequence[OwnerReference] = (),
    group_may_come: str = "",
    warnings: list[str],
) -> GangSize:
    """The size of a gang with these pods. A Deployment stands ``above`` an owner: a size that it says counts,
    its replicas do not. ``group_may_come`` names a PodGroup that does not exist yet."""
    said = _said(pods, (*owners, *above), warnings)
    made = sum(owner.pods for owner in owners)
    if group is not None and group.min_count is not None:
        if said is not None and said != group.min_count:
            warnings.append(
                f"group-size {said} is not used: PodGroup {group.key} says {group.min_count}; change it there"
            )
        return GangSize(group.min_count, max(group.min_count, made), f"PodGroup {group.key}")
    if said is not None:
        return GangSize(said, max(said, made), "group-size")
    if unseen:
        ref = unseen[0]
        return GangSize(1, 1, "", waits=f"waits for its {ref.kind} {ref.name} to be seen")
    if owners:
        return GangSize(made, made, " and ".join(f"{each.kind} {each.key}" for each in owners))
    if group_may_come:
        return GangSize(
            1, 1, "", waits=f"waits for its {group_may_come}: create it, or say its size in group-size"
        )
    warnings.append("no size is said, so its pods start one by one: add the annotation group-size")
    return GangSize(1, 1, "nothing")


def needed(
    minimum: int, *, living: int, pods: Sequence[Pod], ended: Sequence[Pod], owners: Sequence[Owner]
) -> int:
    """How many of the waiting members must be placed together; 0: each as it fits. ``pods`` are alive."""
    begun = _begun(pods, ended)
    if living:
        failed = sum(pod.status.phase != "Succeeded" for pod in begun)
        return max(0, minimum - living - _succeeded(ended, owners) - failed)
    left = [owner.remaining for owner in owners]
    if owners and None not in left and all(_owned(pod, owners) for pod in pods):
        # Ranks that succeeded are not run again: do not wait for them.
        minimum = min(minimum, sum(each or 0 for each in left))
    return max(0, minimum - len(begun)) if begun else max(1, minimum)


def _begun(pods: Sequence[Pod], ended: Sequence[Pod]) -> list[Pod]:
    """Members that got a node when all that wait were there already, and have ended: a half-bound gang is
    driven to its end, however short its members run. What waits in place of one that ended is younger."""
    made = [pod.metadata.creation_timestamp for pod in pods if pod.spec.node_name is None]
    if not made or None in made:
        return []
    last = max(each for each in made if each is not None)
    return [pod for pod in ended if (at := pod.bound_at) is not None and at >= last]


def _succeeded(ended: Sequence[Pod], owners: Sequence[Owner]) -> int:
    """Members that succeeded, those whose pod is deleted already included where a Job counts them."""
    seen = dict.fromkeys((owner.metadata.uid for owner in owners), 0)
    free = 0
    for pod in ended:
        if pod.status.phase != "Succeeded":
            continue
        uid = next((each.uid for each in pod.metadata.owner_references or () if each.uid in seen), None)
        if uid is None:
            free += 1
        else:
            seen[uid] += 1
    return free + sum(max(seen[owner.metadata.uid], owner.succeeded) for owner in owners)


def _owned(pod: Pod, owners: Sequence[Owner]) -> bool:
    uids = {owner.metadata.uid for owner in owners}
    return any(each.uid in uids for each in pod.metadata.owner_references or ())


def _said(pods: Sequence[Pod], owners: Sequence[Owner], warnings: list[str]) -> int | None:
    for where, sizes in (
        ("pods", {size_of(pod, warnings) for pod in pods}),
        ("owners", {size_of(owner, warnings) for owner in owners}),
    ):
        sizes.discard(None)
        found = sorted(each for each in sizes if each is not None)
        if len(found) > 1:
            told = " and ".join(map(str, found))
            warnings.append(f"its {where} say different sizes, {told}: the largest is used; write one")
        if found:
            return found[-1]
    return None
