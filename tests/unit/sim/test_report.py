"""Reports: figures as a table, as data, as pictures and as a page."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from matplotlib.colors import to_hex

from fluence.errors import InvalidInput
from fluence.sim import gantt, page, pictures, report, workload
from fluence.sim.gantt import DARK, LIGHT
from fluence.sim.intake import IntakeTerms
from fluence.sim.measure import Record, Run
from tests.amounts import amount
from tests.unit.sim.pool import Pool, easy, fcfs, run

RECIPE = b"""generate: {count: 150, arrival: {poisson: 40}, cores: {1: 5, 4: 3, 16: 1},
  runtime: {median: 5m, sigma: 1.3, max: 2h}, overestimate: {min: 1, max: 4}, users: 4}"""


def simulated(
    policy: Callable[[Pool], None] = easy, *, jobs: int | None = None, until: int | None = None
) -> Run:
    found = workload.parse(RECIPE, terms=IntakeTerms(jobs=jobs, seed=5))
    records = run(found.submissions, 24, policy, until=until)
    return Run(
        policy.__name__,
        records,
        24,
        settings={"trace": "made <up>", "seed": 5},
        decisions_per_s=1000,
        skipped={"no runtime": 2},
        interrupted=until is not None,
        stopped_at=until,
    )


@pytest.fixture(scope="module")
def two() -> list[Run]:
    return [simulated(fcfs), simulated(easy)]


@pytest.fixture(scope="module")
def both_pages(two: list[Run]) -> tuple[str, str]:
    return page.render(two), page.render(two[1:])


class TestFigures:
    def test_one_run_is_one_object(self, two: list[Run]) -> None:
        value = json.loads(report.render(two[1:], "json"))
        assert (value["policy"], value["jobs"], value["capacity"]) == ("easy", 150, 24)
        assert value["wait"]["mean"] == two[1].measures.wait.mean
        assert value["skipped"] == {"no runtime": 2}
        assert value["settings"] == {"trace": "made <up>", "seed": 5}

    def test_several_runs_are_a_list(self, two: list[Run]) -> None:
        value = json.loads(report.render(two, "json"))
        assert [run["policy"] for run in value["runs"]] == ["fcfs", "easy"]

    def test_yaml_says_what_json_says(self, two: list[Run]) -> None:
        assert yaml.safe_load(report.render(two, "yaml")) == json.loads(report.render(two, "json"))

    def test_an_unknown_format_is_refused(self, two: list[Run]) -> None:
        with pytest.raises(
            InvalidInput, match="'xml' is not a format of reports: choose one of table, json, yaml"
        ):
            report.render(two, "xml")

    def test_the_table_marks_the_best(self, two: list[Run]) -> None:
        lines = report.render(two).splitlines()
        mean = next(line for line in lines if line.startswith("wait"))
        assert two[1].measures.wait.mean < two[0].measures.wait.mean
        assert mean.rstrip().endswith(report.BEST)
        assert mean.count(report.BEST) == 1
        assert "left out of the workload: 2 no runtime" in lines
        assert all("\x1b" not in line for line in lines)

    def test_the_table_is_coloured_only_when_asked(self, two: list[Run]) -> None:
        plain, coloured = report.render(two), report.render(two, color=True)
        assert "\x1b[" in coloured
        assert [
            line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines()
        ] == plain.splitlines()

    def test_a_run_alone_has_no_best(self, two: list[Run]) -> None:
        assert report.BEST not in report.render(two[1:])

    def test_runs_that_are_alike_to_the_last_digit_shown_share_the_mark(self, two: list[Run]) -> None:
        use = next(figure for figure in report.FIGURES if figure.name == "utilisation")
        assert report.best(use, [two[0], two[0]]) == set()
        assert report.best(use, [two[0], two[1], two[1]]) == {1, 2}

    def test_what_cannot_be_measured_is_a_dash(self, two: list[Run]) -> None:
        late = next(figure for figure in report.FIGURES if figure.name == "late (> 60 s)")
        assert (late.cell(two[0]), late.cell(two[1])) == (report.ABSENT, "0.0%")
        assert "promised start  late" not in report.render(two[:1])

    def test_an_interrupted_run_says_so(self) -> None:
        cut = simulated(until=1_000_000)
        assert re.search(r"^partial: easy was interrupted after 1,000.0 s", report.render([cut]), re.M)
        assert json.loads(report.render([cut], "json"))["interrupted"] is True

    def test_several_runs_keep_their_shape_when_only_one_was_come_to(self, two: list[Run]) -> None:
        value = json.loads(report.render(two[:1], "json", several=True))
        assert [each["policy"] for each in value["runs"]] == [two[0].policy]

    def test_what_was_left_out_stands_in_the_order_of_the_runs(self, two: list[Run]) -> None:
        many = [Run(f"p{i}", two[0].records, 24, skipped={f"cause {i}": i}) for i in range(1, 9)]
        told = [line for line in report.notes(many) if line.startswith("left out")]
        assert told == [f"left out of the workload: {i} cause {i}" for i in range(1, 9)]

    def test_broken_promises_are_told_by_cause(self, two: list[Run]) -> None:
        records = [replace(record, broken="node lost") for record in two[1].records[:3]]
        assert "easy: 3 promises broken: node lost" in report.render([Run("easy", records, 24)])

    def test_a_run_of_nothing_is_reported(self) -> None:
        empty = Run("easy", [], 24)
        assert json.loads(report.render([empty], "json"))["jobs"] == 0
        assert report.render([empty])


class TestGantt:
    def test_no_two_jobs_share_a_row_at_a_time(self, two: list[Run]) -> None:
        boxes = gantt.boxes(two[1])
        assert len(boxes) == 150
        taken: list[tuple[int, int, int]] = sorted(
            (row, box.start, box.end) for box in boxes for ends in box.rows for row in range(*ends)
        )
        for (row, _, end), (following, start, _) in pairwise(taken):
            assert row != following or start >= end

    def test_a_job_is_as_high_as_it_is_large(self, two: list[Run]) -> None:
        for box in gantt.boxes(two[1]):
            assert sum(high - low for low, high in box.rows) == box.record.size

    def test_a_large_cluster_is_drawn_on_fewer_rows(self, two: list[Run]) -> None:
        records = [replace(record, size=record.size * 1000) for record in two[1].records]
        large = Run("easy", records, 24_000)
        assert gantt.rows_of(large) == 480
        assert all(0 <= low < high <= 480 for box in gantt.boxes(large) for low, high in box.rows)

    def test_a_job_that_still_runs_reaches_the_end(self) -> None:
        cut = simulated(until=1_000_000)
        running = [box for box in gantt.boxes(cut) if box.record.end is None]
        assert running
        assert {box.end for box in running} == {cut.last}


class TestPictures:
    def test_use_averages_to_the_utilisation(self, two: list[Run]) -> None:
        for each in two:
            assert np.mean(pictures.use(each)) == pytest.approx(each.measures.utilisation, abs=1e-6)
            assert np.max(pictures.use(each)) <= 1 + 1e-9

    def test_what_waits_is_the_sum_of_waits(self, two: list[Run]) -> None:
        waits = sum((record.wait or 0) * record.size for record in two[0].records)
        assert np.mean(pictures.waiting(two[0])) * two[0].last * 24 == pytest.approx(waits, rel=1e-6)

    def test_each_is_written_as_png_and_svg(self, two: list[Run], tmp_path: Path) -> None:
        written = pictures.save(two, tmp_path / "new" / "folder")
        names = {"comparison", "gantt", "utilisation", "waits", "promises"}
        assert {path.name for path in written} == {
            f"{name}.{end}" for name in names for end in ("png", "svg")
        }
        for path in written:
            if path.suffix == ".png":
                assert path.read_bytes().startswith(b"\x89PNG")
            else:
                assert ET.parse(path).getroot().tag.endswith("svg")

    def test_a_policy_has_one_colour_in_every_panel_and_the_legend_says_which(self, two: list[Run]) -> None:
        figure = pictures.COMPARISON.draw(two, LIGHT)
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == [run.policy for run in two]
        for axes in figure.axes:
            bars = [to_hex(bar.get_facecolor()) for bar in axes.patches]
            assert bars in ([], [LIGHT.series[0], LIGHT.series[1]])

    def test_the_same_runs_give_the_same_picture(self, two: list[Run]) -> None:
        for format_ in pictures.FORMATS:
            first = pictures.render(pictures.WAITS, two, format_)
            assert first == pictures.render(pictures.WAITS, two, format_)
            assert first != pictures.render(pictures.WAITS, two, format_, theme=DARK)

    def test_a_policy_without_promises_has_no_picture_of_them(self, two: list[Run]) -> None:
        assert pictures.PROMISES not in pictures.of(two[:1])
        assert pictures.COMPARISON not in pictures.of(two[1:])
        assert pictures.of([Run("easy", [], 24)]) == []

    def test_names_with_signs_of_mathematics_are_names(self, two: list[Run]) -> None:
        odd = replace(two[1], policy="$easy_{2}$")
        assert pictures.render(pictures.SCHEDULE, [odd], "svg")

    def test_few_jobs_and_instants_can_be_drawn(self) -> None:
        short = simulated(jobs=3)
        assert pictures.render(pictures.SCHEDULE, [short], "png")
        one = Record("a", "", "", 0, 0, 0, 1, 1, None, None, None, backfilled=False, state="done")
        for picture in pictures.of([Run("easy", [one], 4)]):
            assert pictures.render(picture, [Run("easy", [one], 4)], "svg")

    def test_an_unknown_format_is_refused(self, two: list[Run]) -> None:
        with pytest.raises(InvalidInput, match="'gif' is not a format of pictures: choose one of png, svg"):
            pictures.render(pictures.WAITS, two, "gif")

    def test_without_matplotlib_the_cure_is_named(self) -> None:
        program = """
