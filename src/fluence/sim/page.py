"""A report as one HTML page: pictures in it, the numbers of each below, nothing loaded from anywhere."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

from fluence.sim import gantt as themes
from fluence.sim import pictures, report
from fluence.sim.gantt import DARK, words
from fluence.sim.measure import LATE, Run, percentile
from fluence.sim.pictures import Picture

_LARGE = 90_000  # bytes of an SVG from which a PNG is smaller and as good
_STRETCHES = 12
_LONGEST = 15
_SHARES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
_BANDS = ((600, "up to 10 min"), (3600, "up to 1 h"), (6 * 3600, "up to 6 h"), (86_400, "up to 1 d"))
_TILES = (
    ("wait", "mean"), ("wait", "95th percentile"), ("bounded slowdown", "mean"), ("cluster", "utilisation"),
    ("promised start", "late (> 60 s)"), ("cluster", "makespan"),
)  # fmt: skip

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1f2933; --soft: #5b6775; --line: #dde3ea;
  --card: #f6f8fa; --accent: #b54f00; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181d; --ink: #e6ebf0; --soft: #9aa7b5;
  --line: #2c343d; --card: #1b2128; --accent: #ff9d4d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 .6rem; }
p { margin: .3rem 0; }
.soft, figcaption, summary { color: var(--soft); }
.note { border-left: 4px solid var(--accent); padding: .3rem .8rem; margin: 1rem 0; background: var(--card); }
dl.settings { display: flex; flex-wrap: wrap; gap: .3rem 1.6rem; margin: .9rem 0; }
dl.settings div { display: flex; gap: .45rem; }
dt { color: var(--soft); } dd { margin: 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .75rem;
  margin: 1.4rem 0; }
.tile { background: var(--card); border-radius: .5rem; padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.45rem; line-height: 1.25; }
figure { margin: 0; } img { display: block; width: 100%; min-width: 38rem; height: auto; }
figcaption { font-size: .93rem; margin: .5rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .93rem; font-variant-numeric: tabular-nums; min-width: 24rem; }
caption { text-align: left; color: var(--soft); padding: .4rem 0; }
th, td { padding: .28rem .9rem .28rem 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, th.left { text-align: left; }
thead th { border-bottom: 2px solid var(--line); }
tbody th { font-weight: normal; }
tr.group th { color: var(--soft); padding-top: .9rem; font-weight: 600; }
td.best { color: var(--accent); font-weight: 700; }
details { margin: .4rem 0; } summary { cursor: pointer; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
@media print { details > * { display: block; } }
"""


def render(runs: Sequence[Run]) -> str:
    """The page of one run, or of several side by side."""
    shown = _title(runs)
    parts = [f"<h1>{escape(shown)}</h1>", _lead(runs), _settings(runs)]
    remarks = [*report.engines(runs), *report.partial(runs), *report.notes(runs)]
    parts += [f'<p class="note">{escape(note)}</p>' for note in remarks if report.BEST not in note]
    if len(runs) == 1:
        parts.append(_tiles(runs[0]))
    for picture in pictures.of(runs):
        parts.append(_section(picture, runs))
    parts.append(f"<section><h2>All figures</h2>{_figures(runs)}</section>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(shown)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _title(runs: Sequence[Run]) -> str:
    names = [run.policy for run in runs]
    together = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"Simulation under {together}"


def _lead(runs: Sequence[Run]) -> str:
    first = runs[0]
    most = max(run.measures.jobs for run in runs)
    return (
        f'<p class="soft">{most:,} jobs on {first.capacity:,} {escape(first.unit)}s. '
        "Times are simulated; a wait is from submission to start.</p>"
    )


def _settings(runs: Sequence[Run]) -> str:
    """The common settings of all runs; different ones are shown with the name of each policy."""
    pairs: list[tuple[str, str]] = []
    for key in dict.fromkeys(key for run in runs for key in run.settings):
        values = [str(run.settings.get(key, report.ABSENT)) for run in runs]
        if len(set(values)) == 1:
            pairs.append((key, values[0]))
        else:
            values_by_run = (f"{run.policy} {value}" for run, value in zip(runs, values, strict=True))
            pairs.append((key, ", ".join(values_by_run)))
    if not pairs:
        return ""
    rows = (
        f"<div><dt>{escape(key.replace('_', ' '))}</dt><dd>{escape(value)}</dd></div>" for key, value in pairs
    )
    return f'<dl class="settings">{"".join(rows)}</dl>'


def _tiles(run: Run) -> str:
    tiles = []
    for figure in report.shown([run]):
        if (figure.group, figure.name) in _TILES:
            value = figure.of(run)
            is_time = figure.write is report.seconds and value is not None
            text = words(value) if is_time and value is not None else figure.cell(run)
            name = f"{figure.group}: {figure.name}"
            tiles.append(
                f'<div class="tile"><b>{escape(text)}</b><span class="soft">{escape(name)}</span></div>'
            )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _section(picture: Picture, runs: Sequence[Run]) -> str:
    text = picture.describe(runs)
    return (
        f"<section><h2>{escape(picture.title)}</h2><figure>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(picture.title, quote=True)}">'
        f"{_image(picture, runs, text)}</div>"
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
        f"<details><summary>As a table</summary>{_table_of(picture, runs)}</details></section>"
    )


def _image(picture: Picture, runs: Sequence[Run], text: str) -> str:
    """The picture in the colours that the reader's screen has."""
    format_ = "png" if picture.has_many_marks else "svg"
    drawn = pictures.render(picture, runs, format_)
    if format_ == "svg" and len(drawn) > _LARGE:
        format_ = "png"
        drawn = pictures.render(picture, runs, format_)
    light = _data(drawn, format_)
    dark = _data(pictures.render(picture, runs, format_, theme=DARK), format_)
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(text, quote=True)}"></picture>'
    )


