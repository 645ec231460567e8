"""Reviews: whether the bearer of a token may get a path, asked of the API server and remembered for a while.

As kube-rbac-proxy and controller-runtime do it: a TokenReview says who it is, a SubjectAccessReview whether
RBAC lets them get this nonResourceURL. The asker needs the right to create both.
"""

from __future__ import annotations

import hashlib
import logging

import msgspec
from cachetools import TTLCache

from fluence.kube.client import Client
from fluence.kube.errors import KubeError

logger = logging.getLogger(__name__)

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_KEPT_S = 60.0  # a right that was taken away ends so much later
_KEPT = 1000  # bearers; more only cost calls
_LONGEST = 16_384  # characters of a token; a service account's has about 1,200

OK, UNAUTHORIZED, FORBIDDEN, UNKNOWN = 200, 401, 403, 503


class _Reviewed(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _Reviewed = _Reviewed()


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus = _AccessStatus()


class Reviews:
    """``await Reviews(client, path="/metrics")(token)`` gives an HTTP status: 200, 401, 403; 503 if the API
    server did not say."""

    def __init__(self, client: Client, *, path: str) -> None:
        self._client = client
        self._path = path
        self._known: TTLCache[bytes, int] = TTLCache(_KEPT, _KEPT_S, timer=client.clock.monotonic)

    async def __call__(self, token: str) -> int:
        if len(token) > _LONGEST:
            return UNAUTHORIZED
        key = hashlib.sha256(token.encode()).digest()  # a secret is not kept
        known = self._known.get(key)
        if known is not None:
            return known
        try:
            found = await self._ask(token)
        except KubeError as error:
            logger.warning("who asks for %s cannot be found out: %s", self._path, error)
            return UNKNOWN
        self._known[key] = found
        return found

    async def _ask(self, token: str) -> int:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        said = msgspec.json.decode(await self._create(_TOKENS, review), type=_TokenReview).status
        if not said.authenticated:
            return UNAUTHORIZED
        user = said.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups,
            "extra": user.extra,
            "nonResourceAttributes": {"path": self._path, "verb": "get"},
        }
        asked = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = msgspec.json.decode(await self._create(_ACCESS, asked), type=_AccessReview)
        return OK if answer.status.allowed else FORBIDDEN

    async def _create(self, path: str, body: object) -> bytes:
        return await self._client.request("POST", path, body=msgspec.json.encode(body), timeout_s=10.0)
