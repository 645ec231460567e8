"""Queue objects: the tree in force, quotas for gangs, who may use which queue, statuses and usage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.live.metrics import Metrics
from fluence.messages import texts
from fluence.model.job_state import JobState
from fluence.model.meta import KubeObject, ObjectMeta
from fluence.model.pod import Pod
from fluence.model.queue_documents import QueueObject
from fluence.model.queues import Queue, QueueTree
from fluence.queue.rules import QueueRules
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Changed
from fluence.schedule.queues import QueueStatusUpdate
from fluence.schedule.scheduler import Scheduler, SchedulerConfig
from tests.unit.cluster.build import node
from tests.unit.schedule import kit
from tests.unit.schedule.test_devices import config
from tests.unit.schedule.test_dynamic_resources import claim, device_class, slice_of, wants

T0 = int(kit.T0.timestamp() * 1000)
SETTLED = 1_500  # ms after which changed queues are taken
SECOND, MINUTE = 1_000, 60_000


def queue(name: str, **spec: Any) -> QueueObject:
    meta = ObjectMeta(name=name, uid=f"uid-{name}", generation=1)
    return QueueObject(metadata=meta, spec=spec, status=None)


def member(name: str, of: str = "", *, namespace: str = "default", cpu: str = "1", **more: Any) -> Pod:
    notes = {names.QUEUE: of} if of else {}
    notes |= more.pop("annotations", {})
    return kit.pod(name, namespace=namespace, annotations=notes, cpu=cpu, **more)


def in_gang(name: str, size: int) -> Pod:
    return member(name, "physics", labels={names.GROUP_LABEL: "g"}, annotations={names.GROUP_SIZE: str(size)})


def namespace(name: str, **labels: str) -> KubeObject:
    return KubeObject(metadata=ObjectMeta(name=name, labels=labels))


class World:
    """Four nodes of four cores, and a scheduler whose binds and statuses are carried out at once."""

    def __init__(self, *objects: Any, **config: Any) -> None:
        self.scheduler = Scheduler(SchedulerConfig(**config))
        self.now = T0
        self.objects: dict[tuple[str, str], Any] = {}
        self.told: dict[str, str] = {}  # by pod: the message,
        self.reasons: dict[str, str] = {}  # and the reason of its condition
        self.written = 0
        self.started: set[str] = set()  # pods that were bound or handed over
        self.put(*(node(f"n{number}") for number in range(4)), *objects)

    def put(self, *objects: Any, decide: bool = True) -> Decisions:
        events = []
        for item in objects:
            key = (type(item).__name__, getattr(item, "key", item.metadata.name))
            events.append(Changed(self.objects.get(key), item))
            self.objects[key] = item
        return self.run(events, decide=decide)

    def remove(self, *objects: Any) -> Decisions:
        for item in objects:
            self.objects.pop((type(item).__name__, getattr(item, "key", item.metadata.name)), None)
        return self.run([Changed(item, None) for item in objects])

    def wait(self, length: int) -> Decisions:
        self.now += length
        return self.run([])

    def run(self, events: list[Any], *, decide: bool = True) -> Decisions:
        decisions = self.scheduler.handle(events, self.now, decide=decide)
        for fault in decisions.faults:
            raise fault.error
        for waiting in decisions.waiting:
            for pod in waiting.pods:
                self.told[pod.metadata.name] = texts(waiting.reasons)
                self.reasons[pod.metadata.name] = waiting.report.pod_reason.value
        for binds in decisions.binds:
            self.started.update(bind.pod.metadata.name for bind in binds)
            self.put(*(bind.carried_out(bind.pod) for bind in binds), decide=False)
        for update in decisions.queue_statuses:
            self.write(update)
        return decisions

    def write(self, update: QueueStatusUpdate) -> None:
        self.written += 1
        item = self.objects["QueueObject", update.name]
        self.put(
            QueueObject(metadata=item.metadata, spec=item.spec, status=dict(update.document)), decide=False
        )

    def status(self, name: str) -> dict[str, Any]:
        status = self.objects["QueueObject", name].status
        return {} if status is None else status

    def condition(self, name: str, type_: str) -> tuple[str, str, str]:
        (found,) = [each for each in self.status(name)["conditions"] if each["type"] == type_]
        return found["status"], found["reason"], found["message"]

    @property
    def bound(self) -> set[str]:
        pods = [item for (kind, _), item in self.objects.items() if kind == "Pod"]
        return {pod.metadata.name for pod in pods if pod.spec.node_name and not pod.is_terminal}

    def restarted(self) -> World:
        """A new process that finds the same objects."""
        twin = World.__new__(World)
        twin.__dict__.update(self.__dict__)
        twin.scheduler = Scheduler(SchedulerConfig())
        twin.told, twin.reasons = {}, {}
        twin.run([Changed(None, item) for item in self.objects.values()])
        return twin


DEFAULT = queue("default")
LICENCES = {"cpu": "1", f"{names.DEVICE_PREFIX}licence": "2"}


def refused_groups(world: World) -> dict[str, float]:
    """The metric of refused groups, by reason."""
    metrics = Metrics(world.scheduler, profile="fluence")
    metrics.refresh()
    found = re.findall(r'^fluence_refused_groups\{reason="(\w+)"\} (\S+)$', metrics.text().decode(), re.M)
    return {reason: float(count) for reason, count in found if float(count)}


class TestWithoutQueues:
    def test_nothing_is_limited_and_nothing_is_written(self) -> None:
        world = World(*(member(f"p{number}", "any") for number in range(20)))
        assert len(world.bound) == 16
        assert world.scheduler.state.queue.quotas is None
        world.wait(MINUTE)
        assert world.written == 0

    def test_the_last_queue_goes_and_everything_is_as_before(self) -> None:
        physics = queue("physics", limit={"cpu": 2})
        world = World(physics, *(member(f"p{number}", "physics") for number in range(5)))
        assert len(world.bound) == 2
        world.put(member("unknown", "nowhere"))
        assert world.told["unknown"] == "Queue 'nowhere' does not exist: use one of physics"
        world.remove(world.objects["QueueObject", "physics"])
        world.wait(SETTLED)
        assert world.scheduler.state.queue.quotas is None
        assert len(world.bound) == 6
        world.put(*(member(f"q{number}", "nowhere") for number in range(3)))
        assert len(world.bound) == 9

    def test_those_that_wait_keep_their_places_and_promises_when_the_last_queue_goes(self) -> None:
        limit = {names.DURATION: "1h"}
        shares = [queue("a", weight=1), queue("b", weight=9)]
        world = World(*shares, *(member(f"a{n}", "a", cpu="4", annotations=limit) for n in range(4)))
        assert len(world.bound) == 4
        world.put(*(member(f"{name}-late", name, cpu="4", annotations=limit) for name in "ab"))
        records = list(world.scheduler.state.queue.pending)
        assert [record.key for record in records] == ["default/pod:b-late", "default/pod:a-late"]
        before = {record.key: record.no_later_than for record in records}
        assert None not in before.values()
        world.remove(*(world.objects["QueueObject", name] for name in "ab"))
        world.wait(SETTLED)
        records = list(world.scheduler.state.queue.pending)
        assert {record.key: record.no_later_than for record in records} == before
        assert [record.key for record in records] == ["default/pod:b-late", "default/pod:a-late"]
        assert not any(record.broken for record in records)


class TestQuotas:
    def test_a_job_beyond_the_limit_waits_with_the_reason_and_starts_when_quota_is_free(self) -> None:
        first = [member(f"p{number}", "physics") for number in range(2)]
        world = World(queue("physics", limit={"cpu": 2}), *first, member("late", "physics"))
        assert world.bound == {"p0", "p1"}
        assert world.told["late"] == "Waiting for queue physics: cpu 2 of 2 in use"
        assert world.reasons["late"] == "WaitingForTurn"
        world.remove(world.objects["Pod", "default/p0"])
        assert world.bound == {"p1", "late"}

    def test_the_reason_says_until_when_the_quota_is_in_use(self) -> None:
        """To the minute, in the time of the day."""
        limited = {names.DURATION: "10m"}
        world = World(queue("physics", limit={"cpu": 2}))
        world.put(member("runs", "physics", cpu="2", annotations=limited))
        world.put(member("late", "physics", annotations=limited))
        assert world.told["late"] == "Waiting for queue physics: cpu 2 of 2 in use until 12:10 UTC"

    @pytest.mark.parametrize(
        ("limit", "message"),
        [
            ({"cpu": "1500m"}, "cpu 1 of 1500m in use, 1 requested"),
            ({"memory": "100Mi"}, "memory 64Mi of 100Mi in use, 64Mi requested"),
            ({"nvidia.com/gpu": 3}, "nvidia.com/gpu 2 of 3 in use, 2 requested"),
            ({"pods": 1}, "pods 1 of 1 in use"),
        ],
    )
    def test_every_resource_counts_in_its_own_unit(self, limit: dict[str, Any], message: str) -> None:
        requests = {"cpu": "1", "memory": "64Mi", "nvidia.com/gpu": "2"}
        pods = [_asking(member(f"p{number}", "physics"), requests) for number in range(2)]
        world = World(*(node(f"g{n}", offers={"nvidia.com/gpu": "8"}) for n in range(2)))
        world.put(queue("physics", limit=limit))
        world.wait(SETTLED)
        world.put(*pods)
        assert world.bound == {"p0"}
        assert world.told["p1"] == f"Waiting for queue physics: {message}"

    def test_a_limit_of_the_parent_holds_for_all_queues_below(self) -> None:
        world = World(queue("top", limit={"cpu": 3}), queue("a", parent="top"), queue("b", parent="top"))
        world.put(*(member(f"{name}{n}", name) for name in "ab" for n in range(3)))
        assert len(world.bound) == 3
        assert set(world.told.values()) == {"Waiting for queue top: cpu 3 of 3 in use"}

    def test_a_gang_counts_as_the_sum_of_its_pods(self) -> None:
        world = World(queue("physics", limit={"cpu": 3}))
        label = {names.GROUP_SIZE: "4"}
        gang = [
            member(f"g{n}", "physics", labels={names.GROUP_LABEL: "g"}, annotations=label) for n in range(4)
        ]
        world.put(*gang)
        assert world.bound == set()
        assert "requests cpu 4, and the limit of queue physics is 3" in world.told["g0"]
        assert world.reasons["g0"] == "SchedulerError"

    def test_a_user_is_the_namespace_whatever_an_annotation_says(self) -> None:
        world = World(queue("default", perUser={"running": 1}))
        pods = [
            member(f"{space}{n}", namespace=space, annotations={names.USER: f"made-up-{n}"})
            for space in ("chem", "ops")
            for n in range(3)
        ]
        world.put(*pods)
        assert len(world.bound) == 2
        assert {name[:-1] for name in world.bound} == {"chem", "ops"}
        assert "chem has jobs 1 of 1 in use" in "".join(world.told.values())

    def test_a_member_that_is_made_anew_finds_the_quota_of_the_one_that_ended(self) -> None:
        """Or a gang whose pod fails would wait for itself, for ever."""
        spec = {"limit": {"cpu": 2}, "perUser": {"running": 1}}
        world = World(queue("physics", **spec))
        world.put(*(in_gang(f"g{n}", 2) for n in range(2)))
        assert world.bound == {"g0", "g1"}
        failed = world.objects["Pod", "default/g0"]
        world.put(_over(failed, "Failed"))
        world.put(in_gang("g2", 2))
        world.wait(SECOND)
        assert world.bound == {"g1", "g2"}, world.told

    def test_a_lower_limit_ends_nothing_and_starts_nothing(self) -> None:
        world = World(queue("physics", limit={"cpu": 3}))
        world.put(*(member(f"p{number}", "physics") for number in range(5)))
        assert len(world.bound) == 3
        world.put(queue("physics", limit={"cpu": 2}))
        world.wait(SETTLED)
        world.wait(MINUTE)
        assert len(world.bound) == 3
        for name in sorted(world.bound)[:2]:
            world.remove(world.objects["Pod", f"default/{name}"])
        assert len(world.bound) == 2

    def test_a_stopped_queue_starts_nothing(self) -> None:
        world = World(queue("physics", stop="hold"), member("a", "physics"))
        assert world.bound == set()
        assert world.told["a"] == "Waiting for queue physics, which is stopped"
        assert world.reasons["a"] == "WaitingForTurn"

    def test_work_that_waits_for_quota_preempts_nothing(self) -> None:
        world = World(queue("low"), queue("high", limit={"cpu": 1}))
        world.put(*(member(f"l{n}", "low", cpu="4", priority=0) for n in range(4)))
        world.put(member("h0", "high", priority=10))
        assert world.wait(SECOND).preemptions or world.scheduler.state.queue.records
        decisions = world.put(member("h1", "high", cpu="2", priority=10))
        ended = [pod for order in decisions.preemptions for pod in order.pods]
        assert not ended
        assert "requests cpu 2" in world.told["h1"]


class TestDevices:
    def test_a_queue_limits_devices_of_no_node(self) -> None:
        world = World(config("resources: [{type: licence, name: solver, count: 8}]"))
        world.put(queue("physics", limit={"licence": 3}), queue("chem"))
        world.wait(SETTLED)
        world.put(*(_asking(member(f"p{n}", "physics"), LICENCES) for n in range(2)))
        world.put(_asking(member("c", "chem"), LICENCES))
        assert world.bound == {"p0", "c"}
        assert world.told["p1"] == "Waiting for queue physics: licence 2 of 3 in use, 2 requested"
        world.wait(11 * SECOND)
        assert world.status("physics")["used"]["licence"] == "2"
        assert world.condition("physics", "Valid")[1] == "Valid"

    def test_devices_of_no_node_weigh_in_the_share(self) -> None:
        """Two of eight licences are more of the cluster than one of sixteen cores."""
        world = World(config("resources: [{type: licence, name: solver, count: 8}]"), queue("physics"))
        world.put(_asking(member("p", "physics"), LICENCES))
        world.wait(MINUTE)
        ((used, _),) = world.scheduler.state.cluster_queues.usage(world.now).values()
        assert used == pytest.approx(60 * 2 / 8, rel=0.01)

    @pytest.mark.parametrize("model", ["", "device.attributes['d'].model == 'a'"])
    def test_a_queue_limits_devices_of_a_class_whatever_a_claim_selects(self, model: str) -> None:
        gpus = (device_class("gpu", "device.driver == 'd'"), slice_of("n0", "d", "a", "a", "a", "a"))
        world = World(*gpus, claim("one", "gpu", 2, *filter(None, (model,))))
        world.put(queue("default", limit={"dra/gpu": 3}))
        world.wait(SETTLED)
        world.put(wants("p0", "one"), wants("p1", "one"))
        assert world.started == {"p0"}
        assert world.told["p1"] == "Waiting for queue default: dra/gpu 2 of 3 in use, 2 requested"
        world.wait(MINUTE)
        ((used, _),) = world.scheduler.state.cluster_queues.usage(world.now).values()
        assert used == pytest.approx(60 * 2 / 4, rel=0.01)

    def test_a_class_whose_devices_belong_to_no_node_counts_for_its_queue(self) -> None:
        gpus = (device_class("gpu", "device.driver == 'd'"), slice_of(None, "d", "a", "a", "a", "a"))
        world = World(*gpus, claim("one", "gpu", 2), queue("default", limit={"dra/gpu": 3}))
        world.put(wants("p0", "one"), wants("p1", "one"))
        assert world.started == {"p0"}


class TestTurns:
    def test_a_pod_whose_turn_is_later_because_of_shares_is_told_so(self) -> None:
        world = World(queue("physics"), queue("chem"))
        world.put(*(member(f"p{n}", "physics", cpu="4") for n in range(4)))
        world.put(member("early", "physics", age=20, cpu="2"))
        world.put(member("late", "chem", age=10, cpu="2"))
        world.wait(2 * MINUTE)
        told = "physics has used 2.0 times its share this week, chem 0.0 times"
        assert told in world.told["early"]
        assert "share" not in world.told["late"]
        assert world.reasons["early"] == "Unschedulable"  # more nodes would help
        record = world.scheduler.state.queue.records["default/pod:early"]
        report = world.scheduler.state.reports.report(record, world.now)  # type: ignore[arg-type]
        assert told in texts(report.reasons)

    def test_work_within_a_guarantee_comes_first(self) -> None:
        """Before older work of a queue that has used nothing, and not before a higher priority."""
        world = World(queue("a", guaranteed={"cpu": 8}), queue("b"))
        world.put(*(member(f"a{n}", "a", cpu="4") for n in range(1)))
        world.put(*(member(f"f{n}", "b", cpu="4") for n in range(3)))
        world.put(member("b-old", "b", age=30, cpu="4"))
        world.put(member("a-new", "a", age=10, cpu="4"), member("a-beyond", "a", age=40, cpu="4"))
        world.put(member("b-high", "b", cpu="4", priority=10))
        order = [record.key.rpartition(":")[2] for record in world.scheduler.state.queue.pending]
        assert order.index("b-high") == 0
        # One of the two of a is within 8 cores, beside the one that runs.
        assert {order.index("a-beyond"), order.index("b-old")} == {1, 2}
        assert order.index("a-beyond") == 1
        world.remove(world.objects["Pod", "default/f0"])
        world.remove(world.objects["Pod", "default/f1"])
        assert "b-high" in world.bound
        assert "a-beyond" in world.bound


class TestWhoMayUseWhich:
    def world(self) -> World:
        queues = (
            queue("physics", namespaces={"matchLabels": {"team": "physics"}}),
            queue("chem", namespaces={"matchLabels": {"team": "chem"}}),
        )
        return World(namespace("phys", team="physics"), namespace("chem", team="chem"), *queues)

    def test_a_queue_that_is_closed_to_the_namespace_refuses_with_one_that_is_open(self) -> None:
        world = self.world()
        world.put(member("mine", "physics", namespace="phys"), member("theirs", "physics", namespace="chem"))
        assert world.bound == {"mine"}
        assert world.told["theirs"] == "Queue 'physics' is closed to its namespace: use one of chem"
        assert world.reasons["theirs"] == "SchedulerError"

    def test_an_unknown_queue_refuses_with_the_nearest_that_is_open(self) -> None:
        world = self.world()
        world.put(member("a", "chemm", namespace="chem"), member("b", "chemm", namespace="phys"))
        assert world.told["a"] == "Queue 'chemm' does not exist: did you mean chem?"
        assert world.told["b"] == "Queue 'chemm' does not exist: use one of physics"

    def test_two_jobs_of_one_shape_are_told_different_things(self) -> None:
        """One is refused by its queue, the other waits for quota."""
        world = World(queue("physics", limit={"cpu": 1}))
        world.put(member("runs", "physics"), member("waits", "physics"), member("lost", "nowhere"))
        assert world.told["waits"] == "Waiting for queue physics: cpu 1 of 1 in use"
        assert "does not exist" in world.told["lost"]

    def test_labels_of_pods_do_not_open_a_queue_and_labels_of_namespaces_do(self) -> None:
        world = self.world()
        world.put(namespace("new"), member("a", "physics", namespace="new", labels={"team": "physics"}))
        assert world.bound == set()
        world.put(namespace("new", team="physics"))
        assert world.bound == {"a"}
        world.put(namespace("new"), member("b", "physics", namespace="new", cpu="2"))
        assert world.bound == {"a"}
        assert "closed" in world.told["b"]

    def test_work_without_a_queue_goes_to_default(self) -> None:
        world = self.world()
        world.put(member("a", namespace="phys"))
        assert "Queue 'default' does not exist" in world.told["a"]
        world.put(DEFAULT)
        world.wait(SETTLED)
        assert world.bound == {"a"}
        (record,) = world.scheduler.state.queue.records.values()
        assert (record.job.queue, record.job.named_queue) == ("default", "")

    def test_a_job_is_not_submitted_again_because_another_queue_takes_it(self) -> None:
        world = World(queue("top"), queue("top-default", parent="top", limit={"cpu": 1}))
        world.put(member("a", "top"), member("b", "top"))
        record = world.scheduler.state.queue.records["default/pod:b"]
        world.put(member("b", "top"))
        assert world.scheduler.state.queue.records["default/pod:b"] is record
        assert record.job.queue == "top-default"


class TestTheTree:
    def test_an_invalid_tree_changes_nothing_and_each_object_says_why(self) -> None:
        world = World(queue("a", limit={"cpu": 1}), queue("b"), queue("c"), member("one", "a"))
        world.wait(11 * SECOND)
        assert world.condition("a", "Valid") == ("True", "Valid", "the queues are valid")
        world.put(queue("a", parent="b", limit={"cpu": 9}), queue("b", parent="a"))
        world.wait(SETTLED)
        world.put(member("two", "a"))
        world.wait(11 * SECOND)
        assert world.bound == {"one"}
        for name in "ab":
            assert world.condition(name, "Valid")[:2] == ("False", "Invalid")
            assert "is its own ancestor" in world.condition(name, "Valid")[2]
            assert world.condition(name, "Active")[0] == "False"
        assert world.condition("c", "Valid")[:2] == ("True", "OthersInvalid")
        assert "a, b" in world.condition("c", "Valid")[2]
        assert world.condition("c", "Active")[0] == "True"
        world.put(queue("b"))
        world.wait(SETTLED)
        assert world.bound == {"one", "two"}

    def test_an_object_that_cannot_be_read_says_why(self) -> None:
        world = World(DEFAULT, queue("bad", limit={"cpu": -1}))
        world.wait(11 * SECOND)
        assert world.condition("bad", "Valid")[:2] == ("False", "Invalid")
        assert "negative" in world.condition("bad", "Valid")[2]
        assert world.condition("default", "Valid")[1] == "OthersInvalid"
        world.put(member("a"))
        assert world.bound == {"a"}

    def test_of_many_queues_only_the_changed_one_is_parsed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = World(*(queue(f"q{number}") for number in range(50)), DEFAULT)
        world.wait(11 * SECOND)  # the statuses are written, so all objects are new ones
        parsed: list[str] = []
        parse = QueueObject.queue

        def noted(item: QueueObject) -> Queue:
            parsed.append(item.name)
            return parse(item)

        monkeypatch.setattr(QueueObject, "queue", noted)
        world.put(queue("q7", limit={"cpu": 1}))
        world.wait(SETTLED)
        assert parsed == ["q7"]
        quotas = world.scheduler.state.queue.quotas
        assert quotas is not None and quotas.tree.queues["q7"].limit

    def test_refused_jobs_of_a_namespace_share_the_search_for_open_queues(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Any user can have thousands of jobs refused."""
        closed = {"matchLabels": {"team": "others"}}
        world = World(DEFAULT, *(queue(f"q{number}", namespaces=closed) for number in range(50)))
        asked: list[str] = []
        admits = QueueTree.admits

        def noted(tree: QueueTree, name: str, labels: Mapping[str, str]) -> bool:
            asked.append(name)
            return admits(tree, name, labels)

        monkeypatch.setattr(QueueTree, "admits", noted)
        world.put(*(member(f"p{number}", f"q{number}") for number in range(50)))
        assert all("closed" in text or "not open" in text for text in world.told.values()), world.told
        assert len(asked) < 3 * 50

    def test_classes_that_no_queue_defines_are_said_not_to_count(self) -> None:
        world = World(queue("default", limit={"nvidia.com/gpu@a100": 4}))
        world.wait(11 * SECOND)
        status, reason, message = world.condition("default", "Valid")
        assert (status, reason) == ("True", "NotCounted")
        assert "nvidia.com/gpu@a100" in message

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("cpus", "did you mean cpu?"),
            ("gpu", "did you mean nvidia.com/gpu?"),
            ("deviceclass/x", "did you mean dra/x?"),
            ("nodes", "use a resource that pods request, such as cpu, memory or pods"),
        ],
    )
    @pytest.mark.parametrize("field", ["limit", "guaranteed", "perUser"])
    def test_a_name_that_nothing_counts_is_said_not_to_count(self, field: str, name: str, hint: str) -> None:
        world = World(node("g", offers={"nvidia.com/gpu": "8"}), queue("default", **{field: {name: 1}}))
        world.wait(11 * SECOND)
        assert world.condition("default", "Valid")[:2] == ("True", "NotCounted")
        assert f"spec.{field}: {name} is not counted: {hint}" in world.condition("default", "Valid")[2]

    def test_names_that_pods_request_count_whether_a_node_offers_them_or_not(self) -> None:
        counted = ("cpu", "memory", "pods", "ephemeral-storage", "hugepages-2Mi", "amd.com/gpu", "dra/gpu")
        world = World(queue("default", limit=dict.fromkeys(counted, 1)))
        world.wait(11 * SECOND)
        assert world.condition("default", "Valid")[:2] == ("True", "Valid")

    def test_guarantees_above_the_capacity_are_reported(self) -> None:
        world = World(queue("a", guaranteed={"cpu": 10}), queue("b", guaranteed={"cpu": 10}), queue("c"))
        world.wait(11 * SECOND)
        for name in "ab":
            assert world.condition(name, "Valid") == (
                "True",
                "AboveCapacity",
                "spec.guaranteed: cpu: all guarantees together are more than the 16 of the cluster",
            )
        assert world.condition("c", "Valid")[1] == "Valid"
        world.put(node("more"))
        world.wait(11 * SECOND)
        assert world.condition("a", "Valid")[1] == "Valid"

    def test_settings_that_count_before_a_field_are_reported(self) -> None:
        rules = {"a": QueueRules(default_limit=MINUTE, enforced=True), "": QueueRules(max_limit=MINUTE)}
        times = {"default": "1h", "max": "2h", "enforce": "none", "grace": "5s"}
        world = World(
            queue("a", time=times), queue("default", time=times), queue("b", time=times), rules=rules
        )
        world.wait(11 * SECOND)
        settings, fields = "default-durations, enforce-limits", "default, spec.time.enforce, spec.time.grace"
        message = f"the settings {settings} count instead of spec.time.{fields}: remove one of the two"
        assert world.condition("a", "Valid") == ("True", "Overridden", message)
        assert "max-durations" in world.condition("default", "Valid")[2]
        assert world.condition("b", "Valid")[1] == "Valid"

    def test_a_file_of_queues_that_is_applied_one_by_one_counts_once(self) -> None:
        world = World(member("a", "leaf", cpu="4"))
        for item in (queue("leaf", parent="top"), queue("top"), DEFAULT):
            world.put(item)
            world.wait(300)
        world.wait(SETTLED)
        assert world.scheduler.state.queue.quotas is not None
        assert not [
            step
            for step in world.scheduler.state.queue.records["default/pod:a"].story
            if step.state is JobState.UNSCHEDULABLE
        ]

    def test_a_queue_is_deleted_while_its_jobs_run(self) -> None:
        physics = queue("physics", limit={"cpu": 1})
        world = World(DEFAULT, physics, member("runs", "physics"), member("waits", "physics"))
        world.remove(world.objects["QueueObject", "physics"])
        world.wait(SETTLED)
        assert world.bound == {"runs"}
        assert "does not exist" in world.told["waits"]
        world.remove(world.objects["Pod", "default/runs"])
        world.put(member("other"))
        assert world.bound == {"other"}


