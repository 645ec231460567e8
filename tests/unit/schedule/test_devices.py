"""Devices that belong to no node: given with nodes or not at all, planned in time, found again, shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner
from msgspec.structs import replace

from fluence import names
from fluence.commands.resources import check
from fluence.messages.rendering import text
from fluence.model.job_state import JobState
from fluence.model.meta import ConfigMap, ObjectMeta
from fluence.model.pod import (
    Container,
    EnvVar,
    EnvVarSource,
    ObjectFieldSelector,
    Pod,
    ResourceRequirements,
)
from fluence.model.reason import Code, Reason
from fluence.schedule.events import Bind, BindOutcome, BindResult, Changed
from fluence.schedule.settings import SchedulerSettings
from tests.unit.cluster.build import bound, ended, node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NOW = int(kit.T0.timestamp() * 1000)
QPUS = """
resources:
- {type: qpu, name: ibm_fez, attributes: {vendor: ibm, region: east}, with: [{type: qubit, count: 156}]}
- {type: qpu, name: ankaa, attributes: {vendor: rigetti, region: west}, with: [{type: qubit, count: 84}]}
- {type: licence, name: solver, count: 3}
"""
ONE = "resources: [{type: qpu, name: fez, attributes: {vendor: ibm}, with: [{type: qubit, count: 156}]}]"


def config(text: str) -> ConfigMap:
    return ConfigMap(
        metadata=ObjectMeta(name="fluence-resources", namespace="kube-system", uid="u"),
        data={"resources.yaml": text},
    )


class World(Driver):
    """A cluster with devices."""

    def __init__(self, text: str = QPUS, *nodes: str, cpu: str = "4", **more: Any) -> None:
        super().__init__(native=True, **more)
        self.now = NOW
        self.declare(text)
        for name in nodes or ("n1", "n2"):
            self.set_node(node(name, cpu=cpu))

    def declare(self, text: str) -> None:
        self.handle(Changed(None, config(text)))

    def run(self, *pods: Pod, after: int = 0) -> dict[str, Bind]:
        """Submit, run a cycle, and let all binds succeed."""
        for pod in pods:
            self.set_pod(pod)
        decisions = self.cycle(self.now + after)
        binds = {bind.pod.metadata.name: bind for some in decisions.binds for bind in some}
        for bind in binds.values():
            self.told(BindResult(bind, BindOutcome.BOUND), self.now)
            self.set_pod(as_bound(bind))
        return binds

    def end(self, *pods: Pod | Bind) -> None:
        for each in pods:
            self.set_pod(ended(as_bound(each) if isinstance(each, Bind) else each))

    def why(self, key: str) -> tuple[Reason, ...]:
        report = self.reports.report(self.pod_sets.by_key[key], self.now)
        return tuple(report.reasons)


def as_bound(bind: Bind) -> Pod:
    return bind.carried_out(bound(bind.pod, bind.node))


def asks(name: str, *, cpu: str | None = "1", limit: int | None = None, **more: Any) -> Pod:
    """``asks("a", qpu=1, vendor="ibm")``: units by type; `require-` by attribute."""
    types = {key: more.pop(key) for key in list(more) if key in ("qpu", "qubit", "licence", "qpus", "cell")}
    said = dict(more.pop("annotations", {}))
    for key in [key for key in more if key in ("vendor", "region", "backend")]:
        said[f"{names.REQUIRE}{key}"] = more.pop(key)
    if limit is not None:
        said[names.DURATION] = f"{limit}s"
    pod = kit.pod(name, annotations=said, **more)
    requests = {names.DEVICE_PREFIX + type_: str(n) for type_, n in types.items()}
    if cpu is not None:
        requests["cpu"] = cpu
    box = Container(name="c", resources=ResourceRequirements(requests=requests))
    return replace(pod, spec=replace(pod.spec, containers=[box]))


def gang(count: int, name: str = "g", **more: Any) -> list[Pod]:
    said = {kit.SIZE: str(count), **more.pop("annotations", {})}
    return [asks(f"{name}-{i}", labels={kit.GROUP: name}, annotations=said, **more) for i in range(count)]


def backend(bind: Bind) -> str | None:
    return bind.annotations.get(names.BACKEND)


def test_a_pod_gets_a_node_and_a_backend_and_is_told_its_attributes() -> None:
    bind = World().run(asks("a", qpu=1))["a"]
    assert backend(bind) == "ibm_fez"  # the first of the document
    assert bind.annotations[f"{names.ATTRIBUTE}vendor"] == "ibm"
    assert bind.annotations[f"{names.ATTRIBUTE}region"] == "east"
    assert names.JOBID in bind.annotations


def test_pods_that_ask_for_no_device_are_told_of_none() -> None:
    bind = World().run(asks("a"))["a"]
    assert not {key for key in bind.annotations if key.startswith((names.BACKEND, names.ATTRIBUTE))}


def test_a_backend_is_given_to_one_gang_at_a_time_and_the_next_waits_for_its_end() -> None:
    world = World(ONE)
    first = world.run(asks("a", qpu=1, limit=60))["a"]
    assert world.run(asks("b", qpu=1, limit=60), after=10) == {}
    assert world.run(after=2_000) == {}
    record = world.pod_sets.by_key["default/pod:b"]
    assert record.state is JobState.RESERVED
    assert record.no_later_than == NOW + 60_000
    (reason,) = world.why("default/pod:b")
    assert reason == Reason.of(Code.DEVICE_BUSY, type="qpu", wanted=1, backends=("fez",), until=NOW + 60_000)
    world.end(first)
    assert backend(world.run(after=5_000)["b"]) == "fez"


def test_work_without_a_device_backfills_around_those_that_wait_for_one() -> None:
    world = World(ONE, "n1", cpu="2")
    world.run(asks("a", qpu=1, limit=60))
    assert world.run(asks("b", qpu=1, cpu="2", limit=60), asks("c", limit=600)) == {}  # it would delay b
    assert world.run(asks("d", limit=30)).keys() == {"d"}


def test_nodes_and_devices_come_together_or_not_at_all() -> None:
    world = World(ONE, "n1", cpu="2")
    world.run(asks("busy", cpu="2", limit=60))
    assert world.run(asks("a", qpu=1)) == {}
    assert world.cluster.fit.free_units("qpu", {"fez"}) == 1  # not held while it waits for a node
    assert [each.code for each in world.why("default/pod:a")] == [Code.TOO_FEW_SEATS]


def test_a_gang_shares_what_its_largest_pod_asks_for() -> None:
    world = World(ONE)
    binds = world.run(*gang(3, qpu=1))
    assert len(binds) == 3
    assert {backend(bind) for bind in binds.values()} == {"fez"}


def test_per_pod_each_pod_has_a_device_of_its_own() -> None:
    world = World()
    binds = world.run(*gang(2, qpu=1, annotations={names.DEVICES: "per-pod"}))
    assert sorted(filter(None, map(backend, binds.values()))) == ["ankaa", "ibm_fez"]
    world = World()
    assert world.run(*gang(3, qpu=1, annotations={names.DEVICES: "per-pod"})) == {}
    (reason,) = world.why("default/g")
    assert reason == Reason.of(Code.DEVICE_TOO_FEW, type="qpu", wanted=3, most=2)


def test_only_the_pods_that_ask_are_told() -> None:
    said = {kit.SIZE: "2"}
    pods = [
        asks("g-0", labels={kit.GROUP: "g"}, annotations=said),
        asks("g-1", labels={kit.GROUP: "g"}, annotations=said, qpu=1),
    ]
    binds = World(ONE).run(*pods)
    assert (backend(binds["g-0"]), backend(binds["g-1"])) == (None, "fez")


def test_several_devices_are_lists_in_one_order() -> None:
    bind = World().run(asks("a", qpu=2))["a"]
    assert backend(bind) == "ibm_fez,ankaa"
    assert bind.annotations[f"{names.ATTRIBUTE}vendor"] == "ibm,rigetti"
    bind = World().run(asks("a", qpu=1, licence=2))["a"]
    assert backend(bind) == "solver,ibm_fez"


def test_units_of_a_pool_are_counted() -> None:
    world = World()
    assert len(world.run(asks("a", licence=2), asks("b", licence=2), asks("c", licence=1))) == 2


def test_parts_of_a_device_keep_others_from_having_it_whole_and_leave_room_for_other_parts() -> None:
    world = World(ONE)
    world.run(asks("a", qubit=100))
    assert world.run(asks("whole", qpu=1)) == {}
    assert world.run(asks("more", qubit=57)) == {}
    assert world.run(asks("less", qubit=56)).keys() == {"less"}


def test_parts_come_from_one_backend() -> None:
    world = World()
    assert backend(world.run(asks("a", qubit=100))["a"]) == "ibm_fez"
    assert backend(world.run(asks("b", qubit=80))["b"]) == "ankaa"
    assert world.run(asks("c", qubit=200)) == {}
    assert world.why("default/pod:c") == (Reason.of(Code.DEVICE_TOO_FEW, type="qubit", wanted=200, most=156),)


def test_a_type_and_a_part_of_it_ask_for_one_that_is_large_enough() -> None:
    assert backend(World().run(asks("a", qpu=1, qubit=100))["a"]) == "ibm_fez"
    world = World()
    world.run(asks("first", backend="ibm_fez", qpu=1))
    assert world.run(asks("a", qpu=1, qubit=100)) == {}  # ankaa is too small


def test_attributes_are_required_by_any_pod_of_the_group() -> None:
    assert backend(World().run(asks("a", qpu=1, vendor="rigetti"))["a"]) == "ankaa"
    first, second = gang(2, qpu=1)
    meta = replace(second.metadata, annotations={**second.annotations, f"{names.REQUIRE}region": "west"})
    binds = World().run(first, replace(second, metadata=meta))
    assert {backend(bind) for bind in binds.values()} == {"ankaa"}


def test_a_backend_is_pinned_by_its_name() -> None:
    assert backend(World().run(asks("a", qpu=1, backend="ankaa"))["a"]) == "ankaa"


def test_who_names_a_backend_and_asks_for_no_device_gets_one_unit_of_it() -> None:
    world = World()
    assert backend(world.run(asks("a", backend="ankaa"))["a"]) == "ankaa"
    assert world.run(asks("b", backend="ankaa")) == {}


def test_numbers_are_compared() -> None:
    at_least = {f"{names.AT_LEAST}qubits": "100"}
    assert backend(World().run(asks("a", qpu=1, annotations=at_least))["a"]) == "ibm_fez"
    at_most = {f"{names.AT_MOST}qubits": "100"}
    assert backend(World().run(asks("a", qpu=1, annotations=at_most))["a"]) == "ankaa"
    world = World()
    world.run(asks("a", qpu=1, annotations={f"{names.AT_LEAST}qubits": "many"}))
    assert world.groups.gang("default/pod:a").fault == Reason.of(
        Code.INVALID_DEVICES, key=f"{names.AT_LEAST}qubits", value="many"
    )


def test_what_does_not_exist_is_told_with_what_does() -> None:
    world = World()
    assert world.run(
        asks("type", qpus=1), asks("value", qpu=1, vendor="ibn"), asks("name", qpu=1, backend="ankka"),
        asks("both", qpu=1, vendor="ibm", region="west"), asks("key", licence=1, vendor="ibm"),
    ) == {}  # fmt: skip
    assert world.why("default/pod:type") == (
        Reason.of(Code.DEVICE_TYPE_UNKNOWN, type="qpus", types=("licence", "qpu", "qubit")),
    )
    assert world.why("default/pod:value") == (
        Reason.of(Code.DEVICE_VALUE_UNKNOWN, key="vendor", operator="=", value="ibn", nearest=("ibm",)),
    )
    assert world.why("default/pod:name")[0]["nearest"] == ("ankaa",)
    assert world.why("default/pod:both") == (
        Reason.of(Code.DEVICE_NONE_SUITS, type="qpu", terms=("region=west", "vendor=ibm")),
    )
    assert world.why("default/pod:key") == (Reason.of(Code.DEVICE_NO_ATTRIBUTE, key="vendor", keys=()),)


def test_without_a_document_it_is_said_that_there_are_no_devices() -> None:
    world = World("")
    assert world.run(asks("a", qpu=1)) == {}
    assert world.why("default/pod:a") == (Reason.of(Code.DEVICE_TYPE_UNKNOWN, type="qpu", types=()),)


def test_a_pod_that_asks_for_a_device_alone_has_a_core() -> None:
    world = World(QPUS, "n1", cpu="1")
    assert world.run(asks("a", cpu=None, qpu=1)).keys() == {"a"}
    assert world.run(asks("b", cpu=None, licence=1)) == {}


def test_what_nodes_advertise_of_devices_is_no_part_of_them() -> None:
    world = World(ONE, "n1")
    meta = node("n1")
    more = {**meta.status.allocatable, f"{names.DEVICE_PREFIX}qpu": "1k"}  # type: ignore[dict-item]
    world.set_node(replace(meta, status=replace(meta.status, allocatable=more)))
    assert len(world.run(asks("a", qpu=1), asks("b", qpu=1))) == 1


def test_limits_of_a_namespace_and_of_a_queue_count_devices() -> None:
    """Whatever users say of who they are: anybody may write the annotation."""
    rules = SchedulerSettings(
        user_device_limits={"batch/licence": 2}, queue_device_limits={"-/licence": 1}
    ).rules()
    world = World(QPUS, cpu="16", rules=rules)
    batch = {names.QUEUE: "batch"}
    ada, bob = {**batch, names.USER: "ada"}, {**batch, names.USER: "bob"}
    assert world.run(asks("a", licence=2, annotations=ada)).keys() == {"a"}
    other = asks("c", licence=1, annotations=ada)
    other = replace(other, metadata=replace(other.metadata, namespace="other"))
    assert world.run(asks("b", licence=1, annotations=bob), other).keys() == {"c"}
    assert world.why("default/pod:b")[0] == Reason.of(
        Code.DEVICE_LIMIT, user="bob", account="default", type="licence", most=2, queue="batch"
    )
    assert world.run(asks("d", licence=2)) == {}
    assert world.why("default/pod:d")[0] == Reason.of(
        Code.DEVICE_LIMIT, user="", account="", type="licence", most=1, queue=""
    )


# -- the document changes ------------------------------------------------------------------------------------


def test_backends_come_and_go_while_work_runs_and_waits() -> None:
    world = World("")
    assert world.run(asks("a", qpu=1)) == {}
    world.declare(ONE)
    first = world.run()["a"]
    assert backend(first) == "fez"
    world.declare("resources: []")
    assert world.run(asks("b", qpu=1)) == {}
    assert world.why("default/pod:b")[0].code is Code.DEVICE_TYPE_UNKNOWN
    assert world.pod_sets.by_key["default/pod:a"].state is JobState.RUNNING
    world.declare(ONE)  # it is back, and a still has it
    assert world.run() == {}
    world.end(first)
    assert backend(world.run()["b"]) == "fez"


def test_a_backend_that_is_offline_gets_nothing_new_and_what_waits_for_it_is_told() -> None:
    world = World(ONE)
    first = world.run(asks("a", qpu=1, limit=60))["a"]
    world.run(asks("b", qpu=1))
    world.declare(ONE.replace("name: fez", "name: fez, status: offline"))
    world.run()
    assert world.why("default/pod:b") == (Reason.of(Code.DEVICE_OFFLINE, type="qpu", backends=("fez",)),)
    assert world.pod_sets.by_key["default/pod:b"].state is JobState.UNSCHEDULABLE
    world.end(first)
    assert world.run() == {}
    world.declare(ONE)
    assert world.run().keys() == {"b"}


def test_a_document_that_cannot_be_read_leaves_what_was_there() -> None:
    world = World(ONE)
    world.declare("resources: [{typ: qpu}]")
    assert world.scheduler.devices.fault.startswith("resources.yaml: line 1: a resource has no field 'typ'")
    assert world.run(asks("a", qpu=1)).keys() == {"a"}
    world.declare("resources: [{type: gpu}]")
    assert "'gpu' is what nodes have" in world.scheduler.devices.fault
    world.declare(ONE)
    assert world.scheduler.devices.fault == ""


def test_a_pool_that_shrinks_gives_no_more_than_it_has() -> None:
    world = World("resources: [{type: licence, name: s, count: 3}]")
    first = world.run(asks("a", licence=3))["a"]
    world.declare("resources: [{type: licence, name: s, count: 2}]")
    assert world.run(asks("b", licence=1)) == {}
    world.end(first)
    assert world.run(asks("c", licence=1)).keys() == {"b", "c"}


def test_a_device_under_a_node_is_for_pods_on_that_node() -> None:
    text = "resources: [{type: cell, name: c, count: 2, parent: n2}]"
    world = World(text)
    assert world.run(asks("a", cell=1))["a"].node == "n2"
    assert world.run(asks("b", cell=1, cpu="4")) == {}  # there is room on n1 only
    world.remove_node("n2")
    assert world.run(asks("c", cell=1)) == {}
    assert world.cluster.absent_backends == ["c"]
    world.set_node(node("n2"))
    assert "c" in world.run()


def test_a_device_under_a_zone_is_for_pods_in_that_zone() -> None:
    world = World("resources: [{type: cell, name: c, count: 9, parent: east}]", "n1")
    world.set_node(node("n2", zone="east", cpu="2"))
    world.set_node(node("n3", zone="east", cpu="2"))
    binds = world.run(*gang(2, cell=1, cpu="2"))
    assert {bind.node for bind in binds.values()} == {"n2", "n3"}
    assert world.run(asks("a", cell=1)) == {}


# -- a gang that goes on -------------------------------------------------------------------------------------


def test_who_takes_the_place_of_a_member_shares_its_device_until_the_last_has_ended() -> None:
    world = World(ONE)
    binds = world.run(*gang(2, qpu=1))
    world.end(binds["g-0"])
    late = asks("g-2", labels={kit.GROUP: "g"}, annotations={kit.SIZE: "2"}, qpu=1)
    again = world.run(late)["g-2"]
    assert backend(again) == "fez"
    world.end(binds["g-1"])
    assert world.run(asks("other", qpu=1)) == {}  # g-2 still has it
    world.end(again)
    assert world.run().keys() == {"other"}


def test_who_is_left_of_a_gang_whose_nodes_went_has_its_own_device() -> None:
    """The binds of the others are under way to a node that is gone, and what the gang held went with it."""
    world = World(ONE, "n1", "n2", cpu="2")
    for pod in gang(3, qpu=1):
        world.set_pod(pod)
    (binds,) = world.cycle(NOW).binds
    (lonely,) = [each for each in binds if sum(other.node == each.node for other in binds) == 1]
    (lost,) = {each.node for each in binds} - {lonely.node}
    world.set_node(node("n3", cpu="2"))
    world.told(BindResult(lonely, BindOutcome.IMPOSSIBLE), NOW)
    world.remove_node(lost)
    again = [bind for some in world.cycle(NOW).binds for bind in some]
    assert again and all(backend(bind) == "fez" for bind in again)


def test_who_is_placed_anew_asks_again_for_what_it_alone_had() -> None:
    """The others of its gang hold another device."""
    world = World()
    of: dict[str, Any] = {"labels": {kit.GROUP: "g"}, "annotations": {kit.SIZE: "2"}}
    world.set_pod(asks("a", qpu=1, **of))
    world.set_pod(asks("b", licence=1, **of))
    binds = {bind.pod.metadata.name: bind for some in world.cycle(NOW).binds for bind in some}
    assert (backend(binds["a"]), backend(binds["b"])) == ("ibm_fez", "solver")
    world.told(BindResult(binds["a"], BindOutcome.IMPOSSIBLE), NOW)
    ((again,),) = world.cycle(NOW).binds
    assert (again.pod.metadata.name, backend(again)) == ("a", "ibm_fez")


def test_after_a_restart_devices_are_found_again_from_the_pods_alone() -> None:
    world = World()
    binds = world.run(*gang(2, qpu=1, limit=60), asks("l", licence=2))
    fresh = World()
    assert fresh.run(*(as_bound(each) for each in binds.values()), asks("x", qpu=1, backend="ibm_fez")) == {}
    assert fresh.cluster.fit.free_units("licence", {"solver"}) == 1
    assert fresh.why("default/pod:x")[0]["until"] == NOW + 60_000
    fresh.end(binds["g-0"], binds["g-1"])
    assert fresh.run().keys() == {"x"}


def test_after_a_restart_those_who_share_a_device_hold_it_once() -> None:
    world = World(ONE)
    binds = world.run(*gang(2, qpu=1))
    world.end(binds["g-0"])
    late = asks("g-2", labels={kit.GROUP: "g"}, annotations={kit.SIZE: "2"}, qpu=1)
    again = world.run(late)["g-2"]
    for order in ([binds["g-1"], again], [again, binds["g-1"]]):
        fresh = World(ONE)
        fresh.run(*map(as_bound, order))
        assert fresh.cluster.fit.free_units("qpu", {"fez"}) == 0
        fresh.end(order[0])
        assert fresh.run(asks("x", qpu=1)) == {}
        fresh.end(order[1])
        assert fresh.run().keys() == {"x"}


def test_after_a_restart_pods_that_have_their_own_hold_as_much_as_before() -> None:
    text = "resources: [{type: licence, name: s, count: 5}]"
    world = World(text)
    binds = world.run(*gang(2, licence=2, annotations={names.DEVICES: "per-pod"}))
    fresh = World(text)
    fresh.run(as_bound(binds["g-0"]))
    fresh.run(as_bound(binds["g-1"]))  # another time
    assert fresh.cluster.fit.free_units("licence", {"s"}) == 1
    both = World(text)
    both.run(*map(as_bound, binds.values()))
    assert both.cluster.fit.free_units("licence", {"s"}) == 1


def test_what_a_pod_says_of_devices_that_it_did_not_ask_for_is_not_believed() -> None:
    note = '{"start":1,"devices":[["fez","qpu",1]]}'
    forged = kit.pod("liar", annotations={names.ALLOCATION: note}, node="n1", bound=1)
    more = asks(
        "more", licence=1, annotations={names.ALLOCATION: '{"start":1,"devices":[["s","licence",3]]}'}
    )
    text = "resources: [{type: qpu, name: fez}, {type: licence, name: s, count: 3}]"
    world = World(text)
    world.run(forged, bound(more, "n1"))
    assert len(world.run(asks("a", qpu=1), asks("b", licence=3))) == 2


def test_who_asks_for_a_part_of_what_another_of_the_gang_has_whole_shares_it() -> None:
    said = {kit.SIZE: "2"}
    whole = asks("g-0", labels={kit.GROUP: "g"}, annotations=said, qpu=1)
    part = asks("g-1", labels={kit.GROUP: "g"}, annotations=said, qubit=20)
    binds = World(ONE).run(whole, part)
    assert {backend(bind) for bind in binds.values()} == {"fez"}
    fresh = World(ONE)
    fresh.run(as_bound(binds["g-1"]))  # the other has ended, and is gone
    assert fresh.run(asks("x", qpu=1)) == {}


def test_a_state_that_is_built_anew_has_the_devices_that_were_last_readable() -> None:
    world = World(ONE, strict=False)
    world.declare("]")
    world.scheduler._rebuild(NOW)
    assert world.run(asks("a", qpu=1)).keys() == {"a"}


def test_a_wait_for_somebody_without_a_limit_names_them_and_promises_nothing() -> None:
    world = World(ONE)
    world.run(asks("a", qpu=1))
    decisions = world.run(asks("b", qpu=1))
    assert decisions == {}
    report = world.reports.report(world.pod_sets.by_key["default/pod:b"], NOW)
    assert report.state is JobState.PENDING
    codes = {reason.code for reason in report.reasons}
    assert {Code.DEVICE_BUSY, Code.WAITS_FOR_UNLIMITED} <= codes
    assert report.reasons[0]["until"] is None


def test_promises_count_who_waits_for_one_of_the_backends_that_a_job_may_have() -> None:
    """Under `easy` only the first has a place in the plan; the others are sketched, in order."""
    world = World(queue_policy="easy")
    world.run(asks("a", qpu=1, limit=3600, backend="ibm_fez"), asks("b", qpu=1, limit=3600, backend="ankaa"))
    for number, name in enumerate(("ibm_fez", "ankaa", "ibm_fez", "ankaa")):
        world.run(asks(f"c{number}", qpu=1, limit=3600, backend=name), after=2000 * (1 + number))
    world.run(asks("any", qpu=1, limit=3600), after=12_000)
    world.run(asks("ibm", qpu=1, limit=3600, vendor="ibm"), after=16_000)
    world.run(after=20_000)
    found = world.pod_sets.by_key
    told = {
        key.partition(":")[2]: each.no_later_than for key, each in found.items() if not each.state.has_nodes
    }
    hours = {name: round(((at or 0) - NOW) / 3_600_000) for name, at in told.items()}
    assert hours == {"c0": 1, "c1": 1, "c2": 2, "c3": 2, "any": 3, "ibm": 4}


def test_devices_that_a_scheduler_learns_of_as_it_starts_are_no_loss() -> None:
    """Else every promise that is not kept over a restart would be said to be broken by them."""
    world = World()
    assert world.scheduler.state.planner.lost == 0
    world.declare(ONE)
    assert world.scheduler.state.planner.lost == 1


def test_no_pod_is_bound_where_the_kubelet_offers_too_little_of_its_device() -> None:
    """A device plugin that was switched off leaves 0 on its nodes, and the kubelet fails whoever comes."""
    qpu = f"{names.DEVICE_PREFIX}qpu"
    world = World(ONE, "n1")
    world.set_node(node("n1", offers={qpu: "0"}))
    assert world.run(asks("a", qpu=1)) == {}
    (reason,) = world.why("default/pod:a")
    assert reason.code is Code.CLUSTER_CANNOT_HOLD
    assert f"1 Insufficient {qpu} (1 requested, its kubelet offers less)" in text(reason)
    assert world.run(asks("b")).keys() == {"b"}  # who asks for no device is not concerned
    world.set_node(node("n2"))  # never had a plugin
    assert world.run(after=2_000)["a"].node == "n2"


def test_a_pod_starts_when_the_kubelet_offers_its_device_again() -> None:
    qpu = f"{names.DEVICE_PREFIX}qpu"
    world = World(ONE, "n1")
    world.set_node(node("n1", offers={qpu: "0"}))
    assert world.run(asks("a", qpu=1)) == {}
    world.set_node(node("n1", offers={qpu: "1k"}))
    assert world.run(after=2_000).keys() == {"a"}


def stored(pod: Pod, *env: EnvVar) -> Pod:
    """A pod as the server has it, after admission."""
    (box,) = pod.spec.containers or [Container()]
    return replace(
        pod,
        metadata=replace(pod.metadata, resource_version="7"),
        spec=replace(pod.spec, containers=[replace(box, env=list(env))]),
    )


def warned(world: World, *pods: Pod) -> list[Code]:
    for each in pods:
        world.set_pod(each)
    return [warning.reason.code for warning in world.cycle(world.now).warnings]


def test_a_pod_whose_containers_are_not_told_their_backend_is_warned_and_starts() -> None:
    world = World()
    sampler = stored(asks("a", qpu=1))
    world.set_pod(sampler)
    decisions = world.cycle(world.now)
    (warning,) = decisions.warnings
    assert warning.pod == sampler
    assert warning.reason == Reason.of(Code.VARIABLES_MISSING, containers=("c",), held=False)
    assert len(decisions.binds) == 1


def test_a_pod_that_is_told_its_backend_is_not_warned() -> None:
    path = ObjectFieldSelector(field_path=f"metadata.annotations['{names.BACKEND}']")
    own = EnvVar(name="DEVICE", value_from=EnvVarSource(field_ref=path))
    world = World()
    assert warned(world, stored(asks("a", qpu=1), EnvVar(name="QRMI_BACKEND"))) == []
    assert warned(world, stored(asks("b", qpu=1), own)) == []
    assert warned(world, stored(asks("c"))) == []  # asks for none
    assert warned(world, asks("d", qpu=1)) == []  # of a manifest, which admission has not seen
    ignored = asks("e", qpu=1, annotations={names.MISSING_VARIABLES: "ignore"})
    assert warned(world, stored(ignored)) == []
    assert warned(world, stored(asks("f", qpu=1), EnvVar(name="HOME"))) == [Code.VARIABLES_MISSING]


def test_a_pod_without_the_variables_of_its_backend_is_held_if_it_says_so() -> None:
    world = World()
    hold = {names.MISSING_VARIABLES: "hold"}
    assert world.run(stored(asks("a", qpu=1, annotations=hold))) == {}
    (gang,) = world.groups.gangs()
    assert gang.fault == Reason.of(Code.VARIABLES_MISSING, containers=("c",), held=True)
    told = stored(asks("b", qpu=1, annotations=hold), EnvVar(name="FLUXION_BACKEND"))
    assert world.run(told).keys() == {"b"}
    wrong = stored(asks("c", qpu=1, annotations={names.MISSING_VARIABLES: "no"}))
    assert world.run(wrong) == {}


def test_variables_are_kept_only_of_containers_that_ask_for_a_device() -> None:
    env = [EnvVar(name="HOME")]
    assert Container(name="c", env=env).env is None
    limits = {f"{names.DEVICE_PREFIX}qpu": "1"}
    assert Container(name="c", env=env, resources=ResourceRequirements(limits=limits)).env == env


def test_the_annotation_backend_is_a_request_until_the_pod_is_bound() -> None:
    """As clients of the older interface write it; the scheduler writes the same with the bind."""
    world = World()
    stamped = {names.BACKEND: "ankaa"}
    assert backend(world.run(asks("a", qpu=1, annotations=stamped))["a"]) == "ankaa"
    assert world.run(asks("b", qpu=1, annotations=stamped), after=10) == {}
    (reason,) = (each for each in world.why("default/pod:b") if each.code is Code.DEVICE_BUSY)
    assert reason["backends"] == ("ankaa",)
    (gang,) = (each for each in world.groups.gangs() if each.key == "default/pod:a")
    assert gang.device_terms == ()  # what we wrote ourselves is no request
    assert backend(World().run(asks("c", annotations=stamped))["c"]) == "ankaa"  # without one: a unit


def test_a_backend_that_does_not_exist_is_refused_with_the_nearest() -> None:
    world = World()
    assert world.run(asks("a", qpu=1, annotations={names.BACKEND: "anka"})) == {}
    assert "did you mean ankaa" in " ".join(map(text, world.why("default/pod:a")))


def test_what_the_scheduler_refuses_the_check_refuses_with_the_same_words(tmp_path: Path) -> None:
    for document in ("resources: [{type: gpu, name: a}]", "resources: [{type: zone}]", ONE):
        world = World()
        world.declare(document)
        file = tmp_path / "resources.yaml"
        file.write_text(document)
        done = CliRunner().invoke(check, [str(file)])
        fault = world.scheduler.devices.fault
        assert (done.exit_code != 0) is bool(fault)
        assert fault.removeprefix("resources.yaml: ") in str(done.exception)
