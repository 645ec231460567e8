"""Plug-ins are found by entry point, by registration or as module:name: live, by simulate and by whatif."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import fluence
from fluence import plugin_loader, plugins
from fluence.cli import main
from fluence.config import load
from fluence.errors import InvalidInput
from fluence.match import policy as match_policies
from fluence.queue import policy as queue_policies
from fluence.queue.history import find as find_predictor
from fluence.queue.rules import find_priority
from fluence.schedule.build import publish, read_published, scheduler_for
from fluence.schedule.settings import SchedulerSettings
from fluence.sim.cluster import EmbeddedCluster

MODULE = """
from pathlib import Path

import numpy as np

from fluence.plugins import MatchPolicy

FLUENCE_PLUGIN_API = 1
Path(__file__).with_name("imported").touch()


def temperatures(graph):
    scores = np.full(graph.rows, 50)
    for row, labels in graph.properties.items():
        scores[row] = int(labels.get("temperature", 50))
    return scores


coolest = MatchPolicy("coolest", best="low", scores=temperatures)


def broken_scores(graph):
    raise RuntimeError("no thermometer")


broken = MatchPolicy("broken", best="low", scores=broken_scores)
short = MatchPolicy("short", best="low", scores=lambda graph: np.ones(1, np.int64))


def last_first(job, now):
    return job.submit


def shortest_first(jobs):
    for record in sorted(jobs, key=lambda record: record.limit):
        jobs.start(record)


class Half:
    def learn(self, job, shape, runtime):
        pass

    def predict(self, job, shape, elapsed):
        return max(job.limit // 2, elapsed + 1) if job.limit else None
"""
POINTS = """
[fluence.match_policies]
site-coolest = site_plugins:coolest

[fluence.priorities]
site-last-first = site_plugins:last_first

[fluence.predictors]
site-half = site_plugins:Half

[fluence.queue_policies]
site-shortest = site_plugins:shortest_first
"""
SPEC = """
version: 1
resources: [{type: slot, label: s, count: 1, with: [{type: core, count: 1}]}]
tasks: [{command: [x], slot: s, count: {per_slot: 1}}]
attributes: {system: {duration: 60}}
"""
JOBS = [
    {"name": "first", "cores": 4, "runtime": 60, "limit": 100},
    {"name": "long", "at": 1, "cores": 4, "runtime": 60, "limit": 200},
    {"name": "short", "at": 2, "cores": 4, "runtime": 60, "limit": 90},
]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with plug-ins, as pip would install it; what a test loads from it does not stay."""
    info = tmp_path / "site_plugins-1.dist-info"
    info.mkdir()
    (tmp_path / "site_plugins.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: site-plugins\nVersion: 1\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugin_loader, "_registered", {})
    monkeypatch.setattr(plugin_loader, "_allowed", set())
    monkeypatch.setattr(match_policies, "_policies", dict(match_policies._policies))
    importlib.invalidate_caches()
    plugin_loader._installed.cache_clear()
    yield tmp_path
    plugin_loader._installed.cache_clear()
    sys.modules.pop("site_plugins", None)


def node(name: str, temperature: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"temperature": str(temperature)}},
        "status": {"allocatable": {"cpu": "4", "memory": "4Gi", "pods": "10"}},
    }


def pod(name: str, **annotations: str) -> dict[str, Any]:
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    notes = {f"fluence.flux-framework.org/{key}": value for key, value in annotations.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": notes},
        "spec": {"schedulerName": "fluence", "containers": [container]},
    }


def home(cluster: EmbeddedCluster, name: str) -> str | None:
    return cluster.pods[f"default/{name}"].spec.node_name


NODES = [node("hot", 90), node("cool", 20), node("warm", 60)]


