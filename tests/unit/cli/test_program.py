"""The program as a whole: help, completion, colour, pipes, signals, exit codes."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from fluence.cli import main
from fluence.commands.program import run as end
from fluence.errors import Conflict

from .conftest import CLUSTER, Result, Run, job

FLUENCE = str(Path(sys.executable).with_name("fluence"))
COMMANDS = ("demo", "match", "graph", "resource-query", "completion")


def test_help_names_every_command_and_imports_none() -> None:
    check = (
        "import sys; from fluence.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(*(m for m in ('numpy', 'yaml', 'msgspec', 'fluence.cli.match') if m in sys.modules), 'loaded')"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == " loaded".strip()
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_has_help(run: Run, name: str, option: str) -> None:
    done = run(name, option)
    assert done.code == 0
    assert f"Usage: main {name}" in done.out or f"Usage: fluence {name}" in done.out


def test_the_table_of_commands_says_what_the_commands_say() -> None:
    with click.Context(main) as ctx:
        for name in main.list_commands(ctx):
            command = main.get_command(ctx, name)
            assert command is not None
            assert command.name == name


def test_resource_query_shows_its_options(run: Run) -> None:
    out = run("resource-query", "--help").out
    for option in ("-L", "-f", "-W", "-S", "-P", "-F", "-T", "-p", "-t", "-g", "-o", "-r", "-e", "-d"):
        assert f"{option}, --" in out


def test_version(run: Run) -> None:
    assert run("--version").out.startswith("fluence, version ")


def test_no_command_is_help(run: Run) -> None:
    assert run().out == run("--help").out


def test_an_unknown_command(run: Run) -> None:
    done = run("mach")
    assert done.code == 2
    assert done.is_one_line_error("mach", "--help")


# -- completion ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run: Run, shell: str) -> None:
    assert f"_FLUENCE_COMPLETE={shell}_complete" in run("completion", shell).out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fluence ma", {"match"}),
        ("fluence match --match-policy lo", {"locality", "lonode", "lonodex", "low"}),
        ("fluence completion z", {"zsh"}),
        ("fluence graph --tr", {"--tree"}),
    ],
)
def test_completions(process: Run, words: str, expected: set[str]) -> None:
    done = process(COMP_WORDS=words, COMP_CWORD=str(words.count(" ")), _FLUENCE_COMPLETE="bash_complete")
    assert {line.partition(",")[2] for line in done.out.splitlines()} == expected


# -- colour --------------------------------------------------------------------------------------------------


def test_a_pipe_gets_no_colour(process: Run) -> None:
    assert "\x1b" not in process("demo", "--simulated").out


def test_colour_can_be_forced_and_forbidden(process: Run) -> None:
    plain = process("match", CLUSTER, job("mpi"))
    forced = process("--color", "always", "match", CLUSTER, job("mpi"))
    assert "\x1b[32mnow" in forced.out
    assert click.unstyle(forced.out) == plain.out
    assert process("match", CLUSTER, job("mpi"), FORCE_COLOR="1").out == forced.out
    assert process("--color", "never", "match", CLUSTER, job("mpi"), FORCE_COLOR="1").out == plain.out


def on_a_terminal(*args: str, **env: str) -> str:
    """What a terminal is shown."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen([FLUENCE, *args], stdout=theirs, stdin=theirs, env={**os.environ, **env})
    os.close(theirs)
    shown = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # how Linux says that the other side is gone
            break
        if not more:
            break
        shown += more
    os.close(ours)
    assert child.wait(timeout=120) == 0
    return shown.decode()


def test_a_terminal_gets_colour_unless_it_does_not_want_it() -> None:
    assert "\x1b[32mnow" in on_a_terminal("match", CLUSTER, job("mpi"))
    assert "\x1b" not in on_a_terminal("match", CLUSTER, job("mpi"), NO_COLOR="1")


def test_a_terminal_without_unicode_gets_an_answer(process: Run) -> None:
    done = process("graph", CLUSTER, "--tree", PYTHONIOENCODING="ascii:ignore", LC_ALL="C")
    assert done.code == 0
    assert "rack[0-1]" in done.out
    done = process("graph", CLUSTER, "--tree", PYTHONIOENCODING="latin-1:strict", read_as="latin-1")
    assert done.code == 0
    assert "??? rack[0-1] × 2" in done.out


