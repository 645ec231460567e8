"""The pods of jobs."""

from __future__ import annotations

from fluence.cluster.job_pods import JobPods


def test_a_job_is_over_when_all_its_pods_have_ended() -> None:
    jobs = JobPods()
    jobs.add(1, ["a", "b"])
    assert jobs.end(1, "a") is False and jobs.job_of("a") == 1
    assert jobs.end(1, "b") is True


def test_late_members_keep_a_job_going() -> None:
    jobs = JobPods()
    jobs.add(1, ["a"])
    jobs.add(1, ["b"])
    assert jobs.end(1, "a") is False and [(job, list(uids)) for job, uids in jobs] == [(1, ["a", "b"])]


def test_strangers_end_nothing() -> None:
    jobs = JobPods()
    jobs.add(1, ["a"])
    assert jobs.end(1, "x") is None and jobs.end(2, "a") is None and jobs.job_of("x") is None


def test_what_is_removed_is_forgotten() -> None:
    jobs = JobPods()
    jobs.add(1, ["a", "b"])
    jobs.remove(1, "a")
    jobs.remove(2, "b")
    assert jobs.job_of("a") is None and jobs.job_of("b") == 1
    jobs.remove_job(1)
    assert jobs.job_of("b") is None and not list(jobs)
