"""The audit finds each thing that should never happen, and nothing else."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from fluence.model.node import Node
from fluence.model.owner import Group
from fluence.model.pod import Pod
from fluence.sandbox.audit import AuditLedger


def node(
    name: str = "n1",
    *,
    cpu: str = "4",
    labels: dict[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
    **more: str,
) -> Node:
    document = {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": taints or []},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "3", **more}},
    }
    return msgspec.convert(document, Node)


def pod(
    name: str,
    *,
    on: str | None = "n1",
    cpu: str = "1",
    phase: str = "Running",
    uid: str = "",
    meta: dict[str, object] | None = None,
    **spec: object,
) -> Pod:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}, "ports": spec.pop("ports", [])}
    document = {
        "metadata": {"name": name, "namespace": "ns", "uid": uid or name, **(meta or {})},
        "spec": {"nodeName": on, "containers": [container], **spec},
        "status": {"phase": phase},
    }
    return msgspec.convert(document, Pod)


def ledger(*nodes: Node) -> AuditLedger:
    made = AuditLedger(settle_s=5, grace_s=30)
    for each in nodes or (node(),):
        made.node(None, each, now=0.0)
    return made


def kinds(found: AuditLedger) -> list[str]:
    return [each.kind for each in found.findings]


def test_a_node_given_away_twice_is_found_once_and_named() -> None:
    books = ledger()
    for index in range(3):
        books.pod(None, pod(f"p{index}", cpu="2"), now=100.0)
    assert kinds(books) == ["overcommit"]
    assert str(books.findings[0]) == "overcommit: n1: 6 of 4 cpu given away with ns/p2"


def test_a_pod_too_many_and_a_device_that_is_not_there() -> None:
    books = ledger()
    for index in range(4):
        books.pod(None, pod(f"p{index}", cpu="0"), now=100.0)
    assert [each.detail.split(" given")[0] for each in books.findings] == ["4 of 3 pods"]
    books = ledger()
    books.pod(None, pod("gpu", resources={}, cpu="0", overhead={"nvidia.com/gpu": "1"}), now=100.0)
    assert [each.detail.split(" given")[0] for each in books.findings] == ["1 of 0 nvidia.com/gpu"]


def test_what_ends_makes_room_and_what_terminates_does_not() -> None:
    books = ledger()
    first = pod("a", cpu="4")
    books.pod(None, first, now=100.0)
    books.pod(first, pod("a", cpu="4", phase="Succeeded"), now=101.0)
    second = pod("b", cpu="4")
    books.pod(None, second, now=102.0)
    books.pod(second, None, now=103.0)
    books.pod(None, pod("c", cpu="4"), now=104.0)
    assert kinds(books) == []
    books.pod(None, pod("d", cpu="1"), now=105.0)
    assert kinds(books) == ["overcommit"]


def test_rules_ports_and_nodes_that_do_not_exist() -> None:
    books = ledger(node(labels={"disk": "ssd"}, taints=[{"key": "own", "effect": "NoSchedule"}]))
    books.pod(None, pod("a"), now=100.0)
    books.pod(None, pod("b", nodeSelector={"disk": "hdd"}, tolerations=[{"operator": "Exists"}]), now=100.0)
    books.pod(None, pod("c", on="n9"), now=100.0)
    assert kinds(books) == ["forbidden", "forbidden", "no-node"]
    books = ledger()
    books.pod(None, pod("a", ports=[{"hostPort": 80}]), now=100.0)
    books.pod(None, pod("b", ports=[{"hostPort": 80}]), now=100.0)
    assert kinds(books) == ["port"]


def test_a_pod_that_changes_its_node() -> None:
    books = ledger(node("n1"), node("n2"))
    books.pod(None, pod("a", on="n1"), now=100.0)
    books.pod(pod("a", on="n1"), pod("a", on="n2"), now=101.0)
    assert kinds(books) == ["rebound"]


def test_a_taint_that_came_a_moment_ago_is_no_fault_of_the_scheduler() -> None:
    books = ledger()
    tainted = node(taints=[{"key": "own", "effect": "NoSchedule"}])
    books.node(node(), tainted, now=100.0)
    books.pod(None, pod("a"), now=102.0)
    assert kinds(books) == []
    books.node(tainted, tainted, now=200.0)
    books.pod(None, pod("b"), now=210.0)
    assert kinds(books) == ["forbidden"]


def test_half_a_gang_is_found_after_the_grace_and_a_whole_one_is_not() -> None:
    books = ledger()
    books.group(None, Group(namespace="ns", name="g", min_count=2), now=0.0)
    books.pod(None, pod("a"), group="g", now=100.0)
    books.tick(129.0)
    assert kinds(books) == []
    books.tick(131.0)
    books.tick(140.0)
    assert kinds(books) == ["gang"]
    whole = ledger()
    whole.group(None, Group(namespace="ns", name="g", min_count=2), now=0.0)
    whole.pod(None, pod("a"), group="g", now=100.0)
    whole.pod(None, pod("b"), group="g", now=101.0)
    whole.pod(pod("a"), pod("a", phase="Succeeded"), group="g", now=102.0)  # one may end before the other
    whole.tick(1000.0)
    assert kinds(whole) == []


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from(["bind", "end", "delete"]), st.integers(1, 3))
    )
)
def test_the_ledger_agrees_with_a_recount_from_scratch(steps: list[tuple[str, str, int]]) -> None:
    books = ledger()
    alive: dict[str, Pod] = {}
    serial, over = 0, False
    expected = False
    for name, what, cpu in steps:
        if what == "bind" and name not in alive:
            serial += 1
            alive[name] = pod(name, cpu=str(cpu), uid=f"{name}{serial}")
            books.pod(None, alive[name], now=100.0)
        elif what != "bind" and name in alive:
            gone = alive.pop(name)
            ended = pod(name, phase="Failed", uid=gone.metadata.uid) if what == "end" else None
            books.pod(gone, ended, now=100.0)
        cores = sum(int(each.spec.containers[0].resources.requests["cpu"]) for each in alive.values())  # type: ignore[misc]
        over = cores > 4 or len(alive) > 3
        expected = expected or over
        assert bool(books.findings) == expected
