"""Another program decides for the service: our own resource-query, which answers as Fluxion does, and a
service that behaves as a real Fluxion's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from fluence.cli import engines
from fluence.cli.engines import EngineCannot, EngineFailed, EngineRefuses
from fluence.cli.service import AnswersDiffer, OtherEngine
from fluence.errors import Conflict, FluenceError, InvalidInput, NotFound
from fluence.graph.filters import DEFAULT as DEFAULT_FILTERS
from fluence.match.request import Operation
from fluence.service import journal
from fluence.service.engine import Match, Refusal
from fluence.service.settings import ServiceSettings
from tests.eventually import wait_until
from tests.unit.service import wire
from tests.unit.service.certificates import Authority
from tests.unit.service.fluxion_service import fluxion_service
from tests.unit.service.graphs import flat_jgf, jobspec, kubernetes_jgf
from tests.unit.service.running import Client, Service, channel_to, reason

_FLUENCE = Path(sys.executable).with_name("fluence")
OURS = f'exec "{_FLUENCE}" resource-query "$@"'
Open = Callable[..., OtherEngine]


def program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return f"resource-query:{path}"


def loaded(text: str, policy: str = "first") -> journal.LoadGraph:
    return journal.LoadGraph(
        graph="default",
        text=journal.packed(text),
        format="jgf",
        policy=policy,
        source="graph",
        digest=journal.digest(text),
        filters=DEFAULT_FILTERS,
    )


def opened(spec: str, text: str, *, compare: bool = False, policy: str = "first") -> OtherEngine:
    return OtherEngine(loaded(text, policy), spec, compare=compare, max_vertices=10_000)


def ask(engine: OtherEngine, operation: Operation, text: str, job: int = -1, **more: Any) -> Match | Refusal:
    return engine.match(operation, text, job=job, now=0, **more)


@pytest.fixture(params=[False, True], ids=["alone", "compared"])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens engines of resource-query on a graph."""
    with ExitStack() as stack:

        def open_(text: str, body: str = OURS, **more: Any) -> OtherEngine:
            engine = opened(program(tmp_path / "rq", body), text, compare=request.param, **more)
            stack.callback(engine.close)
            return engine

        yield open_


