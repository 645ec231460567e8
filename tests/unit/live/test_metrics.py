"""What Prometheus finds: kube-scheduler's names, a bounded number of series, and true counts."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from fluence.cluster.claims import Claim
from fluence.live.metrics import Metrics
from fluence.model.job_state import JobState
from fluence.model.pod import ClaimVolumeSource, PodVolume
from tests.unit.cluster.build import bound, node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NOW = int(kit.T0.timestamp() * 1000)


def world() -> tuple[Driver, Metrics]:
    driver = Driver(native=True, strict=False)
    driver.now = NOW
    driver.set_node(node("n1"))
    return driver, Metrics(driver.scheduler, profile="fluence")


def samples(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a name, by the values of their labels in the order of their names."""
    metrics.refresh()
    return {
        tuple(value for _, value in sorted(each.labels.items())): each.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for each in family.samples
        if each.name == name
    }


def test_the_names_are_kube_schedulers_or_our_own() -> None:
    _, metrics = world()
    metrics.started(waits=True)
    metrics.faults.labels("Pod").inc()
    metrics.leader.labels("fluence").set(1)
    found = {family.name for family in text_string_to_metric_families(metrics.text().decode())}
    assert {name for name in found if not name.endswith("_created")} == {
        "scheduler_schedule_attempts",
        "scheduler_podgroup_schedule_attempts",
        "scheduler_pod_scheduling_sli_duration_seconds",
        "scheduler_scheduling_algorithm_duration_seconds",
        "scheduler_binding_duration_seconds",
        "scheduler_pending_pods",
        "scheduler_pending_entities",
        "scheduler_plan_cycles",
        "scheduler_plan_tries",
        "fluence_faults",
        "fluence_gates_opened",
        "fluence_limits_enforced",
        "fluence_preemptions",
        "fluence_resources_invalid",
        "fluence_quarantined",
        "fluence_refused_groups",
        "fluence_oldest_waiting_timestamp_seconds",
        "fluence_history_entries",
        "fluence_history_up",
        "fluence_history_backlog",
        "fluence_promises",
        "fluence_promises_broken",
        "leader_election_master_status",
    }


def test_every_metric_is_explained_with_its_labels() -> None:
    """The table in docs/scheduler.md, by what is exposed: counters end in _total."""
    _, metrics = world()
    metrics.started(waits=True)
    metrics.faults.labels("Pod").inc()
    metrics.leader.labels("fluence").set(1)
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        if not family.name.endswith("_created"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = sorted({label for each in family.samples for label in each.labels} - {"le"})
    page = (Path(__file__).parents[3] / "docs" / "scheduler.md").read_text()
    section = page.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", section, re.MULTILINE)
    told = {name: sorted(re.findall(r"`(\w+)`", labels)) for name, labels, _ in rows}
    assert told == found


def test_the_series_do_not_grow_with_the_cluster() -> None:
    driver, metrics = world()

    def series() -> set[tuple[str, tuple[str, ...]]]:
        metrics.refresh()
        return {
            (each.name, tuple(each.labels.items()))  # type: ignore[arg-type]
            for family in text_string_to_metric_families(metrics.text().decode())
            for each in family.samples
        }

    before = series()
    for i in range(50):
        driver.set_node(node(f"n{i}"))
        driver.set_pod(kit.pod(f"p{i}", namespace=f"ns{i}", cpu=str(1 + i % 9)))
    driver.cycle(NOW)
    assert series() == before


def test_pods_that_wait_are_counted_by_what_they_wait_for() -> None:
    driver, metrics = world()
    assert samples(metrics, "scheduler_pending_pods") == {
        ("active",): 0,
        ("unschedulable",): 0,
        ("gated",): 0,
    }
    driver.set_pod(kit.pod("runs"))
    driver.set_pod(kit.pod("held", gated=True))
    driver.set_group(kit.group("g", 2))
    for pod in kit.ranks(2, field="g", cpu="4"):
        driver.set_pod(pod)
    driver.set_group(kit.group("part", 3))
    driver.set_pod(kit.pod("part-0", field="part"))
    driver.cycle(NOW)
    assert samples(metrics, "scheduler_pending_pods") == {
        ("active",): 1,
        ("unschedulable",): 2,
        ("gated",): 1,
    }


def test_every_phase_is_counted_as_one_state() -> None:
    driver, metrics = world()
    driver.set_node(node("n2"))

    def states() -> dict[str, float]:
        return {key[0]: count for key, count in samples(metrics, "scheduler_pending_entities").items()}

    assert states() == {"gathering": 0, "queued": 0, "binding": 0, "running": 0}
    driver.set_group(kit.group("part", 3))
    driver.set_pod(kit.pod("part-0", field="part"))
    driver.set_pod(kit.pod("never", cpu="9"))
    driver.set_pod(kit.pod("runs", cpu="3"))
    driver.set_claim("default", "data", Claim("waits", uid="u"))
    volume = PodVolume(persistent_volume_claim=ClaimVolumeSource(claim_name="data"))
    driver.set_pod(kit.pod("prepares", volumes=[volume]))
    ((bind,),) = driver.cycle(NOW).binds
    driver.set_pod(bound(bind.pod, bind.node))
    driver.set_pod(kit.pod("binds"))
    driver.set_pod(kit.pod("waits", cpu="4"))
    driver.cycle(NOW + 1)
    phases = {key.rpartition(":")[2]: each.state for key, each in driver.pod_sets.by_key.items()}
    assert phases == {
        "default/part": JobState.GATHERING,
        "never": JobState.UNSCHEDULABLE,
        "runs": JobState.RUNNING,
        "prepares": JobState.PREPARING,
        "binds": JobState.STARTING,
        "waits": JobState.PENDING,
    }
    assert states() == {"gathering": 1, "queued": 2, "binding": 2, "running": 1}


def test_attempts_are_counted_by_result() -> None:
    _, metrics = world()
    metrics.attempts["scheduled"].inc()
    metrics.started(waits=True)
    metrics.started(waits=False)
    metrics.started(waits=False)
    assert samples(metrics, "scheduler_schedule_attempts_total") == {
        ("fluence", "error"): 0,
        ("fluence", "scheduled"): 1,
        ("fluence", "unschedulable"): 0,
    }
    assert samples(metrics, "scheduler_podgroup_schedule_attempts_total") == {
        ("fluence", "scheduled"): 2,
        ("fluence", "unschedulable"): 1,
    }


def test_the_plan_is_read_where_it_is_now_though_the_state_was_built_anew() -> None:
    driver, metrics = world()
    driver.set_pod(kit.pod("waits", cpu="9"))
    driver.cycle(NOW)
    driver.scheduler._rebuild(NOW)
    driver.cycle(NOW)
    assert samples(metrics, "scheduler_plan_cycles") == {(): driver.queue.cycles}
    assert samples(metrics, "scheduler_pending_pods")["unschedulable",] == 1


def test_two_schedulers_in_one_process_do_not_mix() -> None:
    (_, one), (_, two) = world(), world()
    one.faults.labels("Pod").inc()
    assert (
        samples(one, "fluence_faults_total") == {("Pod",): 1} and samples(two, "fluence_faults_total") == {}
    )
