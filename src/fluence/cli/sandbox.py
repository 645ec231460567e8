"""`fluence sandbox`: a real Kubernetes control plane on this machine, in a few seconds and without Docker."""

# Everything heavy is imported inside the commands: this module is loaded for `fluence --help`.

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fluence.cli.progress import Meter, announce_build
from fluence.commands import view
from fluence.commands.running import cleans_up
from fluence.errors import FluenceError, InvalidInput

if TYPE_CHECKING:
    from fluence.kube.releases import Release
    from fluence.sandbox.nodes import NodeKind
    from fluence.sandbox.sandbox import Sandbox, SandboxState


_MOST_NODES = 10_000  # twice the limit of Kubernetes; each costs some writes a minute

_name = click.option(
    "--name", default="default", show_default=True, help="Which sandbox; several can live side by side."
)
_output = click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json", "yaml"]), default="table", show_default=True
)
_version = click.option(
    "--version",
    default="1.36",
    show_default=True,
    help="Kubernetes release: 1.35, 1.36, 1.37.",
    metavar="X.Y",
)


@click.group()
def sandbox() -> None:
    """A real Kubernetes control plane on this machine, without Docker.

    etcd, kube-apiserver and kube-controller-manager run on loopback, on free ports, with certificates and
    RBAC; KWOK simulates the nodes: pods "run" for as long as their `sleep N` or an annotation says. With
    --real-nodes, up to three nodes run containers. The programs are taken from KUBEBUILDER_ASSETS or PATH if
    their versions fit, else built once (about 10 minutes on two cores) into ~/.cache/fluence.

    \b
      fluence sandbox up --nodes 10 --scheduler
      fluence sandbox kubectl get nodes
      export KUBECONFIG=$(fluence sandbox kubeconfig --path)
      fluence sandbox down
    """


@sandbox.command()
@_name
@_version
@click.option(
    "--nodes", type=click.IntRange(0), default=3, show_default=True, help="How many nodes to simulate."
)
@click.option("--cpu", default="32", show_default=True, help="Cores of each node.")
@click.option("--memory", default="128Gi", show_default=True, help="Memory of each node.")
@click.option(
    "--gpu", type=click.IntRange(0), default=0, show_default=True, help="GPUs (nvidia.com/gpu) of each node."
)
@click.option(
    "--racks", type=click.IntRange(0), default=0, help="Spread the nodes over racks (a node label)."
)
@click.option(
    "--node-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="YAML with several kinds of node, instead of --nodes and its kin: see docs/sandbox.md.",
)
@click.option(
    "--real-nodes",
    type=click.IntRange(0, 3),
    default=0,
    show_default=True,
    help="Nodes beside them that run containers (kubelet, containerd); needs root.",
)
@click.option("--scheduler/--no-scheduler", default=False, help="Also run kube-scheduler.", show_default=True)
@click.option(
    "--fluence/--no-fluence", default=False, help="Also run Fluence's own scheduler.", show_default=True
)
@click.option(
    "--controllers",
    type=click.Choice(["needed", "all"]),
    default="needed",
    show_default=True,
    help="Which controllers run: those that workloads need, or all of kube-controller-manager (CronJob, "
    "ReplicationController, ResourceQuota and others).",
)
@click.option(
    "--audit/--no-audit", default=True, help="Watch for overbooked nodes and half gangs.", show_default=True
)
@click.option(
    "--feature-gate", "gates", multiple=True, metavar="NAME=true|false", help="More gates; repeatable."
)
def up(
    name: str,
    version: str,
    nodes: int,
    cpu: str,
    memory: str,
    gpu: int,
    racks: int,
    node_file: Path | None,
    real_nodes: int,
    scheduler: bool,
    fluence: bool,
    controllers: str,
    audit: bool,
    gates: tuple[str, ...],
) -> None:
    """Start a sandbox; ready in about six seconds once the programs are there.

    With --real-nodes, containers really run: `kubectl logs` and `exec` work, and images come from
    `fluence sandbox load`. What this machine lacks for that is said before anything is started.
    """
    from fluence.kube.releases import release
    from fluence.sandbox.machine import look
    from fluence.sandbox.nodes import NodeKind
    from fluence.sandbox.sandbox import Sandbox

    kinds = _kinds(NodeKind(count=nodes, cpu=cpu, memory=memory, gpu=gpu, racks=racks), node_file)
    total = sum(kind.count for kind in kinds)
    wanted, chosen = release(version), _gates(gates)
    box, began = Sandbox(name), time.monotonic()
    if real_nodes:
        look(box.at.folder)
    with cleans_up():
        programs = _programs(wanted, _names(real_nodes > 0))
        started = time.monotonic()
        box.up(
            programs,
            wanted,
            scheduler=scheduler,
            fluence=fluence,
            audit=audit,
            gates=chosen,
            real_nodes=real_nodes,
            controllers=controllers,
            say=_say,
        )
        try:
            _say(f"making {total} simulated nodes")
            report = _every_ten_seconds(f"of {total + real_nodes} nodes are ready")
            count, ready = box.add_nodes(kinds, report=report)
        except BaseException:
            box.down()
            raise
    built = f" (after {started - began:.0f} s of building)" if started - began > 5 else ""
    took = f"in {time.monotonic() - started:.1f} s{built}"
    click.echo(f"sandbox {name!r}: Kubernetes {wanted.version}, {ready} of {count} nodes ready, {took}")
    suffix = "" if name == "default" else f" --name {name}"
    click.echo(f"  export KUBECONFIG=$(fluence sandbox kubeconfig --path{suffix})")
    if late := count - ready:
        raise FluenceError(f"{late} nodes did not become Ready; see `fluence sandbox logs kwok{suffix}`")


