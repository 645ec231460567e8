"""View tables: what `queue`, `jobs`, `groups`, `nodes` and `why` print, from the rows of the view API. Pure.

Times are UTC. On a terminal the last column is cut to its width; a pipe and ``-o wide`` get all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

import click

from fluence.commands.view import aligned, clean, columns, hosts, width
from fluence.errors import InvalidInput
from fluence.units import amount, format_amount, parse_quantity, spell_duration

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]

_WHO: Final = ("state", "namespace", "name", "hidden")
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "queue": (
        *(*_WHO, "position", "user", "pods", "minimum", "array", "nodes", "noLaterThan", "expected"),
        "reasons",
    ),
    "start": (*_WHO, "position", "array", "nodes", "noLaterThan", "expected", "firm", "planned"),
    "jobs": (*_WHO, "user", "pods", "minimum", "array", "nodes", "started", "planned", "limit"),
    "groups": (*_WHO, "kind", "size", "minimum", "waiting", "placed"),
    "nodes": ("name", "state", "amounts", "by", "next"),
    "plan": (*_WHO, "from", "until", "nodes"),
}
"""The fields that each table and `-o name` show: only these are requested. `-o wide` shows more."""

HIDDEN: Final = "(another namespace)"
_COLORS: Final = {
    "running": "green",
    "starting": "green",
    "preparing": "green",
    "reserved": "cyan",
    "pending": "yellow",
    "gathering": "yellow",
    "unschedulable": "red",
    "refused": "red",
}
_ESCAPES: Final = re.compile(r"(\x1b\[[0-9;]*m)")
_MAX_NODES: Final = 28  # characters of a list of nodes, in a table that is not wide
_MAX_HIDDEN: Final = 10  # hidden rows of a table, one after the other, each in a line of its own
_NEAR_SECONDS: Final = 12 * 3600


@lru_cache(maxsize=4096)
def clock(text: str | None, now: datetime) -> str:
    """A time of the API, to the minute; with its date if it is far away."""
    at = parse_time(text)
    if at is None:
        return "-"
    return at.strftime("%H:%M" if abs((at - now).total_seconds()) < _NEAR_SECONDS else "%m-%d %H:%M")


def parse_time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def age(text: str | None, now: datetime) -> str:
    at = parse_time(text)
    return "-" if at is None else spell_duration(max(0, int((now - at).total_seconds())) * 1000)


def _state(row: Row) -> str:
    return _colored(str(row.get("state", "")))


@lru_cache(maxsize=4096)
def _length(seconds: int | None) -> str:
    return spell_duration(seconds * 1000) if seconds else "-"


@lru_cache(maxsize=64)
def _colored(state: str) -> str:
    return click.style(state, fg=_COLORS.get(state))


def _text(key: str, default: str = "-") -> Callable[[Row], str]:
    return lambda row: clean(str(row.get(key) or default)) if not row.get("hidden") else default


def _name(row: Row) -> str:
    if row.get("hidden"):
        return HIDDEN if row.get("folded") is None else f"({row['folded']} of other namespaces)"
    return clean(str(row.get("name", "")))


def _nodes(row: Row, *, wide: bool) -> str:
    names = row.get("nodes") or []
    if not names:
        return "-"
    text = hosts(names) if len(names) > 1 else clean(names[0])
    return text if wide or len(text) <= _MAX_NODES else f"{len(names)} nodes"


def _size(row: Row) -> str:
    if row.get("hidden") or row.get("pods") is None:
        return "-"
    pods, minimum = row["pods"], row.get("minimum")
    return (
        str(pods)
        if minimum in (None, pods)
        else f"{minimum}-{pods}"
        if minimum < pods
        else f"{pods}/{minimum}"
    )


def _tasks(row: Row) -> str:
    """The progress of an array."""
    array = row.get("array")
    if not array:
        return "-"
    words = (("running", "run"), ("waiting", "wait"), ("done", "done"), ("failed", "failed"))
    return ", ".join(f"{array[key]} {word}" for key, word in words if array.get(key)) or "-"


def with_arrays(shown: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """Columns with the counts of arrays after the sizes, if a row is an array."""
    if not any(row.get("array") for row in rows):
        return list(shown)
    at = next((index + 1 for index, (title, _) in enumerate(shown) if title == "PODS"), len(shown))
    return [*shown[:at], ("TASKS", _tasks), *shown[at:]]


def reason(row: Row, *, wide: bool = True) -> str:
    """Why a gang waits: the first reason, or all of them."""
    reasons = [clean(each["message"]) for each in row.get("reasons") or ()]
    if not reasons:
        return "-" if not row.get("hidden") else ""
    return "; ".join(reasons) if wide else reasons[0]


def folded(rows: Sequence[Row]) -> list[Row]:
    """Rows of the queue, in which many hidden ones with one state and consecutive positions are one line."""
    found: list[Row] = []
    for (is_hidden, state), same in groupby(rows, key=lambda row: (row.get("hidden"), row.get("state"))):
        some = list(same)
        first = some[0].get("position") or 0
        places = list(range(first, first + len(some)))
        if is_hidden and len(some) > _MAX_HIDDEN and [row.get("position") for row in some] == places:
            place = f"{first}-{places[-1]}"
            some = [{"hidden": True, "folded": len(some), "position": place, "state": state}]
        found += some
    return found


def requests(row: Row) -> str:
    return ", ".join(f"{size} {name}" for name, size in (row.get("requests") or {}).items()) or "-"


def queue_columns(now: datetime, *, wide: bool, namespaces: bool) -> list[Column]:
    """The columns of `queue`."""
    shown: list[Column] = [
        ("POS", lambda row: str(row.get("position") or "-")),
        ("STATE", _state),
        *([("NAMESPACE", _text("namespace"))] if namespaces else []),
        ("NAME", _name),
        ("USER", _text("user")),
        ("PODS", _size),
        ("NODES", lambda row: _nodes(row, wide=wide)),
        ("START BY", lambda row: clock(row.get("noLaterThan"), now)),
        ("EXPECTED", lambda row: clock(row.get("expected"), now)),
    ]
    if wide:
        shown += [
            ("QUEUE", _text("queue")),
            ("PRIORITY", lambda row: "-" if row.get("priority") is None else str(row["priority"])),
            ("LIMIT", lambda row: _length(row.get("limit"))),
            ("REQUESTS", requests),
            ("AGE", lambda row: age(row.get("submitted"), now)),
        ]
    return [*shown, ("REASON", lambda row: reason(row, wide=wide))]


def start_columns(now: datetime, *, wide: bool, namespaces: bool) -> list[Column]:
    """The columns of `queue --start`: the start of each job, and how sure it is."""
    return [
        ("POS", lambda row: str(row.get("position") or "-")),
        ("STATE", _state),
        *([("NAMESPACE", _text("namespace"))] if namespaces else []),
        ("NAME", _name),
        ("EXPECTED", lambda row: clock(row.get("expected"), now)),
        ("START BY", lambda row: clock(row.get("noLaterThan"), now)),
        (
            "SURE",
            lambda row: "-" if not row.get("noLaterThan") else "limits" if row.get("firm") else "durations",
        ),
        ("PLANNED", lambda row: clock((row.get("planned") or {}).get("from"), now)),
        ("UNTIL", lambda row: clock((row.get("planned") or {}).get("until"), now)),
        ("NODES", lambda row: _nodes(row, wide=wide)),
    ]


def jobs_columns(now: datetime, *, wide: bool, namespaces: bool) -> list[Column]:
    """The columns of `jobs`."""
    shown: list[Column] = [
        ("STATE", _state),
        *([("NAMESPACE", _text("namespace"))] if namespaces else []),
        ("NAME", _name),
        ("USER", _text("user")),
        ("PODS", _size),
        ("NODES", lambda row: _nodes(row, wide=wide)),
        ("STARTED", lambda row: clock(row.get("started"), now)),
        (
            "ENDS BY",
            lambda row: clock((row.get("planned") or {}).get("until"), now) if row.get("started") else "-",
        ),
        ("LIMIT", lambda row: _length(row.get("limit"))),
    ]
    if wide:
        shown += [("KIND", _text("kind")), ("QUEUE", _text("queue")), ("REQUESTS", requests)]
        shown += [("DEVICES", lambda row: ", ".join(row.get("devices") or ()) or "-")]
    return shown


def groups_columns(now: datetime, *, wide: bool, namespaces: bool) -> list[Column]:
    """The columns of `groups`."""
    return [
        ("STATE", _state),
        *([("NAMESPACE", _text("namespace"))] if namespaces else []),
        ("NAME", _name),
        ("KIND", _text("kind")),
        ("SIZE", _text("size")),
        ("MINIMUM", _text("minimum")),
        ("WAITING", _text("waiting", "0")),
        ("PLACED", _text("placed", "0")),
        *([("USER", _text("user")), ("QUEUE", _text("queue"))] if wide else []),
    ]


def nodes_columns(now: datetime, rows: Sequence[Row], *, wide: bool) -> list[Column]:
    """The columns of `nodes`: free and total, for each resource that some node has."""
    resources = dict.fromkeys(entry["resource"] for row in rows for entry in row.get("amounts") or ())
    order = sorted(resources, key=lambda name: (name not in ("cpu", "memory"), name == "pods", name))

    def free(name: str) -> Callable[[Row], str]:
        def shown(row: Row) -> str:
            for entry in row.get("amounts") or ():
                if entry["resource"] == name:
                    return f"{_short(entry['free'])}/{_short(entry['size'])}"
            return "-"

        return shown

    return [
        ("NAME", _name),
        (
            "STATE",
            lambda row: click.style(str(row["state"]), fg="green" if row["state"] == "Ready" else "red"),
        ),
        *((_title(name), free(name)) for name in order if wide or name != "pods"),
        ("NEXT START", lambda row: clock(row.get("next"), now)),
        ("TAKEN BY", lambda row: users(row, wide=wide)),
    ]


def _title(resource: str) -> str:
    return f"{resource.rpartition('/')[2].upper()} FREE"


def _short(quantity: str) -> str:
    """`131891356Ki` as `125.8Gi`; other quantities unchanged."""
    if quantity.endswith("Ki") and quantity[:-2].isdecimal() and len(quantity) > 6:
        return f"{int(quantity[:-2]) / (1 << 20):.1f}Gi"
    if quantity.isdecimal() and len(quantity) > 8:
        return f"{int(quantity) / (1 << 30):.1f}Gi"
    return quantity


def users(row: Row, *, wide: bool = True) -> str:
    """The users of a node or a device."""
    named = [
        f"{clean(use['namespace'])}/{clean(use['name'])}"
        for use in row.get("by") or ()
        if not use.get("hidden")
    ]
    hidden = sum(
        use.get("pods") or use.get("amount") or 0 for use in row.get("by") or () if use.get("hidden")
    )
    if not wide and len(named) > 3:
        named = [*named[:3], f"{len(named) - 3} more"]
    if hidden:
        named.append(f"{hidden} of others")
    return ", ".join(named) or "-"


# -- printing ------------------------------------------------------------------------------------------------


def render(shown: Sequence[Column], rows: Sequence[Row], *, room: int | None = None) -> str:
    """A table. ``room``: the width of the terminal, to which lines are cut."""
    lines = aligned([click.style(title, bold=True), *map(make, rows)] for title, make in shown)
    return "\n".join(line if room is None else cut(line, room) for line in lines)


def cut(line: str, room: int) -> str:
    """A line that fits on a terminal; colours end where it is cut."""
    if width(line) <= room:
        return line
    kept, left = "", room - 1
    for part in _ESCAPES.split(line):
        if part.startswith("\x1b"):
            kept += part
        else:
            kept += part[:left]
            left -= len(part[:left])
    return kept + "…"


def sort_rows(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Rows sorted by one of their fields, `pods` or `{.planned.from}`. Rows without it come last."""
    path = key.strip("{}").strip(".")

    def value(row: Row) -> tuple[int, float, str]:
        found = field_of(row, path)
        if found is None:
            return 2, 0.0, ""
        if isinstance(found, bool | int | float):
            return 0, float(found), ""
        return 1, 0.0, str(found)

    if rows and all(field_of(row, path) is None for row in rows):
        known = ", ".join(sorted({name for row in rows for name in row}))
        raise InvalidInput(f"{key}: no row has it; there are {known}", where="--sort-by")
    return sorted(rows, key=value)


