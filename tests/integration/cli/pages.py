"""Pages of the documentation, run: their commands on a sandbox, and what is printed, times and made-up names
aside.

``FLUENCE_REFRESH_TOUR=1 pytest tests/integration/cli/test_tour.py`` writes what is printed into the page.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

import fluence
from fluence.database_url import VARIABLES
from fluence.kube.releases import DEFAULT, release
from fluence.sandbox.programs import find_programs
from fluence.sandbox.testing import needs_sandbox

DOCS = Path(__file__).parents[3] / "docs"
REFRESH = os.environ.get("FLUENCE_REFRESH_TOUR") == "1"
PATIENCE_S = 120.0  # until what is printed is what stands there: the scheduler tells when it has decided
QUIET_S = 5.0  # what was printed for so long is what is written into the page

_ASIDE = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?( UTC|Z)"), "<time>"),
    (re.compile(r"\b\d\d:\d\d\b"), "<time>"),
    (re.compile(r"\b(\d+ (d|h|min|s)\b ?)+"), "<length> "),
    (re.compile(r"\b(never|size|busy|over)-[a-z0-9]{5}\b"), r"\1-<x>"),
    (re.compile(r"\bnode-\d{3}\b"), "node-<x>"),  # the one that was made first is taken last
)


@dataclass
class Command:
    text: str
    output: list[str] = field(default_factory=list)  # as the page has it
    last: int = 0  # the line of the page on which it, or its output, ends


def read(page: str) -> tuple[dict[str, str], list[Command]]:
    """The files that the page gives, and its commands."""
    files: dict[str, str] = {}
    commands: list[Command] = []
    kind, block = "", list[str]()
    for number, line in enumerate(page.splitlines()):
        if line.startswith("```"):
            if kind == "yaml":
                files[block[0].removeprefix("# ")] = "\n".join(block) + "\n"
            kind, block = ("" if kind else line[3:]), []
        elif kind == "yaml":
            block.append(line)
        elif kind == "console" and line.startswith("$ "):
            commands.append(Command(line[2:], last=number))
        elif kind == "console":
            commands[-1].output.append(line)
            commands[-1].last = number
    return files, commands


def plain(lines: list[str]) -> list[str]:
    found = []
    for line in lines:
        for pattern, word in _ASIDE:
            line = pattern.sub(word, line)
        found.append(" ".join(line.split()))
    return found


class Shell:
    """One bash, as a user has it: variables and the folder stay. ``name``: of the sandbox of the page."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        programs = folder / "bin"
        programs.mkdir()
        program = f'exec {shlex.quote(sys.executable)} -m fluence.cli "$@"'
        plugin = "from fluence.kubectl import main; main()"
        for file, body in (
            ("fluence", program),
            ("kubectl", f'exec fluence sandbox kubectl --name {name} "$@"'),
            ("kubectl-fluence", f'exec {shlex.quote(sys.executable)} -c {shlex.quote(plugin)} "$@"'),
        ):
            (programs / file).write_text(f"#!/bin/sh\n{body}\n")
            (programs / file).chmod(0o755)
        env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "110"}
        env["PYTHONPATH"] = str(Path(fluence.__file__).parents[1])  # this one, wherever the shell goes
        env["PATH"] = f"{programs}:{env['PATH']}"
        env.pop("KUBECONFIG", None)
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
            cwd=folder,
        )

    def run(self, command: str) -> tuple[int, list[str]]:
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.write(f"{{ {command}\n}} </dev/null; code=$?; echo; echo END $code\n")
        self._bash.stdin.flush()
        lines: list[str] = []
        for line in self._bash.stdout:
            if line.startswith("END "):
                while lines and not lines[-1]:
                    lines.pop()
                return int(line.split()[1]), lines
            lines.append(line.rstrip("\n"))
        raise AssertionError(f"the shell ended: {lines}")

    def become(self, user: str) -> None:
        """From here on commands have a token of an account with the role `edit` in namespace default, and no
        other right; kubectl itself too."""
        self.run(f"kubectl create serviceaccount {user}")
        self.run(f"kubectl create rolebinding {user} --clusterrole=edit --serviceaccount=default:{user}")
        code, (token,) = self.run(f"kubectl create token {user} --duration=2h")
        assert code == 0, token
        _, (path,) = self.run("echo $KUBECONFIG")
        config = yaml.safe_load(Path(path).read_text())
        config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
        own = self._folder / f"kubeconfig-{user}"
        own.write_text(yaml.safe_dump(config))
        kubectl = find_programs(release(DEFAULT), names=("kubectl",), report=print)["kubectl"]
        (self._folder / "bin" / "kubectl").write_text(f'#!/bin/sh\nexec {shlex.quote(str(kubectl))} "$@"\n')
        self.run(f"export KUBECONFIG={shlex.quote(str(own))}; unset {' '.join(VARIABLES)}")
        who = ["kubectl auth whoami -o jsonpath={.status.userInfo.username}", "kubectl get nodes"]
        assert self.run(who[0]) == (0, [f"system:serviceaccount:default:{user}"])
        assert self.run(who[1])[0] != 0, "it is no administrator"

    def close(self) -> None:
        self.run("fluence sandbox down --all")
        self._bash.communicate("exit\n", timeout=120)


@contextlib.contextmanager
def shell_of(page: Path, folder: Path) -> Iterator[Shell]:
    """A shell in a folder with the files of the page. The sandbox has the name of the page."""
    needs_sandbox()
    made = Shell(folder, page.stem)
    for name, text in read(page.read_text())[0].items():
        (folder / name).write_text(text)
    try:
        yield made
    finally:
        made.close()


def printed(shell: Shell, command: Command) -> list[str]:
    """What it prints, once that is what the page has, or once it stays the same."""
    expected, wait = plain(command.output), QUIET_S if REFRESH else PATIENCE_S
    _, found = shell.run(command.text)
    since = time.monotonic()
    while (REFRESH or plain(found) != expected) and time.monotonic() - since < wait:
        time.sleep(0.3)
        _, again = shell.run(command.text)
        if REFRESH and plain(again) != plain(found):
            since = time.monotonic()
        found = again
    return found


def check(page: Path, folder: Path, is_shown: Callable[[str], bool], user: str = "") -> None:
    """Run all commands of a page. What those print of which ``is_shown`` holds must be on the page. ``user``:
    who runs them from the one on that names the kubeconfig, with the role `edit`."""
    text = page.read_text()
    lines = text.splitlines()
    wrong: list[str] = []
    moved = 0  # lines that were added to the page so far
    with shell_of(page, folder) as shell:
        for command in read(text)[1]:
            if not is_shown(command.text):
                code, found = shell.run(command.text)
                assert code == 0, (command.text, found)
                if user and command.text.startswith("export KUBECONFIG="):
                    shell.become(user)
                continue
            found = printed(shell, command)
            if plain(found) == plain(command.output):
                continue
            if REFRESH:
                end = command.last + moved + 1
                lines[end - len(command.output) : end] = found
                moved += len(found) - len(command.output)
            else:
                wrong.append("\n".join((f"$ {command.text}", *found)))
    if REFRESH:
        page.write_text("\n".join(lines) + "\n")
    assert not wrong, "printed, and not on the page (FLUENCE_REFRESH_TOUR=1 writes it):\n" + "\n".join(wrong)
