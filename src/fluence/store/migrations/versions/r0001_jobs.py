"""Revision 0001: the jobs and the outbox."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("job", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("run", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("cluster", sa.Text, nullable=False, server_default=""),
        sa.Column("scheduler", sa.Text, nullable=False, server_default=""),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("username", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("priority", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("pods", sa.Integer, nullable=False),
        sa.Column("minimum", sa.Integer, nullable=False, server_default="0"),
        sa.Column("requests", sa.Text, nullable=False),
        sa.Column("walltime", sa.BigInteger),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("submitted", sa.BigInteger, nullable=False),
        sa.Column("no_later_than", sa.BigInteger),
        sa.Column("expected", sa.BigInteger),
        sa.Column("started", sa.BigInteger),
        sa.Column("ended", sa.BigInteger),
        sa.Column("nodes", sa.Text, nullable=False, server_default=""),
        sa.Column("reason", sa.Text, nullable=False, server_default=""),
        sa.Column("updated", sa.BigInteger, nullable=False),
    )
    op.create_index("jobs_submitted", "jobs", ["submitted"])
    op.create_index("jobs_ended", "jobs", ["ended"])
    op.create_index("jobs_user", "jobs", ["username", "ended"])
    op.create_table(
        "outbox",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("job", sa.BigInteger, nullable=False),
        sa.Column("run", sa.Integer, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("outbox_at", "outbox", ["at"])


def downgrade() -> None:
    op.drop_table("outbox")
    op.drop_table("jobs")
