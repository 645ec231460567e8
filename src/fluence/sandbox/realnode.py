"""Real node: the addresses of one real node, the files of its programs, and their command lines; pure.

A real node is a kubelet, a containerd and its containers, in namespaces of their own: processes, mounts,
network, host name. Its first process holds the namespaces; when it is killed, the kernel ends everything in
the node and drops its mounts, so nothing is left behind. Inside, programs find the usual paths
(/var/lib/kubelet, /run/containerd, /var/log/pods), which are directories of the sandbox.

    10.K.0.1       the machine, on the sandbox's bridge; images are served there
    10.K.0.11      node 1, where its kubelet listens; its pods are 10.K.1.0/24
    10.K.255.1     the API server: the address of the Service `kubernetes`, so that no proxy is needed
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from fluence.sandbox.images import ARCHITECTURE, PAUSE

MAX_REAL_NODES = 3
REAL = "sandbox.fluence.flux-framework.org/real"  # the label that distinguishes them from simulated nodes
REGISTRY_PORT = 5000
_PRIVATE = {"/run": "run", "/var/lib": "lib", "/var/log": "log"}
# The kubelet would set these for the whole machine; here it finds them as it needs them.
_TUNABLES = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}


class Network(msgspec.Struct, frozen=True):
    """The sandbox's own /16 of 10.0.0.0/8."""

    second: int  # the K of 10.K.0.0/16

    def _at(self, rest: str) -> str:
        return f"10.{self.second}.{rest}"

    @property
    def whole(self) -> str:
        return self._at("0.0/16")

    @property
    def machine(self) -> str:
        return self._at("0.1")

    @property
    def api(self) -> str:
        return self._at("255.1")

    @property
    def services(self) -> str:
        return self._at("255.0/24")

    @property
    def registry(self) -> str:
        return f"{self.machine}:{REGISTRY_PORT}"

    def node(self, number: int) -> str:
        return self._at(f"0.{10 + number}")

    def pods(self, number: int) -> str:
        return self._at(f"{number}.0/24")


class RealNode(msgspec.Struct, frozen=True):
    """One node: where its files are, and how its programs are started."""

    sandbox: Path  # the sandbox's folder
    number: int
    network: Network

    @property
    def name(self) -> str:
        return f"real-{self.number}"

    @property
    def folder(self) -> Path:
        return self.sandbox / "nodes" / self.name

    @property
    def address(self) -> str:
        return self.network.node(self.number)

    @property
    def link(self) -> str:
        """The machine's end of the virtual cable to the node."""
        return f"{bridge(self.sandbox)}-{self.number}"

    @property
    def cgroup(self) -> str:
        return f"{cgroup(self.sandbox)}/{self.name}"

    @property
    def folders(self) -> list[Path]:
        return [self.folder / name for name in (*_PRIVATE.values(), "cni", "tmp", "plugins", "sysctl", "pki")]

    # Files

    def kubelet_config(self, *, cgroups: int) -> dict[str, Any]:
        pki = self.folder / "pki"
        config: dict[str, Any] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "healthzBindAddress": "127.0.0.1",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / "kubelet.crt"),
            "tlsPrivateKeyFile": str(pki / "kubelet.key"),
            "cgroupDriver": "cgroupfs",  # the machine's systemd is not involved
            "cgroupRoot": self.cgroup,
            "enforceNodeAllocatable": [],
            "evictionHard": {},  # the machine's disk is shared; this node is not to blame for a full one
            "imageGCHighThresholdPercent": 100,  # loaded images cannot be pulled from elsewhere
            "imageGCLowThresholdPercent": 99,
            "localStorageCapacityIsolation": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "resolvConf": "",
            "registerNode": True,
            "volumePluginDir": str(self.folder / "plugins"),
            "shutdownGracePeriod": "0s",
            "enableServer": True,
        }
        if cgroups == 1:
            config["failCgroupV1"] = False
        return config

    def containerd_config(self, programs: Path, *, runc: Path, snapshotter: str) -> str:
        return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
