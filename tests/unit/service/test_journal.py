"""What is kept: records on disk, torn and damaged ends, compaction, and services that are killed."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from fluence.service import match_v1_pb2 as v1
from fluence.service.engine import Match
from fluence.service.graphs import Graphs
from fluence.service.journal import GraphChange, Grow, Journal, JournalError, SetStatus, without_repeats
from tests.unit.service.graphs import flat_jgf, jobspec, slots_only
from tests.unit.service.running import Client, Service, channel_to

KILLS = int(os.environ.get("FLUENCE_SERVICE_KILLS", "4"))


def written(folder: Path, *records: bytes) -> Path:
    journal = Journal(folder)
    assert list(journal.records()) == []
    for record in records:
        journal.append(record)
    journal.commit()
    journal.close()
    (path,) = folder.glob("journal-*")
    return path


def read(folder: Path) -> list[bytes]:
    journal = Journal(folder)
    try:
        return list(journal.records())
    finally:
        journal.close()


def test_records_are_read_again_in_order(tmp_path: Path) -> None:
    records = [bytes([number]) * (number * 100 + 1) for number in range(50)]
    written(tmp_path, *records)
    assert read(tmp_path) == records


def test_a_torn_end_is_cut_off_wherever_it_was_torn(tmp_path: Path) -> None:
    records = [b"first", b"second" * 10, b"third" * 100]
    path = written(tmp_path, *records)
    whole = path.read_bytes()
    last = len(whole) - len(records[2]) - 8
    for size in range(last, len(whole)):
        path.write_bytes(whole[:size])
        assert read(tmp_path) == records[:2], size
        assert path.stat().st_size == last  # what comes next stands in its place
    path.write_bytes(whole[:last] + bytes(4096))  # as a file system leaves it that had not written the data
    assert read(tmp_path) == records[:2]
    path.write_bytes(whole[:-1] + b"?")
    assert read(tmp_path) == records[:2]


def test_damage_in_the_middle_is_an_error_that_says_where(tmp_path: Path) -> None:
    path = written(tmp_path, b"first" * 10, b"second" * 10, b"third" * 10)
    whole = bytearray(path.read_bytes())
    whole[30] ^= 1
    path.write_bytes(whole)
    with pytest.raises(JournalError, match=r"journal-000001: damaged at byte 18.*truncate -s 18"):
        read(tmp_path)
    path.write_bytes(b"something else")
    with pytest.raises(JournalError, match="not a journal"):
        read(tmp_path)


def test_one_process_writes_a_folder(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(JournalError, match="another service writes here"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


def test_a_draft_that_was_never_finished_is_removed(tmp_path: Path) -> None:
    written(tmp_path, b"kept")
    (tmp_path / "journal-000002.tmp").write_bytes(b"half")
    assert read(tmp_path) == [b"kept"]
    assert not list(tmp_path.glob("*.tmp"))


def test_compaction_bounds_the_size(tmp_path: Path) -> None:
    journal = Journal(tmp_path, least_bytes=64 << 10)
    graphs = Graphs(policy="low", journal=journal)
    graphs.restore()
    graphs.load("", flat_jgf(8))
    keeps = graphs.match("", _allocate(), jobspec(1, 2), now=0, label="stays")
    largest = 0
    for number in range(3000):
        found = graphs.match("", _allocate(), jobspec(2, 1), now=0)
        graphs.get().engine.cancel(found.job)
        if number % 3 == 0:
            graphs.get().engine.set_status("/cluster0/node7", up=bool(number % 2))
        graphs.commit()
        largest = max(largest, sum(path.stat().st_size for path in tmp_path.glob("journal-*")))
    assert largest < 100 << 10
    graphs.close()
    again = Graphs(policy="low", journal=Journal(tmp_path))
    assert again.restore() < 1500
    entries = list(again.get().engine.jobs())
    assert [(entry.job, entry.name) for entry in entries] == [(keeps.job, "stays")]
    assert again.match("", _allocate(), jobspec(), now=0).job == found.job + 1
    again.close()


def _allocate() -> Any:
    from fluence.match.request import Operation

    return Operation.ALLOCATE


def test_very_many_changes_of_a_graph_are_carried_out_once(tmp_path: Path) -> None:
    """A start begins anew with the graph as it is: same graph, same jobs, same answers, a small journal."""
    graphs = Graphs(policy="low", journal=Journal(tmp_path))
    graphs.restore()
    graphs.load("", flat_jgf(4), fixed=True)
    engine = graphs.get().engine
    for number in range(600):
        engine.grow(flat_jgf(1, first=4 + number))
        if number % 10:
            engine.shrink([f"/cluster0/node{4 + number}"])
    engine.set_status("/cluster0/node1", up=False)
    held = graphs.match("", _allocate(), jobspec(2, 3), now=0, label="held")
    graphs.commit()
    graphs.close()
    large = sum(path.stat().st_size for path in tmp_path.glob("journal-*"))
    again = Graphs(policy="low", journal=Journal(tmp_path))
    assert again.restore() > 1000
    small = sum(path.stat().st_size for path in tmp_path.glob("journal-*"))
    assert small < large / 5
    again.load_file(flat_jgf(4).encode(), format_="", allow=(), source="the same file")
    renewed = again.get().engine
    assert renewed.render("jgf") == engine.render("jgf")
    assert list(renewed.jobs()) == list(engine.jobs())
    assert isinstance(held, Match)
    assert renewed.job(held.job, "jgf") == engine.job(held.job, "jgf")
    for text in (jobspec(1, 2), jobspec(3, 4), slots_only(5, 2), jobspec(62, 1), jobspec(64, 1)):
        ours, theirs = (of.match("", _allocate(), text, now=0, format_="jgf") for of in (graphs, again))
        assert type(ours) is type(theirs)
        if isinstance(ours, Match) and isinstance(theirs, Match):
            assert (ours.job, ours.allocation) == (theirs.job, theirs.allocation)
    again.close()
    third = Graphs(policy="low", journal=Journal(tmp_path))
    assert third.restore() < 20
    third.close()


def test_only_the_last_status_of_a_vertex_is_kept_where_the_order_does_not_matter() -> None:
    def change(path: str, up: bool) -> SetStatus:
        return SetStatus("g", path, up)

    flapping = [change("/c/n1", False), change("/c/n2", False), change("/c/n1", True), change("/c/n1", False)]
    assert without_repeats(list(flapping)) == [flapping[1], flapping[3]]
    nested = [change("/c/r", False), change("/c/r/n", False), change("/c/r", True), change("/c/x", True)]
    assert without_repeats(list(nested)) == nested
    grown: list[GraphChange] = [*flapping, Grow("g", b""), *flapping]
    assert without_repeats(list(grown)) == [flapping[1], flapping[3], grown[4], flapping[1], flapping[3]]


def test_a_journal_that_cannot_be_written_ends_the_service_and_answers_nobody(tmp_path: Path) -> None:
    service = Service("--state", str(tmp_path / "state"))
    try:
        with channel_to(service.address) as channel:
            client = Client(channel)
            client.LoadGraph(text=flat_jgf(4))
            client.Match(jobspec=jobspec())
            (path,) = (tmp_path / "state").glob("journal-*")
            _fill_up(service.process.pid, path)
            with pytest.raises(grpc.RpcError) as error:
                client.Match(jobspec=jobspec())
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE
            assert service.process.wait(30) == 1
            assert "cannot be written" in service.log
    finally:
        service.stop()


def _fill_up(pid: int, path: Path) -> None:
    """Let no file of a process grow: what a full disk does."""
    import resource

    size = path.stat().st_size
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, size))


def state_of(client: Client) -> dict[int, tuple[Any, ...]]:
    jobs = client.ListJobs().jobs
    return {
        job.job: (job.name, job.state, job.at, job.end, client.Info(job=job.job, format="jgf").allocation)
        for job in jobs
    }


def test_a_restart_keeps_graphs_jobs_and_ids(tmp_path: Path) -> None:
    folder = str(tmp_path / "state")
    graph = tmp_path / "graph.json"
    graph.write_text(flat_jgf(6))
    arguments = ("--graph", str(graph), "--state", folder, "--match-policy", "low")
    service = Service(*arguments)
    with channel_to(service.address) as channel:
        client = Client(channel)
        for number in range(5):
            client.Match(jobspec=jobspec(1, 2), name=f"job{number}")
        client.Match(jobspec=jobspec(6, 4), operation=v1.ALLOCATE_ORELSE_RESERVE)
        client.Cancel(job=2)
        part = client.Info(job=3, format="rv1_nosched")
        client.PartialCancel(job=3, text=part.allocation.replace('"core":"0-1"', '"core":"0"'))
        client.Grow(jgf=flat_jgf(1, first=6))
        client.SetStatus(path="/cluster0/node5", down=True)
        client.Shrink(paths=["/cluster0/node4"])
        client.LoadGraph(graph="other", text=flat_jgf(1), policy="high")
        client.Match(graph="other", jobspec=jobspec())
        client.LoadGraph(graph="gone", text=flat_jgf(1))
        client.UnloadGraph(graph="gone")
        before, graphs = state_of(client), client.ListGraphs()
        text = client.GetGraph().text
    service.kill()
    service = Service(*arguments)
    try:
        with channel_to(service.address) as channel:
            client = Client(channel)
            assert state_of(client) == before
            assert client.ListGraphs() == graphs
            assert client.GetGraph().text == text
            assert client.Match(jobspec=jobspec()).job == 7
            assert "records of" in service.log
    finally:
        assert service.stop() == 0
    graph.write_text(flat_jgf(7))
    with pytest.raises(RuntimeError, match="the graph that is kept from before"):
        Service(*arguments)


@pytest.mark.parametrize("number", range(KILLS))
def test_kill_in_the_middle_loses_nothing_that_was_answered(tmp_path: Path, number: int) -> None:
    """Clients match and cancel without pause. The service is killed, and restarts with what it answered.

    A call whose answer nobody got may or may not have happened.
    """
    seed = random.Random(number)
    folder = str(tmp_path / "state")
    service = Service("--state", folder, "--match-policy", seed.choice(("first", "low", "hinode")))
    answered: dict[int, Any] = {}
    seen: list[int] = []  # every job that was answered, cancelled since or not
    unsure: set[int] = set()  # a cancel was asked for, and not answered
    unanswered: list[int] = []  # matches that were asked for, and not answered

    def busy(name: int) -> None:
        own = random.Random(number * 100 + name)
        mine: list[int] = []
        with channel_to(service.address) as channel:
            client = Client(channel)
            while True:
                if mine and own.random() < 0.4:
                    job = mine.pop(own.randrange(len(mine)))
                    unsure.add(job)
                    try:
                        client.Cancel(job=job)
                    except grpc.RpcError:
                        return
                    answered.pop(job)
                    unsure.discard(job)
                    continue
                spec = slots_only(own.randint(1, 3), own.randint(1, 2))
                unanswered.append(name)
                try:
                    found = client.Match(jobspec=spec, format="rv1_nosched", name=f"client{name}")
                    answered[found.job] = found
                    mine.append(found.job)
                    seen.append(found.job)
                except grpc.RpcError as error:
                    if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                        return
                unanswered.remove(name)

    with channel_to(service.address) as channel:
        Client(channel).LoadGraph(text=flat_jgf(40))
    threads = [threading.Thread(target=busy, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    enough, deadline = seed.randint(20, 120), time.monotonic() + 60
    while len(seen) < enough:  # by answers, not by time: a busy machine may take long for the first
        assert time.monotonic() < deadline, f"only {len(seen)} answers in a minute"
        time.sleep(0.005)
    service.kill()
    for thread in threads:
        thread.join(30)
    assert answered
    service = Service("--state", folder)
    try:
        with channel_to(service.address) as channel:
            client = Client(channel)
            held = {job.job: job for job in client.ListJobs().jobs}
            for job, found in answered.items():
                if job in unsure and job not in held:
                    continue
                info = client.Info(job=job, format="rv1_nosched")
                assert info.allocation == found.allocation
                assert info.shares == found.shares
            assert len(set(held) - set(answered)) <= len(unanswered)
            cores = [path for job in held for path in _cores(client, job)]
            assert len(cores) == len(set(cores))  # nobody holds what another one holds
            assert client.Match(jobspec=slots_only(1, 1), operation=v1.SATISFIABILITY)
    finally:
        assert service.stop() == 0


def _cores(client: Client, job: int) -> list[str]:
    import json

    graph = json.loads(client.Info(job=job, format="jgf").allocation)["graph"]
    return [
        node["metadata"]["paths"]["containment"]
        for node in graph["nodes"]
        if node["metadata"]["type"] == "core"
    ]
