"""Both databases, each test in one of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres import PostgresServer, postgres

__all__ = ["postgres"]


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'history.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()
