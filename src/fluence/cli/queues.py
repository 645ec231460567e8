"""`fluence queues`: checks documents of queues, shows the tree that they form, and the usage of each on a
cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
import yaml

from fluence import event_loop
from fluence.cli.choice import read, source_name
from fluence.commands import view
from fluence.commands.options import output_option
from fluence.commands.queue import queue as listing
from fluence.errors import FluenceError, InvalidInput, NotFound
from fluence.kube.access import find_access
from fluence.kube.client import Client
from fluence.kube.errors import Missing
from fluence.kube.listing import list_all_kueue
from fluence.kube.resource import QUEUES
from fluence.model import queue_documents
from fluence.model.document import JsonValue
from fluence.model.kueue import KueueObject
from fluence.model.queue_documents import QueueObject
from fluence.model.queues import (
    Amounts,
    Queue,
    QueueTree,
    Resource,
    Stop,
    not_counted,
    problems,
    undefined_classes,
)
from fluence.units import format_amount, format_duration
from fluence.yaml_loader import load_all, problem

_ABSENT = "–"


@click.group()
def queues() -> None:
    """Queues: who is guaranteed how much, who may take how much, and whose turn it is.

    A file has one document of kind Queue for each. `kubectl apply -f FILE` puts them in force, and
    `fluence simulate --queues FILE` runs a log under them.

    \b
    Example of a file:
      {apiVersion: fluence.flux-framework.org/v1alpha1, kind: Queue, metadata: {name: science}}
      ---
      apiVersion: fluence.flux-framework.org/v1alpha1
      kind: Queue
      metadata: {name: physics}
      spec: {parent: science, guaranteed: {cpu: 400}, limit: {cpu: 800}, weight: 2}

    \b
    Examples:
      fluence queues check queues.yaml                    before you use it
      fluence queues tree queues.yaml                     what it says, at a glance
      fluence queues tree --live                          what a cluster has
      fluence queues usage                                what each uses there
      fluence simulate --trace log.swf --cluster 240x1 --queues queues.yaml
    """


class _Listing(click.Group):
    """`fluence queue`: the list of waiting jobs, as in `kubectl fluence queue`, which takes no argument; and,
    since people try them here, the commands of `fluence queues`."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([("check, tree, usage", "Those of `fluence queues`.")])


def _list(**given: Any) -> None:
    if click.get_current_context().invoked_subcommand is None:
        assert listing.callback is not None
        listing.callback(**given)


queue = _Listing(
    "queue",
    invoke_without_command=True,
    commands=queues.commands,
    params=listing.params,
    callback=_list,
    help=listing.help,
)

_file = click.argument("file", type=click.Path(allow_dash=True), required=False)
_live = click.option("--live", is_flag=True, help="The queues of a cluster, instead of a file.")
_kueue = click.option(
    "--kueue",
    is_flag=True,
    help="The objects of Kueue, of FILE or of a cluster, as the setting kueue-queues reads them.",
)


def _cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose a cluster."""
    command = click.option("--context", metavar="NAME", help="The kubeconfig's context.")(command)
    return click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster.")(command)


def _read(
    file: str | None, live: bool, kubeconfig: str | None, context: str | None
) -> tuple[list[Queue], str, dict[str, list[str]]]:
    """The queues of a file or of a cluster, their source, and notes on each: what no cluster counts, or what
    the scheduler of this one says."""
    if live != (file is None):
        raise click.UsageError("name a file, or --live for those of a cluster")
    if file is not None:
        queues, source = queue_documents.parse(read(file), source=source_name(file)), source_name(file)
        classes = {name for queue in queues for name in queue.classes}
        notes = {q.name: [*not_counted(q, ()), *undefined_classes(q, classes)] for q in queues}
    else:
        items, source = _objects(kubeconfig, context), "the cluster"
        queues = [item.queue() for item in items]
        notes = {item.name: _remarks(item) for item in items}
    return queues, source, {name: texts for name, texts in notes.items() if texts}


def _read_kueue(
    file: str | None, live: bool, kubeconfig: str | None, context: str | None
) -> tuple[list[Queue], str, dict[str, list[str]]]:
    """The queues in Kueue's objects of a file or of a cluster, and what has no effect here."""
    from fluence.model import kueue

    if live and file is not None:
        raise click.UsageError("name a file, or --live for those of a cluster")
    if file is not None:
        source = source_name(file)
        objects = _kueue_documents(read(file), source)
    else:
        source = "the cluster"
        access = find_access(kubeconfig=kubeconfig, context=context)

        async def listed() -> list[KueueObject]:
            async with Client(access) as client:
                return await list_all_kueue(client)

        objects = event_loop.run(listed)
    if not objects:
        raise NotFound(f"{source}: has no objects of {kueue.GROUP}")
    found = kueue.read(objects)
    notes: dict[str, list[str]] = {}
    for note in found.notes:
        notes.setdefault(note.of, []).append(note.text)
    return found.queues, source, notes


