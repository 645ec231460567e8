"""Names of a cluster, for the completion of command lines: jobs, namespaces, users, queues, contexts.

The shell waits for the answer, so a cluster that does not answer soon completes nothing. No error is shown:
it would appear in the middle of the command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from click.shell_completion import CompletionItem

from fluence.errors import FluenceError

if TYPE_CHECKING:
    import click

    from fluence.commands.view_api import ViewClient

_TIMEOUT_SECONDS: Final = 3.0
_KINDS: Final = {"job": "Job", "group": "Group", "pod": "Pod"}


def jobs(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Jobs, groups and pods of the namespace; after `job/` only Jobs."""
    prefix, slash, _rest = incomplete.rpartition("/")
    rows = _rows(ctx, ctx.params.get("namespace"))
    given = {*(ctx.params.get("names") or ()), ctx.params.get("name")}
    found = [
        CompletionItem(f"{prefix}{slash}{row['name']}", help=str(row.get("state", "")))
        for row in rows
        if not row.get("hidden") and row.get("name") and (not slash or row.get("kind") == _KINDS.get(prefix))
    ]
    return [item for item in _starting(found, incomplete) if item.value not in given]


def users(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _starting(_values(ctx, "user"), incomplete)


def queues(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _starting(_values(ctx, "queue"), incomplete)


def namespaces(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """All namespaces if the user may list them, otherwise those with jobs that the user sees."""
    client = _client(ctx)
    if client is None:
        return []
    from fluence.commands.view_api import Unanswered

    try:
        items = client.get("/api/v1/namespaces", {"limit": "1000"})["items"]
        spaces: Iterable[str] = (item["metadata"]["name"] for item in items)
    except (Unanswered, KeyError):
        spaces = (item.value for item in _values(ctx, "namespace"))
    return _starting(map(CompletionItem, sorted(set(spaces))), incomplete)


def contexts(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The contexts of the kubeconfig."""
    from fluence.kube.access import context_names

    with suppress(FluenceError, OSError):
        return _starting(map(CompletionItem, context_names(ctx.params.get("kubeconfig"))), incomplete)
    return []


def _values(ctx: click.Context, field: str) -> list[CompletionItem]:
    where = None if field == "namespace" else ctx.params.get("namespace")
    rows = _rows(ctx, where, every=True)
    return [CompletionItem(value) for value in sorted({str(row[field]) for row in rows if row.get(field)})]


def _rows(ctx: click.Context, namespace: str | None, *, every: bool = False) -> list[dict[str, Any]]:
    """The rows of a namespace, by default that of the kubeconfig. ``every``: by default of all."""
    client = _client(ctx)
    if client is None:
        return []
    from fluence.commands import conditions_view
    from fluence.commands.view_api import Unanswered

    where = namespace or (None if every else client.access.namespace)
    try:
        return client.items("jobs", where)[0]
    except Unanswered:
        with suppress(Unanswered):
            return conditions_view.rows(client, where, running=True)
    return []


def _client(ctx: click.Context) -> ViewClient | None:
    from fluence.commands.view_api import ViewClient

    with suppress(FluenceError, OSError):
        client = ViewClient.of(ctx.params.get("kubeconfig"), ctx.params.get("context"))
        client.timeout = _TIMEOUT_SECONDS
        return client
    return None


def _starting(items: Iterable[CompletionItem], incomplete: str) -> list[CompletionItem]:
    return [item for item in items if item.value.startswith(incomplete)]
