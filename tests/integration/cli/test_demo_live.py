"""`fluence demo` for real: a sandbox comes up, pods land, and nothing is left behind, however it ends."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from fluence.cli.demo.show import MANIFESTS, read_script
from fluence.kube.resource import DEPLOYMENTS, JOBS, PODS, Json, Resource, dropped_fields
from fluence.sandbox.testing import Kube, needs_real_nodes, needs_sandbox
from tests.demo import timeline

VERSION = os.environ.get("FLUENCE_TEST_VERSION", "1.36")
FLUENCE = str(Path(sys.executable).with_name("fluence"))
NOBODY = 65534
# Another user, who may read this one's files and otherwise nothing that root may.
READER = "dac_read_search"
AS_NOBODY = [
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"),
    *(f"--inh-caps=-all,+{READER}", f"--ambient-caps=-all,+{READER}"),
    f"--bounding-set=-all,+{READER}",
]
KINDS = {each.kind: each.raw() for each in (PODS, JOBS, DEPLOYMENTS)}


class Home:
    """Where the sandboxes of a test live, and what is left of them."""

    def __init__(self, folder: Path, prefix: Sequence[str] = ()) -> None:
        self.state = folder / "state"
        self.prefix = prefix
        self.env = {**os.environ, "XDG_STATE_HOME": str(self.state), "COLUMNS": "110"}
        self.env.pop("KUBECONFIG", None)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix, FLUENCE, *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [FLUENCE, *arguments], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def leftovers(self) -> list[str]:
        """Files, and processes whose command line names them."""
        found = [str(path) for path in self.state.rglob("*")]
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    line = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if str(self.state).encode() in line:
                    found.append(line.decode(errors="replace"))
        return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    needs_sandbox()
    made = Home(tmp_path)
    yield made
    made.run("sandbox", "down", "--all")


@pytest.fixture
def nobodys_home(tmp_path: Path) -> Iterator[Home]:
    """Of a user who is not root, also where the tests are run by root."""
    needs_sandbox()
    made = Home(tmp_path, AS_NOBODY if os.geteuid() == 0 else ())
    if made.prefix:
        os.chown(tmp_path, NOBODY, NOBODY)
        made.env["HOME"] = str(tmp_path)
        made.env.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    yield made
    made.run("sandbox", "down", "--all")


@pytest.mark.release
def test_it_shows_the_same_on_a_control_plane_as_simulated_and_leaves_nothing(nobodys_home: Home) -> None:
    """What `make run` does, without root."""
    home, began = nobodys_home, time.monotonic()
    done = home.run("demo", "--live", "--version", VERSION)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 240  # 20 s on a machine that does nothing else
    assert done.stdout.startswith(f"Kubernetes v{VERSION}.")
    real, simulated = timeline(done.stdout), timeline(home.run("demo", "--simulated").stdout)
    # NB a gang's pods may be dealt out over its nodes in another order: what was there first differs
    starts = [line for line in real if "starts" in line]
    assert [line.split(":")[0] for line in starts] == [
        line.split(":")[0] for line in simulated if "starts" in line
    ]
    assert sum(line.count("→") for line in starts) >= 7
    told = [line for line in real if re.search(r"\b(waits|never)\b", line) and "seat" in line]
    assert told == [line for line in simulated if re.search(r"\b(waits|never)\b", line) and "seat" in line]
    assert real.index("solver-a ended 3 pods") < next(
        index for index, line in enumerate(real) if line.startswith("solver-b starts 4 pods")
    )
    assert "27 binds on 8 nodes: none overbooked" in done.stdout
    assert "7 workloads started whole, 1 not at all" in done.stdout
    assert home.leftovers == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["starting the controllers", "ranks"])
def test_ctrl_c_at_any_time_leaves_nothing(home: Home, number: signal.Signals, moment: str) -> None:
    demo = home.start("demo", "--live")
    stream = demo.stderr if moment.startswith("starting") else demo.stdout
    assert stream is not None
    for line in stream:
        if moment in line:
            break
    demo.send_signal(number)
    demo.communicate(timeout=300)
    assert demo.returncode == 128 + number
    assert home.leftovers == []


def test_what_is_kept_can_be_asked_and_taken_down(home: Home) -> None:
    done = home.run("demo", "--keep")
    assert done.returncode == 0, done.stderr
    assert "fluence sandbox down --name demo" in done.stdout
    status = home.run("sandbox", "status", "-o", "wide").stdout
    assert status.startswith("demo: up") and re.search(r"fluence +running", status)
    config = home.run("sandbox", "kubeconfig", "--path", "--name", "demo").stdout.strip()
    asked = home.run("explain", "group", "huge", "--kubeconfig", config).stdout
    assert "It cannot start on this cluster as it is" in asked
    assert "default/solver-b" in home.run("sandbox", "logs", "fluence", "--name", "demo").stdout
    again = home.run("demo", "--keep")
    assert again.returncode == 1
    assert "sandbox 'demo' is already up" in again.stderr
    assert home.run("sandbox", "status").stdout.startswith("demo: up")  # nothing happened to it
    assert home.run("sandbox", "down", "--name", "demo").returncode == 0
    assert home.leftovers == []


@pytest.mark.release
async def test_the_server_takes_every_example(kube: Kube) -> None:
    """A server-side dry run that knows every field, and keeps the link from pods to their PodGroup."""
    async with kube.client() as client:
        for work in read_script(VERSION):
            for document in work.documents:
                answer = await client.request(
                    "POST",
                    resource(document).path(namespace=kube.namespace),
                    params={"dryRun": "All", "fieldValidation": "Strict"},
                    body=msgspec.json.encode(document),
                )
                assert list(dropped_fields(document, msgspec.json.decode(answer))) == [], work.path


def test_there_are_examples_for_this_release() -> None:
    assert (MANIFESTS / VERSION).is_dir()


def resource(document: Json) -> Resource[Json]:
    kind = str(document["kind"])
    group, _, version = str(document["apiVersion"]).partition("/")
    return KINDS.get(kind) or Resource(group, version, f"{kind.lower()}s", kind, dict[str, object])


@pytest.mark.realnodes
def test_on_real_nodes_it_shows_what_containers_print_and_leaves_nothing(home: Home) -> None:
    needs_real_nodes()
    done = home.run("demo", "--real", "--version", VERSION)
    assert done.returncode == 0, done.stderr
    assert "with nodes that run containers" in done.stdout
    printed = done.stdout.partition("What the containers printed\n")[2]
    assert re.search(r"ranks-3 +real-\d +rank 3 of 4: allocation [1-9]\d*, on real-\d at", printed)
    assert len(re.findall(r"potato-\d +real-\d +potato\n", printed)) == 3
    assert "7 binds on 2 nodes: none overbooked" in printed
    assert not home.leftovers


def test_real_nodes_are_refused_to_who_is_not_root_before_anything_is_started(nobodys_home: Home) -> None:
    for words in (("demo", "--real"), ("sandbox", "up", "--real-nodes", "1")):
        done = nobodys_home.run(*words)
        assert (done.returncode, done.stdout) == (1, "")
        told = "fluence: this machine cannot have real nodes: only root can make them (sudo, or"
        assert done.stderr.startswith(told) and done.stderr.count("\n") == 1
    assert not nobodys_home.leftovers
