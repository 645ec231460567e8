"""The installed program, run as a user runs it, and a `kubectl` that writes down what it is asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

SCRIPTS = Path(sys.executable).parent
PROGRAM = SCRIPTS / "kubectl-fluence"

# A stand-in for an external program, not for code of ours: it notes its line and stdin, and has offers.
KUBECTL = """\
#!/bin/sh
dir=$(dirname "$0")
if [ "$1" = get ]; then
  echo "$@" >> "$dir/reads"
  if [ -f "$dir/offers.json" ]; then exec cat "$dir/offers.json"; fi
  echo 'Error from server (Forbidden): configmaps "fluence-resources" is forbidden' >&2
  exit 1
fi
if [ "$1" = kustomize ]; then exec cat "$2/built.yaml"; fi
echo "$@" >> "$dir/calls"
cat > "$dir/stdin"
echo "applied"
exit "$(cat "$dir/exit" 2>/dev/null || echo 0)"
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Kubectl:
    """What the stand-in has seen, and what it is to answer."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        program = directory / "kubectl"
        program.write_text(KUBECTL)
        program.chmod(0o755)

    def offers(self, body: str, key: str = "resources.yaml") -> None:
        (self.directory / "offers.json").write_text(json.dumps({"kind": "ConfigMap", "data": {key: body}}))

    def exits(self, code: int) -> None:
        (self.directory / "exit").write_text(str(code))

    def _lines(self, name: str) -> list[str]:
        path = self.directory / name
        return path.read_text().splitlines() if path.exists() else []

    @property
    def calls(self) -> list[str]:
        return self._lines("calls")

    @property
    def reads(self) -> list[str]:
        return self._lines("reads")

    @property
    def stdin(self) -> bytes:
        return (self.directory / "stdin").read_bytes()


class Program:
    """`kubectl-fluence` in an environment of its own."""

    def __init__(self, environment: dict[str, str], directory: Path) -> None:
        self.environment = environment
        self.directory = directory

    def __call__(self, *arguments: str | Path, stdin: str | bytes = b"", **environment: str) -> Done:
        done = subprocess.run(
            [PROGRAM, *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env={**self.environment, **environment},
            cwd=self.directory,
            timeout=300,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())
