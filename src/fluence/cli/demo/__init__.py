"""`fluence demo`: the example workloads on a cluster: where they run, which wait, why and until when.

The manifests, the nodes and the files of `fluence match`'s examples are those of the directory `examples` of
the repository; a wheel has a copy, so that they exist wherever Fluence is installed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from fluence.cli.demo.show import FILES, Show, Work, read_real, read_script, where
from fluence.cli.demo.simulated import Building
from fluence.cli.demo.simulated import play as play_simulated
from fluence.cli.progress import Meter, announce_build
from fluence.commands.running import cleans_up
from fluence.errors import FluenceError, InvalidInput
from fluence.kube.releases import DEFAULT, Release, release
from fluence.sandbox import programs
from fluence.sandbox.folders import cache_dir
from fluence.sandbox.programs import NODE, find_programs, missing_programs


@click.command()
@click.option("--live", is_flag=True, help="Insist on a real control plane: an error if it cannot run here.")
@click.option("--simulated", is_flag=True, help="Nothing is built or started: a cluster in memory, at once.")
@click.option("--real", is_flag=True, help="On nodes that run containers, with what they print; needs root.")
@click.option("--keep", is_flag=True, help="Leave the sandbox `demo` and its scheduler running.")
@click.option(
    "--version", default=DEFAULT, show_default=True, metavar="X.Y", help="Kubernetes release: 1.36 or 1.37."
)
@click.option("--files", is_flag=True, help="Only print the directory of the example files.")
def demo(live: bool, simulated: bool, real: bool, keep: bool, version: str, files: bool) -> None:
    """Run the scheduler on a cluster, apply example workloads, and watch their pods land.

    A real Kubernetes control plane with simulated nodes comes up on this machine, without Docker
    (`fluence sandbox`), and goes again at the end. Its programs are built first if this machine has none:
    once, about 10 minutes on two cores; a cluster in memory, with the same scheduling cycle, shows the same
    meanwhile, and instead where they cannot be built. With --real, the nodes are real as well.

    \b
    Examples:
      fluence demo                     about 20 seconds, once the programs are there
      fluence demo --keep              and go on: fluence sandbox kubectl --name demo get pods
      fluence demo --simulated         nothing is built
      sudo fluence demo --real         containers run, and print

    \b
    Exit codes: 0 shown; 1 it failed, or --live is not possible; 2 a wrong command line; 130 Ctrl-C.
    """
    if files:
        click.echo(str(FILES))
        return
    if simulated and (live or keep or real):
        raise click.UsageError("--simulated has no sandbox: leave out --live, --real and --keep")
    wanted = release(version)
    if simulated:
        _simulated(wanted)
        return
    with cleans_up():
        shown = _Shown()
        why = _live(wanted, keep=keep, real=real, insist=live or keep or real, shown=shown)
    if why is not None:
        click.echo(f"No real control plane: {why}.")
        if not shown.simulated:
            _simulated(wanted)


@dataclass
class _Shown:
    """What has already been shown."""

    simulated: bool = False


def _play_simulated(wanted: Release) -> None:
    click.echo(
        f"{click.style('Simulated', bold=True)}: the live scheduler's cycle on a cluster in memory, with a "
        "clock that jumps.\n"
    )
    script = read_script(wanted.minor)
    play_simulated(script, _show(script))


def _simulated(wanted: Release) -> None:
    _play_simulated(wanted)
    me, here = _program(), where()
    _go_on(
        (f"{me} demo --live", "the same on a real control plane"),
        (f"{me} sandbox up --fluence --node-file {here}/nodes.yaml", "a cluster to try things on"),
        (f"{me} match {here}/cluster.json {here}/jobs/*.yaml --reserve", "the matcher by itself"),
    )


def _live(wanted: Release, *, keep: bool, real: bool, insist: bool, shown: _Shown) -> str | None:
    """Show it on a sandbox. Returns why that is not possible, or None."""
    # needs more than the base installation
    from fluence.cli.demo.live import PROGRAMS, REAL_NODES, play, sandbox
    from fluence.sandbox.machine import look

    if real:
        look(cache_dir())
    try:
        programs = _programs(
            wanted, (*PROGRAMS, *(NODE if real else ())), None if insist and not real else shown
        )
    except KeyboardInterrupt:
        if insist:
            raise
        return "the build was interrupted; `fluence sandbox build` continues it"
    except (FluenceError, OSError) as error:
        if insist:
            raise
        return f"no Kubernetes programs, and they cannot be built: {_brief(error)}"
    began, is_up = time.monotonic(), False
    nodes = REAL_NODES if real else 0
    try:
        with Meter() as meter, sandbox(programs, wanted, keep=keep, real=nodes, say=meter.say) as box:
            meter.clear()
            took = time.monotonic() - began
            is_up = True
            kind = "nodes that run containers" if real else "simulated nodes"
            click.echo(
                f"{click.style(f'Kubernetes {wanted.version}', bold=True)}: a real control plane on this "
                f"machine with {kind}, and Fluence's scheduler, up in {took:.1f} s.\n"
            )
            script = read_real() if real else read_script(wanted.minor)
            play(box, script, _show(script), real=real)
            log = box.at.log("fluence")
    except KeyboardInterrupt:
        click.echo("\ninterrupted: the sandbox is taken down", err=True)
        raise
    except (FluenceError, OSError) as error:
        if insist or is_up:
            raise
        return f"the sandbox does not start: {_brief(error)}"
    _suggest(wanted, keep=keep, real=real, log=log)
    return None


def _suggest(wanted: Release, *, keep: bool, real: bool, log: Path) -> None:
    """Suggest what to try next."""
    me, here = _program(), where()
    which = "" if wanted.minor == DEFAULT else f" --version {wanted.minor}"
    if keep:
        config = f"$({me} sandbox kubeconfig --path --name demo)"
        group = "ranks" if real else "huge"
        _go_on(
            (f"{me} sandbox kubectl --name demo get pods -o wide", "it is up, and its scheduler runs"),
            (f"{me} explain group {group} --kubeconfig {config}", "why, and what would help"),
            (f"{me} sandbox logs fluence --name demo -f", f"the scheduler's log, {log}"),
            (f"{me} sandbox down --name demo", "the end"),
        )
        return
    stays = f"the same, and it stays: for kubectl, and for `{me} explain`"
    if real:
        _go_on(
            (f"{me} demo{which} --real --keep", stays),
            (f"{me} sandbox up{which} --fluence --real-nodes 2", "an empty cluster"),
            (f"{me} sandbox load IMAGE.tar", "an image of your own, as an OCI archive"),
        )
        return
    manifests = f"-f {here}/cluster -f {here}/cluster/{wanted.minor}"
    _go_on(
        (f"{me} demo{which} --keep", stays),
        (f"{me} sandbox up{which} --fluence --node-file {here}/nodes.yaml", "an empty cluster"),
        (f"{me} sandbox kubectl apply {manifests}", "all of this at once"),
    )


def _programs(wanted: Release, names: tuple[str, ...], shown: _Shown | None) -> dict[str, Path]:
    """The sandbox's programs, built if necessary. With ``shown``, the simulation runs meanwhile."""
    missing = missing_programs(wanted, names)
    if missing:
        problem = programs.obstacle()
        if problem is not None:
            raise InvalidInput(problem)
        announce_build(wanted, missing)
        click.echo("Ctrl-C skips this; the next build continues where this one stopped.", err=True)
        if shown is not None:
            with Meter() as meter, Building(wanted, names) as building:
                shown.simulated = True
                click.echo("Meanwhile:\n", err=True)
                _play_simulated(wanted)
                click.echo()
                return building.wait(meter)
    with Meter() as meter:
        return find_programs(wanted, names=names, report=meter.report)


def _go_on(*lines: tuple[str, str]) -> None:
    click.echo("\n" + click.style("Go on", bold=True))
    for command, note in lines:
        click.echo(f"  {click.style(command, fg='cyan')}{note and f'  # {note}'}")


def _show(script: Sequence[Work]) -> Show:
    """As wide as the terminal, within limits; a pipe gets the maximum."""
    return Show(script, width=min(max(shutil.get_terminal_size((110, 24)).columns, 72), 110))


def _program() -> str:
    """The command that runs this program from here."""
    local = Path(".venv/bin/fluence")
    return str(local) if shutil.which("fluence") is None and local.exists() else "fluence"


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:199] + "…"
