"""`fluence demo`: the examples as users see them, on the cluster in memory."""

import os
import re
import shutil
import signal
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from fluence.cli.demo.show import FILES, NODES, Show, Work, read_script, work_of
from fluence.cli.demo.simulated import play
from fluence.kube.releases import RELEASES
from fluence.model.pod import Pod
from fluence.sandbox.nodes import manifests, read_nodes
from fluence.sim.cluster import EmbeddedCluster

from .conftest import Run
from .test_program import FLUENCE

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def shown() -> str:
    """What is printed, without lines that were broken."""
    lines: list[str] = []
    script = read_script("1.36")
    play(script, Show(script, width=10_000, echo=lambda text: lines.append(click.unstyle(text))))
    return "\n".join(lines)


def said(shown: str, work: str) -> list[str]:
    """The lines of the timeline about one workload, without their times."""
    found, current = [], ""
    for line in shown.partition("WHAT HAPPENS\n")[2].partition("\n\n")[0].splitlines():
        current = line[8:16].strip() or current
        if current == work:
            found.append(re.sub(r"\s+", " ", line[18:]))
    return found


@pytest.mark.parametrize("release", list(RELEASES))
def test_every_pod_of_an_example_bears_its_name_and_names_the_scheduler(release: str) -> None:
    script = read_script(release)
    assert len(script) == 8
    for work in script:
        templates = [
            each if each["kind"] == "Pod" else each["spec"]["template"]
            for each in work.documents
            if each["kind"] not in ("PodGroup", "Workload")
        ]
        assert {each["metadata"]["labels"]["app"] for each in templates} == {work.name}
        assert {each["spec"]["schedulerName"] for each in templates} == {"fluence"}
        assert work.purpose.endswith(".") and len(work.purpose) < 100


def test_the_examples_of_two_releases_differ_in_the_version_of_podgroups_alone() -> None:
    files = [FILES / "cluster" / each / "2-training.yaml" for each in ("1.36", "1.37")]
    texts = [each.read_text().split("\n", 2) for each in files]
    one, other = (text[2].split("\n", 1) for text in texts)
    assert {one[0], other[0]} == {
        "apiVersion: scheduling.k8s.io/v1alpha2",
        "apiVersion: scheduling.k8s.io/v1beta1",
    }
    assert one[1] == other[1]


@pytest.mark.parametrize("release", ["1.35", "1.37"])
def test_the_examples_of_other_releases_start_alike(release: str) -> None:
    lines: list[str] = []
    script = read_script(release)
    play(script, Show(script, width=10_000, echo=lambda text: lines.append(click.unstyle(text))))
    assert said("\n".join(lines), "training")[1].startswith("starts 2 pods: training-")


def test_everybody_lands_as_a_whole(shown: str) -> None:
    assert said(shown, "hello")[1:] == ["starts 1 pod: hello → cpu-005"]
    assert re.fullmatch(
        r"starts 2 pods: training-\w+-\w+, training-\w+-\w+ → cpu-\d+", said(shown, "training")[1]
    )
    assert said(shown, "ranks")[1:] == ["starts 10 pods: ranks-[0-9] → cpu-005"]
    (pipeline,) = said(shown, "pipeline")[1:]
    assert pipeline.startswith("starts 5 pods:")
    assert "pipeline-trainer → gpu-001" in pipeline  # where the GPUs are
    assert "pipeline-worker-[0-2] → cpu-004" in pipeline


def test_of_two_that_contend_one_waits_is_told_until_when_and_follows(shown: str) -> None:
    waits, lands = said(shown, "solver-b")[1:]
    assert waits.startswith("waits 0/8 nodes are available: 6 Insufficient cpu")
    assert re.search(r"fit .*Starts by \d\d:\d\d UTC \(expected \d\d:\d\d\), if running", waits)
    assert lands.startswith("starts 4 pods:")
    order = [
        shown.index(each)
        for each in ("solver-a-0 →", "waits", "quick-[0-1] →", "solver-a  ended", "solver-b-0 →")
    ]
    assert order == sorted(order)


