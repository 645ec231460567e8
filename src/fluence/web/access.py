"""Access: authenticates users and finds out what they may see. Both are decided by the API server.

A user is authenticated in one of two ways, as with any aggregated API server:

    through the API server   it has authenticated the user and says so in headers (X-Remote-User). They count
                             only on a connection with the certificate of its front proxy
    directly                 a bearer token, which a TokenReview checks

RBAC on the resources of the view's own group decides who may read what; in the first way, the API server has
already checked it. A user then sees the rows of namespaces whose pods they may list. Answers are cached for a
while, up to a bound.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from cachetools import TTLCache

from fluence.errors import FluenceError
from fluence.kube.client import Client
from fluence.kube.errors import KubeError
from fluence.kube.resource import Json, Resource
from fluence.kube.reviews import MAX_TOKEN_LENGTH, review_access, review_token
from fluence.names import VIEW_GROUP

_CACHE_SECONDS: Final = 30.0  # a revoked right ends this much later
_MAX_USERS: Final = 1000
_MAX_ANSWERS: Final = 50_000  # each for one user and namespace
_MAX_NAMESPACES: Final = 500  # that are checked for one request
_AT_ONCE: Final = 16
_MAX_GROUPS: Final = 1000

CONFIG_MAPS: Final[Resource[Json]] = Resource("", "v1", "configmaps", "ConfigMap", dict[str, object])
AUTHENTICATION: Final = ("kube-system", "extension-apiserver-authentication")
"""The ConfigMap in which the API server publishes the certificate of its front proxy, and its headers."""


class User(msgspec.Struct, frozen=True):
    """A user whom the API server knows."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def own_names(self, asked: Collection[str]) -> tuple[str, ...]:
        """The requested user names, with ``@me`` replaced by the names of this user."""
        own = (self.name, self.name.rpartition(":")[2], self.name.partition("@")[0])
        return tuple(dict.fromkeys(name for each in asked for name in (own if each == "@me" else (each,))))


class Refused(FluenceError):
    """A refused request, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FrontProxy(msgspec.Struct, frozen=True):
    """Identifies the API server's front proxy, and the headers in which it names the user."""

    authority: str  # PEM
    names: tuple[str, ...] = ()  # allowed common names of its certificate; empty: any
    user_headers: tuple[str, ...] = ("X-Remote-User",)
    uid_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ("X-Remote-Group",)
    extra_prefixes: tuple[str, ...] = ("X-Remote-Extra-",)

    @classmethod
    def read(cls, data: Mapping[str, str]) -> FrontProxy | None:
        """From the data of the ConfigMap; None if the API server has no front proxy.

        If its authority also signs the certificates of users and no name is required, every user could claim
        to be any other: then headers never count.
        """
        authority = data.get("requestheader-client-ca-file", "").strip()
        names = _names(data, "requestheader-allowed-names")
        if not authority or (not names and authority in data.get("client-ca-file", "")):
            return None
        return cls(
            authority,
            names,
            _names(data, "requestheader-username-headers") or cls.__struct_defaults__[1],
            _names(data, "requestheader-uid-headers"),
            _names(data, "requestheader-group-headers") or cls.__struct_defaults__[3],
            _names(data, "requestheader-extra-headers-prefix") or cls.__struct_defaults__[4],
        )

    def user(self, certificate: Mapping[str, Any], headers: Any) -> User | None:
        """The user that the front proxy names; None if the certificate is not the front proxy's, or no user
        is named. ``headers`` is a multidict; TLS has checked the certificate."""
        names = {
            value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"
        }
        if not certificate or (self.names and names.isdisjoint(self.names)):
            return None
        name = next((headers[key] for key in self.user_headers if headers.get(key)), "")
        if not name:
            return None
        groups = [value for key in self.group_headers for value in headers.getall(key, ())]
        extra: dict[str, list[str]] = {}
        for key, value in headers.items():
            for prefix in self.extra_prefixes:
                if key.lower().startswith(prefix.lower()):
                    extra.setdefault(key[len(prefix) :].lower(), []).append(value)
        return User(
            name,
            next((headers[key] for key in self.uid_headers if headers.get(key)), ""),
            tuple(groups[:_MAX_GROUPS]),
            tuple((key, tuple(values)) for key, values in sorted(extra.items())),
        )


