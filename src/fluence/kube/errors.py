"""Failures of an API server or of the connection to it, and which of them to retry.

    KubeError
    ├── Misconfigured        kubeconfig, certificate, exec plugin: nothing was sent
    ├── NotHeld              a write that needs a lease, without it: nothing was sent
    ├── Unreachable          no answer: refused, reset, name not found, certificate not trusted
    │   └── TimedOut         no answer in time
    └── ApiError             an answer, with its status
        ├── Unauthorized      401: the credentials are not accepted
        ├── Forbidden         403: the user lacks a right
        ├── Missing          404: no such object, or no such kind
        ├── ApiConflict      409: the object has changed, or does not allow it
        │   └── AlreadyExists
        ├── Gone             410: that version is compacted away; list again
        ├── Invalid          400, 422: the server refuses the content
        ├── TooManyRequests  429: later, perhaps after ``retry_after``
        └── ServerFault      5xx

Every message is one line: the request, the answer, and what to do."""

from __future__ import annotations

import random
import re

import msgspec

from fluence.backoff import Backoff
from fluence.errors import FluenceError


class KubeError(FluenceError):
    """Talking to Kubernetes failed."""


class Misconfigured(KubeError):
    """The configuration cannot be used; nothing was sent."""


class NotHeld(KubeError):
    """The lease under which it was to be written is not held; nothing was sent."""


class Unreachable(KubeError):
    """No answer came; ``sent``: the server may have carried out the request nevertheless."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class TimedOut(Unreachable):
    """No answer came in time."""


class StatusCause(msgspec.Struct, frozen=True):
    field: str = ""
    message: str = ""
    reason: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    kind: str = ""
    causes: list[StatusCause] | None = None
    retry_after_seconds: int | None = None


class Status(msgspec.Struct, frozen=True):
    """metav1.Status: the body of every refusal."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class ApiError(KubeError):
    """The server answered with an error."""

    def __init__(
        self,
        request: str,
        status: Status,
        *,
        cure: str = "",
        retry_after: float | None = None,
        ambiguous: bool = False,
    ) -> None:
        cure = cure or self.cure(status)
        message = " ".join(status.message.split()) or status.reason or "no message"
        super().__init__(f"{request}: {status.code} {message}" + (f"; {cure}" if cure else ""))
        self.status = status
        self.code = status.code
        self.reason = status.reason
        self.retry_after = retry_after
        # True: an earlier try of the same call got no answer, and may have succeeded and caused this refusal.
        self.ambiguous = ambiguous

    def cure(self, status: Status) -> str:
        return ""


class Unauthorized(ApiError):
    """401: the credentials are missing, wrong or expired."""

    def cure(self, status: Status) -> str:
        return "the token or certificate is missing, wrong or expired: log in again, or renew it"


class Forbidden(ApiError):
    """403: the user is known and may not do this."""

    def cure(self, status: Status) -> str:
        if "cannot" not in status.message:
            return ""
        return "bind a Role or ClusterRole with this verb and resource to that user"

    def for_user(self, subject: str, namespace: str, *, role: str) -> str:
        """One line: the right that the user lacks, and the standard role that has it. A refusal by an
        admission policy has its own text."""
        found = re.search(r'cannot (\w+) resource "([\w/.]+)"', self.status.message)
        if found is None:
            return f"{subject}: {self}"
        right = f"you may not {found[1]} {found[2]} in namespace {namespace}"
        return f"{subject}: {right}; you need the role `{role}` there"

    @property
    def is_ending(self) -> bool:
        """The namespace is being deleted: nothing new can be created in it."""
        causes = (self.status.details.causes if self.status.details is not None else None) or ()
        return any(cause.reason == "NamespaceTerminating" for cause in causes)


class Missing(ApiError):
    """404: no such object, or a kind that this server does not serve."""


class ApiConflict(ApiError):
    """409: the object has changed, or its state forbids the call."""


class AlreadyExists(ApiConflict):
    """409: an object of that name exists."""


class Gone(ApiError):
    """410: the server no longer has the requested version; list again."""


class Invalid(ApiError):
    """400 or 422: the server refuses the content."""


class TooManyRequests(ApiError):
    """429: later, perhaps after ``retry_after`` seconds."""


class ServerFault(ApiError):
    """5xx: the server failed."""


_BY_CODE: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: Missing,
    405: Missing,
    409: ApiConflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def error_for(
    request: str,
    code: int,
    body: bytes,
    *,
    cure: str = "",
    retry_after: str | None = None,
    ambiguous: bool = False,
) -> ApiError:
    """The exception for an error response. The body may be a Status, or any text of a proxy. ``cure`` is
    advice of the caller that is better than the default for this kind of error.
    """
    try:
        status = msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError:
        status = Status(message=body[:200].decode("utf-8", "replace"))
    if status.code != code:
        status = msgspec.structs.replace(status, code=code)
    after = _seconds(retry_after)
    if after is None and status.details is not None and status.details.retry_after_seconds:
        after = float(status.details.retry_after_seconds)
    kind = _BY_CODE.get(code, ServerFault if code >= 500 else ApiError)
    if kind is ApiConflict and status.reason == "AlreadyExists":
        kind = AlreadyExists
    if status.reason == "Expired":
        kind = Gone
    return kind(request, status, cure=cure, retry_after=after, ambiguous=ambiguous)


def _seconds(text: str | None) -> float | None:
    """Retry-After in seconds; its other form, a date, is not used by API servers and counts as absent."""
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """``tries`` in all; pauses grow from ``base_s`` to ``cap_s`` with full jitter, unless the server names
    one."""

    tries: int = 6
    base_s: float = 0.1
    cap_s: float = 5.0

    def pause(
        self,
        error: KubeError,
        *,
        attempt: int,
        repeatable: bool,
        retry_conflict: bool = False,
        rng: random.Random,
    ) -> float | None:
        """Seconds to wait before try ``attempt + 1`` (the first is 1); None if this failure is final.

        ``repeatable``: the call may be sent again although the first one may have been carried out.
        """
        if attempt >= self.tries:
            return None
        backoff = Backoff(self.base_s, self.cap_s).jittered(attempt + 1, rng)
        match error:
            case TooManyRequests():  # refused before it was carried out: always safe
                return max(error.retry_after or 0.0, backoff)
            case ServerFault():
                if not repeatable or error.code == 501:
                    return None
                return max(error.retry_after or 0.0, backoff)
            case Unreachable():
                return backoff if repeatable or not error.sent else None
            case ApiConflict() if retry_conflict:
                return backoff
            case _:
                return None


ONCE = RetryPolicy(tries=1)
