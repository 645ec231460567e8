"""What issue 3 asks for, against Fluxion on the same machine at 10,000 nodes; and its recorded times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import scenario

NODES = 10_000
FLAT = 2.0  # the last of 30 reservations may take this many times the first
_FULL_WALKS = ("low", "high", "lonode")  # the policies that the issue names
_STOPS_EARLY = ("first", "firstnodex")
_RECORDED = Path(__file__).with_name("recorded.json")

Row = dict[str, Any]


def speedup(what: str, policy: str) -> float | None:
    """How many times faster than Fluxion a measurement must be."""
    if what == scenario.LOAD:
        return 3
    if what in (scenario.FOUR, scenario.FOUR_HALF):
        return 50 if policy in _FULL_WALKS else 1 if policy == "first" else None
    if what in (scenario.SLOTS, scenario.CORES):
        return 50 if policy not in _STOPS_EARLY else 1 if policy == "first" else None
    if what == scenario.NO_SHAPE:
        return 50
    if what in (scenario.RESERVE, scenario.RESERVE_WHOLE):
        return 20
    return None


def recorded(what: str, policy: str, nodes: int) -> Row | None:
    """Fluxion's time as the issue states it, if it does."""
    for row in json.loads(_RECORDED.read_text())["rows"]:
        fits = row["policies"] is None or policy in row["policies"]
        if row["what"] == what and row["nodes"] == nodes and fits:
            if "first" in row:
                row = {**row, "seconds": (row["first"] + row["last"]) / 2}
            return row
    return None


def judge(row: Row) -> None:
    """Fill in what was asked of a compared row, and whether it was reached."""
    row["target"], row["target_met"] = None, None
    if row["nodes"] != NODES or not row["compared"]:
        return
    wanted = speedup(row["what"], row["policy"])
    if wanted is None:
        return
    claims = [(f"≥ {wanted:g}×", row["ratio"], lambda ratio: ratio >= wanted)]
    if row["what"] == scenario.LOAD:
        claims.append(("≤ ¼ memory", row["memory_ratio"], lambda ratio: ratio >= 4))
    if row["what"] in (scenario.RESERVE, scenario.RESERVE_WHOLE):
        claims.append(("flat", row.get("growth"), lambda growth: growth <= FLAT))
    row["target"] = ", ".join(text for text, _, _ in claims)
    verdicts = [None if value is None else holds(value) for _, value, holds in claims]
    if False in verdicts:
        row["target_met"] = False
    elif None not in verdicts and row["status"] == "ok":  # half a queue proves nothing
        row["target_met"] = True