@sandbox.command()
@_name
@click.option("--all", "every", is_flag=True, help="All sandboxes of this user.")
def down(name: str, every: bool) -> None:
    """Stop a sandbox and remove all its files; also what a killed one left behind."""
    from fluence.sandbox.sandbox import Sandbox, names

    for each in names() if every else [name]:
        if Sandbox(each).down():
            click.echo(f"sandbox {each!r} is gone")
        else:
            click.echo(f"there was no sandbox {each!r}")


@sandbox.command()
@click.option("--name", help="Only this sandbox.  [default: all]")
@_output
def status(name: str | None, output: str) -> None:
    """All sandboxes, and which of their parts run."""
    from fluence.sandbox.sandbox import Sandbox, names

    if name is not None and name not in names():
        Sandbox(name).require()  # raises an error that lists the sandboxes
    boxes = [(Sandbox(each), Sandbox(each).load()) for each in (names() if name is None else [name])]
    if output in ("json", "yaml"):
        click.echo(view.data([_described(box, state) for box, state in boxes], output))
        return
    if not boxes:
        click.echo("no sandboxes; start one with `fluence sandbox up`")
    for box, state in boxes:
        standing = box.status()
        if state is None or standing == "stale":
            cure = f"clear it with `fluence sandbox down --name {box.name}`"
            click.echo(f"{box.name}: stale, left behind by a crash; {cure}")
            continue
        server = state.ports.server
        click.echo(f"{box.name}: {standing}, Kubernetes {state.version}, {server}")
        dead = [part for part, process in state.parts.items() if not process.is_alive]
        if dead:
            cure = f"start them with `fluence sandbox restart --name {box.name}`"
            click.echo(f"  dead: {', '.join(dead)}; {cure}")
        if output == "wide":
            for part, process in state.parts.items():
                shown = "running" if process.is_alive else "dead"
                click.echo(f"  {part:<24} {shown:<8} pid {process.pid}")
            click.echo(f"  {box.at.folder}, up for {time.time() - state.created:.0f} s")


def _described(box: Sandbox, state: SandboxState | None) -> dict[str, object]:
    if state is None:
        return {"name": box.name, "status": box.status(), "folder": str(box.at.folder)}
    return {
        "name": box.name,
        "status": box.status(),
        "version": state.version,
        "server": state.ports.server,
        "kubeconfig": str(box.at.kubeconfig()),
        "parts": [
            {"name": part, "running": process.is_alive, "pid": process.pid}
            for part, process in state.parts.items()
        ],
        "ageSeconds": round(time.time() - state.created),
        "folder": str(box.at.folder),
    }


