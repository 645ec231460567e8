"""Review: reads an AdmissionReview, applies the rules of its scope to the object, and answers with a JSON
patch.

Objects are allowed and changed, with one exception: an object that concerns us is refused if it is too large
for the rules, or if it arrives while too many others wait. Stored unchanged, it would lack its variables, or
start too early. The bounds are checked before a rule is evaluated, and each check costs less than reading the
object. An object within the bounds takes at most some 50 ms and 50 MB.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import msgspec

from fluence.admission.patch import CONTAINER_LISTS, Incoming, Operation, apply
from fluence.admission.rule import MAX_CONTAINERS
from fluence.admission.scopes import AdmissionScope
from fluence.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Admitted:
    """The object as it is stored, the patch, the rules that made it, and the warnings for its user."""

    object: Any
    patch: tuple[Operation, ...] = ()
    rules: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def admit(
    scope: AdmissionScope,
    manifest: Any,
    *,
    kind: str,
    namespace: str,
    variables: Mapping[str, str],
    user: str = "",
    old: Any = None,
    lists_gangs: bool = False,
) -> Admitted:
    """Apply the rules to an object that ``user`` creates, or updates from ``old``. ``variables``: by name,
    the annotation whose value each carries. ``lists_gangs``: whether pods get the PodGroup of their gang."""
    incoming = Incoming(manifest, kind, namespace, variables, user, old, lists_gangs)
    patch: list[Operation] = []
    applied = []
    with _odd_fields(kind):
        for rule in scope.rules:
            if kind in rule.kinds and rule.applies(incoming):
                operations = rule.edit.operations(incoming)
                if operations:
                    incoming = replace(incoming, object=apply(incoming.object, operations))
                    patch += operations
                    applied.append(rule.name)
        warnings = [
            warning.message
            for warning in scope.warnings
            if kind in warning.kinds and warning.when.holds(incoming)
        ]
    return Admitted(incoming.object, tuple(patch), tuple(applied), tuple(warnings))


def concerns(
    scope: AdmissionScope, manifest: Any, *, kind: str, namespace: str, by_a_glance: bool = False
) -> bool:
    """Whether a rule that reads the containers would change this object. ``by_a_glance``: whether it would
    look at it at all, which depends only on its metadata and the plain fields of its spec."""
    incoming = Incoming(manifest, kind, namespace, {})
    with _odd_fields(kind):
        return any(
            rule.concerns.holds(incoming) if by_a_glance else rule.applies(incoming)
            for rule in scope.rules
            if kind in rule.kinds and rule.reads_containers
        )


@contextlib.contextmanager
def _odd_fields(kind: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, AttributeError, ValueError) as error:
        raise InvalidInput(f"a field is not of the type that a {kind} has there ({error})") from None


def as_read(manifest: Any) -> Any:
    """A manifest as rules see it on the server, which gives a Job without labels those of its template."""
    if not isinstance(manifest, dict) or manifest.get("kind") != "Job":
        return manifest
    meta, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
    template = (spec.get("template") or {}).get("metadata") or {}
    if meta.get("labels") or not template.get("labels"):
        return manifest
    return {**manifest, "metadata": {**meta, "labels": dict(template["labels"])}}


logger = logging.getLogger(__name__)

MAX_BYTES: Final = 4 << 20
"""The size of a review. The server stores at most 1.5 MiB of an object, in a denser form."""
MAX_VALUES: Final = 200_000
"""Brackets and commas in an object: an upper bound of its lists, maps and values."""
MAX_RESOURCES: Final = 32
"""Resources of a container, in requests and in limits: each may be an edit of its own."""
MAX_DEPTH: Final = 64
MAX_NAME: Final = 253
"""The length of an object's name. The server refuses a longer one after admission, and a rule reads it letter
by letter."""

_SIDES: Final = ("limits", "requests")
_HEAD_BYTES: Final = 4096
_HEAD: Final = re.compile(
    rb'"request"\s*:\s*\{\s*"uid"\s*:\s*"(?P<uid>[0-9A-Za-z-]{1,64})"'
    rb'(?:\s*,\s*"kind"\s*:\s*\{[^{}"]*(?:"[a-z]+"\s*:\s*"[^"]*"\s*,\s*)*"kind"\s*:\s*"(?P<kind>[A-Za-z]{1,63})")?'
)

Text = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]


class _Kind(msgspec.Struct, frozen=True):
    kind: Text


class _UserInfo(msgspec.Struct, frozen=True):
    username: str = ""


class _Request(msgspec.Struct, frozen=True):
    """The request of a review; its object is decoded later."""

    uid: Text
    kind: _Kind
    namespace: Text = ""
    operation: Text = ""
    userInfo: _UserInfo = _UserInfo()
    object: msgspec.Raw = msgspec.Raw(b"null")
    oldObject: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct, frozen=True):
    request: _Request


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    generateName: str = ""
    labels: dict[str, str] | None = None


class _PodSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    schedulerName: str = ""


class _Template(msgspec.Struct, frozen=True, omit_defaults=True):
    metadata: _Meta = _Meta()
    spec: _PodSpec = _PodSpec()


class _Spec(msgspec.Struct, frozen=True, omit_defaults=True):
    schedulerName: str = ""
    template: _Template | None = None


class _Glance(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields that decide whether an object concerns us. The others are skipped and take no memory."""

    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()


