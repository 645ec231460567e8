"""Revision 0002: amounts that SQL can sum, devices, codes, gaps, and fluxqueue's two tables as views.

`pending_queue` and `reservations` have the columns by which fluxqueue's users know them.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision: str | None = "0001"
branch_labels = None
depends_on = None

_NUMBERS = ("cpu", "memory", "gpus")
_TEXTS = ("devices", "codes")

# fluxqueue's numbers of kinds, and how it names a FluxJob of each.
_TYPE = """CASE kind WHEN 'Pod' THEN 0 WHEN 'Job' THEN 1 WHEN 'Deployment' THEN 2 WHEN 'ReplicaSet' THEN 3
  WHEN 'StatefulSet' THEN 4 ELSE 0 END"""
# The jobspec too: a node for each pod, with the cores that a pod requests, at least one.
_JOBSPEC = """'{"version":1,"resources":[{"type":"node","count":' || pods ||
  ',"with":[{"type":"slot","count":1,"label":"default","with":[{"type":"core","count":' ||
  (CASE WHEN cpu > 0 THEN (cpu + pods * 1000 - 1) / (pods * 1000) ELSE 1 END) ||
  '}]}]}],"tasks":[{"command":["app"],"slot":"default","count":{"per_slot":1}}],' ||
  '"attributes":{"system":{"duration":' || (COALESCE(walltime, 0) / 1000) || '}}}'"""
_PENDING = """CREATE VIEW pending_queue AS SELECT
  %(jobspec)s AS jobspec, namespace, name || '-' || lower(kind) AS flux_job_name, name, %(type)s AS type,
  CASE state WHEN 'reserved' THEN 1 ELSE 0 END AS reservation,
  CAST(COALESCE(walltime, 0) / 1000 AS INTEGER) AS duration, %(created)s AS created_at, pods AS size
  FROM jobs WHERE ended IS NULL AND state IN ('pending', 'reserved', 'never')"""
_RESERVATIONS = """CREATE VIEW reservations AS SELECT name, job AS flux_id
  FROM jobs WHERE ended IS NULL AND state = 'reserved'"""
_CREATED = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f+00', submitted / 1000.0, 'unixepoch')",
    "postgresql": "to_timestamp(submitted / 1000.0)",
}


def upgrade() -> None:
    for name in _NUMBERS:
        op.add_column("jobs", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    for name in _TEXTS:
        op.add_column("jobs", sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("broken", sa.Integer, nullable=False, server_default="0"))
    is_open = sa.text("ended IS NULL")
    op.create_index(
        "jobs_open", "jobs", ["cluster", "scheduler"], sqlite_where=is_open, postgresql_where=is_open
    )
    op.create_table(
        "gaps",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("cluster", sa.Text, nullable=False, server_default=""),
        sa.Column("scheduler", sa.Text, nullable=False, server_default=""),
        sa.Column("began", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger, nullable=False),
        sa.Column("lost", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    _fill_in()
    created = _CREATED[op.get_bind().dialect.name]
    # NB not `op.execute`, which takes the colons for parameters.
    connection = op.get_bind()
    connection.exec_driver_sql(_PENDING % {"jobspec": _JOBSPEC, "type": _TYPE, "created": created})
    connection.exec_driver_sql(_RESERVATIONS)


def downgrade() -> None:
    op.execute("DROP VIEW reservations")
    op.execute("DROP VIEW pending_queue")
    op.drop_table("gaps")
    op.drop_index("jobs_open", "jobs")
    for name in (*_NUMBERS, *_TEXTS, "broken"):
        op.drop_column("jobs", name)


def _fill_in() -> None:
    """Compute the sums of existing jobs from their requests."""
    jobs = sa.table(
        "jobs", *(sa.column(name) for name in ("job", "run", "requests", "cpu", "memory", "gpus"))
    )
    connection = op.get_bind()
    last: tuple[int, int] | None = None
    while True:
        page = sa.select(jobs.c.job, jobs.c.run, jobs.c.requests).order_by(jobs.c.job, jobs.c.run).limit(1000)
        if last is not None:
            page = page.where(sa.tuple_(jobs.c.job, jobs.c.run) > sa.tuple_(*map(sa.literal, last)))
        rows = connection.execute(page).all()
        if not rows:
            return
        for job, run, text in rows:
            asked = json.loads(text)
            gpus = sum(value for name, value in asked.items() if name.endswith("/gpu"))
            connection.execute(
                sa.update(jobs)
                .where(jobs.c.job == job, jobs.c.run == run)
                .values(cpu=asked.get("cpu", 0), memory=asked.get("memory", 0), gpus=gpus)
            )
        last = (rows[-1][0], rows[-1][1])
