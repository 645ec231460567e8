"""Audit: proves, from API objects alone, that no node was overcommitted and no gang ran in part; pure.

KWOK admits every pod, so nothing else in a sandbox would notice a scheduler that uses a node twice. The
ledger gets every change of pods, nodes and groups in the server's order, and records these findings:

    overcommit   a node was given more than it has: cpu, memory, pods, devices
    port         two pods of a node want the same host port
    forbidden    a pod was bound to a node that its selector, affinity or the node's taints rule out
    rebound      a bound pod turned up on another node
    no-node      a pod was bound to a node that does not exist
    gang         a gang of any kind had members on nodes, and too few, for longer than ``grace_s``

Pods and nodes come in two streams without a common order, so a pod is checked against every state of its node
in the last ``settle_s``. A finding must be wrong by all of them.

The auditor does not ask the scheduler and shares no code with it: its findings follow from pods, their owners
and PodGroups alone. A gang is defined by the first of these that applies:

    a native group, or a coscheduling PodGroup    its minCount or minMember, when it is known. Groups that
                                                  Kubernetes makes for Jobs come last, and those that list a
                                                  gang (`<name>.fluence`) do not count
    a label or annotation that names a group      its declared size; else the sum over its owners and pods
    a group of Kueue, Volcano, KAI or YuniKorn    its size in the words of that system; else as above
    the object of an operator                     what it says, for the pods that are created at once
    a declared size on a Job or another owner     that size
    an owner that was held back (FluxJobs)        what it runs at a time

A gang runs in part while some of its members have nodes, but too few. Once it was complete, later losses are
not the fault of its start: pods fail, nodes go, owners are scaled. When no member runs any more, it may start
again. A group without a size grows with each new owner and pod; it counts as complete when nothing new has
arrived for ``OPEN_S``, so that a first member that starts alone is found.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import msgspec

from fluence import names
from fluence.model.grant import is_held_by_admission
from fluence.model.node import Node, forbids
from fluence.model.owner import Group, Job, Owner, StatefulSet, controller_of, system_of
from fluence.model.pod import Pod, add_into, pod_requests, ports_clash
from fluence.names import DEVICE_PREFIX
from fluence.sandbox.audited_operators import NAMED_BY, OperatorObject, part_of
from fluence.units import format_amount

Found: TypeAlias = "list[tuple[str, str]]"  # keys of gangs, and what was wrong

OPEN_S = 2.0  # shorter than a scheduler's settling time: later members may be late
_MAX_OWNERS = 4  # chain of owners


class _Place(NamedTuple):
    """The gang of a pod, and the size that the pod declares."""

    key: str
    is_native: bool
    is_named: bool  # by a group and not by its owner
    owner: str | None  # the owner that created the pod
    size: int  # the size that the pod declares; 0: none
    above: int  # the size that its owners declare


@dataclass(slots=True)
class _Gang:
    """The members of a gang, by uid."""

    key: str
    is_native: bool
    is_named: bool
    members: dict[str, _Place] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)  # have a node and are not terminating
    ended: dict[str, Pod] = field(default_factory=dict)  # had a node while other members ran
    past: set[str] = field(default_factory=set)  # had a node in an earlier run
    owners: Counter[str] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    above: Counter[int] = field(default_factory=Counter)
    free: int = 0  # members without an owner
    newest: float = 0.0  # when the last owner, or pod without one, arrived
    part_since: float | None = None
    whole: bool = False
    told: bool = False

    @property
    def had_nodes(self) -> int:
        return len(self.running) + len(self.ended)

    def join(self, uid: str, place: _Place, now: float) -> None:
        if self.members.get(uid) == place:
            return
        self.leave(uid)
        self.members[uid] = place
        if place.owner is None or place.owner not in self.owners:
            self.newest = now
        self._count(place, 1)

    def leave(self, uid: str) -> None:
        place = self.members.pop(uid, None)
        if place is not None:
            self._count(place, -1)

    def _count(self, place: _Place, by: int) -> None:
        for held, what in ((self.owners, place.owner), (self.sizes, place.size), (self.above, place.above)):
            if what:
                held[what] += by  # type: ignore[index]
                if not held[what]:  # type: ignore[index]
                    del held[what]
        self.free += by * (place.owner is None)


class AuditedGangs:
    """Feed it changes. It returns its findings."""

    def __init__(self, *, grace_s: float) -> None:
        self._grace_s = grace_s
        self._groups: dict[str, dict[str, Group]] = {}  # by key, by source
        self._owners: dict[str, Owner] = {}
        self._pods: dict[str, tuple[Pod, str | None]] = {}  # by uid: and its native group
        self._owned: dict[str, set[str]] = {}  # owner -> pods
        self._natives: dict[str, set[str]] = {}  # native group -> pods
        self._gangs: dict[str, _Gang] = {}
        self._gang_of: dict[str, str] = {}  # pod -> gang
        self._began: set[str] = set()

    @property
    def seen(self) -> int:
        """How many gangs had members on nodes."""
        return len(self._began)

    # -- events ----------------------------------------------------------------------------------------------

    def group(self, old: Group | None, new: Group | None, *, now: float) -> Found:
        shown = new if new is not None else old
        if shown is None:
            return []
        if new is not None:
            self._groups.setdefault(_named(new), {})[new.source] = new
        else:
            self._groups.get(_named(shown), {}).pop(shown.source, None)
        return self._again(self._natives.get(shown.key, ()), now)

    def owner(self, old: Owner | None, new: Owner | None, *, now: float) -> Found:
        shown = new if new is not None else old
        if shown is None:
            return []
        if new is not None:
            self._owners[new.metadata.uid] = new
        else:
            self._owners.pop(shown.metadata.uid, None)
        if old is not None and new is not None and _same(old, new):
            return []
        if isinstance(shown, OperatorObject):
            # Its pods may belong to an object that it owns, or only have its name.
            where = shown.metadata.namespace
            return self._again([uid for uid, (pod, _) in self._pods.items() if _may_be_of(pod, where)], now)
        return self._again(self._owned.get(shown.metadata.uid, ()), now)

    def pod(self, old: Pod | None, new: Pod | None, group: str | None, *, now: float) -> Found:
        """``group``: the native group that the pod's spec names."""
        if new is not None:
            return self._put(new, group, now)
        if old is None or old.metadata.uid not in self._pods:
            return []
        uid = old.metadata.uid
        pod, native = self._pods.pop(uid)
        for ref in pod.metadata.owner_references or ():
            self._owned.get(ref.uid, set()).discard(uid)
        self._natives.get(_group_key(pod, native), set()).discard(uid)
        return self._leave(uid, now)

    def tick(self, now: float) -> Found:
        """Check again as time passes."""
        return [breach for gang in self._gangs.values() for breach in self._judge(gang, now)]

    # -- members ---------------------------------------------------------------------------------------------

    def _again(self, pods: Iterable[str], now: float) -> Found:
        return [breach for uid in sorted(pods) for breach in self._put(*self._pods[uid], now)]

    def _put(self, pod: Pod, native: str | None, now: float) -> Found:
        uid = pod.metadata.uid
        if uid not in self._pods:
            for ref in pod.metadata.owner_references or ():
                self._owned.setdefault(ref.uid, set()).add(uid)
            if native is not None:
                self._natives.setdefault(_group_key(pod, native), set()).add(uid)
        self._pods[uid] = (pod, native)
        place, breaches = self._place(pod, native), []
        if uid in self._gang_of and (place is None or place.key != self._gang_of[uid]):
            breaches += self._leave(uid, now)
        if place is None:
            return breaches
        gang = self._gangs.setdefault(place.key, _Gang(place.key, place.is_native, place.is_named))
        breaches += self._judge(gang, now)
        self._gang_of[uid] = gang.key
        gang.running.discard(uid)
        if pod.is_terminal:
            if pod.spec.node_name and uid not in gang.past:
                gang.join(uid, place, now)
                gang.ended[uid] = pod
            else:
                gang.leave(uid)
        elif pod.metadata.deletion_timestamp is not None:
            gang.leave(uid)
        else:
            gang.join(uid, place, now)
            if pod.spec.node_name:
                gang.running.add(uid)
                self._began.add(gang.key)
        return breaches + self._judge(gang, now)

    def _leave(self, uid: str, now: float) -> Found:
        gang = self._gangs.get(self._gang_of.pop(uid, ""))
        if gang is None:
            return []
        breaches = self._judge(gang, now)
        gang.leave(uid)
        gang.running.discard(uid)
        gang.ended.pop(uid, None)
        gang.past.discard(uid)
        if not (gang.members or gang.past):
            del self._gangs[gang.key]
            return breaches
        return breaches + self._judge(gang, now)

    # -- memberships -----------------------------------------------------------------------------------------

    def _place(self, pod: Pod, native: str | None) -> _Place | None:
        namespace, owners = pod.metadata.namespace, self._chain(pod)
        controller = pod.metadata.controller_reference
        direct = controller.uid if controller is not None and controller.uid in self._owners else None
        carriers: tuple[Pod | Owner, ...] = (pod, *owners)
        sizes = (direct, _size(pod), max(map(_size, owners), default=0))
        by_name = None
        if native is not None and not self._is_listing(pod, native):
            groups = self._groups.get(_group_key(pod, native), {}).values()
            if not groups or any(item.min_count is not None for item in groups):
                by_name = _Place(f"{namespace}/{native}", True, True, *sizes)
            is_made_up = any(
                item.controller and item.controller == controller_of(pod.metadata) for item in groups
            )
            if by_name is not None and not is_made_up:
                return by_name
        if pod.spec.scheduler_name == names.KUBE_SCHEDULER and not is_held_by_admission(pod):
            return None  # kube-scheduler starts pods one by one
        label = next((name for item in carriers if (name := _value(item, names.GROUP_NAMES))), None)
        if label is not None:
            return _Place(f"{namespace}/{label}", False, True, *sizes)
        if (system := _system(pod)) is not None:
            name, size = system
            return _Place(f"{namespace}/{name}", False, True, direct, sizes[1] or size, sizes[2])
        if (operated := _operated(pod, owners)) is not None:
            name, size = operated
            # No owner counts beside it.
            return _Place(f"{namespace}/{name}", False, False, None, sizes[1] or sizes[2] or size, 0)
        if owners and (is_held_by_admission(pod) or any(_size(item) > 1 for item in carriers)):
            top = owners[-1]
            return _Place(f"{namespace}/{top.kind.lower()}:{top.metadata.name}", False, False, *sizes)
        return by_name

    def _is_listing(self, pod: Pod, native: str) -> bool:
        """Whether the scheduler created, or will create, the PodGroup that a pod names. It only lists a gang
        that labels and owners define."""
        if not native.endswith(names.POD_GROUP_SUFFIX):
            return False
        groups = self._groups.get(_group_key(pod, native), {}).values()
        return all(item.is_listing for item in groups)

    def _chain(self, pod: Pod) -> list[Owner]:
        chain: list[Owner] = []
        ref = pod.metadata.controller_reference
        while len(chain) < _MAX_OWNERS:
            owner = None if ref is None else self._owners.get(ref.uid)
            if owner is None and ref is not None and ref.kind == "Pod":
                owner = self._by_label(pod)
            if owner is None:
                break
            chain.append(owner)
            ref = owner.metadata.controller_reference
        return chain

    def _by_label(self, pod: Pod) -> Owner | None:
        """The custom object that a pod names by a label, if pods own pods."""
        for owner in self._owners.values():
            label = NAMED_BY.get(owner.kind) if isinstance(owner, OperatorObject) else None
            if label is None or pod.labels.get(label) != owner.metadata.name:
                continue
            if owner.metadata.namespace == pod.metadata.namespace:
                return owner
        return None

    # -- judgements ------------------------------------------------------------------------------------------

    def _minimum(self, gang: _Gang) -> tuple[int, bool]:
        """How many pods must run together, and whether that is declared. If not, the gang does not count as
        complete yet."""
        groups = self._groups.get(gang.key) or self._groups.get(_whole_group(gang.key))
        if groups:
            group = max(groups.values(), key=lambda group_: group_.source.startswith("scheduling.k8s.io/"))
            return (0 if group.is_deleting else group.min_count or 0), True
        if gang.is_native:
            return 0, False  # its PodGroup may arrive late
        size = max(gang.sizes, default=0) or max(gang.above, default=0)
        if size:
            return size, True
        owners = [self._owners[uid] for uid in gang.owners if uid in self._owners]
        return sum(map(_runs, owners)) + gang.free, not gang.is_named

    def _judge(self, gang: _Gang, now: float) -> Found:
        if not gang.running:
            # Nothing runs: the gang may start again, except pods that a Job has counted as done.
            gang.whole, gang.told, gang.part_since = False, False, None
            for uid in [uid for uid, pod in gang.ended.items() if not self._goes_on(pod)]:
                del gang.ended[uid]
                gang.past.add(uid)
                gang.leave(uid)
            return []
        if gang.whole:
            return []
        minimum, is_declared = self._minimum(gang)
        if gang.had_nodes >= minimum:
            gang.part_since = None
            gang.whole = is_declared or (not gang.is_native and now - gang.newest >= OPEN_S)
            return []
        if gang.part_since is None:
            gang.part_since = now
        lasted = now - gang.part_since
        if gang.told or lasted <= self._grace_s:
            return []
        gang.told = True
        has = f"{gang.had_nodes} of at least {minimum} members were given a node"
        return [(gang.key, f"{has} for {lasted:.0f} s")]

    def _goes_on(self, pod: Pod) -> bool:
        """Whether a succeeded pod still counts for the pods that its Job has yet to run."""
        owner = next(iter(self._chain(pod)), None)
        return pod.status.phase == "Succeeded" and isinstance(owner, Job) and not owner.is_finished


