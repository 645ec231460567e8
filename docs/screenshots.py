"""Screenshots: pictures of `fluence web` and of commands for the manual, from a cluster in memory.

    .venv/bin/python -m docs.screenshots

The cluster has 64 nodes in four racks; jobs of three teams arrive for two hours. What is shown is what the
live scheduler's cycle decides. Look at each picture before you commit it.
"""

from __future__ import annotations

import html
import random
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from tests.browser import browser, reader

from fluence import event_loop
from fluence.clock import ManualClock
from fluence.commands import chart as gantt
from fluence.commands import view_tables
from fluence.sandbox.nodes import NodeKind, manifests
from fluence.sim.cluster import EmbeddedCluster
from fluence.sim.gantt import DARK
from fluence.web import page
from fluence.web.in_process import SnapshotView
from fluence.web.view import take

PICTURES = Path(__file__).parent / "pictures"
_START = 1_794_996_000.0  # a Wednesday in November 2026, 10:00 in UTC
_TEAMS = {"chemistry": "md", "climate": "ensemble", "vision": "train"}
_VIEWS = {
    "cluster": "cluster",
    "queue": "queue",
    "plan": "plan?span=6+hours",
    "job": "jobs/chemistry/md-17",
}
_ROOM = 130  # columns of a terminal
_ANSI = re.compile("\x1b\\[(\\d+)m")
_MARKS = {"0": "</i></b>", "1": "<b>", "2": "<i>", "32": "<b>", "33": "<i>", "36": "<b>"}
_TERMINAL = """<!doctype html><meta charset="utf-8"><title>Terminal</title><style>
body {{ margin: 0; display: inline-block; background: {paper}; color: {ink}; }}
b {{ color: {running}; }} i {{ font-style: normal; color: {quiet}; }}
pre {{ margin: 16px; font: 13.29px/1.35 "DejaVu Sans Mono", monospace;
  letter-spacing: calc(8px - 1ch); }} /* whole pixels: bars have no seams */
</style><pre>{text}</pre>"""


def busy_cluster() -> EmbeddedCluster:
    """Two hours of work on 64 nodes, more than fits."""
    kind = NodeKind(count=64, name="node", cpu="64", memory="256Gi", racks=4)
    cluster = EmbeddedCluster(manifests(kind), clock=ManualClock(now=_START))
    choose = random.Random(7)
    for number in range(48):
        team = choose.choice(list(_TEAMS))
        cluster.apply(_job(f"{_TEAMS[team]}-{number}", team, choose))
        cluster.settle()
        end = int((cluster.clock.now() + 150) * 1000)
        while (due := cluster.next_time()) is not None and due <= end:
            cluster.step()
        cluster.advance(end)
        cluster.settle()
    return cluster


def _job(name: str, team: str, choose: random.Random) -> dict[str, Any]:
    size = choose.choice([2, 4, 8, 16, 24])
    hours = choose.choice([0.5, 1, 1, 2, 4])
    seconds = int(hours * 3600 * choose.uniform(0.4, 0.95))
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", str(seconds)],
        "resources": {"requests": {"cpu": choose.choice(["24", "48", "60"]), "memory": "64Gi"}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": team,
            "annotations": {
                "fluence.flux-framework.org/group-size": str(size),
                "fluence.flux-framework.org/duration": f"{int(hours * 60)}m",
            },
        },
        "spec": {
            "parallelism": size,
            "completions": size,
            "template": {
                "spec": {"schedulerName": "fluence", "restartPolicy": "Never", "containers": [container]}
            },
        },
    }


async def outputs(view: SnapshotView, now: datetime) -> dict[str, str]:
    """What commands print of this cluster, with their command lines."""

    async def rows(path: str, **query: str) -> list[dict[str, Any]]:
        return list(msgspec.json.decode(await view.get(path, {"limit": "1000", **query}))["items"])

    queue, plan = (await rows("queue"))[:12], await rows("plan")
    (job,) = await rows("namespaces/chemistry/jobs/md-17")
    columns = view_tables.queue_columns(now, wide=False, namespaces=True)
    table = view_tables.render(columns, queue, room=_ROOM)
    chart = gantt.plan_chart(plan, now, columns=_ROOM)
    return {
        "queue": f"$ kubectl fluence queue | head -13\n{table}",
        "plan": f"$ kubectl fluence plan\n{chart}",
        "why": f"$ kubectl fluence why md-17 -n chemistry\n{view_tables.why(job, now)}",
    }


async def take_pictures() -> None:
    cluster = busy_cluster()
    view = SnapshotView(lambda: take(cluster.scheduler, int(cluster.clock.now() * 1000), number=1))
    options: Any = {"viewport": {"width": 1120, "height": 720}, "timezone_id": "UTC", "locale": "en-GB"}
    async with browser() as started, page.serving(view) as address, reader(started, **options) as shown:
        for name, path in _VIEWS.items():
            await shown.page.clock.set_fixed_time(datetime.fromtimestamp(cluster.clock.now(), UTC))
            await shown.open(address, path)
            await shown.page.wait_for_timeout(300)  # a frame, for the canvas
            await shown.page.screenshot(path=PICTURES / f"page-{name}.png")
        phone: Any = {"width": 390, "height": 720}
        for name, scheme, size in (("dark", "dark", options["viewport"]), ("phone", "light", phone)):
            await shown.page.emulate_media(color_scheme=scheme)
            await shown.page.set_viewport_size(size)
            await shown.open(address, _VIEWS["plan"])
            await shown.page.wait_for_timeout(300)
            await shown.page.screenshot(path=PICTURES / f"page-{name}.png")
        now = datetime.fromtimestamp(cluster.clock.now(), UTC)
        for name, text in (await outputs(view, now)).items():
            terminal = _TERMINAL.format(
                paper=DARK.paper,
                ink=DARK.ink,
                running=DARK.series[0],
                quiet=DARK.quiet,
                text=_ANSI.sub(lambda code: _MARKS[code[1]], html.escape(text.rstrip())),
            )
            await shown.page.goto("about:blank")  # which has no policy against styles
            await shown.page.set_content(terminal)
            await shown.page.locator("body").screenshot(path=PICTURES / f"command-{name}.png")
        if shown.faults:
            raise SystemExit("\n".join(shown.faults))


if __name__ == "__main__":
    event_loop.run(take_pictures)
