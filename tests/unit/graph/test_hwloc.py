"""Topologies become what Fluxion sees of them through libhwloc 2."""

from collections.abc import Collection

import pytest

from fluence.errors import InvalidGraph
from fluence.graph import ResourceGraph, hwloc

SIMPLE = ("node", "socket", "core", "gpu", "storage")


def obj(type_: str, *inner: str, cpus: range | None = None, **attributes: object) -> str:
    if cpus is not None:
        mask = f"0x{sum(1 << cpu for cpu in cpus):08x}"
        attributes |= {"cpuset": mask, "complete_cpuset": mask, "nodeset": "0x1"}
    words = " ".join(f'{key}="{value}"' for key, value in attributes.items())
    return f'<object type="{type_}" {words}>{"".join(inner)}</object>'


def info(name: str, value: str) -> str:
    return f'<info name="{name}" value="{value}"/>'


def core(number: int, *, cache: bool = False) -> str:
    cpus = range(number, number + 1)
    inside = obj("Core", obj("PU", cpus=cpus, os_index=number), cpus=cpus)
    return obj("L1Cache", inside, cpus=cpus, cache_size=32768, depth=1) if cache else inside


def device(name: str, type_: int, **infos: str) -> str:
    return obj("OSDev", *(info(k, v) for k, v in infos.items()), name=name, osdev_type=type_)


def machine(
    *inner: str, cpus: int = 4, host: str = "node07", version: str = "2.0", **attributes: object
) -> str:
    root = obj("Machine", info("HostName", host) if host else "", *inner, cpus=range(cpus), **attributes)
    doctype = '<?xml version="1.0"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'
    return f'{doctype}<topology version="{version}">\n{root}</topology>'


def tree(text: str, allow: Collection[str] | None = SIMPLE) -> list[str]:
    """Paths without the cluster and the node, in the order of creation."""
    graph = ResourceGraph()
    graph.extend(hwloc.read(text, allow=allow))
    assert graph.uniq_id.tolist() == list(range(graph.rows))
    paths = [graph.path(v) or "" for v in range(graph.rows)]
    assert paths[:2] == ["/cluster0", "/cluster0/node07"]
    return [path.removeprefix("/cluster0/node07/") for path in paths[2:]]


def test_the_machine_is_a_node_below_a_cluster() -> None:
    batch = hwloc.read(machine(core(0), cpus=1), allow=SIMPLE)
    assert batch.type == ["cluster", "node", "core"]
    assert batch.name == ["cluster0", "node07", "core0"]
    assert batch.basename == ["cluster", "node", "core"]
    assert batch.id == [0, 7, 0]
    assert batch.rank == [-1, 0, -1]
    assert hwloc.read(machine(core(0), cpus=1), rank=3, allow=SIMPLE).rank == [-1, 3, 3]


@pytest.mark.parametrize(
    ("host", "base", "number"),
    [("login", "login", -1), ("a1b002", "a1b", 2), ("0042", "0042", 42), ("x00", "x", 0)],
)
def test_the_number_at_the_end_of_the_host_name_is_the_id(host: str, base: str, number: int) -> None:
    batch = hwloc.read(machine(core(0), cpus=1, host=host))
    assert (batch.name[1], batch.basename[1], batch.id[1]) == (host, base, number)


def test_what_is_not_allowed_is_skipped_and_its_children_move_up() -> None:
    text = machine(
        obj("Package", core(0), core(1), cpus=range(2)), obj("Package", core(2), core(3), cpus=range(2, 4))
    )
    assert tree(text) == [
        "socket0",
        "socket0/core0",
        "socket0/core1",
        "socket1",
        "socket1/core2",
        "socket1/core3",
    ]
    assert tree(text, ["node", "core"]) == ["core0", "core1", "core2", "core3"]
    batch = hwloc.read(text, allow=["socket", "pu"])
    assert batch.name == ["cluster0", "socket0", "pu0", "pu1", "socket1", "pu2", "pu3"]
    assert batch.edges["containment"][0] == [0, 1, 1, 0, 4, 4]


def test_a_machine_without_a_host_name_is_no_node() -> None:
    assert hwloc.read(machine(core(0), cpus=1, host=""), allow=SIMPLE).type == ["cluster", "core"]


def test_devices_come_after_processors_and_are_numbered_together() -> None:
    pci = obj(
        "Bridge",
        obj(
            "PCIDev",
            device("eth0", 2),
            device("dma0", 4),
            device("sda", 0, Size="1562813784", LinuxDeviceID="8:0"),
        ),
        obj("PCIDev", device("cuda3", 5), device("opencl0d2", 5), device("rsmi1", 1), device("card0", 1)),
        obj("PCIDev", device("mic", 5), device("sdb", 0, Size="2000000")),
    )
    text = machine(obj("Package", pci, core(0), cpus=range(1)), cpus=1)
    assert tree(text) == [
        "socket0",
        "socket0/core0",
        *(f"socket0/{name}" for name in ("storage1", "gpu3", "gpu2", "gpu1", "gpu6", "storage7")),
    ]
    batch = hwloc.read(text, allow=["storage"])
    assert batch.size == [1, 1562, 2]
    assert batch.properties == {1: {"LinuxDeviceID": "8:0"}, 2: {"LinuxDeviceID": "-1"}}


