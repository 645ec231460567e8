"""InterPodAffinity by example, as a gang is placed."""

from __future__ import annotations

from fluence.cluster.filters.gang_rules import InterPodAttempt, InterPodFilters, once_per_node
from fluence.cluster.filters.interpod_affinity import AffinityFilter, AffinityScore
from fluence.model.meta import LabelSelector
from fluence.model.pod import Affinity, Pod, PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm
from fluence.model.reason import Code
from tests.unit.cluster.build import HOST, ZONE, node, pod
from tests.unit.cluster.filters.columns import context

NODES = (node("n1", zone="a"), node("n2", zone="a"), node("n3", zone="b"), node("n4"))


def term(app: str, key: str) -> PodAffinityTerm:
    return PodAffinityTerm(topology_key=key, label_selector=LabelSelector(match_labels={"app": app}))


def near(app: str, key: str = ZONE) -> Affinity:
    return Affinity(pod_affinity=PodAffinity(required=[term(app, key)]))


def apart(app: str, key: str = ZONE) -> Affinity:
    return Affinity(pod_anti_affinity=PodAffinity(required=[term(app, key)]))


def red(name: str, **more: object) -> Pod:
    return pod(name, labels={"app": "red"}, **more)  # type: ignore[arg-type]


def masks(one: AffinityFilter) -> list[tuple[Code, list[bool]]]:
    return [(reason.code, mask.tolist()) for reason, mask in one.open_nodes()]


def test_affinity_wants_the_domain_of_such_a_pod() -> None:
    found = AffinityFilter(0, context(NODES, [red("r", on="n1")], [pod("p", affinity=near("red"))]))
    assert masks(found) == [(Code.POD_AFFINITY, [True, True, False, False])]
    assert not found.one_at_a_time


def test_the_first_that_wants_its_like_may_start_in_any_domain() -> None:
    found = AffinityFilter(0, context(NODES, [], [red("p", affinity=near("red"))]))
    assert found.one_at_a_time and masks(found) == [(Code.POD_AFFINITY, [True, True, True, False])]
    found.assigned(0, 2, 1)
    assert not found.one_at_a_time and masks(found) == [(Code.POD_AFFINITY, [False, False, True, False])]


def test_anti_affinity_closes_the_domain_of_such_a_pod() -> None:
    found = AffinityFilter(0, context(NODES, [red("r", on="n3")], [pod("p", affinity=apart("red"))]))
    assert masks(found) == [(Code.POD_ANTI_AFFINITY, [True, True, False, True])]


def test_anti_affinity_of_those_that_are_there_counts_against_newcomers() -> None:
    there = pod("shy", on="n1", affinity=apart("red"))
    found = AffinityFilter(0, context(NODES, [there], [red("p")]))
    assert masks(found) == [(Code.EXISTING_ANTI_AFFINITY, [False, False, True, True])]
    assert masks(AffinityFilter(0, context(NODES, [there], [pod("blue")]))) == []


def test_anti_affinity_within_a_gang_counts_once_both_are_placed() -> None:
    gang = [red("p"), pod("shy", affinity=apart("red"))]
    first, second = (AffinityFilter(number, context(NODES, [], gang)) for number in range(2))
    first.assigned(1, 2, 1)  # the shy one on n3
    second.assigned(0, 0, 1)  # the red one on n1
    assert masks(first) == [(Code.EXISTING_ANTI_AFFINITY, [True, True, False, True])]
    assert masks(second) == [(Code.POD_ANTI_AFFINITY, [False, False, True, True])]


def test_those_that_avoid_their_like_on_a_node_are_placed_together_one_per_node() -> None:
    per_host, per_zone = red("p", affinity=apart("red", HOST)), red("q", affinity=apart("red"))
    found = context(NODES, [], [per_host])
    assert not AffinityFilter(0, found).one_at_a_time and once_per_node(found.shapes[0], found)
    found = context(NODES, [], [per_zone])
    assert AffinityFilter(0, found).one_at_a_time and not once_per_node(found.shapes[0], found)


def test_preferred_terms_weigh_domains_and_follow_the_gang() -> None:
    rather = [WeightedPodAffinityTerm(weight=10, pod_affinity_term=term("red", ZONE))]
    rather_not = [WeightedPodAffinityTerm(weight=5, pod_affinity_term=term("red", HOST))]
    own = Affinity(
        pod_affinity=PodAffinity(preferred=rather), pod_anti_affinity=PodAffinity(preferred=rather_not)
    )
    found = context(NODES, [red("r", on="n1")], [red("p", affinity=own)])
    score = AffinityScore(found.shapes[0], found)
    assert score.counts_self and score.score().tolist() == [100, 200, 0, 0]
    score.assigned(0, 2, 2)  # b: 20 - 10 on n3
    assert score.score().tolist() == [100, 200, 200, 0]
    empty = context((), [], [red("p", affinity=own)])
    assert AffinityScore(empty.shapes[0], empty).score().tolist() == []


def test_kinds_with_affinity_come_after_those_they_want() -> None:
    gang = [pod("client", affinity=near("red")), red("server")]
    rules = InterPodFilters(context(NODES, [], gang), lambda at: ())
    assert rules.order([0, 1]) == [1, 0] == rules.order([1, 0])
    circle = [red("a", affinity=near("blue")), pod("b", labels={"app": "blue"}, affinity=near("red"))]
    assert InterPodFilters(context(NODES, [], circle), lambda at: ()).order([1, 0]) == [1, 0]


def test_an_attempt_puts_all_filters_of_a_kind_together() -> None:
    gang = [red("p", port=80, affinity=apart("red"))]
    attempt = InterPodAttempt(context(NODES, [pod("proxy", on="n4", port=80)], gang))
    assert attempt.open_nodes(0).tolist() == [True, True, True, False]
    assert attempt.one_at_a_time(0) and attempt.score(0) is None and attempt.required_free(0) is None  # type: ignore[func-returns-value]
    attempt.assign(0, 0, 1)
    assert attempt.open_nodes(0).tolist() == [False, False, True, False]
    codes = [Code.HOST_PORTS_IN_USE, Code.POD_ANTI_AFFINITY, Code.EXISTING_ANTI_AFFINITY]
    assert [reason.code for reason, _ in attempt.reasons(0)] == codes


def test_pods_that_leave_before_the_start_are_not_counted() -> None:
    gang = [pod("p", affinity=apart("red"))]
    rules = InterPodFilters(
        context(NODES, [red("r", on="n3")], gang), lambda at: {"uid-r"} if at > 10 else ()
    )
    assert not rules.begin(10).open_nodes(0)[2] and rules.begin(11).open_nodes(0)[2]