# The first would make /opt/containerd on the machine; the second has no use here.
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "{snapshotter}"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE}"
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = "{self.folder}/certs.d"

[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
  platform = "linux/{ARCHITECTURE}"
  snapshotter = "{snapshotter}"

[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true  # a profile would stay in the machine's kernel
  restrict_oom_score_adj = true  # root of a container may not go below its own
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{programs}"]
    conf_dir = "{self.folder}/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "{runc}"
      SystemdCgroup = false
"""

    def cni_config(self) -> dict[str, Any]:
        pods = {
            "type": "host-local",
            "ranges": [[{"subnet": self.network.pods(self.number)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        plugin = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": pods}
        return {"cniVersion": "1.0.0", "name": "sandbox", "plugins": [plugin]}

    def registry_config(self) -> str:
        """Every image comes from the sandbox, whichever registry its name has."""
        return (
            f'server = "http://{self.network.registry}"\n'
            f'[host."http://{self.network.registry}"]\n  capabilities = ["pull", "resolve"]\n'
        )

    def tunables(self) -> dict[Path, str]:
        return {
            self.folder / "sysctl" / name.replace("/", "."): f"{value}\n" for name, value in _TUNABLES.items()
        }

    # Command lines

    def init(self, pause: Path) -> list[str]:
        """The process that holds the node. When it is killed, everything in the node ends."""
        return [
            *("unshare", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"),
            *("--pid", "--mount", "--net", "--uts", "--ipc"),
            *("--", str(pause), str(self.folder)),
        ]

    def setup(self, others: int) -> str:
        """A shell script that runs inside the node and makes it look like a machine of its own."""
        lines = ["set -e", "mount --make-rshared /"]
        lines += [f"mount --bind '{self.folder}/{own}' {path}" for path, own in _PRIVATE.items()]
        for name in _TUNABLES:
            own = self.folder / "sysctl" / name.replace("/", ".")
            lines.append(f"[ ! -e /proc/sys/{name} ] || mount --bind '{own}' /proc/sys/{name}")
        lines += [
            f"echo {self.name} > /proc/sys/kernel/hostname",
            "echo 1 > /proc/sys/net/ipv4/ip_forward",  # only of this network namespace
            "ip link set lo up",
            f"ip address add {self.address}/24 dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {self.network.machine}",
        ]
        lines += [
            f"ip route add {self.network.pods(other)} via {self.network.node(other)}"
            for other in range(1, others + 1)
            if other != self.number
        ]
        return "\n".join(lines)

    def enter(self, pid: int, *command: str) -> list[str]:
        """A command inside the node whose first process is ``pid``."""
        return ["nsenter", f"--target={pid}", "--pid", "--mount", "--net", "--uts", "--ipc", "--", *command]

    def containerd(self, programs: Path) -> list[str]:
        path = f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return [
            *("env", f"PATH={path}", f"TMPDIR={self.folder}/tmp"),
            *(str(programs / "containerd"), "--config", f"{self.folder}/containerd.toml"),
        ]

    def kubelet(self, program: Path) -> list[str]:
        return [
            *("env", f"TMPDIR={self.folder}/tmp", str(program)),
            f"--config={self.folder}/kubelet.yaml",
            f"--kubeconfig={self.folder}/pki/kubeconfig",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--node-labels={REAL}=true",
        ]


def mark(sandbox: Path) -> str:
    """Eight letters that are unique to this sandbox: `down` finds by them what a crash did not record."""
    return hashlib.sha256(str(sandbox).encode()).hexdigest()[:8]


def bridge(sandbox: Path) -> str:
    return f"flu{mark(sandbox)}"  # the kernel allows 15 letters, and `-1` is appended


def cgroup(sandbox: Path) -> str:
    return f"/fluence-{mark(sandbox)}"


def hidden_by(folder: Path) -> str | None:
    """The path that a node has of its own and that would hide this directory from it."""
    return next((path for path in _PRIVATE if folder.resolve().is_relative_to(path)), None)
