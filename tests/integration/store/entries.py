"""Entries of jobs for tests, in few words."""

from __future__ import annotations

from typing import Any

from fluence.database_url import parse_url
from fluence.model.job_state import JobEntry, JobState
from fluence.store import Writer
from fluence.store.history_store import HistoryStore

WRITER = Writer("cluster-1", "fluence")


def open_store(url: str, writer: Writer = WRITER) -> HistoryStore:
    return HistoryStore(parse_url(url), writer)


def entry(job: int = 1, at: int = 100, state: JobState = JobState.PENDING, **more: Any) -> JobEntry:
    given: dict[str, Any] = {
        "key": f"lab/job:sim-{job}",
        "namespace": "lab",
        "name": f"sim-{job}",
        "kind": "Job",
        "user": "ada",
        "queue": "batch",
        "pods": 2,
        "minimum": 2,
        "requests": {"cpu": 3000, "memory": 1 << 30, "nvidia.com/gpu": 2},
        "limit": 60_000,
        "submitted": 50,
    }
    return JobEntry(job=job, at=at, state=state, **{**given, **more})


def running(job: int = 1, at: int = 200, started: int = 200, **more: Any) -> JobEntry:
    return entry(job, at, JobState.RUNNING, started=started, nodes=("n1", "n2"), **more)


def over(
    job: int = 1, at: int = 5200, started: int = 200, state: JobState = JobState.COMPLETED, **more: Any
) -> JobEntry:
    return entry(job, at, state, started=started, ended=at, nodes=("n1", "n2"), **more)
