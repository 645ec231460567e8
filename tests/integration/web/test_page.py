"""The page of `fluence web` in a real browser, over a scheduler whose gangs wait, start and end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner
from msgspec.structs import replace
from playwright.async_api import expect

from fluence import names as fluence_names
from fluence.cli import main
from fluence.errors import InvalidInput, NotFound
from fluence.kube.errors import Unreachable
from fluence.model.pod import ResourceRequirements
from fluence.schedule.events import Changed
from fluence.web import page
from fluence.web.cluster_rows import RESOURCES
from fluence.web.in_process import SnapshotView
from tests.browser import browser, reader
from tests.eventually import eventually
from tests.unit.schedule.test_devices import config
from tests.unit.schedule.test_promised_starts import node
from tests.unit.web.field import ALL, Field, Sees, gang
from tests.unit.web.test_arrays import tasks

VIEWS = ("cluster", "queue", "plan", "devices", "promises")
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 800}, "has_touch": True}


class FieldView(SnapshotView):
    """A view of a scheduler in this process, which can be out of reach."""

    def __init__(self, field: Field, sees: Sees = ALL) -> None:
        super().__init__(field.snapshot, sees)
        self.is_down = False
        self.streams: list[str] = []  # that are open

    async def follow(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        self.streams.append(path)
        try:
            async with contextlib.aclosing(super().follow(path, query)) as parts:
                async for part in parts:
                    yield part
        finally:
            self.streams.remove(path)

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        if self.is_down:
            raise Unreachable("no scheduler answers", sent=False)
        return await super().get(path, query)


@pytest.fixture
def field() -> Field:
    """Four nodes: a gang runs on three, one of four waits behind it, a small one of others waits, too."""
    made = Field(nodes=4)
    made.submit(gang("first", 3, user="ann"))
    made.submit(gang("second", 4, user="ann"))
    made.submit(gang("third", 2, namespace="biology", user="bob"))
    return made


async def cells(shown: Any, label: str, wanted: set[str]) -> None:
    """Wait until the second column of a table has exactly these."""
    table = shown.page.get_by_role("table", name=label)
    names = table.locator("tbody tr:not(.space) td:nth-child(2)")
    await expect(names).to_have_count(len(wanted))
    assert set(await names.all_inner_texts()) == wanted


async def test_every_view_is_shown_without_faults_and_accessible(field: Field) -> None:
    """Light, dark, and on a phone; the page asks nobody but its own server."""
    kinds: tuple[dict[str, Any], ...] = ({"color_scheme": "light"}, {"color_scheme": "dark"}, PHONE)
    async with browser() as started, page.serving(FieldView(field)) as address:
        for options in kinds:
            async with reader(started, **options) as shown:
                for view in (*VIEWS, "jobs/physics/second", "nodes/n0"):
                    await shown.open(address, view)
                    assert await shown.violations() == [], view
                    width = await shown.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    assert width <= 0, view
                assert shown.faults == []
                assert shown.hosts == {address.split("/")[2]}


async def test_the_queue_follows_the_scheduler(field: Field) -> None:
    view = FieldView(field)
    async with browser() as started, page.serving(view) as address, reader(started) as shown:
        await shown.open(address, "queue")
        await cells(shown, "Jobs", {"physics/second", "biology/third"})
        field.submit(gang("fourth", 4, user="ann"))
        view.change()
        await cells(shown, "Jobs", {"physics/second", "biology/third", "physics/fourth"})
        await shown.page.get_by_label("Search").fill("fourth")
        await cells(shown, "Jobs", {"physics/fourth"})
        assert "search=fourth" in shown.page.url  # the address shows what one looks at
        await shown.page.reload()
        await cells(shown, "Jobs", {"physics/fourth"})
        assert shown.faults == []


async def test_a_user_sees_of_other_namespaces_only_that_a_place_is_taken(field: Field) -> None:
    view = FieldView(field, Sees("physics"))
    async with browser() as started, page.serving(view) as address, reader(started) as shown:
        for name in (*VIEWS, "jobs/physics/second"):
            await shown.open(address, name)
            text = await shown.page.locator("main").inner_text()
            assert "third" not in text and "biology" not in text and "bob" not in text
        await shown.open(address, "queue")
        await cells(shown, "Jobs", {"physics/second", "(other namespace)"})


async def test_the_page_comes_back_with_the_scheduler(field: Field) -> None:
    view = FieldView(field)
    async with browser() as started, page.serving(view) as address, reader(started) as shown:
        await shown.open(address, "queue")
        view.is_down = True
        view.change()
        await expect(shown.page.get_by_role("status")).to_have_text("Not connected. Trying again …")
        await expect(shown.page.get_by_role("alert")).to_contain_text("no scheduler answers")
        field.submit(gang("fourth", 4))
        view.is_down = False
        await cells(shown, "Jobs", {"physics/second", "biology/third", "physics/fourth"})
        await expect(shown.page.get_by_role("status")).to_have_text("Live")
        await expect(shown.page.get_by_role("alert")).to_have_count(0)


async def test_keys_lead_from_node_to_node_and_open_one(field: Field) -> None:
    async with browser() as started, page.serving(FieldView(field)) as address, reader(started) as shown:
        await shown.open(address, "cluster")
        picture = shown.page.get_by_role("img")
        await picture.focus()
        await shown.page.keyboard.press("ArrowRight")
        await shown.page.keyboard.press("ArrowRight")
        await expect(shown.page.locator(".tip")).to_contain_text("n1: Ready")
        await shown.page.keyboard.press("Enter")
        await expect(shown.page.get_by_role("heading", level=1)).to_have_text("n1")
        pods = shown.page.get_by_role("table", name="Pods").locator("tbody tr")
        await expect(pods).to_have_count(1)
        (here,) = [each.pod for each in field.snapshot().pods.values() if each.node == "n1"]
        assert (await pods.inner_text()).split() == [here.metadata.name, "physics/first"]
        await pods.get_by_role("link").click()
        await expect(shown.page.get_by_role("heading", level=1)).to_have_text("physics/first")
        assert shown.faults == []


async def test_what_is_sorted_grouped_and_zoomed_is_in_the_address(field: Field) -> None:
    for number in range(4):
        field.driver.set_node(node(f"n{number}", zone=f"z{number % 2}"))
    async with browser() as started, page.serving(FieldView(field)) as address, reader(started) as shown:
        await shown.open(address, "queue?show=all")
        names = shown.page.get_by_role("table", name="Jobs").locator("tbody tr:not(.space) td:nth-child(2)")
        head = shown.page.get_by_role("columnheader", name="Job", exact=True)
        jobs = ["biology/third", "physics/first", "physics/second"]
        for order, wanted in (("ascending", jobs), ("descending", jobs[::-1])):
            await head.get_by_role("button").click()
            await expect(head).to_have_attribute("aria-sort", order)
            await expect(names).to_have_text(wanted)
        assert "sort=-name" in shown.page.url and "show=all" in shown.page.url
        await shown.page.reload()
        await expect(names).to_have_text(jobs[::-1])
        await shown.open(address, "cluster")
        await shown.page.get_by_label("Group by").select_option("zone")
        await shown.page.get_by_label("Colour by").select_option("cpu")
        assert "group=zone" in shown.page.url and "resource=cpu" in shown.page.url
        await shown.page.reload()
        await expect(shown.page.get_by_label("Group by")).to_have_value("zone")
        await expect(shown.page.get_by_label("Colour by")).to_have_value("cpu")
        await shown.open(address, "plan")
        await shown.page.get_by_label("Time").select_option("6 hours")
        assert "span=6+hours" in shown.page.url
        await shown.page.reload()
        await expect(shown.page.get_by_label("Time")).to_have_value("6 hours")
        assert shown.faults == []


async def test_keys_lead_from_job_to_job_in_the_plan(field: Field) -> None:
    async with browser() as started, page.serving(FieldView(field)) as address, reader(started) as shown:
        await shown.open(address, "plan")
        await shown.page.get_by_role("img").focus()
        tip = shown.page.locator(".tip")
        for key, told in (
            ("ArrowRight", "physics/first: running"),
            ("ArrowRight", "physics/second: reserved"),
            ("ArrowLeft", "physics/first: running"),
            ("ArrowRight", "physics/second: reserved"),
        ):
            await shown.page.keyboard.press(key)
            await expect(tip).to_contain_text(told)
        await shown.page.keyboard.press("Enter")
        await expect(shown.page.get_by_role("heading", level=1)).to_have_text("physics/second")
        assert shown.faults == []


async def test_jobs_that_share_a_node_are_both_seen_in_the_plan() -> None:
    field = Field(nodes=1)
    for name in ("left", "right"):
        field.submit(gang(name, 1, cpu="1"))
    async with browser() as started, page.serving(FieldView(field)) as address, reader(started) as shown:
        await shown.open(address, "plan")
        chart, tip = shown.page.get_by_role("img"), shown.page.locator(".tip")
        for y, job in ((34, "left"), (46, "right")):  # the first line of the chart is 24 pixels high
            await chart.hover(position={"x": 400, "y": y})
            await expect(tip).to_contain_text(f"physics/{job}: running")
        assert shown.faults == []


async def test_a_phone_shows_when_each_job_starts(field: Field) -> None:
    async with browser() as started, page.serving(FieldView(field)) as address:
        for options, is_shown in ((PHONE, False), ({}, True)):
            async with reader(started, **options) as shown:
                await shown.open(address, "queue")
                head = shown.page.get_by_role("columnheader", name="Starts by")
                box = await head.bounding_box()
                width = await shown.page.evaluate("innerWidth")
                assert box is not None and box["x"] + 50 < width  # its first figures
                for minor in ("User", "Limit"):  # the page of a job has them
                    await expect(shown.page.get_by_role("columnheader", name=minor)).to_be_visible(
                        visible=is_shown
                    )
                for unused in ("Queue", "Tasks", "Priority"):
                    await expect(shown.page.get_by_role("columnheader", name=unused)).to_be_hidden()


async def test_a_long_name_does_not_hide_when_its_job_starts(field: Field) -> None:
    saved = msgspec.json.decode(await page.save(FieldView(field)))
    name = "solver-" + "9" * 56
    saved["lists"]["queue"]["items"][0]["name"] = name
    view = page.SavedView(msgspec.json.encode(saved), source="saved")
    async with browser() as started, page.serving(view) as address:
        for options, last in ((PHONE, "Starts by"), ({}, "Reason")):
            async with reader(started, **options) as shown:
                await shown.open(address, "queue")
                await expect(shown.page.get_by_role("link", name=name)).to_have_attribute(
                    "title", f"physics/{name}"
                )
                box = await shown.page.get_by_role("columnheader", name=last).bounding_box()
                width = await shown.page.evaluate("innerWidth")
                assert box is not None and box["x"] + 50 < width


async def test_only_the_rows_in_view_are_drawn_also_where_the_page_scrolls(field: Field) -> None:
    saved = msgspec.json.decode(await page.save(FieldView(field)))
    queue = saved["lists"]["queue"]
    queue["items"] = [{**queue["items"][0], "name": f"job-{n}", "position": n} for n in range(1, 2001)]
    view = page.SavedView(msgspec.json.encode(saved), source="saved")
    async with browser() as started, page.serving(view) as address:
        for options in (PHONE, {}):
            async with reader(started, **options) as shown:
                await shown.open(address, "queue")
                lines = shown.page.get_by_role("table", name="Jobs").locator("tbody tr:not(.space)")
                assert 10 < await lines.count() < 100
                await shown.page.evaluate(
                    "scrollTo(0, 1e6); document.querySelector('.scroll').scrollTop = 1e6"
                )
                await expect(lines.last).to_contain_text("physics/job-2000")
                assert 10 < await lines.count() < 100
                await shown.page.goto("about:blank")


async def test_an_empty_list_says_so() -> None:
    view = FieldView(Field(nodes=1))
    async with browser() as started, page.serving(view) as address, reader(started) as shown:
        for name, text in (
            ("queue", "No job waits, or none is found."),
            ("plan", "Nothing runs, and nothing is planned."),
            ("devices", "There are no such resources."),
            ("promises", "No job has a promised start."),
        ):
            await shown.open(address, name)
            await expect(shown.page.get_by_text(text)).to_be_visible()
            assert await shown.violations() == [], name
        assert shown.faults == []


async def test_a_device_says_who_uses_it() -> None:
    (pod,) = gang("quantum", 1, cpu="1", user="ann")
    box = replace(
        pod.spec.containers[0],
        resources=ResourceRequirements(requests={"cpu": "1", f"{fluence_names.DEVICE_PREFIX}qpu": "1"}),
    )
    made = Field(nodes=1)
    made.driver.handle(Changed(None, config("resources: [{type: qpu, name: q0}, {type: qpu, name: q1}]")))
    made.submit([replace(pod, spec=replace(pod.spec, containers=[box]))])
    async with browser() as started, page.serving(FieldView(made)) as address, reader(started) as shown:
        await shown.open(address, "devices")
        rows = await shown.rows("Devices")
        assert [row[:5] for row in rows] == [
            ["q0", "qpu", "online", "1", "1"],
            ["q1", "qpu", "online", "0", "1"],
        ]
        assert rows[0][5].startswith("physics/quantum") and rows[1][5] == ""
        await shown.open(address, "plan")
        assert [row[5] for row in await shown.rows("Plan as a table")] == ["n0, q0"]
        assert shown.faults == []


async def test_the_page_of_a_job_says_what_would_help_if_asked(field: Field) -> None:
    asked = []

    async def explain(*what: str) -> dict[str, Any]:
        asked.append(what)
        if len(asked) == 2:
            raise NotFound("no pod has this name")
        return {"state": "Pending", "blocks": ["4 of 4 nodes are busy"], "sooner": ["ask for 1 pod"]}

    view = FieldView(field)
    async with (
        browser() as started,
        page.serving(view, explain=explain) as address,
        reader(started) as shown,
    ):
        await shown.open(address, "jobs/physics/second")
        assert asked == []
        ask = shown.page.get_by_role("button", name="Ask")
        await ask.click()
        await expect(shown.page.get_by_role("listitem").filter(has_text="ask for 1 pod")).to_be_visible()
        await expect(shown.page.get_by_text("In its way now: 4 of 4 nodes are busy")).to_be_visible()
        assert asked == [("Group", "physics", "second")]
        field.submit(gang("fourth", 4))
        view.change()  # the job is drawn again, and the answer stays
        await expect(shown.page.get_by_text("In its way now: 4 of 4 nodes are busy")).to_be_visible()
        assert await shown.violations() == []
        await ask.click()
        await expect(shown.page.get_by_text("No answer: no pod has this name")).to_be_visible()
        assert [fault for fault in shown.faults if "404" not in fault] == []


async def test_many_tabs_need_one_stream_each_and_hidden_ones_none(field: Field) -> None:
    """A browser has six connections to a server for all of its tabs."""
    view = FieldView(field)
    async with browser() as started, page.serving(view) as address, reader(started) as shown:
        tabs = [await shown.page.context.new_page() for _ in range(5)]
        for tab, name in zip(tabs, ("plan", "nodes/n0", "plan", "cluster", "queue"), strict=True):
            await tab.goto(f"{address}#/{name}")
            await tab.wait_for_selector("main [aria-busy]", state="detached")
        await eventually(
            lambda: sorted(view.streams), ["nodes", "nodes/n0", "plan", "plan", "queue"], what="one each"
        )
        for tab in tabs:
            await tab.evaluate(
                "Object.defineProperty(document, 'visibilityState', {value: 'hidden', configurable: true});"
                "document.dispatchEvent(new Event('visibilitychange'))"
            )
        await eventually(lambda: view.streams == [], what="the streams of hidden tabs end")
        field.submit(gang("fourth", 4))
        await tabs[-1].evaluate(
            "delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange'))"
        )
        await expect(tabs[-1].get_by_role("link", name="physics/fourth")).to_be_visible()
        await eventually(lambda: view.streams, ["queue"], what="one that is shown has its stream")


async def test_a_page_of_another_site_gets_nothing(field: Field) -> None:
    """Even one that knows the address: no script of it, no answer, and not in a frame."""
    async with browser() as started, page.serving(FieldView(field)) as address, serving_text() as foreign:
        async with reader(started) as shown:
            await shown.page.goto(foreign)
            nodes = f"{address}apis/view.fluence.flux-framework.org/v1/nodes"
            for options in ("{}", "{mode: 'no-cors'}"):
                outcome = await shown.page.evaluate(
                    f"fetch({nodes!r}, {options}).then((r) => r.type + r.status).catch((e) => 'refused')"
                )
                assert outcome in ("refused", "opaque0"), outcome
            loaded = (
                "new Promise((done) => {{ const made = document.createElement({tag!r}); made.src = {url!r};"
                " made.onload = () => done('loaded'); made.onerror = () => done('refused');"
                " document.body.append(made); }})"
            )
            script = loaded.format(tag="script", url=f"{address}format.js")
            assert await shown.page.evaluate(script) == "refused"
            await shown.page.evaluate(loaded.format(tag="iframe", url=address))
            frame = shown.page.frames[-1]
            assert "Cluster" not in await frame.evaluate("document.body?.innerText ?? ''")
        async with aiohttp.ClientSession() as session:
            for site, status in (
                ("cross-site", 403),
                ("same-site", 403),
                ("same-origin", 200),
                ("none", 200),
            ):
                async with session.get(nodes, headers={"Sec-Fetch-Site": site}) as answer:
                    assert answer.status == status, site


@contextlib.asynccontextmanager
async def serving_text() -> AsyncIterator[str]:
    """An empty page of another origin."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>other</title><body></body>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://localhost:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def test_a_saved_view_shows_the_same(field: Field, tmp_path: Any) -> None:
    live = FieldView(field)
    path = tmp_path / "saved.json"
    path.write_bytes(await page.save(live))
    saved = page.read_saved(str(path))
    async with browser() as started, reader(started) as shown:
        texts = []
        await shown.page.clock.set_fixed_time(datetime.fromtimestamp(field.now / 1000, UTC))
        for view in (live, saved):
            async with page.serving(view) as address:
                seen = {}
                for name in (*VIEWS, "jobs/physics/second", "nodes/n0"):
                    await shown.open(address, name)
                    text = await shown.page.locator("main").inner_text()
                    seen[name] = text.replace("\nWhat would help\nAsk\n", "\n")  # there is nobody to ask
                texts.append(seen)
                await shown.page.goto("about:blank")  # ends its streams before their server ends
        assert texts[0] == texts[1]
        assert shown.faults == []


