"""Debian: the base of the image, by mmdebstrap: a few packages, unpacked and never configured.

mmdebstrap finds the packages that are needed, downloads them and checks their signatures. No script of a
package runs, so that neither apt nor dpkg, perl or a shell is needed in the image, and no root to build it.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.image.layers import File, Layer, digest

KEYS = Path("/usr/share/keyrings")
ARCHIVES = "var/cache/apt/archives/"


class CannotBuild(Exception):
    """What stands in the way, and the cure."""


@dataclass(frozen=True, slots=True)
class Deb:
    """A package: its control fields, its files and its digest."""

    control: str
    sha256: str
    files: Mapping[str, File]

    def field(self, name: str) -> str:
        found = re.search(rf"^{name}: (.*)$", self.control, re.MULTILINE)
        return found[1].strip() if found else ""

    @property
    def name(self) -> str:
        return self.field("Package")

    @property
    def version(self) -> str:
        return self.field("Version")


def fetch(recipe: Mapping[str, Any], arch: str, *, mirror: str | None, security: str | None) -> list[Deb]:
    """The packages that the recipe names and all that they depend on, as the archive has them now."""
    program = shutil.which("mmdebstrap")
    if program is None:
        raise CannotBuild(
            "no mmdebstrap on PATH: `apt-get install mmdebstrap` (as root), or build with the Dockerfile"
        )
    lines = [
        line.format(mirror=mirror or recipe["mirror"], security=security or recipe["security"])
        for line in recipe["sources"]
    ]
    # extract: unpack only. With these steps skipped, the .deb files stay in what it gives us.
    command = [
        program,
        "--variant=extract",
        f"--architectures={arch}",
        f"--include={','.join(recipe['packages'])}",
    ]
    command += ["--skip=download/empty,essential/unlink,cleanup/apt", "--format=tar", "--quiet"]
    command += [f"--keyring={KEYS}"] if any(KEYS.glob("debian-archive-*")) else []
    with tempfile.TemporaryDirectory(prefix="fluence-image-") as folder:
        out = Path(folder, "base.tar")
        done = subprocess.run(
            [*command, recipe["suite"], str(out), "-"],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            check=False,
        )
        if done.returncode != 0:
            raise CannotBuild(_why(done.stderr))
        with tarfile.open(out) as tar:
            archives = [each for each in tar if each.name.removeprefix("./").startswith(ARCHIVES)]
            debs = [read_deb(_read(tar, each)) for each in archives if each.name.endswith(".deb")]
    return sorted(debs, key=lambda deb: deb.name)


def _why(said: str) -> str:
    lines = [line for line in said.splitlines() if line.startswith("E:")] or said.splitlines()[-3:]
    text = " ".join(" ".join(lines).split())[:500]
    cure = ""
    if any(word in said for word in ("chroot mode", "unshare", "newuidmap", "subuid")):
        cure = "; without root it needs `apt-get install uidmap` and a range of ids for you in /etc/subuid"
    return f"mmdebstrap failed: {text}{cure}"


def read_deb(content: bytes) -> Deb:
    """An ar archive with control.tar and data.tar (deb(5))."""
    members = dict(_ar(content))
    control = next(data for name, data in members.items() if name.startswith("control.tar"))
    with tarfile.open(fileobj=io.BytesIO(control)) as tar:
        text = _read(tar, tar.getmember("./control")).decode()
    name, data = next((name, data) for name, data in members.items() if name.startswith("data.tar"))
    if name.endswith(".zst"):
        raise CannotBuild(f"{name}: zstd packages are not read; use a Debian suite, whose packages are xz")
    files: dict[str, File] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for entry in tar:
            path = entry.name.removeprefix("./").rstrip("/")
            if not path or path == ".":
                continue
            if entry.issym():
                files[path] = File(0o777, link=entry.linkname)
            elif entry.isdir():
                files[path] = File(entry.mode)
            else:  # hard links too: their content
                files[path] = File(entry.mode & 0o1777, data=_read(tar, entry))
    return Deb(text, digest(content).removeprefix("sha256:"), files)


def _ar(content: bytes) -> Sequence[tuple[str, bytes]]:
    if not content.startswith(b"!<arch>\n"):
        raise CannotBuild("a package is not an ar archive")
    found, at = [], 8
    while at < len(content):
        header = content[at : at + 60]
        size = int(header[48:58])
        found.append((header[:16].decode().strip().rstrip("/"), content[at + 60 : at + 60 + size]))
        at += 60 + size + size % 2
    return found


def _read(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(entry)
    assert file is not None, entry.name
    return file.read()


def base_layer(recipe: Mapping[str, Any], debs: Sequence[Deb], *, user: int) -> tuple[Layer, list[Deb]]:
    """The layer, and the packages that are in it."""
    kept = [deb for deb in debs if deb.name not in recipe["without"]]
    gone = set(recipe["without"]) - {deb.name for deb in debs}
    if gone:
        raise CannotBuild(
            f"image.toml: debian.without names {', '.join(sorted(gone))}, which nothing asks for"
        )
    layer = Layer("Debian")
    for deb in kept:
        for path, file in deb.files.items():
            if not (file.data is None and file.link is None and path in layer.files):
                layer.files[path] = file
    # A package may have no more than a link to the copyright of another one.
    links = {path for path, file in layer.files.items() if path.startswith("usr/share/doc/") and file.link}
    layer.keep([*recipe["keep"], *(link for link in links if link.count("/") == 3)])
    layer.drop(recipe["drop"])
    # Scanners of vulnerabilities look for packages here when there is no dpkg (as distroless images have it).
    for deb in kept:
        layer.add(f"var/lib/dpkg/status.d/{deb.name}", deb.control.rstrip() + "\n")
    layer.add(
        "etc/passwd",
        f"root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:{user}:{user}:nonroot:/:/sbin/nologin\n",
    )
    layer.add("etc/group", f"root:x:0:\nnonroot:x:{user}:\n")
    layer.add("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    return layer, kept
