"""Client: typed calls to one API server, with retries by kind of failure and an optional rate limit.

    async with Client(find_access()) as client:
        pods = await client.list(PODS, namespace="default")
        await client.bind(pods.items[0], "node-1", annotations={"example.org/why": "it fits"})

If no answer came, a call may have been carried out. It is sent again only if that is safe. A 409 to the
second try then has ``ambiguous`` set, because the first try may have succeeded."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import enum
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Self, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec

from fluence.clock import Clock, SystemClock
from fluence.kube.access import Access
from fluence.kube.errors import (
    ONCE,
    ApiConflict,
    KubeError,
    Missing,
    RetryPolicy,
    ServerFault,
    TimedOut,
    Unreachable,
)
from fluence.kube.resource import PODS, Json, ListMeta, Page, Resource
from fluence.kube.transport import Transport
from fluence.model.pod import Pod


class TokenBucket:
    """``rate`` tokens a second, at most ``burst`` saved up."""

    def __init__(self, rate: float, burst: float, *, clock: Clock) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError("rate must be above 0 and burst at least 1")
        self.rate = rate
        self.burst = float(burst)
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock.monotonic()

    def take(self) -> bool:
        """Take a token if one is available."""
        self._fill()
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def reserve(self) -> float:
        """Take a token, possibly a future one; returns the seconds until it is available."""
        self._fill()
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self.rate)

    def _fill(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now


T = TypeVar("T")

REMOTE_QPS = 50.0  # kube-scheduler's own default, with twice as many saved up; loopback has no limit
CALL_TIMEOUT_S = 60.0
ATTEMPT_TIMEOUT_S = 30.0


class PatchType(enum.Enum):
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


class Client:
    """One API server, one user. ``qps=0`` lifts the rate limit; None means the default for where the server
    is."""

    def __init__(
        self,
        access: Access,
        *,
        qps: float | None = None,
        burst: float | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        connections: int = 64,
    ) -> None:
        self.access = access
        self.clock = clock or SystemClock()
        self.transport = Transport(access, clock=self.clock, connections=connections)
        self.retries = 0  # counted for metrics and tests
        self._retry = retry or RetryPolicy()
        self._rng = rng or random.Random()
        if qps is None:
            qps = 0.0 if self.transport.is_loopback else REMOTE_QPS
        self._limit = TokenBucket(qps, burst or max(1.0, 2 * qps), clock=self.clock) if qps else None
        self._held: Callable[[], bool] | None = None

    def only_while(self, held: Callable[[], bool]) -> Client:
        """A copy of the client that writes only while ``held`` returns True. It is called as late as
        possible, when the first byte is sent, because a process may be stopped or busy while a write
        waits."""
        guarded = copy.copy(self)
        guarded._held = held
        return guarded

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.transport.close()

    # Reading

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T:
        path = resource.path(name, namespace=namespace)
        return resource.decoder.decode(await self.request("GET", path))

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
        timeout_s: float = CALL_TIMEOUT_S,
        retry: RetryPolicy | None = None,
        decode: Callable[[bytes], Page[T]] | None = None,
    ) -> Page[T]:
        """The whole list, read in pages of ``limit`` (0: in one piece); all belong to the version of the
        first. A 410 on a later page ends it with Gone: start over."""
        decode = decode or resource.page_decoder.decode
        params = {"labelSelector": label_selector, "fieldSelector": field_selector}
        if limit:
            params["limit"] = str(limit)
        path = resource.path(namespace=namespace)
        items: list[T] = []
        version = ""
        while True:
            page = decode(await self.request("GET", path, params=params, timeout_s=timeout_s, retry=retry))
            version = version or page.metadata.resource_version
            items.extend(page.items or ())
            if not page.metadata.continue_:
                return Page(ListMeta(version), items)
            params["continue"] = page.metadata.continue_

    @contextlib.asynccontextmanager
    async def watch(
        self,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        params: Mapping[str, str],
        idle_s: float,
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """An open watch as bytes; ``reflector`` knows how to read it. Never retried here."""
        target = _target(resource.path(namespace=namespace), {"watch": "true", **params})
        async with self.transport.stream(
            target, headers={}, idle_s=idle_s, request=f"watch {resource.name}"
        ) as stream:
            yield stream

    # Writing

    async def create(
        self,
        resource: Resource[T],
        body: object,
        *,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> T:
        """Create from JSON-like data or a struct. With generateName it is never sent twice."""
        content = msgspec.json.encode(body)
        name = msgspec.json.decode(content, type=_Named).metadata.name
        params = {"dryRun": "All" if dry_run else ""}
        path = resource.path(namespace=namespace)
        answer = await self.request("POST", path, params=params, body=content, repeatable=bool(name))
        return resource.decoder.decode(answer)

    async def replace(
        self,
        resource: Resource[T],
        name: str,
        body: object,
        *,
        namespace: str | None = None,
    ) -> T:
        """PUT. With a resourceVersion in the body, a 409 means that the object has changed."""
        path = resource.path(name, namespace=namespace)
        return resource.decoder.decode(await self.request("PUT", path, body=msgspec.json.encode(body)))

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        body: object,
        *,
        namespace: str | None = None,
        kind: PatchType = PatchType.MERGE,
        subresource: str = "",
        field_manager: str = "",
        force: bool = False,
        dry_run: bool = False,
    ) -> T:
        """Change some fields. Server-side apply needs a ``field_manager``; ``force`` takes fields from
        others; with ``dry_run`` the server checks it and changes nothing."""
        if kind is PatchType.APPLY and not field_manager:
            field_manager = "fluence"
        content = msgspec.json.encode(body)
        # A list of JSON patch operations may have another effect the second time. A 409 to a patch without a
        # version only means that the server gave up merging; it may be sent again.
        is_json = kind is PatchType.JSON
        pinned = is_json or b'"resourceVersion"' in content or kind is PatchType.APPLY
        answer = await self.request(
            "PATCH",
            resource.path(name, namespace=namespace, subresource=subresource),
            params={
                "fieldManager": field_manager,
                "force": "true" if force else "",
                "dryRun": "All" if dry_run else "",
            },
            body=content,
            content_type=kind.value,
            repeatable=not is_json,
            retry_conflict=not pinned,
        )
        return resource.decoder.decode(answer)

    async def apply(
        self, resource: Resource[T], body: Json, *, namespace: str | None = None, manager: str
    ) -> T:
        """Server-side apply of a whole object, taking fields from others."""
        meta = body.get("metadata")
        name = str(meta.get("name", "")) if isinstance(meta, dict) else ""
        return await self.patch(
            resource,
            name,
            body,
            namespace=namespace,
            kind=PatchType.APPLY,
            field_manager=manager,
            force=True,
        )

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        *,
        namespace: str | None = None,
        uid: str = "",
        grace_s: int | None = None,
        missing_ok: bool = True,
        dry_run: bool = False,
    ) -> None:
        """Delete one object; with ``uid``, only the object with this uid. By default it is a success if the
        object is already gone. With ``dry_run`` the server only checks the request."""
        options: Json = {"propagationPolicy": "Background"}
        if dry_run:
            options["dryRun"] = ["All"]
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self.request(
                "DELETE", resource.path(name, namespace=namespace), body=msgspec.json.encode(options)
            )
        except Missing:
            if not missing_ok:
                raise

    async def bind(
        self,
        pod: Pod,
        node: str,
        *,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Bind a pod to a node, with annotations and labels in the same write.

        The request has the uid, so that a pod that was deleted and created again under the same name is
        refused (409). If an answer was lost and the second try is refused, the pod is read to see whether the
        first try succeeded.
        """
        meta = pod.metadata
        metadata: Json = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
        if annotations:
            metadata["annotations"] = annotations
        if labels:
            metadata["labels"] = labels
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = PODS.path(meta.name, namespace=meta.namespace, subresource="binding")
        try:
            await self.request("POST", path, body=msgspec.json.encode(body), retry=retry)
        except ApiConflict as conflict:
            if not conflict.ambiguous:
                raise
            current = await self.get(PODS, meta.name, namespace=meta.namespace)
            if current.metadata.uid != meta.uid or current.spec.node_name != node:
                raise

    async def evict(self, pod: Pod) -> None:
        """Evict a pod if its PodDisruptionBudgets allow it; otherwise the server answers 429, which is not
        retried here. The request has the uid, so that a new pod under the same name is not evicted."""
        meta = pod.metadata
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": meta.name, "namespace": meta.namespace},
            "deleteOptions": {"preconditions": {"uid": meta.uid}},
        }
        path = PODS.path(meta.name, namespace=meta.namespace, subresource="eviction")
        await self.request("POST", path, body=msgspec.json.encode(body), retry=ONCE)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout_s: float = CALL_TIMEOUT_S,
        retry: RetryPolicy | None = None,
        repeatable: bool = True,
        retry_conflict: bool = False,
    ) -> bytes:
        """Any call, retried by the policy within ``timeout_s``."""
        policy = retry or self._retry
        target = _target(path, params) if params else path
        headers = {"Content-Type": content_type} if body is not None else {}
        request = f"{method} {path}"
        clock, deadline = self.clock, self.clock.monotonic() + timeout_s
        ambiguous = False
        attempt = 0
        while True:
            attempt += 1
            if self._limit is not None and (wait := self._limit.reserve()):
                await asyncio.sleep(wait)
            left = deadline - clock.monotonic()
            if left <= 0:
                raise TimedOut(f"{request}: not sent within {timeout_s:.3g} s", sent=ambiguous)
            try:
                return await self.transport.call(
                    method,
                    target,
                    body=body,
                    headers=headers,
                    timeout_s=min(ATTEMPT_TIMEOUT_S, left),
                    request=request,
                    ambiguous=ambiguous,
                    held=None if method == "GET" else self._held,
                )
            except KubeError as error:
                pause = policy.pause(
                    error,
                    attempt=attempt,
                    repeatable=repeatable,
                    retry_conflict=retry_conflict,
                    rng=self._rng,
                )
                if pause is None or clock.monotonic() + pause >= deadline:
                    raise
                ambiguous = ambiguous or isinstance(error, ServerFault) or _may_have_acted(error)
            self.retries += 1
            await asyncio.sleep(pause)


class _Name(msgspec.Struct):
    name: str = ""


class _Named(msgspec.Struct):
    metadata: _Name = msgspec.field(default_factory=_Name)


def _may_have_acted(error: KubeError) -> bool:
    return isinstance(error, Unreachable) and error.sent


def _target(path: str, params: Mapping[str, str]) -> str:
    query = urlencode({name: value for name, value in params.items() if value != ""})
    return f"{path}?{query}" if query else path
