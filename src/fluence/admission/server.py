"""Server: the webhook over HTTPS, with certificates and parameters that follow the cluster.

POST /mutate/<scope>   an AdmissionReview; /mutate alone is that of pods
GET  /healthz /readyz  for kubelets, over the same TLS
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web

from fluence import names
from fluence.admission.certificates import server_context
from fluence.admission.hooks import PATH
from fluence.admission.intake import Intake, TooLate, TooLong
from fluence.admission.keeper import CertificateKeeper, Renewal
from fluence.admission.review import answer, busy, too_large
from fluence.admission.scopes import AdmissionOptions, AdmissionScope, scopes
from fluence.errors import InvalidInput
from fluence.kube.client import Client
from fluence.kube.reflector import Reflector
from fluence.kube.resource import HAND_OFFS
from fluence.live.health import health_routes, serve
from fluence.model.hand_off import BASE, HandOff


@dataclass(frozen=True, slots=True)
class WebhookPlace:
    """Where the webhook is, and what it is called."""

    address: tuple[str, int]
    configuration: str
    hosts: Sequence[str]
    namespace: str
    """Of the parameters."""


class Reviews:
    """Reads reviews and answers them."""

    def __init__(self, known: Sequence[AdmissionScope], variables: Callable[[], Mapping[str, str]]) -> None:
        self.answered = 0
        self.drains = False
        """Whether connections are closed after their next answer."""
        self._scopes = {each.name: each for each in known}
        self._variables = variables
        self._intake = Intake()

    def routes(self) -> list[web.RouteDef]:
        return [web.post(PATH, self._review), web.post(f"{PATH}/{{scope}}", self._review)]

    async def _review(self, request: web.Request) -> web.Response:
        scope = self._scopes.get(request.match_info.get("scope", "pods"))
        if scope is None:
            return web.Response(status=404, text="no such scope\n")
        try:
            async with self._intake.reading(request) as body:
                found = answer(body, scope, self._variables())
        except InvalidInput as error:
            return web.Response(status=400, text=f"{error}\n")
        except TooLong as error:
            return _refusal(too_large(error.head), 413, "the request is too large")
        except TooLate as error:
            return _refusal(busy(error.head) if error.waited else None, 408, "the request came too slowly")
        self.answered += 1
        response = web.Response(body=found, content_type="application/json")
        if self.drains:
            response.force_close()
        await self._intake.send(request, response)
        return response


class Webhook:
    """Answers reviews while ``serving``; who is told to stop calls ``drain`` before it leaves."""

    def __init__(
        self,
        client: Client,
        options: AdmissionOptions,
        place: WebhookPlace,
        renewal: Renewal | None = None,
    ) -> None:
        self.reviews = Reviews(scopes(options), lambda: self.variables)
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
            optional=True,  # until the kind is there, every container gets what it always gets
        )

    @property
    def variables(self) -> Mapping[str, str]:
        """What the HandOff says; until there is one, what every container gets."""
        found = self._parameters.store.get(names.ADMISSION_PARAMETERS, self._place.namespace)
        return BASE if found is None else found.variables

    def unready(self) -> str:
        """What is missing; empty: nothing."""
        if self.reviews.drains:
            return "it was told to stop"
        return self.keeper.problem or (
            "" if self._parameters.synced.is_set() else "the parameters are not read yet"
        )

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Answer while the block runs; gives the port."""
        routes = [
            *self.reviews.routes(),
            *health_routes(healthy=lambda: "", ready=self.unready),
        ]
        async with serve(self._place.address, routes, tls=self._context) as port:
            tasks = [asyncio.create_task(each) for each in (self.keeper.run(), self._parameters.run())]
            try:
                yield port
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def drain(self, seconds: float) -> None:
        """Go on for so long, and have connections closed after their next answer.

        The API server learns that a pod goes only after the pod does, and does not call again where a call
        fails: one that stopped at once would leave new pods as they are.
        """
        self.reviews.drains = True
        await asyncio.sleep(seconds)


def _refusal(said: bytes | None, status: int, text: str) -> web.Response:
    """A review that says no, where it is known what was asked; the connection ends, as not all was read."""
    if said is None:
        response = web.Response(status=status, text=f"{text}\n")
    else:
        response = web.Response(body=said, content_type="application/json")
    response.force_close()
    return response
