"""Settings of the match service: where it listens, what it serves, how much it takes."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fluence import plugin_loader
from fluence.errors import InvalidInput
from fluence.match import policy as policies

PORT = 4242


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    service_address: Annotated[
        str,
        Meta(
            description="Where it listens: `HOST:PORT`, or `unix:/PATH`. Off loopback, use TLS or a "
            "NetworkPolicy."
        ),
    ] = f"127.0.0.1:{PORT}"
    graph: Annotated[
        str | None,
        Meta(
            description="A file with the graph `default`: JGF, GRUG, hwloc or R. Without it: a client "
            "brings one."
        ),
    ] = None
    graph_format: Annotated[
        str | None,
        Meta(
            description="The format of that file. Without it: the one that it looks like.",
            extra={"choices": ("jgf", "grug", "hwloc", "rv1exec")},
        ),
    ] = None
    allow: Annotated[
        tuple[str, ...], Meta(description="Of an hwloc topology, only these types: `node,core,gpu`.")
    ] = ()
    engine: Annotated[
        str | None,
        Meta(
            description="Another program decides on the graph of that file: `resource-query:/PATH`, a real "
            "Fluxion, or `grpc://HOST:PORT`, another service (`grpcs://HOST:PORT?ca=FILE` over TLS)."
        ),
    ] = None
    compare: Annotated[
        bool,
        Meta(
            description="With `engine`: the matcher decides, too, and a call that both answer differently "
            "fails with the commands that show the difference."
        ),
    ] = False
    live: Annotated[
        bool,
        Meta(
            description="The graph `default` is the running cluster: a match says what its scheduler would "
            "do, and takes nothing."
        ),
    ] = False
    kubeconfig: Annotated[str | None, Meta(description="With `live`: which cluster.")] = None
    context: Annotated[str | None, Meta(description="With `live`: the kubeconfig's context.")] = None
    match_policy: Annotated[
        str, Meta(description="Which of the vertices that fit are taken, where a call names no policy.")
    ] = "first"
    state: Annotated[
        str | None,
        Meta(description="A folder in which graphs and jobs are kept across a restart. Without it: none is."),
    ] = None
    service_clock: Annotated[
        str,
        Meta(
            description="The time of calls that name none: `zero`, as in Fluxion's API, or `wall`, in "
            "seconds since 1970.",
            extra={"choices": ("zero", "wall")},
        ),
    ] = "zero"
    dialect: Annotated[
        str,
        Meta(
            description="Whose messages `fluxion.FluxionService` expects: fluxqueue's (`fluxion`), those of "
            "older clients, whose field 3 is a count and no wish for a reservation (`fluxion-count`), or "
            "fluxnetes'. `auto` looks at each.",
            extra={"choices": ("auto", "fluxion", "fluxion-count", "fluxnetes")},
        ),
    ] = "auto"
    tls_certificate: Annotated[
        str | None,
        Meta(description="A PEM file with the server's certificate; it is read again when it changes."),
    ] = None
    tls_key: Annotated[str | None, Meta(description="A PEM file with its key.")] = None
    tls_client_ca: Annotated[
        str | None,
        Meta(description="A PEM file: only clients with a certificate of this authority may call."),
    ] = None
    max_message: Annotated[
        int, Meta(ge=4096, le=1 << 30, description="The largest request that carries a graph, in bytes.")
    ] = 64 << 20
    max_request: Annotated[
        int, Meta(ge=4096, le=1 << 30, description="The largest request of any other kind, in bytes.")
    ] = 1 << 20
    max_calls: Annotated[int, Meta(ge=1, le=100_000, description="How many calls may be under way.")] = 2048
    max_streams: Annotated[int, Meta(ge=1, le=10_000, description="How many clients may watch a plan.")] = 64
    max_graphs: Annotated[int, Meta(ge=1, le=1000, description="How many graphs may be loaded.")] = 16
    max_vertices: Annotated[
        int, Meta(ge=1, le=10_000_000, description="How many vertices all graphs may have together.")
    ] = 2_000_000
    max_jobs: Annotated[
        int, Meta(ge=1, le=10_000_000, description="How many jobs and reservations a graph may have.")
    ] = 100_000
    receive_timeout: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How long a request with a graph may take to arrive; others: 5 s at most.",
            extra={"unit": "seconds"},
        ),
    ] = 30.0
    max_replies: Annotated[
        int,
        Meta(
            ge=4096,
            le=1 << 30,
            description="How many bytes of replies may be on the way to clients before further calls wait "
            "that can have a large one.",
        ),
    ] = 32 << 20
    send_timeout: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How long a client may take to read a reply before its connection is closed.",
            extra={"unit": "seconds"},
        ),
    ] = 30.0
    log_level: Annotated[
        str,
        Meta(
            description="What is logged, and all that is graver.",
            extra={"choices": ("debug", "info", "warning", "error")},
        ),
    ] = "info"

    def __post_init__(self) -> None:
        plugin_loader.allow(self.match_policy)
        policies.find(self.match_policy)

    def check(self) -> None:
        """Raise `InvalidInput` if settings contradict each other."""
        if self.live and (self.graph or self.state):
            other = "graph" if self.graph else "state"
            raise InvalidInput(
                f"live and {other} exclude each other: the cluster itself is the state", where="live"
            )
        if self.compare and self.engine is None:
            raise InvalidInput("compare needs an engine to compare with", where="compare")
        if self.engine is not None and (self.graph is None or self.state is not None or self.live):
            why = "needs the graph as a file" if self.graph is None else "keeps no state, and is not live"
            raise InvalidInput(f"another engine {why}", where="engine")
        if self.engine is not None and self.service_clock != "zero":
            raise InvalidInput(
                "another engine has no time of its own: leave service-clock at zero", where="service-clock"
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidInput(
                "the certificate and its key go together: name both files", where="tls-certificate"
            )
        if self.tls_client_ca and not self.tls_certificate:
            raise InvalidInput(
                "clients can only show a certificate over TLS: name tls-certificate and tls-key too",
                where="tls-client-ca",
            )