_reviews = msgspec.json.Decoder(_Review)
_glances = msgspec.json.Decoder(_Glance)
_objects = msgspec.json.Decoder()

_VERSION: Final = "admission.k8s.io/v1"
_INVALID: Final = {"code": 422, "reason": "Invalid"}
_BUSY: Final = {"code": 429, "reason": "TooManyRequests", "details": {"retryAfterSeconds": 1}}


def answer(
    body: bytes | bytearray,
    scope: AdmissionScope,
    variables: Mapping[str, str],
    *,
    lists_gangs: bool = False,
) -> bytes:
    """Answer a review by the parameters of a HandOff. Nothing is written, so a dry run is like any other."""
    request = _read_request(body)
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if request.operation in scope.operations:
        try:
            response |= _decide(request, scope, variables, lists_gangs)
        except _Odd as error:
            # The object is malformed, or the fault is ours: in both cases the server decides.
            logger.warning("%s in %s is left as it is: %s", request.kind.kind, request.namespace, error)
    return _encoded(response)


def too_large(body: bytes | bytearray) -> bytes | None:
    """Refuse a review that was only read in part; None if the part does not contain its uid."""
    return _refused_unread(
        body,
        f"is over {MAX_BYTES >> 20} MiB as JSON, which is more than Fluence's admission reads; "
        "make it smaller: fewer containers, fewer variables",
        _INVALID,
    )


def busy(body: bytes | bytearray) -> bytes | None:
    """Refuse a review that waited too long behind other large ones."""
    return _refused_unread(
        body, "is large, and Fluence's admission has too many large objects to read; try again", _BUSY
    )


class _Odd(Exception):
    """A field of an object does not have the type that its kind requires."""


def _decide(
    request: _Request, scope: AdmissionScope, variables: Mapping[str, str], lists_gangs: bool
) -> dict[str, Any]:
    kind, namespace = request.kind.kind, request.namespace
    if _has_too_many_values(request.object):
        if not scope.is_bounded and scope.has_pods:
            return {}
        found = _glance(request.object)
        if not _asked(scope, found, request, by_a_glance=True):
            return {}
        return _refused(
            f"{_called(kind, found)}: it holds over {MAX_VALUES} values, which is more than "
            "Fluence's admission reads; make it smaller: fewer containers, fewer variables",
            _INVALID,
        )
    found = _read_object(request.object)
    if not isinstance(found, dict) or _is_named_too_long(found):
        return {}
    if scope.is_bounded and (too_much := _excess(found)) is not None:
        is_ours = _asked(scope, found, request)
        return _refused(f"{_called(kind, found)}: {too_much}", _INVALID) if is_ours else {}
    old = _read_object(request.oldObject) if request.operation == "UPDATE" else None
    try:
        made = admit(
            scope,
            found,
            kind=kind,
            namespace=namespace,
            variables=variables,
            user=request.userInfo.username,
            old=old,
            lists_gangs=lists_gangs,
        )
    except InvalidInput as error:
        raise _Odd(str(error)) from None
    response: dict[str, Any] = {}
    if made.patch:
        patch = msgspec.json.encode(made.patch)
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    if made.warnings:
        response["warnings"] = list(made.warnings)
    return response