def _kueue_documents(text: str | bytes, source: str) -> list[KueueObject]:
    from fluence.model import kueue

    found: list[KueueObject] = []
    try:
        documents = list(load_all(text))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInput(f"is not YAML: {problem(error)[:200]}", where=source) from None
    for document in documents:
        items = document.get("items") if isinstance(document, dict) else None
        for each in items if isinstance(items, list) else [document]:
            try:
                item = kueue.from_document(each)
            except InvalidInput as error:
                raise InvalidInput(str(error), where=source) from None
            if item is not None:
                found.append(item)
    return found


def _remarks(item: QueueObject) -> list[str]:
    """The remarks of the scheduler about a valid queue."""
    valid = _conditions(item).get("Valid", {})
    is_plain = valid.get("status") != "True" or valid.get("reason") in ("Valid", "OthersInvalid")
    return [] if is_plain else [str(valid.get("message", ""))]


def _conditions(item: QueueObject) -> dict[str, Mapping[str, Any]]:
    """The conditions of a queue, by type."""
    said = item.status.get("conditions") if isinstance(item.status, dict) else None
    return {str(each.get("type")): each for each in said or () if isinstance(each, Mapping)}


def _objects(kubeconfig: str | None, context: str | None) -> list[QueueObject]:
    """The Queue objects of a cluster."""
    access = find_access(kubeconfig=kubeconfig, context=context)

    async def listed() -> list[QueueObject]:
        async with Client(access) as client:
            try:
                return (await client.list(QUEUES)).items or []
            except Missing:
                raise NotFound(
                    f"this cluster has no {QUEUES.name}: kubectl apply -f deploy/crds/queues.yaml"
                ) from None

    return event_loop.run(listed)


@queues.command()
@_file
@_live
@_kueue
@_cluster
@output_option((), note="How the result is printed; json and yaml list the problems of each queue.")
@click.pass_context
def check(
    ctx: click.Context,
    file: str | None,
    live: bool,
    kueue: bool,
    kubeconfig: str | None,
    context: str | None,
    output: str,
) -> None:
    """Say whether the queues of FILE are valid as a whole, or what is wrong with each queue involved.

    FILE may be - for the standard input; --live checks those of a cluster. A file that cannot be read as
    documents of kind Queue is refused at its first wrong field. Queues that can be read are checked as a
    tree: missing parents, cycles, depth, guarantees that no limit allows. Notes on the standard error name
    what is valid and probably not meant: in a file, resources that no pod can ask for (a simulation counts
    the types of its graph, such as core); with --live, what the scheduler says of each queue.

    \b
    Examples:
      fluence queues check queues.yaml
      kubectl get queues -o yaml | fluence queues check -
      fluence queues check --kueue                        what of Kueue's objects is not done as they say

    \b
    Exit codes: 0 the queues are valid; 1 they are not; 2 a wrong command line.
    """
    queues, source, notes = (_read_kueue if kueue else _read)(file, live, kubeconfig, context)
    wrong = problems(queues)
    for name, remarks in notes.items() if output not in ("json", "yaml") else ():
        for remark in remarks:
            of = name if kueue else f"queue {name}"
            click.echo(f"fluence: note: {of}: {remark}", err=True)
    if output in ("json", "yaml"):
        value: dict[str, JsonValue] = {
            "valid": not wrong,
            "queues": len(queues),
            "problems": {name: list(messages) for name, messages in sorted(wrong.items())},
            "notes": {name: list(remarks) for name, remarks in sorted(notes.items())},
        }
        click.echo(view.data(value, output))
    elif wrong:
        lines = [f"queue {name}: {message}" for name, messages in wrong.items() for message in messages]
        for line in lines[1:]:
            click.echo(f"fluence: {source}: {line}", err=True)
        raise FluenceError(f"{source}: {lines[0]}")
    else:
        leaves = len(QueueTree(queues).leaves)
        click.echo(f"{len(queues)} queues are valid, {leaves} of them take jobs")
    if wrong:
        ctx.exit(1)


@queues.command()
@_file
@_live
@_kueue
@_cluster
@output_option((), note="How the tree is printed; json and yaml are the documents in the order of the tree.")
def tree(
    file: str | None, live: bool, kueue: bool, kubeconfig: str | None, context: str | None, output: str
) -> None:
    """Show the queues of FILE as a tree: guarantees, limits, weights.

    ENTITLED is what a queue and the queues below it are guaranteed together. – is no limit. FILE may be - for
    the standard input; --live shows those of a cluster.

    \b
    Examples:
      fluence queues tree queues.yaml
      fluence queues tree queues.yaml -o json | jq '.items[].metadata.name'

    \b
    Exit codes: 0 done; 1 the queues are not valid; 2 a wrong command line.
    """
    listed, source, _ = (_read_kueue if kueue else _read)(file, live, kubeconfig, context)
    queues = queue_documents.tree_of(listed, source=source)
    if output in ("json", "yaml"):
        items = [queue_documents.to_value(queues.queues[name]) for name in queues.order]
        click.echo(view.data({"apiVersion": "v1", "kind": "List", "items": items}, output))
        return
    if not queues:
        click.echo("no queues")
        return
    titles = ["QUEUE", "ENTITLED", "LIMIT", "PER USER", "WEIGHT", "TIME"]
    rows = [_row(queues, name, prefix) for name, prefix in _drawn(queues)]
    if output == "wide":
        titles += ["NAMESPACES", "STOP"]
        rows = [[*row, *_wide(queues.queues[name])] for row, name in zip(rows, queues.order, strict=True)]
    click.echo(view.table(titles, rows))