# -- ends ----------------------------------------------------------------------------------------------------


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{FLUENCE} graph {CLUSTER} -o jgf_verbose; echo $? >&2"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        assert child.stderr.read().decode().strip() == "141"


def test_ctrl_c_ends_with_130_and_keeps_what_was_written(tmp_path: Path) -> None:
    out = tmp_path / "answers"
    with subprocess.Popen(
        [FLUENCE, "resource-query", "-L", CLUSTER, "-f", "jgf", "-t", str(out)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None and child.stderr is not None
        child.stdin.write(f"match allocate {job('mpi')}\nbogus\nfind bogus\n")
        child.stdin.flush()
        assert "bogus" in child.stderr.readline()  # it has come so far
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=120) == 130
        assert "Traceback" not in child.stderr.read()
    assert "RESOURCES=ALLOCATED" in out.read_text()


@pytest.mark.parametrize(
    ("fault", "code", "line"),
    [
        (Conflict("job 1 is\nthere"), 1, "fluence: job 1 is there\n"),
        (FileNotFoundError(2, "No such file or directory", "x.json"), 1, "fluence: x.json: No such file"),
        (OSError("odd"), 1, "fluence: odd\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (click.Abort(), 130, "\n"),
        (RecursionError(), 1, "fluence: the input is nested too deeply"),
        (MemoryError(), 1, "fluence: the input is too large"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), 1, "fluence: the input is not UTF-8"),
        (click.UsageError("wrong"), 2, "fluence: wrong\n"),
        (click.FileError("f", "bad"), 1, "fluence: Could not open file 'f': bad\n"),
    ],
)
def test_every_fault_has_a_line_and_a_code(
    fault: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        raise fault

    with pytest.raises(SystemExit) as ended:
        end(work)
    assert ended.value.code == code
    assert capsys.readouterr().err.startswith(line)


# -- resource-query ------------------------------------------------------------------------------------------


def test_resource_query_in_the_group(run: Run, tmp_path: Path) -> None:
    dump = tmp_path / "graph"
    done = run(
        "resource-query", "-L", CLUSTER, "-f", "jgf", "-P", "lonode", "-F", "rv1_nosched",
        "-g", "graphml", "-o", str(dump), stdin=f"match allocate {job('mpi')}\nquit\n",
    )  # fmt: skip
    assert done.code == 0
    assert '"nodelist":["node[0-3]"]' in done.out
    assert dump.with_suffix(".graphml").read_text().startswith("<?xml")


def test_resource_query_without_a_graph(run: Run) -> None:
    assert run("resource-query").is_one_line_error("--load-file")
    assert run("resource-query", "-L", "none.json").is_one_line_error("none.json")


def test_a_result_is_only_an_error_if_it_is_one() -> None:
    with pytest.raises(AssertionError):
        Result(0, "", "").is_one_line_error()


# -- first steps ---------------------------------------------------------------------------------------------

PYTHON_FLUENCE = f"{sys.executable} -m fluence.cli"


@pytest.mark.parametrize("group", ["scheduler", "sandbox"])
def test_a_group_without_a_verb_prints_its_help_as_it_is(process: Run, group: str) -> None:
    done = process(group)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) > 5
    assert done.err.startswith("Usage: ")
    assert "Examples:" in done.err or "fluence sandbox up" in done.err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_traceback(closed: str) -> None:
    command = f"{PYTHON_FLUENCE} graph {CLUSTER} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_resource_query_hints_at_the_format_of_a_file(run: Run, tmp_path: Path) -> None:
    """Without -f a file is a GRUG recipe, as in Fluxion."""
    assert run("resource-query", "-L", CLUSTER).is_one_line_error("it looks like jgf: add -f jgf")
    recipe = CLUSTER.replace(".json", ".graphml")
    assert "looks like" not in run("resource-query", "-L", recipe, stdin="quit\n").err
    odd = tmp_path / "odd"
    odd.write_text("nothing that one knows")
    assert "looks like" not in run("resource-query", "-L", str(odd)).err
