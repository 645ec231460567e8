"""Plain client: reads and writes objects of the API server, for short commands.

It does the same as `kube.client`, but without an event loop and aiohttp, which take longer to import than
such a command runs. Refusals are those of `kube.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from http.client import HTTPException
from random import Random
from time import sleep
from typing import Any, TypeVar

from msgspec.json import encode

from fluence.commands.view_api import MAX_BYTES, Unanswered, ViewClient, cause
from fluence.kube.errors import KubeError, Missing, RetryPolicy, Unreachable, error_for
from fluence.kube.resource import Resource

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
