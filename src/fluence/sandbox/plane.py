"""Plane: the command line of each part of the control plane; pure, from directories and ports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from fluence.kube.releases import Release
from fluence.names import PREFIX, VIEW_GROUP

ALL = "all"
NEEDED = "needed"
# Only what workloads need: fewer controllers start faster and leave the two cores to the tests.
CONTROLLERS = (
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "pod-garbage-collector-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "job-controller",
    "ttl-after-finished-controller",
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "daemonset-controller",
    "disruption-controller",
    "resourceclaim-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "ephemeral-volume-controller",
    "podgroup-protection-controller",
    "clusterrole-aggregation-controller",
)
# Pods that really run mount the cluster's certificate, and Services lead to them.
REAL_CONTROLLERS = ("root-ca-certificate-publisher-controller", "endpointslice-controller")
# Leases are renewed four times in this span. A kubelet's 40 s would mean 500 writes a second for 5,000 nodes,
# which is all that a small machine can do. The price is that a node without KWOK is only noticed after five
# minutes.
LEASE_S = 240
GRACE_S = 300
# There are few real nodes, so they use the usual times: a dead kubelet is noticed.
REAL_LEASE_S = 40
REAL_GRACE_S = 50


class Ports(msgspec.Struct, frozen=True):
    etcd: int
    etcd_peer: int
    api: int
    fluence: int = 0  # health and metrics of its scheduler
    view: int = 0  # the view API of its scheduler
    host: str = "127.0.0.1"  # where the API server listens
    services: str = "10.0.0.0/24"

    @property
    def server(self) -> str:
        return f"https://{self.host}:{self.api}"


class PlaneDirectories(msgspec.Struct, frozen=True):
    """The files of one sandbox."""

    folder: Path

    def pki(self, name: str) -> Path:
        return self.folder / "pki" / name

    def log(self, part: str) -> Path:
        return self.folder / "logs" / f"{part}.log"

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.folder / ("kubeconfig" if user == "admin" else f"pki/{user}.kubeconfig")

    @property
    def data(self) -> Path:
        return self.folder / "etcd"

    @property
    def state(self) -> Path:
        return self.folder / "state.json"

    @property
    def stages(self) -> Path:
        return self.folder / "stages.yaml"

    @property
    def scheduler_config(self) -> Path:
        return self.folder / "scheduler.yaml"

    @property
    def images(self) -> Path:
        return self.folder / "images"

    @property
    def audit_socket(self) -> Path:
        return self.folder / "audit.sock"


def etcd(program: Path, at: PlaneDirectories, ports: Ports) -> list[str]:
    client, peer = f"https://127.0.0.1:{ports.etcd}", f"https://127.0.0.1:{ports.etcd_peer}"
    return [
        str(program),
        "--name=sandbox",
        f"--data-dir={at.data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=sandbox={peer}",
        f"--cert-file={at.pki('etcd.crt')}",
        f"--key-file={at.pki('etcd.key')}",
        f"--trusted-ca-file={at.pki('ca.crt')}",
        "--client-cert-auth=true",
        f"--peer-cert-file={at.pki('etcd.crt')}",
        f"--peer-key-file={at.pki('etcd.key')}",
        f"--peer-trusted-ca-file={at.pki('ca.crt')}",
        "--peer-client-cert-auth=true",
        "--unsafe-no-fsync=true",  # the data is temporary; a power cut loses nothing of value
        "--quota-backend-bytes=4294967296",
        "--log-level=warn",
    ]


def apiserver(
    program: Path,
    at: PlaneDirectories,
    ports: Ports,
    release: Release,
    gates: dict[str, bool],
    *,
    real: bool = False,
) -> list[str]:
    kubelets = [
        f"--kubelet-certificate-authority={at.pki('ca.crt')}",
        f"--kubelet-client-certificate={at.pki('kubelet-client.crt')}",
        f"--kubelet-client-key={at.pki('kubelet-client.key')}",
        "--kubelet-preferred-address-types=InternalIP",
        "--enable-admission-plugins=NodeRestriction",
        "--enable-aggregator-routing=true",  # webhooks are called at their pods: the machine has no proxy
    ]
    return [
        str(program),
        f"--etcd-servers=https://127.0.0.1:{ports.etcd}",
        f"--etcd-cafile={at.pki('ca.crt')}",
        f"--etcd-certfile={at.pki('etcd-client.crt')}",
        f"--etcd-keyfile={at.pki('etcd-client.key')}",
        f"--bind-address={ports.host}",
        f"--secure-port={ports.api}",
        # 1.37 refuses to advertise loopback unless the `kubernetes` endpoints are not maintained
        f"--advertise-address={ports.host}",
        "--endpoint-reconciler-type=none",
        f"--tls-cert-file={at.pki('apiserver.crt')}",
        f"--tls-private-key-file={at.pki('apiserver.key')}",
        f"--client-ca-file={at.pki('ca.crt')}",
        "--authorization-mode=Node,RBAC",
        # aggregated API servers, such as the view of the scheduler
        f"--requestheader-client-ca-file={at.pki('front-proxy-ca.crt')}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={at.pki('front-proxy-client.crt')}",
        f"--proxy-client-key-file={at.pki('front-proxy-client.key')}",
        f"--service-cluster-ip-range={ports.services}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={at.pki('sa.pub')}",
        f"--service-account-signing-key-file={at.pki('sa.key')}",
        "--allow-privileged=true",
        f"--feature-gates={_gates(gates)}",
        f"--runtime-config={','.join(release.runtime_config)}",
        "--max-requests-inflight=2000",
        "--max-mutating-requests-inflight=1000",
        "--profiling=false",
        "--shutdown-delay-duration=0s",
        *(kubelets if real else ()),
    ]


def controller_manager(
    program: Path,
    at: PlaneDirectories,
    release: Release,
    gates: dict[str, bool],
    *,
    real: bool = False,
    controllers: str = NEEDED,
) -> list[str]:
    names = [controller for controller in CONTROLLERS if controller not in release.lacks]
    names += REAL_CONTROLLERS if real else ()
    if controllers == ALL:
        names = ["*"]  # all that kube-controller-manager runs by default
    grace = REAL_GRACE_S if real else GRACE_S
    return [
        str(program),
        f"--kubeconfig={at.kubeconfig('kube-controller-manager')}",
        f"--controllers={','.join(names)}",
        f"--service-account-private-key-file={at.pki('sa.key')}",
        f"--root-ca-file={at.pki('ca.crt')}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--secure-port=0",
        f"--flex-volume-plugin-dir={at.folder / 'flexvolume'}",  # otherwise it creates a directory below /usr
        "--node-monitor-period=2s",
        f"--node-monitor-grace-period={grace}s",
        f"--node-startup-grace-period={grace}s",  # or many new nodes are marked Unknown meanwhile
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        "--concurrent-gc-syncs=10",
        f"--feature-gates={_gates(gates)}",
    ]


def scheduler(program: Path, at: PlaneDirectories, gates: dict[str, bool]) -> list[str]:
    return [
        str(program),
        f"--config={at.scheduler_config}",
        "--secure-port=0",
        f"--feature-gates={_gates(gates)}",
    ]


def scheduler_config(at: PlaneDirectories) -> dict[str, object]:
    """kube-scheduler without client limits: at 50 calls a second, a test would measure only the limit."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(at.kubeconfig("kube-scheduler")),
            "qps": 1000,
            "burst": 2000,
        },
    }


