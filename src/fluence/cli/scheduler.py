"""`fluence scheduler`: run the scheduler against a cluster."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import click
import structlog

from fluence.errors import FluenceError
from fluence.kube.access import find_access
from fluence.kube.client import Client
from fluence.kube.errors import KubeError
from fluence.match import policy as match_policies
from fluence.queue import policy as queue_policies
from fluence.schedule import health
from fluence.schedule.live import Live, Options

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT)
def scheduler() -> None:
    """The scheduler: places pods that say `schedulerName: fluence`, gangs all or nothing.

    \b
    Examples:
      fluence scheduler run                                  in a pod, or by your kubeconfig
      fluence scheduler run --kubeconfig k.yaml --no-lease   one replica, from your desk
    """


@scheduler.command()
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster; else $KUBECONFIG.")
@click.option("--context", metavar="NAME", help="The kubeconfig's context.")
@click.option(
    "--scheduler-name",
    metavar="NAME",
    default="fluence",
    show_default=True,
    help="The schedulerName of the pods that are ours.",
)
@click.option(
    "--match-policy",
    metavar="POLICY",
    default="first",
    show_default=True,
    help="Which nodes first: first, lonode, hinode, lonodex, …",
)
@click.option(
    "--queue-policy",
    metavar="POLICY",
    default="easy",
    show_default=True,
    help="Who goes first: fcfs, first-fit, easy, hybrid, conservative.",
)
@click.option("--release-each", is_flag=True, help="Free a pod's place when it ends, not its whole gang.")
@click.option("--lease/--no-lease", default=True, help="Elect a leader among replicas. Default: yes.")
@click.option("--lease-name", metavar="NAME", default="fluence", show_default=True)
@click.option("--lease-namespace", metavar="NAME", default="kube-system", show_default=True)
@click.option(
    "--health",
    "address",
    metavar="HOST:PORT",
    default="127.0.0.1:10451",
    show_default=True,
    help="Where /healthz, /readyz and /metrics answer; '' for nowhere.",
)
@click.option("--qps", type=float, help="Calls a second to the API server; 0 for no limit. Default: 50.")
@click.option(
    "--in-flight",
    type=click.IntRange(min=1, max=1024),
    default=32,
    show_default=True,
    help="Binds at a time.",
)
@click.option("--log", "log_format", type=click.Choice(("text", "json")), help="Default: text on a terminal.")
@click.option("-v", "--verbose", is_flag=True, help="Say more.")
def run(
    kubeconfig: str | None,
    context: str | None,
    scheduler_name: str,
    match_policy: str,
    queue_policy: str,
    release_each: bool,
    lease: bool,
    lease_name: str,
    lease_namespace: str,
    address: str,
    qps: float | None,
    in_flight: int,
    log_format: str | None,
    verbose: bool,
) -> None:
    """Watch a cluster and bind the pods that ask for this scheduler.

    Pods opt in by `schedulerName: fluence`. Those of a PodGroup, or of a group by label or annotation, start
    together or not at all. All that is known is read from the API server at the start, so it may be killed
    and started again at any time; with several replicas, one leads.

    SIGTERM and Ctrl-C wait for what was sent and give the lease back.

    \b
    Exit codes: 0 told to stop; 1 a fault, or the lease was lost; 2 a wrong command line.
    """
    match_policies.find(match_policy)
    queue_policies.find(queue_policy)
    _log(log_format or ("text" if sys.stderr.isatty() else "json"), verbose=verbose)
    options = Options(
        scheduler=scheduler_name,
        match_policy=match_policy,
        queue_policy=queue_policy,
        release_each=release_each,
        in_flight=in_flight,
        lease=lease_name if lease else None,
        lease_namespace=lease_namespace,
    )
    access = find_access(kubeconfig=kubeconfig, context=context)

    async def work() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        # Watches and the lease have connections of their own beside the binds.
        async with Client(access, qps=qps, connections=in_flight + 32) as client:
            live = Live(client, options)
            if not address:
                await live.run(stop)
                return
            async with health.serve(
                address, healthy=live.unhealthy, ready=live.unready, metrics=live.metrics.text
            ) as port:
                structlog.get_logger("fluence.scheduler").info("serves health and metrics", port=port)
                await live.run(stop)

    try:
        asyncio.run(work())
    except* (FluenceError, KubeError, OSError) as faults:
        raise _first(faults) from None


def _first(faults: BaseExceptionGroup[Exception]) -> FluenceError:
    fault: BaseException = faults
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return fault if isinstance(fault, FluenceError) else FluenceError(str(fault))


def _log(form: str, *, verbose: bool) -> None:
    level = logging.DEBUG if verbose else logging.INFO
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    colors = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    last: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=colors)
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("asyncio", "aiohttp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
