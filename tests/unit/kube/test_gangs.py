import msgspec
import pytest
from aiohttp import web

from fluence.kube.client import Client
from fluence.kube.gangs import (
    ADAPTERS,
    NoGangs,
    PodGroup,
    PodGroups136,
    PodGroups137,
    Workload,
    Workloads135,
    discover_gangs,
    lists_gangs,
)
from fluence.kube.resource import ServerVersion, dropped_fields
from fluence.model.meta import Condition
from fluence.model.owner import Group
from fluence.model.pod import Pod
from tests.unit.kube.serving import serving, status

META = {"name": "lammps", "namespace": "ns", "uid": "u"}


def pod(**spec: object) -> Pod:
    return msgspec.convert({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec}, Pod)


def test_135_a_workload_holds_its_groups_and_replicas_are_gangs_of_their_own() -> None:
    item = msgspec.convert(
        {
            "metadata": META,
            "spec": {
                "podGroups": [
                    {"name": "ranks", "policy": {"gang": {"minCount": 4}}},
                    {"name": "log", "policy": {"basic": {}}},
                ]
            },
        },
        Workload,
    )
    api = Workloads135()
    ranks, log = api.groups(item)
    assert (ranks.key, ranks.min_count, log.min_count) == ("ns/lammps/ranks", 4, None)
    member = pod(workloadRef={"name": "lammps", "podGroup": "ranks", "podGroupReplicaKey": "1"})
    assert (api.group_of(member), api.instance_of(member)) == ("lammps/ranks", "lammps/ranks/1")
    assert api.group_of(pod()) is None


@pytest.mark.parametrize(
    ("api", "spec", "condition"),
    [
        (
            PodGroups136(),
            {
                "disruptionMode": "PodGroup",
                "podGroupTemplateRef": {"workload": {"workloadName": "w", "podGroupTemplateName": "t"}},
            },
            "PodGroupScheduled",
        ),
        (
            PodGroups137(),
            {"disruptionMode": {"all": {}}, "workloadRef": {"workloadName": "w", "templateName": "t"}},
            "PodGroupInitiallyScheduled",
        ),
    ],
)
def test_136_and_137_say_the_same_in_other_words(
    api: PodGroups136 | PodGroups137, spec: dict[str, object], condition: str
) -> None:
    item = msgspec.convert(
        {
            "metadata": META,
            "spec": {
                "schedulingPolicy": {"gang": {"minCount": 4}},
                "priority": 7,
                "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/rack"}]},
                **spec,
            },
            "status": {"conditions": [{"type": condition, "status": "True", "reason": "Scheduled"}]},
        },
        PodGroup,
    )
    (group,) = api.groups(item)
    assert group == Group(
        namespace="ns",
        name="lammps",
        uid="u",
        min_count=4,
        priority=7,
        disrupt_together=True,
        topology_key="topology.kubernetes.io/rack",
        workload="w",
        template="t",
        is_scheduled=True,
        conditions=(Condition(type=condition, status="True", reason="Scheduled"),),
        source=f"scheduling.k8s.io/{api.version}",
    )
    assert api.group_of(pod(schedulingGroup={"podGroupName": "lammps"})) == "lammps"


def test_a_basic_group_is_no_gang() -> None:
    item = msgspec.convert({"metadata": META, "spec": {"schedulingPolicy": {"basic": {}}}}, PodGroup)
    (group,) = PodGroups137().groups(item)
    assert not group.is_gang


@pytest.mark.parametrize("api", [Workloads135(), PodGroups136(), PodGroups137()], ids=lambda api: api.version)
def test_what_we_write_reads_back_as_the_same_group(api: Workloads135 | PodGroups136 | PodGroups137) -> None:
    name = "lammps/ranks" if api.version == "v1alpha1" else "lammps"
    together = api.version != "v1alpha1"
    group = Group(namespace="ns", name=name, min_count=3, disrupt_together=together)
    item = msgspec.convert(api.manifest(group), api.resource.type)
    (found,) = api.groups(item)
    assert (found.key, found.min_count, found.disrupt_together) == (group.key, 3, together)
    member = pod(**api.pod_link(name))
    assert api.group_of(member) == name


def test_135_a_name_without_a_slash_is_a_workload_with_one_group_of_that_name() -> None:
    """What we write and what pods say must agree: the server refuses a reference without a group."""
    api = Workloads135()
    item = msgspec.convert(api.manifest(Group(namespace="ns", name="lammps", min_count=3)), Workload)
    (group,) = api.groups(item)
    assert group.key == "ns/lammps/lammps"
    assert api.group_of(pod(**api.pod_link("lammps"))) == group.name


def served(*versions: str, gate: bool = True, resources: tuple[str, ...] = ("podgroups", "workloads")):
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/apis/scheduling.k8s.io":
            listed = [{"version": each} for each in ("v1", *versions)]
            return web.json_response({"name": "scheduling.k8s.io", "versions": listed})
        if request.path.startswith("/apis/scheduling.k8s.io/"):
            names = resources if request.path.rsplit("/", 1)[1] in versions else ("priorityclasses",)
            return web.json_response({"resources": [{"name": name} for name in names]})
        if request.method == "POST":
            assert request.query["dryRun"] == "All"
            body = msgspec.json.decode(await request.read())
            if not gate:
                body["spec"].pop("schedulingGroup", None)
            return web.json_response(body, status=201)
        return status(404)

    return handler


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ((), "none"),
        (("v1alpha1",), "v1alpha1"),
        (("v1alpha2",), "v1alpha2"),
        (("v1beta1", "v1alpha3"), "v1beta1"),
    ],
)
async def test_the_adapter_is_chosen_by_what_is_served(versions: tuple[str, ...], expected: str) -> None:
    async with serving(served(*versions)) as access, Client(access) as client:
        assert (await discover_gangs(client)).version == expected


async def test_a_gate_that_is_off_is_noticed_and_named() -> None:
    async with serving(served("v1alpha2", gate=False)) as access, Client(access) as client:
        found = await discover_gangs(client)
    assert isinstance(found, NoGangs)
    assert "GenericWorkload" in found.reason
    assert "spec.schedulingGroup" in found.reason


def test_only_what_is_gone_counts_as_dropped() -> None:
    sent = {"a": {"b": 1, "c": [1, {"d": 2}]}, "e": "1000m", "f": {}, "g": None, "h": {"i": 1}}
    got = {"a": {"b": 1, "c": [1, {}], "new": 3}, "e": "1"}
    assert list(dropped_fields(sent, got)) == ["a.c[1].d", "h"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("v1.36.4", "1", "36"), (1, 36)),
        (("v1.36.4-eks", "1", "36+"), (1, 36)),
        (("v1.36.4", "", ""), (1, 36)),
    ],
)
def test_the_release_of_a_server(given: tuple[str, str, str], expected: tuple[int, int]) -> None:
    assert ServerVersion(*given).release == expected


@pytest.mark.parametrize(
    ("version", "modes"),
    [
        ("none", set()),
        ("v1alpha1", set()),  # its groups are in Workloads, which pods name by another field
        ("v1alpha2", {"always"}),
        ("v1beta1", {"auto", "always"}),
    ],
)
def test_gangs_get_pod_groups_by_default_where_the_api_is_not_alpha(version: str, modes: set[str]) -> None:
    assert {mode for mode in ("auto", "always", "never") if lists_gangs(version, mode)} == modes
    assert version == "none" or version in {each.version for each in ADAPTERS}
