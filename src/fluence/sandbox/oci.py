"""Oci: writes and reads OCI image archives in pure Python; the same files give the same bytes.

An archive is a tar of the OCI image layout: ``oci-layout``, ``index.json`` and one blob each for a layer, the
configuration and the manifest (https://github.com/opencontainers/image-spec, v1.1). ``ctr images import``,
podman and skopeo read it.
"""

from __future__ import annotations

import hashlib
import io
import platform
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from fluence.errors import InvalidInput

Json = dict[str, Any]
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


class ImageFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a layer; with ``link``, a symbolic link."""

    path: str  # from the root, without a leading slash
    content: bytes = b""
    mode: int = 0o644
    link: str = ""


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a container of the image runs, and as whom."""

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    env: Sequence[str] = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)
    user: str = ""


def write_archive(
    target: Path, names: Sequence[str], layers: Sequence[Sequence[ImageFile]], config: ImageConfig
) -> str:
    """Write an image under these full names (``docker.io/library/busybox:latest``); its digest."""
    blobs = [_layer(files) for files in layers]
    settings = {
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.command),
        "Env": list(config.env),
        "User": config.user,
    }
    described = {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": {key: value for key, value in settings.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [_digest(blob) for blob in blobs]},
    }
    configuration = msgspec.json.encode(described)
    manifest = msgspec.json.encode(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": _descriptor(_CONFIG, configuration),
            "layers": [_descriptor(_LAYER, blob) for blob in blobs],
        }
    )
    entries = [_descriptor(OCI_MANIFEST, manifest) | {"annotations": dict.fromkeys(_NAMES, n)} for n in names]
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": entries}
    content = {f"blobs/sha256/{_digest(each)[7:]}": each for each in (*blobs, configuration, manifest)}
    content["index.json"] = msgspec.json.encode(index)
    content["oci-layout"] = b'{"imageLayoutVersion":"1.0.0"}'
    target.write_bytes(_tar([ImageFile(path=path, content=content[path]) for path in sorted(content)]))
    return _digest(manifest)


def unpack_archive(archive: Path, folder: Path) -> dict[str, str]:
    """Put an archive's blobs into ``folder/sha256``; the digest of each image by full name."""
    try:
        with tarfile.open(archive) as tar:
            index = _index(tar, archive)
            (folder / "sha256").mkdir(parents=True, exist_ok=True)
            for member in tar:
                path = PurePosixPath(member.name)
                if member.isfile() and path.parts[-3:-1] == ("blobs", "sha256"):
                    _store(tar, member, folder / "sha256" / path.name, archive)
    except OSError as error:
        raise InvalidInput(error.strerror or str(error), where=str(archive)) from None
    except tarfile.TarError as error:
        raise InvalidInput(f"not a tar archive: {error}", where=str(archive)) from None
    found = {}
    for each in index.get("manifests") or ():
        notes = each.get("annotations") or {}
        name = next((notes[key] for key in _NAMES if notes.get(key)), "")
        if "/" in name:  # NB some writers put the bare tag into the second
            found[name] = each["digest"]
    if not found:
        raise InvalidInput(
            f"no image in it has a full name: write one such as docker.io/library/busybox:latest as the "
            f"annotation {_NAMES[0]} of its index.json",
            where=str(archive),
        )
    return found


def _index(tar: tarfile.TarFile, archive: Path) -> Json:
    names = {each.name.removeprefix("./"): each for each in tar}
    if "index.json" not in names:
        raise InvalidInput(
            "not an OCI archive, it has no index.json: write one with `make image`, "
            "`docker buildx build --output type=oci` or `skopeo copy … oci-archive:FILE`",
            where=str(archive),
        )
    file = tar.extractfile(names["index.json"])
    try:
        return msgspec.json.decode(file.read() if file else b"", type=Json)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"its index.json is not JSON: {error}", where=str(archive)) from None


def _store(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, archive: Path) -> None:
    """One blob, checked against the digest that is its name."""
    part, hashed = target.with_suffix(".part"), hashlib.sha256()
    source = tar.extractfile(member)
    assert source is not None
    with part.open("wb") as out:
        while piece := source.read(1 << 20):
            hashed.update(piece)
            out.write(piece)
    if hashed.hexdigest() != target.name:
        part.unlink()
        raise InvalidInput(f"blob sha256:{target.name} is damaged: its digest differs", where=str(archive))
    part.replace(target)


def _layer(files: Sequence[ImageFile]) -> bytes:
    folders = {str(parent) for each in files for parent in PurePosixPath(each.path).parents} - {"."}
    return _tar(files, folders=sorted(folders))


def _tar(files: Sequence[ImageFile], *, folders: Sequence[str] = ()) -> bytes:
    """Nothing of the day or the machine is in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for folder in folders:
            entry = tarfile.TarInfo(f"{folder}/")
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for each in files:
            entry = tarfile.TarInfo(each.path)
            entry.mode, entry.size = each.mode, len(each.content)
            if each.link:
                entry.type, entry.linkname = tarfile.SYMTYPE, each.link
            tar.addfile(entry, io.BytesIO(each.content))
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _descriptor(kind: str, content: bytes) -> Json:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}
