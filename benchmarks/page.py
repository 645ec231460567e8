"""The page of `fluence web` in Chromium at 5,000 nodes and 5,000 pending gangs.

    python -m benchmarks.page [NODES] [PENDING]

A process has a scheduler and serves the page with all rows of each list; the browser is Debian's, without a
window. The first picture is from the request until all lists are drawn. An update is from the moment at which
the server knows a change until the page shows it; meanwhile the page takes no input for the time of the
longest task. Frames are counted while a list or chart is scrolled for three seconds.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.view import busy
from playwright.async_api import Page
from tests.browser import browser, reader
from tests.unit.web.field import gang

from fluence.web import page
from fluence.web.in_process import SnapshotView

UPDATES = 5
VIEWS = {"cluster": "Nodes", "queue": "Jobs", "plan": ""}  # by view: the table that is scrolled
_SCROLL = """async (box) => {
  const times = [];
  const until = performance.now() + 3000;
  const frame = () => new Promise(requestAnimationFrame);
  for (let last = await frame(), now; (now = await frame()) < until; last = now) {
    times.push(now - last);
    box.scrollTop = (box.scrollTop + 120) % (box.scrollHeight - box.clientHeight);
  }
  return times;
}"""
_LONGEST = """() => {
  window.longest = 0;
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) window.longest = Math.max(window.longest, duration);
  }).observe({ type: "longtask" });
}"""


async def serve(nodes: int, pending: int) -> None:
    """Each line of the input adds a gang; the answer is the memory of this process."""
    field = busy(nodes, pending)
    view = SnapshotView(field.snapshot)
    print(f"memory {_memory(os.getpid()):.0f}", flush=True)
    async with page.serving(view) as address:
        print(f"address {address}", flush=True)
        number = 0
        while await asyncio.to_thread(sys.stdin.readline):
            number += 1
            field.submit(gang(f"new{number}", 2, namespace="ns1", limit="1h"))
            print(f"memory {_memory(os.getpid()):.0f}", flush=True)
            view.change()


async def measure(nodes: int, pending: int) -> None:
    command = [sys.executable, "-m", "benchmarks.page", "serve", str(nodes), str(pending)]
    server = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        before = float((await server.stdout.readline()).split()[1])
        address = (await server.stdout.readline()).split()[1].decode()
        async with browser() as started, reader(started, viewport={"width": 1280, "height": 800}) as shown:
            shown.page.set_default_timeout(120_000)
            for name, table in VIEWS.items():
                began = time.perf_counter()
                await shown.open(address, name)
                first = time.perf_counter() - began
                await shown.page.evaluate(_LONGEST)
                took = [await _update(server, shown.page) for _ in range(UPDATES)]
                longest = await shown.page.evaluate("() => window.longest")
                named = shown.page.get_by_role("region", name=table)
                frames = await (named if table else shown.page.locator(".scroll").first).evaluate(_SCROLL)
                heap = await shown.page.evaluate("() => performance.memory.usedJSHeapSize")
                print(
                    f"{name}: first picture {first:.1f} s; an update {_of(took)}, "
                    f"longest task {longest:.0f} ms; {1000 * len(frames) / sum(frames):.0f} frames/s, "
                    f"slowest {max(frames):.0f} ms; tab {_tab():.0f} MiB, its objects {heap / 2**20:.0f}"
                )
                await shown.page.goto("about:blank")
            if shown.faults:
                sys.exit("\n".join(shown.faults))
        after = _memory(server.pid)
        print(f"server: {before:.0f} MiB with the scheduler, {after:.0f} MiB after all views")
    finally:
        server.kill()
        await server.wait()


async def _update(server: Any, shown: Page) -> float:
    """Seconds from a change until it is drawn: the page draws at the next frame after a list has come."""
    await shown.evaluate(
        """() => { window.drawn = new Promise((done) => {
          const box = document.querySelector("main");
          new MutationObserver((_, observer) => {
            observer.disconnect();
            requestAnimationFrame(() => done(true));
          }).observe(box, { childList: true, subtree: true, attributes: true });
        }); }"""
    )
    server.stdin.write(b"\n")
    await server.stdout.readline()
    began = time.perf_counter()
    await shown.evaluate("() => window.drawn")
    return time.perf_counter() - began


def _of(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s in the median, {max(seconds):.2f} at most"


def _memory(process: int) -> float:
    """Resident, in MiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _tab() -> float:
    """Of the largest renderer among the children of this process."""
    parents: dict[int, int] = {}
    renderers = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if b"--type=renderer" in (folder / "cmdline").read_bytes():
                renderers.append(int(folder.name))
        except OSError:
            continue  # it has ended
    ours = []
    for process in renderers:
        above = process
        while above > 1 and above != os.getpid():
            above = parents.get(above, 0)
        if above == os.getpid():
            ours.append(_memory(process))
    return max(ours, default=0.0)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "serve"]
    sizes = [int(word) for word in (*words, "5000", "5000")[:2]]
    asyncio.run(serve(*sizes) if "serve" in sys.argv else measure(*sizes))
