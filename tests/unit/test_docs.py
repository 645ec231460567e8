"""The examples in the documentation run, and print what they say."""

import doctest
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from fluence.cli import main
from fluence.match import policy as policies

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/api.md"])
def test_examples_run(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (ROOT / page).read_text()
    examples = "\n".join(_BLOCK.findall(text))
    assert examples, f"{page} has no example"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)  # what an example writes or registers does not stay
    monkeypatch.setattr(policies, "_policies", dict(policies._policies))
    test = doctest.DocTestParser().get_doctest(examples, {}, page, page, 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    failed, _ = runner.run(test, out=report.append)
    assert not failed, "".join(report)


def test_the_commands_of_the_readme_print_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shown = 0
    for block in re.findall(r"^```console\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S):
        for step in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = step.partition("\n")
            words = shlex.split(command, comments=True)
            if words[0] == "cd":
                monkeypatch.chdir(ROOT / words[1])
            elif words[0] == "fluence" and output:
                assert CliRunner().invoke(main, words[1:]).output == output
                shown += 1
    assert shown == 2


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "examples/README.md", "docs/api.md"])
def test_links_to_files_lead_somewhere(page: str) -> None:
    here = (ROOT / page).parent
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        if "://" not in link and not (page == "README.md" and link.startswith("docs/")):
            assert (here / link).exists(), f"{page}: {link}"
