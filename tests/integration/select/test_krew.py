"""The Krew package: its manifest is whole, its archives are reproducible, and its launcher finds a Python."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.integration.select.select_program import SCRIPTS

KREW = Path(__file__).parents[3] / "deploy" / "krew"


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("krew_build", KREW / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_manifest_has_what_krew_requires(build: ModuleType) -> None:
    sums = {f"sha256_{name.replace('-', '_')}": "0" * 64 for name in build.PLATFORMS}
    fields = {"version": build.version(), "homepage": "https://h.org", "base_url": "https://h.org/r", **sums}
    manifest = yaml.safe_load(build.render(fields))
    assert manifest["metadata"]["name"] == "fluence"
    spec = manifest["spec"]
    assert spec["version"] == f"v{build.version()}"
    assert len(spec["shortDescription"]) <= 50
    uris = [platform["uri"] for platform in spec["platforms"]]
    assert uris == [f"https://h.org/r/kubectl-fluence-{name}.tar.gz" for name in build.PLATFORMS]
    for platform in spec["platforms"]:
        assert (len(platform["sha256"]), platform["bin"]) == (64, "kubectl-fluence")


def test_a_checksum_that_is_missing_is_an_error(build: ModuleType) -> None:
    with pytest.raises(KeyError):
        build.render({"version": "1", "homepage": "h", "base_url": "u"})


def test_the_same_libraries_give_the_same_archive_and_it_runs(build: ModuleType, tmp_path: Path) -> None:
    tag = "cp{}{}".format(*sys.version_info[:2])
    library = tmp_path / "libraries" / tag / "marker"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("")
    first, second = tmp_path / "first.tar.gz", tmp_path / "second.tar.gz"
    checksum = build.archive(tmp_path / "libraries", first)
    assert build.archive(tmp_path / "libraries", second) == checksum
    assert hashlib.sha256(first.read_bytes()).hexdigest() == checksum
    with tarfile.open(first) as tar:
        tar.extractall(tmp_path / "store", filter="data")
    # As Krew does: a link in one folder to the program in another.
    (tmp_path / "bin").mkdir()
    plugin = tmp_path / "bin" / "kubectl-fluence"
    plugin.symlink_to(tmp_path / "store" / "kubectl-fluence")
    path = {"PATH": f"{SCRIPTS}:/usr/bin:/bin"}
    done = subprocess.run([plugin, "version"], capture_output=True, text=True, env=path, check=False)
    assert done.stdout.startswith("kubectl-fluence "), done.stderr
    (tmp_path / "store" / "lib" / tag).rename(tmp_path / "store" / "lib" / "cp399")
    done = subprocess.run([plugin, "version"], capture_output=True, text=True, env=path, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "needs one of cp399 on PATH" in done.stderr
