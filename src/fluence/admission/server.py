"""Server: the webhook over HTTPS, with certificates and parameters that follow the cluster.

Small reviews are read and answered as they arrive. Only a few large ones are read at a time; the others wait
unread, so they neither use memory nor delay small ones.

POST /mutate/<scope>   an AdmissionReview; /mutate alone is the scope of pods GET  /healthz /readyz  for
kubelets, over the same TLS
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import ClientError, web

from fluence import names
from fluence.admission.certificates import CertificateKeeper, Renewal, server_context
from fluence.admission.manifests import WEBHOOK_PATH, WEBHOOK_TIMEOUT_S
from fluence.admission.review import MAX_BYTES, answer, busy, too_large
from fluence.admission.scopes import AdmissionOptions, AdmissionScope, scopes
from fluence.errors import InvalidInput
from fluence.kube.client import Client
from fluence.kube.reflector import Reflector
from fluence.kube.resource import HAND_OFFS
from fluence.live.http_server import health_routes, serve
from fluence.model.external_resources import BASE, HandOff

SMALL_BYTES: Final = 64 << 10
LARGE_AT_ONCE: Final = 3
WAIT_S: Final = WEBHOOK_TIMEOUT_S - 2.0
"""How long a large review waits to be read: the server continues without an answer after its timeout."""
READ_S: Final = WEBHOOK_TIMEOUT_S - 1.0
"""How long a review may take to arrive, including its wait."""
MAX_DROPPED_BYTES: Final = 64 << 20
"""How much of a review that is too long is read and dropped, so that its sender reads our answer."""
_HEAD_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class WebhookPlace:
    """Where the webhook listens, and the name of its configuration."""

    address: tuple[str, int]
    configuration: str
    hosts: Sequence[str]
    namespace: str
    """The namespace of the parameters."""


class TooLong(Exception):
    """A review is over the bound; ``head`` is its beginning."""

    def __init__(self, head: bytes) -> None:
        super().__init__()
        self.head = head


class TooLate(Exception):
    """A review did not arrive in time: it was slow, or it ``waited`` behind others."""

    def __init__(self, head: bytes, *, waited: bool) -> None:
        super().__init__()
        self.head, self.waited = head, waited


class Intake:
    """Limits how many large reviews are read, and large answers sent, at a time."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(LARGE_AT_ONCE)

    @contextlib.asynccontextmanager
    async def reading(self, request: web.Request) -> AsyncIterator[bytearray]:
        """The body of a request. A large one keeps its place until the block ends."""
        body = bytearray()
        try:
            async with contextlib.AsyncExitStack() as stack, asyncio.timeout(READ_S) as limit:
                is_large = False
                async for chunk in request.content.iter_any():
                    if not is_large and len(body) + len(chunk) > SMALL_BYTES:
                        is_large = True
                        await self._place(stack, request, bytes(body or chunk)[:_HEAD_BYTES])
                    body += chunk
                    if len(body) > MAX_BYTES:
                        head = bytes(body[:_HEAD_BYTES])
                        body.clear()
                        await _drop(request)
                        raise TooLong(head)
                if is_large:
                    await asyncio.sleep(0)  # small reviews that have arrived go first
                limit.reschedule(None)
                yield body
        except TimeoutError:
            raise TooLate(b"", waited=False) from None
        except (web.RequestPayloadError, ClientError, ConnectionError):  # the sender is gone
            raise TooLate(b"", waited=False) from None

    async def send(self, request: web.Request, response: web.Response) -> None:
        """Send large answers a few at a time: a client that does not read blocks a place but uses no
        memory."""
        if isinstance(response.body, bytes) and len(response.body) > SMALL_BYTES:
            async with self._places:
                with contextlib.suppress(ConnectionError):  # the client is gone
                    await response.prepare(request)
                    await response.write_eof()

    async def _place(self, stack: contextlib.AsyncExitStack, request: web.Request, head: bytes) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                await stack.enter_async_context(self._places)
        except TimeoutError:
            await _drop(request)
            raise TooLate(head, waited=True) from None


async def _drop(request: web.Request) -> None:
    left = MAX_DROPPED_BYTES
    async for chunk in request.content.iter_any():
        left -= len(chunk)
        if left < 0:
            return


