"""The examples in the documentation run, and print what they say."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/api.md"])
def test_examples_run(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (ROOT / page).read_text()
    examples = "\n".join(_BLOCK.findall(text))
    assert examples, f"{page} has no example"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)  # what an example writes does not stay
    test = doctest.DocTestParser().get_doctest(examples, {}, page, page, 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    failed, _ = runner.run(test, out=report.append)
    assert not failed, "".join(report)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "examples/README.md", "docs/api.md"])
def test_links_to_files_lead_somewhere(page: str) -> None:
    here = (ROOT / page).parent
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        if "://" not in link:
            assert (here / link).exists(), f"{page}: {link}"
