"""`fluence whatif`: ask a queue, saved or of a running cluster, about a job that nobody has submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fluence.cli import view
from fluence.cli.choice import (
    Length,
    cluster_options,
    output_option,
    queue_policy_option,
    read,
    source_name,
)
from fluence.errors import InvalidInput
from fluence.messages import whatif as texts
from fluence.queue.job import SECOND
from fluence.queue.whatif import WhatIfAnswer

WAITS, NEVER = 3, 4
_SHOWN = 10


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
@click.option("--user", help="With --state: whose history to expect by.  [default: you]")
@click.option("--priority", type=int, help="With --state: more is earlier.  [default: 16]")
@queue_policy_option(default=None, note="Another queue policy than the snapshot's or the scheduler's.")
@output_option((), note="table, wide, json or yaml.")
@click.pass_context
def whatif(
    ctx: click.Context, /, file: str, state: str | None, live: bool, output: str, **given: Any
) -> None:
    """Would this job start now? If not, when, who would wait longer for it, and what would make it sooner?

    A jobspec is put to a snapshot (--state). Manifests (Pod, Job, Deployment, PodGroup) are put to a running
    cluster (--live), which is listed once and copied into memory, where the live scheduler's cycle decides;
    `-` is standard input. Nothing is submitted and nothing changes.

    \b
    Exit code: 0 it would start now, 3 it would wait, 4 never; 1 an input is wrong; 2 a wrong command line.

    \b
    Examples:
      fluence simulate --trace log.swf --cluster 240x1 --until 2d --snapshot state.json
      fluence whatif big.yaml --state state.json
      fluence whatif - --state state.json --limit 2h -o json < big.yaml
      fluence whatif job.yaml --live --context prod -n physics
    """
    if live == (state is not None):
        raise click.UsageError("give --state SNAPSHOT or --live: one of them")
    for name in ("limit", "user", "priority") if live else ("kubeconfig", "context", "config", "namespace"):
        if given[name] is not None:
            raise click.UsageError(f"--{name} needs {'--state' if live else '--live'}")
    policies = given.pop("queue_policy")
    if policies is not None and len(policies) != 1:
        raise InvalidInput("name one policy", where="--queue-policy")
    policy = policies[0] if policies else None
    if live:
        answer: Any = _ask_cluster(file, policy=policy, **_named(given, _LIVE))
    else:
        assert state is not None
        answer = _ask_snapshot(file, state, policy=policy, **_named(given, _STATE))
    if output in ("json", "yaml"):
        click.echo(view.data(_value(answer), output))
    else:
        for line in _lines(answer, None if output == "wide" else _SHOWN):
            click.echo(line)
    if not answer.starts_now:
        ctx.exit(NEVER if answer.never else WAITS)


def _value(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = texts.value(answer) if isinstance(answer, WhatIfAnswer) else answer.to_value()
    return found


def _lines(answer: Any, shown: int | None) -> list[str]:
    found: list[str] = texts.lines(answer, shown) if isinstance(answer, WhatIfAnswer) else answer.lines(shown)
    return found


_LIVE = ("kubeconfig", "context", "config", "namespace")
_STATE = ("limit", "user", "priority")


def _named(given: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: given[name] for name in names}


def _ask_snapshot(
    file: str, state: str, *, policy: str | None, limit: int | None, user: str | None, priority: int | None
) -> object:
    from fluence.model.jobspec import Jobspec
    from fluence.queue.snapshot import restore
    from fluence.queue.whatif import ask

    spec = Jobspec.parse(read(file), source=source_name(file))
    duration = spec.attributes.duration
    walltime = limit if limit is not None else round(duration * SECOND) if duration else None
    queue = restore(Path(state).read_bytes(), source=state, policy=policy)
    return ask(queue, spec, limit=walltime, user=user or "you", priority=16 if priority is None else priority)


def _ask_cluster(
    file: str,
    *,
    policy: str | None,
    kubeconfig: str | None,
    context: str | None,
    config: str | None,
    namespace: str | None,
) -> object:
    from fluence.cli import live  # it brings the cluster's client with it
    from fluence.cli.leader import ask_leader
    from fluence.clock import ManualClock, SystemClock
    from fluence.sim.cluster import EmbeddedCluster
    from fluence.sim.manifests import parse
    from fluence.sim.whatif import ask

    documents = parse(read(file), source=source_name(file))
    flags: dict[str, object] = {} if policy is None else {"queue_policy": policy}
    leader = ask_leader(kubeconfig, context, config, flags, environ={})
    for document in documents:
        document["metadata"].setdefault("namespace", namespace or leader.access.namespace)
    listing = live.list_as(leader)
    cluster = EmbeddedCluster((), settings=leader.settings, clock=ManualClock(SystemClock().now()))
    cluster.load(listing)
    return ask(cluster, documents)
