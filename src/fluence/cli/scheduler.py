"""`fluence scheduler`: run the scheduler against a cluster, and show what it would run with."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from importlib.util import find_spec

import click
import structlog

from fluence import event_loop
from fluence.cli.choice import output_option
from fluence.cli.settings import load_settings, settings_options, show_settings
from fluence.clock import Clock
from fluence.controller import FluxJobController
from fluence.errors import FluenceError
from fluence.kube.access import find_access
from fluence.kube.client import Client
from fluence.kube.reviews import Reviews
from fluence.live import health
from fluence.live.certificate import self_signed
from fluence.live.history_writer import HistoryWriter
from fluence.live.loop_thread import LoopThread
from fluence.live.scheduler import LiveScheduler
from fluence.schedule.settings import SchedulerSettings
from fluence.store.history_store import HistoryStore
from fluence.store.job_rows import Writer
from fluence.store.retention import Retention
from fluence.store.urls import find_url

_WATCHES = 32  # connections beside those of the binds: watches, events
_REVIEWS = 10.0  # calls a second to find out who asks for the metrics


@click.group()
def scheduler() -> None:
    """The scheduler: places pods that say `schedulerName: fluence`, gangs all or nothing.

    \b
    Examples:
      fluence scheduler run                                  in a pod, or by your kubeconfig
      fluence scheduler run --kubeconfig k.yaml --no-lease   one replica, from your desk
      fluence scheduler settings                             what is in force, and who said so
    """


@scheduler.command()
@settings_options(SchedulerSettings)
def run(config_file: str | None, **flags: object) -> None:
    """Watch a cluster and bind the pods that ask for this scheduler.

    Pods opt in by `schedulerName: fluence`. Those of a PodGroup, or of a group by label or annotation, start
    together or not at all. All that is known is read from the API server at the start, so it may be killed
    and started again at any time; with several replicas, one leads.

    SIGTERM and Ctrl-C wait for what was sent and give the lease back. A leader whose lease is lost, or whose
    core hangs, ends with exit code 1: whoever started it starts it again.

    \b
    Examples:
      fluence scheduler run --no-lease --log-format text
      fluence scheduler run --config /etc/fluence/fluence.yaml
      curl localhost:10451/metrics

    \b
    Exit codes: 0 told to stop; 1 a fault, or the lease was lost; 2 a wrong command line.
    """
    settings = load_settings(SchedulerSettings, config_file, flags).settings
    _log(settings)
    try:
        event_loop.run(lambda: _run(settings))
    except* (FluenceError, OSError) as faults:
        raise _first(faults) from None


@scheduler.command("settings")
@settings_options(SchedulerSettings)
@output_option((), note="table, json, yaml.")
def settings_(config_file: str | None, output: str, **flags: object) -> None:
    """Show what `run` would run with: each setting, its value and where it was said.

    \b
    Example:
      FLUENCE_QUEUE_POLICY=conservative fluence scheduler settings -o wide
    """
    show_settings(load_settings(SchedulerSettings, config_file, flags), output)


async def _run(settings: SchedulerSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    access = find_access(kubeconfig=settings.kubeconfig, context=settings.context)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(access, qps=settings.qps, connections=settings.in_flight + _WATCHES)
        )
        live = LiveScheduler(client, settings, end=_end, history=_history(settings, client.clock))
        if settings.flux_jobs:
            FluxJobController(live)
        await _serve(live, await stack.enter_async_context(LoopThread("health")))
        await live.run(stop)


def _history(settings: SchedulerSettings, clock: Clock) -> HistoryWriter | None:
    """What writes the history, if one is wanted."""
    if not settings.history:
        return None
    url = find_url(settings.database_url)
    if not url.is_sqlite and find_spec("asyncpg") is None:
        raise FluenceError("PostgreSQL needs asyncpg: pip install 'fluence-scheduler[postgres]'")
    size = None if settings.history_size is None else settings.history_size << 20
    age = None if settings.history_age is None else settings.history_age * 1000

    def store(cluster: str) -> HistoryStore:
        return HistoryStore(url, Writer(cluster, settings.scheduler_name))

    return HistoryWriter(store, clock, keep=Retention(age, size))


async def _serve(live: LiveScheduler, thread: LoopThread) -> None:
    """Health and metrics, each where it is wanted, from a thread that a long cycle does not delay."""
    settings = live.settings
    health_at, metrics_at = settings.address(settings.health_address), settings.metrics_at()
    served = {health_at: health.health_routes(healthy=live.unhealthy, ready=live.unready, remark=live.remark)}
    tls = None
    if metrics_at is not None and settings.on_loopback(metrics_at[0]):
        served.setdefault(metrics_at, []).extend(health.metrics_routes(live.scrape))
    elif metrics_at is not None:
        tls = self_signed()
        asks = await thread.enter(Client(live.client.access, qps=_REVIEWS, connections=4))
        served[metrics_at] = health.metrics_routes(live.scrape, may_read=Reviews(asks, path="/metrics"))
    for at, routes in served.items():
        if at is not None:
            await thread.enter(health.serve(at, routes, tls=tls if at == metrics_at else None))


def _end() -> None:
    """At once: the core does not listen, and nothing of what it would still write may go out."""
    os._exit(1)


def _first(faults: BaseExceptionGroup[Exception]) -> FluenceError:
    fault: BaseException = faults
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return fault if isinstance(fault, FluenceError) else FluenceError(str(fault))


def _log(settings: SchedulerSettings) -> None:
    """Who and why, as fields; the rest of the program logs through the same handler."""
    on_terminal = sys.stderr.isatty()
    form = settings.log_format
    if form == "auto":
        form = "text" if on_terminal else "json"
    shared: list[structlog.types.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    last: structlog.types.Processor = structlog.processors.JSONRenderer()
    if form == "text":
        last = structlog.dev.ConsoleRenderer(colors=on_terminal and "NO_COLOR" not in os.environ)
    formatter = structlog.stdlib.ProcessorFormatter
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, formatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        formatter(foreign_pre_chain=shared, processors=[formatter.remove_processors_meta, last])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for noisy in ("asyncio", "aiohttp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
