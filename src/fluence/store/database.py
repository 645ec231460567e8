"""Database: connections to SQLite or PostgreSQL, and the revision of the tables, forward or back.

A revision also works for the previous release: columns are added with defaults, so an older leader can still
write while a newer one takes over.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from fluence.database_url import DatabaseUrl
from fluence.errors import Conflict, NotFound
from fluence.store.tables import REVISIONS, version

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "head"
BUSY_S = 5.0  # the longest wait for a lock, or for a connection
_LOCK = 0x666C75656E6365  # "fluence": the advisory lock of a migration, on PostgreSQL


def writing_engine(url: DatabaseUrl) -> AsyncEngine:
    """For the one writer."""
    if url.path is not None:
        url.path.parent.mkdir(parents=True, exist_ok=True)
        return _sqlite(url.url, begin="BEGIN IMMEDIATE")
    return _postgres(url)


def reading_engine(url: DatabaseUrl) -> AsyncEngine:
    """For readers."""
    if url.path is None:
        return _postgres(url)
    if not url.path.exists():
        raise NotFound(
            f"no history at {url}: the scheduler keeps one where `database-url` says; name it with --database"
        )
    return _sqlite(url.url.replace(":///", ":///file:", 1) + "?mode=ro&uri=true", begin="BEGIN")


def _sqlite(url: str, *, begin: str) -> AsyncEngine:
    engine = create_async_engine(url, connect_args={"timeout": BUSY_S})
    writes = begin != "BEGIN"

    @event.listens_for(engine.sync_engine, "connect")
    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin explicitly, see below
        cursor = connection.cursor()
        if writes:
            cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before the first table, or it does nothing
            cursor.execute("PRAGMA journal_mode=WAL")
            # A crash of the machine may lose the last second: it is history, and cannot break the file.
            cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begun(connection: Any) -> None:
        # A transaction that becomes a writing one halfway cannot wait for the lock, and fails.
        connection.exec_driver_sql(begin)

    return engine


def _postgres(url: DatabaseUrl) -> AsyncEngine:
    return create_async_engine(
        url.url,
        pool_size=1,
        max_overflow=1,
        pool_pre_ping=True,  # a server that was started again is found out before a write is tried
        connect_args={
            "timeout": BUSY_S,
            "command_timeout": 30.0,
            "server_settings": {"application_name": "fluence", "lock_timeout": str(int(BUSY_S * 1000))},
        },
    )


# Imported late below: alembic is slow to import, and readers do not need it.


def _quiet() -> None:
    """Alembic logs each of its steps, and its own plug-ins when it is imported. Neither belongs in a
    scheduler's log."""
    logging.getLogger("alembic").setLevel(logging.WARNING)


def revision(connection: Connection) -> str | None:
    """The revision of a database; None if it has no tables yet."""
    if not inspect(connection).has_table(version.name):
        return None
    current: str | None = connection.scalar(select(version.c.version_num))
    return current


def migrate(connection: Connection, to: str = HEAD) -> str | None:
    """Migrate the tables to a revision, to `head`, or back to `base`; returns the resulting revision. Tables
    of a later release are not changed."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    known, current = REVISIONS, revision(connection)
    if current is not None and current not in known:
        if to == HEAD:
            return current
        raise Conflict(f"the history has revision {current}, of a later release: use that release's program")
    wanted = known[-1] if to == HEAD else to
    if wanted != "base" and wanted not in known:
        raise Conflict(f"no revision {to}: there are base, {', '.join(known)}")
    if wanted == current:
        return current
    _quiet()
    from alembic import command

    places = ["base", *known]
    go = command.upgrade if places.index(wanted) >= places.index(current or "base") else command.downgrade
    go(alembic_config(connection), wanted)
    return revision(connection)


def alembic_config(connection: Connection | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    if connection is not None:
        config.attributes["connection"] = connection
    return config
