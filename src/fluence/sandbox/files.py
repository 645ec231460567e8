"""Files: everything that is written before a sandbox starts: certificates, kubeconfigs, and settings of its
parts."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

import yaml

from fluence.sandbox import plane, realnodes
from fluence.sandbox.certs import Authority, new_key, private_pem, public_pem, write_private
from fluence.sandbox.plane import PlaneDirectories, Ports

STAGES = Path(__file__).with_name("stages.yaml")
# user, group, and the name of the kubeconfig
USERS = (
    ("kubernetes-admin", "system:masters", "admin"),
    ("system:kube-controller-manager", None, "kube-controller-manager"),
    ("system:kube-scheduler", None, "kube-scheduler"),
    ("kwok", "system:masters", "kwok"),
)


def write_files(
    name: str, at: PlaneDirectories, ports: Ports, real: realnodes.RealNodesPlan | None = None
) -> None:
    """Write all files. The authority that signs the certificates is discarded at the end, so nothing can be
    signed later."""
    for folder in (at.folder, at.folder / "pki", at.folder / "logs", at.data):
        folder.mkdir(mode=0o700, exist_ok=True)
    at.folder.chmod(0o700)
    authority, account_key = Authority(name), new_key()
    front_proxy = Authority(f"{name} front proxy")  # must not be the users' authority
    at.pki("ca.crt").write_bytes(authority.pem)
    at.pki("front-proxy-ca.crt").write_bytes(front_proxy.pem)
    issued = {
        "etcd": authority.server("etcd"),
        "apiserver": authority.server("kube-apiserver", addresses=(ports.host,)),
        "etcd-client": authority.client("kube-apiserver-etcd-client"),
        "front-proxy-client": front_proxy.client("front-proxy-client"),
        "kubelet-client": authority.client("kube-apiserver-kubelet-client", "system:masters"),
    }
    for part, (cert, key) in issued.items():
        at.pki(f"{part}.crt").write_bytes(cert)
        write_private(at.pki(f"{part}.key"), key)
    write_private(at.pki("sa.key"), private_pem(account_key))
    at.pki("sa.pub").write_bytes(public_pem(account_key))

    def access(user: str, group: str | None) -> str:
        return kubeconfig(name, ports.server, authority.pem, *authority.client(user, group))

    for user, group, owner in USERS:
        write_private(at.kubeconfig(owner), access(user, group).encode())
    for node in real.nodes(at.folder) if real is not None else ():
        assert real is not None
        realnodes.write_files(node, real, authority, access(f"system:node:{node.name}", "system:nodes"))
    at.images.mkdir(exist_ok=True)
    shutil.copy(STAGES, at.stages)
    at.scheduler_config.write_text(yaml.safe_dump(plane.scheduler_config(at)))


def kubeconfig(name: str, server: str, ca: bytes, cert: bytes, key: bytes) -> str:
    def encoded(content: bytes) -> str:
        return base64.b64encode(content).decode()

    context = f"fluence-sandbox-{name}"
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "clusters": [
                {"name": context, "cluster": {"server": server, "certificate-authority-data": encoded(ca)}}
            ],
            "users": [
                {
                    "name": context,
                    "user": {"client-certificate-data": encoded(cert), "client-key-data": encoded(key)},
                }
            ],
            "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        },
        sort_keys=False,
    )
