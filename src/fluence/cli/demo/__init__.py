"""`fluence demo`: the example gangs on the example cluster, and who got what.

The cluster and the jobs lie beside this file, so that they are there wherever Fluence is installed; the
directory `examples` of the repository points to them.
"""

from __future__ import annotations

from pathlib import Path

import click

from fluence.cli import tree as trees
from fluence.cli import view
from fluence.cli.answers import answer, notes, tabulate
from fluence.cli.choice import Policy
from fluence.graph.graph import ResourceGraph
from fluence.match.matcher import Matcher
from fluence.match.policy import MatchPolicy
from fluence.model.jobspec import Jobspec

FILES = Path(__file__).parent
JOBS = ("mpi", "training", "hybrid", "compile", "exclusive", "large", "impossible")  # in order of arrival


@click.command()
@click.option(
    "-P",
    "--policy",
    type=Policy(),
    default="first",
    show_default=True,
    metavar="POLICY",
    help="Place them by another policy.",
)
@click.option("--files", is_flag=True, help="Only print the directory of the example files.")
def demo(policy: MatchPolicy, files: bool) -> None:
    """Build an example cluster, place example gangs on it, and show who got what.

    The cluster has racks, GPU nodes, a quantum computer and licences. One of the jobs has to wait and gets a
    reservation; one can never start, and is told so.
    """
    if files:
        click.echo(str(FILES))
        return
    graph = ResourceGraph.load(FILES / "cluster.json")
    matcher = Matcher(graph, policy)
    click.echo(f"The cluster, {len(graph)} vertices:\n")
    for line in trees.lines(graph, trees.fold(graph)):
        click.echo(f"  {line}")
    click.echo("\nThe jobs, in order of arrival:\n")
    answers = []
    widest = max(map(len, JOBS))
    for job, name in enumerate(JOBS, start=1):
        path = FILES / "jobs" / f"{name}.yaml"
        text = path.read_bytes()
        click.echo(f"  {view.pad(click.style(name, bold=True), widest)}  {_purpose(text)}")
        request = matcher.compile(Jobspec.parse(text, source=str(path)))
        answers.append(
            answer(matcher, request, job=job, name=name, source=str(path), now=0, reserve=True, explain=True)
        )
    click.echo("\nWho got what:\n")
    for line in (*tabulate(answers, horizon=matcher.horizon).splitlines(), "", *notes(answers)):
        click.echo(f"  {line}".rstrip())
    here = _where()
    click.echo(f"\nTry next: fluence match {here}/cluster.json {here}/jobs/*.yaml --policy lonode -o wide")


def _purpose(text: bytes) -> str:
    """The first sentence of the comment that a jobspec starts with."""
    lines = []
    for line in text.decode().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    comment = " ".join(lines)
    end = comment.find(". ")
    return comment if end < 0 else comment[: end + 1]


def _where() -> str:
    """The example files as seen from here."""
    return "examples" if Path("examples/cluster.json").exists() else str(FILES)
