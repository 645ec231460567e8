"""The commands of `kubectl fluence`: those that choose and submit, those shared with `fluence`, and their
completion.

One candidate a line, with a tab and a description; the last line is a colon and a sum of directives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from click.shell_completion import ShellComplete

from fluence.errors import FluenceError
from fluence.kubectl.arguments import connection_flags, selecting, split

PROGRAM = "kubectl fluence"

_EPILOG = """\b
POLICIES  the annotation fluence.flux-framework.org/select-policy, steps joined by commas
  min-cost  max-qubits          the best by any numeric attribute (cost: cost_usd, queue: queue_size)
  min-cost~0.5                  the best and all within 0.5 of it, for the next step to decide
  require:min_memory_gb=24      keep those with at least, or with max_ at most, so much
  require:region=us-east-1      keep those with this text
  online-only                   drop devices that are not ONLINE
  prefer:gpu-l4                 this one if it is there

\b
EXAMPLES
  kubectl fluence select -f job.yaml --attributes attrs.yaml --explain
  kubectl fluence apply -f job.yaml --attributes attrs.yaml -n team-a
  kubectl fluence apply -k overlays/prod --attributes attrs.yaml --confirm
"""


_LOOKING = ("queue", "jobs", "groups", "nodes", "plan", "graph", "why", "top")
_CHANGING = ("hold", "release", "requeue", "cancel", "priority")


class CommandGroup(click.Group):
    """Commands in the order of their use, and a hint where a name is misspelt. Those shared with `fluence`
    are imported when they are called: each import delays every command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        first = ["explain", "whatif", "select", "apply", "create", "resources", "history", "doctor"]
        return [*_LOOKING, *_CHANGING, *first, "version", "completion", "help"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            shared = _shared(cmd_name)
            if shared is not None:
                self.add_command(shared)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise click.UsageError(f'unknown command "{args[0]}"{hint}', ctx)
        return super().resolve_command(ctx, args)


def _shared(name: str) -> click.Command | None:
    """A command that `fluence` has, too."""
    if name in _LOOKING:
        from fluence.commands import plan

        return plan.LOOKING[name]
    if name in _CHANGING:
        from fluence.commands.verbs import VERBS

        return next(verb for verb in VERBS if verb.name == name)
    match name:
        case "explain":
            from fluence.commands.questions import explain

            return explain
        case "whatif":
            from fluence.commands.whatif import whatif

            return whatif
        case "history":
            from fluence.commands.history import history

            return history
        case "doctor":
            from fluence.commands.questions import doctor_command

            return doctor_command("kubectl fluence doctor")
    return None


class Submitting(click.Command):
    """A command whose line is partly kubectl's."""

    forwards_all = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        own = {name: not (p.is_flag or p.count) for p in options for name in p.opts}
        try:
            parts = split(args, own, forwards_all=self.forwards_all)
            ctx.obj = parts.forwarded
            return super().parse_args(ctx, parts.own)
        except click.UsageError as error:
            if ctx.resilient_parsing:
                return super().parse_args(ctx, list(args))
            error.ctx = ctx
            raise


class Printing(Submitting):
    """A command that sends nothing: of kubectl's flags it takes those that say which cluster."""

    forwards_all = False


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=_EPILOG,
    invoke_without_command=True,
)
@click.option(
    "--groups", "of_groups", is_flag=True, hidden=True
)  # the earlier plugin's, which had no commands
@click.option("--group", hidden=True)
@click.option("--host", hidden=True)
@click.option("--port", hidden=True)
@click.pass_context
def cli(ctx: click.Context, /, of_groups: bool, **earlier: str | None) -> None:
    """Choose a backend for a workload, on your machine and with your credentials, then submit it.

    \b
    An object is resolved if it targets Fluence (schedulerName: fluence, or the
    label fluence.flux-framework.org/group) and carries the annotation
    fluence.flux-framework.org/select-policy. The chosen backend is written as
    fluence.flux-framework.org/require-backend on it and on its pod template.
    All else passes through unchanged, so `kubectl fluence apply` can stand
    for `kubectl apply`.
    """
    if ctx.invoked_subcommand is None and (of_groups or any(earlier.values())):
        graph = cli.get_command(ctx, "graph")
        assert graph is not None
        ctx.invoke(graph, of_groups=of_groups, **earlier)
    elif ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(2)


