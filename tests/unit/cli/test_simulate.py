"""`fluence simulate`: options, formats, bad input, signals."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from fluence.cli import main
from fluence.queue import policy as policies

from .conftest import Run

ROOT = Path(__file__).parents[3]
WORK = ROOT / "examples" / "workloads"
SMALL = str(WORK / "small.swf")
FLUENCE = str(Path(sys.executable).with_name("fluence"))


def figures(run: Run, *args: str) -> dict:  # type: ignore[type-arg]
    done = run("simulate", "--trace", SMALL, "--cluster", "16x1", "-o", "json", *args)
    assert done.code == 0, done
    return json.loads(done.out)


class TestOutput:
    def test_json_has_what_programs_need(self, run: Run) -> None:
        value = figures(run)
        assert (value["policy"], value["jobs"], value["capacity"], value["unit"]) == ("easy", 8, 16, "core")
        for path in (
            "wait.mean", "wait.p50", "wait.p95", "wait.max", "bounded_slowdown.mean", "wide_wait.mean",
            "makespan", "utilisation", "promise.waiting", "promise.late_rate", "promise.no_later_than_mae",
            "promise.expected_mae", "decisions_per_s",
        ):  # fmt: skip
            found = value
            for key in path.split("."):
                found = found[key]
            assert isinstance(found, int | float)
        assert value["skipped"] == {"no processors": 1, "no runtime": 1}

    def test_yaml_says_the_same(self, run: Run) -> None:
        done = run("simulate", "--trace", SMALL, "--cluster", "16x1", "-o", "yaml")
        value, expected = yaml.safe_load(done.out), figures(run)
        for each in (value, expected):
            for key in ("decisions_per_s", "wall_s"):
                each.pop(key)
        assert value == expected

    def test_the_table_is_for_people(self, run: Run) -> None:
        done = run("simulate", "--trace", SMALL, "--cluster", "16x1")
        assert done.code == 0
        assert re.search(r"^wait +mean +[\d,.]+ s", done.out, re.M)
        assert "left out of the workload: 1 no processors, 1 no runtime" in done.out
        assert "\x1b" not in done.out

    def test_wide_adds_a_line_per_job(self, run: Run) -> None:
        plain = run("simulate", "--trace", SMALL, "--cluster", "16x1").out
        wide = run("simulate", "--trace", SMALL, "--cluster", "16x1", "-o", "wide").out
        lines = [line.split("\t") for line in wide.splitlines() if "\t" in line]
        assert len(lines) == 1 + 8
        assert lines[0][:4] == ["run", "job", "user", "size"]
        assert len(wide.splitlines()) == len(plain.splitlines()) + 9

    def test_compare_puts_policies_side_by_side(self, run: Run) -> None:
        value = figures(run, "--compare", "easy,conservative,fcfs,first-fit,hybrid(2)")
        assert [each["policy"] for each in value["runs"]] == [
            "easy", "conservative", "fcfs", "first-fit", "hybrid(2)",
        ]  # fmt: skip

    def test_several_scales_are_several_runs(self, run: Run) -> None:
        value = figures(run, "--arrival-scale", "1,0.5", "--compare", "easy,fcfs")
        assert [each["policy"] for each in value["runs"]] == ["easy ×1", "fcfs ×1", "easy ×0.5", "fcfs ×0.5"]


class TestOptions:
    def test_jobs(self, run: Run) -> None:
        assert figures(run, "--jobs", "3")["jobs"] == 3

    def test_workload_is_another_word_for_trace(self, run: Run) -> None:
        done = run("simulate", "--workload", SMALL, "--cluster", "16x1", "-o", "json")
        assert json.loads(done.out)["jobs"] == 8

    def test_settings_that_were_chosen_are_named(self, run: Run) -> None:
        value = figures(
            run, "--queue-policy", "conservative", "--replan", "--depth", "5", "--window", "2h",
            "--resolution", "1m", "--seed", "7", "--match-policy", "low",
        )  # fmt: skip
        assert value["settings"] == {
            "trace": "small.swf", "cluster": "16x1", "arrival scale": 1.0, "match policy": "low",
            "replan": True, "depth": 5, "window (s)": 7200.0, "resolution (s)": 60.0, "seed": 7,
        }  # fmt: skip

    def test_no_forecast_leaves_out_what_is_expected(self, run: Run) -> None:
        assert figures(run)["promise"]["expected"] > 0
        assert figures(run, "--no-forecast")["promise"]["expected"] == 0

    def test_until_stops_there(self, run: Run) -> None:
        value = figures(run, "--until", "10m")
        assert value["finished"] == 0 and value["started"] > 0

    def test_figures_of_a_run_that_was_stopped_are_of_the_simulated_part(self, run: Run) -> None:
        whole, part = figures(run), figures(run, "--until", "5m")
        assert (whole["partial"], whole["not_arrived"]) == (False, 0)
        assert (part["partial"], part["interrupted"], part["simulated_s"]) == (True, False, 300)
        assert part["makespan"] == 300 < whole["makespan"]
        assert (part["jobs"], part["not_arrived"], whole["jobs"]) == (5, 3, 8)
        # 8 of 16 cores are held from the first second on, and all from the 60th: what ran, not what will run.
        assert part["utilisation"] == pytest.approx((8 * 300 + 8 * 240) / 16 / 300)
        table = run("simulate", "--trace", SMALL, "--cluster", "16x1", "--until", "5m").out
        said = "partial: easy was stopped after 300.0 s (5.0 min) of simulated time; "
        assert f"{said}2 jobs ran, 3 waited, 3 had not arrived\n" in table

    def test_the_engine_is_named(self, run: Run) -> None:
        assert figures(run)["engine"] == "matcher (Fluxion's answers on a graph)"
        table = run("simulate", "--trace", SMALL, "--cluster", "16x1").out
        assert table.splitlines()[0] == "engine: matcher (Fluxion's answers on a graph)"

    def test_policy_is_the_former_name_of_queue_policy(self, run: Run) -> None:
        assert figures(run, "--policy", "fcfs")["policy"] == "fcfs"
        assert "--policy" not in run("simulate", "--help").out

    @pytest.mark.parametrize("text", ["600", "600s", "10m", "10min", "600000ms"])
    def test_lengths_of_time(self, run: Run, text: str) -> None:
        assert figures(run, "--window", text)["settings"]["window (s)"] == 600

    def test_kind_names_what_a_file_is(self, run: Run, tmp_path: Path) -> None:
        odd = tmp_path / "log"
        odd.write_text("jobs: [{name: a, cores: 1, runtime: 5}]")
        done = run("simulate", "--trace", str(odd), "--cluster", "2x2", "--kind", "yaml", "-o", "json")
        assert json.loads(done.out)["finished"] == 1

    def test_unit_names_what_is_counted(self, run: Run) -> None:
        args = (
            "simulate",
            "--trace",
            str(WORK / "day.yaml"),
            "--cluster",
            "16x16x2",
            "--jobs",
            "5",
            "-o",
            "json",
        )
        value = json.loads(run(*args, "--unit", "node").out)
        assert (value["unit"], value["capacity"]) == ("node", 16)

    def test_every_example_runs_to_its_end(self, run: Run) -> None:
        for trace, cluster in (
            ("day.yaml", "16x16x2"),
            ("pipeline.yaml", "4x16"),
            ("arrivals.jsonl", str(ROOT / "examples" / "cluster.json")),
        ):
            done = run("simulate", "--trace", str(WORK / trace), "--cluster", cluster, "-o", "json")
            value = json.loads(done.out)
            assert value["states"] == {"Completed": value["jobs"]}, trace


class TestFiles:
    def test_the_page_loads_nothing(self, run: Run, tmp_path: Path) -> None:
        page = tmp_path / "report.html"
        done = run("simulate", "--trace", SMALL, "--cluster", "16x1", "--html", str(page))
        assert done.code == 0
        assert f"wrote {page}" in done.err
        text = page.read_text()
        assert text.lstrip().lower().startswith("<!doctype html>")
        assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", text)
        assert not re.findall(r"url\(\s*[\"']?(?:https?:)?//", text)
        assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=", text)

    def test_pictures_are_png_and_svg(self, run: Run, tmp_path: Path) -> None:
        folder = tmp_path / "pictures"
        done = run("simulate", "--trace", SMALL, "--cluster", "16x1", "--pictures", str(folder))
        assert done.code == 0
        kinds = {path.suffix for path in folder.iterdir()}
        assert kinds == {".png", ".svg"}
        assert len(done.err.splitlines()) == len(list(folder.iterdir()))

    def test_a_snapshot_is_of_one_run(self, run: Run, tmp_path: Path) -> None:
        out = str(tmp_path / "state.json")
        done = run(
            "simulate", "--trace", SMALL, "--cluster", "16x1", "--compare", "easy,fcfs", "--snapshot", out
        )
        assert done.code == 2
        assert done.is_one_line_error("--snapshot needs one policy")


BAD = {
    "no file": (["--trace", "/nowhere.swf"], 1, "/nowhere.swf: cannot be read"),
    "a directory": (["--trace", "."], 1, "cannot be read"),
    "no workload": (["--trace", __file__, "--kind", "yaml"], 1, "must have a list 'jobs'"),
    "no kind that one could guess": (["--trace", sys.executable], 1, "does not look like a workload"),
    "no trace": ([], 2, "--trace"),
    "an unknown policy": (["--queue-policy", "fifo"], 2, "unknown queue policy 'fifo'"),
    "one unknown of several": (["--compare", "easy,fifo"], 2, "unknown queue policy 'fifo'"),
    "no policy": (["--queue-policy", ""], 2, "policy"),
    "only commas": (["--compare", ","], 2, "policy"),
    "an impossible cluster": (["--cluster", "0x4"], 1, "at least"),
    "a huge cluster": (["--cluster", "99999999x9999"], 1, "at most"),
    "no cluster at all": (["--cluster", "nowhere.json"], 1, "nowhere.json: cannot be read"),
    "an unknown unit": (["--unit", "gpu"], 1, "gpu"),
    "an unknown kind": (["--kind", "csv"], 2, "csv"),
    "an unknown match policy": (["--match-policy", "best"], 2, "best"),
    "an unknown priority": (["--priority", "x"], 1, "unknown priority 'x'"),
    "an unknown predictor": (["--predictor", "x"], 1, "unknown predictor 'x'"),
    "no number of jobs": (["--jobs", "0"], 2, "0"),
    "no length of time": (["--until", "soon"], 2, "'soon' is not a valid length of time"),
    "an endless length of time": (["--until", "9" * 400], 2, "length of time"),
    "no resolution": (["--resolution", "0"], 2, "--resolution"),
    "no scale": (["--arrival-scale", "fast"], 2, "'fast' is not a valid factor"),
    "a negative scale": (["--arrival-scale", "-1"], 1, "-1"),
    "a scale that is no number": (["--arrival-scale", "nan"], 1, "nan"),
    "an unwritable page": (["--html", "/nowhere/r.html"], 1, "/nowhere/r.html: cannot be written"),
    "an unwritable snapshot": (["--snapshot", "/nowhere/s.json"], 1, "/nowhere/s.json: cannot be written"),
    "unwritable pictures": (["--pictures", "/dev/null/x"], 1, "/dev/null/x"),
}


class TestBadInput:
    @pytest.mark.parametrize("what", BAD)
    def test_it_is_one_line_and_an_exit_code(self, run: Run, what: str) -> None:
        args, code, said = BAD[what]
        given = ["simulate", *args]
        if "--trace" not in args and what != "no trace":
            given += ["--trace", SMALL]
        if "--cluster" not in args:
            given += ["--cluster", "16x1"]
        done = run(*given)
        assert done.code == code, done
        assert done.is_one_line_error(said)

    def test_nothing_is_simulated_if_the_page_cannot_be_written(self, run: Run, tmp_path: Path) -> None:
        """A long run must not end with nothing to show."""
        done = run(
            "simulate", "--trace", SMALL, "--cluster", "16x1", "--html", str(tmp_path / "no" / "r.html")
        )
        assert done.is_one_line_error("r.html: cannot be written")

    def test_strict_names_the_line(self, run: Run) -> None:
        done = run("simulate", "--trace", SMALL, "--cluster", "16x1", "--strict")
        assert done.code == 1
        assert done.is_one_line_error("small.swf: line 6: run time: must be more than 0")

    def test_a_workload_without_a_valid_record_is_an_error(self, run: Run, tmp_path: Path) -> None:
        log = tmp_path / "bad.swf"
        log.write_text("1 0 -1 -1 4 -1 -1 4 600 -1 5 3 1 -1 1 -1 -1 -1\n")
        done = run("simulate", "--trace", str(log), "--cluster", "16x1", "-o", "json")
        assert done.is_one_line_error("bad.swf: has no job to simulate; left out: 1 no runtime")

    def test_a_workload_of_which_nothing_can_run_is_an_error(self, run: Run, tmp_path: Path) -> None:
        work = tmp_path / "gpus.yaml"
        work.write_text("jobs: [{name: a, gpus: 2, runtime: 5}, {name: b, gpus: 1, runtime: 5}]")
        done = run("simulate", "--trace", str(work), "--cluster", "4x4")
        assert done.is_one_line_error("none of the 2 jobs can run on 4x4: a: ")


def _drain(terminal: int) -> None:
    """Read what else is written, or the writer would wait for a reader."""
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass


class TestProcess:
    def test_ctrl_c_leaves_the_partial_report(self, tmp_path: Path) -> None:
        work = tmp_path / "long.yaml"
        work.write_text(
            "generate: {count: 40000, arrival: {poisson: 20}, cores: {1: 5, 7: 3, 33: 1}, users: 40,\n"
            "  runtime: {median: 20m, sigma: 1.5, max: 2d}, overestimate: {min: 1, max: 5}}\n"
        )
        page, state = tmp_path / "r.html", tmp_path / "state.json"
        terminal, theirs = pty.openpty()
        child = subprocess.Popen(
            [FLUENCE, "simulate", "--trace", str(work), "--cluster", "64x1", "-o", "json",
             "--html", str(page), "--snapshot", str(state)],
            stdout=subprocess.PIPE, stderr=theirs, text=True, env={**os.environ, "COLUMNS": "100"},
        )  # fmt: skip
        os.close(theirs)
        seen = ""
        while not re.search(r"easy.* [1-9]\d*/40000", seen):  # the bar: some jobs have ended
            seen += os.read(terminal, 4096).decode()
        child.send_signal(signal.SIGINT)
        reader = threading.Thread(target=_drain, args=(terminal,), daemon=True)
        reader.start()
        out, _ = child.communicate(timeout=120)
        assert child.returncode == 130, (out, seen)
        value = json.loads(out)
        assert value["interrupted"] is value["partial"] is True
        assert 0 < value["finished"] < value["jobs"]
        assert value["jobs"] + value["not_arrived"] == 40000
        assert value["makespan"] <= value["simulated_s"]
        assert page.exists()
        assert not state.exists()  # a queue that was stopped halfway through a thought is not kept

    def test_a_reader_that_goes_away(self) -> None:
        done = subprocess.run(
            f"{FLUENCE} simulate --trace {SMALL} --cluster 16x1 -o wide | head -1",
            shell=True, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        assert len(done.stdout.splitlines()) == 1

    def test_the_same_run_prints_the_same(self, process: Run) -> None:
        out = []
        for seed in ("0", "1"):
            done = process(
                "simulate", "--trace", str(WORK / "day.yaml"), "--cluster", "16x16x2", "-o", "wide",
                PYTHONHASHSEED=seed,
            )  # fmt: skip
            assert done.code == 0
            out.append([line for line in done.out.splitlines() if "\t" in line])
        assert out[0] == out[1]


class TestCompletion:
    def complete(self, *words: str) -> list[str]:
        from click.shell_completion import ShellComplete

        found = ShellComplete(main, {}, "fluence", "_X").get_completions(list(words[:-1]), words[-1])
        return [item.value for item in found]

    def test_policies(self) -> None:
        assert self.complete("simulate", "--queue-policy", "") == policies.names()
        assert self.complete("simulate", "--queue-policy", "co") == ["conservative"]

    def test_the_last_of_several(self) -> None:
        assert self.complete("simulate", "--compare", "easy,f") == ["easy,fcfs", "easy,first-fit"]

    def test_formats_and_options(self) -> None:
        assert self.complete("simulate", "-o", "") == ["table", "wide", "json", "yaml"]
        assert "--arrival-scale" in self.complete("simulate", "--arr")


def test_help_teaches(run: Run) -> None:
    out = run("simulate", "--help").out
    for word in ("Examples:", "--compare", "--replan", "--strict", "hybrid(DEPTH)", "Ctrl-C", "130"):
        assert word in out
