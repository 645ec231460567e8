"""The examples in the documentation run, and print what they say."""

import doctest
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fluence.cli import main
from fluence.cli.demo.show import Show, read_script
from fluence.cli.demo.simulated import play
from fluence.kube.releases import DEFAULT
from fluence.match import policy as policies
from fluence.model.reason import Code
from tests.demo import timeline
from tests.unit import test_messages_cluster

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", ["README.md", "docs/api.md", "docs/formats.md", "docs/matcher.md", "docs/queue.md"]
)
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


@pytest.mark.parametrize(
    ("page", "commands"), [("README.md", 2), ("docs/formats.md", 1), ("docs/simulate.md", 1)]
)
def test_commands_print_what_the_page_says(page: str, commands: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shown = 0
    for block in re.findall(r"^```console\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S):
        for step in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = step.partition("\n")
            words = shlex.split(command, comments=True)
            if words[0] == "cd":
                monkeypatch.chdir(ROOT / words[1])
            elif words[0] == "fluence" and output:
                assert CliRunner().invoke(main, words[1:]).output == output
                shown += 1
    assert shown == commands


def test_the_readme_shows_a_part_of_what_make_run_prints() -> None:
    """The simulated cluster prints the same, except for times and names of pods."""
    shown = timeline(
        (ROOT / "README.md").read_text().partition("$ make run\nKubernetes")[2].partition("```")[0]
    )
    script = read_script(DEFAULT)
    lines: list[str] = []
    play(script, Show(script, echo=lambda text: lines.append(click.unstyle(text))))
    printed = timeline("\n".join(lines))
    first = printed.index(shown[0])
    assert len(shown) > 5 and shown == printed[first : first + len(shown)]


def test_the_table_of_messages_has_the_words_of_every_cause() -> None:
    """docs/messages.md shows each message as the golden tests hold it."""
    golden = {code: text for code, _, text in test_messages_cluster.GOLDEN}
    texts = {text for _, _, text in test_messages_cluster.GOLDEN} | {"Too many pods"}
    page = (ROOT / "docs/messages.md").read_text()
    table = page.partition("## Nodes: kube-scheduler and Fluence")[2].partition("\n## ")[0]
    ours = [row.split(" | ")[-1] for row in re.findall(r"^\| (.*) \|$", table, re.M)[1:]]
    shown = {re.match(r"`([^`]+)`", cell)[1] for cell in ours}
    assert len(shown) > 20 and shown <= texts, shown - texts
    causes = [code for code, text in golden.items() if text.startswith("node(s)")]
    one_of = [{text for code, _, text in test_messages_cluster.GOLDEN if code is cause} for cause in causes]
    rare = {Code.VOLUMES_TAKEN, Code.TOO_FEW_VOLUMES}  # the same words as another, with another detail
    missing = [cause for cause, texts in zip(causes, one_of, strict=True) if not texts & shown]
    assert set(missing) <= rare


PAGES = ["README.md", "CONTRIBUTING.md", "examples/README.md"]
PAGES += sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_lead_somewhere(page: str) -> None:
    here = (ROOT / page).parent
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        if "://" not in link:
            assert (here / link).exists(), f"{page}: {link}"


def test_contributing_lists_every_room() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| Room |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `([a-z]+)` \|", table, re.M)
    rooms = [path.parent.name for path in (ROOT / "src/fluence").glob("*/__init__.py")]
    assert sorted(listed) == sorted(rooms)


def test_the_glossary_has_at_most_forty_terms_in_order() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs/glossary.md").read_text(), re.M)
    assert 20 < len(terms) <= 40 and terms == sorted(terms, key=str.lower)


def test_what_the_docs_import_is_there() -> None:
    """The examples of plug-ins are not executed; the names that they import must be right."""
    root = Path(__file__).parents[2]
    lines = [
        line
        for page in sorted((root / "docs").rglob("*.md"))
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
        for line in block.splitlines()
        if re.match(r"(from fluence[\w.]* import [\w, ]+|import fluence[\w.]*)$", line)
    ]
    assert len(lines) > 3
    for line in lines:
        exec(line, {})
