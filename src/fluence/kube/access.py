"""Access: the address of the API server and our credentials, from a kubeconfig or from inside a pod.

The rules are those of client-go: ``--kubeconfig`` alone, else all files of ``KUBECONFIG`` merged (the first
value wins), else ``~/.kube/config``, else the service account of the pod. Relative paths in a
kubeconfig are relative to that file.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from fluence.kube.errors import Misconfigured
from fluence.yaml_loader import load

IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IN_CLUSTER_DIR = "FLUENCE_SERVICE_ACCOUNT_DIR"
"""The variable that names another folder with token, ca.crt and namespace: a projected volume's, a test's."""


class ExecEnv(msgspec.Struct, frozen=True):
    name: str
    value: str


class ExecPlugin(msgspec.Struct, frozen=True, rename="camel"):
    """A program that prints credentials (client.authentication.k8s.io/v1 and v1beta1)."""

    command: str
    api_version: str = ""
    args: list[str] | None = None
    env: list[ExecEnv] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is needed to reach one API server as one user. Certificates and keys are PEM."""

    server: str
    namespace: str = "default"
    ca: bytes | None = None
    insecure: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    client_cert: bytes | None = None
    client_key: bytes | None = None
    token: str | None = None
    token_file: Path | None = None
    username: str | None = None
    password: str | None = None
    exec_plugin: ExecPlugin | None = None
    impersonate: str | None = None
    source: str = ""  # named in messages

    def __repr__(self) -> str:  # keep keys and tokens out of logs and tracebacks
        return f"Access(server={self.server!r}, source={self.source!r})"


class _Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _User(msgspec.Struct, frozen=True):
    client_certificate: str | None = msgspec.field(default=None, name="client-certificate")
    client_certificate_data: str | None = msgspec.field(default=None, name="client-certificate-data")
    client_key: str | None = msgspec.field(default=None, name="client-key")
    client_key_data: str | None = msgspec.field(default=None, name="client-key-data")
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    exec: ExecPlugin | None = None
    auth_provider: dict[str, object] | None = msgspec.field(default=None, name="auth-provider")
    as_: str | None = msgspec.field(default=None, name="as")


