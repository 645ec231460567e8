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

# The gangs of other systems, where pods themselves name them. Names of our own go before these.
KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_SIZE: Final = "kueue.x-k8s.io/pod-group-total-count"
"""The annotation with the number of pods in a pod group of Kueue."""
VOLCANO_GROUPS: Final = ("scheduling.volcano.sh/group-name", "scheduling.k8s.io/group-name")
"""The PodGroup of Volcano that a pod belongs to."""
KAI_GROUP: Final = "pod-group-name"
"""The PodGroup of the KAI scheduler that a pod belongs to."""
YUNIKORN_TASK_GROUP: Final = "yunikorn.apache.org/task-group-name"
"""The annotation of a pod that starts with the others of its application."""
YUNIKORN_TASK_GROUPS: Final = "yunikorn.apache.org/task-groups"
"""The annotation with all task groups of an application, as JSON."""
YUNIKORN_APPLICATIONS: Final = ("yunikorn.apache.org/app-id", "applicationId")

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
QUEUED: Final = f"{PREFIX}/queued"
"""When a pod that waits was first seen, to the microsecond: who came first of those made in one second."""
START_PROMISED: Final = f"{PREFIX}/StartPromised"
"""The condition of a pod that was told of its start. The message is that time, or the expected one and that
time as an interval, with a slash between them (ISO 8601); where the pod has a limit, ` for ` and that."""
GRANTED: Final = f"{PREFIX}/Granted"
"""The condition of a pod or a Job that says what it was given, as JSON: its node, its devices, the nodes of
its pods."""
WARNED: Final = f"{PREFIX}/limit-warned"
"""When a pod was warned that it runs past its limit."""

# Pods that are held until others have done their part.
DEPENDS_ON_PRODUCER: Final = f"{PREFIX}/depends-on-producer"
"""The pod or group for which a gated pod waits."""
DEPENDS_ON_KIND: Final = f"{PREFIX}/depends-on-kind"
"""What it waits for: `quantum-submit`, that the producer announces its task; `started`; `finished`."""
DEPENDS_ON_GATE: Final = f"{PREFIX}/depends-on-gate"
"""The scheduling gate that is opened then; without it `quantum.braket/ready`."""
QUANTUM_JOB_ID: Final = f"{PREFIX}/quantum-job-id"
"""A task: announced by the producer on its own pod, and written on the pods that waited for it."""
PRODUCER_STARTED: Final = f"{PREFIX}/producer-started"
"""Written on a pod that waits: the uid of its producer, and when that was first seen running."""
GATE_OPENED: Final = f"{PREFIX}/gate-opened"
"""Written with the opening of a gate: why it was opened."""
GATES: Final = ("quantum.braket/ready",)
"""Scheduling gates of ours that do not begin with the prefix."""

# Work that is held back until its turn: FluxJobs, suspended Jobs and gated pods.
NAMESPACE_OPT_IN: Final = f"{PREFIX}/doors"
"""The label by which a namespace opts in: new workloads in it are held until they start."""
DOORS_ENABLED: Final = "enabled"
QUEUE_OFF: Final = "off"
"""The value of the label or annotation `queue` by which a workload opts out."""
SEEN: Final = "fluxqueue.seen"
"""The label of whatever was held back at admission, on the object and on its template."""
SEEN_YES: Final = "yes"
SELECTOR: Final = "fluxqueue.selector"
"""The label of the pods of one Deployment, ReplicaSet or StatefulSet: `<kind>-<name>-<namespace>`."""
GATE_FLUXQUEUE: Final = "fluxqueue"
"""The scheduling gate that holds a pod until its gang starts."""
FLUXQUEUE_JOBID: Final = "fluxqueue/jobid"
"""The label with the job's number, on what was let go."""
FLUXQUEUE_NODES: Final = "fluxqueue/fluxion-nodes"
"""The annotation with the nodes of a job in the order of its pods, as a host list (RFC 29)."""
FLUXQUEUE_INDEXES: Final = "fluxqueue/indexes"
"""The annotation with the indexes that those nodes are for, where they are not 0, 1, 2 …"""
FLUXQUEUE_UNSCHEDULABLE: Final = "fluxqueue/unschedulable"
"""The label of what no node of this cluster could ever hold."""
CANCELLED: Final = f"{PREFIX}/cancelled"
"""When the FluxJob of a workload was deleted: it stays held. Remove the annotation to queue it again."""
BIND: Final = f"{PREFIX}/bind"
"""Who binds the pods: `direct`, or `kube-scheduler`."""
BIND_KUBE_SCHEDULER: Final = "kube-scheduler"
KUBE_SCHEDULER: Final = "default-scheduler"
"""The `schedulerName` of pods that kube-scheduler binds where the plan says."""
TAKE_BACK: Final = f"{PREFIX}/take-back"
"""`delete`: a pod that kube-scheduler refuses on its node may be deleted, so that its owner makes it anew."""

# What admission does for pods of this scheduler.
ADMISSION_PARAMETERS: Final = "fluence-admission"
"""The HandOff that says which variable carries which annotation; in the namespace of the lease."""
COORDINATION: Final = f"{PREFIX}/coordination"
"""`shared`: the pod with index 0 submits to a quantum computer, the others wait for its task."""
COORDINATION_ROLE: Final = f"{PREFIX}/coordination-role"
"""`producer` or `consumer`: what admission made of a pod."""
QUANTUM_CLASS: Final = "fluence-quantum-classical"
"""The PriorityClass of pods that wait for a producer."""

INSTALLED_IN: Final = "fluence-system"
"""The namespace in which the chart and the manifests put everything."""

# What the scheduler writes on its Lease.
SCHEDULER_NAME: Final = f"{PREFIX}/scheduler-name"
"""Whose lease it is: two leases with one name are two schedulers that bind the same pods."""
SETTINGS: Final = f"{PREFIX}/settings"
"""What its holder decides by, as JSON, where that is not the default."""

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
"""Written with the bind: the backend that a pod got; of several, with commas between them."""

# What a user asks of devices that belong to no node, on the pods.
DEVICE_PREFIX: Final = "fluxion.flux-framework.org/"
"""An extended resource of this prefix is a device of the graph: `fluxion.flux-framework.org/qpu: 1`."""
REQUIRE: Final = f"{PREFIX}/require-"
"""`require-vendor: ibm`: the device must have this attribute."""
AT_LEAST: Final = f"{PREFIX}/min-"
AT_MOST: Final = f"{PREFIX}/max-"
"""`min-qubits: 100`: an attribute, or a count of parts, that is a number."""
DEVICES: Final = f"{PREFIX}/devices"
"""`per-pod`: each pod of a gang has devices of its own; otherwise they share what the largest asks for."""
ATTRIBUTE: Final = f"{PREFIX}/attr-"
"""Written with the bind: an attribute of the backend."""

# What the scheduler offers that is no part of a node.
RESOURCES_CONFIGMAP: Final = "fluence-resources"
RESOURCES_KEY: Final = "resources.yaml"
RESOURCES_NAMESPACE: Final = "kube-system"
