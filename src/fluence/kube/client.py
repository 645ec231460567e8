"""Client: typed calls to one API server, with retries by kind of failure and an optional rate limit.

    async with Client(find_access()) as client:
        pods = await client.list(PODS, namespace="default")
        await client.bind(pods.items[0], "node-1", annotations={"example.org/why": "it fits"})

A call that may have been carried out although no answer came is sent again only where that is safe; a 409 to
the second try then carries ``ambiguous``: it may be the echo of the first.
"""

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
from fluence.kube.errors import ApiConflict, KubeError, Missing, ServerFault, TimedOut, Unreachable
from fluence.kube.limit import TokenBucket
from fluence.kube.resource import PODS, Json, ListMeta, Page, Resource
from fluence.kube.retry import ONCE, RetryPolicy
from fluence.kube.transport import Transport
from fluence.model.pod import Pod

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
        """The same client, whose writes go out only while this holds. It is asked last of all, as the first
        byte is sent: a process may be stopped, or busy, while a write waits for its turn."""
        found = copy.copy(self)
        found._held = held
        return found

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
        field_manager: str = "",
    ) -> T:
        """Create from JSON-like data or a struct. With generateName it is never sent twice."""
        content = msgspec.json.encode(body)
        name = msgspec.json.decode(content, type=_Named).metadata.name
        params = {"dryRun": "All" if dry_run else "", "fieldManager": field_manager}
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
        subresource: str = "",
    ) -> T:
        """PUT. With a resourceVersion in the body, a 409 says that somebody was faster."""
        path = resource.path(name, namespace=namespace, subresource=subresource)
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
    ) -> T:
        """Change some fields. Server-side apply needs a ``field_manager``; ``force`` takes fields from
        others."""
        if kind is PatchType.APPLY and not field_manager:
            field_manager = "fluence"
        content = msgspec.json.encode(body)
        # A list of JSON patch operations may not be the same twice; a 409 to a patch that pins no version is
        # only the server tired of merging, and may be sent again.
        is_json = kind is PatchType.JSON
        pinned = is_json or b'"resourceVersion"' in content or kind is PatchType.APPLY
        answer = await self.request(
            "PATCH",
            resource.path(name, namespace=namespace, subresource=subresource),
            params={"fieldManager": field_manager, "force": "true" if force else ""},
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
        propagation: str = "Background",
        missing_ok: bool = True,
    ) -> None:
        """Delete one object; with ``uid`` only that very one. Already gone is success unless asked
        otherwise."""
        options: Json = {"propagationPolicy": propagation}
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

        The uid goes along, so that a pod deleted and made anew under its name is refused (409). When an
        answer was lost and the second try is refused, the pod itself tells whether the first one did it.
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
            found = await self.get(PODS, meta.name, namespace=meta.namespace)
            if found.metadata.uid != meta.uid or found.spec.node_name != node:
                raise

    async def evict(self, pod: Pod) -> None:
        """Have a pod deleted if its PodDisruptionBudgets allow it; 429 if they do not, and it is not tried
        again here. The uid goes along, so that a pod made anew under its name is left alone."""
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
