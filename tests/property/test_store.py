"""The store and the splitter against models, over random histories."""

from collections import defaultdict
from collections.abc import Hashable, Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fluence.kube.reflector import Store
from fluence.kube.transport import LineSplitter
from fluence.model.meta import ObjectMeta
from fluence.model.pod import Pod, PodSpec

NAMES = st.sampled_from("abcd")
NODES = st.sampled_from([None, "n1", "n2"])


def make(name: str, uid: int, version: int, node: str | None) -> Pod:
    meta = ObjectMeta(name=name, namespace="ns", uid=str(uid), resource_version=str(version))
    return Pod(metadata=meta, spec=PodSpec(node_name=node))


def by_node(pod: Pod) -> Iterable[Hashable]:
    return [pod.spec.node_name] if pod.spec.node_name else []


class StoreMachine(RuleBasedStateMachine):
    """Whatever comes, the store equals the model, the index equals a scan, and the handlers' word adds up to
    both."""

    def __init__(self) -> None:
        super().__init__()
        self.store: Store[Pod] = Store({"node": by_node})
        self.model: dict[str, Pod] = {}
        self.told: dict[str, Pod] = {}
        self.version = 0
        self.uid = 0
        self.store.on_change(self._hear)

    def _hear(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None:
            assert self.told.pop(old.metadata.name).metadata.uid == old.metadata.uid
        if new is not None:
            assert new.metadata.name not in self.told
            self.told[new.metadata.name] = new

    def _fresh(self, name: str, node: str | None, *, anew: bool) -> Pod:
        self.version += 1
        old = self.model.get(name)
        if old is None or anew:
            self.uid += 1
            return make(name, self.uid, self.version, node)
        return make(name, int(old.metadata.uid), self.version, node)

    @rule(name=NAMES, node=NODES, anew=st.booleans(), twice=st.booleans())
    def put(self, name: str, node: str | None, anew: bool, twice: bool) -> None:
        pod = self._fresh(name, node, anew=anew)
        self.model[name] = pod
        assert self.store.put(pod)
        if twice:  # a duplicated event
            assert not self.store.put(make(name, int(pod.metadata.uid), self.version, node))

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        was = self.model.pop(name, None)
        assert self.store.remove(("ns", name), last=was) == (was is not None)

    @rule(changes=st.dictionaries(NAMES, st.tuples(NODES, st.booleans()), max_size=4), keep=st.sets(NAMES))
    def replace(self, changes: dict[str, tuple[str | None, bool]], keep: set[str]) -> None:
        fresh = {name: self._fresh(name, node, anew=anew) for name, (node, anew) in changes.items()}
        unread = [("ns", name) for name in sorted(keep)]
        self.store.replace(fresh.values(), keep=unread)
        kept = {name: pod for name, pod in self.model.items() if name in keep and name not in fresh}
        self.model = {**kept, **fresh}

    @rule()
    def relist_of_the_same_changes_nothing(self) -> None:
        before = self.store.changes
        assert self.store.replace(list(self.model.values())) == (0, 0, 0)
        assert self.store.changes == before

    @invariant()
    def agrees(self) -> None:
        assert {pod.metadata.name: pod for pod in self.store} == self.model == self.told
        scan: dict[str, set[str]] = defaultdict(set)
        for name, pod in self.model.items():
            if pod.spec.node_name:
                scan[pod.spec.node_name].add(name)
        for node in ("n1", "n2"):
            assert {pod.metadata.name for pod in self.store.by("node", node)} == scan[node]
        assert self.store.handler_errors == 0


StoreMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestStore = StoreMachine.TestCase


@given(st.lists(st.binary(max_size=30), max_size=20), st.lists(st.integers(1, 7), max_size=60))
def test_lines_do_not_depend_on_how_the_bytes_arrive(lines: list[bytes], cuts: list[int]) -> None:
    wanted = [line for each in lines for line in each.split(b"\n") if line]
    sent = b"".join(each + b"\n" for each in lines)
    splitter, got, at = LineSplitter(), [], 0
    for size in [*cuts, len(sent) or 1]:
        got += splitter.feed(sent[at : at + size])
        at += size
    assert got == wanted
    assert splitter.pending == 0
