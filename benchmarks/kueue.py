"""Kueue as a rival: its manager built from the module proxy, run beside a sandbox as it is, without webhooks.

What it is spared: no webhook configuration is applied, so Jobs must be created suspended, and nothing calls
it when they are; its custom resources are stored and served in one version, so nothing is converted; its
visibility server and its metrics are off. Everything else is as its own manifests have it, but for the limits
of its client, which are those of every scheduler that is measured here.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import yaml

from fluence.kube.resource import Json, Resource
from fluence.model.meta import Condition, ObjectMeta, Wire
from fluence.sandbox.certs import Authority
from fluence.sandbox.folders import cache_dir
from fluence.sandbox.programs import find_go

VERSION = "v0.19.0"
GROUP, SERVED = "kueue.x-k8s.io", "v1beta2"
QUEUE_LABEL = f"{GROUP}/queue-name"
NAMESPACE = "kueue-system"
_MODULE = "sigs.k8s.io/kueue"
# Its metrics server is off, and yet it reads the certificate of it, from a folder that only a container has.
_CERTIFICATES = "/etc/kueue/metrics/certs"
_VARIABLE = "KUEUE_METRICS_CERTIFICATES"


class WorkloadStatus(Wire, frozen=True):
    conditions: list[Condition] | None = None


class KueueWorkload(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def is_there(self) -> bool:
        """Whether it has a status."""
        return bool(self.status.conditions)

    @property
    def says_why(self) -> bool:
        """Whether it says that it waits for quota, and why."""
        for each in self.status.conditions or ():
            if each.type == "QuotaReserved":
                return each.status == "False" and bool(each.message)
        return False


WORKLOADS = Resource(GROUP, SERVED, "workloads", "Workload", KueueWorkload)


def build() -> tuple[Path, Path]:
    """The manager, built once, and the folder of its definitions."""
    go = find_go(print)
    made = cache_dir().parent / "bench" / f"kueue-{VERSION}"
    made.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOWORK": "off"}
    with tempfile.TemporaryDirectory() as folder:
        command = [str(go), "mod", "download", "-json", f"{_MODULE}@{VERSION}"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{_MODULE}@{VERSION} cannot be had: {done.stdout.decode()[-300:]}")
        source = Path(json.loads(done.stdout)["Dir"])
        program = made / "kueue"
        if not program.exists():
            print(f"building Kueue {VERSION} (some minutes)", flush=True)
            _copy(source, Path(folder) / "source")
            # In a folder of its own, so that its own go.mod and go.sum say what it is made of.
            environment["GOFLAGS"] = "-mod=readonly"
            command = [str(go), "build", "-o", f"{program}.part", "./cmd/kueue"]
            subprocess.run(command, cwd=Path(folder) / "source", env=environment, check=True)
            Path(f"{program}.part").rename(program)
    return program, source / "config" / "components" / "crd" / "bases"


def _copy(source: Path, folder: Path) -> None:
    """What the manager is built from, with the one path that cannot be set read from a variable."""
    kept = ("go.mod", "go.sum", "apis", "client-go", "cmd", "internal", "pkg")
    for each in kept:
        if (source / each).is_dir():
            shutil.copytree(source / each, folder / each, copy_function=shutil.copyfile)
        else:
            folder.mkdir(exist_ok=True)
            shutil.copyfile(source / each, folder / each)
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IWUSR)  # else it could not be removed
    main = folder / "cmd" / "kueue" / "main.go"
    text = main.read_text()
    assert text.count(f'"{_CERTIFICATES}"') == 1, "Kueue reads its certificates from elsewhere"
    main.write_text(text.replace(f'"{_CERTIFICATES}"', f'os.Getenv("{_VARIABLE}")'))


def definitions(folder: Path) -> list[Json]:
    """Its custom resources in the version that is stored, and in no other."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        crd: Any = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        spec = crd["spec"]
        spec["versions"] = [each for each in spec["versions"] if each["storage"]]
        spec["conversion"] = {"strategy": "None"}
        found.append(crd)
    return found


def command(program: Path, folder: Path, *, port: int, qps: int, says_why: bool) -> list[str]:
    """How the manager is started; its files are written to the folder. As shipped it looks at one of all
    Jobs that ask for the same, and says nothing to the others; ``says_why``: it looks at each."""
    folder.mkdir(parents=True, exist_ok=True)
    certificate, key = Authority("kueue").server("kueue")
    (folder / "tls.crt").write_bytes(certificate)
    (folder / "tls.key").write_bytes(key)
    settings = {
        "apiVersion": f"config.{GROUP}/{SERVED}",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": "0"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "controller": {
            "groupKindConcurrency": {
                "Job.batch": 5,
                f"Workload.{GROUP}": 10,
                f"LocalQueue.{GROUP}": 5,
                f"ClusterQueue.{GROUP}": 5,
                f"ResourceFlavor.{GROUP}": 1,
            }
        },
        "clientConnection": {"qps": qps, "burst": 2 * qps},
        "integrations": {"frameworks": ["batch/job"]},
    }
    path = folder / "kueue.yaml"
    path.write_bytes(msgspec.json.encode(settings))
    gates = "VisibilityOnDemand=false" + (",SchedulingEquivalenceHashing=false" if says_why else "")
    return [str(program), f"--config={path}", f"--feature-gates={gates}"]


def environment(kubeconfig: Path, folder: Path) -> dict[str, str]:
    return {"KUBECONFIG": str(kubeconfig), _VARIABLE: str(folder)}


def queues(namespace: str, quotas: dict[str, str]) -> list[tuple[Resource[Json], Json]]:
    """One flavor, one queue with so much of each resource, and the door to it in a namespace."""
    head = {"apiVersion": f"{GROUP}/{SERVED}"}
    amounts = [{"name": name, "nominalQuota": amount} for name, amount in quotas.items()]
    quota = {"name": "default", "resources": amounts}
    cluster_queue = {
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": list(quotas), "flavors": [quota]}],
    }

    def resource(plural: str, kind: str, *, namespaced: bool = False) -> Resource[Json]:
        return Resource(GROUP, SERVED, plural, kind, dict[str, object], namespaced=namespaced)

    return [
        (
            resource("resourceflavors", "ResourceFlavor"),
            {**head, "kind": "ResourceFlavor", "metadata": {"name": "default"}, "spec": {}},
        ),
        (
            resource("clusterqueues", "ClusterQueue"),
            {**head, "kind": "ClusterQueue", "metadata": {"name": "all"}, "spec": cluster_queue},
        ),
        (
            resource("localqueues", "LocalQueue", namespaced=True),
            {
                **head,
                "kind": "LocalQueue",
                "metadata": {"name": "door", "namespace": namespace},
                "spec": {"clusterQueue": "all"},
            },
        ),
    ]
