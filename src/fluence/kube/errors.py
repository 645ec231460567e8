"""What an API server, or the way to it, can answer instead of what was asked.

    KubeError
    ├── Misconfigured        kubeconfig, certificate, exec plugin: nothing was sent
    ├── NotHeld              a write that needs a lease, without it: nothing was sent
    ├── Unreachable          no answer: refused, reset, name not found, certificate not trusted
    │   └── TimedOut         no answer in time
    └── ApiError             an answer, with its status
        ├── Unauthorized     401: who are you
        ├── Forbidden        403: you may not
        ├── Missing          404: no such object, or no such kind
        ├── ApiConflict      409: somebody was faster, or the object forbids it
        │   └── AlreadyExists
        ├── Gone             410: that version is compacted away; list again
        ├── Invalid          400, 422: the server refuses the content
        ├── TooManyRequests  429: later, perhaps after ``retry_after``
        └── ServerFault      5xx

Every message is one line: what was asked, what came back, and what to do.
"""

from __future__ import annotations

import msgspec

from fluence.errors import FluenceError


class KubeError(FluenceError):
    """Talking to Kubernetes failed."""


class Misconfigured(KubeError):
    """The configuration cannot be used; nothing was sent."""


class NotHeld(KubeError):
    """The lease under which it was to be written is not held; nothing was sent."""


class Unreachable(KubeError):
    """No answer came; ``sent`` says whether the server may have acted all the same."""

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
    """The server answered, but not with what was asked."""

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
        said = " ".join(status.message.split()) or status.reason or "no message"
        super().__init__(f"{request}: {status.code} {said}" + (f"; {cure}" if cure else ""))
        self.status = status
        self.code = status.code
        self.reason = status.reason
        self.retry_after = retry_after
        # True: an earlier try of the same call got no answer, so this refusal may be of our own success.
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

    @property
    def is_ending(self) -> bool:
        """The namespace is being deleted: nothing new may come into it, whoever asks."""
        causes = (self.status.details.causes if self.status.details is not None else None) or ()
        return any(each.reason == "NamespaceTerminating" for each in causes)


class Missing(ApiError):
    """404: no such object, or a kind that this server does not serve."""


class ApiConflict(ApiError):
    """409: the object has changed, or its state forbids the call."""


class AlreadyExists(ApiConflict):
    """409: an object of that name exists."""


class Gone(ApiError):
    """410: the version asked for is no longer held; list again."""


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
    """The exception for one refusal. The body may be a Status, or whatever a proxy on the way made up.

    ``cure`` is what the caller knows better than the kind of refusal does.
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
