"""Our arguments and kubectl's on one line."""

from __future__ import annotations

import click
import pytest

from fluence.kubectl.arguments import connection_flags, split

OWN = {
    "-f": True,
    "--filename": True,
    "-R": False,
    "--attributes": True,
    "--confirm": False,
    "--dry-run": False,
}


@pytest.mark.parametrize(
    ("line", "ours", "theirs"),
    [
        ("-f a.yaml", "-f a.yaml", ""),
        ("-fa.yaml", "-f a.yaml", ""),
        ("-f=a.yaml", "-f a.yaml", ""),
        ("--filename=a.yaml", "--filename=a.yaml", ""),
        ("--filename a.yaml", "--filename=a.yaml", ""),
        ("-Rf dir", "-R -f dir", ""),
        ("-f -", "-f -", ""),
        ("-nfoo -f a", "-f a", "-n foo"),
        ("-n foo -f a", "-f a", "-n foo"),
        ("-lapp=f -f a", "-f a", "-l app=f"),
        (
            "--context c -f a --server-side --force-conflicts",
            "-f a",
            "--context c --server-side --force-conflicts",
        ),
        ("--field-manager me -f a --validate=strict", "-f a", "--field-manager me --validate=strict"),
        ("-f a --dry-run", "-f a --dry-run", ""),
        ("-f a --dry-run=server", "-f a", "--dry-run=server"),
        ("-f a --confirm=true", "-f a --confirm", ""),
        ("-f a --confirm=false", "-f a", ""),
        ("-o yaml -f a", "-f a", "-o yaml"),
        ("-v6 -f a", "-f a", "-v 6"),
        ("-f a --attributes", "-f a --attributes", ""),
        ("-f", "-f", ""),
    ],
)
def test_each_side_gets_its_own(line: str, ours: str, theirs: str) -> None:
    parts = split(line.split(), OWN, forwards_all=True)
    assert (parts.own, parts.forwarded) == (ours.split(), theirs.split())


@pytest.mark.parametrize("line", ["job.yaml", "-f a.yaml b.yaml", "-- x", "-f a --confirm=maybe"])
def test_a_stray_word_is_wrong_usage(line: str) -> None:
    with pytest.raises(click.UsageError):
        split(line.split(), OWN, forwards_all=True)


def test_a_command_that_sends_nothing_takes_only_the_flags_of_the_cluster() -> None:
    parts = split(["-f", "a", "--context", "c", "-n", "ns"], OWN, forwards_all=False)
    assert (parts.own, parts.forwarded) == (["-f", "a"], ["--context", "c", "-n", "ns"])
    for flag in ("--atributes", "--server-side", "-x", "-l"):
        with pytest.raises(click.NoSuchOption):
            split([flag], OWN, forwards_all=False)


def test_the_read_of_the_cluster_goes_where_the_submission_goes() -> None:
    cluster = "--context c --kubeconfig=k -s https://x --insecure-skip-tls-verify"
    assert connection_flags(f"-n ns --server-side {cluster} -o yaml".split(" ")) == cluster.split(" ")
