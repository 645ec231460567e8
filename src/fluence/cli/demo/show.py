"""Show: what happens to the examples, line by line, and who is where in the end; from pods alone.

It is given the pods as they are, whoever runs them: an API server's or the embedded cluster's. A workload is
told about when it starts as a whole, when it is told why it waits, and when it has ended.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import click

from fluence import names
from fluence.act.conditions import POD_SCHEDULED, same
from fluence.cli import view
from fluence.cli.demo.script import Work, work_of
from fluence.messages.queue import CANNOT_HOLD
from fluence.model.node import Node
from fluence.model.pod import Pod
from fluence.model.resources import add_into, pod_requests
from fluence.sandbox.audit import AuditReport
from fluence.sandbox.nodes import GPU, ZONE
from fluence.units import format_amount

_COLORS = {"starts": "green", "waits": "yellow", "never": "red", "ended": "blue"}
_ARROW = "\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}"  # no line breaks here


class Standing(NamedTuple):
    """How a workload is doing, in a word and in a sentence."""

    word: str  # starts, waits, never, ended
    text: str

    def differs(self, other: Standing | None) -> bool:
        return other is None or self.word != other.word or not same(self.text, other.text)


class Show:
    """``opens`` a workload, ``see`` its pods as often as they change, ``summary`` at the end."""

    def __init__(
        self, script: Sequence[Work], *, width: int = 110, echo: Callable[[str], object] = click.echo
    ) -> None:
        self.script = script
        self._width = width
        self.standing: dict[str, Standing] = {}
        self._echo = echo
        self._last = ""  # the workload of the last line
        self._indent = " " * (len(_clock(0)) + 2 + max(len(work.name) for work in script) + 2)

    # -- the cluster -----------------------------------------------------------------------------------------

    def cluster(self, nodes: Iterable[Node]) -> None:
        """The nodes, those that are alike on one line."""
        alike: dict[tuple[str, ...], list[str]] = {}
        for node in nodes:
            size = node.allocatable()
            gpus = f"{size[GPU]} GPUs" if size.get(GPU) else ""
            taints = ", ".join(f"taint {each.key}:{each.effect}" for each in node.spec.taints or ())
            cpu, memory = (format_amount(name, size.get(name, 0)) for name in ("cpu", "memory"))
            zone = (node.metadata.labels or {}).get(ZONE, "")
            alike.setdefault((zone, f"{cpu} cpu", memory, gpus, taints), []).append(node.name)
        rows = [[zone, view.hosts(names), *rest] for (zone, *rest), names in alike.items()]
        for line in view.columns(sorted(rows)):
            self._echo(f"  {line}")

    # -- what happens ----------------------------------------------------------------------------------------

    def titles(self, where: str) -> None:
        self._echo(f"\nThe manifests of {where}, applied one after the other:\n")
        head = f"{'TIME':>{len(_clock(0))}}  {'WORK':<{len(self._indent) - len(_clock(0)) - 4}}  WHAT HAPPENS"
        self._echo(click.style(head, bold=True))

    def opens(self, work: Work, at: float) -> None:
        """A workload is applied."""
        self._line(work.name, at, work.purpose)

    def see(self, pods: Iterable[Pod], at: float) -> None:
        """Tell what changed."""
        of: dict[str, list[Pod]] = {}
        for pod in pods:
            of.setdefault(work_of(pod), []).append(pod)
        for work in self.script:
            found = _standing(of.get(work.name, []), work.pods)
            if found is not None and found.differs(self.standing.get(work.name)):
                self.standing[work.name] = found
                self._line(work.name, at, found.text, word=found.word)

    def knows(self, work: Work) -> bool:
        """Whether something is known of a workload."""
        return work.name in self.standing

    @property
    def is_over(self) -> bool:
        """Whether everybody has started who ever will."""
        told = [self.standing.get(work.name) for work in self.script]
        return all(each is not None and each.word != "waits" for each in told)

    @property
    def has_ended(self) -> bool:
        """Whether every workload has ended."""
        return all(
            (told := self.standing.get(work.name)) is not None and told.word == "ended"
            for work in self.script
        )

    def outputs(self, logs: Iterable[tuple[Pod, str]]) -> None:
        """What containers printed, each line with its pod and node."""
        self._echo("\n" + click.style("What the containers printed", bold=True))
        rows = [
            [_short(pod), pod.spec.node_name or "", line]
            for pod, text in sorted(logs, key=lambda each: (work_of(each[0]), _short(each[0])))
            for line in text.splitlines()
        ]
        for line in view.table(["POD", "NODE", "PRINTED"], rows).splitlines():
            self._echo(f"  {line}")

    def _line(self, name: str, at: float, text: str, *, word: str = "") -> None:
        shown = "" if name == self._last else name
        self._last = name
        inner = " " * 8 if word else ""
        wrapped = textwrap.wrap(
            text,
            self._width - len(self._indent) - len(inner),
            break_long_words=False,
            break_on_hyphens=False,
        )
        color = _COLORS.get(word)
        for number, line in enumerate(wrapped):
            line = line.replace(_ARROW, " → ")
            body = inner + line if word else click.style(line, dim=True)
            if number:
                self._echo(self._indent + body)
                continue
            if word:
                body = click.style(word, fg=color, bold=True) + body[len(word) :]
            pad = " " * (len(self._indent) - len(_clock(0)) - 2 - len(shown))
            self._echo(f"{_clock(at)}  {shown and click.style(shown, bold=True)}{pad}{body}")

    # -- the end ---------------------------------------------------------------------------------------------

    def summary(self, nodes: Iterable[Node], pods: Iterable[Pod], audit: AuditReport) -> None:
        """Who is where, what waits and why, and what the audit says."""
        pods = list(pods)
        self._echo("\n" + click.style("Who is where", bold=True))
        rows = []
        for node in nodes:
            here = [pod for pod in pods if pod.spec.node_name == node.name and not pod.is_terminal]
            used: dict[str, int] = {}
            for pod in here:
                add_into(used, pod_requests(pod, bound=True))
            rows.append([node.name, *(_share(node, used, name) for name in ("cpu", GPU)), _crowd(here)])
        for line in view.table(["NODE", "CPU", "GPU", "PODS"], rows).splitlines():
            self._echo(f"  {line}")
        waiting = [(name, told) for name, told in self.standing.items() if told.word in ("waits", "never")]
        if waiting:
            self._echo("\n" + click.style("What waits, and what its pods are told", bold=True))
        for name, told in waiting:
            start = f"  {name}: "
            for line in textwrap.wrap(told.text, self._width, initial_indent=start, subsequent_indent="    "):
                self._echo(line)
        self._echo("\n" + click.style("The audit", bold=True))
        for finding in audit.findings:
            self._echo(f"  {click.style(str(finding), fg='red')}")
        if not audit.findings:
            whole = sum(each.word in ("starts", "ended") for each in self.standing.values())
            self._echo(
                f"  {audit.bindings_seen} binds on {audit.nodes_seen} nodes: none overbooked, no taint or "
                f"selector ignored; {whole} workloads started whole, {len(self.standing) - whole} not at all"
            )


def message(pod: Pod) -> str:
    """What a pod is told that waits for room or its turn; not what it is told while its siblings are made."""
    condition = pod.condition(POD_SCHEDULED)
    return condition.message if condition is not None and condition.reason == "Unschedulable" else ""


def _standing(pods: list[Pod], count: int) -> Standing | None:
    """What there is to say of a workload; None while its pods come, land or go one by one."""
    if len(pods) < count:
        return None
    alive = [pod for pod in pods if not pod.is_terminal]
    if not alive:
        return Standing("ended", _count(len(pods)))
    bound = [pod for pod in alive if pod.spec.node_name]
    if len(bound) == len(alive) == len(pods):
        return Standing("starts", f"{_count(len(bound))}: {_places(bound)}")
    told = [message(pod) for pod in alive]
    if bound or not all(told):
        return None
    return Standing("never" if told[0].startswith(CANNOT_HOLD) else "waits", told[0])


def _places(pods: list[Pod]) -> str:
    """`ranks-[0-3] → cpu-000, ranks-[4-9] → cpu-001`"""
    on: dict[str, list[Pod]] = {}
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        on.setdefault(pod.spec.node_name or "", []).append(pod)
    return ", ".join(f"{_pods(here)}{_ARROW}{node}" for node, here in on.items())


def _pods(pods: list[Pod]) -> str:
    return view.hosts([_short(pod) for pod in pods]).replace(",", ", ")


def _short(pod: Pod) -> str:
    """A pod's name; a rank of a Job without the letters that its controller puts behind the index."""
    index = pod.annotations.get(names.COMPLETION_INDEX)
    owner = next((each.name for each in pod.metadata.owner_references or ()), "")
    return f"{owner}-{index}" if index is not None and owner else pod.metadata.name


def _crowd(pods: list[Pod]) -> str:
    counts: dict[str, int] = {}
    for pod in pods:
        counts[work_of(pod)] = counts.get(work_of(pod), 0) + 1
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "-"


def _share(node: Node, used: dict[str, int], resource: str) -> str:
    size = node.allocatable().get(resource, 0)
    if not size:
        return "-"
    return f"{format_amount(resource, used.get(resource, 0))} of {format_amount(resource, size)}"


def _count(pods: int) -> str:
    return f"{pods} pod{'s' if pods != 1 else ''}"


def _clock(at: float) -> str:
    return f"{at:5.1f}s"
