"""`kubectl fluence apply` against a real API server: the pods of a Job carry the pin.

The programs are looked for in the folder that FLUENCE_TEST_KUBE_BIN or KUBEBUILDER_ASSETS names.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from select_program import SCRIPTS

P = "fluence.flux-framework.org"
EXAMPLES = Path(__file__).parents[3] / "examples" / "select"
TOKEN = "test-token"

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


def find_programs() -> dict[str, str]:
    folder = os.environ.get("FLUENCE_TEST_KUBE_BIN") or os.environ.get("KUBEBUILDER_ASSETS")
    found: dict[str, str] = {}
    for name in ("kube-apiserver", "etcd", "kube-controller-manager", "kubectl"):
        program = shutil.which(name, path=folder) if folder else None
        if program is None:
            pytest.skip(f"needs {name}: name its folder in FLUENCE_TEST_KUBE_BIN or KUBEBUILDER_ASSETS")
        found[name] = str(Path(program).resolve())
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl: to make the key for service accounts")
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Cluster:
    """A control plane without nodes: what is created stays pending, and that is enough here."""

    def __init__(self, directory: Path, programs: dict[str, str], stack: ExitStack) -> None:
        self.directory = directory
        self.programs = programs
        self._stack = stack
        self.kubeconfig = directory / "kubeconfig"

    def start(self) -> None:
        client, peer, secure, manager = (free_port() for _ in range(4))
        key = self.directory / "sa.key"
        tokens = self.directory / "tokens.csv"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        tokens.write_text(f'{TOKEN},admin,1,"system:masters"\n')
        self._write_kubeconfig(f"https://127.0.0.1:{secure}")
        self._run(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
        )
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{client}",
            f"--secure-port={secure}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.directory / 'certs'}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
        )
        self.wait(lambda: self.kubectl("get", "--raw=/readyz", check=False).returncode == 0, "the API server")
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--secure-port={manager}",
            "--leader-elect=false",
            f"--service-account-private-key-file={key}",
        )
        ready = ["get", "serviceaccount", "default", "-n", "default"]
        self.wait(lambda: self.kubectl(*ready, check=False).returncode == 0, "the controllers")

    def _write_kubeconfig(self, server: str) -> None:
        cluster = {"server": server, "insecure-skip-tls-verify": True}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        }
        self.kubeconfig.write_text(json.dumps(content))

    def _run(self, name: str, *arguments: str) -> None:
        log = self._stack.enter_context((self.directory / f"{name}.log").open("wb"))
        process = subprocess.Popen([self.programs[name], *arguments], stdout=log, stderr=log)

        def stop() -> None:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

        self._stack.callback(stop)

    @property
    def environment(self) -> dict[str, str]:
        # kubectl finds the plugin, and the plugin finds this kubectl.
        path = f"{SCRIPTS}:{Path(self.programs['kubectl']).parent}:/usr/bin:/bin"
        return {"PATH": path, "HOME": str(self.directory)}

    def kubectl(
        self, *arguments: str, stdin: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.programs["kubectl"], *arguments, f"--kubeconfig={self.kubeconfig}"],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=60,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def get(self, *what: str) -> Any:
        return json.loads(self.kubectl("get", *what, "-o", "json").stdout)

    def wait(self, is_done: Callable[[], bool], what: str, *, seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not is_done():
            if time.monotonic() > deadline:
                logs = "".join(path.read_text()[-2000:] for path in sorted(self.directory.glob("*.log")))
                pytest.fail(f"{what} did not come up within {seconds:g} s\n{logs}")
            time.sleep(0.25)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    programs = find_programs()
    with ExitStack() as stack:
        made = Cluster(tmp_path_factory.mktemp("cluster"), programs, stack)
        made.start()
        yield made


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
    assert (audit["chosen"], audit["candidates"][0]["strings"]["vendor"]) == ("gpu-l4", "nvidia")
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
    done = cluster.kubectl("fluence", "apply", f"-f={listed},{stream}", attributes, "-n", "default")
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
