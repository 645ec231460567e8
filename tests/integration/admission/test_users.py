"""Who submitted what, and who may name which queue, on a real server with users, roles and controllers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.admission.review import admit
from fluence.admission.users import KINDS, NAME
from fluence.kube.client import Client
from fluence.kube.errors import ApiError, Forbidden
from fluence.kube.resource import Json, Resource
from fluence.sandbox.sandbox import Sandbox
from tests.eventually import eventually
from tests.integration.admission import field as fields
from tests.integration.admission.field import Field, policies_for, webhook_for
from tests.integration.rights import let_edit, resource_of, until_allowed

pytestmark = pytest.mark.release
KEY = names.SUBMITTED_BY
OPERATOR = "system:serviceaccount:ops:job-operator"
CRON_CONTROLLER = "system:serviceaccount:kube-system:cronjob-controller"
_GROUPS = {
    "Pod": ("", "pods"),
    "Job": ("batch", "jobs"),
    "CronJob": ("batch", "cronjobs"),
    "Deployment": ("apps", "deployments"),
    "ReplicaSet": ("apps", "replicasets"),
    "StatefulSet": ("apps", "statefulsets"),
    "DaemonSet": ("apps", "daemonsets"),
    "ReplicationController": ("", "replicationcontrollers"),
    "PodGroup": ("scheduling.k8s.io", "podgroups"),
}


def kind_of(kind: str, version: str = "v1") -> Resource[Json]:
    group, plural = _GROUPS[kind]
    return Resource(group, version, plural, kind, dict[str, object])


def built(kind: str, name: str = "w", **annotations: str) -> dict[str, Any]:
    """An object with these annotations in all places from which pods get theirs."""
    spec: dict[str, Any] = {
        "schedulerName": "nobody",
        "restartPolicy": "Always",
        "containers": [{"name": "c", "image": "x"}],
    }
    meta = {"name": name, "annotations": dict(annotations)}
    group, _ = _GROUPS[kind]
    found: dict[str, Any] = {"apiVersion": f"{group}/v1" if group else "v1", "kind": kind, "metadata": meta}
    template = {"metadata": {"labels": {"app": name}, "annotations": dict(annotations)}, "spec": spec}
    match kind:
        case "Pod":
            return {**found, "spec": spec}
        case "Job" | "CronJob":
            spec["restartPolicy"] = "Never"
            job = {"template": template}
            if kind == "Job":
                return {**found, "spec": job}
            inner = {"metadata": {"annotations": dict(annotations)}, "spec": job}
            return {**found, "spec": {"schedule": "0 0 1 1 *", "jobTemplate": inner}}
        case "ReplicationController":
            return {**found, "spec": {"selector": {"app": name}, "template": template}}
    more = {"serviceName": "w"} if kind == "StatefulSet" else {}
    return {**found, "spec": {"selector": {"matchLabels": {"app": name}}, "template": template, **more}}


def places(made: Any) -> list[Any]:
    """The metadata of an object and of its templates."""
    found = [made["metadata"]]
    spec = made["spec"]
    if "jobTemplate" in spec:
        found.append(spec["jobTemplate"]["metadata"])
        spec = spec["jobTemplate"]["spec"]
    if "template" in spec:
        found.append(spec["template"]["metadata"])
    return found


def submitters(made: Any) -> set[str | None]:
    """Who submitted it, as each place says."""
    return {(meta.get("annotations") or {}).get(KEY) for meta in places(made)}


@dataclass
class World:
    """Users with the role `edit` in one namespace."""

    at: Field
    admin: Client
    clients: dict[str, Client] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return self.at.namespace(False)

    def __getitem__(self, user: str) -> Client:
        return self.clients[user]

    async def create(self, user: str, found: dict[str, Any], *, dry_run: bool = False) -> Any:
        resource = kind_of(found["kind"])
        return await self[user].create(resource, found, namespace=self.namespace, dry_run=dry_run)

    async def patch(self, user: str, kind: str, body: Any, name: str = "w") -> Any:
        return await self[user].patch(kind_of(kind), name, body, namespace=self.namespace)

    async def get(self, kind: str, name: str = "w") -> Any:
        return await self.admin.get(kind_of(kind), name, namespace=self.namespace)

    async def all(self, kind: str) -> list[Any]:
        return list((await self.admin.list(kind_of(kind), namespace=self.namespace)).items or ())


PIPELINE = "system:serviceaccount:ci:pipeline"
USERS = ("alice", "bob", PIPELINE, OPERATOR, CRON_CONTROLLER)


@contextlib.asynccontextmanager
async def world(sandbox: Sandbox, form: str, **options: Any) -> AsyncIterator[World]:
    options = {"users": True, "controllers": (OPERATOR,), **options}
    async with contextlib.AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Client(sandbox.access()))
        at = await stack.enter_async_context(fields.field(admin, **options))
        found = World(at, admin)
        for number, user in enumerate(USERS):
            access = replace(sandbox.access(), impersonate=user)
            found.clients[user] = await stack.enter_async_context(Client(access))
            await _let_edit(admin, user, found.namespace, f"u{number}")
        may = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "patch"]}]
        for user in USERS:
            await until_allowed(admin, user, may, namespace=found.namespace)
        put_in_force = policies_for if form == "policy" else webhook_for
        await stack.enter_async_context(put_in_force(admin, at))
        yield found


async def _let_edit(admin: Client, user: str, namespace: str, name: str) -> None:
    group = "rbac.authorization.k8s.io"
    await admin.create(
        resource_of({"apiVersion": f"{group}/v1", "kind": "RoleBinding"}),
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        },
        namespace=namespace,
    )


FORMS = pytest.mark.parametrize("form", ["policy", "webhook"])
WORKLOADS = tuple(kind for kind in KINDS if kind in _GROUPS)


@FORMS
async def test_objects_say_who_created_them(sandbox: Sandbox, form: str) -> None:
    async with world(sandbox, form) as w:
        for kind in WORKLOADS:
            for user in ("alice", PIPELINE):
                for annotations in ({}, {KEY: "bob"}, {KEY: ""}, {"a": "b"}):
                    given = built(kind, **annotations)
                    made = await w.create(user, copy.deepcopy(given), dry_run=True)
                    assert submitters(made) == {user}, (kind, annotations)
                    # The Python rules, which `fluence admission try` applies, say the same.
                    scope = w.at.named(NAME)
                    about: Any = {"kind": kind, "namespace": w.namespace, "variables": {}, "user": user}
                    assert submitters(admit(scope, given, **about).object) == {user}
        # Who may impersonate is not meant: the request is that of the user they act for.
        assert submitters(await w.create("bob", built("Pod", "p"), dry_run=True)) == {"bob"}


@FORMS
async def test_nobody_changes_it(sandbox: Sandbox, form: str) -> None:
    async with world(sandbox, form) as w:
        for kind in WORKLOADS:
            await w.create("alice", built(kind))
            for user in ("bob", "alice", PIPELINE, OPERATOR):
                for value in ("bob", "", None):
                    await w.patch(user, kind, {"metadata": {"annotations": {KEY: value}}})
                    if kind in ("Deployment", "StatefulSet", "DaemonSet", "CronJob"):
                        inner: Any = {"template": {"metadata": {"annotations": {KEY: value}}}}
                        if kind == "CronJob":
                            inner = {
                                "jobTemplate": {"metadata": {"annotations": {KEY: value}}, "spec": inner}
                            }
                        await w.patch(user, kind, {"spec": inner})
                    assert submitters(await w.get(kind)) == {"alice"}, (kind, user, value)
        # A client that sends the whole object again without it, as `kubectl replace` does.
        deployment = await w.get("Deployment")
        for meta in places(deployment):
            meta["annotations"].pop(KEY)
        deployment["metadata"].pop("resourceVersion")
        before = deployment["metadata"]["generation"]
        made = await w["bob"].replace(kind_of("Deployment"), "w", deployment, namespace=w.namespace)
        assert submitters(made) == {"alice"}
        assert made["metadata"]["generation"] == before, "the template is as it was: there is no rollout"


async def test_what_the_rules_did_not_mend_is_refused(sandbox: Sandbox) -> None:
    """The policy that refuses, by itself: the webhook is down, or a later one changed the object."""
    async with (
        Client(sandbox.access()) as admin,
        fields.field(admin, users=True, controllers=(OPERATOR,)) as at,
        Client(replace(sandbox.access(), impersonate="alice")) as alice,
        Client(replace(sandbox.access(), impersonate=OPERATOR)) as operator,
    ):
        w = World(at, admin, {"alice": alice, OPERATOR: operator})
        await let_edit(admin, "alice", w.namespace)
        await _let_edit(admin, OPERATOR, w.namespace, "operator")
        async with fields.guard_for(admin, at):

            async def refusal(user: str, found: dict[str, Any]) -> str:
                with pytest.raises(Forbidden) as error:
                    await w.create(user, found, dry_run=True)
                return str(error.value)

            await eventually(
                lambda: _is_refused(w, built("Pod", **{KEY: "bob"})), what="the policy is in force"
            )
            for kind in WORKLOADS:
                assert "the name of the user who creates it, alice; leave" in await refusal(
                    "alice", built(kind, **{KEY: "bob"})
                )
                made = built(kind)
                for meta in places(made):
                    other = copy.deepcopy(made)
                    target = next(
                        each for one, each in zip(places(made), places(other), strict=True) if one is meta
                    )
                    target["annotations"][KEY] = "bob"
                    await refusal("alice", other)
                assert submitters(await w.create("alice", built(kind), dry_run=True)) == {None}
                await refusal(OPERATOR, built(kind, **{KEY: "alice"}))
            # An object without a name may get that of the user who changes it, and no other.
            await w.create("alice", built("Job"))
            with pytest.raises(Forbidden, match="cannot be changed"):
                await w.patch("alice", "Job", {"metadata": {"annotations": {KEY: "bob"}}})
            await w.patch("alice", "Job", {"metadata": {"annotations": {KEY: "alice"}}})
            with pytest.raises(Forbidden, match="cannot be changed"):
                await w.patch("alice", "Job", {"metadata": {"annotations": {KEY: None}}})


async def _is_refused(w: World, found: dict[str, Any]) -> bool:
    try:
        await w.create("alice", found, dry_run=True)
    except ApiError:
        return True
    return False


@FORMS
async def test_what_controllers_create_belongs_to_the_user_of_their_object(
    sandbox: Sandbox, form: str
) -> None:
    async with world(sandbox, form) as w:
        for kind in ("Job", "Deployment", "StatefulSet"):
            await w.create("alice", built(kind, kind.lower(), **{KEY: "bob"}))

        async def pods() -> dict[str, set[Any]]:
            return {each["metadata"]["labels"]["app"]: submitters(each) for each in await w.all("Pod")}

        alices = {key: {"alice"} for key in ("job", "deployment", "statefulset")}
        await eventually(pods, alices, what="their pods are alice's")
        assert [submitters(each) for each in await w.all("ReplicaSet")] == [{"alice"}]
        # A CronJob's controller copies the template of the Job.
        made = await w.create("alice", built("CronJob"))
        job = {"apiVersion": "batch/v1", "kind": "Job", **made["spec"]["jobTemplate"]}
        job["metadata"]["name"] = "w-1"
        assert submitters(await w.create(CRON_CONTROLLER, job)) == {"alice"}
        # An operator's template is its user's to write: what comes of it has no name.
        for kind in WORKLOADS:
            made = await w.create(OPERATOR, built(kind, "o", **{KEY: "bob"}), dry_run=True)
            assert submitters(made) == {None}, kind


@FORMS
async def test_a_pod_that_names_the_job_of_another_is_its_creators(sandbox: Sandbox, form: str) -> None:
    async with world(sandbox, form) as w:
        job = await w.create("alice", built("Job"))
        forged = built("Pod", "p", **{KEY: "alice"})
        forged["metadata"]["labels"] = {"app": "w", "batch.kubernetes.io/job-name": "w"}
        forged["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": "w",
                "uid": job["metadata"]["uid"],
                "controller": True,
            }
        ]
        assert submitters(await w.create("bob", forged, dry_run=True)) == {"bob"}


# -- queues --------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def right_to_use(admin: Client, user: str, queue: str, run: str) -> AsyncIterator[None]:
    """The role and binding of docs/queues.md. The doctor of other tests would warn of a role that is left."""
    group = "rbac.authorization.k8s.io"
    role: dict[str, Any] = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"{run}-{queue}"},
        "rules": [
            {
                "apiGroups": ["fluence.flux-framework.org"],
                "resources": ["queues"],
                "resourceNames": [queue],
                "verbs": ["use"],
            }
        ],
    }
    binding: dict[str, Any] = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{run}-{queue}"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": f"{run}-{queue}"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    for each in (role, binding):
        await admin.create(resource_of(each), each)
    try:
        yield
    finally:
        for each in (binding, role):
            await admin.delete(resource_of(each), each["metadata"]["name"])


@FORMS
async def test_a_queue_is_for_those_who_may_use_it(sandbox: Sandbox, form: str) -> None:
    queue = {names.QUEUE: "physics"}
    async with (
        world(sandbox, form, queue_access=True) as w,
        right_to_use(w.admin, "alice", "physics", w.at.run),
    ):

        async def created(user: str, found: dict[str, Any]) -> str:
            try:
                await w.create(user, found, dry_run=True)
            except Forbidden as error:
                return str(error)
            return ""

        await eventually(
            lambda: created("bob", built("Pod", **queue)), lambda told: "may not use" in told, what="refused"
        )
        await eventually(lambda: created("alice", built("Pod", **queue)), "", what="alice's right counts")
        for kind in WORKLOADS:
            assert await created("alice", built(kind, **queue)) == "", kind
            told = await created("bob", built(kind, **queue))
            assert "queue physics: user bob may not use it" in told, kind
            assert "ClusterRole with the verb use on queues.fluence.flux-framework.org" in told
            assert await created("bob", built(kind)) == ""
            assert await created("bob", built(kind, **{names.QUEUE: "off"})) == ""
            # One place is enough, and blanks do not hide a name.
            for index in range(len(places(built(kind)))):
                found = built(kind)
                places(found)[index]["annotations"][names.QUEUE] = " physics "
                assert "may not use" in await created("bob", found), (kind, index)
        # Kubernetes' controllers create what a user was allowed to describe.
        assert await created(CRON_CONTROLLER, built("Job", **queue)) == ""
        # An update that names a queue is asked about, and no other update of such an object.
        await w.create("bob", built("Pod", "p"))
        with pytest.raises(Forbidden, match="queue physics: user bob may not use it"):
            await w.patch("bob", "Pod", {"metadata": {"annotations": queue}}, "p")
        await w.create("alice", built("Deployment", "d", **queue))
        await w.patch("bob", "Deployment", {"metadata": {"labels": {"seen": "yes"}}}, "d")
        # A jobspec names a queue in a text that no policy reads.
        for text in ('{"attributes": {"system": {"queue": "physics"}}}', '{"qu\\u0065ue": "physics"}'):
            told = await created("bob", built("Job", **{names.JOBSPEC: text}))
            assert "needs the annotation" in told
            assert await created("alice", built("Job", **{names.JOBSPEC: text}, **queue)) == ""
        assert await created("bob", built("Job", **{names.JOBSPEC: '{"version": 1}'})) == ""


@pytest.mark.only("1.36")
async def test_a_pod_group_names_a_queue_too(sandbox: Sandbox) -> None:
    async with world(sandbox, "policy", queue_access=True) as w:
        group = {
            "apiVersion": "scheduling.k8s.io/v1alpha2",
            "kind": "PodGroup",
            "metadata": {"name": "g", "annotations": {names.QUEUE: "physics"}},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
        }
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "groups"},
            "rules": [{"apiGroups": ["scheduling.k8s.io"], "resources": ["podgroups"], "verbs": ["create"]}],
        }
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "groups"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "groups"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}],
        }
        for each in (role, binding):
            await w.admin.create(resource_of(each), each, namespace=w.namespace)
        resource = kind_of("PodGroup", "v1alpha2")

        async def told() -> str:
            try:
                await w["bob"].create(resource, group, namespace=w.namespace, dry_run=True)
            except Forbidden as error:
                return str(error)
            return ""

        await eventually(told, lambda text: "queue physics: user bob may not use it" in text)
