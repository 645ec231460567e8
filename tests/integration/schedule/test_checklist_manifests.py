"""Manifests of the first Fluence as users have them; only the nodes and the scheduler are the test's own."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from fluence import names
from fluence.kube.errors import ApiError
from fluence.kube.resource import JOBS
from fluence.sandbox.testing import Kube
from tests.integration.schedule.field import Field, field

JOB = """
apiVersion: batch/v1
kind: Job
metadata:
  name: fluence-job
  annotations:
    fluence.flux-framework.org/pod-group: my-pods
    fluence.flux-framework.org/group-size: 10
spec:
  completions: 10
  parallelism: 10
  completionMode: Indexed
  template:
    spec:
      schedulerName: fluence
      containers:
      - name: fluence-job
        image: busybox
        command: [echo, potato]
      restartPolicy: Never
  backoffLimit: 4
"""


def job(f: Field) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(JOB)
    here = f.spec()
    theirs = {name: here[name] for name in ("schedulerName", "nodeSelector", "tolerations")}
    body["spec"]["template"]["spec"] |= theirs
    return body


async def test_the_original_fluences_job_of_ten_as_it_is_written(kube: Kube, audited: None) -> None:
    """The annotations are on the Job alone. Its size must be quoted: the API server refuses it otherwise."""
    async with field(kube, 1, pods=12) as f, f.scheduler() as live:
        await f.add(*(f.pod(f"other-{i}", cpu="0") for i in range(3)))  # leaves room for nine
        await f.until_bound(3)
        with pytest.raises(ApiError, match="400"):
            await f.client.create(JOBS.raw(), job(f), namespace=f.namespace)
        body = job(f)
        body["metadata"]["annotations"][names.GROUP_SIZE] = "10"
        await f.client.create(JOBS.raw(), body, namespace=f.namespace)

        def ranks(pods: dict[str, Any]) -> list[Any]:
            return [pod for pod in pods.values() if names.COMPLETION_INDEX in pod.annotations]

        pods = await f.until(
            lambda pods: len([pod for pod in ranks(pods) if pod.condition("PodScheduled")]) == 10, "all wait"
        )
        assert not any(pod.spec.node_name for pod in ranks(pods))
        assert live.scheduler.state.pod_sets.by_key[f"{f.namespace}/my-pods"].request.minimum == 10
        await f.end("other-0")
        await f.until(
            lambda pods: len([pod for pod in ranks(pods) if pod.status.phase == "Succeeded"]) == 10, "all end"
        )
        jobs = {pod.annotations[names.JOBID] for pod in ranks(await f.pods())}
        assert len(jobs) == 1