def kwok(program: Path, at: PlaneDirectories, *, real: bool = False) -> list[str]:
    return [
        str(program),
        f"--kubeconfig={at.kubeconfig('kwok')}",
        f"--config={at.stages}",
        "--v=WARN",
        f"--node-lease-duration-seconds={REAL_LEASE_S if real else LEASE_S}",
    ]


def registry(at: PlaneDirectories, address: str) -> list[str]:
    return [sys.executable, "-m", "fluence.sandbox.registry", str(at.images), address]


def audit(at: PlaneDirectories) -> list[str]:
    return [sys.executable, "-m", "fluence.sandbox.auditor", str(at.folder)]


def fluence(at: PlaneDirectories, ports: Ports) -> list[str]:
    """The scheduler of this installation. Its lease shows that it runs, to a second scheduler and to the
    doctor."""
    return [
        *(sys.executable, "-m", "fluence.cli", "scheduler", "run", "--log-format", "text"),
        # Short, so that a killed scheduler is soon replaced.
        *("--lease-duration", "4s", "--lease-renew", "2s", "--lease-retry", "500ms"),
        *("--kubeconfig", str(at.kubeconfig()), "--health-address", f"127.0.0.1:{ports.fluence}"),
        *("--view-address", f"127.0.0.1:{ports.view}"),
        *("--qps", "0"),  # as on loopback; with real nodes, the API server has another address
    ]


def view_objects(ports: Ports) -> dict[str, dict[str, Any]]:
    """Objects that make the API server forward the view API to the scheduler on this machine, and let
    everybody read it, as the chart does; by the path at which they are created."""
    rbac, name, namespace = "rbac.authorization.k8s.io", "fluence-view", "kube-system"
    meta, reads = {"name": name}, ["get", "list", "watch"]
    reader = {"name": f"{name}-reader"}
    everybody = {"apiGroup": rbac, "kind": "Group", "name": "system:authenticated"}
    return {
        f"/api/v1/namespaces/{namespace}/services": {
            "metadata": meta,
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": ports.view}]},
        },
        "/apis/apiregistration.k8s.io/v1/apiservices": {
            "metadata": {"name": f"v1.{VIEW_GROUP}"},
            "spec": {
                "group": VIEW_GROUP,
                "version": "v1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "service": {"name": name, "namespace": namespace, "port": ports.view},
            },
        },
        f"/apis/{rbac}/v1/clusterroles": {
            "metadata": reader,
            "rules": [
                {"apiGroups": [VIEW_GROUP], "resources": ["*"], "verbs": reads},
                {"apiGroups": [VIEW_GROUP], "resources": ["whatif"], "verbs": ["create"]},
                {"apiGroups": [PREFIX], "resources": ["queues"], "verbs": reads},
            ],
        },
        f"/apis/{rbac}/v1/clusterrolebindings": {
            "metadata": reader,
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": reader["name"]},
            "subjects": [everybody],
        },
    }


def _gates(gates: dict[str, bool]) -> str:
    return ",".join(f"{name}={str(value).lower()}" for name, value in gates.items())
