"""Queues form a tree or say why not, and any document of queues is read or refused."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fluence.model.queue_documents import InvalidQueue, parse, parse_tree, read, to_value
from fluence.model.queues import MAX_AMOUNT, MAX_DEPTH, Queue, QueueTree, problems


class TestTrees:
    @given(st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.sampled_from("abcdefg")), max_size=8))
    def test_queues_form_a_tree_or_each_of_a_fault_says_why(
        self, given_: list[tuple[str, str | None]]
    ) -> None:
        queues = [Queue(name, parent) for name, parent in given_]
        wrong = problems(queues)
        assert set(wrong) <= {queue.name for queue in queues}
        known = {queue.name: queue for queue in queues}
        for queue in queues:  # who is in a cycle, by walking up
            at, steps = queue.parent, 0
            while at is not None and at in known and at != queue.name and steps < 10:
                at, steps = known[at].parent, steps + 1
            if at == queue.name and known[queue.name] is queue:
                assert queue.name in wrong
            if queue.parent is not None and queue.parent not in known and known[queue.name] is queue:
                assert queue.name in wrong
        if not wrong:
            tree = QueueTree(queues)
            assert set(tree.paths) == set(known)
            assert all(len(path) <= MAX_DEPTH for path in tree.paths.values())
            assert all(tree.leaf(name) in (None, *tree.leaves) for name in known)
            assert all((tree.leaf(name) is None) == (tree.refusal(name) is not None) for name in known)


VALID = """apiVersion: fluence.flux-framework.org/v1alpha1
kind: Queue
metadata: {name: physics}
spec:
  namespaces: {matchLabels: {team: a}, matchExpressions: [{key: b, operator: In, values: [c]}]}
  guaranteed: {cpu: 400, nvidia.com/gpu@a100: 32, memory: 1.5Gi}
  limit: {nvidia.com/gpu@a100: 64}
  perUser: {running: 20, cpu: 16}
  weight: 2
  time: {default: 1h, max: 24h, enforce: end, grace: 60s}
  preemption: {within: lower, reclaim: any, minRuntime: 10m, patience: 2m}
  stop: hold
---
apiVersion: fluence.flux-framework.org/v1alpha1
kind: Queue
metadata: {name: chem}
spec: {parent: physics}
"""
WORDS = (
    "parent", "limit", "weight", "physics", "chem", "0", "-1", "-0", ".inf", ".nan", "1e400", "9" * 30,
    "null", "~", "&a", "*a", "? ", "{", "}", "[", "]", ":", ": ", ",", "\n", "\n- ", "\n  ", "'", '"', "#",
    "|", "!!set", "<<", "\t", "\x00", "é", "@", "cpu@", "---\n", "true", "2020-01-01", "1:30", "0x10",
    "kind: List\nitems: ",
)  # fmt: skip


@st.composite
def changed(draw: st.DrawFn) -> str:
    text = VALID
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        until = draw(st.integers(at, min(len(text), at + 12)))
        text = text[:at] + draw(st.sampled_from(WORDS)) + text[until:]
    return text


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=changed() | st.text() | st.lists(st.sampled_from(WORDS)).map("".join))
@example(text=VALID)
@example(text="\ud800")
@example(text="kind: List\nitems: &a [*a]")
@example(text=VALID.replace("400", "9" * 5000))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        queues = parse(text)
        parse_tree(text)
    except InvalidQueue as refused:
        assert "\n" not in str(refused)
        return
    for queue in queues:
        assert read(to_value(queue)) == queue
        assert all(
            0 <= amount <= MAX_AMOUNT for amount in (*queue.limit.values(), *queue.guaranteed.values())
        )
        assert 0 <= queue.weight <= 1e6
