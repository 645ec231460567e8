"""Our own API: time, explanations, several graphs, partial cancels, a stream of the plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from fluence.service import match_v1_pb2 as v1
from tests.unit.graph.test_hwloc import core, machine, obj
from tests.unit.service import wire
from tests.unit.service.graphs import flat_jgf, jobspec, slots_only
from tests.unit.service.running import Client, reason

EXAMPLES = Path(__file__).parents[3] / "examples"


def refused(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), reason(error.value), error.value.details()  # type: ignore[return-value]


@pytest.fixture
def graph(client: Client, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")[:63]
    client.LoadGraph(graph=name, text=flat_jgf(2), policy="low")
    return name


def test_fill_and_partial_cancel_frees_what_it_should(client: Client, graph: str) -> None:
    """The flow of fluxion-go's test: a two-node match fails, then succeeds."""
    both = client.Match(graph=graph, jobspec=jobspec(2, 4), format="rv1_nosched")
    assert [share.name for share in both.shares] == ["node0", "node1"]
    assert refused(lambda: client.Match(graph=graph, jobspec=jobspec(1, 1)))[1] == "busy"
    r = json.loads(both.allocation)
    r["execution"]["R_lite"] = [{"rank": "1", "children": {"core": "0-3"}}]
    r["execution"]["nodelist"] = ["node1"]
    part = client.PartialCancel(graph=graph, job=both.job, text=json.dumps(r))
    assert not part.whole_job
    assert "/cluster0/node1/core3" in part.paths
    info = client.Info(graph=graph, job=both.job)
    assert [share.name for share in info.shares] == ["node0"]
    assert refused(lambda: client.Match(graph=graph, jobspec=jobspec(2, 4)))[1] == "busy"
    one = client.Match(graph=graph, jobspec=jobspec(1, 4))
    assert [share.name for share in one.shares] == ["node1"]
    for job in (both.job, one.job):
        assert client.Cancel(graph=graph, job=job).existed
    assert [share.name for share in client.Match(graph=graph, jobspec=jobspec(2, 4)).shares] == [
        "node0",
        "node1",
    ]


def test_a_partial_cancel_of_all_ends_the_job(client: Client, graph: str) -> None:
    found = client.Match(graph=graph, jobspec=jobspec(1, 4), format="rv1_nosched")
    assert client.PartialCancel(graph=graph, job=found.job, text=found.allocation).whole_job
    assert refused(lambda: client.Info(graph=graph, job=found.job))[0] == grpc.StatusCode.NOT_FOUND


def test_a_partial_cancel_may_find_its_job_gone(client: Client, graph: str) -> None:
    """As fluxion-go's `noent_ok`."""
    assert refused(lambda: client.PartialCancel(graph=graph, job=77, text="{}"))[1] == "not-found"
    gone = client.PartialCancel(graph=graph, job=77, text="{}", missing_ok=True)
    assert gone.whole_job and not gone.paths


def test_a_topology_of_hwloc_is_a_graph(client: Client) -> None:
    text = machine(obj("Package", core(0), core(1), cpus=range(2)), cpus=2)
    for format_, allow, cores in (("hwloc", (), 2), ("", ("node", "core"), 2), ("hwloc", ("node",), 0)):
        client.LoadGraph(graph="machine", text=text, format=format_, allow=allow, replace=True)
        types = {each.type: each.count for each in client.Stat(graph="machine").types}
        assert (types["node"], types.get("core", 0)) == (1, cores)
    client.LoadGraph(graph="machine", text=text, replace=True)
    found = client.Match(graph="machine", jobspec=slots_only(1, 2))
    assert [share.name for share in found.shares] == ["node07"]
    assert refused(lambda: client.LoadGraph(graph="bad", text="<topology/>", format="hwloc"))[1] == "invalid"
    client.UnloadGraph(graph="machine")


def test_time_is_an_argument(client: Client, graph: str) -> None:
    client.Match(graph=graph, jobspec=jobspec(2, 4, seconds=100), now=1000)
    later = client.Match(
        graph=graph, jobspec=jobspec(1, 4, seconds=10), now=1010, operation=v1.ALLOCATE_ORELSE_RESERVE
    )
    assert (later.reserved, later.at, later.end) == (True, 1100, 1110)
    assert refused(lambda: client.Match(graph=graph, jobspec=jobspec(), now=-1))[1] == "invalid"
    assert refused(lambda: client.Match(graph=graph, jobspec=jobspec(), now=2**62))[1] == "invalid"


def test_operations_that_take_nothing(client: Client, graph: str) -> None:
    for operation in (v1.SATISFIABILITY, v1.WITHOUT_ALLOCATING, v1.WITHOUT_ALLOCATING_FUTURE):
        found = client.Match(graph=graph, jobspec=jobspec(2, 4), operation=operation)
        assert found.job == -1
    assert client.ListJobs(graph=graph).total == 0
    impossible = refused(
        lambda: client.Match(graph=graph, jobspec=jobspec(9, 4), operation=v1.SATISFIABILITY)
    )
    assert impossible[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "impossible")


