"""Releases: the Kubernetes releases with which Fluence is tested, and their settings for native gangs.

Native gangs (KEP-4671) are off by default, and Kubernetes does not start with an unknown gate, so gates and
group versions are listed per release.
"""

from __future__ import annotations

import msgspec

from fluence.errors import InvalidInput

DEFAULT = "1.36"


class Release(msgspec.Struct, frozen=True, kw_only=True):
    minor: str
    version: str  # of k8s.io/kubernetes, as the Go module proxy has it
    gates: dict[str, bool]
    runtime_config: tuple[str, ...]
    lacks: tuple[str, ...] = ()  # controllers that it does not know, and would not start with

    @property
    def module(self) -> str:
        """The folder under ``gomod`` that builds it."""
        return f"v{self.minor}"


RELEASES = {
    each.minor: each
    for each in (
        Release(
            minor="1.35",
            version="v1.35.8",
            gates={"GenericWorkload": True, "GangScheduling": True},
            runtime_config=("scheduling.k8s.io/v1alpha1=true",),
            lacks=("podgroup-protection-controller",),  # a Workload has no finalizer there
        ),
        Release(
            minor="1.36",
            version="v1.36.4",
            # 1.37 folds the last two into the first
            gates={"GenericWorkload": True, "GangScheduling": True, "WorkloadAwarePreemption": True},
            runtime_config=("scheduling.k8s.io/v1alpha2=true",),
        ),
        Release(
            minor="1.37",
            version="v1.37.1",
            gates={"GenericWorkload": True},
            runtime_config=("scheduling.k8s.io/v1beta1=true",),
        ),
    )
}


def release(minor: str) -> Release:
    """``1.36``; ``v1.36`` and ``1.36.4`` mean the same."""
    parts = minor.lstrip("v").split(".")
    match = RELEASES.get(".".join(parts[:2]))
    if match is None:
        raise InvalidInput(
            f"Kubernetes {minor} is not one that the sandbox knows; choose {', '.join(RELEASES)}"
        )
    return match
