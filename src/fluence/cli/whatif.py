"""`fluence whatif`: ask a saved queue about a job that nobody has submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fluence.cli import view
from fluence.cli.choice import Length, output_option, queue_policy_option, read, source_name
from fluence.errors import InvalidInput
from fluence.model.jobspec import Jobspec
from fluence.queue.job import SECOND

WAITS, NEVER = 3, 4
_SHOWN = 10


@click.command()
@click.argument("jobspec", metavar="JOBSPEC", type=click.Path(allow_dash=True))
@click.option(
    "--state",
    metavar="SNAPSHOT",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="The queue, as fluence simulate --snapshot writes it.",
)
@click.option(
    "--limit", metavar="TIME", type=Length(least=1), help="Its walltime.  [default: the jobspec's duration]"
)
@click.option("--user", default="you", show_default=True, help="Whose history to expect by.")
@click.option("--priority", type=int, default=16, show_default=True, help="More is earlier.")
@queue_policy_option(default=None, note="Another queue policy than the snapshot's.")
@output_option((), note="table, wide, json or yaml.")
@click.pass_context
def whatif(
    ctx: click.Context,
    jobspec: str,
    state: str,
    limit: int | None,
    user: str,
    priority: int,
    queue_policy: tuple[str, ...] | None,
    output: str,
) -> None:
    """Would this job start now? If not, when, who would wait longer for it, and what would make it sooner?

    Nothing is submitted and nothing changes. Exit code: 0 it would start now, 3 it would wait, 4 never.

    \b
    Examples:
      fluence simulate --trace log.swf --cluster 240x1 --until 2d --snapshot state.json
      fluence whatif big.yaml --state state.json
      fluence whatif - --state state.json --limit 2h -o json < big.yaml
    """
    from fluence.queue.snapshot import restore
    from fluence.queue.whatif import ask

    spec = Jobspec.parse(read(jobspec), source=source_name(jobspec))
    duration = spec.attributes.duration
    walltime = limit if limit is not None else round(duration * SECOND) if duration else None
    if queue_policy is not None and len(queue_policy) != 1:
        raise InvalidInput("name one policy", where="--queue-policy")
    policy = queue_policy[0] if queue_policy else None
    queue = restore(Path(state).read_bytes(), source=state, policy=policy)
    answer = ask(queue, spec, limit=walltime, user=user, priority=priority)
    value: dict[str, Any] = answer.to_value()
    if output in ("json", "yaml"):
        click.echo(view.json(value) if output == "json" else view.yaml(value))
    else:
        for line in answer.lines(shown=None if output == "wide" else _SHOWN):
            click.echo(line)
    if answer.starts_now:
        return
    ctx.exit(NEVER if answer.never else WAITS)