class Reviews:
    """Reads reviews and answers them."""

    def __init__(
        self,
        known: Sequence[AdmissionScope],
        variables: Callable[[], Mapping[str, str]],
        *,
        lists_gangs: Callable[[], bool] = lambda: False,
    ) -> None:
        self.answered = 0
        self.drains = False
        """Whether connections are closed after their next answer."""
        self._scopes = {scope.name: scope for scope in known}
        self._variables = variables
        self._lists_gangs = lists_gangs
        self._intake = Intake()

    def routes(self) -> list[web.RouteDef]:
        return [web.post(WEBHOOK_PATH, self._review), web.post(f"{WEBHOOK_PATH}/{{scope}}", self._review)]

    async def _review(self, request: web.Request) -> web.Response:
        scope = self._scopes.get(request.match_info.get("scope", "pods"))
        if scope is None:
            return web.Response(status=404, text="no such scope\n")
        try:
            async with self._intake.reading(request) as body:
                answered = answer(body, scope, self._variables(), lists_gangs=self._lists_gangs())
        except InvalidInput as error:
            return web.Response(status=400, text=f"{error}\n")
        except TooLong as error:
            return _refusal(too_large(error.head), 413, "the request is too large")
        except TooLate as error:
            return _refusal(busy(error.head) if error.waited else None, 408, "the request came too slowly")
        self.answered += 1
        response = web.Response(body=answered, content_type="application/json")
        if self.drains:
            response.force_close()
        await self._intake.send(request, response)
        return response


class Webhook:
    """Answers reviews while ``serving``; call ``drain`` before you stop it."""

    def __init__(
        self,
        client: Client,
        options: AdmissionOptions,
        place: WebhookPlace,
        renewal: Renewal | None = None,
    ) -> None:
        self.reviews = Reviews(scopes(options), lambda: self.variables, lists_gangs=lambda: self.lists_gangs)
        self._place = place
        self._context = server_context()
        self.keeper = CertificateKeeper(
            client, place.configuration, place.hosts, self._context, renewal=renewal
        )
        self._parameters: Reflector[HandOff] = Reflector(
            client,
            HAND_OFFS,
            namespace=place.namespace,
            field_selector=f"metadata.name={names.ADMISSION_PARAMETERS}",
            optional=True,  # without the kind, containers get the variables in BASE
        )

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of the HandOff, or those of BASE while it does not exist."""
        return BASE if self._hand_off is None else self._hand_off.variables

    @property
    def lists_gangs(self) -> bool:
        """Whether pods get the PodGroup of their gang, as the HandOff says; not while it does not exist."""
        return self._hand_off is not None and self._hand_off.lists_gangs

    @property
    def _hand_off(self) -> HandOff | None:
        return self._parameters.store.get(names.ADMISSION_PARAMETERS, self._place.namespace)

    def unready(self) -> str:
        """Why the webhook is not ready; empty if it is."""
        if self.reviews.drains:
            return "it is shutting down"
        return self.keeper.problem or (
            "" if self._parameters.synced.is_set() else "the parameters are not read yet"
        )

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Answer while the block runs. Yields the port."""
        routes = [
            *self.reviews.routes(),
            *health_routes(healthy=lambda: "", ready=self.unready),
        ]
        async with serve(self._place.address, routes, tls=self._context) as port:
            tasks = [asyncio.create_task(work) for work in (self.keeper.run(), self._parameters.run())]
            try:
                yield port
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def drain(self, seconds: float) -> None:
        """Keep answering for some seconds, and close each connection after its next answer.

        The API server learns late that a pod ends, and does not repeat a failed call: a webhook that stopped
        at once would leave new pods unchanged.
        """
        self.reviews.drains = True
        await asyncio.sleep(seconds)


def _refusal(review: bytes | None, status: int, text: str) -> web.Response:
    """Refuse with a review if its uid is known. The connection is closed, because not all of it was read."""
    if review is None:
        response = web.Response(status=status, text=f"{text}\n")
    else:
        response = web.Response(body=review, content_type="application/json")
    response.force_close()
    return response
