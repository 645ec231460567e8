"""Site: the manual as HTML pages in build/docs, made by `make docs`. No page loads anything from other hosts.

The pages are those of this folder. Which come in which chapter follows from the tables of README.md, so that
readers of the repository and of the site find the same.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

DOCS = Path(__file__).parent
ROOT = DOCS.parent
CONFIGURATION = """
project = "Fluence"
html_title = "Fluence"
project_copyright = "the Fluence authors, MIT license"
extensions = ["myst_parser"]
myst_heading_anchors = 4  # as GitHub makes them
html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
"""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def write_sources(folder: Path) -> None:
    """The pages as Sphinx reads them."""
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(DOCS / "pictures", folder / "pictures")
    (folder / "adr").mkdir()
    for page in (*DOCS.glob("*.md"), *DOCS.glob("adr/*.md")):
        text = _LINK.sub(lambda link, page=page: _link(link, page), page.read_text())
        name = page.relative_to(DOCS)
        if name == Path("README.md"):
            name, text = Path("index.md"), text + "".join(chapters(page.read_text()))
        elif name == Path("adr/README.md"):
            decisions = sorted(each.stem for each in DOCS.glob("adr/0*.md"))
            text += _contents("", decisions)
        (folder / name).write_text(text)
    (folder / "conf.py").write_text(CONFIGURATION)


def chapters(readme: str) -> list[str]:
    """A table of contents for each section of README.md. A page is in the first that names it."""
    tables, seen = [], set()
    for section in readme.removeprefix("# ").split("\n## "):
        pages = []
        for _, _, target, _ in _LINK.findall(section):
            if target.endswith(".md") and not target.startswith("..") and target not in seen:
                seen.add(target)
                pages.append(target.removesuffix(".md"))
        title = section.partition("\n")[0].partition(":")[0]
        tables.append(_contents(title, pages))
    return tables


def _contents(title: str, pages: list[str]) -> str:
    head = f":caption: {title}\n" if title else ""
    return "\n\n```{toctree}\n:hidden:\n" + head + "\n" + "\n".join(pages) + "\n```\n"


def _link(link: re.Match[str], page: Path) -> str:
    """A link as the site has it: files of the repository that are not part of the manual are named."""
    mark, text, target, anchor = link[1], link[2], link[3], link[4] or ""
    if not target or "://" in target:
        return link[0]
    path = (page.parent / target).resolve()
    if path == DOCS / "README.md":
        return f"{mark}[{text}]({'../' if page.parent != DOCS else ''}index.md{anchor})"
    if path.is_relative_to(DOCS):
        return link[0]
    name = path.relative_to(ROOT)
    return f"`{name}`" if text.strip("`") in (str(name), name.name) else f"{text} (`{name}`)"


def main(out: Path) -> int:
    """Write the site; a warning is a failure."""
    sources = out / "sources"
    write_sources(sources)
    flags = ["--fail-on-warning", "--keep-going", "--quiet", "--builder", "html", "--jobs", "auto"]
    return build_main([*flags, "--doctree-dir", str(out / "doctrees"), str(sources), str(out / "html")])


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    status = main(folder)
    if status == 0:
        sys.stdout.write(f"{folder / 'html' / 'index.html'}\n")
    sys.exit(status)
