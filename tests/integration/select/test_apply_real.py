"""`kubectl fluence apply` against a real API server: the pods of a Job carry the pin."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluence.kube.releases import release
from fluence.sandbox.programs import find_programs
from fluence.sandbox.testing import Kube
from tests.integration.select.select_program import SCRIPTS

P = "fluence.flux-framework.org"
EXAMPLES = Path(__file__).parents[3] / "examples" / "select"

JOB = f"""\
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  annotations:
    {P}/select-policy: "require:min_memory_gb=24,min-cost,max-throughput"
spec:
  parallelism: 2
  completions: 2
  template: # its pods must see the pin
    spec:
      schedulerName: fluence
      restartPolicy: Never
      containers: [{{name: c, image: "registry.k8s.io/pause:3.10"}}]
"""


class Cluster:
    """The run's control plane, seen from a namespace of the test's own; its nodes take no pods of ours."""

    def __init__(self, directory: Path, kube: Kube) -> None:
        self.directory = directory
        self.program = Path(find_programs(release(kube.version), names=("kubectl",), report=print)["kubectl"])
        self.kubeconfig = directory / "kubeconfig"
        config = yaml.safe_load(kube.sandbox.at.kubeconfig().read_text())
        for context in config["contexts"]:
            context["context"]["namespace"] = kube.namespace
        self.kubeconfig.write_text(yaml.safe_dump(config))

    @property
    def environment(self) -> dict[str, str]:
        # kubectl finds the plugin, and the plugin finds this kubectl.
        path = f"{SCRIPTS}:{self.program.parent}:/usr/bin:/bin"
        return {"PATH": path, "HOME": str(self.directory)}

    def kubectl(
        self, *arguments: str, stdin: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(self.program), *arguments, f"--kubeconfig={self.kubeconfig}"],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=300,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def get(self, *what: str) -> Any:
        return json.loads(self.kubectl("get", *what, "-o", "json").stdout)

    def wait(self, is_done: Callable[[], bool], what: str, *, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not is_done():
            if time.monotonic() > deadline:
                pytest.fail(f"{what} did not come up within {seconds:g} s")
            time.sleep(0.25)


@pytest.fixture
def cluster(tmp_path: Path, kube: Kube) -> Cluster:
    return Cluster(tmp_path, kube)


def pins(item: Any) -> tuple[str | None, str | None]:
    annotations = item["metadata"].get("annotations") or {}
    return annotations.get(f"{P}/require-backend"), annotations.get(f"{P}/backend")


def test_the_pods_of_a_job_carry_the_pin_and_a_second_apply_changes_nothing_in_them(cluster: Cluster) -> None:
    # Two of the three GPUs are offered; the cheapest, the T4, is not.
    cluster.kubectl("apply", "-f", str(EXAMPLES / "offers.yaml"))
    attributes = f"--attributes={EXAMPLES / 'generic-attributes.yaml'}"
    done = cluster.kubectl("fluence", "apply", "-f", "-", attributes, stdin=JOB)
    assert done.stdout == "job.batch/train created\n"
    assert "dropped gpu-t4: not offered by the cluster scheduler" in done.stderr

    def pods() -> list[Any]:
        return list(cluster.get("pods", "-l", "batch.kubernetes.io/job-name=train")["items"])

    cluster.wait(lambda: len(pods()) == 2, "the pods of the Job")
    assert [pins(pod) for pod in pods()] == [("gpu-l4", "gpu-l4")] * 2
    job = cluster.get("job", "train")
    assert pins(job) == ("gpu-l4", "gpu-l4")
    audit = json.loads(job["metadata"]["annotations"][f"{P}/select-result"])
    assert (audit["chosen"], audit["candidates"]) == ("gpu-l4", [{"name": "gpu-l4"}])
    assert audit["dropped"]["gpu-a100"] == "min-cost"  # without the prices
    # A Job's template is immutable: an audit with a time in it there would make this fail.
    again = cluster.kubectl("fluence", "apply", "-f", "-", attributes, stdin=JOB)
    assert again.stdout in ("job.batch/train configured\n", "job.batch/train unchanged\n")


def test_the_plain_example_pod_is_pinned_and_others_are_untouched(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-f", str(EXAMPLES / "offers.yaml"))
    attributes = f"--attributes={EXAMPLES / 'generic-attributes.yaml'}"
    cluster.kubectl("fluence", "apply", "-f", str(EXAMPLES / "generic-gpu.yaml"), attributes, "--server-side")
    assert pins(cluster.get("pod", "training-leader")) == ("gpu-l4", "gpu-l4")
    plain = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain}\ndata: {a: b}\n"
    cluster.kubectl("fluence", "create", "-f", "-", stdin=plain)
    assert "annotations" not in cluster.get("configmap", "plain")["metadata"]


def test_streams_lists_and_json_are_accepted_as_the_server_would(cluster: Cluster) -> None:
    job = yaml.safe_load(JOB)
    items = [{**job, "metadata": {**job["metadata"], "name": f"listed-{i}"}} for i in range(2)]
    listed = cluster.directory / "list.json"
    listed.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent="\t"))
    stream = cluster.directory / "stream.yaml"
    stream.write_text(
        JOB.replace("name: train", "name: streamed")
        + "---\n# nothing here\n---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: streamed\n"
    )
    attributes = f"--attributes={EXAMPLES / 'generic-attributes.yaml'}"
    done = cluster.kubectl("fluence", "apply", f"-f={listed},{stream}", attributes)
    assert len(done.stdout.splitlines()) == 4
    for name in ("listed-0", "listed-1", "streamed"):
        template = cluster.get("job", name)["spec"]["template"]
        assert pins(template)[0] is not None


def test_nothing_is_applied_if_one_choice_fails(cluster: Cluster) -> None:
    bad = JOB.replace("name: train", "name: bad").replace("min_memory_gb=24", "min_memory_gb=999")
    good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: not-applied}\n---\n"
    attributes = f"--attributes={EXAMPLES / 'generic-attributes.yaml'}"
    done = cluster.kubectl("fluence", "apply", "-f", "-", attributes, stdin=good + bad, check=False)
    assert done.returncode == 1
    assert cluster.kubectl("get", "configmap", "not-applied", check=False).returncode == 1


def test_an_error_of_the_server_is_kubectls_own(cluster: Cluster) -> None:
    wrong = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Not_A_Name}\n"
    done = cluster.kubectl("fluence", "apply", "-f", "-", stdin=wrong, check=False)
    assert done.returncode == 1
    assert "Invalid value" in done.stderr
