"""Calls per second and latency of the match service, beside a resource-query that is driven the same way.

    python benchmarks/service.py                                    10,000 nodes; 1, 8 and 64 clients
    python benchmarks/service.py --against /usr/bin/resource-query  and that program, through its pipe
    python benchmarks/service.py --nodes 1000 --seconds 2           a quick look

A client places a job on four nodes, gets its R, and cancels it, again and again; both are calls. The service
runs in a process of its own, without a journal and with one (`--state`), each change on disk before its
answer. A resource-query has one client: whoever holds its pipe. Clients share the machine with the service;
"CPU" is what the program itself took for a call, and tells more where the machine does other work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

import cluster
import scenario
from fluence.service import match_v1_pb2 as v1
from fluence.service.api import SERVICE
from rival import Rival, probe
from run import LEAST_NODES, _command
from session import SessionFailed

ROOT = Path(__file__).resolve().parent.parent
FORMAT = "rv1_nosched"


@dataclass(slots=True)
class Samples:
    """Seconds of every call, and how long all of them took together."""

    match: list[float] = field(default_factory=list)
    cancel: list[float] = field(default_factory=list)
    wall: float = 0.0
    cpu: float = 0.0  # of the program that answers

    @property
    def calls(self) -> int:
        return len(self.match) + len(self.cancel)

    def row(self, program: str, policy: str, clients: int) -> dict[str, Any]:
        return {
            "program": program,
            "policy": policy,
            "clients": clients,
            "calls_per_second": self.calls / self.wall,
            "cpu_ms_per_call": 1000 * self.cpu / max(self.calls, 1),
            "match_ms": {name: 1000 * value for name, value in _quantiles(self.match).items()},
            "cancel_ms": {name: 1000 * value for name, value in _quantiles(self.cancel).items()},
        }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return dict.fromkeys(("p50", "p90", "p99"), seconds[0] if seconds else 0.0)
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}


def main() -> int:
    options = _options()
    build = Path(options.build) / "bench"
    if options.against:
        small = cluster.graph_file(LEAST_NODES, build)
        command = _command(options.against)
        assert command is not None
        wrong = probe(command, small, limit_s=600, log=build / "service-rival.log")
        if wrong is not None:
            print(
                f"--against {options.against} does not answer like a resource-query: {wrong}", file=sys.stderr
            )
            return 1
    rows: list[dict[str, Any]] = []
    for nodes in options.nodes:
        rows += [{"nodes": nodes, **row} for row in _measure(nodes, build, options)]
    path = Path(options.build) / "bench-service.json"
    path.write_text(json.dumps(rows, indent=1))
    print(f"\n{len(rows)} rows in {path}")
    return 0


def _measure(nodes: int, build: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    graph = cluster.graph_file(nodes, build)
    jobspecs = scenario.write_jobspecs(nodes, build / f"jobspecs-{nodes}")
    (spec,) = jobspecs.glob("four.*")
    rows: list[dict[str, Any]] = []
    print(f"{nodes:,} nodes; a job of 4 nodes is placed, its R written, and cancelled")
    titles = ("program", "policy", "clients", "calls/s", "CPU a call", "match p50", "p99", "cancel p50")
    print("{:<28} {:<8} {:>7} {:>8} {:>11} {:>10} {:>9} {:>11}".format(*titles))
    for policy in options.policies.split(","):
        for journal in (False, True):
            rows += _ours(graph, spec, policy, options, journal=journal)
        if options.against:
            rows += _theirs(graph, spec, policy, options)
    return rows


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", default="10000", metavar="N,N", help="default: %(default)s")
    parser.add_argument("--clients", default="1,8,64", metavar="N,N", help="default: %(default)s")
    parser.add_argument("--policies", default="first,low", metavar="P,P", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="for each row (default 5)")
    parser.add_argument("--against", metavar="PROGRAM", help="a resource-query to drive the same way")
    parser.add_argument("--build", default=str(ROOT / "build"), metavar="DIR", help="where made files go")
    options = parser.parse_args()
    try:
        options.nodes = [int(nodes) for nodes in options.nodes.split(",")]
    except ValueError:
        parser.error(f"--nodes {options.nodes}: give numbers of nodes, such as 100,1000")
    if min(options.nodes) < LEAST_NODES:
        parser.error(f"--nodes: at least {LEAST_NODES} nodes")
    if options.against and _command(options.against) is None:
        parser.error(f"--against {options.against}: no such program")
    return options


def _show(row: dict[str, Any]) -> dict[str, Any]:
    match, cancel = row["match_ms"], row["cancel_ms"]
    print(
        f"{row['program']:<28} {row['policy']:<8} {row['clients']:>7} {row['calls_per_second']:>8,.0f} "
        f"{row['cpu_ms_per_call']:>8.2f} ms {match['p50']:>7.2f} ms {match['p99']:>6.1f} ms "
        f"{cancel['p50']:>8.2f} ms",
        flush=True,
    )
    return row


def _cpu(pid: int) -> float:
    """Seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- the service ---------------------------------------------------------------------------------------------


