"""Settings of the scheduler, each with its default, its unit and its description.

`fluence scheduler run` and `fluence explain` load them, and docs/settings.md is generated from them.

loaded = load(SchedulerSettings, file="fluence.yaml", environ=os.environ, flags=flags)
loaded.settings.match_policy, loaded.origins["match_policy"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Annotated

import msgspec
from msgspec import Meta

from fluence import names, plugin_loader
from fluence.cluster.layout import GPU, ZONE, GraphLayout
from fluence.database_url import parse_url
from fluence.errors import InvalidInput
from fluence.match import policy as match_policies
from fluence.queue import history
from fluence.queue import policy as queue_policies
from fluence.queue.rules import QueueRules, find_priority
from fluence.schedule.overruns import LimitMode
from fluence.schedule.preemption.rules import BudgetMode, PreemptionRules
from fluence.units import parse_duration

_S = {"unit": "seconds"}
_MS = {"unit": "ms"}
_Rate = Annotated[float, Meta(ge=0)]
_Count = Annotated[int, Meta(ge=1)]


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # -- the cluster --
    kubeconfig: Annotated[
        str | None,
        Meta(
            description="The kubeconfig file. Default: `KUBECONFIG`, `~/.kube/config`, the "
            "service account of the pod."
        ),
    ] = None
    context: Annotated[
        str | None, Meta(description="The context in the kubeconfig. Default: the current one.")
    ] = None
    qps: Annotated[
        _Rate | None,
        Meta(
            description="Calls to the API server per second; 0 means no limit. Default: 50; no "
            "limit on loopback."
        ),
    ] = None
    in_flight: Annotated[int, Meta(ge=1, le=1024, description="The number of binds at a time.")] = 32

    resources: Annotated[
        str | None,
        Meta(description="A file that declares external resources, instead of the ConfigMap."),
    ] = None
    resources_configmap: Annotated[
        str,
        Meta(
            description="The ConfigMap that declares external resources, as `NAMESPACE/NAME`; "
            "empty for none. "
            "It may be missing."
        ),
    ] = f"{names.RESOURCES_NAMESPACE}/{names.RESOURCES_CONFIGMAP}"

    users_policy: Annotated[
        str,
        Meta(
            max_length=253,
            description="The ValidatingAdmissionPolicy, and its binding, by which users cannot write the "
            "annotation `submitted-by`. While both exist, limits per user and shares count the user who "
            "submitted a job. Default: they count its namespace.",
        ),
    ] = ""

    pod_groups: Annotated[
        str,
        Meta(
            description="Whether admission gives gangs a PodGroup of Kubernetes, which the scheduler "
            "creates: `auto` where the API is beta or stable (1.37 and later), `always` also where it is "
            "alpha (1.36), `never`. It needs the admission handler `podgroups`.",
            extra={"choices": ("auto", "always", "never")},
        ),
    ] = "auto"

    # -- what is scheduled --
    scheduler_name: Annotated[
        str, Meta(min_length=1, description="The `schedulerName` of the pods to schedule.")
    ] = names.SCHEDULER
    scheduler_aliases: Annotated[
        tuple[str, ...],
        Meta(
            description="Other values of `schedulerName` that choose this scheduler, such as `fluxnetes`. No "
            "other scheduler may run under these names."
        ),
    ] = ()
    match_policy: Annotated[
        str,
        Meta(
            description="Which nodes are used first: a policy of Fluxion, or a plug-in, by its name or as "
            "`module:name`. A gang may set its own in the annotation `policy`."
        ),
    ] = "first"
    spread_services: Annotated[
        bool,
        Meta(
            description="Spread the pods of Deployments, StatefulSets and Services over nodes and "
            "zones where it is possible, as kube-scheduler does. Gangs, Jobs and pods with a time limit are "
            "placed by the match policy. The annotation `spread` overrides it."
        ),
    ] = True
    queue_policy: Annotated[
        str,
        Meta(
            description="The order of jobs and backfill: `fcfs`, `easy`, `hybrid`, `conservative` and "
            "others, or a plug-in."
        ),
    ] = "easy"
    queue_priority: Annotated[
        str,
        Meta(
            description="Which jobs are first in a queue: `urgency` (the priority of the pods), or a plug-in."
        ),
    ] = "urgency"
    queue_predictor: Annotated[
        str,
        Meta(
            description="How long jobs are expected to run: `history` (as the last ones that were alike), "
            "or a plug-in."
        ),
    ] = "history"
    queue_depth: Annotated[
        _Count | None,
        Meta(description="The number of waiting gangs to consider in a cycle. Default: all."),
    ] = None
    queue_window: Annotated[
        _Count | None,
        Meta(description="How far ahead reservations are made. Default: no bound.", extra=_S),
    ] = None
    queue_resolution: Annotated[
        int, Meta(ge=1, description="The time step of the plan; a larger one plans faster.", extra=_MS)
    ] = 1
    queue_replan: Annotated[
        bool, Meta(description="Make a new plan in every cycle instead of keeping the old one.")
    ] = False
    default_duration: Annotated[
        _Count | None,
        Meta(
            description="The time limit of gangs that have neither a limit nor a queue. Default: no limit.",
            extra=_S,
        ),
    ] = None
    default_durations: Annotated[
        dict[str, str], Meta(description="The same by queue: `debug=30m,batch=12h`.")
    ] = msgspec.field(default_factory=dict)
    max_durations: Annotated[
        dict[str, str],
        Meta(
            description="The longest time limit, by queue: `debug=1h,batch=2d`. Gangs that ask for more are "
            "refused. It is also the limit of gangs that have none, unless the queue has a default. `-` "
            "means gangs without a queue."
        ),
    ] = msgspec.field(default_factory=dict)
    queues: Annotated[
        tuple[str, ...],
        Meta(
            description="The queues that exist, beside those that other settings name: `debug,batch`. Gangs "
            "that name another one are refused. `*` allows any name. Default: any name, if no other setting "
            "names a queue."
        ),
    ] = ()
    enforce_limits: Annotated[
        dict[str, str],
        Meta(
            description="What happens to gangs that exceed their time limit, by queue: "
            "`debug=warn,batch=end`. "
            "`warn` writes an event; `end` also ends them after `enforce-grace`. `-` means gangs without a "
            "queue. Other queues: nothing."
        ),
    ] = msgspec.field(default_factory=dict)
    kueue_queues: Annotated[
        bool,
        Meta(
            description="Read Kueue's objects (ClusterQueue, Cohort, LocalQueue, ResourceFlavor, "
            "WorkloadPriorityClass) as queues, with its labels `queue-name` and `priority-class`. Nothing is "
            "written to them. They count for nothing while Kueue itself runs."
        ),
    ] = False
    enforce_grace: Annotated[
        int, Meta(ge=0, description="The time between the warning and the end.", extra=_S)
    ] = 60
    preemption: Annotated[
        bool,
        Meta(
            description="A gang that cannot start may end running pods of lower priority, as with "
            "kube-scheduler. The scheduler needs the right to delete pods only for this."
        ),
    ] = True
    non_preempting_queues: Annotated[
        tuple[str, ...],
        Meta(description="Queues whose gangs do not preempt; `-` means gangs without a queue."),
    ] = ()
    preemption_budgets: Annotated[
        str,
        Meta(
            description="What PodDisruptionBudgets mean to preemption: `hard` never violates them; `soft` "
            "violates them if there are no other victims, as kube-scheduler does.",
            extra={"choices": ("hard", "soft")},
        ),
    ] = "hard"
    user_device_limits: Annotated[
        dict[str, int],
        Meta(
            description="The number of units of an external resource that the gangs of one namespace, or "
            "with `users-policy` of one user, may use at a time in a queue: `batch/qpu=2`; `-` means gangs "
            "without a queue. The annotation `user` does not count here, because users may write any name."
        ),
    ] = msgspec.field(default_factory=dict)
    queue_device_limits: Annotated[
        dict[str, int], Meta(description="The same for all gangs of a queue together.")
    ] = msgspec.field(default_factory=dict)
    scale_up_after: Annotated[
        _Count | None,
        Meta(
            description="Pods whose promised start is later than this have the reason `Unschedulable`, so "
            "that autoscalers add nodes for them. Default: a promise is enough, however late.",
            extra=_S,
        ),
    ] = None
    release_each: Annotated[
        bool,
        Meta(
            description="Free the resources of each pod when it ends, not those of the gang when "
            "all have ended."
        ),
    ] = False
    flux_jobs: Annotated[
        bool,
        Meta(
            description="Create a FluxJob for each held workload, if the server has the CRD; "
            "deleting a FluxJob "
            "cancels its workload."
        ),
    ] = True
    group_settle: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="A group without a size starts when no new pod or owner has appeared for "
            "this long; 0 "
            "starts it at once.",
            extra=_S,
        ),
    ] = 3.0
    gather: Annotated[
        int, Meta(ge=0, le=10_000, description="How long changes are collected for one cycle.", extra=_MS)
    ] = 5
    backoff: Annotated[
        float,
        Meta(
            ge=0,
            description="The pause before a gang whose bind failed is tried again; it doubles each time.",
            extra=_S,
        ),
    ] = 1.0
    backoff_max: Annotated[float, Meta(ge=0, description="The longest pause.", extra=_S)] = 10.0

    volume_timeout: Annotated[
        float,
        Meta(
            gt=0,
            description="How long binding volumes on a chosen node may take before another node is tried.",
            extra=_S,
        ),
    ] = 600.0

    task_discovery_timeout: Annotated[
        float,
        Meta(
            gt=0,
            description="How long a producer may run without announcing its task before the "
            "waiting pods start "
            "without one.",
            extra=_S,
        ),
    ] = 300.0
    open_gates: Annotated[
        bool,
        Meta(
            description="Remove the scheduling gates of pods that wait for a producer. The "
            "scheduler needs the "
            "right to patch pods only for this and for FluxJobs."
        ),
    ] = True

    # -- the graph --
    topology: Annotated[
        tuple[str, ...],
        Meta(description="Levels above the nodes as `TYPE=LABEL`, outermost first."),
    ] = (f"zone={ZONE}",)
    devices: Annotated[
        tuple[str, ...],
        Meta(description="Extended resources that become vertices of the graph, as `RESOURCE=TYPE`."),
    ] = (f"{GPU}=gpu",)

    # -- history --
    history: Annotated[
        bool,
        Meta(description="Keep a history of all jobs in a database. The scheduler does not wait for it."),
    ] = True
    database_url: Annotated[
        str | None,
        Meta(
            description="The database: `postgresql://user:password@host/name`, "
            "`sqlite:////path/of/history.db`, "
            "or a path. Default: `~/.local/state/fluence/history.db`.",
            extra={"also": "DATABASE_URL", "secret": True},
        ),
    ] = None
    history_age: Annotated[
        _Count | None,
        Meta(description="How long ended jobs stay in the history. Empty: forever.", extra=_S),
    ] = 90 * 86_400
    history_size: Annotated[
        _Count | None,
        Meta(
            description="The largest size of the history in MiB; the oldest jobs are deleted. "
            "Empty: no bound."
        ),
    ] = 1024

    # -- replicas --
    lease: Annotated[bool, Meta(description="Elect a leader. If false, run only one replica.")] = True
    lease_name: Annotated[str, Meta(min_length=1, description="The name of the Lease.")] = "fluence"
    lease_namespace: Annotated[str, Meta(min_length=1, description="The namespace of the Lease.")] = (
        "kube-system"
    )
    lease_duration: Annotated[
        float, Meta(gt=0, description="How long after its last renewal a leader is replaced.", extra=_S)
    ] = 15.0
    lease_renew: Annotated[
        float, Meta(gt=0, description="How long a leader that cannot renew its lease continues.", extra=_S)
    ] = 10.0
    lease_retry: Annotated[
        float,
        Meta(gt=0, description="The time between two tries to renew or to acquire the lease.", extra=_S),
    ] = 2.0

    # -- watching it --
    stuck_after: Annotated[
        float,
        Meta(
            gt=0,
            description="If the main loop makes no progress for this long, it is considered "
            "stuck: `/healthz` "
            "fails, and the lease is not renewed. A cycle must not take longer.",
            extra=_S,
        ),
    ] = 60.0
    health_address: Annotated[
        str,
        Meta(description="The address of `/healthz` and `/readyz`, as `HOST:PORT`; empty to disable them."),
    ] = "127.0.0.1:10451"
    metrics_address: Annotated[
        str,
        Meta(
            description="The address of `/metrics`, as `HOST:PORT`; empty: the health address if that is on "
            "loopback, else disabled. Other addresses use TLS and need a token with the right to read it."
        ),
    ] = ""
    view_address: Annotated[
        str,
        Meta(
            description="The address of the view API (`kubectl fluence queue` and others), as `HOST:PORT`; "
            "empty to disable it. It uses TLS. Users are known by the API server or by a token."
        ),
    ] = ""
    traces: Annotated[
        str,
        Meta(
            description="The OpenTelemetry collector that gets a trace of each job (OTLP over HTTP), such as "
            "`http://collector.monitoring:4318`; empty to disable traces."
        ),
    ] = ""
    log_format: Annotated[
        str,
        Meta(
            description="`auto` means text on a terminal, else JSON.",
            extra={"choices": ("auto", "text", "json")},
        ),
    ] = "auto"
    log_level: Annotated[
        str,
        Meta(
            description="The lowest level that is logged.",
            extra={"choices": ("debug", "info", "warning", "error")},
        ),
    ] = "info"

    def __post_init__(self) -> None:
        """Check rules that types cannot express. Each error names its setting, so that its origin can be
        added."""
        _checked_plugin("match-policy", match_policies.find, self.match_policy)
        _checked_plugin("queue-policy", queue_policies.find, self.queue_policy)
        _checked_plugin("queue-priority", find_priority, self.queue_priority)
        _checked_plugin("queue-predictor", history.find, self.queue_predictor)
        if not self.lease_retry < self.lease_renew < self.lease_duration - 2 * self.lease_retry:
            raise InvalidInput(
                "a lease needs lease-retry < lease-renew < lease-duration - 2 * lease-retry, "
                "such as 2, 10 and 15 seconds",
                where="lease-duration",
            )
        if names.KUBE_SCHEDULER in self.scheduler_aliases:
            raise InvalidInput(
                f"{names.KUBE_SCHEDULER} cannot be an alias: set scheduler-name to it, and "
                f"{self.scheduler_name} as an alias",
                where="scheduler-aliases",
            )
        if self.backoff > self.backoff_max:
            raise InvalidInput(f"must be at least backoff, {self.backoff:g}", where="backoff-max")
        for key in ("health-address", "metrics-address", "view-address"):
            _address(key, getattr(self, key.replace("-", "_")))
        at = self.metrics_at()
        if at is not None and at == self.address(self.health_address) and not self.on_loopback(at[0]):
            raise InvalidInput(
                "must not be that of the health, which kubelets ask without TLS: choose another port",
                where="metrics-address",
            )
        view_at = self.address(self.view_address)
        if view_at is not None and view_at in (at, self.address(self.health_address)):
            raise InvalidInput("must not be that of the health or of the metrics", where="view-address")
        if self.traces and not self.traces.startswith(("http://", "https://")):
            raise InvalidInput("must be a URL such as http://collector:4318", where="traces")
        if self.database_url:
            parse_url(self.database_url)
        self.layout()
        self.rules()
        self.preemption_rules()
        self.device_config_map()

    def layout(self) -> GraphLayout:
        """How nodes become vertices."""
        levels = tuple(_pair("topology", each, "TYPE=LABEL") for each in self.topology)
        devices = dict(_pair("devices", each, "RESOURCE=TYPE") for each in self.devices)
        try:
            return GraphLayout(levels=levels, devices=devices)
        except InvalidInput as error:
            raise InvalidInput(str(error), where="topology") from None

    def rules(self) -> dict[str, QueueRules]:
        """Default limits and enforcement by queue, in milliseconds. "" is for gangs without a queue."""
        found: dict[str, QueueRules] = {}
        if self.default_duration is not None:
            found[""] = QueueRules(default_limit=self.default_duration * 1000)
        for queue, limit in _durations("default-durations", self.default_durations):
            found[queue] = QueueRules(default_limit=limit)
        for queue, limit in _durations("max-durations", self.max_durations):
            queue = "" if queue == "-" else queue
            rules = replace(found.get(queue, QueueRules()), max_limit=limit)
            if rules.default_limit is not None and rules.default_limit > limit:
                raise InvalidInput(
                    f"{queue or '-'}: the default duration exceeds it: lower the default",
                    where="max-durations",
                )
            found[queue] = rules
        for queue, limits in _by_queue("user-device-limits", self.user_device_limits).items():
            found[queue] = replace(found.get(queue, QueueRules()), max_devices_per_user=limits)
        for queue, limits in _by_queue("queue-device-limits", self.queue_device_limits).items():
            found[queue] = replace(found.get(queue, QueueRules()), max_devices=limits)
        for queue, mode in self.enforced_queues().items():
            if mode is LimitMode.END:
                rules = found.get(queue, QueueRules())
                found[queue] = replace(rules, enforced=True, grace=self.enforce_grace * 1000)
        return found

    def queue_names(self) -> frozenset[str] | None:
        """The queues that exist; None if any name is allowed."""
        limits = (*self.user_device_limits, *self.queue_device_limits)
        named = {*self.queues, *self.default_durations, *self.max_durations, *self.enforce_limits}
        named.update(self.non_preempting_queues)
        named.update(limit.rpartition("/")[0] for limit in limits)
        named -= {"-", ""}
        return frozenset(named) if named and "*" not in named else None

    def device_config_map(self) -> tuple[str, str] | None:
        """Namespace and name of the ConfigMap that declares external resources; None if none is watched."""
        if self.resources or not self.resources_configmap:
            return None
        namespace, slash, name = self.resources_configmap.partition("/")
        if not (namespace and slash and name) or "/" in name:
            raise InvalidInput(
                f"{self.resources_configmap!r} must be NAMESPACE/NAME", where="resources-configmap"
            )
        return namespace, name

    def enforced_queues(self) -> dict[str, LimitMode]:
        """What happens to gangs that exceed their limit, by queue. "" is for gangs without a queue."""
        found = {}
        for queue, mode in self.enforce_limits.items():
            if mode not in tuple(LimitMode):
                raise InvalidInput(f"{queue}={mode[:40]!r} must be warn or end", where="enforce-limits")
            found["" if queue == "-" else queue] = LimitMode(mode)
        return found

    def preemption_rules(self) -> PreemptionRules:
        """Which queues may preempt, and how PodDisruptionBudgets count."""
        queues = frozenset("" if queue == "-" else queue for queue in self.non_preempting_queues)
        return PreemptionRules(self.preemption, BudgetMode(self.preemption_budgets), queues)

    def address(self, text: str) -> tuple[str, int] | None:
        """Host and port; None if it is disabled."""
        return _address("address", text)

    def metrics_at(self) -> tuple[str, int] | None:
        """Host and port of the metrics; None if they are disabled."""
        if self.metrics_address:
            return self.address(self.metrics_address)
        beside = self.address(self.health_address)
        return beside if beside is not None and self.on_loopback(beside[0]) else None

    @staticmethod
    def on_loopback(host: str) -> bool:
        """Whether only this machine, or this pod, can reach the address."""
        try:
            return host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            return False


def _checked_plugin(key: str, find: Callable[[str], object], value: str) -> None:
    plugin_loader.allow(value)
    try:
        find(value)
    except InvalidInput as error:
        raise InvalidInput(str(error), where=key) from None


def _durations(key: str, given: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Milliseconds by queue."""
    for queue, text in given.items():
        limit = parse_duration(text)
        if not limit:
            raise InvalidInput(
                f"{queue}={text[:40]!r} is not a valid duration: write seconds, or 2h30m", where=key
            )
        yield queue, limit


def _by_queue(key: str, given: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Parse `QUEUE/TYPE` and a number each, by queue and type. "" is for gangs without a queue."""
    found: dict[str, dict[str, int]] = {}
    for name, most in given.items():
        queue, slash, type_ = name.rpartition("/")
        if not (queue and slash and type_) or most < 0:
            raise InvalidInput(f"{name}={most}: write QUEUE/TYPE=NUMBER, or -/TYPE=NUMBER", where=key)
        found.setdefault("" if queue == "-" else queue, {})[type_] = most
    return found


def _pair(key: str, text: str, form: str) -> tuple[str, str]:
    one, equals, other = text.partition("=")
    if not (one and equals and other):
        raise InvalidInput(f"{text!r} must be {form}", where=key)
    return one, other


def _address(key: str, text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise InvalidInput(f"{text!r} must be HOST:PORT, such as 0.0.0.0:10451", where=key)
    return host.strip("[]"), int(port)
