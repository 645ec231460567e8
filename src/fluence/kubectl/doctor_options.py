"""The options and the help of `doctor`, which `fluence` and `kubectl fluence` share. It loads nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from fluence.units import parse_duration

DOCTOR_HELP: Final = """Look at a cluster and say what is right, what is wrong, and what cures it.

One line per check, with a code that stays: server-version, gang-api, feature-gates, coscheduling, rights,
deployment, replica-versions, lease, one-scheduler, admission, webhook, hand-off, doors, flux-jobs,
pods-without-scheduler, waiting-groups, orphaned-gates, annotations.

Nothing is changed: it lists, asks the server what accounts may do, and tries two pods as dry runs. What you
may not read is "unseen", and nothing is concluded from it.

\b
Examples:
  {program}
  {program} -o json | jq -r '.findings[] | select(.verdict == "wrong") | .cure'
  {program} --as system:serviceaccount:fluence-system:fluence-scheduler
  {program} -n physics --waiting-longer-than 10m

\b
Exit codes:
  0  everything was looked at and nothing is wrong (warnings do not count, see --strict)
  1  something is wrong
  2  nothing wrong was seen, but not everything could be looked at; or no cluster, or a wrong command line
"""


class DurationType(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.2
    """Seconds, or 2h30m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = parse_duration(value) if isinstance(value, str) else None
        if found is None:
            self.fail(f"{value!r} is not a duration: write seconds, or 2h30m", param, ctx)
        return found / 1000


def doctor_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What the command gets as keywords."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS: Final = (
    click.option(
        "--scheduler-name", metavar="NAME", default="fluence", show_default=True, help="Which scheduler."
    ),
    click.option("-n", "--namespace", metavar="NAME", help="Pods and groups of this one only. Default: all."),
    click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster."),
    click.option("--context", metavar="NAME", help="The kubeconfig's context."),
    click.option(
        "--as",
        "account",
        metavar="ACCOUNT",
        help="Whose rights are asked for: system:serviceaccount:NAMESPACE:NAME. Default: the account of the "
        "scheduler's Deployment, else one's own.",
    ),
    click.option(
        "--waiting-longer-than",
        "waits_s",
        metavar="DURATION",
        type=DurationType(),
        default="1h",
        show_default=True,
        help="Name groups that wait for longer.",
    ),
    click.option("--strict", is_flag=True, help="Warnings count as wrong."),
    click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "wide", "json", "yaml"]),
        default="table",
        show_default=True,
        metavar="FORMAT",
        help="table, wide (with every right and every group), json, yaml.",
    ),
)