async def test_each_task_of_an_array_has_its_own_bar_in_the_plan() -> None:
    field = Field(nodes=2)
    job, pods = tasks("sweep", 3)
    field.driver.set_owner(job)
    field.submit(pods)
    live = FieldView(field)
    for view in (live, page.SavedView(await page.save(live), source="saved")):
        async with browser() as started, page.serving(view) as address, reader(started) as shown:
            await shown.open(address, "plan")
            rows = await shown.rows("Plan as a table")
            assert [(row[1], row[4]) for row in rows] == [
                ("running", "1"),
                ("running", "1"),
                ("reserved", "1"),
            ]
            await shown.open(address, "queue")
            await cells(shown, "Jobs", {"physics/sweep"})


async def test_only_the_user_who_started_it_reads_the_page(field: Field) -> None:
    async with page.serving(FieldView(field)) as address, aiohttp.ClientSession() as session:
        origin = address.rsplit("/", 2)[0]
        nodes = "apis/view.fluence.flux-framework.org/v1/nodes"
        foreign = {"Host": "rebound.example"}
        for url, headers, status in (
            (f"{address}{nodes}", {}, 200),
            (f"{origin}/{nodes}", {}, 404),
            (f"{origin}/guess/{nodes}", {}, 404),
            (f"{address}{nodes}", foreign, 421),
            (f"{address}../{nodes}", {}, 404),
            (f"{address}page.py", {}, 404),
        ):
            async with session.get(url, headers=headers) as answer:
                assert answer.status == status, url
                assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        async with session.post(f"{address}{nodes}") as answer:
            assert answer.status == 404


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "List"}', "[" * 100_000])
def test_what_is_not_a_saved_view_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^some\.json: not a saved view"):
        page.SavedView(text.encode(), source="some.json")


