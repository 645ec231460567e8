"""`fluence service`: the matcher as a gRPC service, for programs written for Fluxion's service and for new
ones."""

from __future__ import annotations

from pathlib import Path

import click

from fluence.cli.choice import load_settings, settings_options
from fluence.commands.running import run_until_stopped
from fluence.graph import files
from fluence.graph.filters import DEFAULT as DEFAULT_FILTERS
from fluence.service import changes
from fluence.service.graphs import DEFAULT, Graphs
from fluence.service.server import MatchServer, open_graphs
from fluence.service.settings import ServiceSettings


@click.group()
def service() -> None:
    """Serve the matcher on a port, to programs in any language.

    \b
    Example:
      fluence service run --graph cluster.json
    """


@service.command()
@settings_options(ServiceSettings)
def run(config_file: str | None, **flags: object) -> None:
    """Serve a graph by gRPC: the services of fluxqueue, fluxnetes and flux-k8s, and an API of Fluence's own.

    The graph comes from a file, from a client (Init, LoadGraph), or is the running cluster (--live), which is
    only read: a match then says what its scheduler would do. With --state, graphs and jobs survive a restart:
    what was answered is on disk.

    \b
    Examples:
      fluence service run                                     an old client brings the graph: Init
      fluence service run --graph cluster.json --state /var/lib/fluence-service
      fluence service run --graph cluster.json --engine resource-query:/usr/bin/resource-query --compare
      fluence service run --live --service-address 0.0.0.0:4242 --tls-certificate tls.crt --tls-key tls.key
      grpcurl -plaintext localhost:4242 list                  what it serves

    \b
    Exit codes: 0 told to stop; 1 a fault; 2 a wrong command line.
    """
    settings = load_settings(ServiceSettings, config_file, flags).settings
    settings.check()
    ready = _live_graphs(settings) if settings.live else None
    if settings.engine is not None:
        ready = _engine_graphs(settings, settings.engine)

    async def work() -> None:
        graphs = ready or open_graphs(settings)
        try:
            async with MatchServer(settings, graphs) as server:
                secure = ", with TLS" if settings.tls_certificate else ""
                click.echo(f"fluence: serves on {server.address}{secure}", err=True)
                await server.run()
        finally:
            graphs.close()

    run_until_stopped(work, log_level=settings.log_level)


def _engine_graphs(settings: ServiceSettings, spec: str) -> Graphs:
    from fluence.cli.service_engine import OtherEngine

    graphs = Graphs(
        max_graphs=settings.max_graphs, max_vertices=settings.max_vertices, max_jobs=settings.max_jobs
    )
    assert settings.graph is not None
    load = changes.LoadGraph(
        graph=DEFAULT,
        text=changes.packed(text := Path(settings.graph).read_bytes()),
        format=settings.graph_format or files.guess(text, source=settings.graph),
        policy=settings.match_policy,
        source=settings.graph,
        digest=changes.digest(text),
        filters=DEFAULT_FILTERS,
        allow=settings.allow,
        pools=(),
    )
    engine = OtherEngine(load, spec, compare=settings.compare, max_vertices=settings.max_vertices)
    graphs.add(DEFAULT, engine, source=settings.graph)
    return graphs


def _live_graphs(settings: ServiceSettings) -> Graphs:
    from fluence.commands import cluster as live  # it loads the client of the cluster
    from fluence.commands.cluster import ask_leader
    from fluence.service.live_engine import LiveEngine

    leader = ask_leader(settings.kubeconfig, settings.context, environ={})
    graphs = Graphs(
        max_graphs=settings.max_graphs, max_vertices=settings.max_vertices, max_jobs=settings.max_jobs
    )
    engine = LiveEngine(lambda: live.list_as(leader), leader.settings, namespace=leader.access.namespace)
    graphs.add(DEFAULT, engine, source=leader.access.server)
    return graphs
