"""Simulated: the examples on a cluster in memory, through the live scheduler's cycle."""

from __future__ import annotations

from collections.abc import Sequence

from fluence.cli.demo.script import NODES, Work, where
from fluence.cli.demo.show import Show
from fluence.kube.gangs import ADAPTERS
from fluence.model.pod import Pod
from fluence.sandbox.audit import AuditLedger
from fluence.sandbox.nodes import manifests, read_nodes
from fluence.sim.cluster import EmbeddedCluster

_APPLY_S = 0.5  # between two workloads, as a person would type


def play(script: Sequence[Work], show: Show) -> None:
    """Apply the examples one after the other, and let time pass until everybody has started who ever will."""
    cluster = EmbeddedCluster(body for kind in read_nodes(NODES) for body in manifests(kind))
    ledger = AuditLedger()
    for node in cluster.nodes:
        ledger.node(None, node, now=cluster.clock.now())

    def audited(old: Pod | None, new: Pod | None) -> None:
        found = (each.instance_of(new) for each in ADAPTERS) if new is not None else ()
        group = next(filter(None, found), None)
        ledger.pod(old, new, group=group, now=cluster.clock.now())

    cluster.on_pod(audited)
    show.cluster(cluster.nodes)
    show.titles(f"{where()}/cluster")
    began = cluster.clock.now()

    def at() -> float:
        return cluster.clock.now() - began

    for work in script:
        show.opens(work, at())
        for document in work.documents:
            cluster.apply(document)
        cluster.settle()
        show.see(cluster.pods.values(), at())
        cluster.clock.advance(_APPLY_S)
    while not show.is_over and cluster.step():
        show.see(cluster.pods.values(), at())
    show.summary(cluster.nodes, cluster.pods.values(), ledger.report())
