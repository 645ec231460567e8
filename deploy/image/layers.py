"""Layers: a part of the image's file system in memory, and the one tar file that it always becomes."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class File:
    """A file, a symbolic link or, without either, a directory. All belong to root."""

    mode: int
    data: bytes | None = None
    link: str | None = None


@dataclass(slots=True)
class Layer:
    """Paths without a leading slash, and what is there."""

    what: str
    files: dict[str, File] = field(default_factory=dict)

    def add(self, path: str, data: bytes | str, mode: int = 0o644) -> None:
        content = data.encode() if isinstance(data, str) else data
        self.files[path] = File(mode, data=content)

    def drop(self, patterns: Iterable[str]) -> None:
        """Leave out what matches; ``a/b*`` takes all below as well, since ``*`` matches a slash."""
        wanted = tuple(patterns)
        self.files = {path: file for path, file in self.files.items() if not _matches(path, wanted)}

    def keep(self, patterns: Iterable[str]) -> None:
        """Leave out what does not match."""
        wanted = tuple(patterns)
        self.files = {path: file for path, file in self.files.items() if _matches(path, wanted)}

    def extract(self, folder: Path) -> None:
        """Write it out; modes count, owners do not."""
        for path, file in self.whole():
            target = folder / path
            if file.link is not None:
                target.symlink_to(file.link)
            elif file.data is not None:
                target.write_bytes(file.data)
                target.chmod(file.mode)
            else:
                target.mkdir(exist_ok=True)
                target.chmod(file.mode | 0o700)

    def whole(self) -> Iterator[tuple[str, File]]:
        """In order, with every directory above a file before it."""
        everything = dict(self.files)
        for path in self.files:
            for parent in PurePosixPath(path).parents:
                everything.setdefault(str(parent), File(0o755))
        everything.pop(".", None)
        yield from sorted(everything.items())

    def tar(self, epoch: int) -> bytes:
        """The same bytes for the same files: names sorted, one time, one owner, no compression (whose output
        differs between zlibs)."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path, file in self.whole():
                entry = tarfile.TarInfo(path)
                entry.mode, entry.mtime = file.mode, epoch
                if file.link is not None:
                    entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, file.link, 0o777
                    tar.addfile(entry)
                elif file.data is not None:
                    entry.size = len(file.data)
                    tar.addfile(entry, io.BytesIO(file.data))
                else:
                    entry.type = tarfile.DIRTYPE
                    tar.addfile(entry)
        return buffer.getvalue()


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
