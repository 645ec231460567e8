"""Verbs on a cluster: finds the objects with a name, and patches or deletes them, with a client of its own.

It does the same as `kube.client`, but without an event loop and aiohttp, which take longer to import than
such a command runs. Refusals are those of `kube.errors`.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from random import Random
from time import sleep
from typing import Any, TypeAlias, TypeVar, cast

import click
from msgspec.json import encode

from fluence import names
from fluence.commands import view
from fluence.commands.view_api import MAX_BYTES, Unanswered, ViewClient, cause, path_of
from fluence.errors import Conflict, FluenceError, InvalidInput, NotFound
from fluence.kube.errors import Forbidden, KubeError, Missing, RetryPolicy, Unreachable, error_for
from fluence.kube.gangs import CustomResource, discover_operators
from fluence.kube.resource import JOBS, PODS, Json, Resource
from fluence.model.grant import is_held_by_admission, is_held_by_user
from fluence.model.operators import OPERATORS, CustomOwner
from fluence.model.owner import Job, controller_of
from fluence.model.pod import Pod
from fluence.schedule.external_resources.gate_dependency import groups_of
from fluence.schedule.gangs.size import GroupLabel, group_field, group_label, other_group

T = TypeVar("T")


class PlainClient(ViewClient):
    """One user of one cluster."""

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        retry_conflict: bool = False,
    ) -> bytes:
        content = None if body is None else encode(body)
        query = {key: value for key, value in (params or {}).items() if value}
        attempt = 0
        while True:
            attempt += 1
            fault: KubeError
            try:
                response = self.send(path, query, method=method, body=content, content_type=content_type)
                answer = response.read(MAX_BYTES)
                if response.status < 300:
                    return answer
                after = response.headers.get("Retry-After")
                fault = error_for(f"{method} {path}", response.status, answer, retry_after=after)
            except Unanswered as error:
                fault = Unreachable(str(error))
            except (OSError, HTTPException) as error:
                self.close()
                fault = Unreachable(f"{self.access.server}: {cause(error, self.timeout)}")
            pause = RetryPolicy().pause(
                fault, attempt=attempt, repeatable=True, retry_conflict=retry_conflict, rng=Random()
            )
            if pause is None:
                raise fault
            sleep(pause)

    def read(self, resource: Resource[T], name: str, namespace: str) -> T | None:
        """One object; None if there is no object with this name."""
        try:
            return resource.decoder.decode(self.request("GET", resource.path(name, namespace=namespace)))
        except Missing:
            return None

    def list(self, resource: Resource[T], namespace: str, label_selector: str = "") -> list[T]:
        """All objects of a namespace, or those with some labels."""
        params = {"labelSelector": label_selector, "limit": "500"}
        found: list[T] = []
        while True:
            answer = self.request("GET", resource.path(namespace=namespace), params=params)
            page = resource.page_decoder.decode(answer)
            found += page.items or ()
            if not page.metadata.continue_:
                return found
            params["continue"] = page.metadata.continue_

    def patch(
        self, resource: Resource[Any], name: str, body: object, namespace: str, *, dry_run: bool
    ) -> None:
        """Merge some fields into an object."""
        self.request(
            "PATCH",
            resource.path(name, namespace=namespace),
            params={"dryRun": "All" if dry_run else ""},
            body=body,
            content_type="application/merge-patch+json",
            retry_conflict=True,
        )

    def delete(self, resource: Resource[Any], name: str, namespace: str, *, uid: str, dry_run: bool) -> None:
        """Delete the object with this name and uid."""
        options: dict[str, object] = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        if dry_run:
            options["dryRun"] = ["All"]
        self.request("DELETE", resource.path(name, namespace=namespace), body=options)


_POLL_S = 0.5
_HINT_S = 2.0  # how long the scheduler may take to look up a name
_KINDS = ("job", "group", "pod")
_CUSTOM_KINDS = tuple(operator.kind.lower() for operator in OPERATORS)

Item: TypeAlias = Job | Pod | CustomOwner
_T = TypeVar("_T")
_PAST = {
    "hold": "held",
    "release": "released",
    "requeue": "requeued",
    "cancel": "cancelled",
    "priority": "changed",
}


@dataclass(slots=True)
class Result:
    """What a verb did to one object."""

    verb: str
    item: Item
    note: str = ""
    dry_run: bool = False

    @property
    def name(self) -> str:
        kind = "job.batch" if isinstance(self.item, Job) else "pod"
        if isinstance(self.item, CustomOwner):
            kind = f"{self.item.kind.lower()}.{self.item.operator.group}"
        return f"{kind}/{self.item.metadata.name}"

    def line(self) -> str:
        note = f": {self.note}" if self.note else ""
        return f"{self.name} {_PAST[self.verb]}{note}{' (server dry run)' if self.dry_run else ''}"

    def value(self) -> dict[str, Any]:
        meta = self.item.metadata
        return {
            "verb": self.verb,
            "kind": "Pod" if isinstance(self.item, Pod) else self.item.kind,
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
            "note": self.note,
            "dryRun": self.dry_run,
        }


def _other_names(pod: Pod) -> tuple[str, ...]:
    """The names of the group of another system that a pod belongs to."""
    label = other_group(pod) if group_field(pod) is None and group_label(pod) is None else None
    return (label.name, label.gang) if isinstance(label, GroupLabel) else ()


@dataclass(slots=True)
class _Requests:
    """A client for functions that await one."""

    client: PlainClient

    async def request(self, method: str, path: str) -> bytes:
        return self.client.request(method, path)


def _done(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast(_T, end.value)
    raise AssertionError("it waits")


@dataclass(slots=True)
class _Cluster:
    """One namespace, with the rights of the user."""

    client: PlainClient
    namespace: str
    dry_run: bool
    timeout_s: float = 120.0
    _pods: list[Pod] | None = field(default=None)
    _custom: list[CustomResource] | None = field(default=None)  # that the server has

    def find(self, text: str) -> list[Item]:
        """The objects that a name means."""
        kind, slash, name = text.rpartition("/")
        kind = kind.lower()
        if (slash and kind not in (*_KINDS, *_CUSTOM_KINDS)) or not name:
            shown = (
                "write NAME, job/NAME, group/NAME, pod/NAME, or the kind of an operator, as in jobset/NAME"
            )
            raise InvalidInput(f"{text!r}: {shown}", where="NAME")
        if kind in ("", "job") and (job := self._get(JOBS, name)) is not None:
            return [job]
        if kind in ("", "group") and (members := self._group(name)):
            return members
        if kind in ("", "pod") and (pod := self._get(PODS, name)) is not None:
            return [pod]
        if kind not in _KINDS and (owner := self._find_custom(name, kind)) is not None:
            return [owner]
        words = {"job": "Job", "group": "group", "pod": "pod", "": "Job, group, pod or object of an operator"}
        what = words.get(kind) or next(each.kind for each in OPERATORS if each.kind.lower() == kind)
        raise NotFound(f"there is no {what} named {name} in namespace {self.namespace}")

    def _get(self, resource: Resource[Any], name: str) -> Any:
        return self.client.read(resource, name, self.namespace)

    def _find_custom(self, name: str, kind: str) -> CustomOwner | None:
        """The object of an operator. A TrainJob and its JobSet have the same name; the TrainJob counts."""
        if self._custom is None:
            self._custom = _done(discover_operators(cast(Any, _Requests(self.client))))
        found: list[CustomOwner] = []
        for resource in self._custom:
            if kind not in ("", resource.kind.lower()):
                continue
            try:
                owner = self._get(resource, name)
            except Forbidden:
                if kind:
                    raise
                continue  # the user did not ask for this kind
            if owner is not None:
                found.append(owner)
        made = {owner.identity for owner in found}
        return next((owner for owner in found if controller_of(owner.metadata) not in made), None)

    def _resource(self, item: Item) -> Resource[Any]:
        if isinstance(item, CustomOwner):
            return next(each for each in self._custom or () if each.operator is item.operator)
        return JOBS if isinstance(item, Job) else PODS

    def _group(self, name: str) -> list[Item]:
        """The Jobs whose pods belong to a group, and its pods without a Job. A group of another system may be
        given with its system, `volcano:train`; without it, our own groups come first."""
        if self._is_pod_only(name):
            return []
        pods = [pod for pod in self.pods() if name in groups_of(pod)]
        if not pods:
            pods = [pod for pod in self.pods() if name in _other_names(pod)]
        found: dict[str, Item] = {}
        for pod in pods:
            owner = pod.metadata.controller_reference
            job = None
            if owner is not None and owner.kind == "Job" and owner.uid not in found:
                job = self._get(JOBS, owner.name)
            if owner is None or owner.kind != "Job":
                found[pod.metadata.uid] = pod
            elif job is not None and job.claims(pod.metadata):
                found[owner.uid] = job
        return list(found.values())

    def _is_pod_only(self, name: str) -> bool:
        """Whether the scheduler knows only a pod without a group by this name. If so, the pods of the
        namespace need not be searched."""
        try:
            known = self.client.get(path_of("jobs", self.namespace, name), timeout=_HINT_S)["items"]
        except Unanswered:
            return False
        return all(entry["job"].get("gang") == f"{self.namespace}/pod:{name}" for entry in known)

    def pods(self) -> list[Pod]:
        if self._pods is None:
            self._pods = self.client.list(PODS, self.namespace)
        return self._pods

    def pods_of(self, job: Job) -> list[Pod]:
        selector = job.spec.selector
        labels = {} if selector is None else selector.match_labels or {}
        text = ",".join(f"{key}={value}" for key, value in labels.items())
        pods = self.client.list(PODS, self.namespace, text)
        return [pod for pod in pods if controller_of(pod.metadata) == job.identity]

    def patch(self, item: Item, body: Json) -> None:
        meta = item.metadata
        of_metadata = body.setdefault("metadata", {})
        assert isinstance(of_metadata, dict)
        of_metadata["uid"] = meta.uid  # not an object that was created again under this name
        self.client.patch(self._resource(item), meta.name, body, meta.namespace, dry_run=self.dry_run)

    def annotate(self, item: Item, annotations: dict[str, str | None]) -> None:
        self.patch(item, {"metadata": {"annotations": annotations}})

    # -- verbs -----------------------------------------------------------------------------------------------

    def hold(self, item: Item) -> str:
        waits = self._waiting(item)
        self.annotate(item, {names.HOLD: "true"})
        return waits

    def release(self, item: Item) -> str:
        held = is_held_by_user(item.metadata.annotations)
        pods = self.pods_of(item) if isinstance(item, Job) else []
        marked = [pod for pod in pods if is_held_by_user(pod.metadata.annotations)]
        for pod in marked:
            self.annotate(pod, {names.HOLD: None})
        if held or not marked:
            self.annotate(item, {names.HOLD: None})
        return "" if held or marked else "it was not held"

    def cancel(self, item: Item) -> str:
        meta = item.metadata
        self.client.delete(
            self._resource(item), meta.name, meta.namespace, uid=meta.uid, dry_run=self.dry_run
        )
        return ""

    def requeue(self, item: Item) -> str:
        name = item.metadata.name
        if isinstance(item, Pod):
            if not controller_of(item.metadata):
                raise Conflict(f"pod/{name} has no owner that would create it again: delete it and create it")
            self.cancel(item)
            return "its owner creates another"
        if isinstance(item, CustomOwner):
            raise Conflict(f"{item.kind.lower()}/{name} cannot be queued again: delete it and create it")
        if item.is_finished:
            raise Conflict(f"job/{name} has ended: create it again")
        self.patch(item, {"metadata": {"annotations": {names.CANCELLED: None}}, "spec": {"suspend": True}})
        if self.dry_run or is_held_by_admission(item):
            return ""  # the scheduler resumes work that admission held
        until = time.monotonic() + self.timeout_s
        while any(not pod.is_terminal for pod in self.pods_of(item)):
            if time.monotonic() > until:
                raise TimeoutError
            time.sleep(_POLL_S)
        self.patch(item, {"spec": {"suspend": False}})
        return ""

    def priority(self, item: Item, value: int) -> str:
        waits = self._waiting(item)
        self.annotate(item, {names.PRIORITY: str(value) if value else None})
        return "; ".join((f"priority {value}", *((waits,) if waits else ())))

    def _waiting(self, item: Item) -> str:
        """How much of an object has not started. Raises Conflict if it has ended."""
        name = item.metadata.name
        if isinstance(item, Pod):
            if item.is_terminal:
                raise Conflict(f"pod/{name} has ended")
            return "it runs already, and continues" if item.spec.node_name else ""
        if isinstance(item, CustomOwner):
            return ""
        if item.is_finished:
            raise Conflict(f"job/{name} has ended")
        pods = [pod for pod in self.pods_of(item) if not pod.is_terminal]
        run = sum(pod.spec.node_name is not None for pod in pods)
        return f"{run} of {len(pods)} pods run already, and continue" if run else ""


def work(
    verb: str,
    *,
    names: tuple[str, ...],
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    dry_run: bool,
    output: str,
    **options: Any,
) -> None:
    """Apply one verb to all names. A failure for one is reported, and the others are still done."""
    client = PlainClient.of(kubeconfig, context)
    space = namespace or client.access.namespace
    cluster = _Cluster(client, space, dry_run, timeout_s=options.pop("timeout_s", 120.0))
    results: list[Result] = []
    faults: list[str] = []
    for name in dict.fromkeys(names):
        try:
            for item in cluster.find(name):
                note = getattr(cluster, verb)(item, **options)
                results.append(Result(verb, item, note, dry_run))
        except TimeoutError:
            faults.append(
                f"{name}: its pods have not ended in time, and it stays suspended: repeat the command"
            )
        except Forbidden as error:
            faults.append(error.for_user(name, space, role="edit"))
        except FluenceError as error:
            faults.append(str(error) if name in str(error) else f"{name}: {error}")
    client.close()
    _show(results, output)
    for fault in faults[:-1]:
        click.echo(f"error: {view.clean(' '.join(fault.split()))}", err=True)
    if faults:
        raise FluenceError(faults[-1])


def _show(results: Iterable[Result], output: str) -> None:
    if output in ("json", "yaml"):
        click.echo(view.data({"results": [result.value() for result in results]}, output))
        return
    for result in results:
        click.echo(result.name if output == "name" else result.line())