def test_the_one_that_never_fits_is_told_why_and_stays(shown: str) -> None:
    (never,) = said(shown, "huge")[1:]
    assert never.startswith("never 0/8 nodes are available, even if empty: ")
    assert "6 Insufficient cpu (64 requested, node too small), 2 node(s) had untolerated taint" in never
    waiting = shown.partition("Jobs that wait")[2].partition("\n\n")[0]
    assert waiting.splitlines()[1].strip() == "huge: " + never.removeprefix("never ")  # the condition's text


def test_the_summary_says_who_is_where_and_that_nothing_is_overbooked(shown: str) -> None:
    rows = shown.partition("PODS\n")[2].partition("\n\n")[0].splitlines()
    assert len(rows) == 8
    assert rows[5].endswith("  1 hello, 2 training, 10 ranks, 1 pipeline")
    assert "27 binds on 8 nodes: none overbooked" in shown
    assert "7 workloads started whole, 1 not at all" in shown


def test_no_gang_is_ever_there_in_part_when_a_cycle_is_over() -> None:
    cluster = EmbeddedCluster(body for kind in read_nodes(NODES) for body in manifests(kind))
    script = read_script("1.36")

    def whole(works: list[Work]) -> None:
        for work in works:
            pods = [pod for pod in cluster.pods.values() if work_of(pod) == work.name]
            assert len(pods) == work.pods
            assert sum(pod.spec.node_name is not None for pod in pods) in (0, work.pods), work.name

    for index, work in enumerate(script):
        for document in work.documents:
            cluster.apply(document)
            cluster.settle()  # a gang of which a part has been made waits for the others
            if document["kind"] != "PodGroup":
                pods = [pod for pod in cluster.pods.values() if work_of(pod) == work.name]
                assert len(pods) == work.pods or not any(pod.spec.node_name for pod in pods)
        whole(script[: index + 1])
    while cluster.step():
        whole(script)
    ended = {work_of(pod) for pod in cluster.pods.values() if pod.is_terminal}
    assert ended == {"hello", "ranks", "pipeline", "solver-a", "solver-b", "quick"}
    waiting = {
        pod.metadata.name.rpartition("-")[0] for pod in cluster.pods.values() if not pod.spec.node_name
    }
    assert waiting == {"huge-0", "huge-1"}


def test_what_comes_in_pieces_is_told_when_it_is_whole() -> None:
    """A watch brings pods one by one; nothing is said of a gang until all of it has the same news."""
    lines: list[str] = []
    (work,) = [each for each in read_script("1.36") if each.name == "quick"]
    show = Show([work], width=200, echo=lambda text: lines.append(click.unstyle(text)))
    cluster = EmbeddedCluster(body for kind in read_nodes(NODES) for body in manifests(kind))
    states: list[list[Pod]] = []
    cluster.on_pod(lambda old, new: states.append(list(cluster.pods.values())))
    for document in work.documents:
        cluster.apply(document)
    cluster.settle()
    for state in states:
        show.see(state, 0.0)
    assert len(states) == 4 and len(lines) == 1
    assert lines[0].endswith("starts  2 pods: quick-[0-1] → cpu-005")


# -- the command ---------------------------------------------------------------------------------------------


