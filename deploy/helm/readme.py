"""Readme: the chart's README, with a row for each value that has a comment above it in values.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

FRAME = Path(__file__).with_name("readme.in.md")


def readme(values: str) -> str:
    rows = [f"| `{path}` | {_shown(value)} | {text} |" for path, value, text in described(values)]
    return FRAME.read_text().replace("VALUES", "\n".join(rows))


def described(values: str) -> Iterator[tuple[str, object, str]]:
    """(path, default, comment) of each key with a comment, or with a value that is no block."""
    document = yaml.safe_load(values)
    path: list[str] = []
    comment: list[str] = []
    for line in values.splitlines():
        found = re.match(r"^( *)([A-Za-z][\w-]*):(.*)$", line)
        if found is None:
            stripped = line.strip()
            comment = [*comment, stripped[1:].strip()] if stripped.startswith("#") else []
            continue
        depth = len(found[1]) // 2
        path = [*path[:depth], found[2]]
        value = document
        for key in path:
            value = value[key] if isinstance(value, dict) and key in value else None
        has_block = not found[3].strip()
        text = " ".join(each for each in comment if not each.startswith("settings: "))
        if (text or not has_block) and path[0] != "scheduler" and not (depth and path[0] == "resources"):
            yield ".".join(path), value, text.replace("|", "\\|")
        comment = []


def _shown(value: object) -> str:
    if value is None or value == "":
        return "–"
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).replace("\n...", "").strip()
    return f"`{text}`"
