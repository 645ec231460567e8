"""OCI archives: written alike each time, checked when read, and served as a registry serves them."""

import hashlib
import http.client
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from fluence.errors import InvalidInput
from fluence.sandbox.images import ImageConfig, ImageFile, unpack_archive, write_archive
from fluence.sandbox.registry import RegistryRequest, add_image

NAME = "docker.io/library/tool:latest"
FILES = [
    ImageFile(path="bin/tool", content=b"#!/bin/sh\n", mode=0o755),
    ImageFile(path="bin/alias", link="tool"),
]


def image(target: Path, *names: str) -> str:
    return write_archive(
        target, names or [NAME], [FILES], ImageConfig(entrypoint=("/bin/tool",), user="1000")
    )


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    digests = {image(tmp_path / name) for name in ("one.tar", "two.tar")}
    assert len(digests) == 1
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_an_archive_is_what_the_specification_says(tmp_path: Path) -> None:
    digest = image(tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as tar:
        files = {each.name: tar.extractfile(each).read() for each in tar}
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["digest"] == digest
    assert entry["annotations"]["io.containerd.image.name"] == NAME

    def blob(descriptor: dict[str, str]) -> bytes:
        content = files[f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"]
        assert hashlib.sha256(content).hexdigest() in descriptor["digest"]
        assert len(content) == descriptor["size"]
        return content

    manifest = json.loads(blob(entry))
    config = json.loads(blob(manifest["config"]))
    assert config["config"]["Entrypoint"] == ["/bin/tool"] and config["config"]["User"] == "1000"
    (layer,) = manifest["layers"]
    assert config["rootfs"]["diff_ids"] == [layer["digest"]]
    with tarfile.open(fileobj=io.BytesIO(blob(layer))) as tar:
        found = {each.name: each for each in tar}
    assert found["bin"].isdir()
    assert found["bin/tool"].mode == 0o755 and found["bin/tool"].mtime == 0
    assert found["bin/alias"].linkname == "tool"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"manifest.json": b"[]"}, "not an OCI archive, it has no index.json: write one with `make image`"),
        ({"index.json": b"{"}, "its index.json is not JSON"),
        (
            {"index.json": b"{}"},
            "no image in it has a full name: write one such as docker.io/library/busybox",
        ),
        ({"index.json": b"{}", f"blobs/sha256/{'0' * 64}": b"x"}, "is damaged: its digest differs"),
    ],
)
def test_an_archive_that_is_wrong_is_refused_with_the_cure(
    tmp_path: Path, content: dict[str, bytes], words: str
) -> None:
    archive = tmp_path / "image.tar"
    with tarfile.open(archive, "w") as tar:
        for name, body in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
    with pytest.raises(InvalidInput) as caught:
        unpack_archive(archive, tmp_path / "out")
    assert str(caught.value).startswith(f"{archive}: ") and words in str(caught.value)
    assert not list((tmp_path / "out").rglob("*.part"))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[http.client.HTTPConnection]:
    RegistryRequest.folder = tmp_path / "images"
    with ThreadingHTTPServer(("127.0.0.1", 0), RegistryRequest) as server:
        threading.Thread(target=server.serve_forever).start()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
        yield connection
        connection.close()
        server.shutdown()


def test_a_loaded_image_is_served_by_tag_and_by_digest(
    tmp_path: Path, served: http.client.HTTPConnection, capfd: pytest.CaptureFixture[str]
) -> None:
    digest = image(tmp_path / "image.tar", NAME, "registry.example/tool:2")
    assert add_image(tmp_path / "image.tar", tmp_path / "images") == [NAME, "registry.example/tool:2"]

    def get(path: str) -> tuple[int, str | None, bytes]:
        served.request("GET", path)
        answer = served.getresponse()
        return answer.status, answer.headers.get("Docker-Content-Digest"), answer.read()

    assert get("/v2/")[0] == 200
    status, named, manifest = get("/v2/library/tool/manifests/latest?ns=docker.io")
    assert (status, named) == (200, digest)
    assert get(f"/v2/library/tool/manifests/{digest}?ns=docker.io")[2] == manifest
    assert get("/v2/tool/manifests/2?ns=registry.example")[2] == manifest
    layer = json.loads(manifest)["layers"][0]
    assert len(get(f"/v2/library/tool/blobs/{layer['digest']}")[2]) == layer["size"]
    for wrong in (
        "/v2/library/tool/manifests/latest?ns=other.example",
        "/v2/library/tool/manifests/1?ns=docker.io",
        f"/v2/library/tool/blobs/sha256:{'0' * 64}",
        "/v2/library/tool/blobs/..%2F..%2Findex.json",
        "/v2/x/blobs/../../index.json",
        "/index.json",
    ):
        assert get(wrong)[0] == 404, wrong