def _data(drawn: bytes, format_: str) -> str:
    kind = "svg+xml" if format_ == "svg" else format_
    return f"data:image/{kind};base64,{base64.b64encode(drawn).decode()}"


# The numbers behind each picture.


def _table_of(picture: Picture, runs: Sequence[Run]) -> str:
    match picture:
        case pictures.SCHEDULE:
            return "".join(_longest_waits(run) for run in runs)
        case pictures.USE:
            return _use(runs)
        case pictures.WAITS:
            return _waits(runs)
        case pictures.PROMISES:
            return "".join(_bands(run) for run in runs if run.measures.promise.started)
    return _figures(runs)


def _longest_waits(run: Run) -> str:
    started = [record for record in run.records if record.wait is not None]
    longest = sorted(started, key=lambda record: (-(record.wait or 0), record.name))[:_LONGEST]
    unit, name = themes.span(run.last)
    rows = [
        [
            record.name,
            record.user or report.ABSENT,
            f"{record.size:,}",
            f"{record.submit / unit:.2f}",
            f"{(record.start or 0) / unit:.2f}",
            words((record.wait or 0) / 1000),
            words(record.run / 1000),
            "yes" if record.backfilled else "no",
        ]
        for record in longest
    ]
    titles = [
        "job",
        "user",
        f"{run.unit}s",
        f"arrived ({name})",
        f"started ({name})",
        "wait",
        "run",
        "backfilled",
    ]
    return _table(f"{run.policy}: the jobs that waited longest", titles, rows)


def _use(runs: Sequence[Run]) -> str:
    last = max(run.last for run in runs)
    unit, name = themes.span(last)
    rows = []
    columns = []
    for run in runs:
        # NB a run that ends sooner is idle for the rest of the common scale.
        padded = pictures.stretches(run.steps, last, _STRETCHES) / max(run.capacity, 1)
        columns.append(padded.tolist())
    for i in range(_STRETCHES):
        low, high = last * i / _STRETCHES / unit, last * (i + 1) / _STRETCHES / unit
        rows.append([f"{low:.1f} to {high:.1f}", *(f"{column[i]:.1%}" for column in columns)])
    return _table("Part of the cluster in use", [name, *(run.policy for run in runs)], rows)


def _waits(runs: Sequence[Run]) -> str:
    ordered = [
        sorted(record.wait / 1000 for record in run.records if record.wait is not None) for run in runs
    ]
    rows = [[f"{share:.0%}", *(words(percentile(waits, share)) for waits in ordered)] for share in _SHARES]
    rows.append(["100%", *(words(waits[-1] if waits else 0) for waits in ordered)])
    return _table("So many jobs waited at most", ["jobs", *(run.policy for run in runs)], rows)


def _bands(run: Run) -> str:
    """How promises fared, by how long a wait was promised."""
    groups: dict[str, list[tuple[float, float]]] = {name: [] for _, name in (*_BANDS, (0, "longer"))}
    for promised, had in pictures.pairs(run, "no_later_than"):
        name = next((name for most, name in _BANDS if promised <= most), "longer")
        groups[name].append((promised, had))
    rows = []
    for name, waits in groups.items():
        if waits:
            errors = sorted(abs(had - promised) for promised, had in waits)
            late = sum(had - promised > LATE / 1000 for promised, had in waits)
            sooner = sum(max(0.0, promised - had) for promised, had in waits) / len(waits)
            cells = [name, f"{len(waits):,}", words(percentile(errors, 0.5)), words(sooner)]
            rows.append([*cells, f"{late / len(waits):.1%}"])
    titles = ["promised wait", "jobs", "median error", "mean slack", "late"]
    return _table(f"{run.policy}: promises by their length", titles, rows)


def _figures(runs: Sequence[Run]) -> str:
    head = "".join(f'<th scope="col">{escape(run.policy)}</th>' for run in runs)
    lines: list[str] = []
    group = ""
    for figure in report.shown(runs):
        if figure.group != group:
            group = figure.group
            lines.append(
                f'<tr class="group"><th scope="rowgroup" colspan="{len(runs) + 1}">{escape(group)}</th></tr>'
            )
        marked = report.best(figure, runs) if len(runs) > 1 else set()
        cells = "".join(
            f'<td class="best">{escape(figure.cell(run))} {report.BEST}</td>'
            if i in marked
            else f"<td>{escape(figure.cell(run))}</td>"
            for i, run in enumerate(runs)
        )
        lines.append(f'<tr><th scope="row">{escape(figure.name)}</th>{cells}</tr>')
    note = f"<caption>{report.BEST} best of the runs</caption>" if len(runs) > 1 else ""
    return (
        f'<div class="scroll"><table>{note}<thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _table(caption: str, titles: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(c)}</td>" for c in rest) + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
