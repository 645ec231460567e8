"""`fluence demo`: the example workloads on a cluster: who lands where, who waits, why and until when.

The manifests, the nodes and the files of `fluence match`'s examples are those of the directory `examples` of
the repository; a wheel has a copy of them, so that they are there wherever Fluence is installed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import click

from fluence.cli.demo.script import FILES, Work, read_script, where
from fluence.cli.demo.show import Show
from fluence.cli.demo.simulated import play as play_simulated
from fluence.cli.ending import cleans_up
from fluence.cli.progress import Meter
from fluence.errors import FluenceError, InvalidInput
from fluence.sandbox import gobuild
from fluence.sandbox.folders import cache_dir
from fluence.sandbox.programs import find_programs, missing_programs
from fluence.sandbox.releases import DEFAULT, Release, release


@click.command()
@click.option("--live", is_flag=True, help="Insist on a real control plane: an error if it cannot run here.")
@click.option("--simulated", is_flag=True, help="Nothing is built or started: a cluster in memory, at once.")
@click.option("--keep", is_flag=True, help="Leave the sandbox `demo` and its scheduler running.")
@click.option(
    "--version", default=DEFAULT, show_default=True, metavar="X.Y", help="Kubernetes release: 1.36 or 1.37."
)
@click.option("--files", is_flag=True, help="Only print the directory of the example files.")
def demo(live: bool, simulated: bool, keep: bool, version: str, files: bool) -> None:
    """Run the scheduler on a cluster, apply example workloads, and watch their pods land.

    A real Kubernetes control plane with simulated nodes comes up on this machine, without Docker
    (`fluence sandbox`), and goes again at the end. Its programs are built first if this machine has none:
    once, about 10 minutes on two cores; Ctrl-C skips that. Where they cannot be built it says why, and a
    cluster in memory takes their place, with the same scheduling cycle.

    \b
    Examples:
      fluence demo                     about 20 seconds, once the programs are there
      fluence demo --keep              and go on: fluence sandbox kubectl --name demo get pods
      fluence demo --simulated         nothing is built

    \b
    Exit codes: 0 shown; 1 it failed, or --live is not possible; 2 a wrong command line; 130 Ctrl-C.
    """
    if files:
        click.echo(str(FILES))
        return
    if simulated and (live or keep):
        raise click.UsageError("--simulated has no sandbox: leave out --live and --keep")
    wanted = release(version)
    if simulated:
        _simulated(wanted)
        return
    with cleans_up():
        why = _live(wanted, keep=keep, insist=live or keep)
    if why is not None:
        click.echo(f"No real control plane: {why}.")
        _simulated(wanted)


def _simulated(wanted: Release) -> None:
    click.echo(
        f"{click.style('Simulated', bold=True)}: the live scheduler's cycle on a cluster in memory, with a "
        "clock that jumps.\n"
    )
    script = read_script(wanted.minor)
    play_simulated(script, _show(script))
    me, here = _program(), where()
    _go_on(
        (f"{me} demo --live", "the same on a real control plane"),
        (f"{me} sandbox up --fluence --node-file {here}/nodes.yaml", "a cluster to try things on"),
        (f"{me} match {here}/cluster.json {here}/jobs/*.yaml --reserve", "the matcher by itself"),
    )


def _live(wanted: Release, *, keep: bool, insist: bool) -> str | None:
    """Show it on a sandbox; else why that cannot be."""
    from fluence.cli.demo.live import PROGRAMS, play, sandbox  # NB needs more than the base installation

    try:
        programs = _programs(wanted, PROGRAMS)
    except KeyboardInterrupt:
        if insist:
            raise
        return "the build was interrupted; `fluence sandbox build` goes on with it"
    except (FluenceError, OSError) as error:
        if insist:
            raise
        return f"no Kubernetes programs, and they cannot be built: {_brief(error)}"
    began, shown = time.monotonic(), False
    try:
        with Meter() as meter, sandbox(programs, wanted, keep=keep, say=meter.say) as box:
            meter.clear()
            took = time.monotonic() - began
            shown = True
            click.echo(
                f"{click.style(f'Kubernetes {wanted.version}', bold=True)}: a real control plane on this "
                f"machine with simulated nodes, and Fluence's scheduler, up in {took:.1f} s.\n"
            )
            script = read_script(wanted.minor)
            play(box, script, _show(script))
            log = box.at.log("fluence")
    except KeyboardInterrupt:
        click.echo("\ninterrupted: the sandbox is taken down", err=True)
        raise
    except (FluenceError, OSError) as error:
        if insist or shown:
            raise
        return f"the sandbox does not start: {_brief(error)}"
    me, here = _program(), where()
    which = "" if wanted.minor == DEFAULT else f" --version {wanted.minor}"
    if keep:
        config = f"$({me} sandbox kubeconfig --path --name demo)"
        _go_on(
            (f"{me} sandbox kubectl --name demo get pods -o wide", "it is up, and its scheduler runs"),
            (f"{me} explain group huge --kubeconfig {config}", "why, and what would help"),
            (f"{me} sandbox logs fluence --name demo -f", f"the scheduler's log, {log}"),
            (f"{me} sandbox down --name demo", "the end"),
        )
    else:
        manifests = f"-f {here}/cluster -f {here}/cluster/{wanted.minor}"
        _go_on(
            (f"{me} demo{which} --keep", f"the same, and it stays: for kubectl, and for `{me} explain`"),
            (f"{me} sandbox up{which} --fluence --node-file {here}/nodes.yaml", "an empty cluster"),
            (f"{me} sandbox kubectl apply {manifests}", "all of this at once"),
        )
    return None


def _programs(wanted: Release, names: tuple[str, ...]) -> dict[str, Path]:
    """The sandbox's programs, built if need be and said so."""
    missing = missing_programs(wanted, names)
    if missing:
        problem = gobuild.obstacle()
        if problem is not None:
            raise InvalidInput(problem)
        minutes = round(gobuild.expected_s(missing) / 60)
        click.echo(
            f"This machine has no {', '.join(missing)} of Kubernetes {wanted.minor} yet.\n"
            f"They are built now, once, into {cache_dir()}: about {minutes} minutes on two cores.\n"
            "Ctrl-C skips this and shows a simulated cluster; the next build goes on where this one stopped.",
            err=True,
        )
    with Meter() as meter:
        return find_programs(wanted, names=names, report=meter.report)


def _go_on(*lines: tuple[str, str]) -> None:
    click.echo("\n" + click.style("Go on", bold=True))
    for command, note in lines:
        click.echo(f"  {click.style(command, fg='cyan')}{note and f'  # {note}'}")


def _show(script: Sequence[Work]) -> Show:
    """As wide as the terminal, within reason; a pipe gets the widest."""
    return Show(script, width=min(max(shutil.get_terminal_size((110, 24)).columns, 72), 110))


def _program() -> str:
    """How this program is called from here."""
    local = Path(".venv/bin/fluence")
    return str(local) if shutil.which("fluence") is None and local.exists() else "fluence"


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:199] + "…"