@contextmanager
def _service(graph: Path, policy: str, state: str | None) -> Any:
    arguments = ["--graph", str(graph), "--match-policy", policy, "--service-address", "127.0.0.1:0"]
    if state is not None:
        arguments += ["--state", state]
    command = [sys.executable, "-m", "fluence.cli", "service", "run", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            found = re.search(r"serves on ([^\s,]+)", line)
            if found is not None:
                yield found[1], process.pid
                return
        raise SystemExit("the service did not start")
    finally:
        process.terminate()
        process.wait(60)
        process.stderr.close()


def _ours(
    graph: Path, spec: Path, policy: str, options: argparse.Namespace, *, journal: bool
) -> list[dict[str, Any]]:
    name = "fluence service --state" if journal else "fluence service"
    text = spec.read_text()
    rows = []
    with (
        tempfile.TemporaryDirectory() as folder,
        _service(graph, policy, folder if journal else None) as (address, pid),
    ):
        for clients in map(int, options.clients.split(",")):
            samples = asyncio.run(_drive(address, pid, text, clients, options.seconds))
            rows.append(_show(samples.row(name, policy, clients)))
    return rows


async def _drive(address: str, pid: int, jobspec: str, clients: int, seconds: float) -> Samples:
    """Clients on channels of their own, for so long."""
    samples = Samples()
    await _client(address, jobspec, Samples(), lambda count: count >= 3)  # the first ones build indexes
    began, cpu = time.perf_counter(), _cpu(pid)
    end = began + seconds
    await asyncio.gather(
        *(_client(address, jobspec, samples, lambda _: time.perf_counter() >= end) for _ in range(clients))
    )
    samples.wall, samples.cpu = time.perf_counter() - began, _cpu(pid) - cpu
    return samples


async def _client(address: str, jobspec: str, samples: Samples, is_done: Callable[[int], bool]) -> None:
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        match = channel.unary_unary(
            f"/{SERVICE}/Match",
            request_serializer=v1.MatchRequest.SerializeToString,
            response_deserializer=v1.MatchResponse.FromString,
        )
        cancel = channel.unary_unary(
            f"/{SERVICE}/Cancel",
            request_serializer=v1.CancelRequest.SerializeToString,
            response_deserializer=v1.CancelResponse.FromString,
        )
        request = v1.MatchRequest(jobspec=jobspec, format=FORMAT)
        count = 0
        while not is_done(count):
            began = time.perf_counter()
            found = await match(request)
            placed = time.perf_counter()
            await cancel(v1.CancelRequest(job=found.job))
            samples.match.append(placed - began)
            samples.cancel.append(time.perf_counter() - placed)
            count += 1


# -- a resource-query ----------------------------------------------------------------------------------------


def _theirs(graph: Path, spec: Path, policy: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The same through the pipe of a resource-query: from the command sent until its answer was read."""
    command = _command(options.against)
    assert command is not None
    name = f"{Path(command[0]).name} (pipe)"
    samples = Samples()
    log = Path(options.build) / "bench" / "service-rival.log"
    try:
        engine = Rival(command, graph, policy, limit_s=600, log=log)
        try:
            for _ in range(3):
                engine.cancel(engine.match("allocate", spec).job)
            pid = engine.session._process.pid
            began, cpu = time.perf_counter(), _cpu(pid)
            while time.perf_counter() - began < options.seconds:
                start = time.perf_counter()
                found = engine.match("allocate", spec)
                placed = time.perf_counter()
                engine.cancel(found.job)
                samples.match.append(placed - start)
                samples.cancel.append(time.perf_counter() - placed)
            samples.wall, samples.cpu = time.perf_counter() - began, _cpu(pid) - cpu
            engine.quit()
        finally:
            engine.session.abandon()
    except (SessionFailed, OSError) as error:
        print(f"{name}: {error}")
        return []
    return [_show(samples.row(name, policy, 1))]


if __name__ == "__main__":
    sys.exit(main())
