"""What a machine lacks for real nodes, and what a node is told."""

from pathlib import Path

import pytest

from fluence.cli.demo.show import read_real
from fluence.errors import FluenceError
from fluence.sandbox import machine
from fluence.sandbox.realnode import MAX_REAL_NODES, Network, RealNode, bridge


def test_all_that_is_missing_is_said_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)  # type: ignore[attr-defined]
    monkeypatch.setattr(machine, "_PATH", "/nowhere")
    monkeypatch.setattr(machine, "_controllers", lambda: {"cpu", "cpuset", "memory"})
    with pytest.raises(FluenceError) as caught:
        machine.look(Path("/var/lib/fluence"))
    told = str(caught.value)
    assert told.startswith("this machine cannot have real nodes: only root can make them (sudo")
    assert "iproute2, mount, runc, util-linux missing (Debian: apt-get install iproute2 mount" in told
    assert "no cgroup controller for pids (mount /sys/fs/cgroup" in told
    assert "/var/lib/fluence is below /var/lib, of which a node has its own (set XDG_STATE_HOME" in told
    assert "\n" not in told


def test_names_of_a_sandbox_are_its_own_and_short_enough_for_the_kernel() -> None:
    one, other = Path("/a/default"), Path("/b/default")
    assert bridge(one) != bridge(other)
    nodes = [RealNode(one, number, Network(200)) for number in range(1, MAX_REAL_NODES + 1)]
    assert max(len(each.link) for each in nodes) <= 15
    assert len({each.link for each in nodes} | {bridge(one)}) == MAX_REAL_NODES + 1
    assert len({each.address for each in nodes}) == MAX_REAL_NODES
    assert [each.cni_config()["plugins"][0]["ipam"]["ranges"][0][0]["subnet"] for each in nodes] == [
        "10.200.1.0/24",
        "10.200.2.0/24",
        "10.200.3.0/24",
    ]


@pytest.mark.parametrize(("version", "said"), [(1, False), (2, None)])
def test_a_kubelet_is_told_of_old_cgroups_only_where_they_are(version: int, said: bool | None) -> None:
    config = RealNode(Path("/a"), 1, Network(200)).kubelet_config(cgroups=version)
    assert config.get("failCgroupV1") is said
    assert config["cgroupRoot"].startswith("/fluence-")


def test_the_examples_for_real_nodes_fit_on_any_machine() -> None:
    script = read_real()
    assert [each.name for each in script] == ["ranks", "potato"]
    for work in script:
        (job,) = work.documents
        assert job["spec"]["template"]["metadata"]["labels"] == {"app": work.name}
        assert work.purpose.endswith(".") and len(work.purpose) < 100
