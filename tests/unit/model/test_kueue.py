"""Kueue's objects as queues, with documents as users of Kueue 0.19 write them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from fluence.errors import InvalidInput
from fluence.model import kueue
from fluence.model.kueue import KueueQueues, from_document, is_running
from fluence.model.meta import LabelSelector
from fluence.model.queues import Amounts, Queue, QueueTree, Reclaim, Resource, Stop, Within, problems

CPU, MEMORY, GPU = Resource("cpu"), Resource("memory"), Resource("nvidia.com/gpu")
# A site with two teams in a cohort, one of which has GPUs of two kinds, and a queue by itself.
SITE = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default-flavor}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: spot}
spec:
  nodeLabels: {instance-type: spot}
  tolerations: [{key: spot-taint, operator: Exists, effect: NoSchedule}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Cohort
metadata: {name: research}
spec:
  parentName: all
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: default-flavor, resources: [{name: cpu, nominalQuota: 10, borrowingLimit: 5}]}]
  fairSharing: {weight: "3"}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: team-a-cq}
spec:
  namespaceSelector: {matchLabels: {dept: physics}}
  cohortName: research
  queueingStrategy: BestEffortFIFO
  flavorFungibility: {whenCanBorrow: MayStopSearch, whenCanPreempt: TryNextFlavor}
  preemption: {reclaimWithinCohort: Any, withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [cpu, memory]
    flavors:
    - name: default-flavor
      resources:
      - {name: cpu, nominalQuota: 9, borrowingLimit: 1}
      - {name: memory, nominalQuota: 36Gi}
    - name: spot
      resources:
      - {name: cpu, nominalQuota: 20, borrowingLimit: 4}
      - {name: memory, nominalQuota: 64Gi}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: team-b-cq}
spec:
  namespaceSelector: {}
  cohortName: research
  stopPolicy: HoldAndDrain
  fairSharing: {weight: 500m}
  resourceGroups:
  - coveredResources: [cpu]
    flavors:
    - name: default-flavor
      resources: [{name: cpu, nominalQuota: "1500m", lendingLimit: 1}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: gpus}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: default-flavor, resources: [{name: nvidia.com/gpu, nominalQuota: 8}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: user-queue, namespace: team-a}
spec: {clusterQueue: team-a-cq}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: user-queue, namespace: team-b}
spec: {clusterQueue: team-b-cq, stopPolicy: Hold, fairSharing: {weight: 2}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: urgent}
value: 10000
description: before all others
"""
# The same fields by their names in v1beta1.
OLDER = """
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: cluster-queue}
spec:
  namespaceSelector: {}
  cohort: ours
  admissionChecks: [sample-prov]
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: f, resources: [{name: cpu, nominalQuota: 4}]}]
"""


def objects(text: str) -> list[kueue.KueueObject]:
    found = [from_document(document) for document in yaml.safe_load_all(text) if document]
    return [each for each in found if each is not None]


def read(text: str, taken: tuple[str, ...] = ()) -> tuple[KueueQueues, dict[str, Queue]]:
    found = kueue.read(objects(text), taken)
    assert problems(found.queues) == {}
    return found, {queue.name: queue for queue in found.queues}


def notes(found: KueueQueues) -> set[str]:
    return set(map(str, found.notes))


def plain(amounts: Amounts) -> Amounts:
    """Amounts without those of classes of nodes."""
    return {each: amount for each, amount in amounts.items() if not each.node_class}