def _group_key(pod: Pod, native: str | None) -> str:
    """The native group of a pod. In 1.35 a gang is a replica of a group: `workload/group/replica`."""
    return _whole_group(f"{pod.metadata.namespace}/{native or ''}")


def _whole_group(key: str) -> str:
    return "/".join(key.split("/")[:3])


def _named(group: Group) -> str:
    """The key of the gang of a PodGroup. PodGroups of other systems only count for names of that system."""
    system = system_of(group.source)
    return f"{group.namespace}/{system}:{group.name}" if system else group.key


def _may_be_of(pod: Pod, namespace: str) -> bool:
    return pod.metadata.namespace == namespace and bool(pod.metadata.owner_references)


def _system(pod: Pod) -> tuple[str, int] | None:
    """The gang of another system that a pod names, and its size in the format of that system."""
    name = _value(pod, (names.KUEUE_GROUP,))
    if name is not None:
        return f"kueue:{name}", _number(pod.annotations.get(names.KUEUE_SIZE, ""))
    for system, keys in (("volcano", names.VOLCANO_GROUPS), ("kai", (names.KAI_GROUP,))):
        name = _value(pod, keys)
        if name is not None:
            return f"{system}:{name}", 0
    applications = (_value(pod, (key,)) for key in names.YUNIKORN_APPLICATIONS)
    name = next((value for value in applications if value is not None), None)
    if name is None or not pod.annotations.get(names.YUNIKORN_TASK_GROUP, "").strip():
        return None
    try:
        listed = msgspec.json.decode(pod.annotations.get(names.YUNIKORN_TASK_GROUPS, "") or "[]")
        size = sum(int(item["minMember"]) for item in listed)
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, KeyError):
        size = 0
    return f"yunikorn:{name}", size


