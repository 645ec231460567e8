"""Oci: layers and a configuration as one archive that containerd, podman and docker load.

An OCI image layout (image-spec 1.1) in a tar file, with the manifest.json that older dockers look for.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.image.layers import digest

CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True, slots=True)
class Image:
    """What `write` makes an archive of."""

    name: str  # repository and tag, such as fluence:0.1.0
    arch: str
    epoch: int
    layers: Sequence[tuple[str, bytes]]  # what it is, and its tar
    config: Mapping[str, Any]


def write(image: Image, out: Path) -> str:
    """Write the archive; returns the digest of its manifest, by which a registry knows it."""
    created = datetime.fromtimestamp(image.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    blobs = {digest(data): data for _, data in image.layers}
    config = encode(
        {
            "architecture": image.arch,
            "os": "linux",
            "created": created,
            "config": image.config,
            "rootfs": {"type": "layers", "diff_ids": [digest(data) for _, data in image.layers]},
            "history": [{"created": created, "created_by": what} for what, _ in image.layers],
        }
    )
    blobs[digest(config)] = config
    manifest = encode(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, config),
            "layers": [_descriptor(LAYER, data) for _, data in image.layers],
        }
    )
    blobs[digest(manifest)] = manifest
    _, _, tag = image.name.rpartition(":")
    names = {"io.containerd.image.name": full_name(image.name), "org.opencontainers.image.ref.name": tag}
    where = {"platform": {"architecture": image.arch, "os": "linux"}, "annotations": names}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [_descriptor(MANIFEST, manifest) | where]}
    files = {
        "oci-layout": encode({"imageLayoutVersion": "1.0.0"}),
        "index.json": encode(index),
        "manifest.json": encode(
            [
                {
                    "Config": _blob(digest(config)),
                    "RepoTags": [image.name],
                    "Layers": [_blob(digest(data)) for _, data in image.layers],
                }
            ]
        ),
        **{_blob(name): data for name, data in blobs.items()},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.part")
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(files[name]), image.epoch
            tar.addfile(entry, io.BytesIO(files[name]))
    part.replace(out)
    return digest(manifest)


def full_name(name: str) -> str:
    """The name as containerd keeps it: `fluence:1` is `docker.io/library/fluence:1`."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def encode(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def _blob(name: str) -> str:
    return "blobs/" + name.replace(":", "/")
