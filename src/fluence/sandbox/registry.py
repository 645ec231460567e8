"""Registry: serves the images that were loaded into a sandbox to its real nodes, read-only.

A pod whose image has the tag `latest` pulls it each time (imagePullPolicy Always), so importing alone is not
enough. This is the part of the OCI distribution specification (v1.1) that a pull needs: manifests by tag and
by digest, and blobs. A name belongs to the registry that it starts with, which containerd passes as
`?ns=docker.io`.
"""

from __future__ import annotations

import re
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copyfileobj
from urllib.parse import parse_qs, urlsplit

import msgspec

from fluence.sandbox.folders import locked
from fluence.sandbox.images import OCI_MANIFEST, unpack_archive

_INDEX = "index.json"
_PATH = re.compile(r"/v2/(?P<name>.+)/(?P<kind>manifests|blobs)/(?P<which>[^/]+)")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


class _Manifest(msgspec.Struct, rename="camel"):
    media_type: str = OCI_MANIFEST  # OCI allows to leave it out


def add_image(archive: Path, folder: Path) -> list[str]:
    """Add the images of an archive to the served directory. Returns their names."""
    with locked(folder):
        digests = unpack_archive(archive, folder)
        merged = {**_names(folder), **digests}
        part = folder / f"{_INDEX}.part"
        part.write_bytes(msgspec.json.encode(merged))
        part.replace(folder / _INDEX)
    return list(digests)


def _names(folder: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode((folder / _INDEX).read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}


class RegistryRequest(BaseHTTPRequestHandler):
    """One GET or HEAD; ``folder`` is set by ``serve``."""

    folder: Path
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        url = urlsplit(self.path)
        if url.path == "/v2/":
            self._send(None, "application/json", "", body=body)
            return
        asked = _PATH.fullmatch(url.path)
        if asked is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        registry = parse_qs(url.query).get("ns", [""])[0]
        kind, digest = "application/octet-stream", asked["which"]
        if asked["kind"] == "manifests":
            digest = self._digest(f"{registry}/{asked['name']}", asked["which"])
        is_digest = _DIGEST.fullmatch(digest)
        file = self.folder / "sha256" / is_digest[1] if is_digest else None
        if file is None or not file.exists():
            self.send_error(HTTPStatus.NOT_FOUND, "not loaded", "load it: fluence sandbox load IMAGE.tar")
            return
        if asked["kind"] == "manifests":
            kind = msgspec.json.decode(file.read_bytes(), type=_Manifest).media_type
        self._send(file, kind, digest, body=body)

    def _digest(self, name: str, which: str) -> str:
        return which if _DIGEST.fullmatch(which) else _names(self.folder).get(f"{name}:{which}", "")

    def _send(self, file: Path | None, kind: str, digest: str, *, body: bool) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(file.stat().st_size if file else 0))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if body and file:
            with file.open("rb") as content:
                copyfileobj(content, self.wfile)


def serve(folder: Path, address: str) -> None:
    """Serve until killed."""
    host, _, port = address.rpartition(":")
    RegistryRequest.folder = folder
    with ThreadingHTTPServer((host, int(port)), RegistryRequest) as server:
        server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
