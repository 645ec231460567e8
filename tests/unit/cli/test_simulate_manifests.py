"""`fluence simulate --manifests`: the live scheduler's cycle over Kubernetes manifests."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluence.sandbox.nodes import manifests, read_nodes
from fluence.sim.cluster import EmbeddedCluster

from .conftest import Result, Run

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "examples" / "cluster"
NODES = str(ROOT / "examples" / "nodes.yaml")
ENGINE = "live cycle (gang placer, Kubernetes' rules)"
ARRIVAL = "fluence.flux-framework.org/arrival"


def gang(name: str, size: int, cpu: int, sleep: str, **more: str) -> dict[str, Any]:
    prefix = "fluence.flux-framework.org"
    notes = {f"{prefix}/group": name, f"{prefix}/group-size": str(size), **more}
    container = {"name": "c", "command": ["sleep", sleep], "resources": {"requests": {"cpu": str(cpu)}}}
    pod = {"schedulerName": "fluence", "restartPolicy": "Never", "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": notes},
        "spec": {"parallelism": size, "completions": size, "template": {"spec": pod}},
    }


def write(path: Path, *documents: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def simulate(run: Run, *args: str) -> Result:
    return run("simulate", "--nodes", NODES, *args)


def value_of(done: Result) -> dict[str, Any]:
    assert done.code == 0, done
    found: dict[str, Any] = json.loads(done.out)
    return found


def rows(done: Result) -> dict[str, dict[str, str]]:
    assert done.code == 0, done
    lines = [line.split("\t") for line in done.out.splitlines() if "\t" in line]
    return {cells[1]: dict(zip(lines[0], cells, strict=True)) for cells in lines[1:]}


class TestExamples:
    ARGS = ("--manifests", str(MANIFESTS), "--manifests", str(MANIFESTS / "1.36"), "--every", "1s")

    def test_the_report_is_that_of_a_trace(self, run: Run) -> None:
        value = value_of(simulate(run, *self.ARGS, "-o", "json"))
        assert (value["engine"], value["policy"], value["unit"]) == (ENGINE, "easy", "cpu")
        assert (value["jobs"], value["started"], value["finished"]) == (8, 7, 6)
        assert value["capacity"] == 8 * 16_000
        assert value["states"] == {"Completed": 6, "Unschedulable": 1, "Running": 1}
        assert value["promise"]["waiting"] == 1
        assert 0 < value["utilisation"] < 1
        for key in ("wait", "bounded_slowdown", "makespan", "fairness", "decisions_per_s", "partial"):
            assert key in value
        table = simulate(run, *self.ARGS)
        assert table.out.splitlines()[0] == f"engine: {ENGINE}"
        other = simulate(run, *self.ARGS, "-o", "yaml")
        assert yaml.safe_load(other.out)["states"] == value["states"]

    def test_a_row_per_job_says_who_waited_and_who_was_backfilled(self, run: Run) -> None:
        found = rows(simulate(run, *self.ARGS, "-o", "wide"))
        assert found["default/solver-b"]["wait"] == "7"  # until solver-a has ended
        assert found["default/solver-b"]["no_later_than"] == "23"  # when solver-a must have ended
        assert found["default/quick"]["backfilled"] == "yes"
        assert found["default/huge"]["state"] == "Unschedulable"
        assert found["default/training"]["end"] == "–"  # a Deployment does not end

    def test_the_places_are_those_of_the_cycle_that_the_demo_shows(self, run: Run) -> None:
        """The same objects, one by one, through the same cluster by hand."""
        cluster = EmbeddedCluster(body for kind in read_nodes(Path(NODES)) for body in manifests(kind))
        began = cluster.now
        paths = sorted(MANIFESTS.glob("*.yaml")) + sorted((MANIFESTS / "1.36").glob("*.yaml"))
        for number, path in enumerate(paths):
            while (at := cluster.next_time()) is not None and at <= began + number * 1000:
                cluster.step()
            cluster.advance(began + number * 1000)
            for document in yaml.safe_load_all(path.read_text()):
                cluster.apply(document)
            cluster.settle()
        while cluster.step():
            pass
        found = rows(simulate(run, *self.ARGS, "-o", "wide"))
        by_hand = {job.key: job.started for job in cluster.jobs()}
        assert by_hand.keys() == found.keys()
        for key, started in by_hand.items():
            assert found[key]["start"] == ("–" if started is None else f"{(started - began) / 1000:g}")

    def test_several_policies_and_scales_side_by_side(self, run: Run) -> None:
        args = ("--compare", "easy,fcfs", "--arrival-scale", "1,0.5", "-o", "json")
        value = value_of(simulate(run, *self.ARGS, *args))
        assert [each["policy"] for each in value["runs"]] == ["easy ×1", "fcfs ×1", "easy ×0.5", "fcfs ×0.5"]
        assert {each["engine"] for each in value["runs"]} == {ENGINE}

    def test_until_gives_the_part_that_was_simulated(self, run: Run) -> None:
        value = value_of(simulate(run, *self.ARGS, "--until", "10s", "-o", "json"))
        assert (value["partial"], value["simulated_s"], value["makespan"]) == (True, 10, 10)
        assert value["finished"] == 1  # quick

    def test_the_page_and_the_pictures(self, run: Run, tmp_path: Path) -> None:
        page = tmp_path / "r.html"
        done = simulate(run, *self.ARGS, "--html", str(page), "--pictures", str(tmp_path / "p"))
        assert done.code == 0
        assert "live cycle (gang placer" in page.read_text()


class TestArrivals:
    def test_an_annotation_says_when_and_those_behind_it_follow(self, run: Run, tmp_path: Path) -> None:
        one = write(
            tmp_path / "1.yaml",
            gang("first", 1, 1, "5"),
            gang("late", 1, 1, "5", **{ARRIVAL: "2m"}),
            gang("behind", 1, 1, "5"),
        )
        two = write(tmp_path / "2.yaml", gang("other", 1, 1, "5"))
        found = rows(simulate(run, "--manifests", one, "--manifests", two, "--every", "30s", "-o", "wide"))
        assert {key.removeprefix("default/"): row["submit"] for key, row in found.items()} == {
            "first": "0", "late": "120", "behind": "120", "other": "30",
        }  # fmt: skip

    def test_a_directory_is_read_in_the_order_of_names(self, run: Run, tmp_path: Path) -> None:
        for name in ("b", "a"):
            write(tmp_path / f"{name}.yaml", gang(name, 1, 1, "5"))
        (tmp_path / "notes.txt").write_text("not a manifest")
        found = rows(simulate(run, "--manifests", str(tmp_path), "--every", "1.5s", "-o", "wide"))
        assert [(key, row["submit"]) for key, row in found.items()] == [
            ("default/a", "0"),
            ("default/b", "1.5"),
        ]

    def test_a_job_of_more_completions_than_pods_at_a_time_makes_the_next(
        self, run: Run, tmp_path: Path
    ) -> None:
        work = gang("series", 1, 1, "10")
        work["spec"] |= {"completions": 3}
        value = value_of(simulate(run, "--manifests", write(tmp_path / "s.yaml", work), "-o", "json"))
        assert (value["finished"], value["makespan"]) == (3, 30)

    def test_how_long_a_pod_runs_can_be_an_annotation(self, run: Run, tmp_path: Path) -> None:
        work = gang("long", 1, 1, "5")
        note = {"sandbox.fluence.flux-framework.org/run-seconds": "90"}
        work["spec"]["template"]["metadata"] = {"annotations": note}
        value = value_of(simulate(run, "--manifests", write(tmp_path / "s.yaml", work), "-o", "json"))
        assert value["makespan"] == 90


class TestSettings:
    def test_the_schedulers_settings_come_from_its_file(self, run: Run, tmp_path: Path) -> None:
        config = tmp_path / "fluence.yaml"
        config.write_text("queue-policy: fcfs\nmatch-policy: high\nscheduler-name: other\n")
        work = write(tmp_path / "w.yaml", gang("a", 1, 1, "5"))
        args = ("--manifests", work, "--config", str(config), "-o", "json")
        assert simulate(run, *args).is_one_line_error("has no pod for this scheduler", "schedulerName: other")
        config.write_text("queue-policy: fcfs\nmatch-policy: high\n")
        value = value_of(simulate(run, *args))
        assert (value["policy"], value["settings"]["match policy"]) == ("fcfs", "high")
        value = value_of(simulate(run, *args, "--queue-policy", "easy", "--match-policy", "low"))
        assert (value["policy"], value["settings"]["match policy"]) == ("easy", "low")

    def test_unit_names_what_is_counted(self, run: Run, tmp_path: Path) -> None:
        work = write(tmp_path / "w.yaml", gang("a", 1, 1, "5"))
        value = value_of(simulate(run, "--manifests", work, "--unit", "nvidia.com/gpu", "-o", "json"))
        assert (value["unit"], value["capacity"]) == ("nvidia.com/gpu", 8)
        done = simulate(run, "--manifests", work, "--unit", "core")
        assert done.is_one_line_error("the nodes have no core to count", "cpu", "nvidia.com/gpu")


class TestQueues:
    QUEUES = (
        "{apiVersion: fluence.flux-framework.org/v1alpha1, kind: Queue, metadata: {name: default}}\n---\n"
        "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: Queue\nmetadata: {name: physics}\n"
        "spec: {limit: {cpu: 2}, namespaces: {matchLabels: {team: physics}}}\n"
    )

    def test_the_queues_of_a_file_are_in_force(self, run: Run, tmp_path: Path) -> None:
        queues = tmp_path / "queues.yaml"
        queues.write_text(self.QUEUES)
        note = {"fluence.flux-framework.org/queue": "physics"}
        jobs = [gang(name, 1, 2, "10", **note) for name in "ab"]
        space = {"apiVersion": "v1", "kind": "Namespace"}
        space["metadata"] = {"name": "default", "labels": {"team": "physics"}}  # type: ignore[assignment]
        work = write(tmp_path / "w.yaml", space, *jobs, gang("c", 1, 2, "10"))
        args = ("--manifests", work, "-o", "json")
        assert value_of(simulate(run, *args))["makespan"] == 10
        value = value_of(simulate(run, *args, "--queues", str(queues)))
        assert value["makespan"] == 20
        assert set(value["tenants"]["queues"]) == {"default", "physics"}
        closed = write(tmp_path / "closed.yaml", *jobs)
        done = simulate(run, "--manifests", closed, "--queues", str(queues))
        assert done.is_one_line_error("Queue 'physics' is closed to its namespace: use one of default")

    def test_names_that_are_not_counted_are_noted(self, run: Run, tmp_path: Path) -> None:
        queues = tmp_path / "queues.yaml"
        queues.write_text(self.QUEUES.replace("{cpu: 2}", "{cpus: 2}"))
        work = write(tmp_path / "w.yaml", gang("c", 1, 2, "10"))
        done = simulate(run, "--manifests", work, "--queues", str(queues))
        assert "note: queue physics: spec.limit: cpus is not counted: did you mean cpu?" in done.err


class TestBadInput:
    @pytest.mark.parametrize(
        ("args", "said"),
        [
            ([], "give --trace and --cluster, or --manifests and --nodes"),
            (["--manifests", "x", "--trace", "y"], "give --trace and --cluster, or --manifests"),
            (["--manifests", "x"], "--manifests needs --nodes"),
            (["--trace", "x"], "--trace needs --cluster"),
            (["--manifests", "x", "--nodes", "y", "--seed", "1"], "--seed needs --trace"),
            (["--manifests", "x", "--nodes", "y", "--snapshot", "z"], "--snapshot needs --trace"),
            (["--trace", "x", "--cluster", "2x2", "--every", "1s"], "--every needs --manifests"),
        ],
    )
    def test_a_wrong_command_line(self, run: Run, args: list[str], said: str) -> None:
        done = run("simulate", *args)
        assert done.code == 2
        assert done.is_one_line_error(said)

    def test_nothing_to_simulate(self, run: Run, tmp_path: Path) -> None:
        empty = tmp_path / "empty"
        empty.mkdir()
        assert simulate(run, "--manifests", str(empty)).is_one_line_error("has no manifests")
        write(empty / "s.yaml", {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}})
        done = simulate(run, "--manifests", str(empty))
        assert done.is_one_line_error("nothing to simulate", "left out: 1 Service")
        assert simulate(run, "--manifests", "/nowhere.yaml").is_one_line_error(
            "/nowhere.yaml: cannot be read"
        )

    def test_nothing_that_can_run(self, run: Run, tmp_path: Path) -> None:
        done = simulate(run, "--manifests", str(MANIFESTS / "8-huge.yaml"))
        assert done.is_one_line_error("the only job cannot run on", "default/huge", "Insufficient cpu (")
        prefix = "fluence.flux-framework.org"
        meta = {"name": "half", "labels": {f"{prefix}/group": "half"}}
        meta["annotations"] = {f"{prefix}/group-size": "2"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"schedulerName": "fluence"}}
        done = simulate(run, "--manifests", write(tmp_path / "half.yaml", pod))
        assert done.is_one_line_error("the only job cannot run", "default/half", "1 of 2 pods")

    def test_pods_of_another_scheduler_are_counted(self, run: Run, tmp_path: Path) -> None:
        other = gang("other", 1, 1, "5")
        del other["spec"]["template"]["spec"]["schedulerName"]
        path = write(tmp_path / "w.yaml", gang("ours", 1, 1, "5"), other)
        value = value_of(simulate(run, "--manifests", path, "-o", "json"))
        assert value["skipped"] == {"pods without schedulerName: fluence": 1}

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("a: [", "is not valid YAML"),
            ("[1]", "must be an object with apiVersion and kind"),
            ("{apiVersion: v1}", "must be an object with apiVersion and kind"),
            ("{apiVersion: v1, kind: Pod, metadata: {name: a}}", "spec: must be an object"),
            ("{apiVersion: v1, kind: Pod, metadata: {}, spec: {}}", "metadata.name: is missing"),
            ("{apiVersion: v1, kind: Pod, metadata: {name: 1}, spec: {}}", "Expected `str`"),
            ("{apiVersion: batch/v1, kind: Job, metadata: {name: a}, spec: {}}", "spec.template: must have"),
            (
                f"{{apiVersion: v1, kind: Pod, metadata: {{name: a, annotations: {{{ARRIVAL}: soon}}}}}}",
                "'soon' is not a valid time",
            ),
        ],
    )
    def test_a_wrong_manifest_names_its_place(self, run: Run, tmp_path: Path, text: str, said: str) -> None:
        path = tmp_path / "w.yaml"
        path.write_text(text)
        assert simulate(run, "--manifests", str(path)).is_one_line_error(str(path), said)

    def test_strict_refuses_what_makes_no_pods(self, run: Run, tmp_path: Path) -> None:
        set_ = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"}, "spec": {}}
        path = write(tmp_path / "w.yaml", gang("a", 1, 1, "5"), set_)
        assert "left out of the workload: 1 StatefulSet" in simulate(run, "--manifests", path).out
        done = simulate(run, "--manifests", path, "--strict")
        assert done.is_one_line_error("document 2: apps/v1 StatefulSet makes no pods here")

    def test_wrong_nodes(self, run: Run, tmp_path: Path) -> None:
        nodes = tmp_path / "nodes.yaml"
        nodes.write_text("nodes: []")
        done = run("simulate", "--manifests", str(MANIFESTS), "--nodes", str(nodes))
        assert done.is_one_line_error("nodes.yaml: has no nodes")


def test_help_names_both_engines(run: Run) -> None:
    out = run("simulate", "--help").out
    for word in (
        "--manifests",
        "--nodes",
        "--every",
        ENGINE,
        "matcher (Fluxion's answers on a graph)",
        ARRIVAL,
    ):
        assert word in out
