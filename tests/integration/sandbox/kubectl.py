"""The release's own kubectl on a test's sandbox and namespace."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fluence.kube.releases import release
from fluence.sandbox.programs import find_programs
from fluence.sandbox.testing import Kube
from tests.eventually import wait_until

T = TypeVar("T")


class Kubectl:
    def __init__(self, kube: Kube) -> None:
        self.program: Path = find_programs(
            release(kube.version), names=("kubectl",), report=lambda progress: None
        )["kubectl"]
        self.env = {**os.environ, "KUBECONFIG": str(kube.sandbox.at.kubeconfig())}
        self.namespace = kube.namespace

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(self.program), "--namespace", self.namespace, *arguments]
        return subprocess.run(
            command, env=self.env, input=stdin, capture_output=True, text=True, timeout=300, check=False
        )

    def ok(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *documents: object) -> None:
        self.ok("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, documents)))

    def items(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.ok("get", kind, *arguments, "-o", "json"))["items"]
        return found

    def logged(self, *arguments: str, wanted: Callable[[str], Any] | str = bool) -> str:
        """What containers have printed. The runtime may write the last line of a log only after the container
        is seen to have ended."""
        return soon(lambda: self.ok("logs", *arguments), f"the log of {' '.join(arguments)}", wanted)

    def until_ended(self, pod: str) -> str:
        """What a pod has printed once it has ended well."""
        wait = ("wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s", f"pod/{pod}")
        done = self.run(*wait)
        assert done.returncode == 0, (
            done.stderr,
            self.run("logs", pod).stdout,
            self.run("describe", "pod", pod).stdout[-2000:],
        )
        return self.logged(pod)


def soon(check: Callable[[], T], what: str, wanted: Callable[[T], Any] | T = bool) -> T:
    """Wait until it is so."""
    return wait_until(check, wanted, what=what)