def test_simulated_needs_no_programs(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = run("demo", "--simulated")
    assert done.code == 0 and done.err == ""
    assert done.out.startswith("Simulated: ")
    assert not list(tmp_path.iterdir())


def test_without_programs_it_says_why_and_simulates(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr("fluence.sandbox.programs.sys.platform", "darwin")
    done = run("demo")
    assert done.code == 0
    why, what, *_ = done.out.splitlines()
    cause = "the sandbox needs Linux, this is darwin"
    assert why == f"No real control plane: no Kubernetes programs, and they cannot be built: {cause}."
    assert what.startswith("Simulated: ")
    assert run("demo", "--live").is_one_line_error(cause)


def test_a_disk_that_is_too_small_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GOCACHE", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr("fluence.sandbox.programs._DISK", 1 << 60)
    assert run("demo", "--live").is_one_line_error("GB of disk in", str(tmp_path))


class Machine:
    """A machine whose programs are shell scripts."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.state = folder / "state"
        self.env = {
            **{key: value for key, value in os.environ.items() if key != "KUBEBUILDER_ASSETS"},
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_STATE_HOME": str(self.state),
        }

    def program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [FLUENCE, "demo", *arguments],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


GO = 'test "$1" = version && exec echo go version go1.26.0 linux/amd64\n'


def test_a_build_that_fails_is_named_in_a_line(machine: Machine) -> None:
    machine.program("go", f"{GO}echo 'dial tcp: lookup proxy.example: no such host' >&2; exit 1")
    demo = machine.start()
    out, err = demo.communicate(timeout=120)
    assert demo.returncode == 0
    assert "This machine has no etcd, kube-apiserver, kube-controller-manager, kwok" in err
    assert "about 10 minutes on two cores" in err
    why = "downloading Go modules failed: dial tcp: lookup proxy.example: no such host"
    assert out.startswith("Simulated: ")  # meanwhile
    assert out.count("7 workloads started whole") == 1
    assert out.splitlines()[-1].endswith(f"they cannot be built: {why}.")


@pytest.mark.parametrize("insist", [False, True])
def test_ctrl_c_skips_the_build_and_leaves_nothing_of_it(machine: Machine, insist: bool) -> None:
    asleep = f"1000.{os.getpid()}{int(insist)}"  # that no other run of these tests waits for
    machine.program("go", f"{GO}exec sleep {asleep}")
    demo = machine.start(*["--live"][:insist])
    assert demo.stderr is not None
    for line in demo.stderr:
        if line.startswith("downloading Go modules"):
            break
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=120)
    assert demo.returncode == (130 if insist else 0)
    assert "interrupted; the next build continues from here" in err
    assert out.count("7 workloads started whole") == (0 if insist else 1)  # who insists wants the real one
    assert not list(machine.temporary.iterdir())
    assert not [each for each in Path("/proc").glob("[0-9]*/cmdline") if asleep.encode() in _content(each)]


def test_a_sandbox_that_does_not_start_is_named_in_a_line(machine: Machine) -> None:
    versions = {
        "etcd": "3.6.0",
        "kube-apiserver": "1.36.4",
        "kube-controller-manager": "1.36.4",
        "kwok": "0.8.0",
    }
    for name, version in versions.items():
        machine.program(name, f'test "$1" = --version && exec echo v{version}\necho no luck >&2; exit 1')
    demo = machine.start()
    out, _ = demo.communicate(timeout=120)
    assert demo.returncode == 0
    assert re.match(r"No real control plane: the sandbox does not start: [a-z-]+ died: no luck\.\n", out)
    assert "7 workloads started whole" in out
    assert not machine.state.exists() or not list(machine.state.iterdir())


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    "wrong", [["--simulated", "--live"], ["--simulated", "--keep"], ["--simulated", "--real"]]
)
def test_simulated_and_a_sandbox_exclude_each_other(run: Run, wrong: list[str]) -> None:
    assert run("demo", *wrong).is_one_line_error("--simulated has no sandbox")


def test_what_the_demo_suggests_for_the_matcher_works(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    program, words = run("demo", "--simulated").out.splitlines()[-1].strip().split(" ", 1)
    assert program.endswith("fluence") and words.startswith("match ")
    done = subprocess.run(["sh", "-c", f"{FLUENCE} {words}"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 4  # the impossible job is among them
    assert done.stderr == ""


def test_the_demo_says_where_its_files_are(run: Run) -> None:
    assert Path(run("demo", "--files").out.strip(), "cluster", "1-hello.yaml").is_file()


def test_the_examples_can_be_copied_anywhere(tmp_path: Path) -> None:
    """No link in them points out of them, neither in the file system nor in their README."""
    examples = ROOT / "examples"
    copy = shutil.copytree(examples, tmp_path / "copied", symlinks=True)
    assert not [path for path in copy.rglob("*") if path.is_symlink()]
    for target in re.findall(r"\]\(([^)#]+)\)", (copy / "README.md").read_text()):
        assert target.startswith("https://") or (copy / target).exists(), target


def test_a_wheel_has_the_examples() -> None:
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert included["force-include"] == {"examples": "fluence/cli/demo/files"}
    assert FILES == ROOT / "examples"  # what stands in for them in the repository
