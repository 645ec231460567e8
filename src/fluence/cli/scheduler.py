"""`fluence scheduler`: runs the scheduler against a cluster, and shows its settings."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click
import structlog

from fluence import event_loop
from fluence.cli.choice import load_settings, settings_options, show_settings
from fluence.clock import Clock
from fluence.commands.options import output_option
from fluence.controller import FluxJobController
from fluence.database_url import find_url
from fluence.errors import FluenceError
from fluence.kube.access import find_access
from fluence.kube.client import Client
from fluence.kube.reviews import Reviews
from fluence.live import http_server
from fluence.live.history_writer import HistoryWriter
from fluence.live.http_server import self_signed
from fluence.live.scheduler import LiveScheduler
from fluence.live.threads import LoopThread
from fluence.schedule.settings import SchedulerSettings
from fluence.store import Retention, Writer
from fluence.web.serving import reachable_address, serve_view
from fluence.web.view import View

if TYPE_CHECKING:
    from fluence.live.traces import LogIds
    from fluence.store.history_store import HistoryStore

_WATCHES = 32  # connections in addition to those of binds: watches, events
_REVIEWS = 10.0  # calls a second to authenticate readers of the metrics


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
    main loop is stuck, ends with exit code 1, so that the kubelet restarts it.

    \b
    Examples:
      fluence scheduler run --no-lease --log-format text
      fluence scheduler run --config /etc/fluence/fluence.yaml
      curl localhost:10451/metrics

    \b
    Exit codes: 0 stopped by a signal; 1 a fault, or the lease was lost; 2 a wrong command line.
    """
    settings = load_settings(SchedulerSettings, config_file, flags).settings
    log_ids = _log_ids(settings)
    _log(settings, log_ids)
    try:
        event_loop.run(lambda: _run(settings, log_ids))
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


async def _run(settings: SchedulerSettings, log_ids: LogIds | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    access = find_access(kubeconfig=settings.kubeconfig, context=settings.context)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(access, qps=settings.qps, connections=settings.in_flight + _WATCHES)
        )
        live = LiveScheduler(
            client,
            settings,
            end=_end,
            history=_history(settings, client.clock),
            journal=bool(settings.traces),
            view_address=reachable_address(settings, access),
        )
        if settings.flux_jobs:
            FluxJobController(live)
        if log_ids is not None:
            from fluence.live.traces import sending_traces

            log_ids.live = live
            await stack.enter_async_context(sending_traces(live, settings.traces))
        await _serve(live, await stack.enter_async_context(LoopThread("health")))
        if settings.view_address:
            view = View(live)
            thread = await stack.enter_async_context(LoopThread("view"))
            url = find_url(settings.database_url) if settings.history else None
            await thread.enter(serve_view(view, live, url))
        await live.run(stop)


def _log_ids(settings: SchedulerSettings) -> LogIds | None:
    """Adds the ids of traces to the log, if traces are enabled."""
    if not settings.traces:
        return None
    from fluence.live.traces import LogIds  # its packages are an extra, and slow to import

    return LogIds()


def _history(settings: SchedulerSettings, clock: Clock) -> HistoryWriter | None:
    """The writer of the history, if it is enabled."""
    if not settings.history:
        return None
    url = find_url(settings.database_url)
    if not url.is_sqlite and find_spec("asyncpg") is None:
        raise FluenceError("PostgreSQL needs asyncpg: pip install 'fluence-scheduler[postgres]'")
    size = None if settings.history_size is None else settings.history_size << 20
    age = None if settings.history_age is None else settings.history_age * 1000

    def store(cluster: str) -> HistoryStore:
        # In the thread of the history: SQL takes as long to load as the rest of the scheduler.
        from fluence.store.history_store import HistoryStore

        return HistoryStore(url, Writer(cluster, settings.scheduler_name))

    return HistoryWriter(store, clock, keep=Retention(age, size))


async def _serve(live: LiveScheduler, thread: LoopThread) -> None:
    """Serve health and metrics, each where it is enabled, from a thread that a long cycle does not delay."""
    settings = live.settings
    health_at, metrics_at = settings.address(settings.health_address), settings.metrics_at()
    served = {
        health_at: http_server.health_routes(healthy=live.unhealthy, ready=live.unready, remark=live.remark)
    }
    tls = None
    if metrics_at is not None and settings.on_loopback(metrics_at[0]):
        served.setdefault(metrics_at, []).extend(http_server.metrics_routes(live.scrape))
    elif metrics_at is not None:
        tls = self_signed()
        asks = await thread.enter(Client(live.client.access, qps=_REVIEWS, connections=4))
        served[metrics_at] = http_server.metrics_routes(live.scrape, may_read=Reviews(asks, path="/metrics"))
    for at, routes in served.items():
        if at is not None:
            await thread.enter(http_server.serve(at, routes, tls=tls if at == metrics_at else None))


def _end() -> None:
    """Exit at once: the main loop does not respond, and nothing that it would still write may go out."""
    os._exit(1)


def _first(faults: BaseExceptionGroup[Exception]) -> FluenceError:
    fault: BaseException = faults
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return fault if isinstance(fault, FluenceError) else FluenceError(str(fault))


def _log(settings: SchedulerSettings, *more: structlog.types.Processor | None) -> None:
    """Configure structured logging. The rest of the program logs through the same handler."""
    on_terminal = sys.stderr.isatty()
    form = settings.log_format
    if form == "auto":
        form = "text" if on_terminal else "json"
    shared: list[structlog.types.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        *filter(None, more),
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