def test_every_resource_of_the_view_is_saved() -> None:
    assert set(page.RESOURCES) == set(RESOURCES)


async def test_a_simulated_run_is_shown_at_its_own_time(tmp_path: Any) -> None:
    """`fluence simulate --view`: a trace of another year; the plan has bars and the clock stands still."""
    path, log = tmp_path / "view.json", tmp_path / "log.swf"
    log.write_text("".join(f"{n} {n} -1 3600 2 -1 -1 2 3600 -1 1 {n} 1 -1 1 -1 -1 -1\n" for n in range(1, 9)))
    command = ["simulate", "--trace", str(log), "--cluster", "4x1", "--queue-policy", "conservative"]
    done = await asyncio.to_thread(CliRunner().invoke, main, [*command, "--view", str(path)])
    assert done.exit_code == 0, done.output
    async with (
        browser() as started,
        reader(started, timezone_id="UTC", locale="en-GB") as shown,
        page.serving(page.read_saved(str(path))) as address,
    ):
        await shown.open(address, "queue")
        rows = await shown.rows("Jobs")
        assert [row[1] for row in rows] == [f"trace/{n}" for n in range(3, 9)], rows
        await expect(shown.page.locator("#connection")).to_have_text("Saved: 01/01/2000, 00:00:07")
        await shown.open(address, "jobs/trace/3")
        await expect(shown.page.get_by_text("in 59m 53s")).not_to_have_count(0)
        for view in VIEWS:
            await shown.open(address, view)
            assert await shown.violations() == []
        assert shown.faults == []