@cli.command(cls=Printing)
@selecting
@click.option(
    "-o",
    "--output",
    type=click.Choice(["manifest", "json", "yaml", "wide"]),
    default="manifest",
    help="The manifest with its pins, or the choice itself as data or as a table.  [default: manifest]",
)
@click.pass_obj
def select(forwarded: list[str], /, output: str, **options: Any) -> int:
    """Choose, and print the result; send nothing.

    kubectl's flags for the cluster (--context, --kubeconfig, ...) say where the scheduler's offers are read.

    \b
      kubectl fluence select -f job.yaml --attributes attrs.yaml > pinned.yaml
      kubectl fluence select -f job.yaml --attributes attrs.yaml -o json | jq -r '.selections[].chosen'
    """
    from fluence.kubectl import report

    resolver, manifest = _resolve(forwarded, quiet=output != "manifest", **options)
    if output == "manifest":
        _write(manifest)
    elif output == "wide":
        for resolved in resolver.resolved:
            report.print_table(resolved, sys.stdout, is_wide=True)
    else:
        _write(report.write_data(resolver.resolved, output).encode())
    return 0


def _submitting(verb: str, summary: str) -> None:
    @cli.command(verb, cls=Submitting, short_help=summary)
    @selecting
    @click.option("--confirm", is_flag=True, help="Show the choices and ask before anything is sent.")
    @click.option(
        "--dry-run", is_flag=True, help="Print the manifest; kubectl makes a dry run on the client."
    )
    @click.pass_obj
    def command(forwarded: list[str], /, confirm: bool, dry_run: bool, **options: Any) -> int:
        return _submit(verb, forwarded, confirm=confirm, dry_run=dry_run, **options)

    command.help = (
        f"{summary}\n\nAll flags that are not listed here are kubectl's own and go to `kubectl {verb}`: -n, "
        f"--context, --dry-run=server, -o and so on. The exit code is kubectl's.\n\n\b\n"
        f"  kubectl fluence {verb} -f job.yaml --attributes attrs.yaml -n team-a"
    )


_submitting("apply", "Choose, then `kubectl apply` the result.")
_submitting("create", "Choose, then `kubectl create` the result.")


def _submit(
    verb: str, forwarded: list[str], *, confirm: bool, dry_run: bool, filenames: Sequence[str], **options: Any
) -> int:
    from fluence.kubectl.resolve import find_kubectl, submit

    find_kubectl()
    _, manifest = _resolve(forwarded, filenames=filenames, **options)
    if dry_run:
        _write(manifest)
        return submit(verb, manifest, [*forwarded, "--dry-run=client"], quiet_stdout=True)
    if confirm and not _is_confirmed(stdin_is_manifest="-" in filenames):
        click.echo("cancelled; nothing applied", err=True)
        return 0
    return submit(verb, manifest, forwarded)


def _resolve(
    forwarded: list[str],
    *,
    filenames: Sequence[str],
    kustomization: str | None,
    recursive: bool,
    attributes: str | None,
    fluence_ns: str,
    cost_tol: float,
    force_select: bool,
    providers: str,
    live_timeout: float,
    explain: bool,
    quiet: bool = False,
) -> tuple[Any, bytes]:
    """Read all sources and choose for all workloads; nothing has been sent when this raises."""
    if not filenames and kustomization is None:
        raise click.UsageError("no -f/--filename given (nor -k/--kustomize)", click.get_current_context())
    # Loaded here, not above: help and completion need none of it.
    from fluence.kubectl import report
    from fluence.kubectl.resolve import ResolveOptions, Resolver, Unresolvable, read_sources
    from fluence.select.policies import split_commas
    from fluence.select.providers import ProviderSettings
    from fluence.select.workload import encode, join

    settings = ProviderSettings(attributes, fluence_ns, connection_flags(forwarded), live_timeout)
    resolver = Resolver(
        ResolveOptions(settings, split_commas(providers), cost_tol, force_select),
        note=lambda text: click.echo(f"note: {text}", err=True),
        now=datetime.now(UTC),
    )
    sources = read_sources(filenames, kustomization, recursive=recursive)
    try:
        documents = [resolver.stream(source) for source in sources]
    except Unresolvable as error:
        if explain:
            report.print_table(error.resolved, sys.stderr)
        raise
    for resolved in resolver.resolved:
        if explain:
            report.print_table(resolved, sys.stderr)
        elif not quiet:
            click.echo("\n".join(report.lines(resolved)), err=True)
    return resolver, encode(join(documents))


