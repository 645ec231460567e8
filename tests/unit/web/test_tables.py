"""What the commands print, from rows of the view API."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from fluence.commands import chart, view_tables
from fluence.errors import InvalidInput
from fluence.web.access import User
from fluence.web.server import BASE, make_page, parse_query
from tests.unit.schedule import kit
from tests.unit.schedule.test_promised_starts import node
from tests.unit.web.field import ALL, Field, Sees, gang

NOW = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)
FIRST: dict[str, Any] = {
    "position": 1,
    "state": "reserved",
    "namespace": "physics",
    "name": "train",
    "user": "ann",
    "pods": 4,
    "minimum": 4,
    "nodes": ["n2", "n3"],
    "noLaterThan": "2026-09-01T14:05:00Z",
    "expected": "2026-09-01T14:00:00Z",
    "firm": True,
    "limit": 3600,
    "requests": {"cpu": "64"},
    "planned": {"from": "2026-09-01T14:00:00Z", "until": "2026-09-01T15:00:00Z"},
    "reasons": [{"code": "TooFewSeats", "message": "1 of 4 fit"}, {"code": "X", "message": "later"}],
}
HIDDEN: dict[str, Any] = {"position": 2, "state": "pending", "hidden": True}
LAST: dict[str, Any] = {"state": "gathering", "namespace": "physics", "name": "half", "pods": 2, "minimum": 3}


def plain(text: str) -> list[str]:
    return [line.rstrip() for line in click.unstyle(text).splitlines()]


def test_the_queue() -> None:
    shown = view_tables.queue_columns(NOW, wide=False, namespaces=True)
    assert plain(view_tables.render(shown, [FIRST, HIDDEN, LAST])) == [
        "POS  STATE      NAMESPACE  NAME                 USER  PODS  NODES   START BY  EXPECTED  REASON",
        "1    reserved   physics    train                ann   4     n[2-3]  14:05     14:00     1 of 4 fit",
        "2    pending    -          (another namespace)  -     -     -       -         -",
        "-    gathering  physics    half                 -     2/3   -       -         -         -",
    ]


def test_lines_are_cut_to_the_terminal_and_wide_ones_never() -> None:
    shown = view_tables.queue_columns(NOW, wide=False, namespaces=True)
    lines = plain(view_tables.render(shown, [FIRST], room=60))
    assert max(map(len, lines)) == 60 and lines[1].endswith("…")
    wide = view_tables.queue_columns(NOW, wide=True, namespaces=True)
    assert "1 of 4 fit; later" in plain(view_tables.render(wide, [FIRST]))[1]


def test_many_jobs_of_other_namespaces_are_one_line() -> None:
    own = {"state": "pending", "namespace": "physics", "name": "mine", "pods": 1}
    hidden = [{"state": "pending", "position": n, "hidden": True} for n in range(2, 42)]
    rows = [{"state": "reserved", "position": 1, "hidden": True}, *hidden, {**own, "position": 42}]
    shown = view_tables.folded([*rows, *({**row, "position": 43 + n} for n, row in enumerate(hidden[:3]))])
    text = click.unstyle(
        view_tables.render(view_tables.start_columns(NOW, wide=False, namespaces=True), shown)
    )
    assert [line.split("  ")[0] for line in text.splitlines()[1:]] == ["1", "2-41", "42", "43", "44", "45"]
    assert "(40 of other namespaces)" in text.splitlines()[2]
    by_name = [*hidden[:20:2], *hidden[1:20:2]]
    assert view_tables.folded(by_name) == by_name, "their positions would be wrong"


def test_times_that_are_far_have_a_date() -> None:
    assert view_tables.clock("2026-09-03T01:00:00Z", NOW) == "09-03 01:00"
    assert view_tables.clock(None, NOW) == view_tables.clock("nonsense", NOW) == "-"


def test_text_of_users_moves_no_cursor() -> None:
    row = {**FIRST, "name": "a\x1b[2Jb", "user": "\r\n", "reasons": [{"code": "", "message": "\x07"}]}
    text = view_tables.render(view_tables.queue_columns(NOW, wide=True, namespaces=True), [row])
    assert "\x1b[2J" not in text and "\x07" not in text and "\r" not in text
    assert "\x1b[2J" not in view_tables.why({"job": row}, NOW)
    entry = {**row, "from": "2026-09-01T12:00:00Z"}
    assert "\x1b[2J" not in chart.plan_chart([entry], NOW, columns=80)


def test_rows_are_sorted_by_a_field() -> None:
    rows: list[dict[str, Any]] = [{"pods": 3}, {"name": "x"}, {"pods": 1}]
    assert view_tables.sort_rows(rows, "pods") == [{"pods": 1}, {"pods": 3}, {"name": "x"}]
    assert view_tables.sort_rows([FIRST, LAST], "{.planned.from}")[0] is FIRST
    with pytest.raises(InvalidInput, match="--sort-by: colour: no row has it; there are name, pods"):
        view_tables.sort_rows(rows, "colour")


def test_columns_of_ones_own() -> None:
    shown = view_tables.custom_columns("WHO:.name,FROM:.planned.from,NODES:.nodes")
    assert plain(view_tables.render(shown, [FIRST, LAST])) == [
        "WHO    FROM                  NODES",
        "train  2026-09-01T14:00:00Z  n2, n3",
        "half   <none>                <none>",
    ]
    with pytest.raises(InvalidInput, match=r"write TITLE:\.field"):
        view_tables.custom_columns("name")


def test_why() -> None:
    detail = {
        "job": FIRST,
        "ahead": 0,
        "story": [{"at": "2026-09-01T11:58:00Z", "state": "pending", "message": "submitted"}],
        "broken": [{"promised": "2026-09-01T13:00:00Z", "cause": {"message": "node n1 was lost"}}],
    }
    assert plain(view_tables.why(detail, NOW)) == [
        "physics/train  reserved",
        "  Queue:      position 1, the first",
        "  Asks for:   4 pods, 64 cpu, for 1 h",
        "  Waits:      1 of 4 fit.",
        "  Waits:      later.",
        "  Starts:     by 14:05 UTC (expected 14:00)",
        "  Planned on: n[2-3]",
        "  Broken:     the start by 13:00 UTC: node n1 was lost",
        "  Story:",
        "    11:58  pending  submitted",
    ]


ARRAY = {
    **FIRST,
    "name": "sweep",
    "kind": "Job",
    "pods": 200,
    "minimum": None,
    "array": {"size": 200, "waiting": 150, "running": 20, "done": 30},
}


def test_an_array_is_one_line_with_its_counts() -> None:
    rows = [ARRAY, LAST]
    shown = view_tables.queue_columns(NOW, wide=False, namespaces=False)
    assert plain(view_tables.render(view_tables.with_arrays(shown, rows)[:-1], rows)) == [
        "POS  STATE      NAME   USER  PODS  TASKS                      NODES   START BY  EXPECTED",
        "1    reserved   sweep  ann   200   20 run, 150 wait, 30 done  n[2-3]  14:05     14:00",
        "-    gathering  half   -     2/3   -                          -       -         -",
    ]
    assert view_tables.with_arrays(shown, [FIRST, LAST]) == shown, "no column where there is no array"
    lines = plain(view_tables.why({"job": {**ARRAY, "started": "2026-09-01T11:00:00Z"}}, NOW))
    assert "  Asks for:   200 tasks, 64 cpu, for 1 h" in lines
    assert "  Tasks:      20 run, 150 wait, 30 done" in lines
    assert "  Starts:     11:00 UTC, 1 h ago, ends by 15:00 UTC" in lines
    assert "  Starts:     the next task by 14:05 UTC (expected 14:00)" in lines


PLAN: list[dict[str, Any]] = [
    {
        "state": "running",
        "namespace": "physics",
        "name": "now",
        "nodes": ["n0", "n1"],
        "from": "2026-09-01T11:00:00Z",
        "until": "2026-09-01T13:00:00Z",
    },
    {
        "state": "reserved",
        "namespace": "physics",
        "name": "next",
        "nodes": ["n1"],
        "from": "2026-09-01T13:00:00Z",
        "until": "2026-09-01T15:00:00Z",
    },
    {
        "state": "reserved",
        "hidden": True,
        "nodes": ["n0"],
        "from": "2026-09-01T14:00:00Z",
        "until": "2026-09-01T16:00:00Z",
    },
]


def test_the_plan_as_a_chart() -> None:
    assert plain(chart.plan_chart(PLAN, NOW, columns=70)) == [
        "                     now       13:00     14:00    15:00",
        "physics/now          ██████████·····························  n[0-1]",
        "physics/next         ··········▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒··········  n1",
        "(another namespace)  ····················░░░░░░░░░░░░░░░░░░░  n0",
        "",
        "█ runs  ▒ planned  ░ another namespace's; one character is 6 min 9 s; times are UTC",
    ]


def test_the_plan_by_node_and_for_a_while() -> None:
    lines = plain(chart.plan_chart(PLAN, NOW, columns=40, until=timedelta(hours=2), by_node=True))
    assert lines[1] == "n0  █████████████████·················"
    assert lines[2] == "n1  █████████████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒"
    assert chart.plan_chart([], NOW, columns=80) == "nothing runs, and nothing is planned"


def test_what_has_no_end_goes_on_for_ever() -> None:
    endless = {**PLAN[0], "until": None}
    assert "█" * 10 in plain(chart.plan_chart([endless], NOW, columns=60))[1]


def test_nodes() -> None:
    rows = [
        {
            "name": "n0",
            "state": "Ready",
            "amounts": [
                {"resource": "pods", "size": "110", "taken": "2", "free": "108"},
                {"resource": "memory", "size": "64Gi", "taken": "0", "free": "64Gi"},
                {"resource": "cpu", "size": "32", "taken": "8", "free": "24"},
            ],
            "by": [{"namespace": "physics", "name": "train", "pods": 2}, {"pods": 3, "hidden": True}],
            "next": "2026-09-01T14:00:00Z",
        }
    ]
    shown = view_tables.nodes_columns(NOW, rows, wide=False)
    assert plain(view_tables.render(shown, rows)) == [
        "NAME  STATE  CPU FREE  MEMORY FREE  NEXT START  TAKEN BY",
        "n0    Ready  24/32     64Gi/64Gi    14:00       physics/train, 3 of others",
    ]


def test_the_queue_of_the_readme_is_what_is_printed() -> None:
    """Three gangs of five on eight nodes, one after the other; times aside."""
    made = Field(0, policy="easy")
    for number in range(8):
        made.driver.set_node(node(f"node-{number:03}"))
    for name in ("train-a", "train-b", "train-c"):
        made.submit(gang(name, 5, namespace="default", limit="30m"))
        made.now += 1000
    made.settle()
    page = make_page(made.snapshot(), ALL, parse_query(f"{BASE}/queue", {}, User("ann")))
    rows = msgspec.json.decode(msgspec.json.encode(page))["items"]
    shown = view_tables.queue_columns(kit.T0, wide=False, namespaces=True)
    printed = click.unstyle(view_tables.render(shown, rows, room=None))

    def plain(text: str) -> list[str]:
        return [re.sub(r"\b\d\d:\d\d\b", "HH:MM", line) for line in text.strip().splitlines()]

    readme = (Path(__file__).parents[3] / "README.md").read_text()
    block = readme.partition("$ kubectl fluence queue\n")[2].partition("```")[0]
    assert plain(printed) == plain(block)


@pytest.mark.parametrize("resource", ["queue", "start", "jobs", "groups", "nodes", "plan"])
def test_a_table_of_its_own_columns_is_the_table_of_all(resource: str) -> None:
    """What the commands ask for is enough for what they show, for rows of all kinds."""
    field = Field(nodes=3)
    field.submit(gang("now", 2, limit="2h", user="ann"))
    field.submit(gang("next", 3, limit="1h"))
    field.submit(gang("theirs", 2, namespace="biology", limit="1h"))
    field.submit(gang("half", 3, there=1))
    path = "queue" if resource == "start" else resource
    fields = ",".join(view_tables.FIELDS[resource])
    items, narrow = (
        msgspec.json.decode(
            msgspec.json.encode(
                make_page(
                    field.snapshot(),
                    Sees("physics"),
                    parse_query(f"{BASE}/{path}", {"limit": "20000", **more}, User("ann")),
                )
            )
        )
        for more in ({}, {"columns": fields})
    )
    assert narrow["items"] == [] and narrow["columns"] == fields.split(",")
    rows = [dict(zip(narrow["columns"], values, strict=True)) for values in narrow["rows"]]
    assert len(rows) == len(items["items"]) >= 2

    def shown(of: list[dict[str, Any]]) -> str:
        match resource:
            case "plan":
                return chart.plan_chart(of, NOW, columns=80) + chart.plan_chart(
                    of, NOW, columns=80, by_node=True
                )
            case "nodes":
                return view_tables.render(view_tables.nodes_columns(NOW, of, wide=False), of)
        columns = getattr(view_tables, f"{resource}_columns")(NOW, wide=False, namespaces=True)
        return view_tables.render(view_tables.with_arrays(columns, of), of)

    assert shown(rows) == shown(items["items"])