def _operated(pod: Pod, owners: list[Owner]) -> tuple[str, int] | None:
    """The gang of a pod by the object of an operator, and how many of its pods start together. For a TrainJob
    and its JobSet, or a RayJob and its RayCluster, the object that creates the pods counts."""
    for owner in owners:
        found = part_of(owner, pod) if isinstance(owner, OperatorObject) else None
        if found is None:
            continue
        part, size = found
        carriers: tuple[Pod | Owner, ...] = (pod, *owners)
        if size <= 1 or any(_size(item) == 1 for item in carriers):
            return None
        attempt = pod.labels.get(names.JOBSET_RESTART, "")
        return f"{owner.kind.lower()}:{owner.metadata.name}/{part}/{attempt}".rstrip("/"), size
    return None


def _same(old: Owner, new: Owner) -> bool:
    one, other = old.metadata, new.metadata
    if isinstance(old, OperatorObject) and isinstance(new, OperatorObject) and old.body != new.body:
        return False
    return (one.labels, one.annotations, one.owner_references) == (
        other.labels,
        other.annotations,
        other.owner_references,
    )


def _runs(owner: Owner) -> int:
    """How many pods of an owner can exist at once."""
    return 1 if isinstance(owner, StatefulSet) and owner.is_ordered else owner.pods


