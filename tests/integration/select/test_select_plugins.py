"""Providers and policies of others, installed with entry points; their code is that of the docs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.integration.select.select_program import Program

P = "fluence.flux-framework.org"
DOCS = Path(__file__).parents[3] / "docs" / "kubectl-fluence.md"

POD = f"""\
kind: Pod
metadata: {{name: p, annotations: {{{P}/select-policy: "POLICY"}}}}
spec: {{schedulerName: fluence}}
"""


def documented(title: str) -> str:
    """The Python block of the docs whose first line is a comment with *title*."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if block.startswith(f"# {title}\n")]
    return str(block)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory as `pip install --target` leaves it."""
    site = tmp_path / "site"
    information = site / "acme_select-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-select\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[fluence.select.providers]\nacme-inventory = acme_inventory:make\n"
        "[fluence.select.policies]\nbalanced = acme_balanced:make\nbroken = acme_balanced:missing\n"
    )
    (site / "acme_inventory.py").write_text(documented("acme_inventory.py"))
    (site / "acme_balanced.py").write_text(documented("acme_balanced.py"))
    inventory = {"tier-ssd": {"iops": 9000, "cost_usd": 3}, "tier-hdd": {"iops": 200, "cost_usd": 1}}
    (tmp_path / "inventory.json").write_text(json.dumps(inventory))
    return site


def run(program: Program, site: Path, policy: str, *arguments: str) -> tuple[int, str, str]:
    return program(
        *("select", "-f", "-", "-o", "json", *arguments),
        stdin=POD.replace("POLICY", policy),
        PYTHONPATH=str(site),
        ACME_INVENTORY=str(program.directory / "inventory.json"),
    )


def test_a_provider_of_others_describes_backends(program: Program, site: Path) -> None:
    code, out, err = run(program, site, "max-iops")
    assert code == 0, err
    (selection,) = json.loads(out)["selections"]
    assert selection["chosen"] == "tier-ssd"
    assert selection["candidates"][0]["sources"] == {"iops": "acme-inventory", "cost_usd": "acme-inventory"}


def test_a_policy_of_others_chooses_with_its_argument(program: Program, site: Path) -> None:
    for policy, chosen in [("balanced:cost/iops", "tier-ssd"), ("balanced:iops/cost", "tier-hdd")]:
        code, out, err = run(program, site, policy)
        assert code == 0, err
        assert json.loads(out)["selections"][0]["chosen"] == chosen


@pytest.mark.parametrize(
    ("policy", "arguments", "message"),
    [
        (
            "broken",
            [],
            "error: Pod/p: selection failed: entry point broken of policies (acme_balanced:missing): ",
        ),
        ("balanced", [], "error: Pod/p: selection failed: balanced wants two attributes"),
        (
            "max-iops",
            ["--providers", "acme"],
            'error: unknown provider "acme" (known: configmap, file, acme-inv',
        ),
    ],
)
def test_what_is_wrong_with_them_is_one_line(
    program: Program, site: Path, policy: str, arguments: list[str], message: str
) -> None:
    code, out, err = run(program, site, policy, *arguments)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith(message), err


def test_a_crash_in_somebody_elses_provider_names_it(program: Program, site: Path) -> None:
    (program.directory / "inventory.json").write_text("{")
    code, _, err = run(program, site, "max-iops")
    assert code == 1
    assert err.splitlines()[-1].startswith("error: provider acme-inventory: JSONDecodeError: ")
