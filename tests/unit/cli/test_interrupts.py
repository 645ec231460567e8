"""Ctrl-C at any moment of any program: no traceback, no warning, and the exit status of an interrupt."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.amounts import amount
from tests.unit.cli.conftest import CLUSTER, DEMO, job

# Runs a program that interrupts itself when its main thread makes a call; the number of the call is the
# moment. With -1 it is not interrupted, and tells how many calls there are.
ITSELF = """
import os, signal, sys
from fluence import entry, startup

_, moment, told, program, *sys.argv[1:] = sys.argv
sys.argv[0] = program
calls = 0

def count(frame, event, argument):
    global calls
    calls += event == "call"
    if calls == int(moment):
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)

start = startup.start
def started():
    start()
    sys.setprofile(count)  # from the first moment that is ours

startup.start = started
try:
    getattr(entry, program)()
finally:
    sys.setprofile(None)
    if moment == "-1":
        open(told, "w").write(str(calls))
"""
MOMENTS = amount(12, quick=3)
PROGRAMS = {
    "help": "fluence --help",
    "help of a command": "fluence sandbox up --help",
    "match": f"fluence match {CLUSTER} {job('mpi')}",
    "simulate": f"fluence simulate --manifests {DEMO}/cluster --nodes {DEMO}/nodes.yaml",
    "a loop": "fluence history migrate --database new.db",
    "kubectl fluence": "kubectl_fluence select --help",
    "completion": "kubectl_complete sel",
}


def run(folder: Path, program: str, moment: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ITSELF, str(moment), "calls", *program.split()]
    return subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_ctrl_c_at_any_moment_prints_no_traceback(tmp_path: Path, name: str) -> None:
    whole = run(tmp_path, PROGRAMS[name], -1)
    assert whole.returncode == 0, whole.stderr
    calls = int((tmp_path / "calls").read_text())
    assert calls > MOMENTS
    for each in range(MOMENTS):
        moment = 1 + each * (calls - 1) // MOMENTS
        (folder := tmp_path / str(each)).mkdir()
        done = run(folder, PROGRAMS[name], moment)
        assert done.returncode in (130, -signal.SIGINT), (moment, done)
        for word in ("Traceback", "Warning", "Exception ignored", "KeyboardInterrupt"):
            assert word not in done.stderr, (moment, done.stderr)


LOADS_CLICK = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize("program", ["fluence", "kubectl_fluence", "kubectl_complete"])
def test_ctrl_c_while_a_program_loads_prints_nothing(tmp_path: Path, program: str) -> None:
    """A module that the program loads interrupts it, as a user may: before any handler is there."""
    (tmp_path / "click.py").write_text(LOADS_CLICK)
    start = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from fluence.entry import {program}; {program}()"
    )
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "fluence.cli"),
        ("-c", "from fluence.kubectl import main; main()"),  # as Krew's package has it
        ("-c", "from fluence.kubectl import complete; complete()"),
    ],
)
def test_ctrl_c_while_python_finds_the_program_prints_nothing(
    tmp_path: Path, command: tuple[str, str]
) -> None:
    """The packages on the way load nothing that takes time."""
    (tmp_path / "click.py").write_text(LOADS_CLICK)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, *command], env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_the_first_step_loads_next_to_nothing() -> None:
    """Until it is loaded, an interrupt is Python's, with a traceback."""
    slow = {"typing", "click", "enum", "signal"}
    check = f"from fluence import entry; print(*{slow!r} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{check}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "\n"


def entered(text: str) -> subprocess.CompletedProcess[str]:
    """A program of which only the work is other than ours."""
    start = f"import os, signal, sys\nfrom fluence import startup\n{text}"
    return subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=120)


def test_ctrl_c_is_heard_while_a_program_works_and_only_then() -> None:
    done = entered(
        "def hears(): return signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "def work():\n"
        "    assert hears()\n"
        "    with startup.Loading(): assert not hears()\n"
        "    assert hears()\n"
        "startup.start(); assert not hears()\n"
        "try: startup.run(work)\n"
        "finally: assert not hears()\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_ignores_ctrl_c_goes_on_doing_so() -> None:
    """A shell starts what runs in the background like this."""
    done = entered(
        "def work():\n"
        "    with startup.Loading(): signal.raise_signal(signal.SIGINT)\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    print('done')\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "startup.start(); startup.run(work)"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize(
    ("number", "handler", "code"),
    [
        (signal.SIGINT, "signal.default_int_handler", 130),
        (signal.SIGTERM, "lambda number, frame: sys.exit(128 + number)", 143),
    ],
)
def test_an_interrupt_in_a_finalizer_comes_again(number: int, handler: str, code: int) -> None:
    """Python would print it, and go on."""
    done = entered(
        "import time\n"
        "class Last:\n"
        f"    def __del__(self): signal.raise_signal({int(number)})\n"
        "def work():\n"
        f"    signal.signal({int(number)}, {handler})\n"
        "    Last()\n"
        "    time.sleep(60)\n"
        "startup.start(); startup.run(work)"
    )
    assert (done.returncode, done.stderr) == (code, "")


def test_other_faults_in_a_finalizer_are_told() -> None:
    done = entered(
        "class Last:\n"
        "    def __del__(self): raise ValueError('odd')\n"
        "startup.start(); startup.run(lambda: Last() and None)"
    )
    assert "ValueError: odd" in done.stderr


def test_a_second_ctrl_c_while_the_first_is_dealt_with_prints_nothing() -> None:
    done = entered(
        "def work():\n"
        "    try: signal.raise_signal(signal.SIGINT)\n"
        "    except KeyboardInterrupt: signal.raise_signal(signal.SIGINT)\n"
        "startup.start(); startup.run(work)"
    )
    assert (done.returncode, done.stderr) == (130, "")