def test_levels_that_only_repeat_another_are_left_out() -> None:
    shared = obj(
        "L3Cache", core(0, cache=True), core(1, cache=True), cpus=range(2), cache_size=8388608, depth=3
    )
    other = obj(
        "L3Cache", core(2, cache=True), core(3, cache=True), cpus=range(2, 4), cache_size=8388608, depth=3
    )
    text = machine(obj("Package", shared, other, cpus=range(4)))
    kept = [path for path in tree(text, None) if "/pu" not in path]
    assert kept == [
        "socket0",
        *("socket0/L3cache0", "socket0/L3cache0/core0", "socket0/L3cache0/core1"),
        *("socket0/L3cache1", "socket0/L3cache1/core2", "socket0/L3cache1/core3"),
        "socket0/numanode0",
    ]
    batch = hwloc.read(text, allow=["L3cache"])
    assert batch.type[1:] == ["cache", "cache"]
    assert batch.basename[1:] == ["L3cache", "L3cache"]
    assert batch.size[1:] == [8192, 8192]


def numa(*inner: str, cpus: range) -> str:
    return obj("NUMANode", *inner, cpus=cpus)


def test_numa_nodes_of_old_files_move_beside_what_they_contain() -> None:
    text = machine(
        numa(obj("Socket", core(0), core(1), cpus=range(2)), cpus=range(2)),
        numa(
            obj("Socket", core(2), core(3), cpus=range(2, 4)),
            obj("Bridge", device("cuda0", 5)),
            cpus=range(2, 4),
        ),
        version="1.0",
    )
    assert [p for p in tree(text, None) if "/pu" not in p] == [
        *("socket0", "socket0/core0", "socket0/core1", "socket0/numanode0"),
        *("socket1", "socket1/core2", "socket1/core3", "socket1/numanode1", "socket1/gpu0"),
    ]


def test_numa_nodes_of_old_files_inside_a_socket_make_groups() -> None:
    text = machine(
        obj(
            "Socket",
            numa(core(0), core(1), cpus=range(2)),
            numa(core(2), core(3), cpus=range(2, 4)),
            cpus=range(4),
        ),
        version="1.0",
    )
    assert [p for p in tree(text, None) if "/pu" not in p and "core" not in p] == [
        "socket0",
        *("socket0/group0", "socket0/group0/numanode0", "socket0/group1", "socket0/group1/numanode1"),
    ]


def test_old_caches_and_a_machine_inside_a_machine() -> None:
    caches = [
        obj("Cache", core(n), core(n + 1), cpus=range(n, n + 2), depth=2, cache_size=1048576, cache_type=0)
        for n in (0, 2)
    ]
    text = machine(obj("Machine", caches[0], cpus=range(2)), obj("Machine", caches[1], cpus=range(2, 4)))
    text = text.replace(' version="2.0"', "")
    # The groups that the inner machines become say no more than the caches.
    assert [p for p in tree(text, None) if "core" not in p] == ["L2cache0", "L2cache1", "numanode0"]


@pytest.mark.parametrize(("sockets", "path"), [(1, "socket0/numanode0"), (2, "numanode0")])
def test_a_machine_that_names_no_numa_node_gets_one(sockets: int, path: str) -> None:
    packages = [obj("Package", core(n), cpus=range(n, n + 1)) for n in range(sockets)]
    assert [p for p in tree(machine(*packages, cpus=sockets), None) if "numanode" in p] == [path]


def test_children_are_put_in_the_order_of_their_processors() -> None:
    text = machine(core(3), core(1), core(2))
    batch = hwloc.read(text, allow=["core", "pu"])
    assert batch.name[1:] == ["core0", "pu0", "core1", "pu1", "core2", "pu2"]
    assert [o.attribute("os_index") for o in pus(text)] == ["1", "2", "3"]


def pus(text: str) -> list[hwloc.Object]:
    root = hwloc._import(hwloc.markup.parse(text, source="x"), "x")  # type: ignore[attr-defined]
    return [core.normal[0] for core in root.normal]


def test_processors_that_may_not_be_used_are_left_out() -> None:
    text = machine(
        obj("Package", core(0), core(1), core(2), cpus=range(3)), cpus=3, allowed_cpuset="0x00000006"
    )
    assert tree(text) == ["socket0", "socket0/core0", "socket0/core1"]


def test_large_and_unbounded_sets_of_processors_are_understood() -> None:
    assert hwloc._bitmap("0x1,0x00000002", "") == 1 << 32 | 2
    assert hwloc._bitmap("0x1,,0x0", "") == 1 << 64
    assert hwloc._bitmap("0xf...f,0x0", "") == -1 << 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not well-formed"),
        ("<graphml/>", "begins with <topology>"),
        ("<topology/>", "has no object"),
        ("<topology version='3.0'/>", "version '3.0' is not supported"),
        (f"<topology>{core(0)}</topology>", "must be a Machine"),
        (machine(obj("Core")), "line 4, object 'Core': the object has no cpuset"),
        (machine(obj("Blob")), "object 'Blob': the type of the object is unknown"),
        (machine(obj("Core", cpuset="7q")), "'7q' is not a cpuset"),
        (machine(obj("Bridge", core(0))), "it lies inside a bridge"),
        (machine(device("sda", 0)), "the block device has no size"),
        (machine(device("sda", 0, Size="many")), "not a number of kB"),
        (machine(device("opencl1", 5)), "has no device number"),
        (machine(obj("OSDev", osdev_type="x")), "osdev_type is 'x'"),
        (machine(core(0), host="n" + "9" * 20), "too large for an id"),
        (machine("&b;"), "entities are not supported"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidGraph) as caught:
        hwloc.read(text)
    assert message in str(caught.value)
    assert caught.value.where.startswith("hwloc")


def test_a_device_that_is_not_allowed_may_be_incomplete() -> None:
    assert tree(machine(device("sda", 0), core(0)), ["node", "core"]) == ["core0"]