def _names(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    try:
        return tuple(msgspec.json.decode(data.get(key) or "[]", type=list[str]))
    except msgspec.MsgspecError:
        return ()


@dataclass(frozen=True, slots=True)
class Reader:
    """What one user may see: the namespaces whose pods they may list."""

    user: User
    everything: bool = False
    namespaces: frozenset[str] = field(default_factory=frozenset)
    unchecked: int = 0  # namespaces beyond the limit, which were not checked

    def sees(self, namespace: str) -> bool:
        return self.everything or namespace in self.namespaces


class Access:
    """Asks through a client of its own, whose account may create token reviews and access reviews."""

    def __init__(self, client: Client) -> None:
        self.front_proxy: FrontProxy | None = None
        self._client = client
        timer = client.clock.monotonic
        self._users: TTLCache[bytes, User | None] = TTLCache(_MAX_USERS, _CACHE_SECONDS, timer=timer)
        self._answers: TTLCache[tuple[User, str, str, str, str], bool] = TTLCache(
            _MAX_ANSWERS, _CACHE_SECONDS, timer=timer
        )
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def user(self, certificate: Mapping[str, Any] | None, headers: Any) -> tuple[User, bool]:
        """The user, and whether the API server has already authorized the request."""
        if certificate and self.front_proxy is not None:
            named = self.front_proxy.user(certificate, headers)
            if named is not None:
                return named, True
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise Refused(401, "say who you are: Authorization: Bearer TOKEN")
        user = await self._of_token(token)
        if user is None:
            raise Refused(401, "the API server does not know this token: log in again")
        return user, False

    async def _of_token(self, token: str) -> User | None:
        if len(token) > MAX_TOKEN_LENGTH:
            return None
        key = hashlib.sha256(token.encode()).digest()  # secrets are not kept
        if key not in self._users:
            try:
                reviewed = await review_token(self._client, token)
            except KubeError as error:
                raise Refused(503, f"who you are cannot be found out now: {error}") from None
            self._users[key] = (
                None
                if reviewed is None
                else User(
                    reviewed.username,
                    reviewed.uid,
                    tuple(reviewed.groups),
                    tuple((name, tuple(values)) for name, values in sorted(reviewed.extra.items())),
                )
            )
        return self._users.get(key)

    async def check(self, user: User, verb: str, resource: str, namespace: str) -> None:
        """Raise Refused unless RBAC allows this user to read a resource of the view."""
        if not await self._may(user, verb, VIEW_GROUP, resource, namespace):
            where = f"in namespace {namespace}" if namespace else "in all namespaces"
            raise Refused(403, f"{user.name} may not {verb} {resource}.{VIEW_GROUP} {where}")

    async def reader(self, user: User, namespaces: Collection[str]) -> Reader:
        """What a user may see in some namespaces."""
        if await self._may(user, "list", "", "pods", ""):
            return Reader(user, everything=True)
        asked = sorted(namespaces)[:_MAX_NAMESPACES]
        answers = await asyncio.gather(*(self._may(user, "list", "", "pods", space) for space in asked))
        seen = frozenset(space for space, answer in zip(asked, answers, strict=True) if answer)
        return Reader(user, namespaces=seen, unchecked=len(namespaces) - len(asked))

    async def _may(self, user: User, verb: str, group: str, resource: str, namespace: str) -> bool:
        key = (user, verb, group, resource, namespace)
        known = self._answers.get(key)
        if known is not None:
            return known
        attributes = {"verb": verb, "group": group, "resource": resource}
        if namespace:
            attributes["namespace"] = namespace
        async with self._turns:
            try:
                allowed = await review_access(
                    self._client,
                    user=user.name,
                    uid=user.uid,
                    groups=user.groups,
                    extra=dict(user.extra),
                    resource=attributes,
                )
            except KubeError as error:
                raise Refused(503, f"what you may see cannot be found out now: {error}") from None
        self._answers[key] = allowed
        return allowed
