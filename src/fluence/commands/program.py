"""Program: a program whose commands are loaded when called, and the only place where errors become exit
codes.

==========  ======================================================= 0           done 1           an input is
wrong, a file cannot be read or written 2           the command line is wrong 130         interrupted (Ctrl-C)
141         the reader of the output ended (`fluence … | head`) ==========
=======================================================

A command may add codes of its own and documents them in its help.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from fluence.commands.options import not_installed
from fluence.commands.view import clean
from fluence.errors import FluenceError
from fluence.startup import INTERRUPTED, Loading

BROKEN_PIPE = 141

# name -> (module:attribute, one line of help)
Commands = Mapping[str, tuple[str, str]]


class Program(click.Group):
    """A group whose commands are named in a table, so that `--help` and completion import none of them."""

    def __init__(self, *args: Any, lazy: Commands | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lazy: Commands = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        try:
            with Loading():
                command = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise not_installed(error, cmd_name) from None
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, note) for name, (_, note) in self.lazy.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        commands = [
            CompletionItem(name, help=note)
            for name, (_, note) in self.lazy.items()
            if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            raise not_installed(error, ctx.invoked_subcommand) from None
        except BrokenPipeError:  # before click sees it, which would exit with 1
            _let_go_of_stdout()
            ctx.exit(BROKEN_PIPE)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        work = partial(super().main, args, prog_name, complete_var, standalone_mode=False, **extra)
        if not standalone_mode:
            return work()
        _write_whatever_the_terminal()
        return run(work)


def run(work: Callable[[], object]) -> NoReturn:
    """Do the work of a program and end it: errors become one line on stderr and an exit code."""
    try:
        code = work()
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = error.exit_code
    except click.UsageError as error:
        cure = "" if error.ctx is None else f" (see {error.ctx.command_path} --help)"
        code = _complain(error.format_message().rstrip(".") + cure, error.exit_code)
    except click.ClickException as error:
        code = _complain(error.format_message(), error.exit_code)
    except FluenceError as error:
        code = _complain(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo(err=True)  # leave the line with ^C
        code = INTERRUPTED
    except BrokenPipeError:
        _let_go_of_stdout()
        code = BROKEN_PIPE
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        code = _complain(f"{name}{error.strerror or error}", 1)
    except UnicodeDecodeError as error:
        code = _complain(f"the input is not UTF-8 text (byte {error.start}): save it as UTF-8", 1)
    except RecursionError:
        code = _complain("the input is nested too deeply to work with", 1)
    except MemoryError:
        code = _complain("the input is too large for the memory of this machine", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _let_go_of_stdout() -> None:
    """Redirect stdout: its buffered output has no reader either, and must not cause another error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, code: int) -> int:
    line = clean(" ".join(message.split()))
    click.echo(f"{click.style('fluence:', fg='red')} {line}", err=True, color=_color())
    return code


def _color() -> bool | None:
    """The choice of the environment (https://no-color.org); None: colour if a terminal reads the output."""
    if os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def _write_whatever_the_terminal() -> None:
    """Show a question mark instead of an error for characters that a terminal without UTF-8 cannot show."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def color_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--color`, for everything that a program prints."""

    def choose(ctx: click.Context, _: click.Parameter, value: str) -> None:
        ctx.color = {"always": True, "never": False}.get(value, _color())

    return click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        expose_value=False,
        is_eager=True,
        callback=choose,
        help="Colour the output; auto: on a terminal, unless NO_COLOR is set.",
    )(command)
