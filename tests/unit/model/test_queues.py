"""Documents of queues: what is read, what is refused and with which words, and which tree is in force."""

from __future__ import annotations

import pytest

from fluence.messages import text
from fluence.model.meta import LabelSelector
from fluence.model.queue_documents import InvalidQueue, parse, parse_tree, read, to_value
from fluence.model.queues import (
    MAX_QUEUES,
    Queue,
    QueuesInForce,
    QueueTime,
    QueueTree,
    Resource,
    Stop,
    problems,
    undefined_classes,
)

HEAD = "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: Queue\nmetadata: {name: physics}\n"


def spec(fields: str) -> Queue:
    return parse(f"{HEAD}spec: {{{fields}}}")[0]


def test_everything_that_a_document_can_say() -> None:
    queue = spec(
        "parent: science, guaranteed: {cpu: 400, nvidia.com/gpu@a100: 32}, limit: {memory: 2Ti},"
        "perUser: {running: 20, cpu: 500m}, weight: 2, stop: hold,"
        "time: {default: 1h, max: 24h, enforce: end, grace: 60s}"
    )
    assert queue.parent == "science"
    assert queue.guaranteed == {Resource("cpu"): 400_000, Resource("nvidia.com/gpu", "a100"): 32}
    assert queue.limit == {Resource("memory"): 2 << 40}
    assert queue.per_user.running == 20
    assert queue.per_user.amounts == {Resource("cpu"): 500}
    assert (queue.weight, queue.stop) == (2.0, Stop.HOLD)
    assert queue.time == QueueTime(3_600_000, 86_400_000, True, 60_000)


def test_classes_of_nodes_are_read_and_written() -> None:
    queue = spec("nodeClasses: {a100: {matchLabels: {gpu: a100}}}, limit: {nvidia.com/gpu@a100: 8}")
    assert queue.classes == {"a100": LabelSelector(match_labels={"gpu": "a100"})}
    assert read(to_value(queue)) == queue
    tree = QueueTree([queue, Queue("chem", limit={Resource("cpu", "a100"): 1, Resource("cpu", "h100"): 1})])
    assert tree.in_classes == {Resource("nvidia.com/gpu", "a100"), Resource("cpu", "a100")}
    (told,) = undefined_classes(tree.queues["chem"], tree.classes)
    assert told.startswith("spec.limit: cpu@h100 limits nothing, because no queue defines the class h100")


def test_a_class_has_one_meaning_for_all_queues() -> None:
    one, other = ({"a100": LabelSelector(match_labels={"gpu": each})} for each in ("a", "b"))
    assert problems([Queue("x", classes=one), Queue("y", classes=dict(one))]) == {}
    found = problems([Queue("x", classes=one), Queue("y", classes=other)])
    assert found == {
        "x": ["spec.nodeClasses.a100: queue y defines it otherwise: keep one of them"],
        "y": ["spec.nodeClasses.a100: queue x defines it otherwise: keep one of them"],
    }


def test_a_document_that_says_nothing_limits_nothing() -> None:
    queue = parse(HEAD)[0]
    assert not queue.limit
    assert queue.namespaces is None
    assert queue.per_user.running is None


def test_a_file_has_many_documents_or_a_list() -> None:
    many = "---\n".join(HEAD.replace("physics", name) for name in ("a", "b"))
    assert [queue.name for queue in parse(f"---\n{many}---\n")] == ["a", "b"]
    items = ", ".join(f"{{{HEAD.replace('physics', name).strip().replace(chr(10), ', ')}}}" for name in "ab")
    assert [queue.name for queue in parse(f"kind: List\nitems: [{items}]")] == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("nodeClasses: {a100: {}}", "spec.nodeClasses.a100: selects every node: name the labels"),
        ("nodeClasses: {-a: {matchLabels: {a: b}}}", "is not the name of a class"),
        ("nodeClasses: [a100]", "spec.nodeClasses: must be a mapping"),
        ("limit: {cpu: -1}", "spec.limit.cpu: -1 is negative: write 0 or more"),
        ("limit: {cpu: 1e300}", "spec.limit.cpu: is above 2^53: leave the field out for no limit"),
        ("guaranteed: {cpu: many}", "spec.guaranteed.cpu: 'many' is not a quantity"),
        ("limit: {cpu: true}", "spec.limit.cpu: must be a quantity such as 4, 500m or 1.5Gi, not true"),
        ("limit: {'gpu@': 1}", "spec.limit.gpu@: is not a resource: write a name such as cpu"),
        ("wieght: 2", "spec: there is no field 'wieght': did you mean weight?"),
        ("weight: -1", "spec.weight: must be a number from 0 to 1000000, not -1"),
        (f"weight: {'9' * 400}", "spec.weight: must be a number from 0 to 1000000, not a number of over"),
        ("weight: .nan", "spec.weight: must be a number from 0 to 1000000, not nan"),
        ("parent: physics", "spec.parent: a queue cannot be its own parent"),
        ("parent: No Name", "spec.parent: 'No Name' is not a name"),
        ("time: {default: 2h, max: 1h}", "spec.time.default: is longer than max, 1h: lower it"),
        ("time: {max: soon}", "spec.time.max: must be a time such as 90s, 30m or 24h"),
        ("perUser: {pending: 5}", "spec.perUser.pending: waiting jobs have no limit yet: remove the field"),
        ("stop: now", "spec.stop: must be one of none, hold, drain, not 'now'"),
        ("namespaces: {matchLabels: {a: 1}}", "is not the value of a label: quote it"),
        ("namespaces: {matchExpressions: [{key: a, operator: In}]}", "In and NotIn need values"),
    ],
)
def test_what_is_wrong_is_said_with_the_queue_the_field_and_the_cure(fields: str, message: str) -> None:
    with pytest.raises(InvalidQueue) as refused:
        spec(fields)
    assert str(refused.value).startswith("queues.yaml: line 1: queue physics: ")
    assert message in str(refused.value)


