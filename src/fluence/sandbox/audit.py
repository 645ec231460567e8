"""Audit: proves, from what the API shows alone, that nobody overbooked a node or ran half a gang; pure.

KWOK admits every pod, so nothing in a sandbox would notice a scheduler that gives a node away twice. The
ledger takes every change of pods, nodes and groups in the order in which the server made it, and keeps what
it finds:

    overcommit   a node was given more than it has: cpu, memory, pods, devices
    port         two pods of a node want the same host port
    forbidden    a pod was bound to a node that its selector, affinity or the node's taints rule out
    rebound      a bound pod turned up on another node
    no-node      a pod was bound to a node that does not exist
    gang         a gang of any kind had members on nodes, and too few, for longer than ``grace_s``

Pods and nodes come in two streams that have no order between them, so a node is judged by every state it had
in the last ``settle_s``: only what was wrong by all of them is a finding.
"""

from __future__ import annotations

from collections import deque

import msgspec

from fluence.model.group import Group
from fluence.model.node import Node, forbids
from fluence.model.owner import Owner
from fluence.model.pod import Pod, ports_clash
from fluence.model.resources import add_into, pod_requests
from fluence.names import DEVICE_PREFIX
from fluence.sandbox.audited_gangs import AuditedGangs, Found
from fluence.units import format_amount

SETTLE_S = 5.0
GRACE_S = 30.0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that should never have happened."""

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
    gaps: int = 0  # times that the watch was lost: what happened meanwhile was not seen


class AuditLedger:
    """Feed it changes; ask for ``report``. Times are seconds since 1970, given by the caller."""

    def __init__(self, *, settle_s: float = SETTLE_S, grace_s: float = GRACE_S) -> None:
        self.findings: list[Finding] = []
        self._settle_s = settle_s
        self._nodes: dict[str, deque[tuple[float, Node | None]]] = {}
        self._bound: dict[str, Pod] = {}  # by uid: every pod that holds something on a node
        self._on: dict[str, dict[str, Pod]] = {}  # node -> uid -> pod
        self._used: dict[str, dict[str, int]] = {}
        self._home: dict[str, str] = {}  # uid -> the node it was bound to, also after its end
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
        # The newest state before the window still counts: it held until the window began.
        while len(history) > 1 and history[1][0] <= now - self._settle_s:
            history.popleft()

    def group(self, old: Group | None, new: Group | None, *, now: float) -> None:
        self._found(self._gangs.group(old, new, now=now), now)

    def owner(self, old: Owner | None, new: Owner | None, *, now: float) -> None:
        self._found(self._gangs.owner(old, new, now=now), now)

    def pod(self, old: Pod | None, new: Pod | None, *, group: str | None = None, now: float) -> None:
        """A change of one pod; ``group`` is the native group that its spec names."""
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
        """Time passed: gangs that are still too few are told about."""
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
        # DaemonSet and static pods tolerate their way in; the rules below hold for them as well.
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
                continue  # devices that belong to no node are no part of any
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

    def _found(self, found: Found, now: float) -> None:
        for what, detail in found:
            self._find("gang", what, detail, now)

    def _find(self, kind: str, what: str, detail: str, now: float) -> None:
        self.findings.append(Finding(kind=kind, what=what, detail=detail, at=now))
