"""What the base installation can do, and what a command says whose extra is not installed.

Everything that is installed here and is not a dependency of the base distribution is hidden from a process,
which then runs commands as a user would who ran `pip install fluence-scheduler`.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

from .conftest import CLUSTER, job

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
EXAMPLES = ROOT / "examples"

HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
HIDDEN = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Hide())
sys.argv[0] = "fluence"
"""
FLUENCE = HIDE + "from fluence.cli import main; main()"


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def closure(requirements: Iterable[str]) -> set[str]:
    """The distributions that come with some, those of their extras not counted."""
    found: set[str] = set()
    coming = [name_of(each) for each in requirements]
    while coming:
        name = coming.pop()
        if name not in found:
            found.add(name)
            try:
                needed = requires(name) or []
            except PackageNotFoundError:  # one for other systems or older Pythons
                continue
            coming += [name_of(each) for each in needed if "extra ==" not in each]
    return found


@cache
def hidden(*extras: str) -> str:
    """The modules that an installation with these extras does not have."""
    there = closure([*PROJECT["dependencies"], *(each for extra in extras for each in EXTRAS[extra])])
    there.add("fluence-scheduler")
    return ",".join(
        module
        for module, owners in packages_distributions().items()
        if not any(name_of(owner) in there for owner in owners)
    )


def fluence(
    *args: str, program: str = FLUENCE, extras: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, hidden(*extras), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


def test_what_is_not_a_base_dependency_is_hidden() -> None:
    modules = hidden().split(",")
    for module in (
        "aiohttp",
        "structlog",
        "prometheus_client",
        "cryptography",
        "matplotlib",
        "boto3",
        "grpc",
        "pytest",
    ):
        assert module in modules
    for module in ("numpy", "click", "yaml", "msgspec", "rich", "cachetools", "fluence"):
        assert module not in modules


@pytest.mark.parametrize(
    "args",
    [
        ["match", CLUSTER, job("mpi"), "--reserve", "--explain"],
        ["graph", CLUSTER, "--tree"],
        ["resource-query", "-L", CLUSTER, "-f", "jgf"],
        ["simulate", "--trace", str(EXAMPLES / "workloads/small.swf"), "--cluster", "16x1", "--progress"],
        ["simulate", "--manifests", str(EXAMPLES / "cluster"), "--nodes", str(EXAMPLES / "nodes.yaml")],
        ["demo", "--simulated"],
        ["completion", "bash"],
        ["resources", "check", str(EXAMPLES / "resources.yaml")],
        ["--help"],
        ["sandbox", "--help"],
    ],
    ids=lambda args: " ".join(args[:2])[:30],
)
def test_the_base_installation_runs_every_command_that_needs_no_cluster(args: list[str]) -> None:
    done = fluence(*args)
    assert done.returncode == 0, done.stderr


def test_the_base_installation_has_the_whole_python_api() -> None:
    done = fluence(program=HIDE + "import fluence\nfor name in fluence.__all__: getattr(fluence, name)")
    assert done.returncode == 0, done.stderr


def test_the_doctor_as_a_plugin_names_the_extra_and_the_help_needs_none() -> None:
    run = "from fluence.kubectl import main; main()"
    done = fluence("doctor", program=HIDE + run)
    assert done.returncode == 1
    assert done.stderr.endswith("pip install 'fluence-scheduler[scheduler]'\n"), done.stderr
    assert "--waiting-longer-than" in fluence("doctor", "--help", program=HIDE + run).stdout


def test_kubectl_fluence_is_part_of_the_base_installation() -> None:
    run = "from fluence.kubectl import main; main()"
    done = fluence(
        "select", "-f", str(EXAMPLES / "select/generic-gpu.yaml"),
        "--attributes", str(EXAMPLES / "select/generic-attributes.yaml"), "--providers", "file",
        "-o", "wide", program=HIDE + run,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("args", "extra"),
    [
        (["scheduler", "run"], "scheduler"),
        (["resources", "advertise"], "scheduler"),
        (["task", "announce", "t"], "scheduler"),
        (["deviceplugin", "run"], "deviceplugin"),
        (["service", "run"], "service"),
        (["scheduler", "settings"], "scheduler"),
        (["explain", "pod", "a"], "scheduler"),
        (["doctor"], "scheduler"),
        (["graph", "--live"], "scheduler"),
        (["sandbox", "up"], "sandbox"),
        (["sandbox", "status"], "sandbox"),
        (["demo"], "sandbox"),
        (["simulate", "--trace", str(EXAMPLES / "workloads/small.swf"), "--cluster", "16x1",
          "--html", "/tmp/fluence-never-written.html"], "sim"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else value,
)  # fmt: skip
def test_a_command_whose_extra_is_missing_names_it(args: list[str], extra: str) -> None:
    done = fluence(*args)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("fluence: ")
    assert line.endswith(f"pip install 'fluence-scheduler[{extra}]'"), line


def test_whatif_asks_the_scheduler_of_a_cluster_without_extras_and_needs_one_for_a_copy(
    tmp_path: Path,
) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {}}")
    nowhere = ["--kubeconfig", str(tmp_path / "none")]
    done = fluence("whatif", str(pod), "--live", *nowhere)
    assert done.returncode == 1
    assert str(tmp_path / "none") in done.stderr and "pip install" not in done.stderr
    done = fluence("whatif", str(pod), "--live", "--queue-policy", "conservative", *nowhere)
    assert done.returncode == 1
    assert "pip install 'fluence-scheduler[scheduler]'" in done.stderr


def test_the_scheduler_extra_is_enough_for_the_scheduler() -> None:
    done = fluence("scheduler", "settings", extras=("scheduler",))
    assert done.returncode == 0, done.stderr


def test_make_setup_installs_all_extras() -> None:
    assert "-e '.[dev]'" in (ROOT / "Makefile").read_text()
    (everything,) = (each for each in EXTRAS["dev"] if each.startswith("fluence-scheduler["))
    assert set(everything.partition("[")[2].rstrip("]").split(",")) == set(EXTRAS) - {"dev"}


def test_traces_that_are_off_load_nothing_and_on_name_their_extra() -> None:
    done = fluence("scheduler", "run", "--traces", "http://127.0.0.1:4318", extras=("scheduler",))
    assert done.returncode == 1 and "fluence-scheduler[otel]" in done.stderr
    program = HIDE + "import fluence.cli.scheduler; print('opentelemetry' in sys.modules)"
    assert fluence(program=program, extras=("scheduler", "otel")).stdout == "False\n"


def test_the_scheduler_starts_without_sql() -> None:
    """It takes as long to load as the rest; the thread of the history loads it."""
    program = HIDE + "import fluence.cli.scheduler; print({'sqlalchemy', 'alembic'} & set(sys.modules))"
    assert fluence(program=program, extras=("scheduler",)).stdout == "set()\n"