def test_explanations(client: Client, graph: str) -> None:
    held = client.Match(graph=graph, jobspec=jobspec(2, 3, seconds=50))
    code, why, words = refused(lambda: client.Match(graph=graph, jobspec=jobspec(1, 2), explain=True))
    assert (code, why) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
    assert f"held by job {held.job}" in words
    found = client.Explain(graph=graph, jobspec=jobspec(1, 2))
    assert (found.verdict, list(found.blocking), found.earliest_end) == ("wait", [held.job], 50)
    assert found.levels[0].causes["busy"] == 2
    assert client.Explain(graph=graph, jobspec=jobspec(1, 1)).verdict == "fits"
    assert client.Explain(graph=graph, jobspec=jobspec(5, 1)).verdict == "never"


def test_ids_of_the_callers_own(client: Client, graph: str) -> None:
    assert client.Match(graph=graph, jobspec=jobspec(), job=7, name="seven").job == 7
    taken = refused(lambda: client.Match(graph=graph, jobspec=jobspec(), job=7))
    assert taken[:2] == (grpc.StatusCode.ALREADY_EXISTS, "conflict")
    assert client.Match(graph=graph, jobspec=jobspec()).job == 8
    assert client.Match(graph=graph, jobspec=jobspec(), job=2**60).job == 2**60
    assert client.Match(graph=graph, jobspec=jobspec()).job == 9
    for wrong in (-5, 2**62):
        assert (
            refused(lambda wrong=wrong: client.Match(graph=graph, jobspec=jobspec(), job=wrong))[1]  # type: ignore[misc]
            == "invalid"
        )
    listed = client.ListJobs(graph=graph, limit=2)
    assert ([job.job for job in listed.jobs], listed.total, listed.more) == ([7, 8], 4, True)
    assert listed.jobs[0].name == "seven"
    rest = client.ListJobs(graph=graph, after=8)
    assert ([job.job for job in rest.jobs], rest.more) == ([9, 2**60], False)


def test_update_re_creates_what_was_written_down(client: Client, graph: str) -> None:
    found = client.Match(graph=graph, jobspec=jobspec(1, 2), format="jgf")
    client.Cancel(graph=graph, job=found.job)
    again = client.Update(graph=graph, job=50, text=found.allocation, at=0, duration=3600)
    assert again.shares == found.shares
    clash = refused(lambda: client.Update(graph=graph, job=51, text=found.allocation, at=0, duration=3600))
    assert clash[:2] == (grpc.StatusCode.ALREADY_EXISTS, "conflict")
    for at, duration in ((-1, 10), (0, 0), (0, -1), (2**62, 1), (1, 2**62)):
        wrong = refused(
            lambda at=at, duration=duration: client.Update(  # type: ignore[misc]
                graph=graph, job=52, text=found.allocation, at=at, duration=duration
            )
        )
        assert wrong[1] == "invalid", (at, duration)


def test_the_graph_changes(client: Client, graph: str) -> None:
    client.SetStatus(graph=graph, path="/cluster0/node0", down=True)
    found = client.Find(graph=graph, criteria="status=down and names=node0")
    assert "/cluster0/node0" in found.paths
    assert json.loads(found.text)["graph"]["nodes"]
    assert [share.name for share in client.Match(graph=graph, jobspec=jobspec(1, 4)).shares] == ["node1"]
    client.SetStatus(graph=graph, path="/cluster0/node0")
    assert client.Grow(graph=graph, jgf=flat_jgf(1, first=2)).vertices == 5
    three = client.Match(graph=graph, jobspec=jobspec(2, 4))
    shrunk = client.Shrink(graph=graph, paths=["/cluster0/node2"])
    assert (shrunk.vertices, list(shrunk.jobs)) == (5, [three.job])
    assert refused(lambda: client.Shrink(graph=graph, paths=[]))[1] == "invalid"
    assert refused(lambda: client.Shrink(graph=graph, paths=["/cluster0"]))[1] == "conflict"
    stat = client.Stat(graph=graph)
    assert (stat.vertices, stat.edges, stat.jobs) == (11, 10, 2)
    assert stat.matches == 2
    assert 0 < stat.min_seconds <= stat.avg_seconds <= stat.max_seconds
    assert {each.type: each.count for each in stat.types} == {"cluster": 1, "node": 2, "core": 8}


