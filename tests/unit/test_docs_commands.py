"""Commands in the documentation: those of this project exist, with every flag that a console block uses.

Links with an anchor lead to a heading; links to other sites have a known host. Blocks of README.md and
others that print something are run, and compared with what they print, by tests/unit/test_docs.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest

from fluence.cli import main as fluence
from fluence.kubectl.commands import cli as kubectl_fluence

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples/README.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
_BLOCK = re.compile(r"^ *```(?:console|text)\n(.*?)^ *```$", re.M | re.S)
_OPERATORS = {"|", "||", "&&", ";", "&", ">", ">>", "2>", "<"}
_PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_-]*|…|\.\.\.")


def commands(text: str) -> Iterator[list[str]]:
    """Every command of blocks with prompts, as words; those of a pipe are commands of their own."""
    for block in _BLOCK.findall(text):
        joined = re.sub(r"\\\n\s*(?:> )?", " ", block)
        for line in re.findall(r"^\s*[$#] (.*)$", joined, re.M):
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
            lexer.whitespace_split, lexer.commenters = True, "#"
            words: list[str] = []
            skip = False
            for word in lexer:
                if set(word) <= set("|&;<>"):
                    if words:
                        yield words
                    words, skip = [], word.strip("0123456789")[:1] in ("<", ">")
                elif skip:
                    skip = False  # the file of a redirection
                else:
                    words.append(word)
            if words:
                yield words


def resolved(words: list[str]) -> tuple[click.Command, list[str]] | None:
    """The program of a command and its arguments, if it is one of ours."""
    while words and re.fullmatch(r"[A-Z_][A-Z0-9_]*=.*", words[0]):
        words = words[1:]
    name = Path(words[0]).name if words else ""
    if name == "sudo":
        return resolved(words[1:])
    if name == "fluence":
        return fluence, words[1:]
    if name == "kubectl-fluence" or words[:2] == ["kubectl", "fluence"]:
        return kubectl_fluence, words[1 + (name == "kubectl") :]
    return None


def fault(command: click.Command, args: list[str]) -> str:
    """What is wrong with a command line: a command or a flag that does not exist."""
    context = click.Context(command, info_name=command.name)
    while isinstance(command, click.Group):
        own = {
            flag: each for each in command.get_params(context) for flag in (*each.opts, *each.secondary_opts)
        }
        while args and args[0].startswith("-"):
            flag, has_value, _ = args[0].partition("=")
            if flag not in own:
                return f"{context.command_path} has no {flag}"
            takes_next = not getattr(own[flag], "is_flag", False) and not has_value
            args = args[1 + takes_next :]
        if not args or _PLACEHOLDER.fullmatch(args[0]):
            return ""
        found = command.get_command(context, args[0])
        if found is None:
            return f"{context.command_path} has no command {args[0]}"
        context = click.Context(found, info_name=args[0], parent=context)
        command, args = found, args[1:]
    known = {flag for each in command.get_params(context) for flag in (*each.opts, *each.secondary_opts)}
    if command.context_settings.get("ignore_unknown_options"):
        return ""
    for word in args:
        if word == "--":
            break
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag not in known:
            return f"{context.command_path} has no {flag}"
        if re.fullmatch(r"-[A-Za-z]\S*", flag) and not any(each in known for each in (flag, flag[:2])):
            return f"{context.command_path} has no {flag[:2]}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist_with_their_flags(page: Path) -> None:
    found = [each for words in commands(page.read_text()) if (each := resolved(words)) is not None]
    faults = {
        f"{program.name} {' '.join(args)}": text for program, args in found if (text := fault(program, args))
    }
    assert not faults


def test_the_commands_in_the_text_of_the_runbook_exist() -> None:
    found = re.findall(r"`((?:kubectl )?fluence [a-z][^`]*)`", (ROOT / "docs/runbook.md").read_text())
    assert len(found) > 3
    faults: dict[str, str] = {}
    for line in found:
        program, args = resolved(shlex.split(line)) or (fluence, [])
        faults |= {line: text} if (text := fault(program, args)) else {}
    assert not faults


def test_the_targets_of_make_exist() -> None:
    there = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        for words in commands(page.read_text()):
            if words[0] == "make":
                named = {word for word in words[1:] if re.fullmatch(r"[a-z][a-z-]*", word)}
                assert named <= there, (page.name, named - there)


def test_files_of_the_repository_that_commands_name_exist() -> None:
    """`kubectl apply -f deploy/fluence.yaml` and the like."""
    seen = 0
    for page in PAGES:
        for words in commands(page.read_text()):
            for word in words:
                if re.fullmatch(r"(?:deploy|docs|tests|benchmarks)/[\w./-]+\.\w+", word):
                    assert (ROOT / word).exists(), (page.name, word)
                    seen += 1
    assert seen > 2


def test_a_command_that_does_not_exist_is_found() -> None:
    lines = ["$ fluence simulte --trace x | jq .", "$ FOO=1 fluence web \\", "    --snapsho f"]
    block = "\n".join(["```console", *lines, "$ kubectl fluence why a -Z", "```", ""])
    found = [each for words in commands(block) if (each := resolved(words)) is not None]
    assert [fault(*each) for each in found] == [
        "main has no command simulte",
        "main web has no --snapsho",
        f"{kubectl_fluence.name} why has no -Z",
    ]


# -- links ---------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+?)\s*$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 0
        while (made := slug if not number else f"{slug}-{number}") in found:
            number += 1
        found.add(made)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_with_an_anchor_lead_to_a_heading(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]*)\)", page.read_text()):
        if "://" in target:
            continue
        other = (page.parent / target).resolve() if target else page
        if other.suffix == ".md":
            assert anchor in anchors(other), f"{target}#{anchor}"


# Other sites cannot be asked by a test. A new host is added here by somebody who has opened the link.
HOSTS = {
    "github.com",
    "keepachangelog.com",
    "krew.sigs.k8s.io",
    "kubernetes.io",
    "kueue.sigs.k8s.io",
    "kwok.sigs.k8s.io",
    "semver.org",
    "www.cs.huji.ac.il",
}


def external(text: str) -> list[str]:
    """Links to other sites, in brackets or bare; not what is quoted or in a block."""
    plain = re.sub(r"`[^`\n]*`", "", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S))
    return re.findall(r"\]\(([a-z]+:[^)]*)\)", plain) + re.findall(r"(?<!\]\()\bhttps?://[^\s<>)]*", plain)


def fault_of_link(link: str) -> str:
    parts = urlsplit(link)
    if parts.scheme != "https" or not re.fullmatch(r"[a-z0-9.-]+", parts.netloc):
        return f"{link}: not https and a plain host"
    if not re.fullmatch(r"[!-~]+[\w/=-]", link):
        return f"{link}: has a space or ends with punctuation"
    return (
        ""
        if parts.netloc in HOSTS
        else f"{link}: open it, and add its host to HOSTS in {Path(__file__).name}"
    )


def test_links_to_other_sites_are_well_formed_and_their_hosts_known() -> None:
    pages = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "deploy/helm/fluence/README.md"]
    links = {link for page in pages for link in external(page.read_text())}
    assert [fault for link in sorted(links) if (fault := fault_of_link(link))] == []
    assert {urlsplit(link).netloc for link in links} == HOSTS  # none that no page names


@pytest.mark.parametrize(
    "text",
    [
        "[a](http://kubernetes.io/docs/)",
        "[a](https://kubernetes.io.example/docs/)",
        "[a](https://user@kubernetes.io/)",
        "[a](https://kubernetes.io/docs/a b)",
        "[a](ftp://kubernetes.io/)",
        "see https://kubernetes.io/docs, and others",
        "<https://elsewhere.example/>",
    ],
)
def test_a_link_that_is_wrong_is_found(text: str) -> None:
    (link,) = external(text)
    assert fault_of_link(link)
