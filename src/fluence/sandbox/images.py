"""Images: OCI archives in pure Python, the two images that real nodes always have, and the packages they come
from.

An archive is a tar of the OCI image layout: ``oci-layout``, ``index.json`` and one blob each for a layer, the
configuration and the manifest (https://github.com/opencontainers/image-spec, v1.1). ``ctr images import``,
podman and skopeo read it. The same files give the same bytes.

If several processes need packages at once, such as the workers of a test run on a new machine, one calls apt
and the others wait: apt itself would refuse the second.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from fluence.errors import FluenceError, InvalidInput
from fluence.sandbox.folders import cache_dir, locked

_APT = Path("/var/lib/apt")  # locked by us; apt's own locks are below it
_LOCK_TIMEOUT = "DPkg::Lock::Timeout=300"  # for other users of apt: unattended upgrades, an administrator


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(packages: Sequence[str]) -> None:
    """Install packages as root, for the set-up of tests."""
    with locked(_APT):
        _update()
        _run(["apt-get", "install", "--yes", "--no-install-recommends", *packages])


def unpack(package: str, folder: Path) -> None:
    """Unpack the files of a package into ``folder``. Nothing is installed, and root is only needed if the
    machine's package lists are too old."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise FluenceError(f"no apt-get and dpkg-deb here to get {package} by")
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        try:
            _run(["apt-get", "download", package], cwd=here)
        except FluenceError:
            if not can_install():
                raise
            with locked(_APT):
                _update()
            _run(["apt-get", "download", package], cwd=here)
        (file,) = here.glob("*.deb")
        _run(["dpkg-deb", "--extract", str(file), str(folder)])


def _update() -> None:
    """Update the package lists. An unreachable mirror is not an error: the package may be known or cached."""
    subprocess.run(["apt-get", "update"], capture_output=True, check=False)


def _run(command: list[str], cwd: Path | None = None) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    options = ["-o", _LOCK_TIMEOUT] if command[0] == "apt-get" else []
    done = subprocess.run(
        [command[0], *options, *command[1:]], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise FluenceError(f"{' '.join(command)} failed: {' '.join(done.stderr.split())[-300:]}")


Json = dict[str, Any]
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
PAUSE = "fluence.invalid/pause:1"  # never pulled: every node has it
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


class ImageFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a layer; with ``link``, a symbolic link."""

    path: str  # from the root, without a leading slash
    content: bytes = b""
    mode: int = 0o644
    link: str = ""


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a container of the image runs, and as which user."""

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    env: Sequence[str] = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)
    user: str = ""


def write_archive(
    target: Path, names: Sequence[str], layers: Sequence[Sequence[ImageFile]], config: ImageConfig
) -> str:
    """Write an image under these full names (``docker.io/library/busybox:latest``). Returns its digest."""
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
    content = {f"blobs/sha256/{_digest(blob)[7:]}": blob for blob in (*blobs, configuration, manifest)}
    content["index.json"] = msgspec.json.encode(index)
    content["oci-layout"] = b'{"imageLayoutVersion":"1.0.0"}'
    target.write_bytes(_tar([ImageFile(path=path, content=content[path]) for path in sorted(content)]))
    return _digest(manifest)


def unpack_archive(archive: Path, folder: Path) -> dict[str, str]:
    """Extract the blobs of an archive into ``folder/sha256``. Returns the digest of each image by full
    name."""
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
    digests = {}
    for entry in index.get("manifests") or ():
        notes = entry.get("annotations") or {}
        name = next((notes[key] for key in _NAMES if notes.get(key)), "")
        if "/" in name:  # some writers put the bare tag into the second
            digests[name] = entry["digest"]
    if not digests:
        raise InvalidInput(
            f"no image in it has a full name: write one such as docker.io/library/busybox:latest as the "
            f"annotation {_NAMES[0]} of its index.json",
            where=str(archive),
        )
    return digests


def _index(tar: tarfile.TarFile, archive: Path) -> Json:
    names = {member.name.removeprefix("./"): member for member in tar}
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
    """Store one blob, after checking it against the digest that is its name."""
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
    folders = {str(parent) for file in files for parent in PurePosixPath(file.path).parents} - {"."}
    return _tar(files, folders=sorted(folders))


def _tar(files: Sequence[ImageFile], *, folders: Sequence[str] = ()) -> bytes:
    """Write a tar without times or other traces of this machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for folder in folders:
            entry = tarfile.TarInfo(f"{folder}/")
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for file in files:
            entry = tarfile.TarInfo(file.path)
            entry.mode, entry.size = file.mode, len(file.content)
            if file.link:
                entry.type, entry.linkname = tarfile.SYMTYPE, file.link
            tar.addfile(entry, io.BytesIO(file.content))
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _descriptor(kind: str, content: bytes) -> Json:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}


BUSYBOX = "docker.io/library/busybox:latest"
_PASSWD = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = b"root:x:0:\nnogroup:x:65534:\n"


def write_pause(program: Path, target: Path) -> str:
    """Write the image that holds a pod's namespaces. Returns its digest."""
    file = ImageFile(path="pause", content=program.read_bytes(), mode=0o755)
    config = ImageConfig(entrypoint=("/pause",), user="65535:65535")
    return write_archive(target, [PAUSE], [[file]], config)


def write_busybox(
    program: Path, target: Path, *, names: Sequence[str] = (BUSYBOX,), more: Sequence[ImageFile] = ()
) -> str:
    """Write an image with a shell and three hundred small tools, from one static program, and ``more`` files.
    Returns its digest."""
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    files = [ImageFile(path="bin/busybox", content=program.read_bytes(), mode=0o755)]
    files += [ImageFile(path=f"bin/{name}", link="busybox") for name in sorted(applets) if name != "busybox"]
    files += [
        ImageFile(path="etc/passwd", content=_PASSWD),
        ImageFile(path="etc/group", content=_GROUP),
        ImageFile(path="tmp/.keep"),
        *more,
    ]
    return write_archive(target, names, [files], ImageConfig(command=("sh",)))


def find_busybox() -> Path:
    """A static busybox: the machine's own, or the one of Debian's package busybox-static, which is unpacked
    and not installed."""
    kept = cache_dir() / "busybox"
    for candidate in (kept, Path("/bin/busybox"), Path("/usr/bin/busybox")):
        if os.access(candidate, os.X_OK) and _is_static(candidate):
            return candidate
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as temporary:
        try:
            unpack("busybox-static", Path(temporary))
        except FluenceError as error:
            raise FluenceError(
                f"no static busybox: install one (Debian: apt-get install busybox-static); {error}"
            ) from None
        unpacked = next(
            candidate for candidate in Path(temporary).glob("**/bin/busybox") if candidate.is_file()
        )
        unpacked.rename(kept)
    return kept


def _is_static(program: Path) -> bool:
    """Without PT_INTERP, the loader's name, a program loads nothing."""
    return b"/ld-linux" not in program.read_bytes()[:4096]
