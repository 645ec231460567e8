"""Lock: the Debian packages and the wheels that the image was last made of, by version and hash.

Debian's archive keeps only the newest version of a package, so a build some weeks later may find others: then
it says which, and its digest differs. https://snapshot.debian.org has all versions: see `--mirror`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.image.debian import CannotBuild, Deb
from deploy.image.python import CONSTRAINTS, ROOT, chosen

HERE = Path(__file__).parent


def packages_path(arch: str) -> Path:
    return HERE / f"packages-{arch}.lock"


def wheels_path(arch: str) -> Path:
    return HERE / f"requirements-{arch}.lock"


def read_packages(arch: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The time of the lock in seconds, and (version, sha256) by package."""
    path = packages_path(arch)
    if not path.exists():
        raise CannotBuild(f"no {path.name}: this architecture was never built; `make image-lock` records it")
    lines = [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]
    epoch = int(lines[0][1])
    return epoch, {name: (version, sha256) for name, version, sha256 in lines[1:]}


def write_packages(arch: str, debs: Sequence[Deb], epoch: int) -> None:
    head = "# The Debian packages of the image, by `make image-lock`; do not edit.\n"
    lines = [f"epoch {epoch}", *(f"{deb.name} {deb.version} {deb.sha256}" for deb in debs)]
    packages_path(arch).write_text(head + "\n".join(lines) + "\n")


def differences(arch: str, debs: Sequence[Deb]) -> list[str]:
    """What the archive has that the lock has not, in words."""
    _, locked = read_packages(arch)
    found = {deb.name: (deb.version, deb.sha256) for deb in debs}
    changes = []
    for name in sorted(locked | found):
        then, now = locked.get(name), found.get(name)
        if then != now:
            changes.append(f"{name} {then[0] if then else 'none'} → {now[0] if now else 'none'}")
    return changes


def write_wheels(recipe: Mapping[str, Any], arch: str) -> None:
    """Ask pip what it would install for the image's Python within constraints.txt, and record the hashes."""
    with tempfile.TemporaryDirectory(prefix="fluence-image-") as folder:
        report = Path(folder, "report.json")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--dry-run",
        ]
        command += ["--ignore-installed", "--target", folder, "--report", str(report), *chosen(recipe, arch)]
        wanted = f"{ROOT}[{','.join(recipe['extras'])}]"
        done = subprocess.run(
            [*command, "--constraint", str(CONSTRAINTS), *requirements(recipe)],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise CannotBuild(f"pip cannot resolve {wanted}: {' '.join(done.stderr.split())[-500:]}")
        found = {plain(each["metadata"]["name"]): each for each in json.loads(report.read_text())["install"]}
    strangers = set(recipe["without"]) - set(found)
    if strangers:
        raise CannotBuild(
            f"image.toml: python.without names {', '.join(sorted(strangers))}, which nothing asks for"
        )
    lines = []
    for name, each in found.items():
        if name not in recipe["without"]:
            sha256 = each["download_info"]["archive_info"]["hashes"]["sha256"]
            lines.append(f"{each['metadata']['name']}=={each['metadata']['version']} --hash=sha256:{sha256}")
    head = "# The wheels of the image, by `make image-lock` from constraints.txt; do not edit.\n"
    wheels_path(arch).write_text(head + "\n".join(sorted(lines, key=str.lower)) + "\n")


def requirements(recipe: Mapping[str, Any]) -> list[str]:
    """What the project asks for with the image's extras; an extra may name others of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, extras = list(project["dependencies"]), list(recipe["extras"])
    for extra in extras:  # NB grows on the way
        for each in project["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{project['name']}\[(.+)\]", each)
            if own is None:
                found.append(each)
            else:
                extras += [name for name in re.split(r",\s*", own[1]) if name not in extras]
    return found


def locked_wheels(arch: str) -> dict[str, str]:
    """Version by name, in lower case with dashes, as constraints.txt would spell them."""
    text = wheels_path(arch).read_text()
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+) --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    return {plain(name): version for name, version in found}


def plain(name: str) -> str:
    """The name of a distribution as everybody may spell it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
