"""`fluence whatif`: answers, formats, exit codes, bad snapshots."""

import json
from pathlib import Path

import pytest
import yaml

from .conftest import Run

ROOT = Path(__file__).parents[3]
SMALL = str(ROOT / "examples" / "workloads" / "small.swf")


def spec(cores: int, duration: int = 0, type_: str = "core") -> str:
    return (
        f"{{version: 1, resources: [{{type: slot, count: {cores}, label: a, "
        f"with: [{{type: {type_}, count: 1}}]}}], "
        "tasks: [{command: [x], slot: a, count: {per_slot: 1}}], "
        f"attributes: {{system: {{duration: {duration}}}}}}}"
    )


@pytest.fixture
def state(run: Run, tmp_path: Path) -> str:
    """The queue of the small log after ten minutes: two jobs run, others wait."""
    path = str(tmp_path / "state.json")
    done = run(
        "simulate", "--trace", SMALL, "--cluster", "16x1", "--queue-policy", "conservative", "--until", "10m",
        "--snapshot", path,
    )  # fmt: skip
    assert done.code == 0
    assert f"wrote {path}" in done.err
    return path


class TestExitCodes:
    def test_now_is_0(self, run: Run, tmp_path: Path) -> None:
        path = str(tmp_path / "early.json")
        run("simulate", "--trace", SMALL, "--cluster", "16x1", "--until", "30", "--snapshot", path)
        done = run("whatif", "-", "--state", path, stdin=spec(8, 60))
        assert (done.code, done.out.splitlines()[0]) == (0, "it would start now")

    def test_later_is_3(self, run: Run, state: str) -> None:
        done = run("whatif", "-", "--state", state, stdin=spec(16, 600))
        assert done.code == 3
        first, *rest = done.out.splitlines()
        assert first.startswith("it would wait and start in ")
        assert any(line.startswith("blocked by resource: Insufficient cores: 16 requested") for line in rest)
        assert any(line.startswith("waiting for ") for line in rest)
        assert rest[-1] == "no other job would start later"

    def test_never_is_4(self, run: Run, state: str) -> None:
        done = run("whatif", "-", "--state", state, stdin=spec(17, 600))
        assert (done.code, done.out) == (
            4,
            "Unschedulable: Insufficient cores: 17 requested, this cluster has 16\n",
        )


class TestQueues:
    FILE = (
        "{apiVersion: fluence.flux-framework.org/v1alpha1, kind: Queue, metadata: {name: default}}\n---\n"
        "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: Queue\nmetadata: {name: small}\n"
        "spec: {limit: {core: 4}}\n"
    )

    def test_a_snapshot_is_asked_with_the_queues_of_a_file(
        self, run: Run, state: str, tmp_path: Path
    ) -> None:
        queues = tmp_path / "queues.yaml"
        queues.write_text(self.FILE)
        args = ("whatif", "-", "--state", state, "--queues", str(queues))
        assert run(*args, stdin=spec(8, 60)).code == 3
        done = run(*args, "--queue", "small", stdin=spec(8, 60))
        assert done.code == 4
        assert "requests core 8, and the limit of queue small is 4" in done.out
        assert run(*args, "--queue", "smal", stdin=spec(8, 60)).out.count("did you mean small?") == 1

    def test_queues_that_the_snapshot_cannot_count_are_refused(
        self, run: Run, state: str, tmp_path: Path
    ) -> None:
        queues = tmp_path / "queues.yaml"
        queues.write_text(self.FILE.replace("core: 4", "cpu: 4"))
        done = run("whatif", "-", "--state", state, "--queues", str(queues), stdin=spec(8, 60))
        assert done.is_one_line_error("this cluster has no cpu")

    def test_a_queue_needs_queues(self, run: Run, state: str) -> None:
        assert run("whatif", "-", "--state", state, "--queue", "a", stdin=spec(8, 60)).code == 2


