"""Every name that Fluence shares with a cluster: labels, annotations, ConfigMaps. They are API."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "fluence.flux-framework.org"

SCHEDULER: Final = "fluence"
"""The `schedulerName` by which a pod opts in."""

GROUP_LABEL: Final = f"{PREFIX}/group"
"""The gang that a pod belongs to."""

GROUP_NAMES: Final = (
    GROUP_LABEL,
    "scheduling.k8s.io/pod-group",
    "scheduling.x-k8s.io/pod-group",
    f"{PREFIX}/pod-group",
    "fluence.pod-group",
    "fluxnetes.group-name",
    "pod-group.scheduling.sigs.k8s.io",
)
"""Every spelling of a gang's name, as a label or an annotation, the first to be found counts."""

POD_GROUP_NAMES: Final = GROUP_NAMES[1:3] + GROUP_NAMES[6:]
"""Those that name a PodGroup object, which may hold the size."""

GROUP_SIZE: Final = f"{PREFIX}/group-size"
GROUP_SIZES: Final = (GROUP_SIZE, "fluence.group-size", "fluxnetes.group-size")
"""Every spelling of a gang's size, as an annotation or a label."""

COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
"""The index of a pod in its Job or StatefulSet."""

# What a user may say of a gang, on its pods, its owner or its PodGroup.
DURATION: Final = f"{PREFIX}/duration"
"""Walltime: seconds, or 2h30m. 0: none."""
SOFT_DURATION: Final = f"{PREFIX}/soft-duration"
"""How long it will probably take; it is planned with and ends nothing."""
QUEUE: Final = f"{PREFIX}/queue"
POLICY: Final = f"{PREFIX}/policy"
"""The match policy for this gang."""
CONSTRAINTS: Final = f"{PREFIX}/constraints"
"""RFC 31 constraints as JSON."""
JOBSPEC: Final = f"{PREFIX}/jobspec"
"""A jobspec of the user's own, JSON or YAML."""
USER: Final = f"{PREFIX}/user"
"""Whose work this is, where neither the namespace nor the service account says it."""

ARRIVAL: Final = f"{PREFIX}/arrival"
"""When an object arrives in a simulation, after its beginning: seconds, or 2h30m. A cluster ignores it."""

# What the scheduler writes on pods, and reads again after a restart.
JOBID: Final = f"{PREFIX}/jobid"
"""The job that a pod was bound for."""
ALLOCATION: Final = f"{PREFIX}/allocation"
"""When that job starts and ends, as JSON."""
EXCLUDED: Final = f"{PREFIX}/excluded-nodes"
"""Nodes that a pod's group must not have, with commas between them: the server refused its pods there."""

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
