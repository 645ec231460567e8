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
"""Every spelling of a gang's name, as a label or an annotation. The first one found counts."""

POD_GROUP_NAMES: Final = GROUP_NAMES[1:3] + GROUP_NAMES[6:]
"""The spellings that name a PodGroup object, which may have the size."""

GROUP_SIZE: Final = f"{PREFIX}/group-size"
GROUP_SIZES: Final = (GROUP_SIZE, "fluence.group-size", "fluxnetes.group-size")
"""Every spelling of a gang's size, as an annotation or a label."""

# The gangs of other systems, if pods name them. Our own names come before these.
KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
KUEUE_PRIORITY: Final = "kueue.x-k8s.io/priority-class"
KUEUE_SIZE: Final = "kueue.x-k8s.io/pod-group-total-count"
"""The annotation with the number of pods in a pod group of Kueue."""
VOLCANO_GROUPS: Final = ("scheduling.volcano.sh/group-name", "scheduling.k8s.io/group-name")
"""The PodGroup of Volcano that a pod belongs to."""
KAI_GROUP: Final = "pod-group-name"
"""The PodGroup of the KAI scheduler that a pod belongs to."""
YUNIKORN_TASK_GROUP: Final = "yunikorn.apache.org/task-group-name"
"""The annotation of a pod that starts together with its application."""
YUNIKORN_TASK_GROUPS: Final = "yunikorn.apache.org/task-groups"
"""The annotation with all task groups of an application, as JSON."""
YUNIKORN_APPLICATIONS: Final = ("yunikorn.apache.org/app-id", "applicationId")

COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
"""The index of a pod in its Job or StatefulSet."""

# What a user may declare for a gang, on its pods, its owner or its PodGroup.
DURATION: Final = f"{PREFIX}/duration"
"""The time limit: seconds, or 2h30m. 0: no limit."""
SOFT_DURATION: Final = f"{PREFIX}/soft-duration"
"""How long it will probably take. It is used for planning and ends nothing."""
QUEUE: Final = f"{PREFIX}/queue"
POLICY: Final = f"{PREFIX}/policy"
"""The match policy for this gang."""
SPREAD: Final = f"{PREFIX}/spread"
"""Whether the pods are spread over nodes and zones: true or false."""
CONSTRAINTS: Final = f"{PREFIX}/constraints"
"""RFC 31 constraints as JSON."""
JOBSPEC: Final = f"{PREFIX}/jobspec"
"""A jobspec written by the user, JSON or YAML."""
USER: Final = f"{PREFIX}/user"
"""The user of the work, if neither the namespace nor the service account tells."""

# What a user may change while a job waits, on the Job, the PodGroup or the pods.
DEPENDS_ON: Final = f"{PREFIX}/depends-on"
"""`afterok:NAME,afterany:NAME`: what must have happened to other jobs of the namespace before it starts."""
HOLD: Final = f"{PREFIX}/hold"
"""The job is not planned while this is set, unless the value is `false`."""
PRIORITY: Final = f"{PREFIX}/priority"
"""From 1 to 1000: the job goes before others of its namespace with the same PriorityClass and queue, in
exchange for their places. From -1000 to -1: it goes behind all others of its PriorityClass."""
MAX_RUNNING: Final = f"{PREFIX}/max-running"
"""How many pods of a Job that is not a gang run at a time: an array."""

ARRIVAL: Final = f"{PREFIX}/arrival"
"""When an object arrives in a simulation, counted from its start: seconds, or 2h30m. A cluster ignores it."""

# PodGroups that the scheduler creates.
POD_GROUP_SUFFIX: Final = ".fluence"
"""For a pod with the group label `train`, admission names the PodGroup `train.fluence`."""
MADE_FOR: Final = f"{PREFIX}/made-for"
"""On a PodGroup that the scheduler created: the gang that it lists."""
LISTED_AS: Final = f"{PREFIX}/listed-as"
"""On the template of a Job, by admission: the gang that its pods do not know by themselves. Only their
PodGroup is named by it."""
LISTED_AS_JOB: Final = "job."
"""The value for the gang of a Job: the name of its PodGroup without that of the Job. No label ends so."""
LISTS_GANGS: Final = f"{PREFIX}/lists-gangs"
"""On the HandOff of admission: whether pods get the PodGroup of their gang, `true` or `false`."""