class TestTheTree:
    def test_cohorts_cluster_queues_and_local_queues(self) -> None:
        _, queues = read(SITE)
        assert {name: queue.parent for name, queue in queues.items()} == {
            "all": None,
            "research": "all",
            "team-a-cq": "research",
            "team-b-cq": "research",
            "gpus": None,
            "team-a/user-queue": "team-a-cq",
            "team-b/user-queue": "team-b-cq",
            "default": None,
        }

    def test_nominal_quota_is_guaranteed_and_flavours_are_added_up(self) -> None:
        _, queues = read(SITE)
        assert plain(queues["team-a-cq"].guaranteed) == {CPU: 29_000, MEMORY: 100 << 30}
        assert queues["team-b-cq"].guaranteed == {CPU: 1_500}
        assert queues["research"].guaranteed == {CPU: 10_000}

    def test_limits(self) -> None:
        """A borrowing limit adds to the quota. A cohort at the top, and a queue without one, have what they
        are guaranteed; what a queue does not cover cannot be used in it."""
        _, queues = read(SITE)
        assert plain(queues["team-a-cq"].limit) == {CPU: 29_000 + 5_000, GPU: 0}
        assert plain(queues["team-b-cq"].limit) == {MEMORY: 0, GPU: 0}
        assert plain(queues["research"].limit) == {CPU: 10_000 + 29_000 + 1_500 + 5_000}
        assert plain(queues["all"].limit) == {CPU: 40_500, MEMORY: 100 << 30}
        assert plain(queues["gpus"].limit) == {GPU: 8, CPU: 0, MEMORY: 0}
        assert queues["default"] == Queue("default")

    def test_a_flavour_with_labels_is_a_class_of_nodes_with_its_own_quota(self) -> None:
        found, queues = read(SITE)
        tree = QueueTree(found.queues)
        assert tree.classes == {"spot": LabelSelector(match_labels={"instance-type": "spot"})}
        on_spot = {each: amount for each, amount in queues["team-a-cq"].guaranteed.items() if each.node_class}
        assert on_spot == {Resource("cpu", "spot"): 20_000, Resource("memory", "spot"): 64 << 30}
        # A queue without the flavour gets none of its nodes, as in Kueue.
        assert queues["team-b-cq"].limit[Resource("cpu", "spot")] == 0
        assert queues["all"].limit[Resource("cpu", "spot")] == 20_000

    def test_who_may_use_which(self) -> None:
        tree = QueueTree(read(SITE)[0].queues)
        of = "kubernetes.io/metadata.name"
        assert tree.admits("team-a/user-queue", {of: "team-a", "dept": "physics"})
        assert not tree.admits("team-a/user-queue", {of: "team-a"})
        assert not tree.admits("team-a/user-queue", {of: "team-b", "dept": "physics"})
        assert tree.admits("team-b/user-queue", {of: "team-b"})

    def test_a_queue_without_a_selector_is_open_to_no_namespace(self) -> None:
        found, _queues = read(OLDER.replace("  namespaceSelector: {}\n", ""))
        tree = QueueTree(found.queues)
        for labels in ({}, {"kubernetes.io/metadata.name": "a"}, {"kubernetes.io/metadata.name": ""}):
            assert tree.admits("cluster-queue", labels) == (labels == {"kubernetes.io/metadata.name": ""})
        assert any("write {} for all" in note for note in notes(found))

    def test_stops_weights_and_preemption(self) -> None:
        _, queues = read(SITE)
        assert (queues["team-b-cq"].stop, queues["team-b/user-queue"].stop) == (Stop.DRAIN, Stop.HOLD)
        weights = {name: queue.weight for name, queue in queues.items() if queue.weight != 1}
        assert weights == {"research": 3, "team-b-cq": 0.5, "team-b/user-queue": 2}
        rules = queues["team-a-cq"].preemption
        assert (rules.within, rules.reclaim) == (Within.LOWER, Reclaim.ANY)
        rules = queues["gpus"].preemption
        assert (rules.within, rules.reclaim) == (Within.NEVER, Reclaim.NEVER)

    def test_priorities(self) -> None:
        assert read(SITE)[0].priorities == {"urgent": 10_000}

    def test_the_older_version(self) -> None:
        _found, queues = read(OLDER)
        assert queues["cluster-queue"].parent == "ours"
        assert queues["ours"].limit == {CPU: 4_000}


class TestWhatIsNotDone:
    def test_everything_is_listed(self) -> None:
        assert notes(read(SITE)[0]) == {
            "ResourceFlavor spot: spec.tolerations: is not put on pods: write it in the pods",
            "ClusterQueue team-b-cq: lendingLimit: is not kept: others may borrow all that is not in use",
        }

    @pytest.mark.parametrize(
        "checks",
        ["admissionChecks: [prov]", "admissionChecksStrategy: {admissionChecks: [{name: prov}]}"],
    )
    def test_nothing_starts_where_a_check_is_wanted(self, checks: str) -> None:
        found, queues = read(SITE.replace("stopPolicy: HoldAndDrain", checks))
        assert queues["team-b-cq"].stop is Stop.HOLD
        assert any("carries out no checks" in note for note in notes(found))

    def test_nothing_starts_without_the_flavour(self) -> None:
        found, queues = read(OLDER.replace("  admissionChecks: [sample-prov]\n", ""))
        assert queues["cluster-queue"].stop is Stop.HOLD
        assert any("there is no ResourceFlavor f" in note for note in notes(found))

    def test_fields_that_are_not_read(self) -> None:
        more = (
            "admissionScope: {admissionMode: UsageBasedAdmissionFairSharing}\n  queueingStrategy: StrictFIFO"
        )
        found, _ = read(SITE.replace("stopPolicy: HoldAndDrain", more))
        assert "ClusterQueue team-b-cq: spec.admissionScope: is not read" in notes(found)
        assert any("queue-policy decides" in note for note in notes(found))

    def test_a_local_queue_of_nothing_takes_no_work(self) -> None:
        found, queues = read(SITE.replace("{clusterQueue: team-a-cq}", "{clusterQueue: gone}"))
        assert "team-a/user-queue" not in queues
        assert any("there is no ClusterQueue" in note for note in notes(found))

    def test_cohorts_that_are_their_own_ancestors_start_nothing(self) -> None:
        loop = "\n---\n".join(
            "apiVersion: kueue.x-k8s.io/v1beta2\nkind: Cohort\n"
            f"metadata: {{name: {a}}}\nspec: {{parentName: {b}}}"
            for a, b in (("all", "research"), ("x", "all"))
        )
        found, queues = read(f"{SITE}\n---\n{loop}")
        assert {queues[name].stop for name in ("all", "research")} == {Stop.HOLD}
        assert queues["x"].parent == "all"
        assert sum("is its own ancestor" in note for note in notes(found)) == 2


