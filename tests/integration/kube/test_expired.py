"""Credentials that have really expired, on a real API server: one line says what, since when, and the cure.

The token is signed with the sandbox's own service account key; the certificate by an authority that the
sandbox's API server trusts. Both are also made with time left, and then let in: it is the end alone that is
wrong with them.
"""

import base64
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from fluence.kube.access import find_access
from fluence.kube.client import Client
from fluence.kube.errors import ONCE, Forbidden, Unauthorized
from fluence.kube.resource import PODS
from fluence.sandbox.certs import Authority
from fluence.sandbox.sandbox import Sandbox
from fluence.sandbox.testing import Kube

HOUR = 3600.0
LEASES = r"/apis/coordination\.k8s\.io/v1/namespaces/kube-system/leases"  # what is read first
USER = "late"
User = dict[str, str]


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def token(kube: Kube, *, life_s: float) -> User:
    """What the API server itself would sign for the namespace's default account (RFC 7519, ES256)."""
    key = serialization.load_pem_private_key(kube.sandbox.at.pki("sa.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    path = f"/api/v1/namespaces/{kube.namespace}/serviceaccounts/default"
    command = [str(Path(sys.executable).with_name("fluence")), "sandbox", "kubectl"]
    command += ["--name", kube.sandbox.name, "get", "--raw", path]
    account = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    now = time.time()
    claims = {
        "iss": "https://kubernetes.default.svc",
        "aud": ["https://kubernetes.default.svc"],
        "sub": f"system:serviceaccount:{kube.namespace}:default",
        "iat": int(now - 2 * HOUR),
        "nbf": int(now - 2 * HOUR),
        "exp": int(now + life_s),
        "kubernetes.io": {
            "namespace": kube.namespace,
            "serviceaccount": {"name": "default", "uid": account["metadata"]["uid"]},
        },
    }
    signed = ".".join(encoded(json.dumps(each).encode()) for each in ({"alg": "ES256"}, claims))
    r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return {"token": f"{signed}.{encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"}


def certificate(authority: Authority, *, life_s: float) -> User:
    cert, key = authority.client(USER, life=timedelta(seconds=life_s))
    return {
        "client-certificate-data": base64.b64encode(cert).decode(),
        "client-key-data": base64.b64encode(key).decode(),
    }


def kubeconfig(kube: Kube, user: User, folder: Path) -> Path:
    """The sandbox's own, with another user."""
    config = yaml.safe_load(kube.sandbox.at.kubeconfig().read_text())
    config["users"][0]["user"] = user
    path = folder / "my.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="module")
def authority(own_control_plane: Sandbox) -> Authority:
    """One that the API server trusts besides the sandbox's, whose key nobody has any more."""
    made = Authority("another")
    bundle = own_control_plane.at.pki("ca.crt")
    bundle.write_bytes(bundle.read_bytes() + made.pem)
    own_control_plane.restart("kube-apiserver")
    return made


@pytest.fixture(params=["token", "certificate"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def user(kube: Kube, authority: Authority, kind: str, *, life_s: float) -> User:
    if kind == "token":
        return token(kube, life_s=life_s)
    return certificate(authority, life_s=life_s)


SAID = {
    "token": r"the token in (\S+) \(\S+\) expired at (\S+ \S+) UTC: log in again, or put a new one there",
    "certificate": r"the client certificate in (\S+) \(\S+\) expired at (\S+ \S+) UTC: have it renewed",
}


async def test_what_has_expired_is_said_with_time_and_cure(
    own_sandbox: Kube, authority: Authority, kind: str, tmp_path: Path
) -> None:
    good = kubeconfig(own_sandbox, user(own_sandbox, authority, kind, life_s=HOUR), tmp_path)
    async with Client(find_access(kubeconfig=good), retry=ONCE) as client:
        with pytest.raises(Forbidden) as known:  # known, and without any right
            await client.list(PODS, namespace="default")
    assert (f"system:serviceaccount:{own_sandbox.namespace}:default" if kind == "token" else USER) in str(
        known.value
    )

    ended = time.time() - HOUR / 2
    late = kubeconfig(own_sandbox, user(own_sandbox, authority, kind, life_s=-HOUR / 2), tmp_path)
    async with Client(find_access(kubeconfig=late), retry=ONCE) as client:
        with pytest.raises(Unauthorized) as caught:
            await client.list(PODS, namespace="default")
        with pytest.raises(Unauthorized) as watched:
            async with client.watch(PODS, params={}, idle_s=5):
                pass
    for error in (caught, watched):
        said = str(error.value)
        found = re.search(SAID[kind], said)
        assert found, said
        assert "\n" not in said
        assert found[1] == str(late)
        when = time.mktime(time.strptime(found[2], "%Y-%m-%d %H:%M:%S")) - time.timezone
        assert abs(when - ended) < 120


def fluence(*arguments: str) -> str:
    """What the program says when it fails, which is one line."""
    command = [str(Path(sys.executable).with_name("fluence")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


def test_the_program_says_it_in_one_line(
    own_sandbox: Kube, authority: Authority, kind: str, tmp_path: Path
) -> None:
    late = kubeconfig(own_sandbox, user(own_sandbox, authority, kind, life_s=-HOUR / 2), tmp_path)
    line = fluence("graph", "--live", "--kubeconfig", str(late))
    found = re.search(rf"^fluence: GET {LEASES}: 401 Unauthorized; {SAID[kind]}", line)
    assert found, line
    assert found[1] == str(late)


@pytest.fixture
def restored(own_sandbox: Kube) -> Iterator[Kube]:
    """A sandbox whose kubeconfig is put back."""
    path = own_sandbox.sandbox.at.kubeconfig()
    before = path.read_bytes()
    yield own_sandbox
    path.write_bytes(before)
    own_sandbox.sandbox.restart("kube-apiserver")


def test_a_sandbox_older_than_its_certificates_is_not_waited_for(
    restored: Kube, authority: Authority, tmp_path: Path
) -> None:
    late = certificate(authority, life_s=-HOUR / 2)
    path = restored.sandbox.at.kubeconfig()
    path.write_bytes(kubeconfig(restored, late, tmp_path).read_bytes())
    line = fluence("sandbox", "restart", "kube-apiserver", "--name", restored.sandbox.name)
    found = re.search(rf"^fluence: GET /readyz: 401 Unauthorized; {SAID['certificate']}", line)
    assert found, line
    assert found[1] == str(path)
