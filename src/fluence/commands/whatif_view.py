"""What `whatif` asks the view API: manifests in, the scheduler's answer out, with the user's own rights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from fluence.commands import view
from fluence.commands.view_api import Unanswered, ViewClient, path_of
from fluence.errors import InvalidInput
from fluence.yaml_loader import read_documents

_SECONDS: Final = 55.0  # the API server ends a request after a minute


@dataclass(frozen=True, slots=True)
class ViewAnswer:
    """An answer of the scheduler's, which has made the text."""

    data: dict[str, Any]

    @property
    def starts_now(self) -> bool:
        return bool(self.data["startsNow"])

    @property
    def never(self) -> bool:
        return bool(self.data["never"])

    def lines(self, shown: int | None = None) -> list[str]:
        return list(self.data["wide" if shown is None else "lines"])

    def to_value(self) -> dict[str, Any]:
        return dict(self.data["answer"])


def ask_view(
    sources: Sequence[tuple[bytes, str]],
    *,
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
) -> ViewAnswer:
    """The answer about the manifests of all sources together: (text, name). `Unanswered` says why the view
    gives none."""
    files = [{"source": name, "documents": _documents(text, name)} for text, name in sources]
    client = ViewClient.of(kubeconfig, context)
    default = namespace or client.access.namespace or "default"
    spaces = {space or default for file in files for space in _namespaces(file["documents"])} or {default}
    if len(spaces) > 1:
        raise Unanswered("the view answers about one namespace at a time")
    body = json.dumps({"files": files}, default=str).encode()
    try:
        data = client.post(path_of("whatif", spaces.pop()), body, timeout=_SECONDS)
    finally:
        client.close()
    for note in data.get("notes", ()):
        click.echo(view.clean(f"note: {note}"), err=True)
    return ViewAnswer(data)


def _documents(text: bytes, source: str) -> list[Any]:
    documents = read_documents(text, source)
    for number, document in enumerate(documents, 1):
        if document is not None and not (
            isinstance(document, dict) and {"apiVersion", "kind"} <= document.keys()
        ):
            raise InvalidInput(
                "must be an object with apiVersion and kind", where=f"{source}: document {number}"
            )
    return documents


def _namespaces(documents: Any) -> list[str]:
    """Those that objects name; an empty one for an object that names none."""
    found = []
    for document in documents if isinstance(documents, list) else ():
        if not isinstance(document, dict):
            continue
        items = document.get("items")
        if str(document.get("kind", "")).endswith("List") and isinstance(items, list):
            found += _namespaces(items)
        elif isinstance(meta := document.get("metadata"), dict):
            found.append(str(meta.get("namespace") or ""))
    return found