class TestFinding:
    def test_entry_points_of_every_kind_are_found(self, site: Path) -> None:
        assert match_policies.find("site-coolest").name == "site-coolest"
        assert queue_policies.find("site-shortest").name == "site-shortest"
        assert find_priority("site-last-first")(plugins.Submission("a", None, 7), 0) == 7
        assert hasattr(find_predictor("site-half"), "predict")
        assert {"site-coolest", "first"} <= set(match_policies.names())

    def test_a_setting_loads_module_and_name(self, site: Path) -> None:
        settings = SchedulerSettings(
            match_policy="site_plugins:coolest",
            queue_policy="site_plugins:shortest_first",
            queue_priority="site_plugins:last_first",
            queue_predictor="site_plugins:Half",
        )
        queue = scheduler_for(settings).state.queue
        assert queue.policy.name == "site_plugins:shortest_first"
        assert type(queue.promises.predictor).__name__ == "Half"
        assert queue.rules.priority.__name__ == "last_first"

    def test_a_setting_that_names_no_plugin_is_refused_with_its_place(self, site: Path) -> None:
        config = site / "fluence.yaml"
        for key, value, message in (
            ("match-policy", "site_plugins:half", "cannot be loaded"),
            ("match-policy", "nowhere:x", "name its folder in PYTHONPATH"),
            ("match-policy", "site_plugins:last_first", "is not a fluence.plugins.MatchPolicy"),
            ("queue-priority", "urgent", "unknown priority 'urgent': choose one of urgency"),
            ("queue-predictor", "site_plugins:last_first", "cannot be made"),
        ):
            config.write_text(f"{key}: {value}\n")
            with pytest.raises(InvalidInput, match=message) as refused:
                load(SchedulerSettings, file=str(config))
            assert f"{config}: {key}" in str(refused.value)

    def test_another_version_of_the_api_is_refused(self, site: Path) -> None:
        text = MODULE.replace("FLUENCE_PLUGIN_API = 1", "FLUENCE_PLUGIN_API = 2")
        (site / "site_plugins.py").write_text(text)
        with pytest.raises(InvalidInput, match=r"was written for version 2 of fluence\.plugins"):
            match_policies.find("site-coolest")

    def test_registered_names_are_found_and_built_in_ones_are_kept(self, site: Path) -> None:
        plugins.register_priority("flat", lambda job, now: 1)
        assert find_priority("flat")(plugins.Submission("a", None, 0), 0) == 1
        plugins.register_queue_policy(plugins.QueuePolicy("mine", queue_policies.fcfs))
        assert queue_policies.find("mine").run is queue_policies.fcfs
        with pytest.raises(InvalidInput, match="is a built-in queue policy"):
            plugins.register_queue_policy(plugins.QueuePolicy("easy", queue_policies.fcfs))
        with pytest.raises(InvalidInput, match="is a built-in match policy"):
            plugins.register_match_policy(plugins.MatchPolicy("first", best="low"))

    def test_everything_public_exists(self) -> None:
        assert plugins.API_VERSION == 1
        assert all(hasattr(plugins, name) for name in plugins.__all__)


class TestTrust:
    """Only the person who runs a program can make it import code."""

    def test_an_annotation_imports_nothing(self, site: Path) -> None:
        cluster = EmbeddedCluster(NODES)
        cluster.apply(pod("hostile", policy="site_plugins:coolest"))
        cluster.settle()
        assert home(cluster, "hostile") is None
        assert not (site / "imported").exists()

    def test_an_annotation_may_name_what_is_installed(self, site: Path) -> None:
        cluster = EmbeddedCluster(NODES)
        cluster.apply(pod("p", policy="site-coolest"))
        cluster.settle()
        assert home(cluster, "p") == "cool"

    def test_a_lease_imports_nothing(self, site: Path) -> None:
        published = publish(SchedulerSettings(match_policy="site_plugins:coolest", queue_depth=5))
        (site / "imported").unlink()
        plugin_loader._allowed.clear()
        plugin_loader._registered.clear()
        sys.modules.pop("site_plugins")
        read = read_published(published)
        assert (read.unknown, read.values) == (("match-policy",), {"queue_depth": 5})
        assert not (site / "imported").exists()
        plugin_loader.allow("site_plugins:coolest")  # the user has named it, too
        assert read_published(published).values["match_policy"] == "site_plugins:coolest"


class TestLive:
    def test_pods_go_where_the_policy_says_and_follow_a_label(self, site: Path) -> None:
        cluster = EmbeddedCluster(NODES, settings=SchedulerSettings(match_policy="site_plugins:coolest"))
        cluster.apply(pod("a"))
        cluster.settle()
        assert (home(cluster, "a"), cluster.plugin_faults) == ("cool", {})

    @pytest.mark.parametrize(
        ("policy", "fault"),
        [
            ("broken", "match policy site_plugins:broken: RuntimeError: no thermometer"),
            ("short", "must score with a column of"),
        ],
    )
    def test_scores_that_fail_keep_no_pod_waiting_and_are_told(
        self, site: Path, policy: str, fault: str
    ) -> None:
        cluster = EmbeddedCluster(NODES, settings=SchedulerSettings(match_policy=f"site_plugins:{policy}"))
        cluster.apply(pod("a"))
        cluster.settle()
        assert home(cluster, "a") is not None
        (told,) = cluster.plugin_faults
        assert fault in told

    def test_a_priority_of_the_site_orders_the_queue(self, site: Path) -> None:
        settings = SchedulerSettings(queue_priority="site_plugins:last_first", queue_policy="fcfs")
        cluster = EmbeddedCluster([node("only", 1)], settings=settings)
        for number in range(6):
            cluster.clock.advance(1)
            cluster.apply(pod(f"p{number}"))
        cluster.settle()
        assert [name for name in sorted(cluster.pods) if cluster.pods[name].spec.node_name] == [
            f"default/p{number}" for number in (2, 3, 4, 5)
        ]


