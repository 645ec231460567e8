"""Everything that is read of users' objects has a row in docs/security.md: what a forged one can do, the
bound, and a test that exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from fluence import names

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fluence"

_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?\.)+[a-z][-a-z0-9]*/[A-Za-z0-9._-]*")
_MAPS = re.compile(r"\b(labels|annotations|notes)\b")
_REFERENCES = frozenset(
    (
        "owner_references",
        "ownerReferences",
        "controller_reference",
        "controller_of",
        "owner_of",
        "owner_chain",
        "claimed_by",
        "claims()",
    )
)

NO_NAMES_OF_OBJECTS = {
    "PREFIX": "the beginning of names",
    "SCHEDULER": "a schedulerName",
    "KUBE_SCHEDULER": "a schedulerName",
    "DOORS_ENABLED": "the value of a label",
    "QUEUE_OFF": "the value of a label or an annotation",
    "SEEN_YES": "the value of a label",
    "BIND_KUBE_SCHEDULER": "the value of an annotation",
    "ADMISSION_PARAMETERS": "an object in our own namespace",
    "POD_GROUP_SUFFIX": "the end of a PodGroup's name",
    "LISTED_AS_JOB": "the value of an annotation",
    "LISTS_GANGS": "on our own HandOff",
    "QUANTUM_CLASS": "a PriorityClass",
    "INSTALLED_IN": "a namespace",
    "SIMULATED": "on nodes, which users do not write",
    "SCHEDULER_NAME": "on our own Lease",
    "SETTINGS": "on our own Lease",
    "VIEW_GROUP": "an API group",
    "VIEW_ADDRESS": "on our own Lease",
    "RESOURCES_CONFIGMAP": "an object of the site",
    "RESOURCES_KEY": "a key in an object of the site",
    "RESOURCES_NAMESPACE": "a namespace",
}
"""Constants of `names` that no user's object carries as a label, annotation, gate or condition."""

NOT_READ_FROM_USERS = {
    "admission.k8s.io/v1": "an API version",
    "admissionregistration.k8s.io/v1": "an API version",
    "apiextensions.k8s.io/v1": "an API version",
    "authentication.k8s.io/v1": "an API version",
    "authorization.k8s.io/v1": "an API version",
    "client.authentication.k8s.io/v1": "an API version",
    "client.authentication.k8s.io/v1beta1": "an API version",
    "coordination.k8s.io/v1": "an API version",
    "scheduling.k8s.io/": "an API group",
    "scheduling.k8s.io/v1": "an API version",
    "scheduling.k8s.io/v1alpha2": "an API version",
    "scheduling.k8s.io/v1beta1": "an API version",
    "app.kubernetes.io/component": "labels of our own Deployments, for the doctor",
    "app.kubernetes.io/instance": "labels of our own Deployments, for the doctor",
    "app.kubernetes.io/managed-by": "labels of our own Deployments, for the doctor",
    "app.kubernetes.io/name": "labels of our own Deployments, for the doctor",
    "fluence.flux-framework.org/renew-seconds": "on our own Lease",
    "fluence.flux-framework.org/rules": "on policies of the site",
    "k8s.io/initial-events-end": "on bookmarks that the server makes",
    "kubernetes.io/no-provisioner": "a provisioner of a StorageClass, which is the site's",
    "node.kubernetes.io/not-ready": "a taint of a node",
    "node.kubernetes.io/unschedulable": "a taint of a node",
    "fluence.flux-framework.org/v1alpha1": "the version of Queue documents, which are the site's",
    "nvidia.com/gpu": "a resource of nodes",
    "view.fluence.flux-framework.org/": "an API group",
    "topology.kubernetes.io/block": "a label of nodes",
    "topology.kubernetes.io/rack": "a label of nodes",
    "topology.kubernetes.io/zone": "a label of nodes",
    "zone": "in a call of the match service, which takes no pods from the cluster",
}
"""Qualified names in the source that are no keys of what users write."""

OTHER_ROOMS = {
    "sandbox": "makes a cluster of its own",
    "sim": "makes objects of its own, in memory",
    "cli/demo": "makes objects of its own",
}
"""Parts of the source that read no users' objects."""


