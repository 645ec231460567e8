"""Where the history is kept, as people write it; passwords are never shown."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from fluence.cli import main
from fluence.config import load
from fluence.database_url import find_url, parse_url
from fluence.errors import InvalidInput
from fluence.schedule.settings import SchedulerSettings

SECRET = "s3cr:t/p@ss"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("history.db", "history.db"),
        ("/var/lib/fluence/history.db", "/var/lib/fluence/history.db"),
        ("sqlite:////var/lib/history.db", "/var/lib/history.db"),
        ("sqlite:///history.db", "history.db"),
        ("sqlite+aiosqlite:////tmp/a%20b.db?mode=rw", "/tmp/a b.db"),
        ("/tmp/100%?#.db", "/tmp/100%?#.db"),
    ],
)
def test_files(text: str, path: str) -> None:
    found = parse_url(text)
    assert found.is_sqlite
    assert (found.path, str(found)) == (Path(path), path)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("postgres://a@h/db", "postgresql+asyncpg://a@h/db"),
        ("postgresql://a:b@h:5433/db", "postgresql+asyncpg://a:b@h:5433/db"),
        ("postgresql+asyncpg://h/db", "postgresql+asyncpg://h/db"),
        ("postgresql://h/db?sslmode=verify-full", "postgresql+asyncpg://h/db?ssl=verify-full"),
        ("postgresql:///db?host=/run/postgresql", "postgresql+asyncpg:///db?host=%2Frun%2Fpostgresql"),
    ],
)
def test_servers(text: str, url: str) -> None:
    found = parse_url(text)
    assert (found.url, found.path) == (url, None)


@pytest.mark.parametrize(
    "text",
    ["", "mysql://a:{}@h/db", "sqlite://h/x", "sqlite:///", "a:{}@h", "postgresql://a:{}@h:port/db"],
)
def test_what_is_no_database_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(InvalidInput, match="postgresql://user:password@host/name") as refused:
        parse_url(text.format(SECRET))
    assert SECRET not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["postgresql://ada:{}@h/db", "postgresql://h/db?user=ada&password={}"])
def test_a_password_is_not_shown(text: str) -> None:
    shown = str(parse_url(text.format(quote(SECRET, safe=""))))
    assert "***" in shown and "s3cr" not in shown and "ss@" not in shown


def test_who_is_asked_first() -> None:
    both = {"FLUENCE_DATABASE_URL": "/ours", "DATABASE_URL": "/theirs", "HOME": "/home/ada"}
    assert str(find_url("/given", both)) == "/given"
    assert str(find_url(None, both)) == "/ours"
    assert str(find_url(None, {"DATABASE_URL": "/theirs"})) == "/theirs"
    assert str(find_url(None, {"HOME": "/home/ada"})) == "/home/ada/.local/state/fluence/history.db"
    assert str(find_url("", {"XDG_STATE_HOME": "/s", "HOME": "/h"})) == "/s/fluence/history.db"


def test_a_wrong_setting_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidInput, match="database-url"):
        SchedulerSettings(database_url="mysql://h/db")


def test_the_variable_that_others_use_is_read_and_ours_goes_before_it() -> None:
    theirs = {"DATABASE_URL": f"postgresql://ada:{quote(SECRET, safe='')}@h/db"}
    loaded = load(SchedulerSettings, environ=theirs)
    assert loaded.settings.database_url == theirs["DATABASE_URL"]
    assert loaded.origins["database_url"] == "DATABASE_URL"
    both = {**theirs, "FLUENCE_DATABASE_URL": "/ours"}
    assert load(SchedulerSettings, environ=both).settings.database_url == "/ours"


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_settings_that_are_shown_have_no_password(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLUENCE_DATABASE_URL", raising=False)
    monkeypatch.setenv("DATABASE_URL", "postgresql://ada:s3cr3t@h/db")
    done = CliRunner().invoke(main, ["scheduler", "settings", "-o", form])
    assert done.exit_code == 0
    assert "postgresql://ada:***@h/db" in done.stdout and "s3cr3t" not in done.stdout