class TestSimulate:
    def test_python_simulates_a_list_on_a_shorthand(self, site: Path) -> None:
        easy = fluence.simulate(JOBS, "1x4")
        assert [record.start for record in easy.records] == [0, 60_000, 120_000]
        assert (easy.policy, easy.measures.finished, easy.measures.wait.max) == ("easy", 3, 118.0)
        for shortest in (
            fluence.simulate(JOBS, "1x4", queue_policy="site-shortest"),
            fluence.simulate(JOBS, "1x4", queue_policy="site_plugins:shortest_first"),
        ):
            assert [record.start for record in shortest.records] == [0, 120_000, 60_000]

    def test_python_takes_objects_files_and_graphs(self, site: Path) -> None:
        file = site / "jobs.yaml"
        file.write_text(yaml.safe_dump({"jobs": JOBS}))
        graph = fluence.ResourceGraph.load(Path(__file__).parents[2] / "examples" / "cluster.json")
        assert fluence.simulate(file, graph).measures.wait.max == 0

        def newest(job: plugins.Submission, now: int) -> int:
            return job.submit

        run = fluence.simulate(JOBS, "1x4", queue_policy="fcfs", priority=newest)
        assert [record.start for record in run.records] == [0, 120_000, 60_000]
        assert fluence.simulate(JOBS, "1x4", until=70).stopped_at == 70_000

    def test_python_names_what_is_wrong(self) -> None:
        with pytest.raises(InvalidInput, match=r"jobs: .*runtime"):
            fluence.simulate([{"cores": 1}], "1x4")
        with pytest.raises(InvalidInput, match="has no job to simulate"):
            fluence.simulate([], "1x4")

    def test_a_fault_of_a_plugin_is_in_the_result(self) -> None:
        def broken(jobs: plugins.SchedulingPass) -> None:
            raise RuntimeError("no such account")

        run = fluence.simulate(JOBS, "1x4", queue_policy=broken)
        assert run.measures.finished == 3
        assert list(run.plugin_faults) == ["queue policy broken: RuntimeError: no such account"]

    def test_the_command_uses_plugins_with_manifests_and_tells_their_faults(self, site: Path) -> None:
        work, nodes = site / "pod.yaml", site / "nodes.yaml"
        work.write_text(yaml.safe_dump(pod("a")))
        nodes.write_text(yaml.safe_dump({"nodes": [{"name": "n", "count": 2, "cpu": 4}]}))
        words = ["simulate", "--manifests", str(work), "--nodes", str(nodes)]
        words += ["--match-policy", "site_plugins:broken", "--priority", "site-last-first", "-o", "json"]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        (fault,) = json.loads(done.stdout)["plugin_faults"]
        assert "no thermometer" in fault

    def test_whatif_loads_what_the_snapshot_names_if_it_is_allowed(self, site: Path) -> None:
        state, trace, spec = site / "state.json", site / "jobs.yaml", site / "spec.yaml"
        trace.write_text(yaml.safe_dump({"jobs": JOBS}))
        spec.write_text(SPEC)
        words = ["simulate", "--trace", str(trace), "--cluster", "1x4", "--until", "5"]
        words += ["--snapshot", str(state)]
        words += ["--match-policy", "site_plugins:coolest", "--predictor", "site_plugins:Half"]
        assert CliRunner().invoke(main, words).exit_code == 0
        plugin_loader._allowed.clear()
        ask = ["whatif", str(spec), "--state", str(state)]
        refused = CliRunner().invoke(main, ask)
        assert refused.exit_code == 1
        assert "uses the plug-in site_plugins:coolest: allow it with --plugin" in refused.output
        allowed = ["--plugin", "site_plugins:coolest", "--plugin", "site_plugins:Half"]
        done = CliRunner().invoke(main, [*ask, *allowed])
        assert done.exit_code == 3, done.output


def test_importing_fluence_loads_no_plugins() -> None:
    check = "import sys, fluence; print('fluence.plugins' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_scores_may_be_of_any_integer_type() -> None:
    graph = fluence.ResourceGraph.load(Path(__file__).parents[2] / "examples" / "cluster.json")
    policy = fluence.MatchPolicy("small", best="low", scores=lambda graph: np.ones(graph.rows, np.uint8))
    assert policy.column(graph).dtype == np.int64
