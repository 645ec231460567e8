"""What would become of manifests that nobody has applied, and of the jobs of the cluster if somebody did.

The cluster is a copy in memory; the live scheduler's cycle decides in it. Nothing reaches the API server.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fluence.errors import InvalidInput
from fluence.messages import text, whatif
from fluence.model.reason import Code, Reason
from fluence.queue.job import SECOND
from fluence.queue.reasons import BlockedBy, WaitReason
from fluence.queue.whatif import Delay, WhatIfAnswer
from fluence.sim.cluster import EmbeddedCluster, EmbeddedJob, Json

_STARTED = ("preparing", "binding", "running", "done")


@dataclass(frozen=True, slots=True)
class ManifestAnswer:
    """What would become of each job that the manifests make, and of the others."""

    now: int
    jobs: tuple[tuple[str, WhatIfAnswer], ...]
    delays: tuple[Delay, ...]
    warnings: tuple[tuple[str, Reason], ...] = ()  # by job: what is declared and not used

    @property
    def starts_now(self) -> bool:
        return all(answer.starts_now for _, answer in self.jobs)

    @property
    def never(self) -> bool:
        return any(answer.never for _, answer in self.jobs)

    def lines(self, shown: int | None = None) -> list[str]:
        """The answer in words."""
        found = [f"{key}: {line}" for key, answer in self.jobs for line in whatif.own_lines(answer, shown)]
        found += [f"{key}: warning: {text(reason)}" for key, reason in self.warnings]
        return found if self.never and not self.delays else found + whatif.delay_lines(self.delays, shown)

    def to_value(self) -> dict[str, Any]:
        """The answer for programs, in seconds."""
        jobs = []
        for key, answer in self.jobs:
            told = whatif.value(answer)
            job = {"job": key} | {name: told[name] for name in told if name not in ("now", "delays")}
            jobs.append(job | {"warnings": [text(reason) for of, reason in self.warnings if of == key]})
        return {"now": self.now / SECOND, "jobs": jobs, "delays": whatif.delay_values(self.delays)}


def ask(cluster: EmbeddedCluster, documents: Iterable[Json]) -> ManifestAnswer:
    """Apply the manifests to this copy of a cluster, which is used up by it, and see."""
    cluster.settle()  # what waits without need is not the doing of these
    before, known = cluster.plan(), set(cluster.pods)
    for document in documents:
        cluster.apply(document)
    cluster.settle()
    after = cluster.plan()
    jobs = [job for job in cluster.jobs() if any(pod.key not in known for pod in job.pods)]
    if not jobs:
        raise InvalidInput(f"makes no pod with schedulerName: {cluster.scheduler_name}", where="manifest")
    delays = [
        Delay(key, before[key], start)
        for key, start in after.items()
        if key in before and start > before[key]
    ]
    answers = tuple((job.key, _answer(cluster, job)) for job in jobs)
    warnings = tuple((job.key, each) for job in jobs for each in cluster.warnings(job))
    return ManifestAnswer(cluster.now, answers, tuple(delays), warnings)


def _answer(cluster: EmbeddedCluster, job: EmbeddedJob) -> WhatIfAnswer:
    if job.state == "incomplete":  # it is not in the queue: more pods must come, or its fault be mended
        reason = WaitReason(BlockedBy.DEPENDENCY, (Reason.of(Code.GIVEN, text=job.reason),))
        return WhatIfAnswer(cluster.now, False, False, None, None, reason, ())
    now, starts = cluster.now, job.state in _STARTED
    return WhatIfAnswer(
        now=now,
        starts_now=starts,
        never=job.state == "never",
        start=now if starts else job.promised,
        expected=now if starts else job.expected,
        reason=cluster.why(job.key),
        delays=(),
    )