# What operators write on the pods of their custom objects (`model.operators`).
JOBSET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
JOBSET_REPLICATED_JOB: Final = "jobset.sigs.k8s.io/replicatedjob-name"
JOBSET_RESTART: Final = "jobset.sigs.k8s.io/restart-attempt"
JOBSET_EXCLUSIVE: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
JOBSET_NODE_SELECTOR: Final = "alpha.jobset.sigs.k8s.io/node-selector"
LWS_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP_INDEX: Final = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"
LWS_EXCLUSIVE: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"
KUBEFLOW_REPLICA_TYPE: Final = "training.kubeflow.org/replica-type"
KUBEFLOW_OPERATOR: Final = "training.kubeflow.org/operator-name"
KUBEFLOW_JOB_NAME: Final = "training.kubeflow.org/job-name"
KUBEFLOW_JOB_ROLE: Final = "training.kubeflow.org/job-role"
RAY_CLUSTER: Final = "ray.io/cluster"
RAY_GROUP: Final = "ray.io/group"
SPARK_ROLE: Final = "spark-role"
SPARK_APPLICATION: Final = "sparkoperator.k8s.io/app-name"

# What the scheduler writes on pods, and reads after a restart.
JOBID: Final = f"{PREFIX}/jobid"
"""The job that a pod was bound for."""
ALLOCATION: Final = f"{PREFIX}/allocation"
"""When that job starts and ends, as JSON."""
EXCLUDED: Final = f"{PREFIX}/excluded-nodes"
"""Nodes that a pod's group must not use, separated by commas, because the server refused its pods there."""
QUEUED: Final = f"{PREFIX}/queued"
"""When a waiting pod was first seen, to the microsecond: orders pods that were created in the same second."""
WAIT_REPORTED: Final = f"{PREFIX}/WaitReported"
"""The condition of a pod, PodGroup or FluxJob that says why it waits and when it starts, as JSON for
programs. The sentence in `PodScheduled` is for people."""
START_PROMISED: Final = f"{PREFIX}/StartPromised"
"""The condition of a pod with a promised start. The message is that time, or the expected and the promised
time as an interval with a slash between them (ISO 8601); if the pod has a limit, ` for ` and the limit
follow."""
GRANTED: Final = f"{PREFIX}/Granted"
"""The condition with the grant of a pod or a Job, as JSON: its node, its devices, the nodes of its pods."""
ENDS_AT: Final = f"{PREFIX}/ends-at"
"""When a running pod will end for other work, so that it can save its work. Removed if it is spared."""
CHECKPOINT: Final = f"{PREFIX}/checkpoint"
"""When a job last saved its work: work before that is not lost if the job is preempted."""
WARNED: Final = f"{PREFIX}/limit-warned"
"""When a pod was warned that it exceeds its limit."""

# Pods that wait for a producer.
DEPENDS_ON_PRODUCER: Final = f"{PREFIX}/depends-on-producer"
"""The pod or group that a gated pod waits for."""
DEPENDS_ON_KIND: Final = f"{PREFIX}/depends-on-kind"
"""What it waits for: `quantum-submit` (the producer announces its task), `started` or `finished`."""
DEPENDS_ON_GATE: Final = f"{PREFIX}/depends-on-gate"
"""The scheduling gate that is then removed; by default `quantum.braket/ready`."""
QUANTUM_JOB_ID: Final = f"{PREFIX}/quantum-job-id"
"""A task: announced by the producer on its own pod, and written on the pods that waited for it."""
PRODUCER_STARTED: Final = f"{PREFIX}/producer-started"
"""Written on a waiting pod: the uid of its producer, and when it was first seen running."""
GATE_OPENED: Final = f"{PREFIX}/gate-opened"
"""Written when a gate is removed: why."""
GATES: Final = ("quantum.braket/ready",)
"""Our scheduling gates that do not begin with the prefix."""

# Held work: FluxJobs, suspended Jobs and gated pods.
NAMESPACE_OPT_IN: Final = f"{PREFIX}/doors"
"""The label by which a namespace opts in: new workloads in it are held until they start."""
DOORS_ENABLED: Final = "enabled"
QUEUE_OFF: Final = "off"
"""The value of the label or annotation `queue` by which a workload opts out."""
SEEN: Final = "fluxqueue.seen"
"""The label of everything that admission held, on the object and on its template."""
SEEN_YES: Final = "yes"
SELECTOR: Final = "fluxqueue.selector"
"""The label of the pods of one Deployment, ReplicaSet or StatefulSet: `<kind>-<name>-<namespace>`."""
GATE_FLUXQUEUE: Final = "fluxqueue"
"""The scheduling gate that holds a pod until its gang starts."""
FLUXQUEUE_JOBID: Final = "fluxqueue/jobid"
"""The label with the job's number, on released objects."""
FLUXQUEUE_NODES: Final = "fluxqueue/fluxion-nodes"
"""The annotation with the nodes of a job in the order of its pods, as a host list (RFC 29). It is also
fluxqueue's label on released objects: the same with two underscores between the nodes, if it is short
enough."""
FLUXQUEUE_INDEXES: Final = "fluxqueue/indexes"
"""The annotation with the indexes that those nodes are for, if they are not 0, 1, 2 …"""
FLUXQUEUE_UNSCHEDULABLE: Final = "fluxqueue/unschedulable"
"""The label of work that no node of this cluster could ever hold."""
CANCELLED: Final = f"{PREFIX}/cancelled"
"""When the FluxJob of a workload was deleted: the workload stays held. Remove the annotation to queue it
again."""
BIND: Final = f"{PREFIX}/bind"
"""Who binds the pods: `direct`, or `kube-scheduler`."""
BIND_KUBE_SCHEDULER: Final = "kube-scheduler"
KUBE_SCHEDULER: Final = "default-scheduler"
"""The `schedulerName` of pods whose binding is delegated to kube-scheduler."""
TAKE_BACK: Final = f"{PREFIX}/take-back"
"""`delete`: a pod that kube-scheduler refuses on its node may be deleted, so that its owner replaces it."""

NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""The label with the name of a namespace, which the server writes on every namespace."""

# What admission does for pods of this scheduler.
SUBMITTED_BY: Final = f"{PREFIX}/submitted-by"
"""The user who created a workload or a pod. Admission writes and protects it, also on the template of a
workload, so that its pods have it."""
ADMISSION_PARAMETERS: Final = "fluence-admission"
"""The HandOff that says which variable carries which annotation; in the namespace of the lease."""
COORDINATION: Final = f"{PREFIX}/coordination"
"""`shared`: the pod with index 0 submits to a quantum computer, the others wait for its task."""
COORDINATION_ROLE: Final = f"{PREFIX}/coordination-role"
"""`producer` or `consumer`: the role that admission gave a pod."""
QUANTUM_CLASS: Final = "fluence-quantum-classical"
"""The PriorityClass of pods that wait for a producer."""

INSTALLED_IN: Final = "fluence-system"
"""The namespace in which the chart and the manifests install everything."""

SIMULATED: Final = "sandbox.fluence.flux-framework.org/simulated"
"""The label of sandbox nodes that run no containers."""

# What the scheduler writes on its Lease.
SCHEDULER_NAME: Final = f"{PREFIX}/scheduler-name"
"""Identifies the scheduler: two leases with one name are two schedulers that bind the same pods."""
SETTINGS: Final = f"{PREFIX}/settings"
"""The deciding settings of its holder that differ from the defaults, as JSON."""

# What a user asks for in the client-side choice of a backend (`kubectl fluence`).
SELECT_POLICY: Final = f"{PREFIX}/select-policy"
SELECT_CANDIDATES: Final = f"{PREFIX}/select-candidates"
SELECT_CONSTRAINTS: Final = f"{PREFIX}/select-constraints"
SELECT_SHOTS: Final = f"{PREFIX}/select-shots"

# The result of that choice.
SELECT_RESULT: Final = f"{PREFIX}/select-result"
"""How the choice was made, as JSON. It is only for people."""
REQUIRE_BACKEND: Final = f"{PREFIX}/require-backend"
"""The pin: the scheduler places the pod with this backend or not at all."""
BACKEND: Final = f"{PREFIX}/backend"
"""Written with the bind: the backend of a pod; several are separated by commas."""

# What a user requests of external resources, on the pods.
DEVICE_PREFIX: Final = "fluxion.flux-framework.org/"
"""An extended resource of this prefix is a device of the graph: `fluxion.flux-framework.org/qpu: 1`."""
REQUIRE: Final = f"{PREFIX}/require-"
"""`require-vendor: ibm`: the device must have this attribute."""
AT_LEAST: Final = f"{PREFIX}/min-"
AT_MOST: Final = f"{PREFIX}/max-"
"""`min-qubits: 100`: an attribute, or a count of parts, that is a number."""
DEVICES: Final = f"{PREFIX}/devices"
"""`per-pod`: each pod of a gang has devices of its own; otherwise they share what the largest pod
requests."""
MISSING_VARIABLES: Final = f"{PREFIX}/missing-variables"
"""What to do with a pod whose containers lack the variables of their backend: `warn`, `hold` or `ignore`."""
ATTRIBUTE: Final = f"{PREFIX}/attr-"
"""Written with the bind: an attribute of the backend."""

# Where external resources are declared.
RESOURCES_CONFIGMAP: Final = "fluence-resources"
RESOURCES_KEY: Final = "resources.yaml"
RESOURCES_NAMESPACE: Final = "kube-system"

VIEW_GROUP: Final = "view.fluence.flux-framework.org"
"""The group of the view API, which the API server forwards to the scheduler."""
VIEW_ADDRESS: Final = f"{PREFIX}/view-address"
"""On the Lease: the address where the leader serves the view API. Other replicas forward connections to
it."""
