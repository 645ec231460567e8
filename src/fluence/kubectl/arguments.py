"""Arguments: the options of a choice, and which arguments are kubectl's, by kubectl's rules for flags.

A parser that knows only its own flags would read ``-nfoo`` as ``-n -f oo``; this one knows which of kubectl's
short flags take a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

_VALUED_SHORT: Final = frozenset("nlosv")
"""kubectl's short flags with a value: namespace, selector, output, server, verbosity."""

CONNECTION: Final = frozenset(
    {
        "--as",
        "--as-group",
        "--as-uid",
        "--as-user-extra",
        "--cache-dir",
        "--certificate-authority",
        "--client-certificate",
        "--client-key",
        "--cluster",
        "--context",
        "--disable-compression",
        "--insecure-skip-tls-verify",
        "--kubeconfig",
        "--password",
        "--request-timeout",
        "--server",
        "--tls-server-name",
        "--token",
        "--user",
        "--username",
        "-s",
    }
)
"""The flags that say which cluster, and as whom; what reads the cluster for us needs them too."""

_CONNECTION_SWITCHES: Final = frozenset({"--disable-compression", "--insecure-skip-tls-verify"})

# Allowed where nothing is sent, because people leave them on the line.
_HARMLESS: Final = CONNECTION | {"-n", "--namespace", "-v", "--v"}


class Split(NamedTuple):
    """A command line in two: what is ours and what is kubectl's, both in order."""

    own: list[str]
    forwarded: list[str]


def split(arguments: Sequence[str], own: Mapping[str, bool], *, forwards_all: bool) -> Split:
    """Take the flags of *own* (True: with a value) out of *arguments*; the rest is kubectl's.

    Without *forwards_all* only flags that say which cluster are kubectl's, and an unknown one is an error.
    """
    ours: list[str] = []
    theirs: list[str] = []
    rest = list(arguments)

    def known_to_kubectl(flag: str) -> bool:
        return forwards_all or flag in _HARMLESS

    while rest:
        word = rest.pop(0)
        if word == "--" or not word.startswith("-") or word == "-":
            raise click.UsageError(f'unexpected argument "{word}"; manifests are named with -f')
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            if word == "--dry-run" and flag in own:
                ours.append(word)
            elif flag == "--dry-run" and forwards_all:
                theirs.append(word)
            elif flag in own:
                ours += _own_long(flag, value if equals else None, rest, takes_value=own[flag])
            elif known_to_kubectl(flag):
                theirs.append(word)
                if not equals and flag not in _CONNECTION_SWITCHES and rest and not rest[0].startswith("-"):
                    theirs.append(rest.pop(0))
            else:
                from difflib import get_close_matches

                raise click.NoSuchOption(flag, possibilities=get_close_matches(flag, own))
            continue
        letters = word[1:]
        while letters:
            flag, letters = f"-{letters[0]}", letters[1:]
            if flag not in own and not known_to_kubectl(flag):
                raise click.NoSuchOption(flag)
            takes_value = own.get(flag, flag[1] in _VALUED_SHORT)
            target = ours if flag in own else theirs
            target.append(flag)
            if takes_value:
                if letters:
                    target.append(letters.removeprefix("="))
                elif rest:
                    target.append(rest.pop(0))
                break
    return Split(ours, theirs)


def _own_long(flag: str, value: str | None, rest: list[str], *, takes_value: bool) -> list[str]:
    if takes_value:
        if value is None and rest:
            value = rest.pop(0)
        return [flag] if value is None else [f"{flag}={value}"]
    # kubectl lets a switch be written --switch=true.
    if value is None or value == "true":
        return [flag]
    if value == "false":
        return []
    raise click.UsageError(f'{flag}: "{value}" is neither true nor false')


def connection_flags(forwarded: Sequence[str]) -> list[str]:
    """Those of *forwarded* that say which cluster, with their values."""
    found: list[str] = []
    for i, word in enumerate(forwarded):
        flag, equals, _ = word.partition("=")
        if flag in CONNECTION:
            found.append(word)
            if not equals and flag not in _CONNECTION_SWITCHES and i + 1 < len(forwarded):
                found.append(forwarded[i + 1])
    return found


_OPTIONS = (
    click.option(
        "-f",
        "--filename",
        "filenames",
        multiple=True,
        type=click.Path(allow_dash=True),
        help="A manifest: file, directory, pattern, address, or - for stdin. Repeatable.",
    ),
    click.option(
        "-k",
        "--kustomize",
        "kustomization",
        type=click.Path(file_okay=False),
        help="A kustomization directory.",
    ),
    click.option("-R", "--recursive", is_flag=True, help="Also read the directories below those of -f."),
    click.option(
        "--attributes",
        type=click.Path(),
        envvar="FLUENCE_ATTRIBUTES",
        help="Your file of backends and their attributes. [env: FLUENCE_ATTRIBUTES]",
    ),
    click.option(
        "--fluence-ns",
        default="kube-system",
        show_default=True,
        metavar="NS",
        help="Namespace of the fluence-resources ConfigMap.",
    ),
    click.option(
        "--cost-tol",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default=True,
        metavar="N",
        help="How far from the best cost, or queue, is as good as the best.",
    ),
    click.option("--force-select", is_flag=True, help="Choose again if the object already has a backend."),
    click.option(
        "--providers",
        default="",
        metavar="A,B",
        help="Ask only these: configmap, file, braket-live, or one of your own.",
    ),
    click.option(
        "--live-timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=10.0,
        show_default=True,
        metavar="S",
        help="Seconds that the cluster and live sources have to answer.",
    ),
    click.option(
        "--explain", is_flag=True, help="Print each candidate and the step that dropped it, on stderr."
    ),
)


def selecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of the choice."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
