"""A real browser for tests: Debian's Chromium, driven by Playwright. It records what goes wrong on a page."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Browser, Page, async_playwright, expect

from fluence.errors import FluenceError
from fluence.sandbox.images import can_install, install
from tests.eventually import SOON_S
from tests.needs import lacks

_TIMEOUT_MS = 1000 * SOON_S
expect.set_options(timeout=_TIMEOUT_MS)  # else five seconds, whatever the default of the page


def find_chromium() -> Path:
    path = shutil.which("chromium")
    if path is None and can_install():
        with contextlib.suppress(FluenceError):
            install(["chromium"])
        path = shutil.which("chromium")
    if path is None:
        lacks("Chromium")
    return Path(path)


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        # A sandbox within the sandbox of a container is refused to root.
        options: Any = {"executable_path": str(find_chromium()), "args": ["--no-sandbox"]}
        started = await playwright.chromium.launch(**options)
        try:
            yield started
        finally:
            await started.close()


class Reader:
    """One page in a browser, and the faults that it has shown."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        self.hosts: set[str] = set()
        page.set_default_timeout(_TIMEOUT_MS)
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.faults.append(text)

    async def open(self, address: str, view: str) -> None:
        await self.page.goto(f"{address}#/{view}")
        # Where only the part after the # is another, the page draws a little later.
        await self.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        await self.page.wait_for_selector("main [aria-busy]", state="detached")

    async def rows(self, label: str) -> list[list[str]]:
        """The cells of a table, by the name that assistive technology reads."""
        table = self.page.get_by_role("table", name=label)
        await table.wait_for()
        lines = table.locator("tbody tr:not(.space)")
        return [
            [(await cell.inner_text()).strip() for cell in await line.locator("td").all()]
            for line in await lines.all()
        ]

    async def violations(self) -> list[str]:
        """What axe-core finds against the accessibility guidelines."""
        found = await Axe().run(self.page)
        return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found.response["violations"]]


@contextlib.asynccontextmanager
async def reader(started: Browser, **options: Any) -> AsyncIterator[Reader]:
    context = await started.new_context(**options)
    try:
        yield Reader(await context.new_page())
    finally:
        await context.close()