def _value(of: Pod | Owner, keys: tuple[str, ...]) -> str | None:
    for values in (of.metadata.labels or {}, of.metadata.annotations or {}):
        value = next((values[key].strip() for key in keys if values.get(key, "").strip()), None)
        if value:
            return value
    return None


def _size(of: Pod | Owner) -> int:
    for values in (of.metadata.annotations or {}, of.metadata.labels or {}):
        for key in names.GROUP_SIZES:
            text = values.get(key, "").strip()
            if text:
                return _number(text)
    return 0


def _number(text: str) -> int:
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


SETTLE_S = 5.0
GRACE_S = 30.0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that should never have happened."""

    kind: str
    what: str  # the pod, node or group
    detail: str
    at: float = 0.0  # seconds since 1970

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}: {self.detail}"


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    findings: list[Finding]
    pods_seen: int
    bindings_seen: int
    nodes_seen: int
    gangs_seen: int
    gaps: int = 0  # how often the watch was interrupted: changes meanwhile were not seen


class AuditLedger:
    """Feed it changes, and ask for ``report``. Times are seconds since 1970, from the caller."""

    def __init__(self, *, settle_s: float = SETTLE_S, grace_s: float = GRACE_S) -> None:
        self.findings: list[Finding] = []
        self._settle_s = settle_s
        self._nodes: dict[str, deque[tuple[float, Node | None]]] = {}
        self._bound: dict[str, Pod] = {}  # by uid: every pod that holds resources on a node
        self._on: dict[str, dict[str, Pod]] = {}  # node -> uid -> pod
        self._used: dict[str, dict[str, int]] = {}
        self._home: dict[str, str] = {}  # uid -> its node, also after its end
        self._gangs = AuditedGangs(grace_s=grace_s)
        self._overbooked: set[tuple[str, str]] = set()
        self._pods_seen: set[str] = set()

    # What happened

    def node(self, old: Node | None, new: Node | None, *, now: float) -> None:
        shown = new if new is not None else old
        if shown is None:
            return
        history = self._nodes.setdefault(shown.name, deque())
        history.append((now, new))
        # The last state before the window still counts: it held until the window began.
        while len(history) > 1 and history[1][0] <= now - self._settle_s:
            history.popleft()

    def group(self, old: Group | None, new: Group | None, *, now: float) -> None:
        self._found(self._gangs.group(old, new, now=now), now)

    def owner(self, old: Owner | None, new: Owner | None, *, now: float) -> None:
        self._found(self._gangs.owner(old, new, now=now), now)

    def pod(self, old: Pod | None, new: Pod | None, *, group: str | None = None, now: float) -> None:
        """A change of one pod. ``group`` is the native group that its spec names."""
        self._found(self._gangs.pod(old, new, group, now=now), now)
        if new is None:
            if old is not None:
                self._release(old.metadata.uid)
            return
        uid = new.metadata.uid
        self._pods_seen.add(uid)
        node = new.spec.node_name
        if not node:
            return
        home = self._home.get(uid)
        if home is not None and home != node:
            self._find("rebound", new.key, f"was on {home}, is on {node}", now)
        self._release(uid)
        if home is None:
            self._home[uid] = node
        if new.is_terminal:
            return
        self._bound[uid] = new
        neighbours = self._on.setdefault(node, {})
        if home is None:
            self._judge_place(new, node, neighbours, now)
        neighbours[uid] = new
        add_into(self._used.setdefault(node, {}), pod_requests(new, bound=True))
        self._judge_sum(new, node, now)

    def tick(self, now: float) -> None:
        """Report gangs that are still incomplete after some time."""
        self._found(self._gangs.tick(now), now)

    def report(self, *, gaps: int = 0) -> AuditReport:
        return AuditReport(
            findings=list(self.findings),
            pods_seen=len(self._pods_seen),
            bindings_seen=len(self._home),
            nodes_seen=len(self._nodes),
            gangs_seen=self._gangs.seen,
            gaps=gaps,
        )

    # Judgements

    def _judge_place(self, pod: Pod, name: str, neighbours: dict[str, Pod], now: float) -> None:
        states = [node for _, node in self._nodes.get(name, ())]
        nodes = [node for node in states if node is not None]
        if not nodes:
            self._find("no-node", pod.key, f"was bound to {name}, which does not exist", now)
            return
        # DaemonSet and static pods have tolerations; the rules below hold for them as well.
        reasons = [forbids(node, pod) for node in nodes]
        if all(reasons):
            self._find("forbidden", pod.key, f"was bound to {name}: {reasons[-1]}", now)
        ports = pod.host_ports()
        for other in neighbours.values() if ports else ():
            if ports_clash(ports, other.host_ports()):
                self._find("port", pod.key, f"shares a host port with {other.key} on {name}", now)

    def _judge_sum(self, pod: Pod, name: str, now: float) -> None:
        states = [node for _, node in self._nodes.get(name, ()) if node is not None]
        for resource, used in self._used[name].items():
            allowed = max((node.allocatable().get(resource, 0) for node in states), default=None)
            if allowed is None or resource.startswith(DEVICE_PREFIX):
                continue  # external resources do not belong to a node
            if used <= allowed:
                self._overbooked.discard((name, resource))
            elif (name, resource) not in self._overbooked:
                self._overbooked.add((name, resource))
                shown = f"{format_amount(resource, used)} of {format_amount(resource, allowed)} {resource}"
                self._find("overcommit", name, f"{shown} given away with {pod.key}", now)

    def _release(self, uid: str) -> None:
        pod = self._bound.pop(uid, None)
        if pod is None or not pod.spec.node_name:
            return
        self._on[pod.spec.node_name].pop(uid, None)
        add_into(self._used[pod.spec.node_name], pod_requests(pod, bound=True), sign=-1)

    def _found(self, breaches: Found, now: float) -> None:
        for what, detail in breaches:
            self._find("gang", what, detail, now)

    def _find(self, kind: str, what: str, detail: str, now: float) -> None:
        self.findings.append(Finding(kind=kind, what=what, detail=detail, at=now))
