"""Doctor report: examines a cluster, and prints what is right, what is wrong, and how to fix it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

import click
import msgspec

from fluence import event_loop
from fluence.commands import view
from fluence.doctor.diagnose import diagnose
from fluence.doctor.facts import ClusterFacts, DoctorFinding, Health, exit_code
from fluence.doctor.look import Question, look
from fluence.errors import FluenceError
from fluence.kube.access import find_access
from fluence.kube.client import Client
from fluence.kube.errors import ONCE, KubeError

_COLORS = {
    Health.OK: "green",
    Health.WARN: "yellow",
    Health.WRONG: "red",
    Health.UNSEEN: "cyan",
}
_SHOWN = 10  # lines of one check and verdict in the table; -o wide has all


class CouldNotLook(FluenceError):
    """The cluster does not answer."""

    exit_code = 2


def examine(
    *,
    scheduler_name: str,
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    account: str | None,
    waits_s: float,
    strict: bool,
    output: str,
) -> int:
    """Examine the cluster, print the findings, and return the exit code."""
    question = Question(scheduler_name=scheduler_name, namespace=namespace, account=account, waits_s=waits_s)

    async def ask() -> ClusterFacts:
        async with Client(find_access(kubeconfig=kubeconfig, context=context), retry=ONCE) as client:
            return await look(client, question)

    try:
        facts = event_loop.run(ask)
    except KubeError as error:
        raise CouldNotLook(str(error)) from None
    findings = diagnose(facts)
    code = exit_code(findings, strict=strict)
    if output in ("json", "yaml"):
        value = {"schedulerName": scheduler_name, "exitCode": code, "findings": msgspec.to_builtins(findings)}
        click.echo(view.data(value, output))
    else:
        _show(findings, wide=output == "wide")
    return code


def _show(findings: Sequence[DoctorFinding], *, wide: bool) -> None:
    shown = list(findings) if wide else list(_shortened(findings))
    rows = [
        [
            each.check.value,
            click.style(each.verdict.value, fg=_COLORS[each.verdict]),
            view.clean(f"{each.object}: {each.message}" if each.object else each.message),
        ]
        for each in shown
    ]
    click.echo(view.table(["CHECK", "VERDICT", "WHAT"], rows))
    cures = list(dict.fromkeys((each.check.value, each.cure) for each in shown if each.cure))
    if cures:
        click.echo("\n" + click.style("What cures it:", bold=True))
        for check, cure in cures:
            click.echo(f"  {check}: {view.clean(cure)}")
    counts = {
        verdict: sum(each.verdict is verdict for each in findings) for verdict in Health if verdict != "ok"
    }
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    click.echo(f"\n{said or 'All is right.'}")


def _shortened(findings: Sequence[DoctorFinding]) -> Iterator[DoctorFinding]:
    """One line per check for what is right, and the first ten findings of the rest."""
    total = Counter(each.check for each in findings)
    for (check, verdict), group in groupby(findings, key=lambda each: (each.check, each.verdict)):
        same = list(group)
        if verdict is Health.OK and len(same) > 1:
            about = same[0].object if len({each.object for each in same}) == 1 else ""
            yield DoctorFinding(
                check, verdict, f"{len(same)} of {total[check]} are right; -o wide lists them", about
            )
            continue
        yield from same[:_SHOWN]
        if len(same) > _SHOWN:
            yield DoctorFinding(check, verdict, f"… and {len(same) - _SHOWN} more; -o wide lists them")
