"""`fluence simulate`: runs the scheduler over a workload and reports the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fluence.cli.choice import (
    Length,
    PluginName,
    QueuePolicies,
    Scales,
    match_policy_option,
    queue_policy_option,
)
from fluence.queue import policy as policies

_INTERRUPTED = 130


def _together(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Several options as one decorator, in the order of the help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_trace_options = _together(
    click.option(
        "--trace",
        "--workload",
        "trace",
        metavar="FILE",
        type=click.Path(),
        help="The jobs: an SWF log (also .gz), the pods of openb (CSV), jobspecs with arrival "
        "times, or a list in YAML.",
    ),
    click.option(
        "--cluster",
        metavar="CLUSTER",
        help="With --trace: what they run on: nodes×cores such as 240x1, nodes×cores×gpus, a graph file, or "
        "the nodes of openb (CSV).",
    ),
)

_tenant_options = _together(
    click.option(
        "--queues",
        metavar="FILE",
        type=click.Path(),
        help="Documents of kind Queue, with quotas and weights; see `fluence queues --help`.",
    ),
    click.option(
        "--queue-field",
        type=click.Choice(["queue", "partition", "group", "user"]),
        default="queue",
        show_default=True,
        help="With --trace and --queues: the field of an SWF log that names a job's queue.",
    ),
    click.option(
        "--half-life",
        metavar="TIME",
        type=Length(least=1),
        default="7d",
        show_default=True,
        help="With --trace and --queues: in this time past usage counts half for shares.",
    ),
    click.option(
        "--promises",
        metavar="N",
        type=click.IntRange(1),
        default=256,
        show_default=True,
        help="With --trace and --queues: promise a start to the first N waiting jobs. Shares break no "
        "promise, so they act on jobs behind these, and where promises leave time.",
    ),
)

_manifest_options = _together(
    click.option(
        "--manifests",
        multiple=True,
        metavar="PATH",
        type=click.Path(),
        help="Instead of --trace: Kubernetes manifests (Pod, Job, Deployment, PodGroup), a file or a "
        "directory; repeatable.",
    ),
    click.option(
        "--nodes",
        metavar="FILE",
        type=click.Path(),
        help="With --manifests: the nodes, as `fluence sandbox up --node-file` takes them.",
    ),
    click.option(
        "--every",
        metavar="TIME",
        type=Length(),
        help="With --manifests: the time between two files.  [default: 0]",
    ),
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(),
        help="With --manifests: the scheduler's settings, as `fluence scheduler run --config` reads them.",
    ),
)

_queue_options = _together(
    queue_policy_option(
        default=None,
        note=f"Who starts when: {', '.join(policies.BUILT_IN)}, hybrid(DEPTH), or a plug-in.  "
        "[default: easy]",
    ),
    click.option(
        "--compare",
        metavar="POLICIES",
        type=QueuePolicies(),
        help="Several queue policies side by side: easy,conservative,fcfs,first-fit.",
    ),
    click.option("--replan", is_flag=True, help="Make a new plan at every event, without keeping promises."),
    click.option(
        "--depth",
        metavar="N",
        type=click.IntRange(1),
        help="Look at no more than N waiting jobs in a cycle.  [default: all]",
    ),
    click.option(
        "--window",
        metavar="TIME",
        type=Length(),
        help="Plan no start further ahead than this.  [default: any]",
    ),
    click.option(
        "--resolution", metavar="TIME", type=Length(least=1), help="Round limits up to a multiple of this."
    ),
    match_policy_option(default=None),
)

_workload_options = _together(
    click.option("--jobs", metavar="N", type=click.IntRange(1), help="Only the first N valid jobs."),
    click.option(
        "--arrival-scale",
        metavar="FACTOR",
        type=Scales(),
        default="1",
        show_default=True,
        help="Multiply the offsets of arrivals: 0.5 doubles the load. Several, 1,0.7,0.5, make several runs.",
    ),
    click.option(
        "--kind",
        type=click.Choice(["swf", "openb", "yaml", "jsonl"]),
        help="What the trace is; guessed without it.",
    ),
    click.option(
        "--unit", metavar="TYPE", help="What sizes are counted in.  [default: core, else cpu, else node]"
    ),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="Decides what a recipe of jobs makes."
    ),
    click.option(
        "--strict", is_flag=True, help="Refuse a bad record, with its line, instead of counting it."
    ),
    click.option("--no-forecast", is_flag=True, help="Leave out expected starts: quicker."),
    click.option(
        "--priority",
        metavar="NAME",
        type=PluginName(),
        help="Which jobs are first: urgency, or a plug-in (a name or module:name).  [default: urgency]",
    ),
    click.option(
        "--predictor",
        metavar="NAME",
        type=PluginName(),
        help="How long jobs will run: history, or a plug-in (a name or module:name).  [default: history]",
    ),
    click.option("--until", metavar="TIME", type=Length(), help="Stop at this time of the workload."),
)

_report_options = _together(
    click.option(
        "--snapshot",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help="Write the queue as it is at the end (see --until), for fluence whatif.",
    ),
    click.option(
        "--view",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help="Write a moment of the run for `fluence web --snapshot FILE`: that of --until, else the one at "
        "which most jobs wait. Then the run is made twice.",
    ),
    click.option(
        "--html",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help="Write the report as a page with pictures.",
    ),
    click.option(
        "--pictures",
        metavar="DIR",
        type=click.Path(file_okay=False),
        help="Write the pictures as PNG and SVG.",
    ),
    click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "wide", "json", "yaml"]),
        default="table",
        show_default=True,
        help="How to print the report; wide adds a line per job.",
    ),
    click.option(
        "--progress/--no-progress", default=None, help="Show how far it is.  [default: on a terminal]"
    ),
)


@click.command()
@_trace_options
@_manifest_options
@_queue_options
@_tenant_options
@_workload_options
@_report_options
@click.pass_context
def simulate(ctx: click.Context, /, **given: Any) -> None:
    """Drive the scheduler over a workload, with a clock that jumps.

    \b
    Two engines; the report names the one that decided:
      --trace ...      engine: matcher (Fluxion's answers on a graph)
      --manifests ...  engine: live cycle (gang placer, Kubernetes' rules)
    The queue, its policies and its promises are the live scheduler's in both. Only manifests go through the
    cycle and the placement of `fluence scheduler run`. They arrive file by file, --every so often, or when
    the annotation fluence.flux-framework.org/arrival says; a pod runs for its `sleep N`.

    Reports how long jobs waited, how well the cluster was used, and how good the two start times were that
    each waiting job was given: the promise (no later than) and the expectation. Ctrl-C ends a run early; its
    report, like that of --until, is of the part that was simulated, and says so.

    Exit code: 0 done, 1 an input is wrong or nothing in it can run, or a file cannot be written, 130 ended by
    Ctrl-C.

    \b
    Examples:
      fluence simulate --trace log.swf --cluster 240x1
      fluence simulate --trace log.swf --cluster 240x1 --compare easy,conservative,fcfs --html r.html
      fluence simulate --trace log.swf --cluster 240x1 --queue-policy conservative --arrival-scale 1,0.7
      fluence simulate --trace pods.csv --cluster nodes.csv --jobs 2000 -o json
      fluence simulate --trace log.swf --cluster 240x1 --until 2d --snapshot state.json
      fluence simulate --trace log.swf --cluster 240x1 --view busy.json
      fluence simulate --trace log.swf --cluster 240x1 --queues queues.yaml --queue-field group
      fluence simulate --manifests jobs/ --nodes nodes.yaml --every 10s --compare easy,conservative
    """
    from fluence.cli.simulate_run import SimulateOptions, carry_out, check

    options = SimulateOptions(**given)
    check(ctx, options)
    if any(run.interrupted for run in carry_out(ctx, options)):
        ctx.exit(_INTERRUPTED)
