"""Workloads: what is read from each kind of file, what is left out and why, and what strict terms refuse."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from fluence.errors import InvalidInput
from fluence.model.constraint import Constraint
from fluence.sim import workload
from fluence.sim.intake import IntakeTerms, TraceJob, TraceWorkload
from tests.needs import lacks
from tests.unit.sim.pool import ROOT, TRACES

EXAMPLES = ROOT / "examples" / "workloads"


def swf(*records: str, header: str = "; MaxProcs: 64\n") -> bytes:
    """A log whose records are given up to field 9; the rest is unknown."""
    return (header + "".join(f"{record} {'-1 ' * 9}\n" for record in records)).encode()


def parse(text: bytes | str, **terms: Any) -> TraceWorkload:
    data = text.encode() if isinstance(text, str) else text
    kind = terms.pop("kind", None)
    return workload.parse(data, kind=kind, terms=IntakeTerms(**terms))


def only(found: TraceWorkload) -> TraceJob:
    (submission,) = found.submissions
    return submission


class TestSwf:
    def test_the_first_arrival_is_the_beginning(self) -> None:
        found = parse(swf("7 1000 0 60 4 -1 -1 4 90", "8 1003 0 60 2 -1 -1 2 90"))
        assert [(s.name, s.submit, s.size) for s in found.submissions] == [("7", 0, 4), ("8", 3000, 2)]
        assert found.processors == 64

    def test_halved_arrivals_are_exact(self) -> None:
        found = parse(swf("1 0 0 60 1 -1 -1 1 90", "2 7 0 60 1 -1 -1 1 90"), arrival_scale=0.5)
        assert found.submissions[1].submit == 3500

    def test_the_limit_is_the_larger_of_request_and_runtime(self) -> None:
        jobs = parse(
            swf("1 0 0 60 1 -1 -1 1 90", "2 1 0 99.5 1 -1 -1 1 90", "3 2 0 60 1 -1 -1 1 -1")
        ).submissions
        assert [job.limit for job in jobs] == [90_000, 99_500, 60_000]

    def test_requested_processors_stand_in_for_allocated_ones(self) -> None:
        assert only(parse(swf("1 0 0 60 -1 -1 -1 8 90"))).size == 8
        assert only(parse(swf("1 0 0 60 0 -1 -1 8 90"))).size == 8

    def test_processors_are_slots_of_a_core_and_equal_requests_are_one_object(self) -> None:
        records = [f"{i} {i} 0 60 {1 + i % 2} -1 -1 1 90" for i in range(6)]
        found = parse(swf(*records)).submissions
        assert len({id(job.jobspec) for job in found}) == 2
        slot = found[1].jobspec.to_value()["resources"][0]
        core = {"type": "core", "count": 1}
        assert slot == {"type": "slot", "count": 2, "label": "default", "with": [core]}
        by_node = only(parse(swf(records[0]), unit="node")).jobspec
        assert by_node.resources[0].with_[0].type == "node"
        pooled = only(parse(swf(records[1]), unit="cpu"))
        assert (pooled.size, pooled.jobspec.resources[0].with_[0].count.min) == (2000, 1000)

    def test_only_the_first_valid_jobs_are_taken(self) -> None:
        records = ["1 0 0 -1 1 -1 -1 1 90", *(f"{i} {i} 0 60 1 -1 -1 1 90" for i in range(2, 9))]
        found = parse(swf(*records), jobs=3)
        assert [job.name for job in found.submissions] == ["2", "3", "4"]
        assert found.skipped == {"no runtime": 1}

    def test_users_queues_and_failures_are_kept(self) -> None:
        text = b"1 0 0 60 1 -1 -1 1 90 -1 0 17 -1 -1 3 -1 -1 -1\n"
        text += b"2 0 0 60 1 -1 -1 1 90 -1 1 -1 -1 -1 -1 -1 -1 -1\n"
        first, second = parse(text).submissions
        assert (first.user, first.queue, first.succeeds) == ("17", "3", False)
        assert (second.user, second.queue, second.succeeds) == ("", "", True)

    def test_fields_after_the_eighteenth_have_no_meaning(self) -> None:
        assert only(parse(b"1 0 0 60 1 -1 -1 1 90 -1 1 1 1 1 1 1 1 1 node[1-3] x\n")).name == "1"

    def test_a_record_out_of_order_is_put_into_its_place(self) -> None:
        found = parse(swf("1 50 0 60 1 -1 -1 1 90", "2 20 0 60 1 -1 -1 1 90"))
        assert [(job.name, job.submit) for job in found.submissions] == [("2", 0), ("1", 30_000)]
        assert (found.reordered, found.skipped) == (1, {})

    @pytest.mark.parametrize(
        ("record", "cause", "message"),
        [
            ("2 0 0 -1 1 -1 -1 1 90", "no runtime", "run time: must be more than 0, not -1"),
            ("2 0 0 0 1 -1 -1 1 90", "no runtime", "run time: must be more than 0, not 0"),
            ("2 0 0 60 0 -1 -1 -1 90", "no processors", "allocated processors: must be more than 0, not -1"),
            ("2 -5 0 60 1 -1 -1 1 90", "negative time", "submit time: must be 0 or more seconds, not -5"),
            ("2 0 0 nan 1 -1 -1 1 90", "not a number", "run time: must be a number, not 'nan'"),
            ("2 0 0 inf 1 -1 -1 1 90", "not a number", "run time: must be a number, not 'inf'"),
            ("2 0 0 6O 1 -1 -1 1 90", "not a number", "run time: must be a number, not '6O'"),
            ("2 0 0 60 1.5 -1 -1 1 90", "not a number", "processors: must be a whole number, not 1.5"),
            ("2 0 0 60 65 -1 -1 1 90", "larger than the machine", "65 are asked for and the machine has 64"),
            ("2 0 0 60 1e12 -1 -1 1 90", "impossible size", "allocated processors: must be at most"),
            ("2 0 0 1e30 1 -1 -1 1 90", "impossible time", "runtime: must be at most"),
            ("1 0 0 60 1 -1 -1 1 90", "repeated name", "1 is the name of a job above"),
            ("-1 0 0 60 1 -1 -1 1 90", "no job number", "job number: must be 0 or more, not -1"),
        ],
    )
    def test_a_bad_record_is_counted_or_refused_at_its_line(
        self, record: str, cause: str, message: str
    ) -> None:
        text = swf("1 0 0 60 1 -1 -1 1 90", record, "3 1 0 60 1 -1 -1 1 90")
        found = parse(text, processors=64)
        assert [job.name for job in found.submissions] == ["1", "3"]
        assert found.skipped == {cause: 1}
        with pytest.raises(InvalidInput, match="workload: line 3: ") as refused:
            parse(text, processors=64, strict=True)
        assert message in str(refused.value)

    def test_missing_fields_are_named(self) -> None:
        text = b"1 0 0 60 1 -1 -1\n"
        assert parse(text).skipped == {"missing fields": 1}
        with pytest.raises(InvalidInput, match="line 1: requested processors: has 7 of 18 fields: fill"):
            parse(text, strict=True)

    def test_strict_terms_want_records_in_order(self) -> None:
        with pytest.raises(InvalidInput, match="line 3: submit time: 20 is before 50, above it: sort"):
            parse(swf("1 50 0 60 1 -1 -1 1 90", "2 20 0 60 1 -1 -1 1 90"), strict=True)

    def test_a_log_may_be_packed(self, tmp_path: Path) -> None:
        (tmp_path / "log.swf.gz").write_bytes(gzip.compress(swf("1 0 0 60 1 -1 -1 1 90")))
        assert only(workload.read(tmp_path / "log.swf.gz")).name == "1"
        (tmp_path / "cut.swf.gz").write_bytes(gzip.compress(swf("1 0 0 60 1 -1 -1 1 90"))[:-9])
        with pytest.raises(InvalidInput, match="ends before its gzip data do"):
            workload.read(tmp_path / "cut.swf.gz")

    def test_the_reference_trace_loses_what_never_ran(self) -> None:
        if not TRACES.exists():
            lacks("traces")
        found = workload.read(TRACES / "hpc2n.swf", processors=240)
        assert (len(found.submissions), found.skipped, found.processors) == (3145, {"no runtime": 25}, 240)


PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time\n"
)


class TestOpenb:
    def test_a_pod_takes_parts_of_a_nodes_pools(self) -> None:
        found = only(parse(PODS + "p,6000,12288,1,460,V100M16|V100M32,LS,Failed,100,400,150\n"))
        (node,) = found.jobspec.resources
        assert [(part.type, part.count.min) for part in node.with_[0].with_] == [
            ("cpu", 6000), ("memory", 12288), ("gpu", 460),
        ]  # fmt: skip
        models = tuple(Constraint("properties", (model,)) for model in ("V100M16", "V100M32"))
        assert found.jobspec.attributes.constraints == Constraint("or", children=models)
        assert (found.runtime, found.limit, found.queue, found.succeeds) == (250_000, None, "LS", False)

    def test_whole_gpus_are_a_thousand_parts_each(self) -> None:
        found = only(parse(PODS + "p,6000,0,8,1000,T4,LS,Running,100,400,100\n", unit="gpu"))
        assert found.size == 8000
        assert found.jobspec.attributes.constraints == Constraint("properties", ("T4",))

    @pytest.mark.parametrize(
        ("row", "cause", "message"),
        [
            ("p,1,1,0,0,,LS,Pending,5,9,", "never ran", "scheduled_time: is empty"),
            ("p,1,1,0,0,,LS,Running,5,9,9", "no runtime", "deletion_time: must be after scheduled_time"),
            ("p,1,1,0,0,,LS,Running,-5,9,1", "negative time", "creation_time: must be 0 or more, not -5"),
            ("p,1,1,0,0,,LS,Running", "missing fields", "creation_time: is missing: write all 11 columns"),
            ("p,1.5,1,0,0,,LS,Running,1,9,1", "not a number", "cpu_milli: must be a whole number"),
            ("p,1,-1,0,0,,LS,Running,1,9,1", "negative number", "memory_mib: must be a whole number"),
            ("p,1,1,1,1001,,LS,Running,1,9,1", "impossible size", "gpu_milli: must be 1 to 1000, not 1001"),
            ("p,1,1,2,500,,LS,Running,1,9,1", "impossible size", "gpu_milli: must be 1000 for several"),
            ("p,0,0,0,0,,LS,Running,1,9,1", "impossible size", "cpu_milli: asks for nothing"),
            ("p,1,1,1,9,a&b,LS,Running,1,9,1", "invalid field", "gpu_spec: must be names joined by"),
        ],
    )
    def test_a_bad_pod_is_counted_or_refused_at_its_line(self, row: str, cause: str, message: str) -> None:
        text = f"{PODS}ok,1,1,0,0,,LS,Running,0,9,1\n{row}\n"
        found = parse(text)
        assert (len(found.submissions), found.skipped) == (1, {cause: 1})
        with pytest.raises(InvalidInput, match="workload: line 3: ") as refused:
            parse(text, strict=True)
        assert message in str(refused.value)

    def test_a_table_without_a_column_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match="lacks the column 'num_gpu': name it in the first line"):
            parse("name,cpu_milli,memory_mib\n")


def yaml_job(text: str, **terms: Any) -> TraceJob:
    return only(parse(f"jobs:\n  - {{{text}}}\n", **terms))


class TestLists:
    def test_times_may_have_units(self) -> None:
        job = yaml_job("at: 5, cores: 4, runtime: 1.5h, limit: 2d, soft_limit: 90m")
        assert (job.name, job.submit, job.runtime) == ("job1", 0, 5_400_000)
        assert (job.limit, job.soft_limit) == (172_800_000, 5_400_000)

    @pytest.mark.parametrize(
        ("request_", "shape", "size"),
        [
            ("cores: 4", "slot4[core1]", 4),
            ("gpus: 4", "slot4[gpu1]", 0),
            ("nodes: 3", "slot3[node1]", 48),
            ("nodes: 3, cores: 2", "node3[slot1[core2]]", 6),
            ("cores: 2, gpus: 1", "node1[slot1[core2,gpu1]]", 2),
            ("nodes: 2, gpus: 1", "node2[slot1[gpu1]]", 0),
        ],
    )
    def test_simple_requests_stand_for_jobspecs(self, request_: str, shape: str, size: int) -> None:
        job = yaml_job(f"{request_}, runtime: 60", node_size=16)

        def show(resource: Any) -> str:
            below = ",".join(show(child) for child in resource.with_)
            return f"{resource.type}{resource.count.min}" + (f"[{below}]" if below else "")

        assert (show(job.jobspec.resources[0]), job.size) == (shape, size)

    def test_a_constraint_is_kept(self) -> None:
        job = yaml_job('cores: 2, runtime: 60, constraint: {properties: ["fast"]}')
        assert job.jobspec.attributes.constraints == Constraint("properties", ("fast",))

    def test_a_jobspec_gives_the_limit_and_the_queue_and_loses_its_duration(self, tmp_path: Path) -> None:
        slot = {"type": "slot", "count": 1, "label": "a", "with": [{"type": "core", "count": 1}]}
        spec = {
            "version": 1,
            "resources": [{"type": "node", "count": 2, "exclusive": True, "with": [slot]}],
            "tasks": [],
            "attributes": {"system": {"duration": 3600, "queue": "debug"}},
        }  # fmt: skip
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        lines = [
            {"jobspec": spec, "at": 1},
            {"jobspec": "spec.json", "runtime": 60, "limit": 120, "queue": "q"},
        ]
        (tmp_path / "jobs.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
        second, first = workload.read(tmp_path / "jobs.jsonl", node_size=8).submissions
        assert first.jobspec is second.jobspec
        assert first.jobspec.attributes.duration is None
        assert (first.runtime, first.limit, first.queue, first.size) == (3_600_000, 3_600_000, "debug", 16)
        assert (second.runtime, second.limit, second.queue) == (60_000, 120_000, "q")

    def test_dependencies_arrays_and_failures(self) -> None:
        jobs = parse(
            "- {name: a, cores: 1, runtime: 9, succeeds: false, priority: 31}\n"
            "- {cores: 1, runtime: 9, after: [afterok:a, singleton], array: 5}\n",
            kind="yaml",
        ).submissions
        assert jobs[1].after == (("afterok", "a"), ("singleton", ""))
        assert (jobs[0].succeeds, jobs[0].priority, jobs[1].tasks) == (False, 31, 5)

    def test_a_list_need_not_be_in_order(self) -> None:
        text = "jobs: [{at: 9, cores: 1, runtime: 1}, {at: 2, cores: 1, runtime: 1}]"
        found = parse(text, strict=True)
        assert [(job.name, job.submit) for job in found.submissions] == [("job2", 0), ("job1", 7000)]
        assert only(parse(text, jobs=1)).name == "job2"

    @pytest.mark.parametrize(
        ("job", "cause", "message"),
        [
            ("{cores: 1}", "no runtime", "runtime: is missing"),
            ("{cores: 1, runtime: 0}", "no runtime", "runtime: must be more than 0"),
            ("{runtime: 1}", "missing request", "nodes: is missing: give nodes, cores, gpus or a jobspec"),
            ("{cores: 0, runtime: 1}", "impossible size", "cores: must be 1 to"),
            ("{cores: 99, runtime: 1}", "larger than the machine", "99 are asked for"),
            ("{cores: 1, runtime: soon}", "not a number", "runtime: must be seconds, or a time such as 30m"),
            ("{cores: 1, runtime: -3m}", "negative time", "runtime: must be 0 or more seconds, not -3m"),
            ("{cores: 1, runtime: .nan}", "not a number", "runtime: must be seconds"),
            ("{cores: 1, runtime: 99999999d}", "impossible time", "runtime: must be 0 to"),
            ("{cores: 1, runtime: 1, limit: 0}", "negative time", "limit: must be more than 0"),
            (
                "{cores: 1, runtime: 1, colour: red}",
                "unknown field",
                "'colour': is not a field here: use name",
            ),
            ("{cores: 1, runtime: 1, after: [a, b]}", "invalid field", "after: must be afterok:NAME"),
            (
                "{cores: 1, runtime: 1, after: 'afterok:me'}",
                "unknown dependency",
                "after: afterok names 'me'",
            ),
            ("{cores: 1, runtime: 1, name: first}", "repeated name", "first is the name of a job above"),
            ("{cores: 1, runtime: 1, succeeds: 3}", "invalid field", "succeeds: must be true or false"),
            ("{cores: 1, runtime: 1, priority: 99}", "impossible size", "priority: must be 0 to 31"),
            ("{cores: 1, runtime: 1, jobspec: x}", "invalid field", "jobspec: is given beside nodes"),
            ("{runtime: 1, jobspec: none.yaml}", "invalid jobspec", "jobspec: none.yaml cannot be read"),
            ("{runtime: 1, jobspec: {version: 1}}", "invalid jobspec", "jobspec: lacks 'resources'"),
            ("{cores: 1, runtime: 1, constraint: {nor: []}}", "invalid field", "constraints: 'nor' is no op"),
            ("3", "invalid field", "must be a mapping, not 3"),
        ],
    )
    def test_a_bad_job_is_counted_or_refused_at_its_line(self, job: str, cause: str, message: str) -> None:
        text = f"# a list\njobs:\n  - {{name: first, cores: 1, runtime: 1}}\n\n  - {job}\n"
        found = parse(text, processors=64)
        assert (len(found.submissions), found.skipped) == (1, {cause: 1})
        with pytest.raises(InvalidInput, match=r"^workload: line 5: jobs\[1\]: ") as refused:
            parse(text, strict=True, processors=64)
        assert message in str(refused.value)

    def test_json_with_tabs_has_its_line_and_its_place(self) -> None:
        with pytest.raises(InvalidInput, match=r"workload: line 2: jobs\[0\]: nodes: is missing"):
            parse('{\n\t"jobs": [{"runtime": 1}]}', kind="yaml", strict=True)

    def test_a_line_that_is_no_json_is_counted_or_refused(self) -> None:
        text = '{"cores": 1, "runtime": 1}\n\n{"cores": 1, "runtime"\n'
        assert parse(text, kind="jsonl").skipped == {"not JSON": 1}
        with pytest.raises(InvalidInput, match="workload: line 3: is neither YAML nor JSON"):
            parse(text, kind="jsonl", strict=True)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("jobs: {a: 1}", "jobs: must be a list, not a mapping"),
            ("jobs: []\nhours: 3", "has the unknown key 'hours'"),
            ("hours: 3", "must have a list 'jobs' or 'generate'"),
            ("jobs: [", "is neither YAML nor JSON"),
        ],
    )
    def test_what_is_no_list_is_refused(self, text: str, message: str) -> None:
        with pytest.raises(InvalidInput, match=message):
            parse(text, kind="yaml")


RECIPE = (
    "generate: {count: 200, start: 1h, arrival: {poisson: 60}, cores: {1: 3, 4: 1}, "
    "runtime: {median: 10m, sigma: 1, max: 1h}, overestimate: {min: 1, max: 4}, users: 3, queue: q}"
)


class TestRecipes:
    def test_the_seed_decides(self) -> None:
        assert parse(RECIPE, seed=1) == parse(RECIPE, seed=1)
        assert parse(RECIPE, seed=1) != parse(RECIPE, seed=2)

    def test_jobs_are_as_the_recipe_says(self) -> None:
        jobs = parse(RECIPE, seed=3).submissions
        assert len(jobs) == 200
        assert {job.size for job in jobs} == {1, 4}
        assert sum(job.size == 1 for job in jobs) > sum(job.size == 4 for job in jobs)
        assert {job.user for job in jobs} == {"user1", "user2", "user3"}
        assert max(job.runtime for job in jobs) <= 3_600_000
        runtimes = sorted(job.runtime for job in jobs)
        assert 400_000 < runtimes[100] < 900_000  # a median of 10 minutes
        assert 6_000_000 < jobs[-1].submit < 18_000_000  # 200 arrivals, a minute apart in the mean
        for job in jobs:
            assert job.limit is not None
            assert job.runtime <= job.limit <= 4 * job.runtime + 1000

    def test_another_recipe_changes_none_that_was_there(self) -> None:
        recipe = RECIPE.removeprefix("generate: ")
        both = parse(f"generate: [{recipe}, {{count: 1, cores: 1, runtime: 60}}]")
        alone = parse(f"generate: [{recipe}]")
        made = {job.name: job.runtime for job in both.submissions}
        assert all(made[job.name] == job.runtime for job in alone.submissions)
        assert len(made) == 201

    def test_arrivals_at_equal_distances_and_within_a_time(self) -> None:
        every = parse("generate: {count: 3, arrival: {every: 5m}, nodes: 2, runtime: 60}")
        assert [job.submit for job in every.submissions] == [0, 300_000, 600_000]
        assert every.submissions[0].limit is None
        within = parse("generate: {count: 50, arrival: {within: 1h}, cores: {min: 2, max: 5}, runtime: 60}")
        assert within.submissions[-1].submit <= 3_600_000
        assert {job.size for job in within.submissions} == {2, 3, 4, 5}

    @pytest.mark.parametrize(
        ("recipe", "message"),
        [
            ("{cores: 1, runtime: 1}", "count: is missing"),
            ("{count: 1, runtime: 1}", "nodes: is missing"),
            ("{count: 1, cores: 1}", "runtime: is missing"),
            ("{count: 1, cores: [], runtime: 1}", "cores: must not be empty"),
            ("{count: 1, cores: {1: 0}, runtime: 1}", "cores: must have a weight above 0"),
            ("{count: 9999999, cores: 1, runtime: 1}", "count: must be 1 to 1000000"),
            ("{count: 2, cores: 1, runtime: 1, arrival: {every: 1, within: 2}}", "arrival: must be one of"),
            ("{count: 999999, cores: 1, runtime: 1, arrival: {every: 1d}}", "spreads the jobs over decades"),
            ("{count: 1, cores: 1, runtime: {sigma: 1}}", "runtime.median: is missing"),
            ("{count: 1, cores: 1, runtime: 1, overestimate: 0.5}", "overestimate: must be 1 to 1000"),
            ("{count: 1, cores: 1, runtime: 1, users: {}}", "users: must be a number or a list of names"),
            ("{count: 1, cores: 1, runtime: 1, size: 3}", "'?size'?: is not a field here"),
            ("7", "must be a mapping"),
        ],
    )
    def test_a_wrong_recipe_is_refused_strict_or_not(self, recipe: str, message: str) -> None:
        with pytest.raises(InvalidInput, match=rf"workload: generate\[0\]: .*{message}"):
            parse(f"generate: [{recipe}]")


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        (b"; Version: 2\n", "a", "swf"),
        (b"  1 0 0 60 1 -1 -1 1 90 -1 1\n", "a", "swf"),
        (PODS.encode(), "a", "openb"),
        (b'{"at": 1}\n{"at": 2}\n', "a", "jsonl"),
        (b"# made\njobs:\n", "a", "yaml"),
        (b'{"jobs": []}', "a.json", "yaml"),
        (b"", "a.swf.gz", "swf"),
    ],
)
def test_the_kind_is_guessed(text: bytes, name: str, kind: str) -> None:
    assert workload.guess(text, source=name) == kind


def test_what_looks_like_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not look like a workload: name its kind, one of swf, openb"):
        workload.parse(b"\x00\x01")
    with pytest.raises(InvalidInput, match="'csv' is not a kind of workload: choose one of swf"):
        workload.parse(b"", kind="csv")
    with pytest.raises(InvalidInput, match=r"none\.swf: cannot be read: No such file"):
        workload.read(tmp_path / "none.swf")


@pytest.mark.parametrize("terms", [{"arrival_scale": -1}, {"arrival_scale": float("nan")}, {"jobs": 0}])
def test_terms_that_make_no_sense_are_refused(terms: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="must be"):
        IntakeTerms(**terms)


def test_the_refusal_on_the_page_is_the_one_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(InvalidInput) as refused:
        workload.read("examples/workloads/small.swf", strict=True)
    assert f"fluence: {refused.value}\n" in (ROOT / "docs" / "simulate.md").read_text()


@pytest.mark.parametrize(
    ("name", "jobs", "skipped"),
    [
        ("day.yaml", 364, {}),
        ("pipeline.yaml", 6, {}),
        ("small.swf", 8, {"no runtime": 1, "no processors": 1}),
        ("arrivals.jsonl", 3, {}),
    ],
)
def test_the_examples_are_read(name: str, jobs: int, skipped: dict[str, int]) -> None:
    found = workload.read(EXAMPLES / name, node_size=16, processors=256)
    assert (len(found.submissions), found.skipped) == (jobs, skipped)