# -- the page ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    names: tuple[str, ...]
    read_by: str
    harm: str
    bound: str
    tests: tuple[str, ...]


@cache
def rows() -> tuple[Row, ...]:
    text = (ROOT / "docs" / "security.md").read_text()
    section = text.partition("\n## Everything that is read\n")[2].partition("\n## ")[0]
    found = []
    for line in section.splitlines():
        if line.startswith("| `"):
            cells = [each.strip() for each in line.strip("| ").split(" | ")]
            assert len(cells) == 5, line
            named, read_by, harm, bound, test = cells
            found.append(Row(_quoted(named), read_by, harm, bound, _quoted(test)))
    return tuple(found)


def _quoted(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


@cache
def listed() -> frozenset[str]:
    return frozenset(name for row in rows() for name in row.names)


def has_row(name: str) -> bool:
    """A name that ends in - or / stands for all that begin with it."""
    return name in listed() or any(name.startswith(each) for each in listed() if each[-1] in "-/")


# -- the source ----------------------------------------------------------------------------------------------


@cache
def nodes() -> tuple[tuple[str, ast.AST], ...]:
    """Every node of the source, with its module."""
    return tuple((module, node) for module, tree in modules().items() for node in ast.walk(tree))


@cache
def modules() -> dict[str, ast.Module]:
    found = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
    return {
        name: ast.parse(path.read_text())
        for name, path in found.items()
        if not name.startswith(tuple(f"{room}/" for room in OTHER_ROOMS))
    }


def resolved(node: ast.AST) -> str | None:
    """The text of a literal; of one that begins with a constant of `names`, with its value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr) or not node.values:
        return None
    first, *rest = node.values
    if not isinstance(first, ast.FormattedValue):
        return None
    constant = getattr(names, ast.unparse(first.value).removeprefix("names."), None)
    if not isinstance(constant, str):
        return None
    texts = [each.value if isinstance(each, ast.Constant) else "" for each in rest]
    return constant + "".join(map(str, texts))


@cache
def qualified() -> tuple[tuple[str, str], ...]:
    """Every literal that has the form of a qualified name, those of `names` aside."""
    texts = ((resolved(node), module) for module, node in nodes() if module != "names.py")
    return tuple((text, module) for text, module in texts if text is not None and _QUALIFIED.fullmatch(text))


@cache
def keys() -> tuple[tuple[str, str], ...]:
    """Every literal by which a label, an annotation or a condition is looked up."""
    return tuple(_keys())


def _keys() -> Iterator[tuple[str, str]]:
    for module, node in nodes():
        where: ast.AST | None
        match node:
            case ast.Call(func=ast.Attribute(value=where, attr="get" | "pop"), args=[key, *_]):
                pass
            case ast.Call(func=ast.Attribute(attr="condition"), args=[key]):
                where = None
            case ast.Subscript(value=where, slice=key):
                pass
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[where]):
                pass
            case _:
                continue
        text = resolved(key)  # first: to write a part of the source again takes long
        if text is not None and (where is None or _MAPS.search(ast.unparse(where))):
            yield text, module


def uses(wanted: frozenset[str]) -> set[str]:
    """The modules, with the function or class, in which one of these words stands."""
    found = set().union(*(places().get(word, set()) for word in wanted))
    return found - {"queue/queue.py Queue.limit_of"}  # other claims: what places in the plan count


@cache
def places() -> dict[str, set[str]]:
    """Where each word stands, found in one walk."""
    found: dict[str, set[str]] = {}

    def look(node: ast.AST, where: str, module: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = where
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{where}.{child.name}".lstrip(".")
            words = (
                getattr(child, "attr", None),
                f"{getattr(child.func, 'attr', '')}()" if isinstance(child, ast.Call) else None,
                getattr(child, "id", None),
                getattr(child, "arg", None),
                child.value if isinstance(child, ast.Constant) else None,
            )
            for word in words:
                if isinstance(word, str):
                    found.setdefault(word, set()).add(f"{module} {inner}".strip())
            look(child, inner, module)

    for module, tree in modules().items():
        look(tree, "", module)
    return found


# -- the tests -----------------------------------------------------------------------------------------------


def test_every_constant_that_objects_carry_has_a_row() -> None:
    for constant, value in vars(names).items():
        if not constant.isupper() or constant in NO_NAMES_OF_OBJECTS:
            continue
        for each in (value,) if isinstance(value, str) else value:
            assert each in listed(), f"names.{constant}: {each} has no row in docs/security.md"


def test_every_constant_that_is_left_out_is_there() -> None:
    assert {each for each in NO_NAMES_OF_OBJECTS if not hasattr(names, each)} == set()


def test_every_qualified_name_in_the_source_has_a_row_or_a_reason() -> None:
    for text, module in qualified():
        known = has_row(text) or text in NOT_READ_FROM_USERS or text == f"{names.PREFIX}/"
        assert known, f"{module} reads {text}: give it a row in docs/security.md"


def test_every_key_of_labels_annotations_and_conditions_has_a_row_or_a_reason() -> None:
    found = list(keys())
    assert len(found) > 5
    for text, module in found:
        known = has_row(text) or text in NOT_READ_FROM_USERS
        assert known, f"{module} reads {text}: give it a row in docs/security.md"


def test_no_reason_is_left_for_a_name_that_is_gone() -> None:
    there = {text for text, _ in (*qualified(), *keys())}
    assert {each for each in NOT_READ_FROM_USERS if each not in there} == set()
    assert [room for room in OTHER_ROOMS if not (SOURCE / room).is_dir()] == []


PLACES = frozenset(
    (
        "act/own_objects.py pod_group",
        "admission/coordination.py",
        "admission/coordination.py _group",
        "admission/queueing.py _is_held.holds",
        "admission/pod_groups.py",
        "admission/pod_groups.py _is_users_job",
        "admission/pod_groups.py _job",
        "admission/queueing.py",
        "admission/queueing.py _controllers",
        "commands/explanation.py Seen.knows_group_of",
        "commands/cluster.py running",
        "commands/verbs_on_cluster.py _Cluster._find_custom",
        "commands/verbs_on_cluster.py _Cluster._group",
        "commands/verbs_on_cluster.py _Cluster.pods_of",
        "commands/verbs_on_cluster.py _Cluster.requeue",
        "cluster/pods.py is_resident",
        "cluster/pod_index.py Siblings._changed",
        "cluster/pod_index.py Siblings.of",
        "controller/controller.py FluxJobController._find_owners",
        "controller/flux_job.py FluxJob.owner",
        "controller/flux_job.py FluxJob.workload",
        "controller/flux_job.py applied",
        "controller/unstarted.py may_take_back",
        "controller/flux_job.py workload_of",
        "doctor/pod_checks.py _maker",
        "kube/gangs.py _PodGroups.groups",
        "live/reporter.py Reporter._record",
        "model/meta.py ObjectMeta",
        "model/meta.py ObjectMeta.controller_reference",
        "model/operators.py _borrower",
        "model/operators.py with_sizes",
        "model/owner.py Owner.claims",
        "model/owner.py claimed_by",
        "model/owner.py controller_of",
        "model/claims.py VolumeClaim.owner",
        "schedule/gangs/annotations.py _deadline",
        "schedule/binding.py Releasing._may_begin",
        "schedule/overruns.py _whole_job",
        "schedule/preemption/drain.py _comes_back",
        "schedule/preemption/preemption.py Preemption._pod",
        "schedule/preemption/preemption.py Preemption._times_ended",
        "schedule/preemption/victims.py held_jobs",
        "act/orders.py Preemptor._try_suspend",
        "schedule/gangs/gang.py _order",
        "schedule/gangs/size.py _by_owners",
        "schedule/gangs/size.py _succeeded",
        "schedule/eligibility/eligibility.py _maker",
        "schedule/eligibility/eligibility.py _series_of",
        "schedule/external_resources/gate_dependency.py aliases",
        "schedule/gangs/groups.py Groups._membership",
        "schedule/gangs/groups.py Groups.owners",
        "schedule/gangs/groups.py _same",
        "schedule/gangs/groups.py _same_owner",
        "schedule/history.py workload",
        "schedule/gangs/membership.py _is_made_up",
        "schedule/gangs/membership.py _listing_names",
        "schedule/gangs/membership.py workload_of",
        "schedule/gangs/membership.py owner_chain",
        "schedule/overruns.py holder",
        "schedule/external_resources/producer_gates.py ProducerGates._has_more",
        "schedule/queueing/placeholder.py owner_of",
        "schedule/queueing/placeholder.py placeholder",
        "schedule/gangs/groups.py Groups.pods_of",
        "schedule/queueing/placeholder.py seat_of",
        "schedule/queueing/placeholders.py Placeholders._children",
        "schedule/queueing/placeholders.py Placeholders.remove_owner",
        "schedule/queueing/placeholders.py Placeholders.set_owner",
        "schedule/queueing/placeholders.py Placeholders.set_pod",
        "schedule/queueing/placeholder.py is_held_operator",
        "schedule/queueing/unheld.py UnheldWork._operated",
        "schedule/queueing/unheld.py is_to_be_held",
        "schedule/restart.py _workloads",
        "schedule/status/reports.py Warnings.new",
        "commands/conditions_view.py _gang",
        "web/rows.py _is_named",
        "web/rows.py _owner",
        "web/rows.py _array_counts",
    )
)
"""Module and function of each that reads who owns what, by itself or through `model.owner`."""


def test_every_place_that_reads_references_is_known() -> None:
    found = uses(_REFERENCES)
    assert sorted(found - PLACES) == [], (
        "a new reader of ownerReferences: say in docs/security.md what it believes"
    )
    assert sorted(PLACES - found) == [], "no longer there"


def test_every_module_that_reads_references_is_in_a_row() -> None:
    said = " ".join(row.read_by for row in rows() if "ownerReferences" in row.names)
    read = {place.partition(" ")[0] for place in uses(_REFERENCES)} - {"model/meta.py", "model/owner.py"}
    assert sorted(each for each in read if f"`{each}`" not in said) == []
    assert sorted(each for each in _quoted(said) if each not in read) == []


def test_nobody_reads_finalizers() -> None:
    assert uses(frozenset(("finalizers",))) == {"model/meta.py ObjectMeta"}


def test_the_controller_of_a_job_is_read_in_known_places() -> None:
    assert uses(frozenset(("managed_by", "managedBy"))) == {
        "admission/queueing.py _is_held",
        "admission/queueing.py _is_held.holds",
        "admission/queueing.py",
        "admission/queueing.py _is_queued_job",
        "model/grant.py is_for_this_scheduler",
        "model/operators.py CustomOwner.planned",
        "model/operators.py Operator",
        "model/operators.py _kubeflow",
        "model/operators.py read_owner",
        "model/owner.py OwnerSpec",
        "schedule/queueing/placeholders.py Placeholders._is_ours",
        "schedule/queueing/unheld.py is_to_be_held",
    }


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.names[0]} {row.tests[0]}"[:80])
def test_every_row_is_complete_and_its_test_exists(row: Row) -> None:
    assert row.read_by and row.harm and row.bound
    assert row.tests
    for test in row.tests:
        assert f"def {test}(" in all_tests(), f"no test is called {test}"


@cache
def all_tests() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")))


def test_no_row_is_left_for_a_name_that_is_gone() -> None:
    known = {text for text, _ in (*qualified(), *keys())} | {"ownerReferences", "finalizers"}
    for value in vars(names).values():
        known.update([value] if isinstance(value, str) else value if isinstance(value, tuple) else ())
    words = {
        text
        for _, node in nodes()
        for text in (getattr(node, "attr", None), getattr(node, "value", None), getattr(node, "id", None))
        if isinstance(text, str)
    } | {
        node.target.id
        for tree in modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for name in listed() - known:
        field = re.sub(r"([A-Z])", r"_\1", name.rpartition(".")[2]).lower() if "." in name else name
        assert name in words or field in words, f"{name} is in docs/security.md, and nobody reads it"
