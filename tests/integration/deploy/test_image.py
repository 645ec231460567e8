"""The image of this tree: reproducible, small, and its program runs as nobody on a read-only root."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from deploy.image import lock
from deploy.image.__main__ import recipe, version
from deploy.image.layers import digest

from tests.integration.deploy.conftest import build_image
from tests.needs import lacks

SMALL = 215_000_000
# Import every module; say how many could be, and what the others lack.
IMPORT_ALL = """
import importlib, pkgutil, fluence
done, lacking = 0, []
for each in pkgutil.walk_packages(fluence.__path__, "fluence.", onerror=lambda name: None):
    if each.name.endswith(("__main__", ".migrations.env")):  # a program, and alembic's script
        continue
    try:
        importlib.import_module(each.name)
        done += 1
    except ImportError as error:
        lacking.append(f"{each.name} {error.name} {error}")
print(done, *lacking, sep="\\n")
"""


def read(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


def blob(archive: Path, name: str) -> bytes:
    content = read(archive, f"blobs/{name.replace(':', '/')}")
    assert digest(content) == name
    return content


def manifest_digest(archive: Path) -> str:
    (only,) = json.loads(read(archive, "index.json"))["manifests"]
    return str(only["digest"])


def manifest(archive: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(blob(archive, manifest_digest(archive)))
    return found


def packages(archive: Path) -> set[tuple[str, str]]:
    """Names and versions of all that is in an image."""
    bill = json.loads(archive.with_suffix(".spdx.json").read_text())
    return {(each["name"], each.get("versionInfo", "")) for each in bill["packages"]}


@pytest.fixture(scope="module")
def rootfs(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's files, unpacked."""
    folder = tmp_path_factory.mktemp("rootfs")
    folder.chmod(0o755)
    for layer in manifest(image)["layers"]:
        with tarfile.open(fileobj=io.BytesIO(blob(image, layer["digest"]))) as tar:
            tar.extractall(folder, filter="fully_trusted")
    return folder


def test_the_same_tree_gives_the_same_bytes(image: Path, tmp_path: Path) -> None:
    """A third image is made only if Debian has newer packages than when that of the other tests was built."""
    one, again = image, tmp_path / "again.tar"
    made = build_image(again)
    if packages(one) != packages(again):
        one = tmp_path / "one.tar"
        build_image(one)
    assert manifest_digest(one) == manifest_digest(again) == made
    assert one.read_bytes() == again.read_bytes()
    bills = [each.with_suffix(".spdx.json").read_bytes() for each in (one, again)]
    assert bills[0] == bills[1]


def test_it_is_small_and_dockers_older_manifest_agrees(image: Path) -> None:
    layers = manifest(image)["layers"]
    assert 50_000_000 < sum(layer["size"] for layer in layers) < SMALL
    (old,) = json.loads(read(image, "manifest.json"))
    assert [f"blobs/{layer['digest'].replace(':', '/')}" for layer in layers] == old["Layers"]
    assert old["RepoTags"] == [f"fluence:{version()}"]
    assert old["Config"] == f"blobs/{manifest(image)['config']['digest'].replace(':', '/')}"


def test_what_it_says_of_itself(image: Path) -> None:
    config = json.loads(blob(image, manifest(image)["config"]["digest"]))
    assert config["config"]["User"] == "65532:65532"
    assert config["config"]["Entrypoint"] == ["/usr/bin/fluence"]
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest(image)["layers"]]


def test_no_program_but_ours_no_shell_no_special_rights(rootfs: Path) -> None:
    programs = sorted(path.name for path in (rootfs / "usr/bin").iterdir())
    assert programs == ["fluence", "python3.13"]
    assert not list((rootfs / "usr/sbin").iterdir())
    for path in rootfs.rglob("*"):
        mode = path.lstat().st_mode
        assert not mode & (stat.S_ISUID | stat.S_ISGID), path
        assert path.is_symlink() or stat.S_ISREG(mode) or stat.S_ISDIR(mode), path
        if not path.is_symlink() and mode & stat.S_IWOTH:
            assert path.relative_to(rootfs).as_posix() in ("tmp", "var/tmp")


