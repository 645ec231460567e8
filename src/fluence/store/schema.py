"""Schema: which revision a database has, and the way to another one, forward or back.

A revision serves the release before it too: columns are added with defaults, so an older leader goes on
writing while a newer one takes over.
"""

from __future__ import annotations

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from fluence.errors import Conflict
from fluence.store.tables import REVISIONS

# Each of its steps and plug-ins is a line for whoever writes migrations, not for who reads a scheduler's log.
logging.getLogger("alembic").setLevel(logging.WARNING)

HEAD = "head"
_LOCK = 0x666C75656E6365  # "fluence": whoever migrates holds it, on PostgreSQL


def revision(connection: Connection) -> str | None:
    """What the database has; None: nothing yet."""
    return MigrationContext.configure(connection).get_current_revision()


def is_newer(found: str | None) -> bool:
    """Whether a later release than this one has been here."""
    return found is not None and found not in REVISIONS


def migrate(connection: Connection, to: str = HEAD) -> str | None:
    """Bring the tables to a revision, or to `head`, or back to `base`; returns what they have then. Tables of
    a later release are let be."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    known, found = REVISIONS, revision(connection)
    if is_newer(found):
        if to == HEAD:
            return found
        raise Conflict(f"the history has revision {found}, of a later release: use that release's program")
    wanted = known[-1] if to == HEAD else to
    if wanted != "base" and wanted not in known:
        raise Conflict(f"no revision {to}: there are base, {', '.join(known)}")
    places = ["base", *known]
    go = command.upgrade if places.index(wanted) >= places.index(found or "base") else command.downgrade
    go(_config(connection), wanted)
    return revision(connection)


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    if connection is not None:
        config.attributes["connection"] = connection
    return config
