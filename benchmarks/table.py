"""The rows as a table for people: a line per measurement, both ways of timing it side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import scenario
from targets import Row

_HEAD = ("nodes", "measurement", "policy", "api", "answered", "rival", "ratio", "memory", "target", "")


def render(rows: Sequence[Row], *, rival: str | None) -> str:
    """The whole table, and below it what its columns mean."""
    lines: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in rows:
        lines.setdefault((row["nodes"], row["what"], row["policy"]), {})[row["mode"]] = row
    order = {what: at for at, what in enumerate(scenario.MEASURES)}
    sizes = [row["nodes"] for row in rows]
    cells: list[Sequence[str]] = []
    for key in sorted(lines, key=lambda key: (sizes.index(key[0]), order[str(key[1])])):
        cells.append(_line(lines[key]))
    return "\n".join([*_columns([_HEAD, *cells]), "", *_legend(rows, rival)])


def _line(modes: dict[str, Row]) -> Sequence[str]:
    compared = next(row for row in modes.values() if row["compared"])
    api = modes.get(scenario.API)
    answered = modes.get(scenario.ANSWER) or modes.get(scenario.PROCESS)
    return (
        f"{compared['nodes']:,}",
        compared["what"],
        compared["policy"],
        _time(api),
        _time(answered) if answered is not None else "",
        _rival(compared),
        _ratio(compared),
        _memory(compared),
        compared["target"] or "",
        _remark(compared),
    )


def _time(row: Row | None) -> str:
    if row is None:
        return ""
    return "failed" if row["seconds"] is None else duration(row["seconds"])


def _rival(row: Row) -> str:
    if row["rival_status"] == "failed":
        return "failed"
    if row["rival_seconds"] is None:
        return ""
    return duration(row["rival_seconds"]) + ("†" if row["compared_with"] == "recorded" else "")


def _ratio(row: Row) -> str:
    return "" if row["ratio"] is None else f"{row['ratio']:.3g}×"


def _memory(row: Row) -> str:
    if row["memory_mb"] is None:
        return ""
    text = f"{row['memory_mb']:,.0f} MB"
    if row["rival_memory_mb"] is not None:
        text += f" of {row['rival_memory_mb']:,.0f}"
    return text


def _remark(row: Row) -> str:
    parts = []
    if row["target_met"] is not None:
        parts.append("met" if row["target_met"] else "NOT MET")
    if row.get("first") is not None:
        parts.append(
            f"{row['repeats']} reserved, {duration(row['first'])} to {duration(row['last'])}, "
            f"growth {row['growth']:.2g}"
        )
    if row.get("rival_growth") is not None:
        parts.append(f"rival's {row['rival_growth']:.2g}")
    if row["same_answer"] is False:
        parts.append(f"ANSWERS DIFFER: {row['answer']}, rival {row['rival_answer']}")
    parts.extend(note for note in (row["note"], row["rival_note"]) if note)
    return "; ".join(parts)


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    if seconds >= 1:
        return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} µs"


def _columns(lines: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    left = {1, 2, 8, 9}
    for line in lines:
        padded = (
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join(padded).rstrip()


def _legend(rows: Sequence[Row], rival: str | None) -> Iterable[str]:
    yield "Times are medians. api: Matcher.match, or the graph read into a Matcher, or Matcher.cancel."
    yield "answered: jobspec parsed, matched, and its R written (load: from the start until it answers)."
    yield "The ratio is the rival's time over the answered one (cancel: over the api one)."
    if rival is not None:
        yield f"rival: {rival}, run on this machine with the same file and requests."
    elif any(row["compared_with"] == "recorded" for row in rows):
        yield "† recorded elsewhere (issue 3: Fluxion 0.54, 2 cores), NOT measured in this run."
    asked = [row["target_met"] for row in rows if row["target_met"] is not None]
    if asked:
        yield f"Targets of issue 3 at 10,000 nodes: {sum(asked)} of {len(asked)} met."