def test_every_shared_library_that_a_module_needs_is_there(rootfs: Path) -> None:
    """Modules are loaded late: a missing library would be found by a user."""
    libraries = rootfs / "usr/lib/x86_64-linux-gnu"
    loader = libraries / "ld-linux-x86-64.so.2"
    if not loader.exists():
        lacks("amd64")
    modules = [*rootfs.glob("usr/lib/python3.13/lib-dynload/*.so"), *rootfs.glob("usr/local/**/*.so")]
    assert len(modules) > 50
    for module in modules:
        command = [str(loader), "--library-path", str(libraries), "--list", str(module)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "not found" not in done.stdout, (module, done.stdout, done.stderr)


def run_in(rootfs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of the image as its pods run it: by nobody, on a read-only root."""
    if os.getuid() != 0:
        lacks("root")
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && cd / && root=$1 && shift && exec '
    script += "env -i PATH=/usr/bin:/usr/sbin LANG=C.UTF-8 OPENBLAS_NUM_THREADS=1 "
    script += 'chroot --userspec=65532:65532 "$root" "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(rootfs), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_program_runs_as_nobody_on_a_read_only_root(rootfs: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_in(rootfs, *arguments)

    assert run("/usr/bin/fluence", "--version").stdout == f"fluence, version {version()}\n"
    told = run("/usr/bin/fluence", "scheduler", "settings")
    assert told.returncode == 0 and "queue-policy" in told.stdout, told
    refused = run("/usr/bin/fluence", "scheduler", "run", "--kubeconfig", "/none")
    assert refused.returncode == 1 and "/none: no such kubeconfig" in refused.stderr, refused
    code = "import os; print(os.getuid()); open('/tmp/x', 'w')"
    written = run("/usr/bin/python3.13", "-c", code)
    assert written.stdout == "65532\n" and "Read-only file system" in written.stderr
    loaded = run(
        "/usr/bin/python3.13", "-c", "import fluence.live.scheduler, sys; print('numpy' in sys.modules)"
    )
    assert loaded.stdout == "True\n", loaded


def test_every_module_finds_what_it_imports(rootfs: Path) -> None:
    """A new dependency of a program is in the image as well: `python.extras` in image.toml names its extra,
    and `make image-lock` records it. What is for a desk is not: pictures, sandboxes, backends."""
    loaded = run_in(rootfs, "/usr/bin/python3.13", "-c", IMPORT_ALL)
    assert loaded.returncode == 0, loaded.stderr
    count, *missing = loaded.stdout.splitlines()
    assert int(count) > 200
    assert [line for line in missing if line.split()[1] not in ("boto3", "matplotlib", "PIL", "pytest")] == []


def test_modules_are_compiled_for_the_files_that_are_there(rootfs: Path) -> None:
    into = rootfs / str(recipe()["python"]["into"])
    source, compiled = into / "fluence/entry.py", into / "fluence/__pycache__/entry.cpython-313.pyc"
    assert source.exists()
    assert compiled.read_bytes()[4:8] == b"\x01\0\0\0"  # by hash, never checked (PEP 552)


def test_the_sbom_names_every_package_with_version_and_licence(image: Path, rootfs: Path) -> None:
    bill = json.loads(image.with_suffix(".spdx.json").read_text())
    assert bill["spdxVersion"] == "SPDX-2.3"
    packages = {each["SPDXID"]: each for each in bill["packages"]}
    assert len(packages) == len(bill["packages"])
    urls = {ref["referenceLocator"] for each in packages.values() for ref in each.get("externalRefs", ())}
    for path in (rootfs / "var/lib/dpkg/status.d").iterdir():
        fields = dict(line.split(": ", 1) for line in path.read_text().splitlines() if ": " in line)
        assert any(url.startswith(f"pkg:deb/debian/{path.name}@{fields['Version']}?") for url in urls), path
    for name, there in lock.locked_wheels("amd64").items():
        assert f"pkg:pypi/{name}@{there}" in urls
    assert f"pkg:pypi/fluence-scheduler@{version()}" in urls
    without = [each["name"] for each in packages.values() if each["licenseDeclared"] == "NOASSERTION"]
    assert without == [f"fluence:{version()}"]
    own = {each["licenseId"] for each in bill["hasExtractedLicensingInfos"]}
    used = {
        word.strip("()")
        for each in packages.values()
        for word in each["licenseDeclared"].split()
        if word.startswith("LicenseRef-")
    }
    assert used == own
    related = {each["relatedSpdxElement"] for each in bill["relationships"]}
    assert related == set(packages)