class TestRestarts:
    def test_what_runs_counts_in_its_leaf_after_a_restart(self) -> None:
        world = World(queue("physics", limit={"cpu": 3}))
        world.put(*(member(f"p{number}", "physics") for number in range(5)))
        assert len(world.bound) == 3
        twin = world.restarted()
        twin.wait(SECOND)
        assert len(twin.bound) == 3
        assert "Waiting for queue physics: cpu 3 of 3 in use" in twin.told.values()

    def test_a_changed_annotation_does_not_move_running_work_into_a_closed_queue(self) -> None:
        """Where it would take the quota of others, or count nowhere."""
        mine = queue("mine", namespaces={"matchLabels": {"team": "me"}}, limit={"cpu": 2})
        theirs = queue("theirs", namespaces={"matchLabels": {"team": "them"}}, limit={"cpu": 2})
        world = World(namespace("me", team="me"), namespace("them", team="them"), mine, theirs)
        world.put(*(member(f"m{n}", "mine", namespace="me") for n in range(2)))
        for name, word in (("m0", "theirs"), ("m1", "nowhere")):
            pod = world.objects["Pod", f"me/{name}"]
            world.put(_annotated(pod, word))
        twin = world.restarted()
        twin.put(member("t0", "theirs", namespace="them", cpu="2"), member("m2", "mine", namespace="me"))
        assert twin.bound == {"m0", "m1", "t0"}
        assert twin.told["m2"] == "Waiting for queue mine: cpu 2 of 2 in use"

    def test_a_changed_annotation_moves_no_running_work_to_another_open_queue(self) -> None:
        """The queue of running work is in the status of its pods, which users cannot write."""
        world = World(queue("a", limit={"cpu": 2}), queue("b", limit={"cpu": 2}))
        world.put(*(member(f"a{n}", "a") for n in range(2)))
        assert world.bound == {"a0", "a1"}
        for name in ("a0", "a1"):
            world.put(_annotated(world.objects["Pod", f"default/{name}"], "b"))
        twin = world.restarted()
        twin.put(member("a2", "a"), member("b0", "b", cpu="2"))
        assert twin.bound == {"a0", "a1", "b0"}
        assert twin.told["a2"] == "Waiting for queue a: cpu 2 of 2 in use"

    def test_running_work_counts_where_it_started_though_its_queue_was_closed_since(self) -> None:
        world = World(namespace("me", team="me"), queue("a", limit={"cpu": 2}), queue("b"))
        world.put(member("a0", "a", namespace="me", cpu="2"))
        world.put(queue("a", limit={"cpu": 2}, namespaces={"matchLabels": {"team": "them"}}))
        world.wait(SETTLED)
        twin = world.restarted()
        twin.wait(11 * SECOND)
        assert twin.status("a")["used"]["cpu"] == "2"

    def test_the_queue_is_written_on_pods_only_where_there_is_a_choice(self) -> None:
        """It costs one write for each pod."""
        for queues, conditions in (((), 0), ((DEFAULT,), 0), ((DEFAULT, queue("b")), 1)):
            world = World(*queues, member("one"))
            assert len(world.objects["Pod", "default/one"].status.conditions or ()) == conditions

    def test_usage_is_written_and_restored(self) -> None:
        world = World(DEFAULT, queue("other"), member("a", cpu="4"))
        for _ in range(10):
            world.wait(MINUTE)
        (used,) = world.status("default")["usage"]["users"].values()
        assert float(used) == pytest.approx(0.25 * 540, rel=0.15)
        twin = world.restarted()
        shares = twin.scheduler.state.queue.turns
        assert shares is not None
        assert shares.shares.usage(twin.now)["default", "default"] == pytest.approx(0.25 * 600, rel=0.01)

    def test_usage_survives_a_fault_of_the_scheduler(self) -> None:
        world = World(DEFAULT, member("a", cpu="4"))
        world.wait(10 * MINUTE)
        before = world.scheduler.state.cluster_queues.usage(world.now)
        world.scheduler._rebuild(world.now)
        world.wait(0)
        after = world.scheduler.state.cluster_queues.usage(world.now)
        assert after["default", "default"][0] == pytest.approx(before["default", "default"][0], rel=1e-6)
        assert before["default", "default"][0] > 100

    @pytest.mark.parametrize("value", ["-5", "nan", "inf", "1e300", "x", "9" * 100])
    def test_forged_usage_is_not_believed(self, value: str) -> None:
        usage = {"at": "2026-01-01T00:00:00Z", "users": {"default": value, "fine": "7"}}
        forged = QueueObject(metadata=DEFAULT.metadata, spec={}, status={"usage": usage})
        world = World(forged)
        found = world.scheduler.state.cluster_queues.usage(world.now)
        assert set(found) == {("default", "fine")}

    @pytest.mark.parametrize(
        "status", [[], "x", {"usage": []}, {"usage": {"at": 3, "users": {}}}, {"conditions": [1]}]
    )
    def test_a_status_of_any_shape_is_replaced(self, status: Any) -> None:
        world = World(QueueObject(metadata=DEFAULT.metadata, spec={}, status=status), member("a"))
        world.wait(11 * SECOND)
        assert world.bound == {"a"}
        assert world.condition("default", "Active")[0] == "True"

    def test_the_last_valid_tree_stays_in_force_over_a_restart(self) -> None:
        world = World(queue("a", limit={"cpu": 1}), queue("b"), member("one", "a"))
        world.put(queue("a", parent="b", limit={"cpu": 9}), queue("b", parent="a"))
        world.wait(SETTLED)
        world.wait(11 * SECOND)
        assert world.status("a")["inForce"] == {"limit": {"cpu": 1}}
        twin = world.restarted()
        twin.put(member("two", "a"))
        assert twin.bound == {"one"}
        assert twin.told["two"] == "Waiting for queue a: cpu 1 of 1 in use"
        twin.put(queue("b"))
        twin.wait(SETTLED)
        assert twin.bound == {"one", "two"}
        twin.wait(11 * SECOND)
        assert "inForce" not in twin.status("a")

    def test_an_invalid_tree_after_a_restart_leaves_the_valid_queues_in_force(self) -> None:
        world = World(queue("a", limit={"cpu": 1}), queue("b", parent="gone"), queue("c", parent="b"))
        world.put(member("one", "a"), member("two", "a"), member("three", "c"))
        assert world.bound == {"one"}
        assert "does not exist" in world.told["three"]


