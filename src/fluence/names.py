"""Every name that Fluence shares with a cluster: labels, annotations, ConfigMaps. They are API."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "fluence.flux-framework.org"

SCHEDULER: Final = "fluence"
"""The `schedulerName` by which a pod opts in."""

GROUP_LABEL: Final = f"{PREFIX}/group"
"""The gang that a pod belongs to."""

# What a user asks of the client-side choice of a backend (`kubectl fluence`).
SELECT_POLICY: Final = f"{PREFIX}/select-policy"
SELECT_CANDIDATES: Final = f"{PREFIX}/select-candidates"
SELECT_CONSTRAINTS: Final = f"{PREFIX}/select-constraints"
SELECT_SHOTS: Final = f"{PREFIX}/select-shots"

# What that choice answers.
SELECT_RESULT: Final = f"{PREFIX}/select-result"
"""How the choice came about, as JSON; nothing reads it but people."""
REQUIRE_BACKEND: Final = f"{PREFIX}/require-backend"
"""The pin: the scheduler places the pod with this backend or not at all."""
BACKEND: Final = f"{PREFIX}/backend"
"""The same pin for schedulers older than `require-backend`; newer ones write the allocated backend here."""

# What the scheduler offers that is no part of a node.
RESOURCES_CONFIGMAP: Final = "fluence-resources"
RESOURCES_KEY: Final = "resources.yaml"
RESOURCES_NAMESPACE: Final = "kube-system"