def field_of(row: Row, path: str) -> Any:
    """A field by its path; None if it is missing."""
    found: Any = row
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def custom_columns(text: str) -> list[Column]:
    """`NAME:.name,FROM:.planned.from`, as in kubectl."""
    shown: list[Column] = []
    for part in text.split(","):
        title, colon, path = part.partition(":")
        if not (title and colon and path.strip(".")):
            raise InvalidInput(f"{part!r}: write TITLE:.field, such as NAME:.name", where="-o custom-columns")
        shown.append((title, _field_text(path.strip("{}").strip("."))))
    return shown


def _field_text(path: str) -> Callable[[Row], str]:
    def shown(row: Row) -> str:
        found = field_of(row, path)
        if found is None:
            return "<none>"
        return ", ".join(map(str, found)) if isinstance(found, list) else clean(str(found))

    return shown


# -- the graph -----------------------------------------------------------------------------------------------


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Nodes by their amounts, and the totals of each resource, as integers; CPU in thousandths."""
    kinds: dict[tuple[tuple[str, str], ...], int] = {}
    totals: dict[str, dict[str, int]] = {}
    for row in rows:
        amounts = row.get("amounts") or ()
        kind = tuple((each["resource"], each["size"]) for each in amounts)
        kinds[kind] = kinds.get(kind, 0) + 1
        for each in amounts:
            total = totals.setdefault(each["resource"], {"size": 0, "taken": 0, "free": 0})
            for key in total:
                total[key] += _amount(each["resource"], each[key])
    return {
        "nodes": len(rows),
        "ready": sum(row["state"] == "Ready" for row in rows),
        "kinds": [{"nodes": count, "each": dict(kind)} for kind, count in kinds.items()],
        "resources": totals,
    }


@lru_cache(maxsize=4096)
def _amount(resource: str, text: str) -> int:
    return amount(resource, parse_quantity(text))


def summary_text(found: Mapping[str, Any]) -> str:
    """The table of the earlier plugin: how many nodes have what, and the free amount of all."""
    head = (
        f"{click.style('Resource Graph Summary', bold=True)}: {found['nodes']} nodes, {found['ready']} ready"
    )
    lines = [head, ""]
    names = [name for name in found["resources"] if name != "pods"]
    if names:
        table = [
            [click.style(title, bold=True) for title in ("NODES", *(f"{n.upper()}/NODE" for n in names))]
        ]
        for kind in sorted(found["kinds"], key=lambda each: -each["nodes"]):
            table.append([str(kind["nodes"]), *(_short(kind["each"].get(name, "0")) for name in names)])
        lines += [*columns(table), ""]
    table = [[click.style(title, bold=True) for title in ("RESOURCE", "SIZE", "TAKEN", "FREE")]]
    for name, total in found["resources"].items():
        table.append([name, *(_short(format_amount(name, total[key])) for key in ("size", "taken", "free"))])
    return "\n".join([*lines, *columns(table)])


# -- one job -------------------------------------------------------------------------------------------------


def why(detail: Row, now: datetime) -> str:
    """Everything about one gang: its state, why it waits, when and where it starts, and its history."""
    job = detail["job"]
    lines = [f"{click.style(clean(job['namespace']) + '/' + clean(job['name']), bold=True)}  {_state(job)}"]

    def add(title: str, text: str) -> None:
        lines.append(f"  {title + ':':<11} {text}")

    ahead = detail.get("ahead")
    if ahead is not None:
        add(
            "Queue",
            f"position {ahead + 1}" + (f", {ahead} ahead of it" if ahead else ", the first"),
        )
    what = "tasks" if job.get("array") else "pod" if _size(job) == "1" else "pods"
    size = f"{_size(job)} {what}" + (f", {requests(job)}" if job.get("requests") else "")
    add(
        "Asks for",
        f"{size}, for {spell_duration(job['limit'] * 1000)}"
        if job.get("limit")
        else size
        if job.get("state") in ("gathering", "refused")  # its limit is read when it is complete
        else f"{size}, no time limit",
    )
    if job.get("array"):
        add("Tasks", _tasks(job))
    for each in job.get("reasons") or ():
        add("Waits", clean(each["message"]) + ".")
    for text in starts(job, now):
        add("Starts", text)
    if job.get("nodes"):
        add("Has" if job.get("started") else "Planned on", hosts(job["nodes"]))
    if job.get("devices"):
        add("Devices", ", ".join(map(clean, job["devices"])))
    for broken in detail.get("broken") or ():
        add(
            "Broken",
            f"the start by {clock(broken['promised'], now)} UTC: {clean(broken['cause']['message'])}",
        )
    if detail.get("story"):
        lines.append("  Story:")
        rows = [
            [f"    {clock(s['at'], now)}", clean(s["state"]), clean(s["message"])] for s in detail["story"]
        ]
        lines += columns(rows)
    return "\n".join(lines)


def starts(job: Row, now: datetime) -> list[str]:
    """When a gang starts, or when it started."""
    found: list[str] = []
    if job.get("started"):
        until = (job.get("planned") or {}).get("until")
        end = f", ends by {clock(until, now)} UTC" if until else ", without a known end"
        found.append(f"{clock(job['started'], now)} UTC, {age(job['started'], now)} ago{end}")
        if not job.get("array"):
            return found
    bound, expected = job.get("noLaterThan"), job.get("expected")
    following = "the next task " if job.get("array") else ""
    if not bound:
        return [*found, f"{following}expected at {clock(expected, now)} UTC"] if expected else found
    sure = "" if job.get("firm") else ", if running jobs keep their limits"
    likely = f" (expected {clock(expected, now)})" if expected else ""
    return [*found, f"{following}by {clock(bound, now)} UTC{likely}{sure}"]


def now_utc() -> datetime:
    return datetime.now(UTC)
