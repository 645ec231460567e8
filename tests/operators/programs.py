"""Programs: finds the controllers in the cache, or builds them once from the Go module proxy (3 minutes).

    python -m tests.operators.programs

With each program come the definition of its kind and its webhooks, as its project publishes them. The MPI
Operator is a Go module of its own: it does not compile with the libraries of Kubernetes that the others need.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from fluence.sandbox.folders import cache_dir, locked
from fluence.sandbox.programs import WORK, find_go, run_go

GOMOD, GOMOD_MPI = (Path(__file__).parent / name for name in ("gomod", "gomod_mpi"))
CRDS, WEBHOOKS, PATCHES = "crds.json", "webhooks.yaml", ("mutating-patch.yaml", "validating-patch.yaml")


@dataclass(frozen=True)
class Operator:
    """A controller: its Go package, and where its module has its manifests."""

    name: str
    kind: str
    module: str
    package: str
    crds: tuple[str, ...]
    webhooks: str = ""  # folders: of the configurations,
    patches: str = ""  # and of what they need for an installation
    arguments: tuple[str, ...] = ()
    gomod: Path = GOMOD

    @property
    def folder(self) -> Path:
        files = [self.gomod / "go.sum", *sorted(self.gomod.glob("main.go"))]
        lock = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
        return cache_dir() / f"operators-{lock}" / self.name

    @property
    def program(self) -> Path:
        return self.folder / "controller"

    def publish(self, module: Path) -> None:
        """Copy the manifests out of the module, the definitions as JSON: YAML would take seconds to read."""
        crds = [yaml.safe_load((module / path).read_text()) for path in self.crds]
        (self.folder / CRDS).write_text(json.dumps(crds))
        if self.webhooks:
            shutil.copyfile(module / self.webhooks / "manifests.yaml", self.folder / WEBHOOKS)
            for name in PATCHES:
                shutil.copyfile(module / self.patches / name, self.folder / name)


OPERATORS = (
    Operator(
        "jobset",
        "JobSet",
        "sigs.k8s.io/jobset",
        "sigs.k8s.io/jobset",
        ("config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",),
        "config/components/webhook",
        "config/components/webhook/patches",
    ),
    Operator(
        "lws",
        "LeaderWorkerSet",
        "sigs.k8s.io/lws",
        "sigs.k8s.io/lws/cmd",
        ("config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",),
        "config/webhook",
        "config/webhook",
    ),
    Operator(
        "kuberay",
        "RayCluster",
        "github.com/ray-project/kuberay/ray-operator",
        "github.com/ray-project/kuberay/ray-operator",
        tuple(
            f"config/crd/bases/ray.io_{plural}.yaml" for plural in ("rayclusters", "rayjobs", "rayservices")
        ),
        arguments=(
            "--enable-leader-election=false",
            "--metrics-addr=0",
            "--health-probe-bind-address=0",
        ),
    ),
    Operator(
        "mpi",
        "MPIJob",
        "github.com/kubeflow/mpi-operator",
        "fluence.invalid/operators/mpi",
        ("manifests/base/kubeflow.org_mpijobs.yaml",),
        gomod=GOMOD_MPI,
    ),
)


def find_operators() -> tuple[Operator, ...]:
    """Those of `OPERATORS`, built if they are not in the cache."""
    for gomod in (GOMOD, GOMOD_MPI):
        operators = [operator for operator in OPERATORS if operator.gomod == gomod]
        with locked(operators[0].folder.parent):
            missing = [operator for operator in operators if not operator.program.exists()]
            if missing:
                what = ", ".join(each.name for each in missing)
                sys.stderr.write(f"building {what}: about 2 minutes on two cores, once\n")
                _build(gomod, missing)
    return OPERATORS


def _build(gomod: Path, operators: list[Operator]) -> None:
    go = find_go(lambda text: None)
    with tempfile.TemporaryDirectory(prefix="fluence-operators-", ignore_cleanup_errors=True) as name:
        copy = Path(name)
        shutil.copytree(gomod, copy, dirs_exist_ok=True)
        (copy / WORK).mkdir()
        options = ["-trimpath", "-ldflags", "-s -w", "-o", f"{copy}/{WORK}/"]
        packages = [operator.package for operator in operators]
        run_go(go, copy, ["build", *options, *packages], "building controllers", lambda step: None)
        for operator in operators:
            command = [str(go), "list", "-m", "-f", "{{.Dir}}", operator.module]
            module = Path(
                subprocess.run(command, cwd=copy, capture_output=True, text=True, check=True).stdout.strip()
            )
            operator.folder.mkdir(exist_ok=True)
            operator.publish(module)
            part = operator.folder / ".controller.part"
            shutil.move(copy / WORK / operator.package.rpartition("/")[2], part)
            part.replace(operator.program)


if __name__ == "__main__":
    for found in find_operators():
        sys.stdout.write(f"{found.program}\n")
