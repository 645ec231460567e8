"""Random calls of all services against a process, each checked against a matcher in this one.

FLUENCE_SERVICE_CALLS=10000 is the long form.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import grpc
import numpy as np
import pytest

from fluence import Conflict, FluenceError, Jobspec, Matcher, Never, NotFound, Placed, ResourceGraph, render
from fluence.graph.writers import jgf_value
from fluence.match.describe import grant
from fluence.match.explain import explain
from fluence.match.find import find
from fluence.service import match_v1_pb2 as v1
from tests.unit.service import wire
from tests.unit.service.graphs import document, flat_jgf, jobspec, slots_only
from tests.unit.service.running import Client, Service, channel_to, reason

CALLS = int(os.environ.get("FLUENCE_SERVICE_CALLS", "600"))
POLICIES = ("first", "low", "high", "lonode", "hinodex", "locality")
OPERATIONS = {
    v1.ALLOCATE: "allocate",
    v1.ALLOCATE_WITH_SATISFIABILITY: "allocate_with_satisfiability",
    v1.ALLOCATE_ORELSE_RESERVE: "allocate_orelse_reserve",
    v1.SATISFIABILITY: "satisfiability",
    v1.WITHOUT_ALLOCATING: "without_allocating",
    v1.WITHOUT_ALLOCATING_FUTURE: "without_allocating_future",
}
REASONS = {grpc.StatusCode.RESOURCE_EXHAUSTED: "busy", grpc.StatusCode.FAILED_PRECONDITION: "impossible"}


class Twin:
    """The same calls on a matcher here; an answer is a value that can be compared."""

    def __init__(self, policy: str, nodes: int) -> None:
        self.matcher = Matcher(ResourceGraph.parse(flat_jgf(nodes)), policy)
        self.next_job = 1

    def match(self, operation: str, text: str, now: int) -> tuple[Any, ...]:
        takes = operation.startswith("allocate")
        try:
            spec = Jobspec.parse(text)
            found = self.matcher.match(operation, spec, job=self.next_job if takes else None, now=now)
            if not found and not isinstance(found, Never):
                judged = self.matcher.match("satisfiability", spec, now=now)
                found = judged if isinstance(judged, Never) else found
        except FluenceError:
            return ("invalid",)
        if not isinstance(found, Placed):
            return ("impossible" if isinstance(found, Never) else "busy",)
        if takes:
            self.next_job += 1
        text = render(self.matcher, found, "rv1_nosched")
        return (found.job, found.at, found.end, found.reserved, text)


class On:
    """Our own API, always with one graph."""

    def __init__(self, client: Client, graph: str) -> None:
        self._client, self._graph = client, graph

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._client, method)
        return lambda **fields: call(graph=self._graph, **fields)


class Session:
    """One graph on the service, and its twin. Only the default one is known to the old services."""

    def __init__(self, channel: grpc.Channel, seed: int, graph: str = "") -> None:
        self.random = random.Random(seed)
        self.policy = self.random.choice(POLICIES)
        nodes = self.random.randint(2, 9)
        self.twin = Twin(self.policy, nodes)
        self.nodes = nodes
        self.client = On(Client(channel), graph)
        self.is_default = not graph
        self.old, self.pods, self.nets = wire.fluxion(channel), wire.fluxcli(channel), wire.fluxnetes(channel)
        self.now = 0
        self.there = list(range(nodes))  # numbers of nodes
        if graph:
            self.client.LoadGraph(text=flat_jgf(nodes), policy=self.policy, replace=True)
        else:
            self.old.Init(jgf=flat_jgf(nodes), policy=self.policy)
        self.twin.next_job = self.next_job = self._first_job()

    def _first_job(self) -> int:
        """No id is given twice, so a graph that replaces another one goes on counting."""
        found = self.client.Match(jobspec=slots_only(1, 1))
        self.client.Cancel(job=found.job)
        matcher = self.twin.matcher
        assert matcher.match("allocate", Jobspec.parse(slots_only(1, 1)), job=found.job)
        matcher.cancel(found.job)
        return int(found.job) + 1

    def spec(self) -> str:
        pick, choose = self.random.random(), self.random.randint
        seconds = self.random.choice((0, 10, 60, 3600))
        if pick < 0.5:
            return jobspec(choose(1, 3), choose(1, 4), seconds=seconds, whole=self.random.random() < 0.2)
        if pick < 0.8:
            return slots_only(choose(1, 6), choose(1, 3), seconds=seconds)
        if pick < 0.9:
            ranged = {"min": 1, "max": choose(1, 4), "operator": "+", "operand": 1}
            return document([{"type": "node", "count": ranged, "with": [_slot(1, 2)]}], seconds)
        if pick < 0.95:
            return jobspec(99, 1)
        return self.random.choice(("", "{", "[]", '{"version": 1}', jobspec().replace("core", "gpu"), "\0"))

    def step(self) -> None:
        jobs = list(self.twin.matcher.ledger.jobs)
        pick = self.random.random()
        if pick < 0.45 or not jobs:
            self.match()
        elif pick < 0.55 and self.is_default:
            self.random.choice((self.old_match, self.pod_match))()
        elif pick < 0.58:
            self.explain()
        elif pick < 0.75:
            self.cancel(self.random.choice(jobs))
        elif pick < 0.8:
            self.cancel(self.random.choice((0, 99_999, -4)))
        elif pick < 0.86:
            self.partial_cancel(self.random.choice(jobs))
        elif pick < 0.9:
            self.update(self.random.choice(jobs))
        elif pick < 0.93:
            self.status()
        elif pick < 0.945:
            self.grow()
        elif pick < 0.955:
            self.shrink()
        elif pick < 0.97:
            self.now += self.random.choice((0, 5, 100))
        else:
            self.look()

    def match(self) -> None:
        operation = self.random.choice(list(OPERATIONS))
        text = self.spec()
        expected = self.twin.match(OPERATIONS[operation], text, self.now)
        try:
            found = self.client.Match(jobspec=text, operation=operation, now=self.now, format="rv1_nosched")
            got: tuple[Any, ...] = (found.job, found.at, found.end, found.reserved, found.allocation)
        except grpc.RpcError as error:
            got = (reason(error),)
            assert REASONS.get(error.code(), "invalid") == reason(error)
        assert got == expected

    def old_match(self) -> None:
        text, reserve = self.spec(), self.random.random() < 0.5
        matcher = self.twin.matcher
        job = self.twin.next_job
        expected = self.twin.match("allocate_orelse_reserve" if reserve else "allocate", text, 0)
        try:
            found = self.old.Match(jobspec=text, request="allocate", reservation=reserve)
            assert (found.jobid, found.at, found.reserved) == (expected[0], expected[1], expected[3])
            record = matcher.ledger.job(job)
            held = {matcher.graph.path(row) for row in matcher.ledger.vertex[record.spans].tolist()}
            graph = json.loads(found.allocation)["graph"]
            assert {node["metadata"]["paths"]["containment"] for node in graph["nodes"]} == held
            assert all("basename" in node["metadata"] for node in graph["nodes"])
        except grpc.RpcError as error:
            assert (reason(error),) == expected

    def pod_match(self) -> None:
        """Pods of flux-k8s or of fluxnetes: a slot each, for an hour."""
        count, cores = self.random.randint(1, 5), self.random.randint(1, 5)
        of_nets = self.random.random() < 0.5
        reserve = of_nets and self.random.random() < 0.5
        matcher, job = self.twin.matcher, self.twin.next_job
        operation = "allocate_orelse_reserve" if reserve else "allocate"
        expected = self.twin.match(operation, slots_only(count, cores), 0)
        try:
            if of_nets:
                pod = self.nets.message("PodSpec", id="pod", cpu=cores)
                found = self.nets.Match(podspec=pod, count=count, reserve=reserve, jobName="pods")
                got = (found.fluxID, found.reserved_at, found.reserved)
            else:
                found = self.pods.Match(ps=self.pods.message("PodSpec", id="pod", cpu=cores), count=count)
                got = (found.jobID, 0, False)
        except grpc.RpcError as error:
            assert (reason(error),) == expected
            return
        assert got == (expected[0], expected[1], expected[3])
        record = matcher.ledger.job(job)
        tasks: dict[str, int] = {}
        for row in matcher.ledger.vertex[record.spans].tolist():
            if matcher.graph.type_name(row) == "core":
                name = (matcher.graph.path(row) or "").split("/")[2]
                tasks[name] = tasks.get(name, 0) + 1
        assert {node.nodeID: node.tasks for node in found.nodelist} == {
            name: cores_there // cores for name, cores_there in tasks.items()
        }

    def explain(self) -> None:
        text = self.spec()
        matcher = self.twin.matcher
        try:
            expected: object = explain(matcher, matcher.compile(Jobspec.parse(text)), now=self.now).lines()
        except FluenceError:
            expected = "invalid"
        try:
            got: object = list(self.client.Explain(jobspec=text, now=self.now).lines)
        except grpc.RpcError as error:
            got = reason(error)
        assert got == expected

    def cancel(self, job: int) -> None:
        try:
            self.twin.matcher.cancel(job)
            existed = True
        except NotFound:
            existed = False
        if self.random.random() < 0.3 and job > 0 and self.is_default:
            assert self.old.Cancel(jobID=job).status == 0
            return
        try:
            assert self.client.Cancel(job=job).existed == existed
        except grpc.RpcError as error:
            assert (error.code(), existed) == (grpc.StatusCode.NOT_FOUND, False)

    def partial_cancel(self, job: int) -> None:
        """Give back some ranks, which may be all, or none of the job's."""
        ranks = sorted(self.random.sample(range(self.nodes + 1), self.random.randint(1, 2)))
        entry = {"rank": ",".join(map(str, ranks)), "children": {"core": "0"}}
        execution = {"R_lite": [entry], "nodelist": [f"node{rank}" for rank in ranks], "starttime": 0}
        text = json.dumps({"version": 1, "execution": {**execution, "expiration": 0}})
        try:
            freed = self.twin.matcher.partial_cancel(job, text)
            expected: object = (freed.whole_job, len(freed.vertices))
        except FluenceError:
            expected = "refused"
        try:
            found = self.client.PartialCancel(job=job, text=text)
            assert (found.whole_job, len(found.paths)) == expected
        except grpc.RpcError as error:
            assert expected == "refused", error.details()

    def update(self, job: int) -> None:
        """Write a job down, cancel it, and re-create it under another id: or find it in the way."""
        matcher = self.twin.matcher
        record = matcher.ledger.job(job)
        info = self.client.Info(job=job, format="jgf")
        clash = self.random.random() < 0.3
        if not clash:
            self.client.Cancel(job=job)
            matcher.cancel(job)
        new = self.twin.next_job
        duration = max(record.end - record.start, 1)
        try:
            matcher.update(
                new, info.allocation, reader="jgf", at=record.start, duration=duration, now=self.now
            )
            expected = ""
            self.twin.next_job += 1
        except Conflict:
            expected = "conflict"
        except FluenceError:
            expected = "invalid"
        try:
            self.client.Update(
                job=new, text=info.allocation, at=record.start, duration=duration, now=self.now
            )
            got = ""
        except grpc.RpcError as error:
            got = reason(error)
        assert (got in ("invalid", "not-found")) == (expected == "invalid")
        assert (got == "") == (expected == "")

    def status(self) -> None:
        path = f"/cluster0/node{self.random.choice(self.there)}"
        up = self.random.random() < 0.6
        self.twin.matcher.set_status(path, up=up)
        self.client.SetStatus(path=path, down=not up)

    def grow(self) -> None:
        if self.nodes < 16:
            text = flat_jgf(1, first=self.nodes)
            self.there.append(self.nodes)
            self.nodes += 1
            self.twin.matcher.grow(text)
            assert self.client.Grow(jgf=text).vertices == 5

    def shrink(self) -> None:
        if len(self.there) > 2:
            number = self.there.pop(self.random.randrange(len(self.there)))
            path = f"/cluster0/node{number}"
            matcher = self.twin.matcher
            rows = sorted(matcher.with_all_below(matcher.graph.vertices_at(path)))
            lost = matcher.remove_vertices(np.array(rows, np.int32))
            if self.is_default and self.random.random() < 0.5:
                assert self.old.Shrink(nodepaths=[path]).status == 0
            else:
                found = self.client.Shrink(paths=[path])
                assert (found.vertices, list(found.jobs)) == (5, sorted(lost))

    def look(self) -> None:
        """What everybody holds, and what is found."""
        matcher = self.twin.matcher
        listed = {job.job: (job.at, job.end, job.state) for job in self.client.ListJobs().jobs}
        assert listed == {
            job.id: (job.start, job.end, "reserved" if job.reserved else "allocated")
            for job in matcher.ledger.jobs.values()
        }
        for criteria in ("status=down", "sched-now=allocated", "sched-future=reserved"):
            found = find(matcher, criteria)
            expected = {matcher.graph.path(row) for row in found.selection.vertices.tolist()}
            assert set(self.client.Find(criteria=criteria).paths) == expected
        assert json.loads(self.client.GetGraph().text) == json.loads(matcher.graph.render("jgf"))


def _slot(count: int, cores: int) -> dict[str, Any]:
    return {"type": "slot", "count": count, "label": "default", "with": [{"type": "core", "count": cores}]}


@pytest.mark.parametrize("seed", range(3))
def test_every_answer_is_that_of_the_matcher(service: Service, seed: int) -> None:
    calls = 0
    with channel_to(service.address) as channel:
        while calls < CALLS // 3:
            graphs = [
                Session(channel, seed * 1_000_003 + calls + n, graph) for n, graph in enumerate(("", "b"))
            ]
            for _ in range(30):
                for session in graphs:
                    session.step()
            for session in graphs:
                session.look()
            calls += 60


def test_verbose_jgf_has_every_field(service: Service) -> None:
    with channel_to(service.address) as channel:
        old = wire.fluxion(channel)
        old.Init(jgf=flat_jgf(2), policy="low")
        matcher = Matcher(ResourceGraph.parse(flat_jgf(2)), "low")
        placed = matcher.match("allocate", Jobspec.parse(jobspec(2, 1)), job=1)
        assert isinstance(placed, Placed)
        found = old.Match(jobspec=jobspec(2, 1))
        assert json.loads(found.allocation) == jgf_value(grant(matcher, placed), verbose=True)
