"""The recipe of the image: what stands twice agrees, and the same files are the same bytes."""

from __future__ import annotations

import io
import json
import re
import shlex
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from deploy.image import lock, oci
from deploy.image.__main__ import config, recipe, version
from deploy.image.debian import CannotBuild, Deb, base_layer
from deploy.image.layers import File, Layer

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "deploy/image/Dockerfile").read_text()


def instructions(stage: int) -> list[tuple[str, str]]:
    """The lines of one stage of the Dockerfile: (instruction, the rest)."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    found = [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]
    starts = [at for at, (word, *_) in enumerate(found) if word == "FROM"] + [len(found)]
    return [(word, rest) for word, rest in found[starts[stage] : starts[stage + 1]]]


def test_the_dockerfile_runs_the_same_recipe_on_the_same_debian() -> None:
    lines = instructions(0)
    assert lines[0] == ("FROM", f"debian:{recipe()['debian']['suite']}-slim AS build")
    runs = [rest for word, rest in lines if word == "RUN"]
    assert runs[-1] == "python3 -m deploy.image --rootfs /rootfs"
    assert {"mmdebstrap", "python3", "python3-pip"} <= set(runs[0].split())


def test_the_dockerfile_ends_with_those_files_and_nothing_else() -> None:
    lines = instructions(1)
    assert lines[0] == ("FROM", "scratch")
    assert [rest for word, rest in lines if word in ("COPY", "ADD", "RUN")] == ["--from=build /rootfs/ /"]


def test_the_dockerfile_says_of_the_image_what_the_recipe_says() -> None:
    said: dict[str, Any] = {"Env": [], "Labels": {}}
    for word, rest in instructions(1)[2:]:
        match word:
            case "ENV":
                said["Env"].append(rest)
            case "LABEL":
                name, _, value = shlex.split(rest)[0].partition("=")
                said["Labels"][name] = value
            case "USER":
                said["User"] = rest
            case "WORKDIR":
                said["WorkingDir"] = rest
            case "ENTRYPOINT":
                said["Entrypoint"] = json.loads(rest)
            case _:
                pytest.fail(f"an instruction that the recipe knows nothing of: {word} {rest}")
    assert said == config(recipe())


def test_docker_sees_all_that_the_recipe_reads() -> None:
    """Else `docker build` fails where `make image` does not."""
    lines = (ROOT / "deploy/image/Dockerfile.dockerignore").read_text().splitlines()
    seen = {line[1:] for line in lines if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    forced = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    needed = {"pyproject.toml", "README.md", "LICENSE", "src", "constraints.txt", "deploy/image", *forced}
    assert needed == seen


@pytest.mark.parametrize("arch", ["amd64"])
def test_the_locked_wheels_are_those_of_the_constraints(arch: str) -> None:
    """After a change of constraints.txt or of the dependencies: `make image-lock`."""

    lines = (ROOT / "constraints.txt").read_text().split()
    pinned = {lock.plain(name): version for name, _, version in (line.partition("==") for line in lines)}
    locked = lock.locked_wheels(arch)
    assert locked and locked == {name: pinned.get(name) for name in locked}
    names = {lock.plain(re.split(r"[\[<>=!~ ]", each)[0]) for each in lock.requirements(recipe()["python"])}
    assert names <= set(locked)
    assert not set(recipe()["python"]["without"]) & set(locked)  # type: ignore[call-overload]


def test_an_extra_may_name_others_of_the_project() -> None:
    both = lock.requirements({"extras": ["sandbox"]})
    assert both == lock.requirements({"extras": ["scheduler"]})
    assert [each for each in both if each.startswith("aiohttp")]
    assert len(lock.requirements({"extras": []})) < len(both)


def test_what_builds_the_wheel_is_pinned() -> None:
    """Its version is in the wheel's metadata, and so in the digest."""
    assert re.search(r"^hatchling==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


def test_the_same_files_are_the_same_bytes_in_whatever_order_they_came() -> None:
    one, other = Layer("a"), Layer("a")
    files = [
        ("usr/bin/x", File(0o755, data=b"1")),
        ("etc/y", File(0o644, data=b"2")),
        ("z", File(0o777, link="etc")),
    ]
    for path, file in files:
        one.files[path] = file
    for path, file in reversed(files):
        other.files[path] = file
    assert one.tar(7) == other.tar(7) != one.tar(8)
    with tarfile.open(fileobj=io.BytesIO(one.tar(7))) as tar:
        entries = tar.getmembers()
    assert [each.name for each in entries] == ["etc", "etc/y", "usr", "usr/bin", "usr/bin/x", "z"]
    assert {(each.uid, each.gid, each.uname, each.mtime) for each in entries} == {(0, 0, "", 7)}


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("fluence:1", "docker.io/library/fluence:1"),
        ("me/fluence:1", "docker.io/me/fluence:1"),
        ("ghcr.io/me/fluence:1", "ghcr.io/me/fluence:1"),
        ("localhost:5000/fluence:1", "localhost:5000/fluence:1"),
    ],
)
def test_a_name_is_the_one_that_containerd_looks_up(name: str, full: str) -> None:
    assert oci.full_name(name) == full


def test_a_package_that_nothing_asks_for_is_not_left_out_in_silence() -> None:
    deb = Deb("Package: base-files\nVersion: 1\n", "0" * 64, {})
    with pytest.raises(CannotBuild, match=r"debian\.without names perl"):
        base_layer({"without": ["perl"], "keep": [], "drop": []}, [deb], user=1)


def test_the_lock_names_what_changed() -> None:
    (name, (there, sha256)), *_ = lock.read_packages("amd64")[1].items()
    newer = Deb(f"Package: {name}\nVersion: {there}+new\n", sha256, {})
    assert f"{name} {there} → {there}+new" in lock.differences("amd64", [newer])


def test_the_version_in_the_dockerfile_is_this_one() -> None:
    assert f"fluence:{version()}" in DOCKERFILE
