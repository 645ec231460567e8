"""Quantities over the whole range that an API server accepts: sums are exact, or at their bound."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import example, given
from msgspec.structs import replace

from fluence.cluster.graph import ClusterGraph
from fluence.match.request import Never
from fluence.messages import text
from fluence.model.node import Node
from fluence.model.pod import Container, Pod, ResourceRequirements
from fluence.placer.placer import GangPlacement, GangRequest
from fluence.units import MAX_AMOUNT, amount, parse_quantity
from tests.gangs import compiled
from tests.gangs import why as why_not
from tests.unit.cluster.build import bound, node, pod

RESOURCES = ("cpu", "memory", "example.com/nic")
suffixes = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
quantities = st.one_of(
    st.builds(lambda n, s: f"{n}{s}", st.integers(0, 10**19), st.sampled_from(suffixes)),
    st.builds(lambda n, d, e: f"{n}.{d}e{e}", st.integers(0, 999), st.integers(0, 99), st.integers(-40, 300)),
    st.builds(lambda n: f"{n}m", st.integers(MAX_AMOUNT - 2, MAX_AMOUNT + 2)),
    st.builds(str, st.integers(MAX_AMOUNT - 2, MAX_AMOUNT + 2)),
    st.sampled_from(["0", "1", "4", "1e17", "1e30", "5e15", "8e18", "1e999"]),
)
amounts = st.fixed_dictionaries({}, optional=dict.fromkeys(RESOURCES, quantities))


def asking(name: str, requests: dict[str, str]) -> Pod:
    plain = pod(name)
    box = Container(name="c", resources=ResourceRequirements(requests=requests))
    return replace(plain, spec=replace(plain.spec, containers=[box]))


def having(name: str, allocatable: dict[str, str]) -> Node:
    plain = node(name)
    return replace(plain, status=replace(plain.status, allocatable={"pods": "1000", **allocatable}))


def counted(given: dict[str, str]) -> dict[str, int]:
    return {name: amount(name, parse_quantity(text)) for name, text in given.items()}


@given(
    has=st.lists(amounts, min_size=1, max_size=4),
    there=st.lists(st.tuples(amounts, st.integers(0, 3)), max_size=6),
    wanted=amounts,
    count=st.integers(1, 4),
)
@example(has=[{"cpu": "1e30"}], there=[({"cpu": "1e30"}, 0)] * 2, wanted={"cpu": "1e17"}, count=3)
def test_a_gang_fits_where_exact_sums_say_so(
    has: list[dict[str, str]], there: list[tuple[dict[str, str], int]], wanted: dict[str, str], count: int
) -> None:
    cluster = ClusterGraph(policy="low")
    cluster.load(having(f"n{i}", each) for i, each in enumerate(has))
    size = [{name: min(n, MAX_AMOUNT) for name, n in counted(each).items()} for each in has]
    free = [dict(each) for each in size]
    for number, (needs, at) in enumerate(there):
        at %= len(has)
        cluster.set_pod(bound(asking(f"x{number}", needs), f"n{at}"))
        for name, n in counted(needs).items():
            free[at][name] = free[at].get(name, 0) - n

    def seats(room: list[dict[str, int]]) -> int:
        asked = {name: n for name, n in counted(wanted).items() if n}
        return sum(
            min((max(each.get(name, 0), 0) // n for name, n in asked.items()), default=count) for each in room
        )

    gang = compiled(cluster, [asking(f"p{i}", wanted) for i in range(count)])
    assert isinstance(gang, GangRequest)
    found = cluster.allocate(gang, job=1, now=0, duration=5)
    assert isinstance(found, GangPlacement) == (seats(free) >= count)
    if not isinstance(found, GangPlacement):
        assert isinstance(found, Never) == (seats(size) < count)
        assert [text(each) for each in why_not(cluster, [asking("p", wanted)] * count, now=0)]
    cluster.earliest(gang, now=1, duration=5)
    for number, _ in enumerate(there):
        cluster.remove_pod(f"uid-x{number}")
    cluster.release(1)
    for name in cluster.fit.types:
        assert (cluster.fit.free(name) == cluster.fit.size(name)).all()
