"""`fluence history`: what it lists, sums, forgets and refuses; as a user runs it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from fluence.commands.history import STATES
from fluence.database_url import parse_url
from fluence.model.job_state import JobState
from fluence.store import Writer
from fluence.store.history_store import HistoryStore
from tests.integration.store.entries import entry, over, running

from .conftest import Run

T0 = 1_790_000_000_000  # 2026-09-21 14:13:20


@pytest.fixture
def database(tmp_path: Path) -> str:
    path = str(tmp_path / "history.db")

    async def fill() -> None:
        async with HistoryStore(parse_url(path), Writer("cluster-1", "fluence")) as store:
            await store.migrate()
            times = {"submitted": T0, "started": T0 + 60_000}
            await store.write(
                [
                    (over(1, at=T0 + 3_660_000, **times), "not enough free cores"),  # type: ignore[arg-type]
                    (over(2, at=T0 + 120_000, user="bob", queue="", state=JobState.FAILED, **times), ""),
                    (running(3, at=T0 + 60_000, user="bob", **times), ""),
                    (entry(4, at=T0, submitted=T0, user="eve\x1b[31m"), ""),
                ]
            )
            await store.add_gap(T0, T0 + 1000, 7, "database is locked")

    asyncio.run(fill())
    return path


def test_a_table(run: Run, database: str) -> None:
    done = run("history", "--database", database, "--user", "ada", "--state", "completed")
    assert done.code == 0
    assert done.out.splitlines() == [
        "NAMESPACE  NAME   USER  QUEUE  STATE      PODS  SUBMITTED            WAIT   ELAPSED  NODES",
        "lab        sim-1  ada   batch  completed  2     2026-09-21 14:13:20  1 min  1 h      n[1-2]",
    ]
    assert done.err == (
        "note: 7 entries are missing, from 2026-09-21T14:13:20.000+00:00 to 2026-09-21T14:13:21.000+00:00: "
        "database is locked\n"
    )


def test_names_cannot_move_the_cursor(run: Run, database: str) -> None:
    assert "\x1b" not in run("history", "--database", database).out


def test_json_yaml_and_csv_say_the_same(run: Run, database: str) -> None:
    over = ("history", "--database", database, "-s", "completed", "-s", "failed", "-o")
    read = json.loads(run(*over, "json").out)
    assert yaml.safe_load(run(*over, "yaml").out) == read
    assert [job["job"] for job in read["jobs"]] == [1, 2]
    first = read["jobs"][0]
    assert first["requests"] == {"cpu": 3000, "memory": 1 << 30, "nvidia.com/gpu": 2}
    assert (first["cpu"], first["limit"], first["wait"], first["elapsed"]) == (3.0, 60.0, 60.0, 3600.0)
    assert (first["started"], first["reason"]) == ("2026-09-21T14:14:20.000+00:00", "not enough free cores")
    assert read["gaps"][0]["lost"] == 7
    out = run(*over, "csv", "--format", "job,name,ended,reason").out
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows == [
        {key: "" if (value := job[key]) is None else str(value) for key in ("job", "name", "ended", "reason")}
        for job in read["jobs"]
    ]


def test_wide_has_more(run: Run, database: str) -> None:
    wide = run("history", "--database", database, "-o", "wide").out.splitlines()[0].split()
    assert {"JOB", "STARTED", "ENDED", "REASON", "NO-LATER-THAN"} <= set(wide)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("-u", "bob"), [2, 3]),
        (("-u", "ada", "-u", "bob", "-q", "batch"), [1, 3]),
        (("-n", "other"), []),
        (("-s", "failed", "-s", "unknown"), [2, 3, 4]),
        (("-s", "running", "-s", "pending"), []),
        (("--name", "sim-*", "--limit", "2"), [3, 4]),
        (("-j", "2"), [2]),
        (("-S", "2026-09-21T14:30"), [1, 3, 4]),
        (("--until", "2026-09-21"), []),
        (("--cluster", "another"), []),
        (("--scheduler-name", "fluence"), [1, 2, 3, 4]),
    ],
)
def test_filters(run: Run, database: str, options: tuple[str, ...], found: list[int]) -> None:
    done = run("history", "--database", database, "-o", "json", *options)
    assert [job["job"] for job in json.loads(done.out)["jobs"]] == found


def test_since_may_be_how_long_ago(run: Run, database: str) -> None:
    ago = f"{int(time.time() - T0 / 1000) - 1800}s"
    done = run("history", "--database", database, "-o", "json", "--since", ago)
    assert 2 not in [job["job"] for job in json.loads(done.out)["jobs"]]


def test_sums(run: Run, database: str) -> None:
    done = run(
        "history",
        "--database",
        database,
        "--sum",
        "user",
        "--sum",
        "queue",
        "-s",
        "completed",
        "-s",
        "failed",
    )
    titles, *rows = done.out.splitlines()
    assert titles.split()[:4] == ["USER", "QUEUE", "JOBS", "STARTED"]
    assert titles.split()[-4:] == ["WAIT", "HOURS", "CPU-HOURS", "GPU-HOURS"]
    assert rows == [
        "ada   batch  1     1        1          0       0        0          1 min  1.00   3.00       2.00",
        "bob   -      1     1        0          1       0        0          1 min  0.02   0.05       0.03",
    ]
    read = json.loads(run("history", "--database", database, "--sum", "state", "-o", "json").out)
    assert {row["state"]: row["jobs"] for row in read["sums"]} == {
        "completed": 1,
        "failed": 1,
        "unknown": 2,
    }


def test_jobs_of_which_nobody_writes_any_more_neither_run_nor_grow(run: Run, database: str) -> None:
    """Their cluster is gone: nobody saw them end."""
    rows = json.loads(run("history", "--database", database, "-o", "json", "-j", "3", "-j", "4").out)["jobs"]
    assert [(row["state"], row["ended"]) for row in rows] == [("unknown", None)] * 2
    assert (rows[0]["elapsed"], rows[1]["wait"]) == (0, 0), "up to the last entry"
    (bob,) = json.loads(
        run("history", "--database", database, "--sum", "user", "-u", "bob", "-o", "json").out
    )["sums"]
    assert bob["hours"] == 0.017


def test_jobs_that_run_count_up_to_now_while_their_cluster_lives(run: Run, database: str) -> None:
    now = int(time.time() * 1000)

    async def renew() -> None:
        async with HistoryStore(parse_url(database), Writer("cluster-1", "fluence")) as store:
            await store.renew(now)

    asyncio.run(renew())
    (row,) = json.loads(run("history", "--database", database, "-o", "json", "-j", "3").out)["jobs"]
    assert row["state"] == "running" and row["elapsed"] >= (now - T0) / 1000 - 61


def test_a_kubeconfig_whose_cluster_does_not_answer_lists_all_with_a_note(
    run: Run, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "c",
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    done = run("history", "--database", database, "-o", "json")
    assert done.code == 0 and len(json.loads(done.out)["jobs"]) == 4
    assert "note: which cluster the kubeconfig names is not known, and jobs of all clusters" in done.err
    assert "note: which" not in run("history", "--database", database, "-A").err
    assert run("history", "--database", database, "-A", "--cluster", "x").code == 2


def test_events(run: Run, database: str) -> None:
    lines = run("history", "events", "--database", database).out.splitlines()
    read = [json.loads(line) for line in lines]
    assert [each["event"] for each in read[:3]] == ["submitted", "started", "ended"]
    rest = run("history", "events", "--database", database, "--after", str(read[-2]["number"])).out
    assert rest.splitlines() == lines[-1:]


def test_prune_and_what_is_left(run: Run, database: str) -> None:
    done = run("history", "prune", "--database", database, "--older-than", "1s")
    assert done.out.startswith("2 jobs and 9 events forgotten; 0."), done
    left = json.loads(run("history", "--database", database, "-o", "json").out)["jobs"]
    assert [job["job"] for job in left] == [3, 4]
    assert run("history", "prune", "--database", database).code == 2


def test_migrate(run: Run, database: str) -> None:
    assert (
        run("history", "migrate", "--database", database, "--to", "0001").out
        == f"{database}: revision 0001\n"
    )
    run("history", "--database", database).is_one_line_error("revision 0001", "fluence history migrate")
    assert run("history", "migrate", "--database", database).out == f"{database}: revision 0002\n"
    assert run("history", "--database", database).code == 0
    run("history", "migrate", "--database", database, "--to", "77").is_one_line_error("there are base, 0001")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--database", "/nowhere/history.db"), "no history at /nowhere/history.db"),
        (("--database", "mysql://a:s3cret@h/db"), "write sqlite:////"),
        (("--database", "postgresql://a:s3cret@127.0.0.1:9/db"), "postgresql://a:***@127.0.0.1:9/db"),
        (("--database", "/dev/null"), "/dev/null"),
        (("--since", "yesterday"), "--since 'yesterday' is no time"),
        (("--since", "99999999999d"), "is no time"),
        (("--format", "nme"), "no column is called 'nme'"),
        (("--format", ","), "no column is named"),
        (("--state", "lost"), "'lost' is not one of"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    run: Run, database: str, options: tuple[str, ...], words: str
) -> None:
    given = options if "--database" in options else ("--database", database, *options)
    done = run("history", *given)
    assert done.is_one_line_error(words)
    assert "s3cret" not in done.err


def test_help_of_columns_needs_no_database(run: Run) -> None:
    done = run("history", "--database", "/nowhere", "--format", "help")
    assert done.code == 0 and "why it waited" in done.out


def test_all_states_can_be_asked_for() -> None:
    assert list(STATES) == [state.value for state in JobState]


def test_kubectl_fluence_history_loads_no_numpy(database: str) -> None:
    program = (
        "import sys; from fluence.kubectl.commands import run; "
        "assert not {'sqlalchemy', 'numpy', 'msgspec'} & set(sys.modules), 'loaded too early'; "
        f"code = run(['history', '--database', {database!r}, '-o', 'csv', '--format', 'name']); "
        "assert not {'numpy', 'alembic', 'aiohttp'} & set(sys.modules), 'loaded'; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["name", "sim-1", "sim-2", "sim-3", "sim-4"]
