"""A check of answers against an OpenAPI document: every field is declared, and every declaration is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


def faults(document: dict[str, Any], path: str, answer: Any) -> list[str]:
    """What of an answer is not as the document says; ``path`` is one of the document."""
    (operation,) = document["paths"][path].values()
    said = operation["responses"]["200"]["content"]["application/json"]["schema"]
    return list(_faults(document, said, answer, path))


def _faults(document: dict[str, Any], schema: dict[str, Any], value: Any, at: str) -> Iterator[str]:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        yield from _faults(document, document["components"]["schemas"][name], value, at)
        return
    if value is None and schema.get("nullable"):
        return
    if "allOf" in schema:
        for part in schema["allOf"]:
            yield from _faults(document, part, value, at)
        return
    kind = schema.get("type")
    if kind is None:
        if set(schema) - {"description", "default", "nullable", "title"}:
            yield f"{at}: the schema is not understood: {schema}"
        return  # any value
    if kind not in _TYPES:
        yield f"{at}: OpenAPI 3.0 has no type {kind}"
        return
    if not isinstance(value, _TYPES[kind]) or (kind != "boolean" and isinstance(value, bool)):
        yield f"{at}: {value!r} is no {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    if kind == "array":
        for number, item in enumerate(value):
            yield from _faults(document, schema["items"], item, f"{at}[{number}]")
    if kind == "object":
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{at}.{name}: missing"
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, item in value.items():
            if name in known:
                yield from _faults(document, known[name], item, f"{at}.{name}")
            elif isinstance(others, dict):
                yield from _faults(document, others, item, f"{at}.{name}")
            else:
                yield f"{at}.{name}: not in the document"
