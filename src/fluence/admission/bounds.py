"""Bounds: how large an object may be that rules look at. Whoever may create a pod decides its size.

They are asked before a rule is evaluated, and each costs less than reading the object. An object that passes
them costs at most some 50 ms and 50 MB. What is over a bound and concerns us is refused, so that nobody loses
variables or is started early without a word; what does not concern us passes.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec

from fluence.errors import InvalidInput

MOST_BYTES: Final = 4 << 20
"""Of a review. The server stores at most 1.5 MiB of an object, in a denser form."""
MOST_VALUES: Final = 200_000
"""Of brackets and commas in an object: there are no more lists, maps and values than those."""
MOST_CONTAINERS: Final = 256
MOST_RESOURCES: Final = 32
"""Of a container, in requests and in limits: each may be an edit of its own."""
DEEPEST: Final = 64
LONGEST_NAME: Final = 253
"""Of an object. The server refuses a longer one after admission, and a rule reads it letter by letter."""

CONTAINER_LISTS: Final = ("containers", "initContainers")
_SIDES: Final = ("limits", "requests")
_HEAD_BYTES: Final = 4096
_HEAD: Final = re.compile(
    rb'"request"\s*:\s*\{\s*"uid"\s*:\s*"(?P<uid>[0-9A-Za-z-]{1,64})"'
    rb'(?:\s*,\s*"kind"\s*:\s*\{[^{}"]*(?:"[a-z]+"\s*:\s*"[^"]*"\s*,\s*)*"kind"\s*:\s*"(?P<kind>[A-Za-z]{1,63})")?'
)

Text = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]


class _Kind(msgspec.Struct, frozen=True):
    kind: Text


class Request(msgspec.Struct, frozen=True):
    """What the server asks, its object not yet read."""

    uid: Text
    kind: _Kind
    namespace: Text = ""
    operation: Text = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct, frozen=True):
    request: Request


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
    """What decides whether an object concerns us. Everything else in it is skipped and takes no memory."""

    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()


_reviews = msgspec.json.Decoder(_Review)
_glances = msgspec.json.Decoder(_Glance)
_objects = msgspec.json.Decoder()


def read_request(body: bytes | bytearray) -> Request:
    try:
        return _reviews.decode(body).request
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"is no AdmissionReview: {error}", where="the request") from None


def read_head(body: bytes | bytearray) -> tuple[str, str] | None:
    """The uid and the kind ("" if unknown) of a review of which only the beginning was read: the server
    writes them first."""
    found = _HEAD.search(body, 0, _HEAD_BYTES)
    return found and (found["uid"].decode(), (found["kind"] or b"").decode())


def has_too_many_values(raw: msgspec.Raw) -> bool:
    text = bytes(memoryview(raw))
    return sum(map(text.count, (b",", b"{", b"["))) > MOST_VALUES


def read_object(raw: msgspec.Raw) -> Any:
    """The object, which has not too many values."""
    try:
        found = _objects.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"is no object: {error}", where="request.object") from None
    level = [found] if isinstance(found, dict | list) else []
    for _ in range(DEEPEST):  # a level has no more values than the object: what is read is a tree
        level = [
            each
            for value in level
            for each in (value.values() if isinstance(value, dict) else value)
            if isinstance(each, dict | list)
        ]
        if not level:
            return found
    raise InvalidInput(f"is nested over {DEEPEST} levels deep; make it flatter", where="request.object")


def glance(raw: msgspec.Raw) -> Any:
    """What is needed to say whether an object concerns us and what it is called."""
    try:
        return msgspec.to_builtins(_glances.decode(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"is no object: {error}", where="request.object") from None


def excess(found: Any) -> str | None:
    """What of a pod, or of a workload's template, is more than rules look at, with its field and its cure."""
    spec, place = found.get("spec"), "spec"
    if isinstance(spec, dict) and isinstance(spec.get("template"), dict):
        spec, place = spec["template"].get("spec"), "spec.template.spec"
    if not isinstance(spec, dict):
        return None
    lists = {each: spec[each] for each in CONTAINER_LISTS if isinstance(spec.get(each), list)}
    count = sum(map(len, lists.values()))
    if count > MOST_CONTAINERS:
        return (
            f"{place}.containers: {count} containers and init containers, of which Fluence takes at most "
            f"{MOST_CONTAINERS} in a pod; use several pods"
        )
    for name, each in lists.items():
        for i, container in enumerate(each):
            resources = container.get("resources") if isinstance(container, dict) else None
            if not isinstance(resources, dict):
                continue
            for side in _SIDES:
                asked = resources.get(side)
                if isinstance(asked, dict) and len(asked) > MOST_RESOURCES:
                    return (
                        f"{place}.{name}[{i}].resources.{side}: {len(asked)} resources, of which Fluence "
                        f"takes at most {MOST_RESOURCES} in a container; ask for fewer"
                    )
    return None
