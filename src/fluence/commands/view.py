"""View: formats results as aligned columns, amounts, names and times in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from fluence.errors import InvalidInput
from fluence.units import format_duration, natural_key

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_EPOCH = 1_000_000_000  # seconds this large are a date, smaller ones an offset
_FIRST = {"core": 0, "gpu": 1, "memory": 2}
COLORS = {"now": "green", "later": "cyan", "wait": "yellow", "never": "red"}


def clean(text: str) -> str:
    """A text from a file, without characters that would move a terminal's cursor."""
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    )


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns under titles. Nothing is cut off, and a pipe gets the same as a terminal."""
    return "\n".join(columns([[click.style(title, bold=True) for title in titles], *rows]))


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines with aligned cells, two spaces apart."""
    return aligned(list(zip(*rows, strict=True)))


def aligned(columns: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table from its columns, each with a cell for every line."""
    padded = []
    for cells in columns:
        different = set(cells)  # most columns have few different cells
        room = max(map(width, different))
        texts = {cell: pad(cell, room) for cell in different}
        padded.append([texts[cell] for cell in cells])
    return ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]


def pad(text: str, columns: int) -> str:
    """A text padded with spaces."""
    return text + " " * (columns - width(text))


def width(text: str) -> int:
    """The width of a text, without colours."""
    return len(_ESCAPE.sub("", text)) if "\x1b" in text else len(text)


def state(word: str) -> str:
    """The state of a job in its colour."""
    return click.style(word, fg=COLORS.get(word))


def plain(type_: str, amount: int) -> str:
    """An amount of a type as it is."""
    return str(amount)


def amounts(of: Mapping[str, int], *, write: Callable[[str, int], str] = plain) -> str:
    """`8 core, 1 gpu`: computing resources first, the rest by name."""
    order = sorted(of, key=lambda type_: (_FIRST.get(type_, len(_FIRST)), type_))
    return ", ".join(f"{write(type_, of[type_])} {type_}" for type_ in order)


def hosts(names: Sequence[str]) -> str:
    """Names in hostlist form, in natural order. Names that it cannot represent are listed."""
    from fluence.model import hostlist  # imported late: few tables need it

    ordered = [clean(name) for name in sorted(names, key=natural_key)]
    try:
        return hostlist.encode(ordered)
    except InvalidInput:
        return ", ".join(ordered)


def moment(time: int, *, horizon: int | None = None) -> str:
    """A point in time: a date if it is seconds since 1970, otherwise how long after the start."""
    if horizon is not None and time >= horizon:
        return "open"
    if time >= _EPOCH:
        return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return format_duration(time)


def data(value: Any, form: str) -> str:
    """A value for programs, as `json` or as `yaml`."""
    return yaml(value) if form == "yaml" else json(value)


def json(value: Any) -> str:
    """A value as JSON for people and programs."""
    import json as codec

    return codec.dumps(value, indent=2, ensure_ascii=False)


def yaml(value: Any) -> str:
    """A value as YAML."""
    import yaml as codec

    return codec.safe_dump(value, sort_keys=False, allow_unicode=True).rstrip()
