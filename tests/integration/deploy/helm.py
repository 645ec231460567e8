"""Helm and kubectl on a sandbox, as a user calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from deploy.helm.manifests import CHART
from deploy.helm.program import find_helm

from fluence.kube.releases import release
from fluence.sandbox.programs import find_programs
from fluence.sandbox.sandbox import Sandbox

# Tests beside this one install too, and a cluster has one class and one APIService of a name. Where nodes are
# simulated, no pod answers for that APIService, and namespaces would be deleted late.
_ALONE = ("--set", "admission.priorityClass=false", "--set", "view.apiService=false")


class Refused(Exception):
    """What the program said on stderr."""


class HelmUser:
    """Somebody with helm, kubectl and the rights of an administrator, in one namespace."""

    def __init__(self, box: Sandbox, namespace: str, version: str, folder: Path) -> None:
        self.namespace = namespace
        self.version = version
        self._folder = folder
        self._helm = find_helm()
        programs = find_programs(release(version), names=("kubectl",), report=lambda progress: None)
        self._kubectl = programs["kubectl"]
        self._env = {name: text for name, text in os.environ.items() if not name.startswith(("HELM", "KUBE"))}
        self._env |= {"KUBECONFIG": str(box.at.kubeconfig()), "HELM_NAMESPACE": namespace}
        self._env |= {f"HELM_{kind}_HOME": str(folder / kind) for kind in ("CACHE", "CONFIG", "DATA")}

    def helm(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        if values is not None:
            file = self._folder / "values.yaml"
            file.write_text(yaml.safe_dump(dict(values)))
            arguments = (*arguments, "--values", str(file))
        return self._run([str(self._helm), *arguments])

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        return self._run([str(self._kubectl), "--namespace", self.namespace, *arguments], text)

    def kubectl_fluence(self, *arguments: str) -> str:
        """`kubectl fluence …`, as the plugin is called."""
        path = f"{self._kubectl.parent}:{self._env.get('PATH', '')}"
        program = [str(Path(sys.executable).with_name("kubectl-fluence")), *arguments]
        return self._run(program, env={"PATH": path})

    def judge(self, manifests: str) -> str:
        """What the server would make of them; fields that do not exist are refused."""
        command = [str(self._kubectl), "apply", "--dry-run=server", "--validate=strict", "--filename", "-"]
        return self._run(command, manifests)

    def get(self, *arguments: str) -> Any:
        """One object; None if it is not there."""
        found = self.kubectl("get", *arguments, "--output", "json", "--ignore-not-found")
        return json.loads(found) if found.strip() else None

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        """Those of a kind, or of several."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", *arguments, "--output", "json"))["items"]
        return found

    def install(self, name: str, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        return self.helm("install", name, str(CHART), *_ALONE, *arguments, values=values)

    def upgrade(self, name: str, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        return self.helm("upgrade", name, str(CHART), *_ALONE, *arguments, values=values)

    def template(self, name: str, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        known = ("--kube-version", self.version, *arguments)
        return self.helm("template", name, str(CHART), *known, values=values)

    def _run(self, command: list[str], text: str | None = None, env: Mapping[str, str] | None = None) -> str:
        more = {**self._env, **(env or {})}
        done = subprocess.run(
            command, env=more, input=text, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode != 0:
            raise Refused(done.stderr.strip())
        return done.stdout
