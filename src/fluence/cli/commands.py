"""The program `fluence`: its commands, each in its own module, which is loaded when the command is called."""

from __future__ import annotations

import click

from fluence.commands.program import Program, color_option

_COMMANDS = {
    "demo": ("fluence.cli.demo:demo", "Watch example pods land on a cluster of its own."),
    "match": ("fluence.cli.match:match", "Place jobspecs on a graph: where, when, or why not."),
    "graph": ("fluence.cli.graph:graph", "Summarise, draw, search or convert a resource graph."),
    "simulate": ("fluence.cli.simulate:simulate", "Drive the queue over a workload: waits, use, promises."),
    "queues": ("fluence.cli.queues:queues", "Queues with quotas and shares: check a file, show its tree."),
    "whatif": ("fluence.cli.whatif:whatif", "Would a job start now, when otherwise, at whose cost?"),
    "resource-query": (
        "fluence.cli.resource_query:resource_query",
        "Fluxion's command of that name, interactive or scripted.",
    ),
    "queue": ("fluence.cli.queues:queue", "What waits, in order: why, and when it starts."),
    "jobs": ("fluence.commands.queue:jobs", "All gangs of a cluster: where they run, and until when."),
    "groups": ("fluence.commands.queue:groups", "Gangs as their users know them, and their pods."),
    "nodes": ("fluence.commands.queue:nodes", "Nodes: what is free, and who has the rest."),
    "plan": ("fluence.commands.plan:plan", "The plan as a chart over time."),
    "why": ("fluence.commands.plan:why", "Why one job waits, when it starts, and where."),
    "top": ("fluence.commands.plan:top", "The queue and the plan, live."),
    "explain": (
        "fluence.commands.questions:explain",
        "Why a pod, a Job or a group waits, and when it starts.",
    ),
    "hold": ("fluence.commands.verbs:hold", "Keep jobs that wait from starting."),
    "release": ("fluence.commands.verbs:release", "Let jobs start that were held."),
    "requeue": ("fluence.commands.verbs:requeue", "Stop jobs, and queue them again."),
    "cancel": ("fluence.commands.verbs:cancel", "Delete jobs, waiting or running."),
    "priority": ("fluence.commands.verbs:priority", "Change the order of your own jobs that wait."),
    "history": ("fluence.commands.history:history", "What jobs there were: when, where, how long."),
    "doctor": (
        "fluence.commands.questions:doctor",
        "What is wrong with Fluence in a cluster, and what cures it.",
    ),
    "scheduler": ("fluence.cli.scheduler:scheduler", "Run the scheduler: pods of a cluster, gangs together."),
    "admission": ("fluence.cli.admission:admission", "Rules for new pods: as a policy, or on a manifest."),
    "webhook": ("fluence.cli.webhook:webhook", "Serve those rules, for clusters without admission policies."),
    "resources": (
        "fluence.commands.resources:resources",
        "Resources that belong to no node: check the document, offer it on nodes.",
    ),
    "task": ("fluence.cli.task:task", "Announce the task of a producer to the pods that wait for it."),
    "deviceplugin": (
        "fluence.cli.deviceplugin:deviceplugin",
        "Offer resources that belong to no node to a kubelet.",
    ),
    "service": ("fluence.cli.service:service", "Serve the matcher by gRPC, on port 4242."),
    "web": ("fluence.cli.web:web", "Show the cluster, the queue and the plan in a browser."),
    "sandbox": ("fluence.cli.sandbox:sandbox", "A real local Kubernetes control plane, without Docker."),
    "completion": ("fluence.cli.commands:completion", "Print what a shell needs to complete commands."),
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


_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the completion script for SHELL: bash, zsh or fish.

    \b
    bash   fluence completion bash > ~/.local/share/bash-completion/completions/fluence
    zsh    fluence completion zsh  > a file _fluence in a directory of your $fpath
    fish   fluence completion fish > ~/.config/fish/completions/fluence.fish

    To try it in the running shell: source <(fluence completion bash)
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None
    made = script(main, {}, "fluence", "_FLUENCE_COMPLETE")
    # not made.source(): that runs the shell to find its version, and the shell may not be installed
    click.echo(made.source_template % made.source_vars())
