"""`fluence whatif`: ask a queue, saved or of a running cluster, about a job that is not submitted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fluence.cli.choice import (
    Length,
    PluginName,
    cluster_options,
    queue_policy_option,
    read,
    source_name,
)
from fluence.commands.options import output_option
from fluence.commands.whatif import ask as ask_live
from fluence.commands.whatif import show_answer
from fluence.errors import InvalidInput
from fluence.plugin_loader import is_reference
from fluence.queue.job import SECOND

if TYPE_CHECKING:
    from fluence.queue.reasons import WhatIfAnswer


@click.command()
@click.argument("file", metavar="JOBSPEC|MANIFEST", type=click.Path(allow_dash=True))
@click.option(
    "--state",
    metavar="SNAPSHOT",
    type=click.Path(exists=True, dir_okay=False),
    help="The queue, as fluence simulate --snapshot writes it.",
)
@click.option("--live", is_flag=True, help="The queue of the running cluster, as its scheduler would see it.")
@cluster_options
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(),
    help="With --live: the scheduler's settings, as `fluence scheduler run --config` reads them. "
    "[default: as the leader says on its Lease]",
)
@click.option(
    "-n", "--namespace", metavar="NAME", help="With --live: of objects that name none.  [default: kubeconfig]"
)
@click.option(
    "--limit",
    metavar="TIME",
    type=Length(least=1),
    help="With --state: its walltime.  [default: the jobspec's duration]",
)
@click.option(
    "--queues",
    metavar="FILE",
    type=click.Path(),
    help="Documents of kind Queue to ask with; with --live, instead of those of the cluster.",
)
@click.option("--queue", metavar="NAME", help="With --state and --queues: its queue.  [default: default]")
@click.option("--user", help="With --state: whose history to expect by.  [default: you]")
@click.option("--priority", type=int, help="With --state: more is earlier.  [default: 16]")
@queue_policy_option(default=None, note="Another queue policy than the snapshot's or the scheduler's.")
@click.option(
    "--plugin",
    "plugins",
    metavar="MODULE:NAME",
    multiple=True,
    type=PluginName(),
    help="Allow a plug-in that the snapshot or the scheduler's Lease names as module:name; repeatable. "
    "Plug-ins that are installed here by entry points need no permission.",
)
@output_option((), note="table, wide, json or yaml.")
@click.pass_context
def whatif(
    ctx: click.Context,
    /,
    file: str,
    state: str | None,
    live: bool,
    output: str,
    plugins: tuple[str, ...],
    **given: Any,
) -> None:
    """Would this job start now? If not, when, who would wait longer for it, and what would make it sooner?

    A jobspec is put to a snapshot (--state). Manifests (Pod, Job, Deployment, PodGroup) are put to a running
    cluster (--live): its scheduler answers by its plan. If that does not answer, or with other settings or
    queues, the cluster is listed once and copied into memory, where the scheduler's cycle decides. `-` is
    standard input. Other kinds are left out, with a note. A workload that is in the cluster already is asked
    about as it is there. Nothing is submitted and nothing changes.

    \b
    Exit code: 0 it would start now, 3 it would wait, 4 never; 1 an input is wrong; 2 a wrong command line.

    \b
    Examples:
      fluence simulate --trace log.swf --cluster 240x1 --until 2d --snapshot state.json
      fluence whatif big.yaml --state state.json
      fluence whatif - --state state.json --limit 2h -o json < big.yaml
      fluence whatif big.yaml --state state.json --queues queues.yaml --queue physics
      fluence whatif job.yaml --live --context prod -n physics
      fluence whatif job.yaml --live --queues queues.yaml     if these were in force
    """
    if live == (state is not None):
        raise click.UsageError("give --state SNAPSHOT or --live: one of them")
    for name in (
        ("limit", "user", "priority", "queue") if live else ("kubeconfig", "context", "config", "namespace")
    ):
        if given[name] is not None:
            raise click.UsageError(f"--{name} needs {'--state' if live else '--live'}")
    for name in plugins:
        if not is_reference(name):
            raise click.UsageError(f"--plugin {name}: write MODULE:NAME; other plug-ins need no permission")
    policies = given.pop("queue_policy")
    if policies is not None and len(policies) != 1:
        raise InvalidInput("name one policy", where="--queue-policy")
    policy = policies[0] if policies else None
    if live:
        answer: Any = ask_live([(read(file), source_name(file))], policy=policy, **_named(given, _LIVE))
    else:
        assert state is not None
        answer = _ask_snapshot(file, state, policy=policy, **_named(given, _STATE))
    ctx.exit(show_answer(answer, output))


@dataclass(frozen=True, slots=True)
class SnapshotAnswer:
    """An answer about a jobspec, as those about manifests are."""

    about: WhatIfAnswer

    @property
    def starts_now(self) -> bool:
        return self.about.starts_now

    @property
    def never(self) -> bool:
        return self.about.never

    def lines(self, shown: int | None = None) -> list[str]:
        from fluence.messages import whatif as texts

        return texts.lines(self.about, shown)

    def to_value(self) -> dict[str, Any]:
        from fluence.messages import whatif as texts

        return texts.value(self.about)


_LIVE = ("kubeconfig", "context", "config", "namespace", "queues")
_STATE = ("limit", "user", "priority", "queues", "queue")


def _named(given: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: given[name] for name in names}


def _ask_snapshot(
    file: str,
    state: str,
    *,
    policy: str | None,
    limit: int | None,
    user: str | None,
    priority: int | None,
    queues: str | None,
    queue: str | None,
) -> SnapshotAnswer:
    from fluence.model.jobspec import Jobspec
    from fluence.model.queue_documents import parse_tree
    from fluence.queue.reasons import ask
    from fluence.queue.snapshot import restore
    from fluence.sim.simulator import check_resources

    spec = Jobspec.parse(read(file), source=source_name(file))
    duration = spec.attributes.duration
    walltime = limit if limit is not None else round(duration * SECOND) if duration else None
    restored = restore(Path(state).read_bytes(), source=state, policy=policy)
    if queues is not None:
        tree = parse_tree(Path(queues).read_bytes(), source=queues)
        check_resources(tree, restored.planner.capacities())
        restored.use_queues(tree, restored.now)
    elif queue is not None:
        raise click.UsageError("--queue needs --queues")
    return SnapshotAnswer(
        ask(
            restored,
            spec,
            limit=walltime,
            user=user or "you",
            priority=16 if priority is None else priority,
            queue_name=queue or "",
        )
    )
