"""The pods of each job: who has a seat, and who has ended.

A job keeps its seats until all its pods have ended, so a pod that has ended stays one of its pods until then.
`ClusterGraph` tells of pods that get seats, end, and lose them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class JobPods:
    """Pods by job, and jobs by pod."""

    def __init__(self) -> None:
        self._ended: dict[int, dict[str, bool]] = {}  # job -> uid -> has it ended?
        self._job_of: dict[str, int] = {}

    def __iter__(self) -> Iterator[tuple[int, Iterable[str]]]:
        return iter(self._ended.items())

    def job_of(self, uid: str) -> int | None:
        return self._job_of.get(uid)

    def add(self, job: int, uids: Iterable[str]) -> None:
        new = dict.fromkeys(uids, False)
        self._ended.setdefault(job, {}).update(new)
        self._job_of.update(dict.fromkeys(new, job))

    def end(self, job: int, uid: str) -> bool | None:
        """A pod has ended; says whether all of its job have. None: it is not of this job."""
        pods = self._ended.get(job)
        if pods is None or uid not in pods:
            return None
        pods[uid] = True
        return all(pods.values())

    def remove(self, job: int, uid: str) -> None:
        """A pod has no seat of its job any more."""
        pods = self._ended.get(job)
        if pods is not None and pods.pop(uid, None) is not None:
            self._job_of.pop(uid, None)

    def remove_job(self, job: int) -> None:
        for uid in self._ended.pop(job, ()):
            self._job_of.pop(uid, None)
