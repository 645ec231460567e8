"""Images: the two images that real nodes can always have: the pause program of every pod, and busybox."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fluence.errors import FluenceError
from fluence.sandbox.folders import cache_dir
from fluence.sandbox.oci import ImageConfig, ImageFile, write_archive
from fluence.sandbox.packages import unpack
from fluence.sandbox.realnode import PAUSE

BUSYBOX = "docker.io/library/busybox:latest"
_PASSWD = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = b"root:x:0:\nnogroup:x:65534:\n"


def write_pause(program: Path, target: Path) -> str:
    """The image that holds a pod's namespaces; its digest."""
    file = ImageFile(path="pause", content=program.read_bytes(), mode=0o755)
    config = ImageConfig(entrypoint=("/pause",), user="65535:65535")
    return write_archive(target, [PAUSE], [[file]], config)


def write_busybox(
    program: Path, target: Path, *, names: Sequence[str] = (BUSYBOX,), more: Sequence[ImageFile] = ()
) -> str:
    """A shell and three hundred small tools, from one static program, and ``more`` files; its digest."""
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
    """A static busybox: the machine's own, or that of Debian's package busybox-static, which is unpacked and
    not installed."""
    kept = cache_dir() / "busybox"
    for each in (kept, Path("/bin/busybox"), Path("/usr/bin/busybox")):
        if os.access(each, os.X_OK) and _is_static(each):
            return each
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as temporary:
        try:
            unpack("busybox-static", Path(temporary))
        except FluenceError as error:
            raise FluenceError(
                f"no static busybox: install one (Debian: apt-get install busybox-static); {error}"
            ) from None
        found = next(each for each in Path(temporary).glob("**/bin/busybox") if each.is_file())
        found.rename(kept)
    return kept


def _is_static(program: Path) -> bool:
    """Without PT_INTERP, the loader's name, there is nothing to load."""
    return b"/ld-linux" not in program.read_bytes()[:4096]
