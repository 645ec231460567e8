"""The same stories as in `tests/property/test_history_model.py`, on PostgreSQL."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings

from tests.postgres import PostgresServer
from tests.property.history_model import actions, check


@given(actions)
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
def test_the_rows_are_those_of_the_model(postgres: PostgresServer, story: list[tuple[Any, ...]]) -> None:
    check(postgres.database(), story)
