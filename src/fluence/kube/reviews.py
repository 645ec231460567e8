"""Reviews: whether the bearer of a token may get a path, decided by the API server and cached for a while.

As in kube-rbac-proxy and controller-runtime, a TokenReview identifies the user, and a SubjectAccessReview
decides whether RBAC allows this nonResourceURL. Our account needs the right to create both.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence

import msgspec
from cachetools import TTLCache

from fluence.kube.client import Client
from fluence.kube.errors import KubeError

logger = logging.getLogger(__name__)

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_CACHE_SECONDS = 60.0  # a right that was taken away ends so much later
_CACHE_SIZE = 1000  # bearers; more only cost calls
MAX_TOKEN_LENGTH = 16_384  # characters of a token; a service account's has about 1,200

OK, UNAUTHORIZED, FORBIDDEN, UNKNOWN = 200, 401, 403, 503


class Reviewed(msgspec.Struct, frozen=True):
    """Whose a token is."""

    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: Reviewed = Reviewed()


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
        self._known: TTLCache[bytes, int] = TTLCache(
            _CACHE_SIZE, _CACHE_SECONDS, timer=client.clock.monotonic
        )

    async def __call__(self, token: str) -> int:
        if len(token) > MAX_TOKEN_LENGTH:
            return UNAUTHORIZED
        key = hashlib.sha256(token.encode()).digest()  # a secret is not kept
        known = self._known.get(key)
        if known is not None:
            return known
        try:
            status = await self._ask(token)
        except KubeError as error:
            logger.warning("who asks for %s cannot be found out: %s", self._path, error)
            return UNKNOWN
        self._known[key] = status
        return status

    async def _ask(self, token: str) -> int:
        user = await review_token(self._client, token)
        if user is None:
            return UNAUTHORIZED
        allowed = await review_access(
            self._client,
            user=user.username,
            uid=user.uid,
            groups=user.groups,
            extra=user.extra,
            path={"path": self._path, "verb": "get"},
        )
        return OK if allowed else FORBIDDEN


async def review_token(client: Client, token: str) -> Reviewed | None:
    """The user of a token; None: it is not valid."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    status = msgspec.json.decode(await _create(client, _TOKENS, review), type=_TokenReview).status
    return status.user if status.authenticated else None


async def review_access(
    client: Client,
    *,
    user: str,
    uid: str = "",
    groups: Sequence[str] = (),
    extra: Mapping[str, Sequence[str]] | None = None,
    resource: Mapping[str, str] | None = None,
    path: Mapping[str, str] | None = None,
) -> bool:
    """Whether a user may do something with a resource, or with a nonResourceURL."""
    spec: dict[str, object] = {"user": user, "uid": uid, "groups": groups, "extra": extra or {}}
    if resource is not None:
        spec["resourceAttributes"] = resource
    if path is not None:
        spec["nonResourceAttributes"] = path
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = msgspec.json.decode(await _create(client, _ACCESS, review), type=_AccessReview)
    return answer.status.allowed


async def _create(client: Client, path: str, body: object) -> bytes:
    return await client.request("POST", path, body=msgspec.json.encode(body), timeout_s=10.0)
