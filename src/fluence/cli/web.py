"""`fluence web`: the cluster, the queue and the plan in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from fluence import event_loop
from fluence.commands.running import run_until_stopped
from fluence.errors import NotFound
from fluence.kube.access import Access, find_access
from fluence.kube.client import Client
from fluence.web.page import Explain, LiveView, ViewSource, read_saved, save, serving


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1; 0: any free one.")
@click.option(
    "--open/--no-open", "opens", default=True, help="Open the page in a browser.", show_default=True
)
@click.option(
    "--snapshot",
    type=click.Path(exists=True, dir_okay=False),
    help="Show what --save wrote, without a cluster.",
)
@click.option(
    "--save",
    "save_to",
    type=click.Path(dir_okay=False, writable=True),
    help="Write all that the page shows to FILE, and end.",
)
@click.option("--kubeconfig", type=click.Path(dir_okay=False), help="Credentials; else $KUBECONFIG.")
@click.option("--context", help="A context of the kubeconfig.")
def web(
    *,
    port: int,
    opens: bool,
    snapshot: str | None,
    save_to: str | None,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Show the cluster, the queue and the plan in a browser, with your own rights.

    The page is served on this machine only, at an address that nobody can guess, until Ctrl-C. It reads the
    view API through the API server with your credentials: you see the work of namespaces whose pods you may
    list, and of others only that a place is taken.

    \b
    Examples:
      fluence web
      fluence web --no-open --port 8080
      fluence web --save friday.json
      fluence web --snapshot friday.json

    Exit code: 0 when it is stopped; 1 if the cluster or its view API cannot be reached; 2 for a wrong
    command line.
    """
    if snapshot is not None and save_to is not None:
        raise click.UsageError("--snapshot and --save exclude each other")
    if snapshot is not None:
        view = read_saved(snapshot)
        run_until_stopped(lambda: _serve(view, port, opens), log_level="warning")
        return
    access = find_access(kubeconfig=kubeconfig, context=context)
    if save_to is not None:
        event_loop.run(lambda: _save(access, Path(save_to)))
        click.echo(f"saved: {save_to}; show it with `fluence web --snapshot {save_to}`")
        return
    given = {"--kubeconfig": kubeconfig, "--context": context}
    flags = [word for flag, value in given.items() if value for word in (flag, value)]
    run_until_stopped(lambda: _live(access, port, opens, flags), log_level="warning")


async def _live(access: Access, port: int, opens: bool, flags: list[str]) -> None:
    async with Client(access) as client:
        view = LiveView(client)
        # Errors are reported here and not in the browser.
        answer = msgspec.json.decode(await view.get("settings", {"limit": "1"}))
        its_flags = [*flags, "--scheduler-name", answer["metadata"]["scheduler"]]
        await _serve(view, port, opens, lambda *what: explain(its_flags, *what))


async def explain(flags: list[str], kind: str, namespace: str, name: str) -> Mapping[str, Any]:
    """The explanation of `fluence explain` for a job. It runs as a separate process, because it tries the job
    in a copy of the cluster, and the page must answer meanwhile."""
    words = ("explain", *flags, "-n", namespace, "-o", "json", "--", f"{kind.lower()}/{name}")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fluence.cli", *words, stdout=pipe, stderr=pipe
    )
    try:
        said, fault = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):  # the browser has left
            process.kill()
    if process.returncode:
        raise NotFound(fault.decode(errors="replace").strip().removeprefix("fluence: "))
    return msgspec.json.decode(said, type=dict[str, Any])


async def _save(access: Access, path: Path) -> None:
    async with Client(access) as client:
        path.write_bytes(await save(LiveView(client)))


async def _serve(view: ViewSource, port: int, opens: bool, advice: Explain | None = None) -> None:
    async with serving(view, port=port, explain=advice) as address:
        click.echo(f"{address}   (Ctrl-C ends it)")
        if opens:
            webbrowser.open(address)
        await asyncio.Event().wait()
