"""Fixtures for running `kubectl-fluence`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.select.select_program import Kubectl, Program


@pytest.fixture
def kubectl(tmp_path: Path) -> Kubectl:
    directory = tmp_path / "bin"
    directory.mkdir()
    return Kubectl(directory)


@pytest.fixture
def program(tmp_path: Path, kubectl: Kubectl) -> Program:
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        "PATH": f"{kubectl.directory}:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return Program(environment, tmp_path)
