"""`make e2e`: Kubernetes' own end-to-end tests of scheduling, with Fluence as `default-scheduler`.

The tests are those of k8s.io/kubernetes/test/e2e, unmodified, compiled once from the Go module proxy. They
run on a sandbox with simulated nodes in two zones, every controller, and no kube-scheduler.

Exit code: 0 if each spec ended as docs/conformance.md says, 1 if one did not, 2 if the command line is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fluence.kube.releases import DEFAULT, release
from fluence.sandbox.folders import cache_dir, locked
from fluence.sandbox.nodes import NodeKind
from fluence.sandbox.plane import ALL
from fluence.sandbox.programs import WORK, find_go, find_programs, run_go
from fluence.sandbox.sandbox import Sandbox

GOMOD = Path(__file__).parent / "gomod"
PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
PACKAGE = "k8s.io/kubernetes/test/e2e"
FOCUS = r"\[sig-scheduling\]"
# Needs features of a kubelet that simulated nodes do not have.
SKIP = r"\[Feature:(GPU|Recreate)"
BEGIN, END = "<!-- verdicts: begin -->", "<!-- verdicts: end -->"
PASSED, FAILED = "passed", "failed"
_ROW = re.compile(r"^\| (.+?) \| (passed|failed) \|", re.MULTILINE)


class Spec(NamedTuple):
    """One spec, and how it ended."""

    name: str
    verdict: str
    seconds: float
    message: str = ""


def build() -> Path:
    """The program with all end-to-end tests; compiled if it is not in the cache."""
    target = cache_dir() / release(DEFAULT).version / "bin" / "e2e.test"
    with locked(target.parent):
        if target.exists():
            return target
        with tempfile.TemporaryDirectory(prefix="fluence-e2e-", ignore_cleanup_errors=True) as copy:
            shutil.copytree(GOMOD, copy, dirs_exist_ok=True)
            (Path(copy) / WORK).mkdir()
            say(f"compiling {PACKAGE}: about 10 minutes on two cores")
            program = Path(copy) / WORK / "e2e.test"
            command = [
                "test",
                "-c",
                "-vet=off",
                "-trimpath",
                "-ldflags",
                "-s -w",
                "-o",
                str(program),
                PACKAGE,
            ]
            run_go(find_go(say), Path(copy), command, f"compiling {PACKAGE}", lambda step: None)
            part = target.with_name(".e2e.test.part")
            shutil.move(program, part)
            part.replace(target)
    return target


@contextmanager
def cluster(scheduler: str, log: Path) -> Iterator[Path]:
    """A sandbox whose pods without a scheduler's name are scheduled by Fluence, or by kube-scheduler."""
    wanted, box = release(DEFAULT), Sandbox("e2e")
    with_kube = scheduler == "kube-scheduler"
    programs = find_programs(wanted, report=lambda progress: None)
    box.up(programs, wanted, scheduler=with_kube, audit=False, owned=True, controllers=ALL, say=say)
    process = None
    try:
        box.add_nodes([NodeKind(count=4, cpu=4, memory="8Gi", zones=2)])
        config = box.at.kubeconfig()
        if not with_kube:
            command = [sys.executable, "-m", "fluence.cli", "scheduler", "run", "--no-lease", "--no-history"]
            command += ["--scheduler-name", "default-scheduler", "--kubeconfig", str(config)]
            command += ["--health-address", "", "--log-format", "json"]
            with log.open("wb") as output:
                process = subprocess.Popen(command, stdout=output, stderr=output)
        yield config
    finally:
        if process is not None:
            process.terminate()
            process.wait()
        box.down()


def run(program: Path, kubeconfig: Path, focus: str, folder: Path, *, timeout: str) -> list[Spec]:
    """The specs that were run."""
    report = folder / "report.json"
    command = [str(program), f"--kubeconfig={kubeconfig}", "--provider=skeleton"]
    command += [
        f"--ginkgo.timeout={timeout}",
        "--disable-log-dump",
        "--dump-logs-on-failure=false",
        "--ginkgo.no-color",
    ]
    command += [f"--ginkgo.focus={focus}", f"--ginkgo.skip={SKIP}", f"--ginkgo.json-report={report}"]
    with (folder / "e2e.log").open("wb") as output:
        subprocess.run(command, stdout=output, stderr=output, cwd=folder, env=os.environ, check=False)
    if not report.exists():
        raise SystemExit(f"make e2e: the tests did not start: see {folder / 'e2e.log'}")
    return read(json.loads(report.read_text()))


def read(reports: Sequence[Mapping[str, object]]) -> list[Spec]:
    """The specs of a report of Ginkgo that were run, in order of their names."""
    specs = []
    for suite in reports:
        for each in suite.get("SpecReports") or ():  # type: ignore[attr-defined]
            if each["LeafNodeType"] != "It" or each["State"] in ("skipped", "pending"):
                continue
            words = [*(each.get("ContainerHierarchyTexts") or ()), each["LeafNodeText"]]
            verdict = PASSED if each["State"] == "passed" else FAILED
            message = str((each.get("Failure") or {}).get("Message") or "")
            specs.append(Spec(" ".join(words), verdict, each["RunTime"] / 1e9, " ".join(message.split())))
    return sorted(specs)


def expected(page: str) -> dict[str, str]:
    """The verdicts that the page has."""
    return dict(_ROW.findall(page))


def differences(specs: Sequence[Spec], page: str) -> list[str]:
    """What ended in another way than the page says."""
    known = expected(page)
    return [
        f"{spec.name}: {spec.verdict}, and docs/conformance.md says {known.get(spec.name, 'nothing')}"
        for spec in specs
        if known.get(spec.name) != spec.verdict
    ]


def written(page: str, specs: Sequence[Spec]) -> str:
    """The page with these verdicts."""
    passed = sum(spec.verdict == PASSED for spec in specs)
    rows = [f"| {spec.name} | {spec.verdict} | {spec.seconds:.0f} s |" for spec in specs]
    table = [f"{passed} of {len(specs)} pass.", "", "| Spec | Verdict | Time |", "|---|---|---|", *rows]
    head, _, rest = page.partition(BEGIN)
    return "\n".join([f"{head}{BEGIN}", *table, f"{END}{rest.partition(END)[2]}"])


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make e2e", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--focus", default=FOCUS, help="Which specs, as a regular expression.")
    parser.add_argument("--timeout", default="1h", help="Of all specs together, such as 30m.")
    parser.add_argument("--scheduler", default="fluence", choices=["fluence", "kube-scheduler"])
    parser.add_argument("--write", action="store_true", help="Write the verdicts to docs/conformance.md.")
    parser.add_argument("--build", action="store_true", help="Only compile the tests.")
    options = parser.parse_args()
    program = build()
    if options.build:
        return 0
    folder = Path("build", "e2e")
    folder.mkdir(parents=True, exist_ok=True)
    with cluster(options.scheduler, folder / "scheduler.log") as kubeconfig:
        say(f"running the specs; their log is {folder / 'e2e.log'}")
        specs = run(program, kubeconfig, options.focus, folder.resolve(), timeout=options.timeout)
    for spec in specs:
        sys.stdout.write(f"{spec.verdict}  {spec.seconds:6.1f} s  {spec.name}\n")
        if spec.message:
            sys.stdout.write(f"          {spec.message[:300]}\n")
    page = PAGE.read_text()
    if options.write:
        PAGE.write_text(written(page, specs))
        return 0
    unexpected = differences(specs, page) if options.scheduler == "fluence" else []
    for line in unexpected:
        say(line)
    return 1 if unexpected or not specs else 0


if __name__ == "__main__":
    sys.exit(main())
