"""The program `fluence`: its commands, each in a module of its own that loads when it is called."""

from __future__ import annotations

import click

from fluence.cli.program import Program, color_option

_COMMANDS = {
    "demo": ("fluence.cli.demo:demo", "Watch example pods land on a cluster of its own."),
    "match": ("fluence.cli.match:match", "Place jobspecs on a graph: where, when, or why not."),
    "graph": ("fluence.cli.graph:graph", "Summarise, draw, search or convert a resource graph."),
    "simulate": ("fluence.cli.simulate:simulate", "Drive the queue over a workload: waits, use, promises."),
    "whatif": ("fluence.cli.whatif:whatif", "Would a job start now, when otherwise, at whose cost?"),
    "resource-query": (
        "fluence.cli.resource_query:resource_query",
        "Fluxion's command of that name, interactive or scripted.",
    ),
    "explain": ("fluence.cli.explain:explain", "Why a pod or a group waits, and when it starts."),
    "history": ("fluence.kubectl.history_commands:history", "What jobs there were: when, where, how long."),
    "doctor": ("fluence.cli.doctor:doctor", "What is wrong with Fluence in a cluster, and what cures it."),
    "scheduler": ("fluence.cli.scheduler:scheduler", "Run the scheduler: pods of a cluster, gangs together."),
    "admission": ("fluence.cli.admission:admission", "Rules for new pods: as a policy, or on a manifest."),
    "webhook": ("fluence.cli.webhook:webhook", "Serve those rules, for clusters without admission policies."),
    "resources": (
        "fluence.cli.resources:resources",
        "Resources that belong to no node: check the document, offer it on nodes.",
    ),
    "task": ("fluence.cli.task:task", "Tell those who wait which task a producer has begun."),
    "deviceplugin": (
        "fluence.cli.deviceplugin:deviceplugin",
        "Offer resources that belong to no node to a kubelet.",
    ),
    "sandbox": ("fluence.cli.sandbox:sandbox", "A real local Kubernetes control plane, without Docker."),
    "completion": ("fluence.cli.completion:completion", "Print what a shell needs to complete commands."),
}


@click.group(
    cls=Program,
    lazy=_COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `fluence demo`. Each command explains itself: `fluence match --help`.",
)
@click.version_option(package_name="fluence-scheduler", prog_name="fluence")
@color_option
@click.pass_context
def main(ctx: click.Context) -> None:
    """Fluence places work that must start together on a graph of resources, and plans when it starts.

    A graph (JGF, GRUG, hwloc or R) says what there is; a jobspec says what a job needs. The answers are
    those of Fluxion 0.54.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
