"""What Debian is asked for where tests lack a program, and what becomes of a test that cannot have it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fluence.errors import FluenceError
from fluence.sandbox import images, machine
from fluence.sandbox.testing import needs_package, needs_real_nodes


class Debian:
    """apt-get and dpkg-deb as scripts that write down how they were called."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.log = folder / "log"

    def program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho {name} "$@" >> {self.log}\n{script}\n')
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        text = self.log.read_text() if self.log.exists() else ""
        return text.replace(" -o DPkg::Lock::Timeout=300", "").splitlines()


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Debian:
    made = Debian(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.setattr(images, "_APT", tmp_path / "apt")
    monkeypatch.setattr(images.os, "geteuid", lambda: 0)  # type: ignore[attr-defined]
    monkeypatch.delenv("CI", raising=False)
    return made


def test_a_program_that_is_missing_is_installed_by_root(debian: Debian) -> None:
    debian.program("apt-get", f'case "$*" in *install*) ln -s /bin/true {debian.bin}/wanted;; esac')
    needs_package("wanted")
    assert debian.calls == ["apt-get update", "apt-get install --yes --no-install-recommends wanted"]
    needs_package("wanted")
    assert len(debian.calls) == 2


def test_of_two_that_want_packages_at_once_the_second_waits(debian: Debian) -> None:
    debian.program("apt-get", f"mkdir {debian.bin}/busy || exit 100; sleep 0.2; rmdir {debian.bin}/busy")
    failed: list[FluenceError] = []

    def work() -> None:
        try:
            images.install(["runc"])
        except FluenceError as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed
    assert len(debian.calls) == 6


def test_a_package_that_cannot_be_installed_is_named_with_the_words_of_apt(debian: Debian) -> None:
    debian.program("apt-get", "echo 'E: Unable to locate package runc' >&2; exit 100")
    with pytest.raises(FluenceError, match=r"--no-install-recommends runc failed: E: Unable to locate"):
        images.install(["runc"])


@pytest.mark.parametrize("is_root", [True, False])
def test_old_lists_are_renewed_before_a_package_is_given_up(
    debian: Debian, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_root: bool
) -> None:
    """The archive keeps only the newest version: what an old list names is gone."""
    monkeypatch.setattr(images.os, "geteuid", lambda: 0 if is_root else 1000)  # type: ignore[attr-defined]
    fresh = tmp_path / "fresh"
    debian.program(
        "apt-get",
        f'case "$*" in *update*) touch {fresh};; *) test -e {fresh} && touch x.deb || exit 100;; esac',
    )
    debian.program("dpkg-deb", 'mkdir -p "$3/bin" && touch "$3/bin/busybox"')
    if not is_root:
        with pytest.raises(FluenceError, match="apt-get download busybox-static failed"):
            images.unpack("busybox-static", tmp_path / "files")
        return
    images.unpack("busybox-static", tmp_path / "files")
    assert (tmp_path / "files/bin/busybox").exists()


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_what_is_missing_skips_a_test_by_name_and_ci_refuses_that(
    debian: Debian, monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.delenv("FLUENCE_TEST_SKIP_SANDBOX", raising=False)
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)  # type: ignore[attr-defined]
    with pytest.raises(outcome, match="needs real nodes: only root can make them"):
        needs_real_nodes()
    with pytest.raises(outcome, match="needs wanted: apt-get install wanted"):
        needs_package("wanted")
    assert debian.calls == []