@sandbox.command()
@_name
@click.option("--path", "path_only", is_flag=True, help="Print the file's path instead of its content.")
def kubeconfig(name: str, path_only: bool) -> None:
    """The administrator's kubeconfig."""
    from fluence.sandbox.sandbox import Sandbox

    box = Sandbox(name)
    box.require()
    path = box.at.kubeconfig()
    click.echo(str(path) if path_only else path.read_text(), nl=path_only)


@sandbox.command()
@_name
@click.argument("part", required=False)
@click.option(
    "-n", "--lines", type=click.IntRange(0), default=20, show_default=True, help="How many of the last lines."
)
@click.option("-f", "--follow", is_flag=True, help="Go on as they grow; Ctrl-C ends.")
def logs(name: str, part: str | None, lines: int, follow: bool) -> None:
    """The log of one part, or the ends of all."""
    from fluence.sandbox.sandbox import Sandbox

    box = Sandbox(name)
    state = box.require()
    if part is not None and part not in state.parts:
        raise InvalidInput(f"no part {part!r}; choose one of {', '.join(state.parts)}")
    chosen = [part] if part else list(state.parts)
    positions = {}
    for each in chosen:
        log = box.at.log(each)
        text = log.read_text(errors="replace") if log.exists() else ""
        positions[each] = log.stat().st_size if log.exists() else 0
        if len(chosen) > 1:
            click.echo(f"== {each}")
        for line in text.splitlines()[-lines:] if lines else ():
            click.echo(line)
    while follow and box.at.folder.exists():
        time.sleep(0.3)
        for each in chosen:
            log = box.at.log(each)
            if log.exists() and log.stat().st_size > positions[each]:
                with log.open("rb") as file:
                    file.seek(positions[each])
                    grown = file.read()
                positions[each] += len(grown)
                click.echo(grown.decode("utf-8", "replace"), nl=False)


@sandbox.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_name
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kubectl(name: str, arguments: tuple[str, ...]) -> None:
    """Run the release's own kubectl against a sandbox."""
    from fluence.kube.releases import release
    from fluence.sandbox.programs import find_programs
    from fluence.sandbox.sandbox import Sandbox

    box = Sandbox(name)
    wanted = release(box.require().version)
    with Meter() as meter:
        program = find_programs(wanted, names=("kubectl",), report=meter.report)["kubectl"]
    env = {**os.environ, "KUBECONFIG": str(box.at.kubeconfig())}
    sys.stdout.flush()
    os.execve(program, ["kubectl", *arguments], env)


@sandbox.command()
@_name
@click.argument("part", required=False)
def restart(name: str, part: str | None) -> None:
    """Kill one part and start it again; without PART, start all that have died."""
    from fluence.sandbox.sandbox import Sandbox

    started = Sandbox(name).restart(part)
    click.echo(f"started again: {', '.join(started)}" if started else "every part runs")


@sandbox.command()
@_name
@_output
def audit(name: str, output: str) -> None:
    """What the auditor has found since the sandbox came up; exit 1 if it found anything."""
    from fluence import event_loop
    from fluence.sandbox.auditor import ask
    from fluence.sandbox.sandbox import Sandbox

    box = Sandbox(name)
    box.require()
    report = event_loop.run(lambda: ask(box.at.folder))
    if output in ("json", "yaml"):
        import msgspec

        click.echo(view.data(msgspec.to_builtins(report), output))
    else:
        for finding in report.findings:
            when = f"{time.strftime('%H:%M:%S', time.localtime(finding.at))} " if output == "wide" else ""
            click.echo(f"{when}{finding}")
        seen = (
            f"{report.bindings_seen} bindings of {report.pods_seen} pods on {report.nodes_seen} nodes, "
            f"{report.gangs_seen} gangs"
        )
        click.echo(f"{len(report.findings) or 'no'} findings in {seen}")
        if report.gaps:
            click.echo(f"the watch was lost {report.gaps} times: what happened meanwhile was not seen")
    if report.findings:
        raise click.exceptions.Exit(1)


