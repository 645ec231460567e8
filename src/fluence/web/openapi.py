"""OpenAPI: the document of the view API, made from the types of its resources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Final

import msgspec

from fluence.names import VIEW_GROUP
from fluence.web.cluster_rows import RESOURCES
from fluence.web.past_jobs import KINDS
from fluence.web.past_jobs import PARAMETERS as PAST_PARAMETERS
from fluence.web.resources import VERSION, Gap, JobDetail, ListMeta, PromiseTotals, Question, WhatIf

_BASE: Final = f"/apis/{VIEW_GROUP}/{VERSION}"
MAX_LIMIT: Final = 1000  # rows of a page
MAX_COLUMNS_LIMIT: Final = 20_000  # with selected columns only
NAMESPACED: Final = ("queue", "jobs", "groups", "plan", "promises", "decisions")
_SUMMARIES: Final = {
    "queue": "Gangs that wait, in the order of the queue, then those that are not in it",
    "jobs": "All gangs: those that have nodes, then those that wait",
    "groups": "Gangs as their users know them, with all their parts",
    "nodes": "Nodes: what is free, and who has the rest",
    "devices": "Devices that belong to no node",
    "plan": "Who has which nodes from when until when",
    "promises": "Starts that were promised, and how well promises were kept",
    "decisions": "What was decided last",
    "settings": "The settings that decide",
    "history": "Jobs of the past and of now, the newest first",
    "usage": "Sums over the history",
}
_PARAMETERS: Final = {
    "limit": ("integer", f"Rows of a page, at most {MAX_LIMIT}; with columns {MAX_COLUMNS_LIMIT}."),
    "continue": ("string", "The next page of the same snapshot, from the metadata of the page before."),
    "watch": ("boolean", "Server-sent events: the page again whenever it has changed."),
    "state": ("string", "Only rows in these states, separated by commas."),
    "user": ("string", "Only rows of these users, separated by commas; @me is the reader."),
    "queue": ("string", "Only rows of this queue."),
    "name": ("string", "Only rows of this name."),
    "expand": ("boolean", "The tasks of an array, each in a row of its own."),
    "columns": ("string", "Only these fields, separated by commas: rows instead of items."),
    "labelSelector": ("string", "Only rows whose first pod (a node: which itself) has these labels."),
}
_OF_HISTORY: Final = {
    "limit": ("integer", f"Rows of a page, at most {MAX_LIMIT}."),
    "continue": ("string", "The next page, further back, from the metadata of the page before."),
    "namespace": ("string", "Only jobs of these namespaces, separated by commas."),
    "user": ("string", "Only jobs of these users, separated by commas; @me is the reader."),
    "queue": ("string", "Only jobs of these queues, separated by commas."),
    "state": ("string", "Only jobs in these states, separated by commas."),
    "name": ("string", "Only jobs of these names, separated by commas; * is anything."),
    "job": ("string", "Only jobs with these ids, separated by commas."),
    "scheduler": ("string", "Only jobs of this scheduler."),
    "since": ("string", "Only jobs that had not ended by this time (RFC 3339)."),
    "until": ("string", "Only jobs that were submitted by this time (RFC 3339)."),
    "by": ("string", "What the sums are by: user, queue, namespace, state, separated by commas."),
}


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """OpenAPI 3.0, as the API server collects it from aggregated servers."""
    types = [row for _, _, row in RESOURCES.values()] + [row for _, row in KINDS.values()]
    used = list(dict.fromkeys((*types, JobDetail, ListMeta, PromiseTotals, Gap, Question, WhatIf)))
    _, schemas = msgspec.json.schema_components(used, ref_template="#/components/schemas/{name}")
    schemas = {name: _openapi(schema) for name, schema in schemas.items()}
    paths: dict[str, Any] = {}
    for resource, (kind, _, row) in RESOURCES.items():
        schemas[kind] = _list_schema(kind, row.__name__, totals=resource == "promises", columns=True)
        detail, one = f"{kind.removesuffix('List')}Detail", row
        if resource in ("queue", "jobs"):
            one = JobDetail
        schemas[f"{detail}List"] = _list_schema(detail, one.__name__)
        space = ""
        paths[f"{_BASE}/{resource}"] = _operation(resource, kind, _PARAMETERS)
        if resource in NAMESPACED:
            space = "/namespaces/{namespace}"
            paths[f"{_BASE}{space}/{resource}"] = _operation(resource, kind, _PARAMETERS, "namespace")
        named = ("namespace", "name") if space else ("name",)
        expand = {"expand": _PARAMETERS["expand"]}
        paths[f"{_BASE}{space}/{resource}/{{name}}"] = _operation(resource, f"{detail}List", expand, *named)
    for resource, (kind, row) in KINDS.items():
        schemas[kind] = _list_schema(kind, row.__name__, gaps=True)
        taken = {name: told for name, told in _OF_HISTORY.items() if name in PAST_PARAMETERS[resource]}
        paths[f"{_BASE}/{resource}"] = _operation(resource, kind, taken)
        paths[f"{_BASE}/namespaces/{{namespace}}/{resource}"] = _operation(resource, kind, taken, "namespace")
    paths[f"{_BASE}/namespaces/{{namespace}}/whatif"] = _question()
    return {
        "openapi": "3.0.0",
        "info": {
            "title": "Fluence: the view API",
            "version": version("fluence-scheduler"),
            "description": "What the scheduler knows and plans. A row with hidden: true is work of a "
            "namespace whose pods the reader may not list.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _openapi(schema: Any) -> Any:
    """A JSON schema in the form of OpenAPI 3.0, which has no type null."""
    if isinstance(schema, list):
        return [_openapi(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _openapi(value) for key, value in schema.items()}
    choices = made.get("anyOf", ())
    if {"type": "null"} in choices:
        (other,) = [each for each in choices if each != {"type": "null"}]
        made = {key: value for key, value in made.items() if key not in ("anyOf", "default")}
        # anything beside a $ref is ignored
        return {**made, "nullable": True, **({"allOf": [other]} if "$ref" in other else other)}
    return made


def _list_schema(
    kind: str, row: str, *, totals: bool = False, gaps: bool = False, columns: bool = False
) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string", "enum": [kind]},
        "metadata": {"$ref": "#/components/schemas/ListMeta"},
        "items": {"type": "array", "items": {"$ref": f"#/components/schemas/{row}"}},
    }
    if totals:
        properties["totals"] = {"$ref": "#/components/schemas/PromiseTotals"}
    if gaps:
        properties["gaps"] = {"type": "array", "items": {"$ref": "#/components/schemas/Gap"}}
    if columns:
        properties["columns"] = {"type": "array", "items": {"type": "string"}}
        properties["rows"] = {"type": "array", "items": {"type": "array", "items": {}}}
    return {
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "items"],
        "properties": properties,
    }


def _operation(
    resource: str, kind: str, queries: Mapping[str, tuple[str, str]], *in_path: str
) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in in_path
    ]
    parameters += [
        {"name": name, "in": "query", "description": note, "schema": {"type": type_}}
        for name, (type_, note) in queries.items()
    ]
    missing = {"404": {"description": "No object of this name that the reader may see"}}
    return {
        "get": {
            "summary": _SUMMARIES[resource],
            "parameters": parameters,
            "responses": {**_responses(kind, "A parameter is wrong"), **missing},
        }
    }


def _question() -> dict[str, Any]:
    """Manifests in, and what would become of them."""
    return {
        "post": {
            "summary": "What would become of manifests that are not submitted; nothing is changed",
            "parameters": [
                {"name": "namespace", "in": "path", "required": True, "schema": {"type": "string"}}
            ],
            "requestBody": {"required": True, "content": _content("Question")},
            "responses": {
                **_responses("WhatIf", "A manifest is wrong"),
                "413": {"description": "The manifests are too large"},
            },
        }
    }


def _responses(kind: str, wrong: str) -> dict[str, Any]:
    return {
        "200": {"description": "OK", "content": _content(kind)},
        "400": {"description": wrong},
        "401": {"description": "The API server does not know the bearer of this token"},
        "403": {"description": "RBAC does not allow it"},
        "429": {"description": "The reader has too many requests, streams or questions under way"},
        "503": {"description": "No replica leads, or the API server cannot be asked"},
    }


def _content(kind: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind}"}}}
