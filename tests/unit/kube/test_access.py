import base64
import os
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st

from fluence.clock import ManualClock
from fluence.kube.access import IN_CLUSTER_DIR, Access, ExecEnv, ExecPlugin, find_access
from fluence.kube.auth import EXEC_VERSIONS, Authenticator, Credentials
from fluence.kube.client import Client
from fluence.kube.errors import Misconfigured, Unauthorized
from tests.unit.kube.serving import serving


def write(
    path: Path,
    *,
    server: str = "https://one",
    user: dict[str, object] | None = None,
    current: str = "c",
    cluster: dict[str, object] | None = None,
) -> Path:
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": current,
                "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
                "users": [{"name": "u", "user": user or {}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
            }
        )
    )
    return path


def test_a_kubeconfig_with_inline_and_relative_certificates(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(b"CA")
    data = base64.b64encode(b"CERT").decode()
    (tmp_path / "key").write_bytes(b"KEY")
    path = write(
        tmp_path / "config",
        cluster={"certificate-authority": "ca.crt", "tls-server-name": "k8s", "proxy-url": "http://p"},
        user={"client-certificate-data": data, "client-key": "key"},
    )
    access = find_access(kubeconfig=path)
    assert (access.server, access.namespace, access.ca) == ("https://one", "team", b"CA")
    assert (access.client_cert, access.client_key, access.tls_server_name) == (b"CERT", b"KEY", "k8s")
    assert access.proxy_url == "http://p"
    assert "CERT" not in repr(access)


def test_a_list_of_kubeconfigs_merges_and_the_first_word_wins(tmp_path: Path) -> None:
    one = write(tmp_path / "one", server="https://one", user={"token": "t1"})
    two = write(tmp_path / "two", server="https://two", user={"token": "t2"})
    extra = yaml.safe_load(two.read_text())
    extra["contexts"].append({"name": "other", "context": {"cluster": "c", "user": "u"}})
    two.write_text(yaml.safe_dump(extra))
    env = {"KUBECONFIG": f"{tmp_path}/missing:{one}:{two}"}
    assert find_access(env=env).server == "https://one"
    found = find_access(env=env, context="other")
    assert (found.token, found.namespace) == ("t1", "default")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"current-context": "gone"}, "no context named 'gone'; pass --context NAME (there: c)"),
        ({"current-context": None}, "no current-context; pass --context NAME (there: c)"),
        ({"clusters": []}, "names cluster 'c', which is not there (none)"),
        ({"users": []}, "names user 'u', which is not there (none)"),
        ({"clusters": [{"name": "c", "cluster": {"server": "one:6443"}}]}, "must start with https://"),
        ({"users": [{"name": "u", "user": {"client-certificate-data": "!!"}}]}, "is not base64"),
        ({"users": [{"name": "u", "user": {"client-certificate": "nowhere"}}]}, "No such file"),
        ({"users": [{"name": "u", "user": {"client-key-data": "aGk="}}]}, "client-certificate is missing"),
        ({"users": [{"name": "u", "user": {"auth-provider": {"name": "gcp"}}}]}, "use an exec plugin"),
        ({"contexts": "what"}, "not a kubeconfig"),
    ],
)
def test_a_wrong_kubeconfig_is_named_with_the_cure(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    path = write(tmp_path / "config")
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **change}))
    with pytest.raises(Misconfigured) as caught:
        find_access(kubeconfig=path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_configuration_at_all_says_what_there_is_to_do(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="fluence sandbox up"):
        find_access(env={"HOME": str(tmp_path)})
    with pytest.raises(Misconfigured, match="no such kubeconfig"):
        find_access(kubeconfig=tmp_path / "x")
    (tmp_path / "bad").write_text("a: [")
    with pytest.raises(Misconfigured, match="not valid YAML"):
        find_access(kubeconfig=tmp_path / "bad")


def in_pod(folder: Path) -> Access:
    for name, text in (("token", "one\n"), ("ca.crt", "CA"), ("namespace", "team")):
        (folder / name).write_text(text)
    env = {"HOME": str(folder), "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    return find_access(env={**env, IN_CLUSTER_DIR: str(folder)})


async def test_inside_a_pod_the_token_is_read_again_every_minute(tmp_path: Path) -> None:
    access, clock = in_pod(tmp_path), ManualClock()
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "team")
    auth = Authenticator(access, clock=clock)
    assert (await auth.credentials()).header == "Bearer one"
    (tmp_path / "token").write_text("two")
    clock.advance(59)
    assert (await auth.credentials()).header == "Bearer one"
    clock.advance(2)
    assert (await auth.credentials()).header == "Bearer two"


async def test_a_401_reads_the_token_again_once(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    seen: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["Authorization"])
        return web.Response(body=b"{}", status=200 if seen[-1] == "Bearer new" else 401)

    async with serving(handler) as server:
        access = Access(server=server.server, token_file=tmp_path / "token")
        async with Client(access) as client:
            with pytest.raises(Unauthorized):
                await client.request("GET", "/version")
            (tmp_path / "token").write_text("new")
            await client.request("GET", "/version")
    assert seen == ["Bearer old", "Bearer old", "Bearer new"]


def jwt(claims: bytes) -> str:
    return f"e30.{base64.urlsafe_b64encode(claims).rstrip(b'=').decode()}.c2lnbmVk"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"token": jwt(b'{"exp": 1799999000}')}, "the token in my.kubeconfig expired at 2027-01-15 07:43:20"),
        ({"token_file": "token"}, "token expired at 2027-01-15 07:43:20 UTC: its writer must renew it"),
        ({"exec_plugin": "login"}, "of my.kubeconfig gave expired at 2027-01-15 07:43:20 UTC: log in again"),
        ({"token": jwt(b'{"exp": 1800009000}')}, "missing, wrong or expired"),  # not yet: something else
        ({"token": "opaque"}, "missing, wrong or expired"),
    ],
)
async def test_a_401_names_what_has_expired(tmp_path: Path, how: dict[str, object], words: str) -> None:
    late = jwt(b'{"exp": 1799999000}')
    (tmp_path / "token").write_text(late)
    if "token_file" in how:
        how = {"token_file": tmp_path / "token"}
    elif "exec_plugin" in how:
        how = {"exec_plugin": plugin(tmp_path, printing(EXEC_VERSIONS[0], f'{{"token": "{late}"}}'))}

    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"{}", status=401)

    async with serving(refuse) as server:
        access = Access(server=server.server, source="my.kubeconfig", **how)  # type: ignore[arg-type]
        async with Client(access, clock=ManualClock(now=1_800_000_000)) as client:
            with pytest.raises(Unauthorized, match=words):
                await client.request("GET", "/version")