import sys
sys.modules["matplotlib"] = None
from fluence.errors import FluenceError
from fluence.sim import page, report
from fluence.sim.measure import Record
from fluence.sim.measure import Run
runs = [Run("easy", [Record("a", "", "", 1, 0, 0, 9, 9, None, None, None, False, "done")], 4)]
assert report.render(runs)
try:
    page.render(runs)
except FluenceError as error:
    print(error)
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert "pip install 'fluence-scheduler[sim]'" in done.stdout


class Elements(HTMLParser):
    """Counts elements, and checks that what is opened is closed."""

    VOID = frozenset({"meta", "img", "source", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


class TestPage:
    def test_nothing_is_loaded_from_anywhere(self, both_pages: tuple[str, str]) -> None:
        for text in both_pages:
            elements = Elements(text)
            assert not elements.all("script")
            assert not elements.all("link")
            sources = [image["src"] for image in elements.all("img")]
            sources += [source["srcset"] for source in elements.all("source")]
            assert all(source is not None and source.startswith("data:image/") for source in sources)
            assert "url(" not in text
            assert "@import" not in text

    def test_every_picture_has_words_and_a_table(self, both_pages: tuple[str, str]) -> None:
        elements = Elements(both_pages[0])
        images = elements.all("img")
        assert len(images) == len(elements.all("figure")) == len(elements.all("details")) == 5
        assert all(len(image["alt"] or "") > 40 for image in images)
        assert len(elements.all("table")) >= 6
        assert len(elements.all("source")) == 5  # each also in dark

    def test_pictures_in_the_page_can_be_decoded(self, both_pages: tuple[str, str]) -> None:
        for image in Elements(both_pages[1]).all("img"):
            kind, _, data = (image["src"] or "").partition(";base64,")
            content = base64.b64decode(data, validate=True)
            if kind.endswith("png"):
                assert content.startswith(b"\x89PNG")
            else:
                ET.fromstring(content)

    def test_names_cannot_write_html(self, both_pages: tuple[str, str], two: list[Run]) -> None:
        assert "made &lt;up&gt;" in both_pages[0]
        assert "<up>" not in both_pages[0]
        evil = Run("<b>x</b>", [replace(record, user='<script>"') for record in two[1].records], 24)
        text = page.render([evil])
        assert "<script" not in text
        assert "<b>x" not in text

    def test_the_figures_are_in_it(self, both_pages: tuple[str, str], two: list[Run]) -> None:
        assert f"{two[1].measures.wait.mean:,.1f} s" in both_pages[0]
        assert '<td class="best">' in both_pages[0]
        assert '<td class="best">' not in both_pages[1]

    def test_four_policies_with_thousands_of_jobs_stay_small(self) -> None:
        found = workload.parse(
            RECIPE.replace(b"150", b"%d" % amount(3200, quick=400)), terms=IntakeTerms(seed=1)
        )
        again = Run("easy", run(found.submissions, 240, easy), 240)
        text = page.render([replace(again, policy=name) for name in ("a", "b", "c", "d")])
        assert len(text) < 2_000_000

    def test_a_run_of_nothing_has_a_page(self) -> None:
        assert Elements(page.render([Run("easy", [], 24)])).all("table")
