"""Build the Krew package: one archive for each platform, and the manifest with their checksums.

    python deploy/krew/build.py --base-url URL --homepage URL [--out dist/krew] [--platform linux-amd64 ...]

An archive holds a launcher and, for each Python, the few libraries that `kubectl fluence` loads; numpy and
the rest of the scheduler's dependencies stay out. The same inputs give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from string import Template

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LICENSE = ROOT / "LICENSE"
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = {
    "linux-amd64": ["manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64"],
    "linux-arm64": ["manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64"],
    "darwin-arm64": ["macosx_11_0_arm64"],
}
LIBRARIES = ("click", "msgspec", "PyYAML", "rich", "ruamel.yaml")


def install(target: Path, python: str, platform: str, wheel: Path) -> None:
    """The program and its libraries, as *python* on *platform* loads them."""
    common = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(target)]
    tags = [flag for tag in PLATFORMS[platform] for flag in ("--platform", tag)]
    chosen = ["--python-version", python, "--implementation", "cp", "--only-binary=:all:", *tags]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*common, *chosen, *constraints, *LIBRARIES], check=True)
    subprocess.run([*common, "--upgrade", "--no-deps", str(wheel)], check=True)


def build_wheel(directory: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory)]
    subprocess.run([*pip, str(ROOT)], check=True)
    (wheel,) = directory.glob("fluence_scheduler-*.whl")
    return wheel


def archive(libraries: Path, out: Path) -> str:
    """Pack the launcher and lib/ into *out*; returns its sha256. Names are sorted and times are zero."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, HERE / "kubectl-fluence", "kubectl-fluence", 0o755)
        _add(tar, LICENSE, "LICENSE", 0o644)
        for path in sorted(libraries.rglob("*")):
            # Not pip's own records of how it installed, nor the programs it made for this machine.
            if path.is_file() and path.relative_to(libraries).parts[1] != "bin" and path.name != "RECORD":
                _add(tar, path, f"lib/{path.relative_to(libraries)}", 0o644)
    out.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))
    return hashlib.sha256(out.read_bytes()).hexdigest()


def _add(tar: tarfile.TarFile, path: Path, name: str, mode: int) -> None:
    data = path.read_bytes()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def render(fields: dict[str, str]) -> str:
    """The manifest; a field that is left out is an error, never a blank."""
    return Template((HERE / "fluence.yaml").read_text(encoding="utf-8")).substitute(fields)


def version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--base-url", required=True, help="where the archives will be downloaded from")
    parser.add_argument("--homepage", required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "krew")
    parser.add_argument(
        "--platform", action="append", choices=sorted(PLATFORMS), help="only these; no manifest then"
    )
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    fields = {"version": version(), "homepage": options.homepage, "base_url": options.base_url.rstrip("/")}
    with tempfile.TemporaryDirectory() as scratch:
        wheel = build_wheel(Path(scratch))
        for platform in options.platform or PLATFORMS:
            libraries = Path(scratch, platform)
            for python in PYTHONS:
                install(libraries / f"cp{python.replace('.', '')}", python, platform, wheel)
            out = options.out / f"kubectl-fluence-{platform}.tar.gz"
            fields[f"sha256_{platform.replace('-', '_')}"] = archive(libraries, out)
            sys.stdout.write(f"{out}\n")
    if not options.platform:
        (options.out / "fluence.yaml").write_text(render(fields), encoding="utf-8")
        sys.stdout.write(f"{options.out / 'fluence.yaml'}\n")


if __name__ == "__main__":
    main()