@queues.command()
@_cluster
@output_option((), note="table, wide (with the users of each queue), json, yaml: the status of each queue.")
def usage(kubeconfig: str | None, context: str | None, output: str) -> None:
    """Show what the queues of a cluster use, by the status that the scheduler writes.

    USED is what runs in a queue and in the queues below it, BORROWED what of that is beyond their guarantees.
    SHARE is what it has used lately over what its
    weight gives it: 1.4 is 1.4 times its share. The status is a few seconds old. You need the right to list
    queues.

    \b
    Examples:
      fluence queues usage
      fluence queues usage -o json | jq '.physics.used'

    \b
    Exit codes: 0 done; 1 the cluster cannot be asked, or has no queues; 2 a wrong command line.
    """
    found = {item.name: item for item in _objects(kubeconfig, context)}
    status = {name: item.status if isinstance(item.status, dict) else {} for name, item in found.items()}
    if output in ("json", "yaml"):
        click.echo(view.data({name: status[name] for name in sorted(found)}, output))
        return
    if not found:
        click.echo("no queues")
        return
    titles = ["QUEUE", "ENTITLED", "LIMIT", "USED", "BORROWED", "RUNNING", "WAITING", "SHARE", "ACTIVE"]
    if output == "wide":
        titles += ["CLUSTER-SECONDS BY USER", "MESSAGE"]
    rows = []
    for name, drawn in _known(found):
        said = status[name]
        conditions = _conditions(found[name])
        texts = (said.get("entitled"), said.get("limit"), said.get("inUse"), said.get("borrowed"))
        counts = (said.get("running"), said.get("waiting"), said.get("share"))
        row = [drawn, *(str(text or _ABSENT) for text in texts)]
        row += [_ABSENT if value in (None, "") else str(value) for value in counts]
        row.append(str(conditions.get("Active", {}).get("status", _ABSENT)))
        if output == "wide":
            users = (said.get("usage") or {}).get("users") or {}
            row.append(", ".join(f"{user} {float(value):.0f}" for user, value in users.items()) or _ABSENT)
            row.append(str(conditions.get("Valid", {}).get("message", _ABSENT)))
        rows.append(row)
    click.echo(view.table(titles, rows))


def _known(found: Mapping[str, QueueObject]) -> list[tuple[str, str]]:
    """Each queue with the branches before its name; without branches if they do not form a tree."""
    try:
        queues = [item.queue() for item in found.values()]
    except queue_documents.InvalidQueue:
        queues = []
    if not queues or problems(queues):
        return [(name, name) for name in sorted(found)]
    return _drawn(QueueTree(queues))


def _drawn(tree: QueueTree) -> list[tuple[str, str]]:
    """Each queue with the branches before its name."""
    drawn: list[tuple[str, str]] = []
    waiting = [(name, "", "") for name in reversed(tree.children.get(None, ()))]
    while waiting:
        name, branch, rest = waiting.pop()
        drawn.append((name, branch + name))
        below = tree.children.get(name, [])
        for number, child in reversed(list(enumerate(below))):
            last = number == len(below) - 1
            waiting.append((child, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}"))
    return drawn


def _row(tree: QueueTree, name: str, drawn: str) -> list[str]:
    queue, time = tree.queues[name], tree.time(name)
    running = queue.per_user.running
    per_user = [] if running is None else [f"running {running}"]
    per_user += [_amount(resource, count) for resource, count in queue.per_user.amounts.items()]
    times = [
        f"{key} {format_duration(length // 1000)}"
        for key, length in (("default", time.default), ("max", time.max))
        if length is not None
    ]
    return [
        drawn,
        _amounts(tree.entitled[name]),
        _amounts(queue.limit),
        ", ".join(per_user) or _ABSENT,
        f"{queue.weight:g}",
        ", ".join(times) or _ABSENT,
    ]


def _wide(queue: Queue) -> list[str]:
    selector = queue.namespaces
    if selector is None:
        terms = [_ABSENT]
    else:
        terms = [f"{key}={value}" for key, value in (selector.match_labels or {}).items()]
        for term in selector.match_expressions or ():
            values = f" ({', '.join(term.values)})" if term.values else ""
            terms.append(f"{term.key} {term.operator}{values}")
    return [", ".join(terms) or "all", _ABSENT if queue.stop is Stop.NONE else queue.stop.value]


def _amounts(amounts: Amounts) -> str:
    return ", ".join(_amount(*item) for item in sorted(amounts.items())) or _ABSENT


def _amount(resource: Resource, count: int) -> str:
    return f"{resource} {format_amount(resource.name, count)}"