class _Context(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str | None = None


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: _Cluster | None = None


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: _Context | None = None


class _KubeconfigFile(msgspec.Struct, frozen=True):
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str | None = msgspec.field(default=None, name="current-context")


def find_access(
    *,
    kubeconfig: str | os.PathLike[str] | None = None,
    context: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Access:
    """The access that a command without options means; ``kubeconfig`` and ``context`` are its options."""
    env = os.environ if env is None else env
    paths, explicit, default = _files(kubeconfig, env)
    if paths:
        return _load(paths, context, explicit=explicit)
    account = Path(env.get(IN_CLUSTER_DIR) or IN_CLUSTER)
    if env.get("KUBERNETES_SERVICE_HOST") and (account / "token").exists():
        return in_cluster(env=env, directory=account)
    raise Misconfigured(
        f"no cluster is configured: {default} does not exist, KUBECONFIG is not set and this is not a pod; "
        "pass --kubeconfig FILE, or start a cluster of your own with `fluence sandbox up`"
    )


def context_names(kubeconfig: str | os.PathLike[str] | None = None) -> list[str]:
    """The contexts of the kubeconfig that a command means."""
    paths, _, _ = _files(kubeconfig, os.environ)
    documents = [_parse(path) for path in paths if path.exists()]
    return list(dict.fromkeys(entry.name for document in documents for entry in document.contexts or ()))


def _files(
    kubeconfig: str | os.PathLike[str] | None, env: Mapping[str, str]
) -> tuple[list[Path], bool, Path]:
    """The files of a kubeconfig, whether each of them must exist, and where it is by default."""
    home = Path(env["HOME"]) if env.get("HOME") else Path.home()
    default = home / ".kube" / "config"
    if kubeconfig is not None:
        return [Path(kubeconfig)], True, default
    if listed := env.get("KUBECONFIG"):
        return [Path(path) for path in listed.split(os.pathsep) if path], False, default
    return ([default] if default.exists() else []), True, default


def in_cluster(*, env: Mapping[str, str] | None = None, directory: Path = IN_CLUSTER) -> Access:
    """The service account of the pod we run in. The token is re-read: the kubelet rotates it about hourly."""
    env = os.environ if env is None else env
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise Misconfigured("KUBERNETES_SERVICE_HOST is not set: this is not a pod; pass --kubeconfig FILE")
    if ":" in host:
        host = f"[{host}]"
    namespace = directory / "namespace"
    return Access(
        server=f"https://{host}:{port}",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        ca=_read(directory / "ca.crt", "in-cluster ca.crt"),
        token_file=directory / "token",
        source="in-cluster service account",
    )


def _load(paths: list[Path], context: str | None, *, explicit: bool) -> Access:
    clusters: dict[str, tuple[_Cluster, Path]] = {}
    users: dict[str, tuple[_User, Path]] = {}
    contexts: dict[str, _Context] = {}
    current: str | None = None
    read: list[str] = []
    for path in paths:
        if not path.exists():
            # client-go skips the missing files of a KUBECONFIG list, but not a file named by hand
            if explicit:
                raise Misconfigured(f"{path}: no such kubeconfig; pass --kubeconfig FILE or set KUBECONFIG")
            continue
        document = _parse(path)
        read.append(str(path))
        current = current or document.current_context or None
        for one in document.clusters or ():
            clusters.setdefault(one.name, (one.cluster or _Cluster(), path.parent))
        for person in document.users or ():
            users.setdefault(person.name, (person.user or _User(), path.parent))
        for entry in document.contexts or ():
            contexts.setdefault(entry.name, entry.context or _Context())
    source = ":".join(read)
    if not read:
        shown = ", ".join(map(str, paths))
        raise Misconfigured(
            f"KUBECONFIG names no file that exists ({shown}); correct it or pass --kubeconfig FILE"
        )
    wanted = context or current
    if wanted is None:
        known = ", ".join(contexts) or "none"
        raise Misconfigured(f"{source}: no current-context; pass --context NAME (there: {known})")
    if wanted not in contexts:
        known = ", ".join(contexts) or "none"
        raise Misconfigured(f"{source}: no context named {wanted!r}; pass --context NAME (there: {known})")
    chosen = contexts[wanted]
    if chosen.cluster not in clusters:
        known = ", ".join(clusters) or "none"
        raise Misconfigured(
            f"{source}: context {wanted!r} names cluster {chosen.cluster!r}, which is not there ({known})"
        )
    if chosen.user and chosen.user not in users:
        known = ", ".join(users) or "none"
        raise Misconfigured(
            f"{source}: context {wanted!r} names user {chosen.user!r}, which is not there ({known})"
        )
    cluster, cluster_dir = clusters[chosen.cluster]
    user, user_dir = users.get(chosen.user, (_User(), Path()))
    return _access(
        cluster, cluster_dir, user, user_dir, chosen.namespace or "default", f"{source} ({wanted})"
    )


def _parse(path: Path) -> _KubeconfigFile:
    try:
        return msgspec.convert(load(path.read_text()) or {}, _KubeconfigFile)
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror}; make it readable or pass --kubeconfig FILE") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where is not None else ""
        raise Misconfigured(f"{path}: not a kubeconfig: it is not valid YAML{line}") from None
    except msgspec.ValidationError as error:
        raise Misconfigured(f"{path}: not a kubeconfig: {error}") from None


def _access(
    cluster: _Cluster, cluster_dir: Path, user: _User, user_dir: Path, namespace: str, source: str
) -> Access:
    if not cluster.server.startswith(("https://", "http://")):
        raise Misconfigured(
            f"{source}: cluster.server is {cluster.server!r}; it must start with https:// or http://"
        )
    if user.auth_provider is not None:
        raise Misconfigured(
            f"{source}: user.auth-provider was removed in Kubernetes 1.26; use an exec plugin instead"
        )
    cert = _pem(
        user.client_certificate_data, user.client_certificate, user_dir, f"{source}: user.client-certificate"
    )
    key = _pem(user.client_key_data, user.client_key, user_dir, f"{source}: user.client-key")
    if (cert is None) != (key is None):
        missing = "client-key" if key is None else "client-certificate"
        raise Misconfigured(
            f"{source}: user.{missing} is missing; a certificate needs its key and the other way round"
        )
    return Access(
        server=cluster.server.rstrip("/"),
        namespace=namespace,
        ca=_pem(
            cluster.certificate_authority_data,
            cluster.certificate_authority,
            cluster_dir,
            f"{source}: cluster.certificate-authority",
        ),
        insecure=cluster.insecure_skip_tls_verify,
        tls_server_name=cluster.tls_server_name,
        proxy_url=cluster.proxy_url or None,
        client_cert=cert,
        client_key=key,
        token=user.token or None,
        token_file=(user_dir / user.token_file) if user.token_file else None,
        username=user.username,
        password=user.password,
        exec_plugin=_resolved(user.exec, user_dir),
        impersonate=user.as_,
        source=source,
    )


def _resolved(plugin: ExecPlugin | None, directory: Path) -> ExecPlugin | None:
    """A command with a slash in it is relative to the kubeconfig; one without is looked up on PATH."""
    if plugin is None or "/" not in plugin.command or Path(plugin.command).is_absolute():
        return plugin
    return msgspec.structs.replace(plugin, command=str(directory / plugin.command))


def _pem(data: str | None, file: str | None, directory: Path, what: str) -> bytes | None:
    """Inline data wins over a file, as in client-go."""
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error:
            raise Misconfigured(f"{what}-data is not base64; write it with `base64 -w0`") from None
    return _read(directory / file, what) if file else None


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Misconfigured(f"{what}: {path}: {error.strerror}") from None
