"""Policies, one by one and composed, on the backends of the original's own tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fluence.errors import InvalidInput
from fluence.select import (
    Backend,
    BackendRequest,
    BackendSelection,
    NoBackend,
    NoCandidate,
    Verdict,
    choose,
    parse_pipeline,
)
from fluence.select.engine import NOT_DESCRIBED, NOT_OFFERED, OFFERS_UNKNOWN

A100 = Backend(
    "gpu-a100", region="us-east-1", attributes={"cost_usd": 3.2, "memory_gb": 80, "throughput": 312}
)
L4 = Backend("gpu-l4", region="us-east-1", attributes={"cost_usd": 0.8, "memory_gb": 24, "throughput": 121})
T4 = Backend("gpu-t4", region="us-west-2", attributes={"cost_usd": 0.35, "memory_gb": 16, "throughput": 65})
GPUS = {b.name: b for b in (A100, L4, T4)}


def run(policy: str, backends: dict[str, Backend] = GPUS, **more: object) -> BackendSelection:
    tolerance = float(str(more.pop("tolerance", 0)))
    constraints = str(more.pop("constraints", ""))
    pipeline = parse_pipeline(policy, tolerance=tolerance, constraints=constraints)
    return choose(policy, pipeline, backends, offers=more.pop("offers", None), **more)  # type: ignore[arg-type]


def names(selection: BackendSelection) -> list[str]:
    return [b.name for b in selection.ranked]


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        ("min-cost", "gpu-t4"),
        ("max-cost", "gpu-a100"),
        ("max-throughput", "gpu-a100"),
        ("min-memory_gb", "gpu-t4"),
        ("require:min_memory_gb=24,min-cost", "gpu-l4"),
        ("require:min_memory_gb=24,min-cost,max-throughput", "gpu-l4"),
        ("require:max_cost=1,max-throughput", "gpu-l4"),
        ("require:region=us-west-2", "gpu-t4"),
        ("require:memory_gb=80", "gpu-a100"),
        ("prefer:gpu-l4,min-cost", "gpu-l4"),
        ("prefer:gpu-h100,min-cost", "gpu-t4"),
        (" min-cost , , max-throughput ", "gpu-t4"),
        ("online-only", "gpu-a100"),
    ],
)
def test_each_policy_chooses_what_its_documentation_says(policy: str, chosen: str) -> None:
    assert run(policy).chosen.name == chosen


def test_a_ranker_narrows_to_the_best_so_that_the_next_one_breaks_the_tie() -> None:
    slow = Backend("a-slow", attributes={"cost_usd": 0.8, "memory_gb": 24, "throughput": 1})
    assert run("min-cost,max-throughput", {"a-slow": slow, "gpu-l4": L4}).chosen.name == "gpu-l4"


def test_ties_go_to_the_first_in_the_alphabet() -> None:
    same = {n: Backend(n, attributes={"cost_usd": 1}) for n in ("c", "a", "b")}
    assert names(run("min-cost", same)) == ["a", "b", "c"]


def test_equal_prices_are_equal_whatever_their_last_bit_says() -> None:
    backends = {
        "a": Backend("a", attributes={"cost_usd": 0.1 + 0.2}),
        "b": Backend("b", attributes={"cost_usd": 0.3}),
    }
    assert names(run("min-cost", backends)) == ["a", "b"]


@pytest.mark.parametrize(
    ("policy", "tolerance", "kept"),
    [
        ("min-cost", 0.5, ["gpu-t4", "gpu-l4"]),
        ("min-cost", 0.4, ["gpu-t4"]),
        ("min-cost", 0.45, ["gpu-t4", "gpu-l4"]),
        ("min-memory_gb", 50, ["gpu-t4"]),  # the option is for cost and queue
        ("min-memory_gb~8", 0, ["gpu-t4", "gpu-l4"]),
        ("min-cost~0", 9, ["gpu-t4"]),  # a step's own tolerance wins
    ],
)
def test_tolerance_widens_the_best_set(policy: str, tolerance: float, kept: list[str]) -> None:
    assert names(run(policy, tolerance=tolerance)) == kept


def test_constraints_apply_before_the_policy() -> None:
    assert run("min-cost", constraints="min_memory_gb=24, max_cost=1").chosen.name == "gpu-l4"


def test_backends_without_the_attribute_are_dropped_with_the_reason() -> None:
    bare = Backend("bare", attributes={"cost_usd": 0.01})
    selection = run("max-memory_gb", {**GPUS, "bare": bare})
    assert str(selection.dropped["bare"]) == 'max-memory_gb: no attribute "memory_gb"'
    assert str(selection.dropped["gpu-t4"]) == "max-memory_gb: memory_gb 16 is below the best, 80"


def test_online_only_keeps_what_has_no_status() -> None:
    backends = {
        "a": Backend("a", strings={"status": "OFFLINE"}),
        "b": Backend("b", strings={"status": "online"}),
        "c": Backend("c"),
        "d": Backend("d", strings={"status": "UNKNOWN", "query_error": "AccessDenied: no"}),
    }
    selection = run("online-only", backends)
    assert names(selection) == ["b", "c"]
    assert str(selection.dropped["d"]) == "online-only: status is UNKNOWN: AccessDenied: no"


def test_an_attribute_nobody_has_is_an_error_that_names_all() -> None:
    with pytest.raises(NoBackend) as caught:
        run("min-qubits")
    assert str(caught.value) == (
        'policy "min-qubits": no candidate has attribute "qubits" (missing: gpu-a100,gpu-l4,gpu-t4)'
    )


def test_nothing_left_names_the_step_and_why_each_was_dropped() -> None:
    with pytest.raises(NoBackend) as caught:
        run("require:min_memory_gb=24,require:max_cost=0.5,min-cost")
    assert str(caught.value) == (
        'policy "require:max_cost=0.5" removed all candidates; dropped: '
        "gpu-a100 (require:max_cost=0.5: cost_usd 3.2 is more than 0.5), "
        "gpu-l4 (require:max_cost=0.5: cost_usd 0.8 is more than 0.5), "
        "gpu-t4 (require:min_memory_gb=24: memory_gb 16 is less than 24)"
    )


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("cheapest", 'unknown policy "cheapest"'),
        ("min-", 'unknown policy "min-"'),
        ("", "empty selection policy"),
        (" , ,", "empty selection policy"),
        ("require:memory", 'malformed require "require:memory"'),
        ("require:min_memory_gb=", "malformed require"),
        ("require:min_memory_gb=lots", 'require "require:min_memory_gb=lots": bad number "lots"'),
        ("require:min_memory_gb=24GB", 'bad number "24GB"'),
        ("require:min_memory_gb=nan", 'bad number "nan"'),
        ("prefer:", 'malformed prefer "prefer:"'),
        ("min-cost~-1", 'bad tolerance "-1"'),
        ("min-cost~", 'bad tolerance ""'),
    ],
)
def test_a_bad_policy_is_refused_before_anything_is_asked(policy: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_pipeline(policy)
    assert message in str(caught.value)


def test_bad_constraints_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"bad number"):
        parse_pipeline("min-cost", constraints="min_qubits=ten")


def test_policies_say_what_they_need_by_its_full_name() -> None:
    pipeline = parse_pipeline("online-only,require:max_queue=5,min-cost,prefer:x", constraints="min_qubits=1")
    assert [sorted(step.needs) for step in pipeline] == [
        ["qubits"],
        ["status"],
        ["queue_size"],
        ["cost_usd"],
        [],
    ]


def test_rankers_raise_on_their_own_too() -> None:
    with pytest.raises(NoCandidate):
        parse_pipeline("min-x")[0].apply([L4], BackendRequest())


class Strange:
    """A policy of somebody else that does not keep to the rules."""

    token = "strange"
    needs: frozenset[str] = frozenset()

    def __init__(self, verdict: Verdict | Exception) -> None:
        self.verdict = verdict

    def apply(self, pool: Sequence[Backend], request: BackendRequest) -> Verdict:
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        (KeyError("qubits"), "policy \"strange\": KeyError: 'qubits'"),
        (Verdict([Backend("new")]), 'policy "strange" keeps new, which is not one of its candidates once'),
        (Verdict([L4, L4]), 'policy "strange" keeps gpu-l4, which is not one of its candidates once'),
        (
            Verdict([]),
            'policy "strange" removed all candidates; dropped: gpu-a100 (strange: dropped), gpu-l4',
        ),
    ],
)
def test_somebody_elses_policy_cannot_break_the_rules(verdict: Verdict | Exception, message: str) -> None:
    with pytest.raises(NoBackend) as caught:
        choose("strange", [Strange(verdict)], GPUS, offers=None)
    assert str(caught.value).startswith(message)


def test_reasons_for_what_was_never_there_are_ignored() -> None:
    selection = choose("strange", [Strange(Verdict([L4], {"new": "x", "gpu-t4": "y"}))], GPUS, offers=None)
    assert {name: str(drop) for name, drop in selection.dropped.items()} == {
        "gpu-a100": "strange: dropped",
        "gpu-t4": "strange: y",
    }


class TestOffers:
    def test_what_is_not_offered_or_not_described_is_dropped_with_the_originals_words(self) -> None:
        selection = run("min-cost", offers=["gpu-a100", "gpu-l4", "gpu-h100"])
        assert selection.chosen.name == "gpu-l4"
        assert str(selection.dropped["gpu-t4"]) == NOT_OFFERED == "not offered by the cluster scheduler"
        assert str(selection.dropped["gpu-h100"]) == NOT_DESCRIBED
        assert selection.notes == []

    def test_unknown_offers_are_noted(self) -> None:
        assert run("min-cost").notes == [OFFERS_UNKNOWN]

    def test_an_empty_intersection_is_an_error(self) -> None:
        with pytest.raises(
            NoBackend, match=r"no candidate backends after intersecting providers with scheduler"
        ):
            run("min-cost", offers=["gpu-h100"])

    def test_candidates_narrow_the_pool_and_unknown_ones_are_noted(self) -> None:
        selection = run("min-cost", offers=["gpu-a100", "gpu-l4", "gpu-t4"], only=["gpu-l4", "gpu-x"])
        assert names(selection) == ["gpu-l4"]
        assert selection.dropped == {}
        assert selection.notes == ["select-candidates names gpu-x, which no provider describes"]


def test_a_backend_of_another_type_than_the_work_requests_is_never_chosen() -> None:
    backends = {"solver": Backend("solver", attributes={"x": 1}), "sv1": Backend("sv1", attributes={"x": 2})}
    types = {"solver": frozenset({"licence"}), "sv1": frozenset({"qpu", "qubit"})}

    def chosen(*requested: str) -> BackendSelection:
        request = BackendRequest(types=frozenset(requested))
        return choose("min-x", parse_pipeline("min-x"), backends, offers=None, types=types, request=request)

    quantum = chosen("qpu")
    assert quantum.chosen.name == "sv1"
    assert str(quantum.dropped["solver"]) == "has licence, and the workload requests qpu"
    assert chosen("licence").chosen.name == "solver"
    assert chosen().chosen.name == "solver"  # without a request any backend will do
    assert chosen("qpu", "licence").chosen.name == "sv1"  # a licence is no place to run
