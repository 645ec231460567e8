"""The history of a real scheduler on a real control plane: written, killed, taken up again, shown."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from fluence.cli import main
from fluence.database_url import parse_url
from fluence.kube.resource import NAMESPACES
from fluence.sandbox.testing import Kube
from fluence.store import Writer
from fluence.store.history_store import HistoryStore
from tests.eventually import eventually
from tests.integration.live.replica import SOON_S, Replica
from tests.integration.schedule.field import Field, field
from tests.integration.store.entries import over

USER = {"fluence.flux-framework.org/user": "ada", "fluence.flux-framework.org/queue": "batch"}


def jobs(database: Path) -> dict[str, dict[str, Any]]:
    """What `fluence history` says, by name."""
    if not database.exists():
        return {}
    done = CliRunner().invoke(main, ["history", "--database", str(database), "-o", "json"])
    if done.exit_code != 0:
        assert "revision base" in done.output, done.output  # it is being made
        return {}
    return {each["name"]: each for each in json.loads(done.stdout)["jobs"]}


async def until(database: Path, condition: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, Any]:
    return await eventually(
        lambda: asyncio.to_thread(jobs, database), condition, what="the history says so", pause_s=0.2
    )


@contextlib.asynccontextmanager
async def keeping(f: Field, folder: Path, database: Path) -> AsyncIterator[Replica]:
    replica = Replica(f, folder, f.proxy.access, "--database-url", str(database), lease=None)
    try:
        await replica.start()
        await replica.leads()
        yield replica
    finally:
        await replica.end()


async def test_a_history_survives_kills_and_says_what_became_of_jobs(kube: Kube, tmp_path: Path) -> None:
    database = tmp_path / "history.db"
    async with field(kube, 1) as f, f.proxy:
        async with keeping(f, tmp_path / "a", database) as first:
            await f.add(f.pod("quick", cpu="4", runs=1, annotations=USER))
            await f.until_bound(["quick"])
            await f.add(f.pod("waits", cpu="4", runs=600))
            found = await until(
                database, lambda now: "waits" in now and now.get("quick", {}).get("state") == "completed"
            )
            quick = found["quick"]
            assert (quick["user"], quick["queue"], quick["kind"]) == ("ada", "batch", "Pod")
            assert quick["nodes"] == f.nodes[0] and quick["elapsed"] >= 1
            await until(database, lambda now: now["waits"]["state"] == "running")
            await f.add(f.pod("gone", cpu="3"), f.pod("late", cpu="2", runs=1))
            waiting = await until(database, lambda now: "late" in now and bool(now["late"]["reason"]))
            assert waiting["late"]["state"] in ("pending", "reserved")
            first.signal(signal.SIGKILL)
            await first.process.wait()
        await f.end("waits", "gone")  # nobody sees it
        async with keeping(f, tmp_path / "b", database) as second:
            await f.until_bound(["late"])
            found = await until(
                database,
                lambda now: (
                    [now[each]["state"] for each in ("late", "waits", "gone")]
                    == ["completed", "unknown", "unknown"]
                ),
            )
            assert found["waits"]["started"] is not None
            assert found["late"]["reason"] == waiting["late"]["reason"]
            assert found["late"]["submitted"] == waiting["late"]["submitted"]
            assert found["quick"] == quick
            await f.add(f.pod("unseen", cpu="1", runs=3))
            await until(database, lambda now: now.get("unseen", {}).get("state") == "running")
            second.signal(signal.SIGKILL)
            await second.process.wait()
        await f.until(lambda pods: pods["unseen"].is_terminal, "unseen has ended")
        async with keeping(f, tmp_path / "c", database) as third:
            found = await until(database, lambda now: now["unseen"]["ended"] is not None)
            assert found["unseen"]["state"] == "completed"  # its pod still says so
            await third.says("learned from the history")


async def test_a_database_that_fails_holds_up_no_pod(kube: Kube, tmp_path: Path) -> None:
    database = tmp_path / "history.db"
    async with field(kube, 2) as f, f.proxy, keeping(f, tmp_path / "a", database) as replica:
        await f.add(f.pod("first", runs=1))
        await until(database, lambda now: now.get("first", {}).get("state") == "completed")
        other = sqlite3.connect(database, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        await f.add(*(f.pod(f"p-{i}", runs=1) for i in range(6)))
        await f.until_bound([f"p-{i}" for i in range(6)])
        await eventually(
            lambda: replica.ask("/metrics"),
            lambda answer: "fluence_history_up 0.0" in answer[1],
            what="the metrics say that the history is not written",
            timeout_s=SOON_S,
        )
        assert (await replica.ask("/healthz"))[0] == 200
        other.execute("ROLLBACK")
        other.close()
        found = await until(
            database, lambda now: [each["state"] for each in now.values()] == ["completed"] * 7
        )
        assert set(found) == {"first", *(f"p-{i}" for i in range(6))}
        await replica.says("history is written again")
        assert replica.said.count("history is not written") == 1


def test_the_history_is_that_of_the_cluster_which_the_kubeconfig_names(kube: Kube, tmp_path: Path) -> None:
    """All sandboxes of a machine share a file."""
    database = tmp_path / "history.db"

    async def fill() -> None:
        async with kube.client() as client:
            own = (await client.get(NAMESPACES, "kube-system")).metadata.uid
        for cluster, number in ((own, 1), ("another", 2)):
            async with HistoryStore(parse_url(str(database)), Writer(cluster, "fluence")) as store:
                await store.migrate()
                await store.write([(over(number), "")])
                await store.add_gap(0, 1, 1, f"gap of {number}")

    asyncio.run(fill())

    def listed(*options: str) -> tuple[list[int], int]:
        words = ["history", "--database", str(database), "-o", "json", *options]
        done = CliRunner().invoke(main, words, env={"KUBECONFIG": str(kube.sandbox.at.kubeconfig())})
        assert done.exit_code == 0, done.output
        value = json.loads(done.stdout)
        return [job["job"] for job in value["jobs"]], len(value["gaps"])

    assert listed() == ([1], 1)
    assert listed("-A") == ([1, 2], 2)
    assert listed("--cluster", "another") == ([2], 1)