class TestNames:
    def test_a_cohort_may_have_the_name_of_a_cluster_queue(self) -> None:
        _, queues = read(OLDER.replace("cohort: ours", "cohort: cluster-queue"))
        assert queues["cluster-queue"].parent == "cohort:cluster-queue"

    def test_queues_of_our_own_keep_their_names(self) -> None:
        _, queues = read(OLDER, ("cluster-queue", "default"))
        assert "kueue:cluster-queue" in queues
        assert "default" not in queues

    def test_work_without_a_queue_is_not_in_a_cluster_queue_that_is_called_default(self) -> None:
        _, queues = read(OLDER.replace("name: cluster-queue", "name: default"))
        assert queues["default"] == Queue("default")
        assert queues["kueue:default"].guaranteed == {CPU: 4_000}


@pytest.mark.parametrize(
    "spec",
    [
        None, [], "x", {"resourceGroups": 3}, {"resourceGroups": [3, {"flavors": [{"resources": [{}, 1]}]}]},
        {"resourceGroups": [{"flavors": [{"name": 3, "resources": [{"name": "cpu", "nominalQuota": -5}]}]}]},
        {"resourceGroups": [{"flavors": [{"resources": [{"name": "cpu", "nominalQuota": "9" * 60}]}]}]},
        {"namespaceSelector": 3}, {"namespaceSelector": {"matchLabels": 3}}, {"stopPolicy": []},
        {"fairSharing": {"weight": "NaN"}}, {"fairSharing": {"weight": "-1"}}, {"cohortName": {}},
        {"preemption": 3, "admissionChecksStrategy": 4, "cohort": "a", "unknown": {"a": 1}},
    ],
)  # fmt: skip
def test_any_spec_gives_a_tree_and_notes(spec: Any) -> None:
    document = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "metadata": {"name": "q", "namespace": "n"},
        "spec": spec,
    }
    found = [from_document({**document, "kind": shape.__name__}) for shape in kueue.KINDS]
    made = kueue.read(each for each in found if each is not None)
    assert problems(made.queues) == {}
    for queue in made.queues:
        assert 0 <= queue.weight <= 1_000_000
        assert all(count >= 0 for amounts in queue.fields.values() for count in amounts.values())


def test_nothing_is_made_of_nothing() -> None:
    assert kueue.read(()) == KueueQueues()


def test_other_documents_are_not_ours_and_other_versions_are_refused() -> None:
    assert from_document({"apiVersion": "v1", "kind": "Pod"}) is None
    assert from_document(3) is None
    with pytest.raises(InvalidInput, match="v1beta2 or v1beta1"):
        from_document({"apiVersion": "kueue.x-k8s.io/v2", "kind": "ClusterQueue", "metadata": {"name": "a"}})


class TestTheLease:
    NOW = 1_788_271_500.0  # 2026-09-01T14:05:00Z

    def lease(self, **spec: Any) -> dict[str, Any]:
        usual = {"holderIdentity": "kueue-controller-manager-1", "leaseDurationSeconds": 15}
        return {"spec": {**usual, "renewTime": "2026-09-01T14:04:55.000000Z", **spec}}

    def test_a_fresh_lease_is_a_manager_that_runs(self) -> None:
        assert is_running(self.lease(), self.NOW)
        assert is_running(self.lease(), self.NOW + 39)
        assert is_running(self.lease(renewTime=None), self.NOW)
        assert is_running(self.lease(renewTime="2026-09-01T15:00:00Z"), self.NOW)  # by another clock

    def test_an_old_one_and_one_that_was_given_back_are_not(self) -> None:
        assert not is_running(self.lease(), self.NOW + 60)
        assert not is_running(self.lease(holderIdentity=""), self.NOW)
        for nonsense in (None, {}, {"spec": 3}, "x"):
            assert not is_running(nonsense, self.NOW)
