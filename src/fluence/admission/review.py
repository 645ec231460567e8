"""Review: an AdmissionReview in, its answer out.

Objects are allowed and changed, with one exception: what concerns us and is larger than rules look at, or
comes while too much waits, is refused. Stored as it is, it would lack its variables, or start too early.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fluence.admission import bounds
from fluence.admission.interpreter import admit, concerns
from fluence.admission.scopes import AdmissionScope
from fluence.errors import InvalidInput

logger = logging.getLogger(__name__)

_VERSION: Final = "admission.k8s.io/v1"
_INVALID: Final = {"code": 422, "reason": "Invalid"}
_BUSY: Final = {"code": 429, "reason": "TooManyRequests", "details": {"retryAfterSeconds": 1}}


def answer(body: bytes | bytearray, scope: AdmissionScope, variables: Mapping[str, str]) -> bytes:
    """The answer to a review; nothing is written anywhere, so a dry run is like any other."""
    request = bounds.read_request(body)
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if request.operation == "CREATE":
        try:
            response |= _decide(request, scope, variables)
        except _Odd as error:
            # Somebody's odd object, or a fault of ours: either way it is the server's to judge it.
            logger.warning("%s in %s is left as it is: %s", request.kind.kind, request.namespace, error)
    return _encoded(response)


def too_large(body: bytes | bytearray) -> bytes | None:
    """The answer to a review of which only the beginning was read; None: nobody can say what was asked."""
    return _refused_unread(
        body,
        f"is over {bounds.MOST_BYTES >> 20} MiB as JSON, which is more than Fluence's admission reads; "
        "make it smaller: fewer containers, fewer variables",
        _INVALID,
    )


def busy(body: bytes | bytearray) -> bytes | None:
    """The answer to a review that waits too long behind other large ones, by its beginning."""
    return _refused_unread(
        body, "is large, and Fluence's admission has too many large objects to read; try again", _BUSY
    )


class _Odd(Exception):
    """An object is not what its kind should be."""


def _decide(request: bounds.Request, scope: AdmissionScope, variables: Mapping[str, str]) -> dict[str, Any]:
    kind, namespace = request.kind.kind, request.namespace
    if bounds.has_too_many_values(request.object):
        found = bounds.glance(request.object)
        if not _asked(scope, found, request, by_a_glance=True):
            return {}
        return _refused(
            f"{_called(kind, found)}: it holds over {bounds.MOST_VALUES} values, which is more than "
            "Fluence's admission reads; make it smaller: fewer containers, fewer variables",
            _INVALID,
        )
    found = bounds.read_object(request.object)
    if not isinstance(found, dict) or _is_named_too_long(found):
        return {}
    if (excess := bounds.excess(found)) is not None:
        is_ours = _asked(scope, found, request)
        return _refused(f"{_called(kind, found)}: {excess}", _INVALID) if is_ours else {}
    try:
        made = admit(scope, found, kind=kind, namespace=namespace, variables=variables)
    except InvalidInput as error:
        raise _Odd(str(error)) from None
    response: dict[str, Any] = {}
    if made.patch:
        patch = msgspec.json.encode(made.patch)
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    if made.warnings:
        response["warnings"] = list(made.warnings)
    return response


def _asked(scope: AdmissionScope, found: Any, request: bounds.Request, *, by_a_glance: bool = False) -> bool:
    try:
        return concerns(
            scope,
            found,
            kind=request.kind.kind,
            namespace=request.namespace,
            by_a_glance=by_a_glance,
        )
    except InvalidInput as error:
        raise _Odd(str(error)) from None


def _is_named_too_long(found: dict[str, Any]) -> bool:
    """The server refuses it itself, when admission is through."""
    name = (found.get("metadata") or {}).get("name") if isinstance(found.get("metadata"), dict) else None
    return isinstance(name, str) and len(name) > bounds.LONGEST_NAME


def _called(kind: str, found: Any) -> str:
    meta = found.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    return f"{kind} {str(meta.get('name') or meta.get('generateName') or 'without a name')[:100]}"


def _refused(message: str, status: Mapping[str, Any]) -> dict[str, Any]:
    return {"allowed": False, "status": {**status, "status": "Failure", "message": message}}


def _refused_unread(body: bytes | bytearray, message: str, status: Mapping[str, Any]) -> bytes | None:
    """NB that it concerns us is known: the server calls the webhook for nothing else."""
    head = bounds.read_head(body)
    if head is None:
        return None
    uid, kind = head
    return _encoded({"uid": uid, **_refused(f"this {kind or 'object'} {message}", status)})


def _encoded(response: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response})
