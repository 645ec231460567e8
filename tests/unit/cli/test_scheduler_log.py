"""What the scheduler logs is the scheduler's: libraries say only what is wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from fluence.cli.scheduler import _log
from fluence.schedule.settings import SchedulerSettings
from fluence.store.database import migrate, revision


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The log as it was, afterwards."""
    root, alembic = logging.getLogger(), logging.getLogger("alembic")
    handlers, levels = root.handlers[:], (root.level, alembic.level)
    alembic.setLevel(logging.NOTSET)  # as in a process in which nothing has migrated yet
    yield root
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    alembic.setLevel(levels[1])


@pytest.mark.parametrize("form", ["text", "json"])
def test_migrations_of_the_history_are_not_in_the_log(
    form: str, tmp_path: Path, root: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    _log(SchedulerSettings(log_format=form))
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'history.db'}")
    with engine.begin() as connection:
        assert revision(connection) is None
        migrate(connection)
        assert revision(connection) is not None
    engine.dispose()
    assert capfd.readouterr().err == ""
