"""Database URLs: where the history is kept, in the form that SQLAlchemy needs. Passwords are not shown.

`sqlite:///relative`, `sqlite:////absolute` or a plain path; `postgresql://user:password@host/name` (also
`postgres://`, which is common in `DATABASE_URL`), with libpq's `sslmode`. It does not load SQLAlchemy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from fluence.config import masked
from fluence.errors import InvalidInput

VARIABLES = ("FLUENCE_DATABASE_URL", "DATABASE_URL")
_POSTGRES = ("postgres", "postgresql", "postgresql+asyncpg")
_SQLITE = ("sqlite", "sqlite+aiosqlite")
_CURE = "write sqlite:////var/lib/fluence/history.db, or postgresql://user:password@host/name"


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """A database. Its text has no password."""

    url: str  # for SQLAlchemy
    path: Path | None = None  # of an SQLite file

    @property
    def is_sqlite(self) -> bool:
        return self.path is not None

    def __str__(self) -> str:
        return str(self.path) if self.path is not None else masked(self.url.replace("+asyncpg", "", 1))


def default_path(environ: Mapping[str, str] | None = None) -> Path:
    """The default file, in the XDG state directory."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME") or "/tmp", ".local", "state")  # noqa: PTH118
    return Path(base, "fluence", "history.db")


def find_url(given: str | None, environ: Mapping[str, str] | None = None) -> DatabaseUrl:
    """The database that is named here or by a variable (`VARIABLES`), otherwise the default file."""
    environ = os.environ if environ is None else environ
    for text in (given, *(environ.get(variable) for variable in VARIABLES)):
        if text:
            return parse_url(text)
    return _file(default_path(environ))


def parse_url(text: str) -> DatabaseUrl:
    """Read a URL, or the path of a file."""
    text = text.strip()
    if "://" not in text:
        if not text or ":" in text.partition("/")[0]:
            raise InvalidInput(f"this is no database: {_CURE}", where="database-url")
        return _file(Path(text))
    scheme = text.partition("://")[0]
    if scheme in _SQLITE:
        path = unquote(text.partition("://")[2].partition("?")[0])
        if not path.startswith("/") or len(path) < 2:
            raise InvalidInput(f"an SQLite URL has three slashes and a path: {_CURE}", where="database-url")
        return _file(Path(path[1:]))
    if scheme in _POSTGRES:
        return _postgres(text)
    raise InvalidInput(f"{scheme[:40]!r} is no database that is known: {_CURE}", where="database-url")


def _file(path: Path) -> DatabaseUrl:
    path = path.expanduser()
    # SQLAlchemy splits at "?" and unquotes.
    return DatabaseUrl(f"sqlite+aiosqlite:///{quote(str(path))}", path)


def _postgres(text: str) -> DatabaseUrl:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise InvalidInput(
            f"its address cannot be read: {_CURE}; in a password, / is %2F and @ is %40", where="database-url"
        ) from None
    # asyncpg's name for libpq's sslmode; the values are the same.
    query = urlencode([("ssl" if key == "sslmode" else key, value) for key, value in parse_qsl(parts.query)])
    return DatabaseUrl(f"postgresql+asyncpg://{parts.netloc}{parts.path}{'?' if query else ''}{query}")
