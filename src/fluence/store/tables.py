"""Tables: jobs, the outbox and the gaps, as the newest revision has them.

The migrations in `migrations/versions` make them; a test compares the two. Times are milliseconds since 1970,
so that both databases keep them exactly.
"""

from __future__ import annotations

import sqlalchemy as sa

REVISIONS = ("0001", "0002")
"""All that there are, the oldest first; a test compares them with the modules."""

metadata = sa.MetaData()


def _words(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default="")


def _amount(name: str, type_: type[sa.Integer] = sa.BigInteger) -> sa.Column[int]:
    return sa.Column(name, type_, nullable=False, server_default="0")


def _number() -> sa.Column[int]:
    return sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True)


jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("job", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("run", sa.Integer, primary_key=True, autoincrement=False),
    _words("cluster"),
    _words("scheduler"),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("username", sa.Text, nullable=False),
    sa.Column("queue", sa.Text, nullable=False),
    _amount("priority"),
    sa.Column("pods", sa.Integer, nullable=False),
    _amount("minimum", sa.Integer),
    sa.Column("requests", sa.Text, nullable=False),  # JSON: of all pods
    sa.Column("walltime", sa.BigInteger),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("submitted", sa.BigInteger, nullable=False),
    sa.Column("no_later_than", sa.BigInteger),
    sa.Column("expected", sa.BigInteger),
    sa.Column("started", sa.BigInteger),
    sa.Column("ended", sa.BigInteger),
    _words("nodes"),  # in hostlist form
    _words("reason"),
    sa.Column("updated", sa.BigInteger, nullable=False),
    # -- since 0002 --
    _amount("cpu"),  # thousandths of a core, of all pods
    _amount("memory"),  # bytes
    _amount("gpus"),
    _words("devices"),  # that were its own, with commas between them
    _words("codes"),  # of the reasons, with commas between them
    _amount("broken", sa.Integer),  # promises
    sa.Index("jobs_submitted", "submitted"),
    sa.Index("jobs_ended", "ended"),
    sa.Index("jobs_user", "username", "ended"),
    sa.Index("jobs_open", "cluster", "scheduler", sqlite_where=sa.text("ended IS NULL"),
             postgresql_where=sa.text("ended IS NULL")),
)  # fmt: skip

# alembic's own.
version = sa.Table(
    "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)

# What others may want to act upon: written in the transaction that writes the job. Whoever reads it remembers
# the last number that it has seen.
outbox = sa.Table(
    "outbox",
    metadata,
    _number(),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("job", sa.BigInteger, nullable=False),
    sa.Column("run", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),  # JSON
    sa.Index("outbox_at", "at"),
    sqlite_autoincrement=True,  # a number is never used again
)

# When the history could not be written, and how many entries were lost; since 0002.
gaps = sa.Table(
    "gaps",
    metadata,
    _number(),
    _words("cluster"),
    _words("scheduler"),
    sa.Column("began", sa.BigInteger, nullable=False),
    sa.Column("ended", sa.BigInteger, nullable=False),
    sa.Column("lost", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sqlite_autoincrement=True,
)