class TestOptions:
    def test_a_jobspec_from_a_file(self, run: Run, state: str, tmp_path: Path) -> None:
        path = tmp_path / "big.yaml"
        path.write_text(spec(16, 600))
        by_file = run("whatif", str(path), "--state", state, "-o", "json")
        by_pipe = run("whatif", "-", "--state", state, "-o", "json", stdin=spec(16, 600))
        assert by_file == by_pipe

    def test_json_and_yaml_say_the_same(self, run: Run, state: str) -> None:
        done = run("whatif", "-", "--state", state, "-o", "json", stdin=spec(16, 600))
        value = json.loads(done.out)
        assert done.code == 3
        assert value["starts_now"] is False
        assert value["start_no_later_than"] > value["now"]
        assert value["reason"]["kind"] == "resource"
        other = run("whatif", "-", "--state", state, "-o", "yaml", stdin=spec(16, 600))
        assert yaml.safe_load(other.out) == value

    def test_limit_goes_before_the_duration(self, run: Run, state: str) -> None:
        long = json.loads(run("whatif", "-", "--state", state, "-o", "json", stdin=spec(1, 360_000)).out)
        short = json.loads(
            run("whatif", "-", "--state", state, "--limit", "1m", "-o", "json", stdin=spec(1, 360_000)).out
        )
        assert short["start_no_later_than"] < long["start_no_later_than"]

    def test_priority_delays_others(self, run: Run, state: str) -> None:
        args = (
            "whatif",
            "-",
            "--state",
            state,
            "--priority",
            "31",
            "--queue-policy",
            "fcfs",
            "--limit",
            "10h",
        )
        done = run(*args, stdin=spec(16))
        assert "later" in done.out.splitlines()[-1]
        value = json.loads(run(*args, "-o", "json", stdin=spec(16)).out)
        assert value["delays"] and all(d["after"] > d["before"] for d in value["delays"])

    def test_the_snapshot_is_not_changed(self, run: Run, state: str) -> None:
        before = Path(state).read_bytes()
        run("whatif", "-", "--state", state, stdin=spec(1, 60))
        assert Path(state).read_bytes() == before

    def test_policy_is_the_former_name_of_queue_policy(self, run: Run, state: str) -> None:
        args = ("whatif", "-", "--state", state, "--limit", "10h", "-o", "json")
        former = run(*args, "--policy", "fcfs", stdin=spec(16))
        assert former == run(*args, "--queue-policy", "fcfs", stdin=spec(16))
        assert "--policy" not in run("whatif", "--help").out


class TestBadInput:
    @pytest.mark.parametrize(
        ("args", "code", "said"),
        [
            (["--queue-policy", "fifo"], 2, "unknown queue policy 'fifo'"),
            (["--queue-policy", "easy,fcfs"], 1, "name one policy"),
            (["--limit", "soon"], 2, "'soon' is not a valid length of time"),
            (["--limit", "0"], 2, "--limit"),
            (["--priority", "high"], 2, "high"),
        ],
    )
    def test_options(self, run: Run, state: str, args: list[str], code: int, said: str) -> None:
        done = run("whatif", "-", "--state", state, *args, stdin=spec(1, 60))
        assert done.code == code
        assert done.is_one_line_error(said)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "standard input"),
            ("{version: 1}", "standard input"),
            (spec(1, 60, "core").replace("1", "x"), ""),
        ],
    )
    def test_jobspecs(self, run: Run, state: str, text: str, said: str) -> None:
        done = run("whatif", "-", "--state", state, stdin=text)
        assert done.code == 1
        assert done.is_one_line_error(said)

    def test_what_the_cluster_has_none_of_is_never(self, run: Run, state: str) -> None:
        done = run("whatif", "-", "--state", state, stdin=spec(1, 60, "gpu"))
        assert done.code == 4
        assert done.out.startswith("Unschedulable: It would not fit on an empty cluster: ")
        assert done.out.count("Unschedulable") == 1

    @pytest.mark.parametrize("text", ["", "{}", "[1]", "nonsense", '{"version": 1, "now": 0}'])
    def test_snapshots(self, run: Run, tmp_path: Path, text: str) -> None:
        path = tmp_path / "state.json"
        path.write_text(text)
        done = run("whatif", "-", "--state", str(path), stdin=spec(1, 60))
        assert done.code == 1
        assert done.is_one_line_error("state.json: is not a valid snapshot", "fluence simulate --snapshot")

    @pytest.mark.parametrize(
        ("args", "said"),
        [
            ([], "give --state SNAPSHOT or --live"),
            (["--live", "--limit", "1h"], "--limit needs --state"),
            (["--live", "--priority", "3"], "--priority needs --state"),
        ],
    )
    def test_one_source_of_the_queue(self, run: Run, args: list[str], said: str) -> None:
        done = run("whatif", "-", *args, stdin=spec(1, 60))
        assert done.code == 2
        assert done.is_one_line_error(said)

    def test_a_cluster_is_asked_with_manifests(self, run: Run, tmp_path: Path) -> None:
        done = run("whatif", "-", "--live", stdin=spec(1, 60))
        assert done.is_one_line_error(
            "standard input: document 1: must be an object with apiVersion and kind"
        )
        config = str(tmp_path / "none")
        pod = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {}}"
        assert run("whatif", "-", "--live", "--kubeconfig", config, stdin=pod).is_one_line_error(config)

    def test_files_that_are_not_there(self, run: Run, state: str, tmp_path: Path) -> None:
        assert run("whatif", "-", "--state", "/nowhere", stdin=spec(1, 60)).is_one_line_error("/nowhere")
        assert run("whatif", "-", "--state", str(tmp_path), stdin=spec(1, 60)).code == 2
        assert run("whatif", "/nowhere.yaml", "--state", state).is_one_line_error("/nowhere.yaml")


def test_help_teaches(run: Run) -> None:
    out = run("whatif", "--help").out
    for word in ("Examples:", "Exit code: 0", "--state", "--limit"):
        assert word in out
