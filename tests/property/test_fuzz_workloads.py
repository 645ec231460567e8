"""Whatever a reader of workloads or clusters is given, it answers with a value or with one line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fluence.errors import InvalidInput
from fluence.sim import simulator, workload
from fluence.sim.intake import IntakeTerms, TraceWorkload
from fluence.sim.workload import KINDS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "workloads"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
    "scheduled_time\nopenb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0\n"
    "openb-pod-0001,6000,12288,1,460,T4|P100,LS,Failed,427061,12902960,427061\n"
)
NODES = "sn,cpu_milli,memory_mib,gpu,model\nopenb-node-0000,32000,262144,2,P100\nopenb-node-0001,1,2,0,\n"
TEXTS = [
    pytest.param("swf", (EXAMPLES / "small.swf").read_text(), id="swf"),
    pytest.param("openb", PODS, id="openb"),
    pytest.param("yaml", (EXAMPLES / "pipeline.yaml").read_text(), id="yaml"),
    pytest.param("yaml", (EXAMPLES / "day.yaml").read_text().replace("300", "30"), id="recipes"),
    pytest.param("jsonl", (EXAMPLES / "arrivals.jsonl").read_text(), id="jsonl"),
]
PIECES = st.sampled_from(
    ["", "0", "-1", "nan", "inf", "1e308", "1e9", "9" * 40, "-0", "0x10", "1_0", "٣", ";", ",", '"', "\n",
     "\0", "{", "}", "[", "]", ":", "- ", "null", "true", "&a ", "*a", "x", "1h", "1.5d", ".inf", "\t", "\r",
     "\x1f\x8b", "afterok:fetch", "singleton", "jobspec: ", "\ud800"]
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, text: str) -> bytes:
    """A text with a few places cut out, replaced or doubled."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12) | st.integers(0, 300)))
        text = text[:start] + draw(PIECES | st.just(text[start:end] * 2)) + text[end:]
    return text.encode("utf-8", "surrogatepass")


def attempt(text: bytes, kind: str | None, *, strict: bool) -> TraceWorkload | None:
    terms = IntakeTerms(strict=strict, processors=100_000, arrival_scale=0.5)
    try:
        return workload.parse(text, kind=kind, source=str(EXAMPLES / "fuzzed"), terms=terms)
    except InvalidInput as error:
        assert str(error)
        assert "\n" not in str(error)
        return None


def check(found: TraceWorkload) -> None:
    jobs = found.submissions
    assert len({job.name for job in jobs}) == len(jobs)
    assert [job.submit for job in jobs] == sorted(job.submit for job in jobs)
    assert not jobs or jobs[0].submit == 0
    for job in jobs:
        assert job.runtime > 0
        assert 0 <= job.size <= 100_000
        assert job.limit is None or job.limit > 0
    assert all(count > 0 for count in found.skipped.values())


@pytest.mark.parametrize(("kind", "text"), TEXTS)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_changed_workloads_are_read_or_refused(kind: str, text: str, data: st.DataObject) -> None:
    changed = data.draw(mutated(text))
    found = attempt(changed, data.draw(st.sampled_from([kind, None])), strict=False)
    strict = attempt(changed, kind, strict=True)
    if found is not None:
        check(found)
    if strict is not None:  # what strict terms let pass has nothing to skip
        assert not strict.skipped
        assert not strict.reordered


@settings(max_examples=150, deadline=None)
@given(
    noise=st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")),
    kind=st.sampled_from([None, *KINDS]),
)
@example(noise=b"\x1f\x8b", kind=None)
@example(noise=gzip.compress(b"1 2 3"), kind="swf")
@example(noise=b"\xff\xfe1\x00", kind="yaml")
def test_noise_is_read_or_refused(noise: bytes, kind: str | None) -> None:
    found = attempt(noise, kind, strict=False)
    if found is not None:
        check(found)


@settings(max_examples=150, deadline=None)
@given(text=mutated(NODES))
def test_changed_tables_of_nodes_are_read_or_refused(text: bytes) -> None:
    try:
        batch = workload.openb_nodes(text, source="nodes.csv")
    except InvalidInput as error:
        assert error.where.startswith("nodes.csv")
        assert "\n" not in str(error)
    else:
        assert batch.type.count("node") >= 1


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet="0123456789xX× *-.a\0", max_size=9).filter(lambda text: not _is_large(text)))
def test_any_shorthand_is_a_cluster_or_refused(text: str) -> None:
    try:
        found = simulator.read(text)
    except InvalidInput as error:
        assert "\n" not in str(error)
    else:
        assert found.capacity >= 1


def _is_large(text: str) -> bool:
    return sum(letter.isdigit() for letter in text) > 4  # a million vertices take seconds
