"""`fluence admission`: the admission rules as manifests, and what they would change in an object."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import click
import yaml

from fluence import names
from fluence.admission.manifests import SERVICE, manifests, to_yaml
from fluence.admission.review import Admitted, admit, as_read
from fluence.admission.rule import DEFAULT_HANDLERS, HANDLERS
from fluence.admission.scopes import (
    OPERATOR_KINDS,
    AdmissionOptions,
    AdmissionScope,
    DoorMode,
    chosen_handlers,
    scopes,
)
from fluence.admission.users import NAME as USERS_SCOPE
from fluence.cli.choice import STDIN
from fluence.commands import view
from fluence.errors import InvalidInput
from fluence.model import external_resources
from fluence.model.external_resources import BASE, hand_off_variables
from fluence.schedule.settings import SchedulerSettings
from fluence.yaml_loader import load_all, problem


@click.group()
def admission() -> None:
    """Changes to new pods and workloads before they are stored.

    Containers that ask for a device get the backend as variables; groups that share a quantum computer are
    split into a producer and those that wait; in namespaces that ask for it new work is held back. The rules
    are a policy of the API server (Kubernetes 1.36 and later), or served by `fluence webhook run`.

    \b
    Examples:
      fluence admission render | kubectl apply -f -
      fluence admission try pod.yaml -o diff
    """


def admission_options(command: Any) -> Any:
    """The options that decide which rules there are."""
    for option in (
        click.option(
            "--handlers",
            metavar="NAME,…",
            envvar="FLUENCE_HANDLERS",
            default=",".join(DEFAULT_HANDLERS),
            show_default=True,
            help=f"Which rules there are, in their order: {', '.join(HANDLERS)}. [FLUENCE_HANDLERS]",
        ),
        click.option(
            "--doors",
            type=click.Choice([each.value for each in DoorMode]),
            envvar="FLUENCE_DOORS",
            default=DoorMode.OFF.value,
            show_default=True,
            help="Where new work is held back; `namespaces`: those labelled "
            f"{names.NAMESPACE_OPT_IN}=enabled. [FLUENCE_DOORS]",
        ),
        click.option(
            "--bind",
            type=click.Choice(["direct", names.BIND_KUBE_SCHEDULER]),
            default="direct",
            show_default=True,
            envvar="FLUENCE_DOORS_BIND",
            help="Who binds what is held back. [FLUENCE_DOORS_BIND]",
        ),
        click.option(
            "--scheduler-name",
            metavar="NAME",
            envvar="FLUENCE_SCHEDULER_NAME",
            default=names.SCHEDULER,
            show_default=True,
            help="The `schedulerName` of our pods. [FLUENCE_SCHEDULER_NAME]",
        ),
        click.option(
            "--scheduler-aliases",
            metavar="NAME,…",
            envvar="FLUENCE_SCHEDULER_ALIASES",
            default="",
            help="Other names by which pods choose the scheduler. [FLUENCE_SCHEDULER_ALIASES]",
        ),
        click.option(
            "--operators",
            metavar="KIND,…",
            envvar="FLUENCE_OPERATORS",
            default=",".join(OPERATOR_KINDS),
            show_default=True,
            help="Objects of operators that are held back as a whole. [FLUENCE_OPERATORS]",
        ),
        click.option(
            "--except-namespace",
            "excluded",
            metavar="NAME",
            multiple=True,
            help="Another namespace in which nothing is changed, beside kube-system; repeatable.",
        ),
        click.option(
            "--users",
            is_flag=True,
            envvar="FLUENCE_USERS",
            help="Write on new pods and workloads who created them, and refuse changes of it. The scheduler "
            "counts by it with `users-policy`. [FLUENCE_USERS]",
        ),
        click.option(
            "--controllers",
            metavar="USER,…",
            envvar="FLUENCE_CONTROLLERS",
            default="",
            help="With --users: accounts of operators. What they create belongs to the user of the object "
            "that they follow. [FLUENCE_CONTROLLERS]",
        ),
        click.option(
            "--queue-access",
            is_flag=True,
            envvar="FLUENCE_QUEUE_ACCESS",
            help="Refuse objects that name a queue which their user has no right to `use`. "
            "[FLUENCE_QUEUE_ACCESS]",
        ),
    ):
        command = option(command)
    return command


def read_options(
    *,
    handlers: str,
    doors: str,
    bind: str,
    scheduler_name: str,
    scheduler_aliases: str,
    operators: str,
    excluded: tuple[str, ...],
    users: bool,
    controllers: str,
    queue_access: bool,
) -> AdmissionOptions:
    """The options, with a warning on stderr for each unknown handler and kind."""
    known, unknown = chosen_handlers(handlers)
    for each in unknown:
        near = difflib.get_close_matches(each, HANDLERS, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(HANDLERS)}"
        click.echo(f"warning: no handler is called {view.clean(each)!r}, it is left out{hint}", err=True)
    kinds = tuple(name for part in operators.split(",") if (name := part.strip()))
    for each in set(kinds) - set(OPERATOR_KINDS):
        there = ", ".join(OPERATOR_KINDS)
        click.echo(f"warning: {view.clean(each)!r} cannot be held back; there are {there}", err=True)
    plain = AdmissionOptions()
    return AdmissionOptions(
        handlers=known,
        doors=DoorMode(doors),
        scheduler=scheduler_name,
        aliases=_listed(scheduler_aliases),
        delegate=bind == names.BIND_KUBE_SCHEDULER,
        excluded=tuple(dict.fromkeys((*plain.excluded, *excluded))),
        users=users,
        controllers=_listed(controllers),
        queue_access=queue_access,
        operators=kinds,
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


@admission.command()
@click.option(
    "--as",
    "form",
    type=click.Choice(["policy", "webhook"]),
    default="policy",
    show_default=True,
    help="For the API server itself (1.36 and later), or for `fluence webhook run`.",
)
@click.option(
    "-n",
    "--namespace",
    envvar="FLUENCE_LEASE_NAMESPACE",
    default=SchedulerSettings().lease_namespace,
    show_default=True,
    help="Of the scheduler's lease, where it keeps the parameters; the chart's is fluence-system. "
    "[FLUENCE_LEASE_NAMESPACE]",
)
@click.option("--service", default=SERVICE, show_default=True, help="The webhook's Service.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@admission_options
def render(form: str, namespace: str, service: str, output: str, **chosen: Any) -> None:
    """Print the manifests of the rules, for `kubectl apply`.

    \b
    Examples:
      fluence admission render | kubectl apply -f -
      fluence admission render --doors namespaces
      fluence admission render -n fluence-system          for a scheduler that the chart installed
      fluence admission render --as webhook -n fluence-system
      fluence admission render --users --queue-access
    """
    found = manifests(
        read_options(**chosen), namespace=namespace, by_webhook=form == "webhook", service_name=service
    )
    if output == "json":
        click.echo(view.data({"apiVersion": "v1", "kind": "List", "items": found}, "json"))
    else:
        click.echo(to_yaml(found), nl=False)


@admission.command("try")
@click.argument("file", metavar="FILE")
@click.option("-n", "--namespace", default="default", show_default=True, help="Where it would be made.")
@click.option(
    "--resources",
    metavar="FILE",
    help="A resources.yaml, for the attributes that containers get. Default: names only.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json", "diff", "rules"]),
    default="yaml",
    show_default=True,
    help="The objects, what differs, or which rules changed them.",
)
@click.option("--user", default="you", show_default=True, help="Who would create it, for --users.")
@click.option(
    "--pod-groups",
    is_flag=True,
    help="As where gangs get a PodGroup, which the scheduler decides by its setting `pod-groups`.",
)
@admission_options
def try_(
    file: str,
    namespace: str,
    resources: str | None,
    output: str,
    user: str,
    pod_groups: bool,
    **chosen: Any,
) -> None:
    """Show what the rules make of the objects in a FILE; `-` is standard input. Nothing is sent anywhere.

    With --doors the namespace counts as one that holds work back.

    \b
    Examples:
      fluence admission try job.yaml -o diff
      fluence admission try - --doors namespaces < pod.yaml
      fluence admission try job.yaml --users --user alice -o diff
    """
    options = read_options(**chosen)
    variables = BASE
    if resources is not None:
        with click.open_file(resources) as stream:
            variables = hand_off_variables(external_resources.parse(stream.read(), source=resources))
    results = []
    known = scopes(options)
    for document in _documents(file):
        place = (document.get("metadata") or {}).get("namespace") or namespace
        made = _admitted(options, known, document, place, variables, user, pod_groups)
        results.append((document, made))
    for document, made in results:
        for told in made.warnings:
            click.echo(f"warning: {_called(document)}: {told}", err=True)
    _show(results, output)


def _show(results: list[tuple[Any, Admitted]], output: str) -> None:
    if output == "json":
        items = [made.object for _, made in results]
        click.echo(view.data({"apiVersion": "v1", "kind": "List", "items": items}, "json"))
    elif output == "rules":
        rows = [[_called(document), ", ".join(made.rules) or "-"] for document, made in results]
        click.echo(view.table(["OBJECT", "RULES"], rows))
    elif output == "diff":
        for document, made in results:
            before, after = (to_yaml([each]).splitlines() for each in (document, made.object))
            called = _called(document)
            for line in difflib.unified_diff(before, after, called, called, lineterm=""):
                click.echo(line)
    else:
        click.echo(to_yaml(made.object for _, made in results), nl=False)


def _admitted(
    options: AdmissionOptions,
    known: tuple[AdmissionScope, ...],
    document: Any,
    namespace: str,
    variables: dict[str, str],
    user: str,
    lists_gangs: bool,
) -> Admitted:
    kind = document.get("kind")
    held = options.doors is not DoorMode.OFF
    result = Admitted(document)
    if namespace in options.excluded:
        return result
    for scope in known:
        if kind in scope.kinds and (scope.name.endswith("-held") == held or scope.name == USERS_SCOPE):
            found = as_read(result.object)
            about: Any = {"kind": kind, "namespace": namespace, "variables": variables, "user": user}
            about["lists_gangs"] = lists_gangs
            try:
                made = admit(scope, found, **about)
            except InvalidInput as error:
                raise InvalidInput(str(error), where=_called(document)) from None
            result = Admitted(
                made.object,
                (*result.patch, *made.patch),
                (*result.rules, *made.rules),
                (*result.warnings, *made.warnings),
            )
    return result


def _documents(file: str) -> Iterator[dict[str, Any]]:
    """The objects of a file; those of a List one by one."""
    source = "standard input" if file == STDIN else file
    with click.open_file(file) as stream:
        text = stream.read()
    try:
        for number, found in enumerate(load_all(text), 1):
            is_list = isinstance(found, dict) and found.get("kind") == "List"
            for each in (found.get("items") or []) if is_list else [found]:
                if each is None:
                    continue
                if not isinstance(each, dict) or not isinstance(each.get("metadata") or {}, dict):
                    raise InvalidInput("is no Kubernetes object", where=f"{source}: document {number}")
                yield each
    except yaml.YAMLError as error:
        raise InvalidInput(f"is not YAML: {problem(error)}", where=source) from None


def _called(document: Any) -> str:
    meta = document.get("metadata") or {}
    name = meta.get("name") or f"{meta.get('generateName', '')}…"
    return view.clean(f"{str(document.get('kind', 'object')).lower()}/{name}")