@sandbox.command()
@_name
@click.option(
    "--script", type=click.Path(dir_okay=False, path_type=Path), required=True, help="YAML list of faults."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Where to listen; any free port by default."
)
def proxy(name: str, script: Path, port: int) -> None:
    """Stand in front of the API server and make things go wrong; Ctrl-C ends.

    The script is a YAML list; the first rule that applies to a request is used, for example:

    \b
      - {verb: watch, path: /pods, drop_after: 3, times: 2}
      - {verb: create, path: binding$, status: 503, every: 5}
      - {path: /nodes, status: 429, retry_after: 1, times: 3}
    """
    import asyncio

    from fluence import event_loop
    from fluence.sandbox.proxy import Proxy, read_script
    from fluence.sandbox.sandbox import Sandbox

    rules = read_script(script)
    access = Sandbox(name).access()

    async def serve() -> None:
        async with Proxy(access, rules, port=port) as running:
            click.echo(
                f"listening at {running.access.server}, with the administrator's rights, on loopback only"
            )
            await asyncio.Event().wait()

    event_loop.run(serve)


@sandbox.command()
@_name
@click.argument(
    "images", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="IMAGE.tar…"
)
def load(name: str, images: tuple[Path, ...]) -> None:
    """Give images to the real nodes of a sandbox, from OCI archives.

    Real nodes have no way to other registries: pods find the images that were loaded, under the full names
    that their archives say (docker.io/library/busybox:latest is what `image: busybox` means).

    \b
      fluence sandbox load busybox.tar
      skopeo copy docker://docker.io/library/busybox oci-archive:busybox.tar:docker.io/library/busybox:latest
    """
    from fluence.sandbox.sandbox import Sandbox

    box = Sandbox(name)
    for each in images:
        for found in box.load_image(each, say=_say):
            click.echo(f"loaded {found}")


@sandbox.command()
@_version
@click.option("--real-nodes", is_flag=True, help="Also what real nodes run: kubelet, containerd and its kin.")
def build(version: str, real_nodes: bool) -> None:
    """Get the programs ready, so that a later `up` is quick; safe to interrupt and to repeat."""
    from fluence.kube.releases import release

    with cleans_up():
        programs = _programs(release(version), _names(real_nodes))
    for program, path in programs.items():
        click.echo(f"{program:<24} {path}")


def _kinds(given: NodeKind, file: Path | None) -> list[NodeKind]:
    from fluence.sandbox.nodes import check, read_nodes

    kinds = [given] if file is None else read_nodes(file)
    total = sum(kind.count for kind in kinds)
    if total > _MOST_NODES:
        raise InvalidInput(f"{total} nodes: a sandbox simulates {_MOST_NODES} at most", where="--nodes")
    for kind in kinds:
        check(kind, where="--nodes")
    return kinds


def _names(real_nodes: bool) -> tuple[str, ...]:
    from fluence.sandbox.programs import CONTROL_PLANE, NODE

    return (*CONTROL_PLANE, "kwok", *(NODE if real_nodes else ()))


def _programs(wanted: Release, names: tuple[str, ...]) -> dict[str, Path]:
    """The programs, found or built."""
    from fluence.sandbox.programs import find_programs, missing_programs

    missing = missing_programs(wanted, names)
    if missing:
        announce_build(wanted, missing)
    with Meter() as meter:
        return find_programs(wanted, names=names, report=meter.report)


def _say(text: str) -> None:
    click.echo(f"{text} …", err=True)


def _every_ten_seconds(what: str) -> Callable[[int], None]:
    told_at = time.monotonic()

    def tell(count: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at > 10:
            told_at = time.monotonic()
            _say(f"{count} {what}")

    return tell


def _gates(given: tuple[str, ...]) -> dict[str, bool]:
    found = {}
    for each in given:
        gate, _, value = each.partition("=")
        if not gate or value not in ("true", "false"):
            raise InvalidInput(f"--feature-gate {each!r}: write NAME=true or NAME=false")
        found[gate] = value == "true"
    return found
