"""Engine: connections to SQLite or PostgreSQL, with what each must be told."""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from fluence.errors import NotFound
from fluence.store.urls import DatabaseUrl

BUSY_S = 5.0  # how long a lock, or a connection, is waited for


def writing_engine(url: DatabaseUrl) -> AsyncEngine:
    """For the one writer."""
    if url.path is not None:
        url.path.parent.mkdir(parents=True, exist_ok=True)
        return _sqlite(url.url, begin="BEGIN IMMEDIATE")
    return _postgres(url)


def reading_engine(url: DatabaseUrl) -> AsyncEngine:
    """For those who only look."""
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
        connection.isolation_level = None  # transactions begin where we say so, see below
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
