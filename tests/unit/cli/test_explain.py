"""`fluence explain`: what can be asked without a server."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fluence.cli import main


def test_an_unknown_match_policy_is_refused_before_a_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLUENCE_MATCH_POLICY", raising=False)
    done = CliRunner().invoke(main, ["explain", "pod", "p", "--match-policy", "nearest"])
    assert done.exit_code == 1 and "match-policy" in done.stderr
    monkeypatch.setenv("FLUENCE_MATCH_POLICY", "nearest")
    done = CliRunner().invoke(main, ["explain", "pod", "p"])
    assert done.exit_code == 1 and "FLUENCE_MATCH_POLICY" in done.stderr