def _is_confirmed(*, stdin_is_manifest: bool) -> bool:
    click.echo("\nApply with the selections above? [y]es / [n]o (cancel): ", nl=False, err=True)
    if stdin_is_manifest:
        try:
            with Path("/dev/tty").open() as terminal:
                answer = terminal.readline()
        except OSError as error:
            raise FluenceError(
                "--confirm cannot ask: stdin is the manifest and there is no terminal; nothing applied"
            ) from error
    else:
        answer = sys.stdin.readline()
    return answer.strip().lower() in ("y", "yes")


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


@cli.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def resources(args: tuple[str, ...]) -> None:
    """External resources: which jobs use them, and which wait; check a document."""
    from fluence.commands.resources import resources as group

    group.main(list(args), prog_name="kubectl fluence resources", standalone_mode=False)


@cli.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    click.echo(f"kubectl-fluence {installed('fluence-scheduler')}")


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes `kubectl-fluence` in a shell.

    `kubectl fluence` itself is completed by kubectl's own completion, which finds the program
    kubectl_complete-fluence on PATH.

    \b
      source <(kubectl fluence completion bash)
    """
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(cli, {}, "kubectl-fluence", "_KUBECTL_FLUENCE_COMPLETE").source())


@cli.command("help")
@click.argument("command", required=False)
@click.pass_context
def help_command(ctx: click.Context, command: str | None) -> None:
    """Print this help, or that of a command."""
    assert ctx.parent is not None
    if command is None:
        click.echo(ctx.parent.get_help())
        return
    _, found, _ = cli.resolve_command(ctx.parent, [command])
    assert found is not None
    with click.Context(found, info_name=command, parent=ctx.parent) as inner:
        click.echo(found.get_help(inner))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code: 0 done, 1 an error, 2 wrong usage, else kubectl's own."""
    try:
        if "_KUBECTL_FLUENCE_COMPLETE" in os.environ:
            cli.main(prog_name="kubectl-fluence", complete_var="_KUBECTL_FLUENCE_COMPLETE")
        result = cli.main(arguments, prog_name=PROGRAM, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else PROGRAM
        return _fail(f"{error.format_message()} (see {path} --help)", 2)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except FluenceError as error:
        return _fail(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        _drop_stdout()


def _fail(message: str, code: int) -> int:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    return code


def _drop_stdout() -> NoReturn:
    # Whoever read us has gone; Python must not complain about that when it closes the stream.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(141)


FILES: Final = 0
"""Complete file names if nothing else fits."""
NO_FILES: Final = 4
DIRECTORIES: Final = 16


def candidates(words: Sequence[str]) -> tuple[list[str], int]:
    """What can stand for the last of *words*, and cobra's directive."""
    before, incomplete = list(words[:-1]), words[-1] if words else ""
    found = ShellComplete(cli, {}, "kubectl-fluence", "").get_completions(before, incomplete)
    kinds = {item.type for item in found}
    lines = [f"{i.value}\t{i.help}" if i.help else str(i.value) for i in found if i.type == "plain"]
    if "file" in kinds:
        return lines, FILES
    if "dir" in kinds:
        return lines, DIRECTORIES
    return lines, NO_FILES


def complete() -> int:
    lines, directive = candidates(sys.argv[1:])
    for line in lines:
        click.echo(line)
    click.echo(f":{directive}")
    return 0