@pytest.fixture(params=["resource-query", "resource-query compared", "service", "a Fluxion's service"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OtherEngine]:
    """Two nodes with four cores each, and who decides about them."""
    with ExitStack() as stack:
        if request.param.startswith("resource-query"):
            spec = program(tmp_path / "rq", OURS)
        elif request.param == "service":
            service = Service()
            stack.callback(service.stop)
            spec = f"grpc://{service.address}"
        else:
            spec = f"grpc://{stack.enter_context(fluxion_service())[1]}"
        found = opened(spec, flat_jgf(2), compare="compared" in request.param)
        stack.callback(found.close)
        yield found


# -- operations ----------------------------------------------------------------------------------------------


def test_all_six_operations(engine: OtherEngine) -> None:
    """Only three of them take anything; what they take is theirs alone and comes back."""
    whole = jobspec(1, 4)
    for operation in (Operation.JUDGE, Operation.TRY, Operation.TRY_FUTURE):
        for _ in range(3):  # more than there is, if one of them held anything
            found = ask(engine, operation, whole)
            assert isinstance(found, Match), operation
            assert (found.job, found.at, found.reserved) == (-1, 0, False)
            assert bool(found.shares) == (operation is not Operation.JUDGE)
    assert not list(engine.jobs())
    first = ask(engine, Operation.ALLOCATE, whole, 1)
    second = ask(engine, Operation.ALLOCATE_OR_JUDGE, whole, 2, format_="jgf")
    assert isinstance(first, Match) and isinstance(second, Match)
    assert (first.job, second.job) == (1, 2)
    assert {share.name for found in (first, second) for share in found.shares} == {"node0", "node1"}
    for operation in (Operation.ALLOCATE, Operation.ALLOCATE_OR_JUDGE, Operation.TRY):
        found = ask(engine, operation, whole, 3)
        assert isinstance(found, Refusal) and found.verdict == "busy"
    assert isinstance(ask(engine, Operation.JUDGE, whole), Match)  # satisfiable, though it is full
    future = ask(engine, Operation.TRY_FUTURE, whole)
    assert isinstance(future, Match) and (future.job, future.at, future.reserved) == (-1, 3600, True)
    later = ask(engine, Operation.ALLOCATE_OR_RESERVE, jobspec(2, 4), 3)
    assert isinstance(later, Match) and (later.job, later.at, later.reserved) == (3, 3600, True)
    assert {entry.job: entry.state for entry in engine.jobs()} == {
        1: "allocated",
        2: "allocated",
        3: "reserved",
    }
    for job in (1, 2, 3):
        engine.cancel(job)
    assert isinstance(ask(engine, Operation.ALLOCATE, jobspec(2, 4), 4), Match)


def test_what_never_fits(engine: OtherEngine) -> None:
    for operation in Operation:
        found = ask(engine, operation, jobspec(5, 4), 1)
        assert isinstance(found, Refusal), operation
        if engine._spec.startswith("grpc") and "gives no reason" in found.words:
            assert found.verdict == "busy"  # a Fluxion's service does not tell the two apart
        else:
            assert found.verdict == "impossible"


def test_a_job_that_exists_is_not_asked_for(engine: OtherEngine) -> None:
    ask(engine, Operation.ALLOCATE, jobspec(1, 4), 1)
    with pytest.raises(Conflict):
        ask(engine, Operation.ALLOCATE, jobspec(1, 4), 1)
    assert isinstance(ask(engine, Operation.ALLOCATE, jobspec(1, 4), 2), Match)


def test_what_cannot_be_written_is_given_back_there_too(query: Open) -> None:
    """A graph without ranks, of which no R can be written."""
    engine = query(kubernetes_jgf(1))
    text = jobspec(1, 4)
    for job in (1, 2, 3):
        with pytest.raises(FluenceError):
            ask(engine, Operation.ALLOCATE, text, job, format_="rv1")
    assert isinstance(ask(engine, Operation.ALLOCATE, text, 4), Match)


def test_a_vertex_that_the_graph_has_not_is_given_back(query: Open) -> None:
    body = f'"{_FLUENCE}" resource-query "$@" | sed -u "s/node0/nodeX/"'
    engine = query(flat_jgf(1), body)
    for job in (1, 2):
        with pytest.raises(EngineFailed, match="nodeX"):
            ask(engine, Operation.ALLOCATE, jobspec(1, 4), job)


# -- a Fluxion's service -------------------------------------------------------------------------------------


def test_questions_leave_nothing_behind_in_a_fluxions_service() -> None:
    with fluxion_service() as (service, address):
        engine = opened(f"grpc://{address}", flat_jgf(2))
        try:
            ask(engine, Operation.JUDGE, jobspec(1, 4))
            ask(engine, Operation.TRY, jobspec(1, 4))
            ask(engine, Operation.TRY_FUTURE, jobspec(1, 4))
            assert service.calls == [
                *("allocate_orelse_reserve", "cancel", "allocate", "cancel"),
                *("allocate_orelse_reserve", "cancel"),
            ]
            assert service.matcher is not None and not service.matcher.ledger.jobs
            with pytest.raises(EngineCannot, match="no call for it"):
                engine.set_status("/cluster0/node0", up=False)
        finally:
            engine.close()


@contextmanager
def our_service() -> Iterator[tuple[Service, str]]:
    service = Service()
    try:
        yield service, service.address
    finally:
        service.stop()


@pytest.mark.parametrize("behind", [fluxion_service, our_service])
def test_service_run_with_a_service_behind_it(tmp_path: Path, behind: Any) -> None:
    (tmp_path / "graph.json").write_text(flat_jgf(2))
    with behind() as (_, address):
        flags = ("--graph", str(tmp_path / "graph.json"), "--engine", f"grpc://{address}", "--compare")
        running = Service(*flags)
        try:
            with channel_to(running.address) as channel:
                old = wire.fluxion(channel)
                for _ in range(2):
                    assert old.Match(jobspec=jobspec(1, 4), request="allocate").allocation
                with pytest.raises(grpc.RpcError) as full:
                    old.Match(jobspec=jobspec(1, 4), request="allocate")
                assert (full.value.code(), reason(full.value)) == (
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    "busy",
                )
                later = old.Match(jobspec=jobspec(1, 4), reservation=True)
                assert (later.reserved, later.at) == (True, 3600)
                assert old.Match(jobspec=jobspec(1, 4), request="satisfiability").jobid == 0
        finally:
            running.stop()


def test_over_tls(tmp_path: Path) -> None:
    authority = Authority("ours")
    key, certificate = authority.issue("localhost")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    credentials = grpc.ssl_server_credentials([(key, certificate)])
    with fluxion_service(credentials) as (_, address):
        where = address.replace("127.0.0.1", "localhost")
        engine = opened(f"grpcs://{where}?ca={tmp_path}/ca.crt", flat_jgf(2))
        assert isinstance(ask(engine, Operation.ALLOCATE, jobspec(1, 4), 1), Match)
        engine.close()
    for spec, why in (
        (f"grpcs://{where}?ca=/no/such/file", "No such file"),
        (f"grpcs://{where}?key={tmp_path}/ca.crt", "together"),
        (f"grpc://{where}?ca={tmp_path}/ca.crt", "grpc:// takes none"),
    ):
        with pytest.raises(InvalidInput, match=why):
            opened(spec, flat_jgf(2))


# -- changes -------------------------------------------------------------------------------------------------


def test_changes_are_made_in_both(query: Open) -> None:
    """Partial cancel, update, grow, shrink, status and find, each seen by what is placed next."""
    engine = query(flat_jgf(2))
    held = ask(engine, Operation.ALLOCATE, jobspec(2, 4), 1, format_="rv1_nosched")
    assert isinstance(held, Match)
    r = json.loads(held.allocation)
    entry = {**r["execution"]["R_lite"][0], "rank": "1"}
    r["execution"] = {**r["execution"], "R_lite": [entry], "nodelist": ["node1"]}
    freed = engine.partial_cancel(1, json.dumps(r), "rv1exec")
    assert not freed.whole_job and any(path.startswith("/cluster0/node1") for path in freed.paths)
    with pytest.raises(InvalidInput, match="reader"):
        engine.partial_cancel(1, "{}", "xml")
    assert isinstance(ask(engine, Operation.ALLOCATE, jobspec(2, 4), 2), Refusal)
    again = ask(engine, Operation.ALLOCATE, jobspec(1, 4), 2, format_="jgf")
    assert isinstance(again, Match) and [share.name for share in again.shares] == ["node1"]
    found = engine.find("jobid-alloc=2", now=0, format_="jgf")
    assert "/cluster0/node1/core3" in found.paths
    engine.cancel(2)
    updated = engine.update(
        7, again.allocation, "jgf", at=0, duration=60, now=0, name="u", format_="rv1_nosched"
    )
    assert (updated.job, updated.end) == (7, 60)
    with pytest.raises(Conflict):
        engine.update(7, again.allocation, "jgf", at=0, duration=60, now=0, name="", format_="")
    with pytest.raises(FluenceError):  # its vertices are taken
        engine.update(8, again.allocation, "jgf", at=0, duration=60, now=0, name="", format_="")
    assert isinstance(ask(engine, Operation.ALLOCATE, jobspec(1, 1), 3), Refusal)
    engine.cancel(7)
    assert engine.grow(flat_jgf(1, first=2)) == 5
    third = ask(engine, Operation.ALLOCATE, jobspec(2, 4), 3)
    assert isinstance(third, Match) and {share.name for share in third.shares} == {"node1", "node2"}
    engine.cancel(3)
    assert engine.shrink(["/cluster0/node2", "/cluster0/node2/core0"]).vertices == 5
    with pytest.raises(NotFound):
        engine.shrink(["/cluster0/node2"])
    assert isinstance(ask(engine, Operation.ALLOCATE, jobspec(2, 4), 3), Refusal)
    engine.set_status("/cluster0/node1", up=False)
    assert "/cluster0/node1" in engine.find("status=down", now=0, format_="jgf").paths
    assert isinstance(ask(engine, Operation.ALLOCATE, jobspec(1, 1), 3), Refusal)
    engine.set_status("/cluster0/node1", up=True)
    assert isinstance(ask(engine, Operation.ALLOCATE, jobspec(1, 1), 3), Match)
    for call in (
        lambda: engine.find("status=", now=0, format_="jgf"),
        lambda: engine.grow("{}"),
        lambda: engine.set_status("/nowhere", up=True),
        lambda: engine.partial_cancel(99, "{}", "jgf"),
        lambda: engine.update(9, "{}", "jgf", at=0, duration=60, now=0, name="", format_=""),
    ):
        with pytest.raises(FluenceError):
            call()
    assert isinstance(ask(engine, Operation.ALLOCATE, jobspec(1, 1), 5), Match)


def test_a_refusal_of_the_other_program_changes_nothing_here(tmp_path: Path) -> None:
    """It cannot read the graph that it should grow by."""
    body = f'sed -u "s/^attach .*/attach no-such-file/" | "{_FLUENCE}" resource-query "$@"'
    engine = opened(program(tmp_path / "rq", body), flat_jgf(1))
    try:
        with pytest.raises(EngineRefuses, match="can't open no-such-file"):
            engine.grow(flat_jgf(1, first=1))
        assert engine.vertices == 6
    finally:
        engine.close()


# -- comparing -----------------------------------------------------------------------------------------------


def replayed(words: str) -> tuple[str, str]:
    """What both programs of a report print."""
    lines = words.splitlines()
    at = lines.index("To see it again:")
    folder = lines[at + 1].removeprefix("  cd ")
    texts = []
    for line in (lines[at + 2], lines[at + 3]):
        command = line.strip().replace("fluence resource-query", f"{_FLUENCE} resource-query")
        done = subprocess.run(command, cwd=folder, shell=True, capture_output=True, text=True, check=False)
        assert "ERROR" not in done.stderr, done.stderr
        texts.append(done.stdout)
    return texts[0], texts[1]


@contextmanager
def liar(folder: Path, text: str, **more: Any) -> Iterator[OtherEngine]:
    """A resource-query that calls the last core of a node by another name once ``lie`` exists."""
    script = folder / "liar.py"
    script.write_text(
        "import pathlib, sys\n"
        "for line in sys.stdin:\n"
        "    lies = pathlib.Path(sys.argv[1]).exists()\n"
        "    print(line.replace('core3[', 'core0[') if lies else line, end='', flush=True)\n"
    )
    body = f'"{_FLUENCE}" resource-query "$@" | "{sys.executable}" "{script}" "{folder}/lie"'
    engine = opened(program(folder / "rq", body), text, compare=True, **more)
    try:
        yield engine
    finally:
        engine.close()


def test_the_commands_of_a_difference_show_it_again(tmp_path: Path) -> None:
    """With jobs that were refused, cancelled, given back in part and re-created before it."""
    with liar(tmp_path, flat_jgf(2)) as engine:
        ask(engine, Operation.ALLOCATE, jobspec(1, 4), 1)
        full = ask(engine, Operation.ALLOCATE, jobspec(1, 4), 2, format_="jgf")
        assert isinstance(full, Match)
        assert isinstance(ask(engine, Operation.ALLOCATE, jobspec(1, 4), 3), Refusal)
        ask(engine, Operation.TRY_FUTURE, jobspec(1, 4))
        engine.cancel(1)
        engine.cancel(2)
        engine.update(5, full.allocation, "jgf", at=0, duration=3600, now=0, name="", format_="")
        engine.set_status("/cluster0/node0", up=False)
        engine.set_status("/cluster0/node0", up=True)
        (tmp_path / "lie").touch()
        with pytest.raises(AnswersDiffer) as differs:
            ask(engine, Operation.ALLOCATE, jobspec(1, 4), 6)
        words = str(differs.value)
        assert "job 6 (allocate) is answered differently:" in words
        theirs, ours = replayed(words)
        assert theirs != ours
        assert ours.count("RESOURCES=ALLOCATED") == 4 and ours.count("No matching resources") == 1
        last = ours.rpartition("RESOURCES=ALLOCATED")[0].rpartition("INFO: =====")[0]
        assert last.count("node0") and "core3[1:x]" in last.rpartition("ALLOCATED")[2]
        # What was answered by nobody is held by nobody.
        (tmp_path / "lie").unlink()
        assert isinstance(ask(engine, Operation.ALLOCATE, jobspec(1, 4), 7), Match)
        assert sorted(entry.job for entry in engine.jobs()) == [5, 7]


def test_commands_that_have_no_effect_any_more_are_left_out(tmp_path: Path) -> None:
    with liar(tmp_path, flat_jgf(2), policy="low") as engine:
        assert engine._comparison is not None
        recording = engine._comparison.recording
        recording.most = 12
        ask(engine, Operation.ALLOCATE, jobspec(1, 4), 1)
        for number in range(2, 22):
            assert isinstance(ask(engine, Operation.ALLOCATE, jobspec(1, 4), number), Match)
            engine.set_status("/cluster0/node0", up=number % 2 == 0)
            engine.cancel(number)
            assert len(recording.commands) <= 14
        (tmp_path / "lie").touch()
        with pytest.raises(AnswersDiffer) as differs:
            ask(engine, Operation.ALLOCATE, jobspec(1, 4), 200)
        assert "earlier commands are left out" in str(differs.value)
        theirs, ours = replayed(str(differs.value))
        assert theirs != ours
        assert ours.rpartition("JOBID=")[0].rpartition("ALLOCATED")[2].count("/node1") == 0


def test_no_difference_where_fluxion_counts_nodes_in_its_own_way(tmp_path: Path) -> None:
    """Two nodes of which one arrives down: Fluxion counts none as up, and says that none can be had."""
    document = json.loads(flat_jgf(2))
    for vertex in document["graph"]["nodes"]:
        if vertex["metadata"]["type"] == "node" and vertex["metadata"]["id"] == 1:
            vertex["metadata"]["status"] = 1
    engine = opened(program(tmp_path / "rq", OURS), json.dumps(document), compare=True)
    try:
        for job, operation in enumerate(Operation, start=1):
            ask(engine, operation, jobspec(1, 4), job)
    finally:
        engine.close()


def test_a_difference_in_a_change_stops_the_service_from_going_on(tmp_path: Path) -> None:
    """The other program sets the status of nothing."""
    body = f'sed -u "s/^set-status .*/set-property \\/cluster0 a=b/" | "{_FLUENCE}" resource-query "$@"'
    engine = opened(program(tmp_path / "rq", body), flat_jgf(1), compare=True)
    try:
        with pytest.raises(AnswersDiffer, match="find status=down is answered differently"):
            engine.set_status("/cluster0/node0", up=False)
        with pytest.raises(AnswersDiffer, match="restart the service"):
            ask(engine, Operation.ALLOCATE, jobspec(1, 4), 1)
    finally:
        engine.close()


# -- as a service --------------------------------------------------------------------------------------------


def serve(folder: Path, body: str, *flags: str) -> Service:
    (folder / "graph.json").write_text(flat_jgf(2))
    engine = program(folder / "rq", body)
    return Service("--graph", str(folder / "graph.json"), "--engine", engine, *flags)


def test_it_is_filled_and_freed_by_what_the_other_program_answers(tmp_path: Path) -> None:
    body = f'echo $$ > "{tmp_path}/pid"; exec "{_FLUENCE}" resource-query "$@"'
    service = serve(tmp_path, body, "--compare")
    with channel_to(service.address) as channel:
        client, own = wire.fluxion(channel), Client(channel)
        assert client.Match(jobspec=jobspec(1, 4), request="satisfiability").jobid == 0
        assert own.Match(jobspec=jobspec(1, 4), operation=5).job == -1  # WITHOUT_ALLOCATING
        first = client.Match(jobspec=jobspec(1, 4), request="allocate")
        second = client.Match(jobspec=jobspec(1, 4), request="allocate")
        assert first.allocation and second.allocation and first.allocation != second.allocation
        with pytest.raises(grpc.RpcError) as full:
            client.Match(jobspec=jobspec(1, 4), request="allocate")
        assert (full.value.code(), reason(full.value)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
        with pytest.raises(grpc.RpcError) as never:
            client.Match(jobspec=jobspec(5, 4), request="allocate")
        assert (never.value.code(), reason(never.value)) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "impossible",
        )
        later = client.Match(jobspec=jobspec(2, 4), reservation=True)  # of the number that was refused
        assert (later.reserved, later.at, later.jobid) == (True, 3600, 3)
        assert client.Cancel(jobID=later.jobid).status == 0
        assert client.Cancel(jobID=first.jobid).status == 0
        again = client.Match(jobspec=jobspec(1, 4), request="allocate")
        assert again.allocation == first.allocation and again.jobid == 4
        assert sorted(job.job for job in own.ListJobs().jobs) == [2, 4]
        with pytest.raises(grpc.RpcError) as refused:
            own.Match(jobspec=jobspec(), now=5)
        assert "no time of its own" in str(refused.value.details())
    number = (tmp_path / "pid").read_text().strip()
    assert Path("/proc", number).exists()
    assert service.stop() == 0, service.log
    assert not Path("/proc", number).exists(), "the program is left behind"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"compare": True}, "compare needs an engine"),
        ({"engine": "resource-query:/bin/cat"}, "another engine needs the graph as a file"),
        ({"engine": "grpc://x:1", "graph": "g", "service_clock": "wall"}, "no time of its own"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        ServiceSettings(**given).check()


@pytest.mark.parametrize("body", ["exec sleep 60", "while :; do echo nonsense; done"])
def test_a_program_that_does_not_answer_is_found_out(tmp_path: Path, monkeypatch: Any, body: str) -> None:
    """Within seconds, whether it says nothing or something else."""
    monkeypatch.setattr(engines, "_START_S", 0.5)
    with pytest.raises(EngineFailed, match=r"after 0\.5 s"):
        opened(program(tmp_path / "rq", body), flat_jgf(1))


def test_the_time_to_answer_leaves_out_what_a_busy_machine_takes(tmp_path: Path, monkeypatch: Any) -> None:
    """A program that starts later than it may, and waited for a processor as long."""
    waits = iter([0.3, 0.6, 0.6])
    monkeypatch.setattr(engines, "_START_S", 0.3)
    monkeypatch.setattr(engines, "_starved_s", lambda _: next(waits))
    with pytest.raises(EngineFailed, match=r"after 0\.3 s"):
        opened(program(tmp_path / "rq", "exec sleep 60"), flat_jgf(1))
    assert not list(waits), "asked as long as it grows"
    monkeypatch.setattr(engines, "_starved_s", lambda _: 60.0)
    monkeypatch.setattr(engines, "_MOST_STARVED", 200.0)
    with closing(opened(program(tmp_path / "rq", f"sleep 1; {OURS}"), flat_jgf(1))) as engine:
        assert engine.vertices == 6


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux says how long a process waited")
def test_how_long_a_program_waits_for_a_processor_is_known() -> None:
    """More programs than processors: together they wait."""
    spin = "while :; do :; done"
    crowd = [
        subprocess.Popen(["/bin/sh", "-c", f"{spin} & {spin}"], start_new_session=True)
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        for one in crowd:
            wait_until(partial(engines._starved_s, one.pid), lambda seen: seen > 0.05)
    finally:
        for one in crowd:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()