def _asked(scope: AdmissionScope, found: Any, request: _Request, *, by_a_glance: bool = False) -> bool:
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
    """Whether the server would refuse such a name after admission."""
    name = (found.get("metadata") or {}).get("name") if isinstance(found.get("metadata"), dict) else None
    return isinstance(name, str) and len(name) > MAX_NAME


def _called(kind: str, found: Any) -> str:
    meta = found.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    return f"{kind} {str(meta.get('name') or meta.get('generateName') or 'without a name')[:100]}"


def _refused(message: str, status: Mapping[str, Any]) -> dict[str, Any]:
    return {"allowed": False, "status": {**status, "status": "Failure", "message": message}}


def _refused_unread(body: bytes | bytearray, message: str, status: Mapping[str, Any]) -> bytes | None:
    """Refuse an unread object. It concerns us, because the server calls the webhook for no others."""
    head = _read_head(body)
    if head is None:
        return None
    uid, kind = head
    return _encoded({"uid": uid, **_refused(f"this {kind or 'object'} {message}", status)})


def _encoded(response: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response})


def _read_request(body: bytes | bytearray) -> _Request:
    try:
        return _reviews.decode(body).request
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"is no AdmissionReview: {error}", where="the request") from None


def _read_head(body: bytes | bytearray) -> tuple[str, str] | None:
    """The uid and the kind ("" if unknown) of a review that was only read in part: the server writes them
    first."""
    found = _HEAD.search(body, 0, _HEAD_BYTES)
    return found and (found["uid"].decode(), (found["kind"] or b"").decode())


def _has_too_many_values(raw: msgspec.Raw) -> bool:
    text = bytes(memoryview(raw))
    return sum(map(text.count, (b",", b"{", b"["))) > MAX_VALUES


def _read_object(raw: msgspec.Raw) -> Any:
    """Decode an object that does not have too many values."""
    try:
        found = _objects.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"is no object: {error}", where="request.object") from None
    level = [found] if isinstance(found, dict | list) else []
    for _ in range(MAX_DEPTH):  # JSON is a tree, so a level has no more values than the object
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, dict | list)
        ]
        if not level:
            return found
    raise InvalidInput(f"is nested over {MAX_DEPTH} levels deep; make it flatter", where="request.object")


def _glance(raw: msgspec.Raw) -> Any:
    """The fields that decide whether an object concerns us, and its name."""
    try:
        return msgspec.to_builtins(_glances.decode(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"is no object: {error}", where="request.object") from None


def _excess(found: Any) -> str | None:
    """The first bound that a pod, or the template of a workload, exceeds, with its field and the cure."""
    spec, place = found.get("spec"), "spec"
    if isinstance(spec, dict) and isinstance(spec.get("template"), dict):
        spec, place = spec["template"].get("spec"), "spec.template.spec"
    if not isinstance(spec, dict):
        return None
    lists = {name: spec[name] for name in CONTAINER_LISTS if isinstance(spec.get(name), list)}
    count = sum(map(len, lists.values()))
    if count > MAX_CONTAINERS:
        return (
            f"{place}.containers: {count} containers and init containers, of which Fluence takes at most "
            f"{MAX_CONTAINERS} in a pod; use several pods"
        )
    for name, containers in lists.items():
        for i, container in enumerate(containers):
            resources = container.get("resources") if isinstance(container, dict) else None
            if not isinstance(resources, dict):
                continue
            for side in _SIDES:
                asked = resources.get(side)
                if isinstance(asked, dict) and len(asked) > MAX_RESOURCES:
                    return (
                        f"{place}.{name}[{i}].resources.{side}: {len(asked)} resources, of which Fluence "
                        f"takes at most {MAX_RESOURCES} in a container; ask for fewer"
                    )
    return None
