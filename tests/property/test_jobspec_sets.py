"""Idsets, hostlists and counts against their plain definitions."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fluence.errors import InvalidInput
from fluence.model import hostlist, idset
from fluence.model.jobspec import Count

names = st.from_regex(r"[a-z0-9-]{0,3}[0-9]{1,3}|[a-z]{1,3}|(n|n0|n1)[0-9]{1,2}", fullmatch=True)


@settings(deadline=None)
@given(st.lists(st.integers(0, 200)))
def test_idsets_round_trip(ids: list[int]) -> None:
    assert idset.decode(idset.encode(ids)) == sorted(set(ids))


@settings(deadline=None)
@given(st.text("0123456789,-[] ", max_size=20))
def test_any_idset_text_is_read_or_refused(text: str) -> None:
    try:
        ids = idset.decode(text)
    except InvalidInput as e:
        assert "\n" not in str(e)
    else:
        assert idset.decode(idset.encode(ids)) == ids


@settings(deadline=None)
@given(st.lists(names))
def test_hostlists_round_trip_in_order(hosts: list[str]) -> None:
    text = hostlist.encode(hosts)
    assert hostlist.decode(text) == hosts
    parsed = hostlist.parse(text)
    assert all(host in parsed for host in hosts)


@settings(deadline=None)
@given(st.integers(0, 120), st.integers(0, 60), st.integers(1, 3))
def test_runs_of_hosts_become_one_range(first: int, more: int, width: int) -> None:
    hosts = [f"n{i:0{width}d}" for i in range(first, first + more + 1)]
    assert hostlist.encode(hosts).count(",") == 0


@settings(deadline=None)
@given(st.text("ab01,[]- 2", max_size=16), names)
def test_membership_agrees_with_the_spelled_out_list(text: str, name: str) -> None:
    try:
        hosts = hostlist.decode(text, limit=10_000)
    except InvalidInput as e:
        assert "\n" not in str(e)
    else:
        parsed = hostlist.parse(text)
        assert len(hosts) == parsed.size
        assert (name in parsed) == (name in hosts)
        assert all(host in parsed for host in hosts[:50])


def series(count: Count) -> list[int]:
    found, current = [], count.min
    while current <= count.max:
        found.append(current)
        if count.operator == "+":
            current += count.operand
        elif count.operator == "*":
            current *= count.operand
        else:
            current **= count.operand
    return found


@settings(deadline=None)
@given(
    st.sampled_from("+*^"), st.integers(2, 30), st.integers(0, 2000), st.integers(2, 5), st.integers(0, 3000)
)
def test_effective_counts_agree_with_the_series(
    operator: str, least: int, more: int, operand: int, available: int
) -> None:
    count = Count(least, least + more, operator, operand)  # type: ignore[arg-type]
    fitting = [n for n in series(count) if n <= available]
    assert count.effective(available) == (max(fitting) if fitting else 0)
    assert count.maximum == max(series(count))