@given(st.text() | st.binary().map(jwt) | st.floats().map(lambda end: jwt(f'{{"exp": {end}}}'.encode())))
@example(jwt(b'{"exp": 1e300}'))
def test_any_token_is_looked_at_without_a_fault(token: str) -> None:
    auth = Authenticator(Access(server="https://one"), clock=ManualClock())
    assert "\n" not in auth.expired(Credentials(f"Bearer {token}", token.encode()))


def plugin(tmp_path: Path, body: str, **options: object) -> ExecPlugin:
    script = tmp_path / "login"
    script.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\n{body}\n")
    script.chmod(0o755)
    return ExecPlugin(str(script), **{"api_version": "client.authentication.k8s.io/v1", **options})  # type: ignore[arg-type]


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().splitlines())


def printing(version: str, status: str) -> str:
    """A shell command that prints an ExecCredential; $WHO in it is the plugin's own environment."""
    document = f'{{"apiVersion": "{version}", "kind": "ExecCredential", "status": {status}}}'
    return f"cat <<END\n{document}\nEND"


@pytest.mark.parametrize("version", EXEC_VERSIONS)
async def test_an_exec_plugin_runs_once_until_its_token_expires(tmp_path: Path, version: str) -> None:
    clock = ManualClock()
    status = '{"token": "t", "expirationTimestamp": "2027-01-15T09:00:00Z"}'
    program = plugin(tmp_path, printing(version, status), api_version=version)
    auth = Authenticator(Access(server="https://x", exec_plugin=program), clock=clock)
    assert (await auth.credentials()).header == "Bearer t"
    await auth.credentials()
    assert runs(tmp_path) == 1
    clock.advance(3600 - 29)  # 2027-01-15T09:00:00Z is an hour after the clock's start
    await auth.credentials()
    assert runs(tmp_path) == 2


async def test_an_exec_plugin_gets_the_cluster_and_its_own_environment(tmp_path: Path) -> None:
    tell = f'echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info'
    body = "\n".join([tell, printing(EXEC_VERSIONS[0], '{"token": "$WHO"}')])
    program = plugin(tmp_path, body, env=[ExecEnv("WHO", "me")], provide_cluster_info=True)
    auth = Authenticator(Access(server="https://x", exec_plugin=program, ca=b"CA"))
    assert (await auth.credentials()).header == "Bearer me"
    info = yaml.safe_load((tmp_path / "info").read_text())
    assert info["spec"]["cluster"] == {"server": "https://x", "certificate-authority-data": "Q0E="}


@pytest.mark.parametrize(
    ("body", "options", "words"),
    [
        ("echo boom >&2; exit 3", {}, "failed: boom"),
        ("echo nonsense", {}, "printed no ExecCredential"),
        ("echo '{}'", {}, "expected an ExecCredential"),
        (
            "true",
            {"api_version": "client.authentication.k8s.io/v1alpha1"},
            "use client.authentication.k8s.io/v1",
        ),
        ("true", {"interactive_mode": "Always"}, "wants a terminal"),
    ],
)
async def test_a_failing_exec_plugin_is_named_with_its_words(
    tmp_path: Path, body: str, options: dict[str, object], words: str
) -> None:
    auth = Authenticator(
        Access(server="https://x", exec_plugin=plugin(tmp_path, body, **options), source="cfg")
    )
    with pytest.raises(Misconfigured) as caught:
        await auth.credentials()
    assert words in str(caught.value)
    assert str(caught.value).startswith("cfg: ")


async def test_a_missing_exec_plugin_shows_the_hint_of_the_kubeconfig() -> None:
    program = ExecPlugin(
        "no-such-login", "client.authentication.k8s.io/v1", install_hint="get it at\n example.org"
    )
    with pytest.raises(Misconfigured, match=r"not on this machine; get it at example\.org"):
        await Authenticator(Access(server="https://x", exec_plugin=program)).credentials()


def test_home_is_the_users(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", server="https://home")
    assert find_access(env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]}).server == "https://home"
