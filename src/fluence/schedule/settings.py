"""Settings of the scheduler: every one with its default, its unit and what it is for.

Loaded by `fluence scheduler run` and `fluence explain`; docs/settings.md is made from it.

loaded = load(SchedulerSettings, file="fluence.yaml", environ=os.environ, flags=flags)
loaded.settings.match_policy, loaded.origins["match_policy"]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Annotated

import msgspec
from msgspec import Meta

from fluence import names
from fluence.cluster.layout import GPU, ZONE, GraphLayout
from fluence.errors import InvalidInput
from fluence.match import policy as match_policies
from fluence.queue import policy as queue_policies
from fluence.queue.rules import QueueRules
from fluence.schedule.enforcement import LimitMode
from fluence.store.urls import parse_url
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
            description="The kubeconfig file. Default: `KUBECONFIG`, `~/.kube/config`, the pod's own account."
        ),
    ] = None
    context: Annotated[
        str | None, Meta(description="The context in the kubeconfig. Without it: the current one.")
    ] = None
    qps: Annotated[
        _Rate | None,
        Meta(description="Calls a second to the API server; 0 is no limit. Default: 50, none on loopback."),
    ] = None
    in_flight: Annotated[int, Meta(ge=1, le=1024, description="How many binds are under way at a time.")] = 32

    resources: Annotated[
        str | None,
        Meta(description="A file that declares devices which belong to no node, in place of the ConfigMap."),
    ] = None
    resources_configmap: Annotated[
        str,
        Meta(
            description="The ConfigMap that declares such devices, as `NAMESPACE/NAME`; empty: none. It need "
            "not be there."
        ),
    ] = f"{names.RESOURCES_NAMESPACE}/{names.RESOURCES_CONFIGMAP}"

    # -- what is scheduled --
    scheduler_name: Annotated[
        str, Meta(min_length=1, description="The `schedulerName` by which pods opt in.")
    ] = names.SCHEDULER
    match_policy: Annotated[
        str,
        Meta(description="Which nodes are taken first. A gang may say its own in the annotation `policy`."),
    ] = "first"
    queue_policy: Annotated[
        str, Meta(description="Who may go before whom: `fcfs`, `easy`, `hybrid`, `conservative` and others.")
    ] = "easy"
    queue_depth: Annotated[
        _Count | None,
        Meta(description="How many waiting gangs are looked at in a cycle. Without it: all."),
    ] = None
    queue_window: Annotated[
        _Count | None,
        Meta(description="How far ahead reservations are made. Without it: any distance.", extra=_S),
    ] = None
    queue_resolution: Annotated[
        int, Meta(ge=1, description="The step of the plan's time; a coarser one plans faster.", extra=_MS)
    ] = 1
    queue_replan: Annotated[
        bool, Meta(description="Make the whole plan anew in every cycle instead of keeping it.")
    ] = False
    default_duration: Annotated[
        _Count | None,
        Meta(
            description="The walltime of gangs that say none and name no queue. Without it: no limit.",
            extra=_S,
        ),
    ] = None
    default_durations: Annotated[
        dict[str, str], Meta(description="The same by queue: `debug=30m,batch=12h`.")
    ] = msgspec.field(default_factory=dict)
    enforce_limits: Annotated[
        dict[str, str],
        Meta(
            description="What becomes of gangs that run past their limit, by queue: `debug=warn,batch=end`. "
            "`warn` tells them, `end` also ends them after `enforce-grace`. `-` stands for gangs that name "
            "no queue. Queues that are not named: nothing."
        ),
    ] = msgspec.field(default_factory=dict)
    enforce_grace: Annotated[int, Meta(ge=0, description="Between that warning and the end.", extra=_S)] = 60
    user_device_limits: Annotated[
        dict[str, int],
        Meta(
            description="How many units of a type of device the gangs of one namespace may have at a time in "
            "a queue: `batch/qpu=2`; `-` stands for gangs that name no queue. Users can write any name into "
            "the annotation `user`, so it does not count here."
        ),
    ] = msgspec.field(default_factory=dict)
    queue_device_limits: Annotated[
        dict[str, int], Meta(description="The same for all gangs of a queue together.")
    ] = msgspec.field(default_factory=dict)
    release_each: Annotated[
        bool,
        Meta(
            description="Free a pod's place when it ends. Otherwise a gang's places are free when all ended."
        ),
    ] = False
    flux_jobs: Annotated[
        bool,
        Meta(
            description="Keep a FluxJob for each workload that admission held back, where the server has "
            "FluxJobs; deleting one cancels its workload."
        ),
    ] = True
    group_settle: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="A group that names no size starts when nothing new has come to it for so long; 0: "
            "at once.",
            extra=_S,
        ),
    ] = 3.0
    gather: Annotated[
        int, Meta(ge=0, le=10_000, description="How long changes are gathered into one cycle.", extra=_MS)
    ] = 5
    backoff: Annotated[
        float,
        Meta(
            ge=0,
            description="The pause before a gang whose bind failed is tried again; it doubles.",
            extra=_S,
        ),
    ] = 1.0
    backoff_max: Annotated[float, Meta(ge=0, description="The longest such pause.", extra=_S)] = 10.0

    volume_timeout: Annotated[
        float,
        Meta(
            gt=0,
            description="How long claims may take to be bound on a chosen node before another one is tried.",
            extra=_S,
        ),
    ] = 600.0

    task_discovery_timeout: Annotated[
        float,
        Meta(
            gt=0,
            description="How long a producer may run without announcing its task before those who wait for "
            "it start without one.",
            extra=_S,
        ),
    ] = 300.0
    open_gates: Annotated[
        bool,
        Meta(
            description="Open the scheduling gates of pods that wait for a producer. It is the only reason "
            "why the scheduler may patch pods."
        ),
    ] = True

    # -- the graph --
    topology: Annotated[
        tuple[str, ...],
        Meta(description="Levels above the nodes as `TYPE=LABEL`, outermost first."),
    ] = (f"zone={ZONE}",)
    devices: Annotated[
        tuple[str, ...],
        Meta(description="Extended resources that are vertices of their own, as `RESOURCE=TYPE`."),
    ] = (f"{GPU}=gpu",)

    # -- history --
    history: Annotated[
        bool,
        Meta(description="Keep a history of all jobs in a database. Nothing waits for it."),
    ] = True
    database_url: Annotated[
        str | None,
        Meta(
            description="Where: `postgresql://user:password@host/name`, `sqlite:////path/of/history.db`, "
            "or a path. Default: `~/.local/state/fluence/history.db`.",
            extra={"also": "DATABASE_URL", "secret": True},
        ),
    ] = None
    history_age: Annotated[
        _Count | None,
        Meta(description="How long jobs that ended stay in it. Empty: for ever.", extra=_S),
    ] = 90 * 86_400
    history_size: Annotated[
        _Count | None,
        Meta(description="How large it may grow, in MiB: then the oldest jobs go. Empty: no bound."),
    ] = 1024

    # -- replicas --
    lease: Annotated[bool, Meta(description="Elect a leader. Without it, run one replica and no more.")] = (
        True
    )
    lease_name: Annotated[str, Meta(min_length=1, description="The Lease's name.")] = "fluence"
    lease_namespace: Annotated[str, Meta(min_length=1, description="The Lease's namespace.")] = "kube-system"
    lease_duration: Annotated[
        float, Meta(gt=0, description="When a silent leader is replaced.", extra=_S)
    ] = 15.0
    lease_renew: Annotated[
        float, Meta(gt=0, description="When a leader that cannot renew its lease stops.", extra=_S)
    ] = 10.0
    lease_retry: Annotated[
        float, Meta(gt=0, description="How often the lease is renewed, or asked for.", extra=_S)
    ] = 2.0

    # -- watching it --
    stuck_after: Annotated[
        float,
        Meta(
            gt=0,
            description="A core that has not come round for so long hangs: `/healthz` says so, and its lease "
            "is not renewed. A longer cycle is taken for a fault.",
            extra=_S,
        ),
    ] = 60.0
    health_address: Annotated[
        str, Meta(description="Where `/healthz` and `/readyz` answer, as `HOST:PORT`; empty: nowhere.")
    ] = "127.0.0.1:10451"
    metrics_address: Annotated[
        str,
        Meta(
            description="Where `/metrics` answers, as `HOST:PORT`; empty: beside the health if that is on "
            "loopback, else nowhere. Off loopback it speaks TLS, and asks for a token that may read it."
        ),
    ] = ""
    log_format: Annotated[
        str,
        Meta(
            description="`auto` is text on a terminal, else JSON.",
            extra={"choices": ("auto", "text", "json")},
        ),
    ] = "auto"
    log_level: Annotated[
        str,
        Meta(
            description="What is logged, and all that is graver.",
            extra={"choices": ("debug", "info", "warning", "error")},
        ),
    ] = "info"

    def __post_init__(self) -> None:
        """Rules that no type can express; each fault names its setting, so that its origin can be added."""
        _checked("match-policy", match_policies.find, self.match_policy)
        _checked("queue-policy", queue_policies.find, self.queue_policy)
        if not self.lease_retry < self.lease_renew < self.lease_duration - 2 * self.lease_retry:
            raise InvalidInput(
                "a lease needs lease-retry < lease-renew < lease-duration - 2 * lease-retry, "
                "such as 2, 10 and 15 seconds",
                where="lease-duration",
            )
        if self.backoff > self.backoff_max:
            raise InvalidInput(f"must be at least backoff, {self.backoff:g}", where="backoff-max")
        for key, text in (("health-address", self.health_address), ("metrics-address", self.metrics_address)):
            _address(key, text)
        at = self.metrics_at()
        if at is not None and at == self.address(self.health_address) and not self.on_loopback(at[0]):
            raise InvalidInput(
                "must not be that of the health, which kubelets ask without TLS: choose another port",
                where="metrics-address",
            )
        if self.database_url:
            parse_url(self.database_url)
        self.layout()
        self.rules()
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
        """Default walltimes and who enforces limits, by queue, in the queue's milliseconds; "" is for gangs
        that name none."""
        found: dict[str, QueueRules] = {}
        if self.default_duration is not None:
            found[""] = QueueRules(default_limit=self.default_duration * 1000)
        for queue, text in self.default_durations.items():
            limit = parse_duration(text)
            if not limit:
                raise InvalidInput(
                    f"{queue}={text[:40]!r} is not a valid duration: write seconds, or 2h30m",
                    where="default-durations",
                )
            found[queue] = QueueRules(default_limit=limit)
        for queue, limits in _by_queue("user-device-limits", self.user_device_limits).items():
            found[queue] = replace(found.get(queue, QueueRules()), max_devices_per_user=limits)
        for queue, limits in _by_queue("queue-device-limits", self.queue_device_limits).items():
            found[queue] = replace(found.get(queue, QueueRules()), max_devices=limits)
        for queue, mode in self.enforced_queues().items():
            if mode is LimitMode.END:
                rules = found.get(queue, QueueRules())
                found[queue] = replace(rules, enforced=True, grace=self.enforce_grace * 1000)
        return found

    def device_config_map(self) -> tuple[str, str] | None:
        """Namespace and name of the ConfigMap that declares devices; None: there is none to be watched."""
        if self.resources or not self.resources_configmap:
            return None
        namespace, slash, name = self.resources_configmap.partition("/")
        if not (namespace and slash and name) or "/" in name:
            raise InvalidInput(
                f"{self.resources_configmap!r} must be NAMESPACE/NAME", where="resources-configmap"
            )
        return namespace, name

    def enforced_queues(self) -> dict[str, LimitMode]:
        """What becomes of gangs that run past their limit, by queue; "" is for gangs that name none."""
        found = {}
        for queue, mode in self.enforce_limits.items():
            if mode not in tuple(LimitMode):
                raise InvalidInput(f"{queue}={mode[:40]!r} must be warn or end", where="enforce-limits")
            found["" if queue == "-" else queue] = LimitMode(mode)
        return found

    def address(self, text: str) -> tuple[str, int] | None:
        """Host and port; None: nowhere."""
        return _address("address", text)

    def metrics_at(self) -> tuple[str, int] | None:
        """Host and port of the metrics; None: nowhere."""
        if self.metrics_address:
            return self.address(self.metrics_address)
        beside = self.address(self.health_address)
        return beside if beside is not None and self.on_loopback(beside[0]) else None

    @staticmethod
    def on_loopback(host: str) -> bool:
        """Whether only this machine, or this pod, can reach it."""
        try:
            return host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            return False


def _checked(key: str, find: object, value: str) -> None:
    assert callable(find)
    try:
        find(value)
    except InvalidInput as error:
        raise InvalidInput(str(error), where=key) from None


def _by_queue(key: str, given: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """`QUEUE/TYPE` and a number each, by queue and type; "" is for gangs that name no queue."""
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
