"""Showing how a choice came about: lines, a table, or data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO

from fluence.kubectl.resolve import Resolved
from fluence.select.engine import OFFERS_UNKNOWN, plain_number
from fluence.select.policies import Backend


def lines(resolved: Resolved) -> list[str]:
    """What is said about every choice: who, for whom, and who was dropped why."""
    selection = resolved.selection
    chosen = selection.chosen.name
    return [
        f'selected backend "{chosen}" for {resolved.label} (policy "{selection.policy}")',
        *(f"  dropped {name}: {drop}" for name, drop in sorted(selection.dropped.items())),
        *(f"  note: {note}" for note in _notes(resolved)),
    ]


def as_data(resolved: Sequence[Resolved]) -> dict[str, object]:
    """The choices as plain data; the stable form for programs."""
    return {"selections": [_selection(one) for one in resolved]}


def _selection(resolved: Resolved) -> dict[str, object]:
    selection = resolved.selection
    return {
        "object": resolved.label,
        "source": resolved.source,
        "policy": selection.policy,
        "shots": resolved.shots,
        "chosen": selection.chosen.name if resolved.is_chosen else None,
        "candidates": [
            {**_backend(backend), "outcome": outcome, **({"step": step} if step else {}), "reason": reason}
            for backend, outcome, step, reason in outcomes(resolved)
        ],
        "notes": list(selection.notes),
        "resolved_at": resolved.resolved_at,
    }


def outcomes(resolved: Resolved) -> list[tuple[Backend, str, str | None, str]]:
    """Each backend with what became of it, the step that decided, and the reason; the best first."""
    selection = resolved.selection
    how = f"by {selection.policy}" + (", then by name" if len(selection.ranked) > 1 else "")
    rows: list[tuple[Backend, str, str | None, str]] = []
    for rank, backend in enumerate(selection.ranked, 1):
        if not resolved.is_chosen:
            rows.append((backend, "undecided", None, "nothing could be chosen"))
        elif rank == 1:
            rows.append((backend, "chosen", None, how))
        else:
            rows.append((backend, "ranked", None, f"number {rank} {how}"))
    rows += [
        (drop.backend, "dropped", drop.step, drop.reason) for _, drop in sorted(selection.dropped.items())
    ]
    return rows


def _backend(backend: Backend) -> dict[str, object]:
    fields: dict[str, object] = {"name": backend.name}
    for key in ("device_arn", "region", "provider"):
        if value := getattr(backend, key):
            fields[key] = value
    fields["attributes"] = {key: plain_number(value) for key, value in backend.attributes.items()}
    fields["strings"] = dict(backend.strings)
    fields["sources"] = dict(backend.sources)
    return fields


def write_data(resolved: Sequence[Resolved], form: str) -> str:
    """The choices as JSON or YAML text."""
    data = as_data(resolved)
    if form == "json":
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text


def print_table(resolved: Resolved, file: IO[str], *, is_wide: bool = False) -> None:
    """A row for each candidate: its attributes, who said them, and what became of it."""
    # Loaded here: it takes half as long as everything else.
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    rows = outcomes(resolved)
    has_shots = any("cost_per_shot" in backend.attributes for backend, *_ in rows)
    shots = f" ({resolved.shots} shots)" if has_shots else ""
    table = Table(
        title=escape(f"{resolved.label}: {resolved.selection.policy}{shots}"),
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    columns = ["BACKEND", "ATTRIBUTES (SOURCE)", "OUTCOME", "WHY"]
    if is_wide:
        columns[1:1] = ["REGION", "PROVIDER", "DEVICE"]
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("BACKEND", "OUTCOME"))
    styles = {"chosen": "green", "dropped": "dim", "undecided": "yellow"}
    for backend, outcome, step, reason in rows:
        facts = [f"{key}={value:g}{_source(backend, key)}" for key, value in backend.attributes.items()]
        facts += [f"{key}={value}{_source(backend, key)}" for key, value in backend.strings.items()]
        why = f"{step}: {reason}" if step else reason
        cells = [backend.name, "\n".join(facts) or "-", outcome, why]
        if is_wide:
            cells[1:1] = [backend.region or "-", backend.provider or "-", backend.device_arn or "-"]
        table.add_row(*(Text(cell) for cell in cells), style=styles.get(outcome, ""))
    # A file or a pipe has no width: nothing is folded there.
    console = Console(file=file, highlight=False, width=None if file.isatty() else 240)
    console.print(table)
    for note in _notes(resolved):
        console.print(Text(f"note: {note}"))


def _notes(resolved: Resolved) -> list[str]:
    # That one has been said, with its reason, when the offers were asked for.
    return [note for note in resolved.selection.notes if note != OFFERS_UNKNOWN]


def _source(backend: Backend, key: str) -> str:
    return f" ({backend.sources[key]})" if key in backend.sources else ""