def test_an_answer_that_cannot_be_written_takes_nothing(client: Client) -> None:
    text = json.loads(flat_jgf(1))
    for vertex in text["graph"]["nodes"]:
        vertex["metadata"]["rank"] = -1
    client.LoadGraph(graph="without-ranks", text=json.dumps(text))
    for format_ in ("rv1_nosched", "no-such-format"):
        why = refused(lambda f=format_: client.Match(graph="without-ranks", jobspec=jobspec(1, 4), format=f))  # type: ignore[misc]
        assert why[1] == "invalid"
    assert client.ListJobs(graph="without-ranks").total == 0
    assert client.Match(graph="without-ranks", jobspec=jobspec(1, 4)).shares[0].amounts["core"] == 4


@pytest.mark.parametrize(
    ("file", "format_"),
    [("cluster.json", "jgf"), ("cluster.json", ""), ("cluster.graphml", "grug"), ("R.json", "rv1exec")],
)
def test_graphs_in_every_format(client: Client, file: str, format_: str, tmp_path: Path) -> None:
    if file == "R.json":
        client.LoadGraph(graph="for-r", text=flat_jgf(3), replace=True)
        text = client.GetGraph(graph="for-r", format="rv1_nosched").text
    else:
        text = (EXAMPLES / file).read_text()
    info = client.LoadGraph(graph="any", text=text, format=format_, replace=True)
    assert info.vertices > 10
    assert client.Match(graph="any", jobspec=slots_only(1, 1)).shares


def test_graphs_by_name(client: Client) -> None:
    client.LoadGraph(graph="a", text=flat_jgf(1))
    client.LoadGraph(graph="b", text=flat_jgf(1), policy="high")
    client.Match(graph="a", jobspec=jobspec(1, 4))
    assert client.Match(graph="b", jobspec=jobspec(1, 4)).job == 1
    assert refused(lambda: client.LoadGraph(graph="a", text=flat_jgf(1)))[1] == "conflict"
    assert client.LoadGraph(graph="a", text=flat_jgf(2), replace=True).jobs == 0
    assert client.Match(graph="a", jobspec=jobspec(1, 4)).job == 2  # no id is given twice
    infos = {info.graph: info for info in client.ListGraphs().graphs}
    assert (infos["a"].jobs, infos["b"].policy, infos["b"].vertices) == (1, "high", 6)
    assert client.UnloadGraph(graph="b").jobs == 1
    assert refused(lambda: client.Match(graph="b", jobspec=jobspec()))[0] == grpc.StatusCode.NOT_FOUND
    for wrong in ("", "{}", "not a graph", flat_jgf(1)[:-30]):
        assert refused(lambda text=wrong: client.LoadGraph(graph="c", text=text))[1] == "invalid"  # type: ignore[misc]
    assert refused(lambda: client.LoadGraph(graph="../c", text=flat_jgf(1)))[1] == "invalid"
    assert refused(lambda: client.LoadGraph(graph="c", text=flat_jgf(1), policy="highest"))[1] == "invalid"


def test_the_plan_as_a_stream(client: Client, graph: str) -> None:
    first = client.Match(graph=graph, jobspec=jobspec(2, 4), name="first")
    stream = client.WatchPlan(graph=graph, timeout=30)
    events = iter(stream)
    assert next(events).job.name == "first"
    assert next(events).type == v1.PlanEvent.SYNCED
    later = client.Match(graph=graph, jobspec=jobspec(1, 4), operation=v1.ALLOCATE_ORELSE_RESERVE)
    added = next(events)
    assert (added.type, added.job.job, added.job.state, added.job.at) == (
        v1.PlanEvent.ADDED,
        later.job,
        "reserved",
        3600,
    )
    client.Cancel(graph=graph, job=first.job)
    assert (next(events).type, client.ListJobs(graph=graph).total) == (v1.PlanEvent.REMOVED, 1)
    client.UnloadGraph(graph=graph)
    with pytest.raises(grpc.RpcError) as ended:
        next(events)
    assert ended.value.code() == grpc.StatusCode.NOT_FOUND


def test_health(channel: grpc.Channel) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", "fluxion.FluxionService", "fluence.match.v1.MatchService"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_clients_of_both_versions_of_reflection_find_the_services(channel: grpc.Channel) -> None:
    """v1, which clients ask first, from the numbers of its messages; v1alpha with the client of grpcio."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    alpha = ProtoReflectionDescriptorDatabase(channel)
    v1_names = wire.reflected_services(channel)
    assert v1_names == sorted(alpha.get_services())
    assert {
        "fluxion.FluxionService",
        "fluxcli.FluxcliService",
        "service.ExternalPluginService",
        "fluence.match.v1.MatchService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    } == set(v1_names)
    for name in v1_names:
        pool = DescriptorPool()
        for file in wire.reflected_files(channel, name):
            pool.AddSerializedFile(file)
        found = pool.FindServiceByName(name).methods_by_name
        assert set(found) == set(DescriptorPool(alpha).FindServiceByName(name).methods_by_name)
        if name == "fluence.match.v1.MatchService":
            assert found["WatchPlan"].server_streaming
    assert wire.reflected_files(channel, "no.such.Service") == []
