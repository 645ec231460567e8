"""Review: an AdmissionReview in, its answer out. Whatever comes, the object is allowed: we only change it."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from fluence.admission.interpreter import admit
from fluence.admission.scopes import AdmissionScope
from fluence.errors import InvalidInput

logger = logging.getLogger(__name__)

_VERSION = "admission.k8s.io/v1"


class _Kind(msgspec.Struct, frozen=True):
    kind: str


class _Request(msgspec.Struct, frozen=True):
    uid: str
    kind: _Kind
    namespace: str = ""
    operation: str = ""
    object: Any = None


class AdmissionReview(msgspec.Struct, frozen=True):
    """What the server asks."""

    request: _Request


_decoder = msgspec.json.Decoder(AdmissionReview)


def answer(body: bytes, scope: AdmissionScope, variables: Mapping[str, str]) -> bytes:
    """The answer to a review; nothing is written anywhere, so a dry run is like any other."""
    try:
        request = _decoder.decode(body).request
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInput(f"is no AdmissionReview: {error}", where="the request") from None
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if request.operation == "CREATE" and isinstance(request.object, dict):
        try:
            made = admit(
                scope,
                request.object,
                kind=request.kind.kind,
                namespace=request.namespace,
                variables=variables,
            )
        except InvalidInput as error:
            # Somebody's odd object, or a fault of ours: either way it is the server's to judge it.
            logger.warning("%s in %s is left as it is: %s", request.kind.kind, request.namespace, error)
        else:
            if made.patch:
                patch = msgspec.json.encode(made.patch)
                response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
            if made.warnings:
                response["warnings"] = list(made.warnings)
    return msgspec.json.encode({"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response})