class TestStatuses:
    def test_a_status_says_what_is_used_and_how_many_wait(self) -> None:
        world = World(queue("top"), queue("a", parent="top", limit={"cpu": 2}, guaranteed={"cpu": 1}))
        world.put(*(member(f"p{number}", "a") for number in range(5)))
        world.wait(11 * SECOND)
        for name in ("top", "a"):
            status = world.status(name)
            assert (status["running"], status["waiting"]) == (2, 3)
            assert status["used"]["cpu"] == "2"
            assert status["entitled"] == "cpu 1"
        assert world.status("a")["share"] == "1.00"

    def test_a_status_says_what_is_borrowed(self) -> None:
        """What is used beyond the guarantees of a queue and the queues below it; what nobody is guaranteed
        cannot be borrowed."""
        world = World(queue("top"), queue("a", parent="top", guaranteed={"cpu": 1}), queue("b", parent="top"))
        world.put(*(member(f"p{number}", "a") for number in range(3)), member("q", "b"))
        world.wait(11 * SECOND)
        assert {name: world.status(name)["borrowed"] for name in ("top", "a", "b")} == {
            "top": "cpu 3",
            "a": "cpu 2",
            "b": "cpu 1",
        }

    def test_statuses_are_written_when_something_changed_and_rarely(self) -> None:
        world = World(DEFAULT)
        world.wait(11 * SECOND)
        world.wait(11 * SECOND)
        before = world.written
        for _ in range(60):
            world.wait(11 * SECOND)
        assert world.written == before
        world.put(member("a"))
        for _ in range(20):
            world.wait(SECOND)
        assert world.written - before <= 2
        for _ in range(600):
            world.wait(SECOND)
        assert world.written - before <= 14

    def test_an_idle_scheduler_is_not_woken(self) -> None:
        world = World(DEFAULT)
        world.wait(11 * SECOND)
        world.wait(11 * SECOND)
        assert world.scheduler.state.cluster_queues.next_due() is None


