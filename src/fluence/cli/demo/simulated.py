"""Simulated: the examples on a cluster in memory, by the live scheduler's cycle, while programs are built."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fluence.cli.demo.show import NODES, Show, Work, where
from fluence.cli.progress import Meter
from fluence.kube.gangs import ADAPTERS
from fluence.kube.releases import Release
from fluence.model.pod import Pod
from fluence.sandbox.audit import AuditLedger
from fluence.sandbox.nodes import manifests, read_nodes
from fluence.sandbox.programs import Progress, find_programs
from fluence.sim.cluster import EmbeddedCluster

_APPLY_S = 0.5  # between two workloads, as a person would type


def play(script: Sequence[Work], show: Show) -> None:
    """Apply the examples one after the other, and let time pass until every workload that can start has
    started."""
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


class _Interrupted(BaseException):
    """The builder must stop."""


class Building:
    """``with Building(release, names) as building: …; programs = building.wait(meter)``.

    Leaving it early ends the build; the next one continues from there.
    """

    def __init__(self, wanted: Release, names: tuple[str, ...]) -> None:
        self._wanted, self._names = wanted, names
        self._progress: Progress | None = None
        self._stop = threading.Event()
        # before Python 3.13, Thread.join takes a thread for ended when Ctrl-C interrupts it
        self._ended = threading.Event()
        self._programs: dict[str, Path] = {}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._build, name="building")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._ended.wait()
        self._thread.join()

    def wait(self, meter: Meter) -> dict[str, Path]:
        """Show the progress until the build is done. Raises its error, if any."""
        while not self._ended.wait(0.5):
            if self._progress is not None:
                meter.report(self._progress)
        if self._error is not None:
            raise self._error
        return self._programs

    def _build(self) -> None:
        try:
            self._programs = find_programs(self._wanted, names=self._names, report=self._report)
        except _Interrupted:
            return
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()

    def _report(self, progress: Progress) -> None:
        # The builder reports every second, and stops its processes if that raises.
        if self._stop.is_set():
            raise _Interrupted
        self._progress = progress
