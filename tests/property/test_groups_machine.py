"""Events in any order give the same gangs as the final set of objects does."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from fluence import names
from fluence.model.meta import ObjectMeta
from fluence.model.owner import Deployment, Group, Job, Owner, PodTemplate, ReplicaSet, StatefulSet
from fluence.model.pod import Pod, PodSpec
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from tests.unit.schedule.kit import V136, V137, group, owner, pod
from tests.unit.schedule.test_operators import (
    KINDS,
    WHOLE,
    custom,
    job_set,
    leader_worker_set,
    mpi_job,
    ray_cluster,
)

VOLCANO = "scheduling.volcano.sh/v1beta1"
NAMES = ("a", "b", "wl/ranks")
marks = st.dictionaries(
    st.sampled_from(
        [
            names.GROUP_LABEL,
            "scheduling.k8s.io/pod-group",
            names.GROUP_SIZE,
            names.DURATION,
            names.KUEUE_GROUP,
            names.KUEUE_SIZE,
            names.VOLCANO_GROUPS[0],
        ]
    ),
    st.sampled_from(["a", "b", "2", "3", "0", "90", "no such", ""]),
    max_size=2,
)

_D = owner("d", kind=Deployment, replicas=2)
MADE_BY = (owner("x"), owner("y"))


@st.composite
def owners(draw: st.DrawFn) -> Owner:
    kind: type[Owner] = draw(st.sampled_from([Job, ReplicaSet, StatefulSet, Deployment]))
    spec: dict[str, Any] = {}
    if kind is Job:
        spec = draw(
            st.fixed_dictionaries(
                {"parallelism": st.none() | st.integers(0, 3), "completions": st.none() | st.integers(1, 3)},
                optional={"suspend": st.booleans(), "active_deadline_seconds": st.just(60)},
            )
        )
    else:
        spec = {"replicas": draw(st.integers(0, 3))}
    if kind in (Job, StatefulSet) and draw(st.booleans()):
        spec["template"] = PodTemplate(
            metadata=ObjectMeta(labels=draw(marks)), spec=PodSpec(scheduler_name="fluence")
        )
    return owner(
        "d" if kind is Deployment else draw(st.sampled_from(["x", "y"])),
        kind=kind,
        labels=draw(marks),
        annotations=draw(marks),
        parent=_D if kind is ReplicaSet and draw(st.booleans()) else None,
        succeeded=draw(st.none() | st.integers(0, 2)),
        **spec,
    )


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    of = draw(st.none() | owners())
    if isinstance(of, Deployment):
        of = None
    how = draw(st.sampled_from(["plain", "field", "workload"]))
    return pod(
        draw(st.sampled_from(["p0", "p1", "p2", "p10"])),
        namespace=draw(st.sampled_from(["default", "default", "lab"])),
        scheduler=draw(st.sampled_from(["fluence", "fluence", "fluence", "default-scheduler"])),
        labels=draw(marks),
        annotations=draw(marks),
        field=draw(st.sampled_from(["a", "b"])) if how == "field" else None,
        workload=("wl", "ranks", draw(st.sampled_from(["", "0", "1"]))) if how == "workload" else None,
        owner=of,
        node=draw(st.none() | st.just("n")),
        phase=draw(st.sampled_from(["Pending", "Pending", "Running", "Succeeded", "Failed"])),
        gated=draw(st.booleans()),
        deleting=draw(st.booleans()),
        uid=draw(st.sampled_from(["u1", "u2", ""])),
        age=draw(st.integers(0, 3)),
        priority=draw(st.sampled_from([None, 0, 0, 5])),
    )


@st.composite
def groups(draw: st.DrawFn) -> Group:
    return group(
        draw(st.sampled_from(NAMES)),
        draw(st.none() | st.integers(1, 4)),
        source=draw(st.sampled_from([V136, V137, "scheduling.x-k8s.io/v1alpha1", VOLCANO])),
        uid=draw(st.sampled_from(["g1", "g2"])),
        workload=draw(st.none() | st.just("wl")),
        controller=draw(st.sampled_from(["", *(each.identity for each in MADE_BY)])),
        is_scheduled=draw(st.none() | st.booleans()),
    )


def fresh() -> Groups:
    found = Groups(native=True, systems=["volcano"])
    found.follow(KINDS)
    return found


# Objects of operators and all that is made of them; and the objects once more, of other sizes.
_RESIZED = [
    job_set(("head", 2), ("workers", 2), startupPolicy={"startupPolicyOrder": "InOrder"})[0],
    leader_worker_set(2, 1)[0],
    mpi_job(2, launcherCreationPolicy="WaitForWorkersReady")[0],
    ray_cluster(3)[0],
    custom("RayCluster", {"workerGroupSpecs": "none"}),
]
operated_owners = st.sampled_from(
    [each for top, parts in WHOLE.values() for each in (top, *parts) if not isinstance(each, Pod)] + _RESIZED
)
operated_pods = st.builds(
    lambda found, node, annotations: replace(
        found,
        metadata=replace(found.metadata, annotations=annotations),
        spec=replace(found.spec, node_name=node),
    ),
    st.sampled_from([each for _, parts in WHOLE.values() for each in parts if isinstance(each, Pod)]),
    st.sampled_from([None, None, "n"]),
    st.sampled_from([None, None, {names.LWS_SIZE: "2"}, {names.GROUP_SIZE: "1"}]),
)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.live = fresh()
        self.pods: dict[str, Pod] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.owners: dict[str, Owner] = {}
        self.seen: dict[str, Gang] = {}
        self.told: set[str] = set()

    @rule(new=pods() | operated_pods)
    def set_pod(self, new: Pod) -> None:
        self.pods[new.key] = new
        self.told |= set(self.live.set_pod(new))

    @rule(data=st.data())
    def remove_pod(self, data: st.DataObject) -> None:
        if self.pods:
            gone = data.draw(st.sampled_from(sorted(self.pods)))
            self.told |= set(self.live.remove_pod(self.pods.pop(gone)))

    @rule(stale=pods())
    def remove_what_was_replaced(self, stale: Pod) -> None:
        held = self.pods.get(stale.key)
        if held is not None and held.metadata.uid != stale.metadata.uid:
            assert not self.live.remove_pod(stale)

    @rule(new=groups())
    def set_group(self, new: Group) -> None:
        self.groups[new.key, new.source] = new
        self.told |= set(self.live.set_group(new))

    @rule(data=st.data())
    def remove_group(self, data: st.DataObject) -> None:
        if self.groups:
            gone = data.draw(st.sampled_from(sorted(self.groups)))
            self.told |= set(self.live.remove_group(self.groups.pop(gone)))

    @rule(new=owners() | operated_owners)
    def set_owner(self, new: Owner) -> None:
        self.owners[new.metadata.uid] = new
        self.told |= set(self.live.set_owner(new))

    @rule(data=st.data())
    def remove_owner(self, data: st.DataObject) -> None:
        if self.owners:
            gone = data.draw(st.sampled_from(sorted(self.owners)))
            self.told |= set(self.live.remove_owner(self.owners.pop(gone)))

    @invariant()
    def is_as_built_from_the_final_set(self) -> None:
        anew = fresh()
        for each in sorted(self.pods.values(), key=lambda pod: pod.metadata.uid):
            anew.set_pod(each)
        for of in self.owners.values():
            anew.set_owner(of)
        for one in self.groups.values():
            anew.set_group(one)
        wanted = {gang.key: gang for gang in anew.gangs()}
        found = {gang.key: gang for gang in self.live.gangs()}
        assert found == wanted
        for key in found.keys() | self.seen.keys():
            if _heart(found.get(key)) != _heart(self.seen.get(key)):
                assert key in self.told, f"{key} changed and nobody was told"
        self.seen, self.told = found, set()

    @invariant()
    def every_pod_of_ours_is_in_one_gang(self) -> None:
        counted: dict[str, int] = {}
        for gang in self.live.gangs():
            assert gang.minimum >= 1 and gang.needed >= 0 and gang.size >= 1
            assert not (gang.missing and gang.fault)
            for each in (*gang.members, *gang.placed, *gang.gated, *gang.ended):
                counted[each.key] = counted.get(each.key, 0) + 1
                assert self.live.of(each) == gang.key
            if gang.is_ready:
                assert len(gang.members) >= gang.needed
        assert all(count == 1 for count in counted.values())


def _heart(gang: Gang | None) -> object:
    """What a cycle would decide from."""
    if gang is None:
        return None
    return (
        [each.metadata.uid for each in gang.members],
        [each.metadata.uid for each in gang.placed],
        gang.minimum,
        gang.needed,
        gang.missing,
        gang.fault,
        gang.limit,
        gang.uid,
        gang.parts,
    )


Machine.TestCase.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)
TestGroups = Machine.TestCase
