"""Show: prints the example manifests in order, what happens to them line by line, and where everything is at
the end.

It gets the current pods, from an API server or from the embedded cluster. It prints a line when a workload
starts as a whole, when its pods get a reason to wait, and when it has ended.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
import yaml

from fluence import names
from fluence.act.conditions import POD_SCHEDULED, wait_report
from fluence.commands import view
from fluence.model.node import Node
from fluence.model.pod import Pod, add_into, pod_requests
from fluence.model.reason import Code
from fluence.sandbox.audit import AuditReport
from fluence.sandbox.nodes import GPU, ZONE
from fluence.schedule.status.status import PodReason
from fluence.units import format_amount

_PACKAGED, _REPOSITORY = Path(__file__).parent / "files", Path(__file__).parents[4] / "examples"
FILES = _PACKAGED if _PACKAGED.exists() else _REPOSITORY  # a wheel has a copy; see pyproject.toml
MANIFESTS = FILES / "cluster"
REAL = FILES / "real"
NODES = FILES / "nodes.yaml"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """One file: the pods of one gang, marked by the label `app`."""

    name: str
    path: Path
    purpose: str  # its first sentence
    documents: tuple[Json, ...]

    @property
    def pods(self) -> int:
        return sum(_pod_count(document) for document in self.documents)


def read_script(version: str) -> list[Work]:
    """The examples for one release, in order of their numbers."""
    paths = [*MANIFESTS.glob("*.yaml"), *(MANIFESTS / version).glob("*.yaml")]
    return [_read(path) for path in sorted(paths, key=lambda path: path.name)]


def read_real() -> list[Work]:
    """The examples whose containers run and print."""
    return [_read(path) for path in sorted(REAL.glob("*.yaml"))]


def where() -> str:
    """The path of the example files from here."""
    return "examples" if Path("examples/nodes.yaml").exists() else str(FILES)


def work_of(pod: Pod) -> str:
    """The name of the workload that a pod belongs to."""
    return pod.labels.get("app", "")


def purpose(text: str) -> str:
    """The first sentence of the comment at the beginning of a file."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    comment = " ".join(lines)
    end = comment.find(". ")
    return comment if end < 0 else comment[: end + 1]


def _read(path: Path) -> Work:
    text = path.read_text()
    documents = tuple(each for each in yaml.safe_load_all(text) if each)
    return Work(path.stem.partition("-")[2], path, purpose(text), documents)


def _pod_count(document: Json) -> int:
    match document["kind"]:
        case "Pod":
            return 1
        case "Job":
            return int(document["spec"].get("parallelism", 1))
        case "Deployment":
            return int(document["spec"].get("replicas", 1))
        case _:
            return 0


_WAITS = (PodReason.UNSCHEDULABLE, PodReason.TURN, PodReason.ERROR)
_COLORS = {"starts": "green", "waits": "yellow", "never": "red", "ended": "blue"}
_ARROW = "\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}"  # no line break here


class Standing(NamedTuple):
    """The state of a workload, in a word and in a sentence."""

    word: str  # starts, waits, never, ended
    text: str
    meaning: str = ""  # of the text, if numbers in it do not count as a change

    def differs(self, other: Standing | None) -> bool:
        if other is None or self.word != other.word:
            return True
        return self.meaning != other.meaning if self.meaning else self.text != other.text


class Show:
    """Call ``opens`` for a workload, ``see`` whenever its pods change, and ``summary`` at the end."""

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
        """Print the nodes, equal ones on one line."""
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

    # -- events ----------------------------------------------------------------------------------------------

    def titles(self, where: str) -> None:
        self._echo(f"\nThe manifests of {where}, applied one after the other:\n")
        head = f"{'TIME':>{len(_clock(0))}}  {'WORK':<{len(self._indent) - len(_clock(0)) - 4}}  WHAT HAPPENS"
        self._echo(click.style(head, bold=True))

    def opens(self, work: Work, at: float) -> None:
        """Announce a workload that is applied."""
        self._line(work.name, at, work.purpose)

    def see(self, pods: Iterable[Pod], at: float) -> None:
        """Print what changed."""
        of: dict[str, list[Pod]] = {}
        for pod in pods:
            of.setdefault(work_of(pod), []).append(pod)
        for work in self.script:
            found = _standing(of.get(work.name, []), work.pods)
            if found is not None and found.differs(self.standing.get(work.name)):
                self.standing[work.name] = found
                self._line(work.name, at, found.text, word=found.word)

    def knows(self, work: Work) -> bool:
        """Whether the state of a workload is known."""
        return work.name in self.standing

    @property
    def is_over(self) -> bool:
        """Whether every workload that can start has started."""
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
        """Print the output of containers, each line with its pod and node."""
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
        """Print which pods are where, what waits and why, and the result of the audit."""
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
            self._echo("\n" + click.style("Jobs that wait, and why", bold=True))
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
    """The message of a pod that waits for capacity or its turn; empty while its siblings are being
    created."""
    condition = pod.condition(POD_SCHEDULED)
    return condition.message if condition is not None and condition.reason in _WAITS else ""


def _standing(pods: list[Pod], count: int) -> Standing | None:
    """The state of a workload; None while its pods appear, start or end one by one."""
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
    report = wait_report(alive[0].status.conditions)
    if report is None:
        return Standing("waits", told[0])
    never = any(reason.code is Code.CLUSTER_CANNOT_HOLD for reason in report.reasons)
    meaning = f"{report.meaning} {report.no_later_than} {report.expected}"
    return Standing("never" if never else "waits", told[0], meaning)


def _places(pods: list[Pod]) -> str:
    """`ranks-[0-3] → cpu-000, ranks-[4-9] → cpu-001`"""
    on: dict[str, list[Pod]] = {}
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        on.setdefault(pod.spec.node_name or "", []).append(pod)
    return ", ".join(f"{_pods(here)}{_ARROW}{node}" for node, here in on.items())


def _pods(pods: list[Pod]) -> str:
    return view.hosts([_short(pod) for pod in pods]).replace(",", ", ")


def _short(pod: Pod) -> str:
    """A pod's name; for a rank of a Job, without the letters that its controller appends to the index."""
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