def test_a_key_that_is_there_twice_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidQueue, match=r"line 4: the key 'cpu' is there twice"):
        spec("limit: {cpu: 1, cpu: 2}")


def test_other_kinds_are_refused() -> None:
    with pytest.raises(InvalidQueue, match=r"kind must be Queue, not 'Pod'"):
        parse(HEAD.replace("Queue", "Pod"))


def amounts(**of: int) -> dict[Resource, int]:
    return {Resource(name): amount for name, amount in of.items()}


def test_every_queue_of_a_cycle_is_named_and_others_are_not() -> None:
    wrong = problems([Queue("a", "b"), Queue("b", "c"), Queue("c", "a"), Queue("d", "a"), Queue("e")])
    assert sorted(wrong) == ["a", "b", "c"]
    assert wrong["a"] == ["spec.parent: is its own ancestor (a → b → c → a): remove one of these parents"]


def test_a_missing_parent_names_the_nearest() -> None:
    assert problems([Queue("science"), Queue("a", "sciense")]) == {
        "a": ["spec.parent: there is no queue sciense: did you mean science?"]
    }


def test_depth_number_and_contradictions() -> None:
    deep = [Queue("q0"), *(Queue(f"q{i}", f"q{i - 1}") for i in range(1, 10))]
    assert sorted(problems(deep)) == ["q8", "q9"]
    assert "at most 10000" in str(problems([Queue(f"q{i}") for i in range(MAX_QUEUES + 1)]))
    tree = [Queue("a", limit=amounts(gpu=4)), Queue("b", "a", guaranteed=amounts(gpu=5))]
    assert list(problems(tree)) == ["a"]
    assert list(problems([Queue("a", limit=amounts(gpu=4), guaranteed=amounts(gpu=5))])) == ["a"]
    assert list(problems([Queue("a"), Queue("a")])) == ["a"]


def test_a_chain_of_ten_thousand_queues_is_refused_and_a_wide_tree_is_read() -> None:
    chain = [Queue("q0"), *(Queue(f"q{i}", f"q{i - 1}") for i in range(1, MAX_QUEUES))]
    assert len(problems(chain)) == MAX_QUEUES - 8
    wide = [Queue("top"), *(Queue(f"q{i}", "top") for i in range(1, MAX_QUEUES))]
    assert not problems(wide)


def test_the_last_valid_tree_stays_in_force() -> None:
    queues = QueuesInForce()
    assert queues.replace([Queue("a"), Queue("b", "a")])
    before = queues.tree
    assert not queues.replace([Queue("a", "b"), Queue("b", "a")])
    assert queues.tree is before
    assert sorted(queues.problems) == ["a", "b"]
    assert queues.replace([Queue("a"), Queue("b", "a")]) and not queues.problems
    assert queues.tree is before, "what was in force is written again: no promise is judged again"
    assert queues.replace([Queue("c")])
    assert queues.tree.leaves == ["c"]


TREE = QueueTree(
    [
        Queue(
            "science", time=QueueTime(max=10, default=5), namespaces=LabelSelector(match_labels={"s": "y"})
        ),
        Queue("physics", "science", time=QueueTime(max=20, enforce=True)),
        Queue("chem", "science", stop=Stop.HOLD, namespaces=LabelSelector(match_labels={"c": "y"})),
        Queue("ops", None),
        Queue("ops-default", "ops"),
    ]
)


def test_only_leaves_take_work() -> None:
    assert TREE.leaf("physics") == "physics"
    assert TREE.leaf("ops") == "ops-default"
    assert TREE.leaf("science") is None
    inner, unknown, strange = map(TREE.refusal, ("science", "phisics", "xyz"))
    assert inner is not None
    assert text(inner) == "Queue science takes no jobs: use a queue below it, such as chem, physics"
    assert unknown is not None
    assert text(unknown) == "Queue 'phisics' does not exist: did you mean physics?"
    assert strange is not None
    leaves = ", ".join(TREE.leaves)
    assert text(strange) == f"Queue 'xyz' does not exist: use one of {leaves}"


def test_what_is_inherited() -> None:
    assert TREE.time("physics") == QueueTime(default=5, max=10, enforce=True)
    assert TREE.stopped_by("chem") == "chem"
    assert TREE.stopped_by("physics") is None
    assert TREE.admits("ops-default", {})
    assert TREE.admits("physics", {"s": "y"})
    assert not TREE.admits("physics", {})
    assert not TREE.admits("chem", {"c": "y"})


def test_a_tree_of_a_file_is_valid_or_refused() -> None:
    with pytest.raises(InvalidQueue, match=r"queue physics: spec\.parent: there is no queue science"):
        parse_tree(f"{HEAD}spec: {{parent: science}}")
    assert parse_tree(HEAD).leaves == ["physics"]