def test_every_way_in_which_a_queue_refuses_work_is_counted() -> None:
    world = World(
        DEFAULT,
        queue("science"),
        queue("physics", parent="science", limit={"cpu": 2}),
        queue("chem", namespaces={"matchLabels": {"team": "chem"}}),
        queue("short", time={"max": "1m"}),
        namespace("default"),
    )
    world.put(
        member("a", "nowhere"),
        member("b", "science"),
        member("c", "chem"),
        member("d", "chem"),
        member("e", "physics", cpu="3"),
        member("f", "short", annotations={names.DURATION: "1h"}),
        member("g", "physics"),
    )
    assert refused_groups(world) == {
        "UnknownQueue": 1,
        "QueueIsInner": 1,
        "QueueClosed": 2,
        "QuotaTooSmall": 1,
        "LimitAboveQueue": 1,
    }
    assert world.bound == {"g"}


def _asking(pod: Pod, requests: dict[str, str]) -> Pod:
    (container,) = pod.spec.containers or []
    asked = replace(container, resources=replace(container.resources, requests=requests))
    return replace(pod, spec=replace(pod.spec, containers=[asked]))


def _over(pod: Pod, phase: str) -> Pod:
    return replace(pod, status=replace(pod.status, phase=phase))


def _annotated(pod: Pod, of: str) -> Pod:
    notes = {**(pod.metadata.annotations or {}), names.QUEUE: of}
    return replace(pod, metadata=replace(pod.metadata, annotations=notes))
