"""Build the image: `python -m deploy.image`, or `make image`. No Docker is needed, and no root.

Writes dist/image/fluence-VERSION-ARCH.tar, an OCI archive, and beside it its SBOM (SPDX 2.3, JSON):

    ctr -n k8s.io images import dist/image/fluence-0.1.0-amd64.tar
    podman load -i dist/image/fluence-0.1.0-amd64.tar

The same tree, locks and archive give the same digest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from deploy.image import lock, oci, python, sbom
from deploy.image.debian import CannotBuild, base_layer, fetch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def recipe() -> dict[str, dict[str, object]]:
    return tomllib.loads((HERE / "image.toml").read_text(encoding="utf-8"))


def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def build(options: argparse.Namespace) -> None:
    plan = recipe()
    image, debian, pythons = plan["image"], plan["debian"], plan["python"]
    arch = options.arch
    if options.lock:
        lock.write_packages(
            arch, fetch(debian, arch, mirror=options.mirror, security=options.security), int(time.time())
        )
        lock.write_wheels(pythons, arch)
        _say(f"wrote {lock.packages_path(arch).name} and {lock.wheels_path(arch).name}")
        return
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or lock.read_packages(arch)[0])
    debs = fetch(debian, arch, mirror=options.mirror, security=options.security)
    changed = lock.differences(arch, debs)
    if changed:
        _say(f"Debian has other packages than {lock.packages_path(arch).name}: {', '.join(changed)}")
        if options.locked:
            raise CannotBuild(
                "--locked: `make image-lock` records them, or give --mirror a snapshot of the old ones"
            )
    base, kept = base_layer(debian, debs, user=int(str(image["user"])))
    with tempfile.TemporaryDirectory(prefix="fluence-image-") as folder:
        program = python.program(pythons, python.wheel(Path(folder), epoch))
    layers = [base, python.dependencies(pythons, arch, lock.wheels_path(arch)), program]
    python.compile_modules(layers)
    if options.rootfs:
        options.rootfs.mkdir(parents=True, exist_ok=True)
        for layer in layers:
            layer.extract(options.rootfs)
        _say(f"{options.rootfs}")
        return
    name = options.name or f"{image['name']}:{version()}"
    out = options.out or ROOT / "dist" / "image" / f"fluence-{version()}-{arch}.tar"
    tars = [(layer.what, layer.tar(epoch)) for layer in layers]
    digest = oci.write(oci.Image(name, arch, epoch, tars, config(plan)), out)
    bill = sbom.document(name, epoch, kept, sbom.distributions(layers), digest, str(debian["suite"]))
    out.with_suffix(".spdx.json").write_bytes(oci.encode(bill))
    _say(f"{out}  {out.stat().st_size / 1e6:.0f} MB  {name}\n{digest}")


def config(plan: dict[str, dict[str, object]]) -> dict[str, object]:
    """What the image says of how it is run."""
    image = plan["image"]
    labels = {**dict(image["labels"]), "org.opencontainers.image.version": version()}  # type: ignore[call-overload]
    return {
        "User": f"{image['user']}:{image['user']}",
        "Env": image["env"],
        "Entrypoint": image["entrypoint"],
        "WorkingDir": "/",
        "Labels": labels,
    }


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.image",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    machine = MACHINES.get(os.uname().machine, os.uname().machine)
    parser.add_argument(
        "--arch", default=machine, choices=sorted(MACHINES.values()), help="default: this machine's"
    )
    parser.add_argument("--name", help="repository and tag; default: fluence:VERSION")
    parser.add_argument("--out", type=Path, help="the archive; default: dist/image/fluence-VERSION-ARCH.tar")
    parser.add_argument(
        "--rootfs", type=Path, help="only write the files into this folder, as the Dockerfile does"
    )
    parser.add_argument("--mirror", help="another Debian archive, such as a snapshot of the day of the lock")
    parser.add_argument("--security", help="the same for Debian's security archive")
    parser.add_argument("--locked", action="store_true", help="refuse packages that are not in the lock")
    parser.add_argument("--lock", action="store_true", help="record the newest packages and wheels, and end")
    try:
        build(parser.parse_args(arguments))
    except (CannotBuild, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"deploy.image: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
