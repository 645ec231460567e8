"""Documents that Fluxion accepts or rejects, as their folder says; its own suite where it is at hand."""

import os
from pathlib import Path

import pytest

from fluence.errors import InvalidJobspec
from fluence.model.jobspec import Jobspec
from tests.needs import lacks

ROOT = Path(__file__).resolve().parents[2]
OWN = Path(__file__).parent / "jobspecs"
SUITE = Path(os.environ.get("FLUENCE_CONFORMANCE") or ROOT.parent / "shared" / "conformance") / "jobspecs"


def documents(verdict: str) -> list[Path]:
    return [path for folder in (OWN, SUITE) for path in sorted((folder / verdict).glob("*"))]


@pytest.mark.parametrize("path", documents("valid"), ids=lambda p: p.stem)
def test_valid_jobspecs_are_accepted_and_survive_writing(path: Path) -> None:
    jobspec = Jobspec.parse(path.read_bytes(), source=path.name)
    assert Jobspec.parse(jobspec.to_yaml()) == jobspec
    assert Jobspec.parse(jobspec.to_json()) == jobspec
    assert Jobspec.from_value(jobspec.to_value()) == jobspec


@pytest.mark.parametrize("path", documents("invalid"), ids=lambda p: p.stem)
def test_invalid_jobspecs_are_rejected_in_one_line_that_starts_with_the_place(path: Path) -> None:
    with pytest.raises(InvalidJobspec) as caught:
        Jobspec.parse(path.read_bytes(), source=path.name)
    message = str(caught.value)
    assert message.startswith(f"{path.name}: ")
    assert "\n" not in message


def test_the_recorded_suite_is_complete() -> None:
    if not SUITE.is_dir():
        lacks("recorded sessions")
    assert len(list((SUITE / "valid").iterdir())) >= 20
    assert len(list((SUITE / "invalid").iterdir())) >= 49
