"""Keeper: sees to it that the API server trusts the webhook: its certificate is made, told and renewed.

The authority of a new certificate is added to the webhook configuration first, and the certificate is used
only when the server has had time to read that; so no call fails while they change. A server that cannot be
asked for a while changes nothing, until the certificate ends: what it was told it still knows.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from fluence.admission.certificates import LIFE, Issued, holds, issue, load, with_authority
from fluence.kube.client import Client
from fluence.kube.errors import ApiConflict, KubeError, Missing
from fluence.kube.resource import Json, Resource

logger = logging.getLogger(__name__)

WEBHOOK_CONFIGURATIONS: Final[Resource[Json]] = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    dict[str, object],
    namespaced=False,
)
_TRIES: Final = 8
_AGAIN_S: Final = 5.0
"""After a server that was not told."""
_UNKNOWN: Final = "the API server does not know our certificate yet"


@dataclass(frozen=True, slots=True)
class Renewal:
    """How long a certificate lives, and how often all is looked after."""

    life: timedelta = LIFE
    check_s: float = 60.0
    settle_s: float = 30.0
    """Between telling the API server of a new one and using it."""
    first_s: float = 3.0
    """Between telling it of the first one and being ready."""

    @classmethod
    def of(cls, life: timedelta) -> Renewal:
        """For certificates that live this long: all is done well before one ends."""
        usual, part = cls(), life.total_seconds() / 10
        return cls(life, min(usual.check_s, part), min(usual.settle_s, part), min(usual.first_s, part))


class CertificateKeeper:
    """``context`` serves with what is current; ``run`` keeps it so until cancelled."""

    def __init__(
        self,
        client: Client,
        name: str,
        hosts: Sequence[str],
        context: ssl.SSLContext,
        *,
        renewal: Renewal | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.problem = _UNKNOWN
        self.rotations = 0
        self._client = client
        self._name = name
        self._hosts = hosts
        self._context = context
        self._renewal = renewal or Renewal()
        self._now = now
        self.current: Issued = issue(hosts, now(), self._renewal.life)
        load(context, self.current)

    async def run(self) -> None:
        while True:
            due = self._now() >= self.current.renews
            issued = issue(self._hosts, self._now(), self._renewal.life) if due else self.current
            if not await self._told(issued):
                await asyncio.sleep(min(_AGAIN_S, self._renewal.check_s))
                continue
            if due:
                await asyncio.sleep(self._renewal.settle_s)
                load(self._context, issued)
                self.current = issued
                self.rotations += 1
                logger.info("a new certificate is in use: %r", issued)
            elif self.problem:
                self.problem = _UNKNOWN
                await asyncio.sleep(self._renewal.first_s)
            self.problem = ""
            await asyncio.sleep(self._renewal.check_s)

    async def _told(self, issued: Issued) -> bool:
        """Whether every webhook of the configuration trusts this one now."""
        try:
            await self._tell(issued.authority)
        except Missing:
            self.problem = f"mutatingwebhookconfiguration {self._name} does not exist; apply it first"
            logger.warning("%s", self.problem)
        except KubeError as error:
            wrong = f"the API server was not told our certificate: {error}"
            if self.problem or self._now() >= self.current.ends:
                self.problem = wrong
            logger.warning("%s", wrong)
        else:
            return True
        return False

    async def _tell(self, authority: bytes) -> None:
        for attempt in range(_TRIES):
            found: dict[str, Any] = await self._client.get(WEBHOOK_CONFIGURATIONS, self._name)
            if not self._add(found, authority):
                return
            try:
                await self._client.replace(WEBHOOK_CONFIGURATIONS, self._name, found)
                return
            except ApiConflict:
                if attempt == _TRIES - 1:  # another replica adds its own; both must be in it
                    raise

    def _add(self, found: dict[str, Any], authority: bytes) -> bool:
        """Add the authority where it lacks; whether it did anywhere."""
        changed = False
        for webhook in found.get("webhooks") or ():
            client = webhook["clientConfig"]
            bundle = base64.b64decode(client.get("caBundle") or "")
            if not holds(bundle, authority):
                added = with_authority(bundle, authority, self._now())
                client["caBundle"] = base64.b64encode(added).decode()
                changed = True
        return changed
