"""Resources: the types of the answers of the view API. The OpenAPI document is generated from them.

Times are RFC 3339 in UTC, limits are seconds, amounts are Kubernetes quantities. A row with ``hidden`` is
work in a namespace whose pods the reader may not list: only its place is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from fluence.names import VIEW_GROUP

VERSION: Final = "v1"
API_VERSION: Final = f"{VIEW_GROUP}/{VERSION}"


class _Row(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


class Why(_Row, frozen=True):
    """One reason: a stable code, and the text for people."""

    code: str
    message: str


class Window(_Row, frozen=True, rename={"start": "from", "end": "until"}):
    """When a gang has its nodes. Without an end, the end is unknown."""

    start: str
    end: str | None = None


class Array(_Row, frozen=True):
    """The progress of the pods of a Job that start one by one. ``size`` is the number of completions;
    ``failed`` counts pods, including replaced ones."""

    size: int
    waiting: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0


class Job(_Row, frozen=True):
    """A gang, an array, or a part of one that is placed by itself: in the queue, starting or running. The
    times and the place of an array are those of the task that starts next."""

    state: str
    position: int | None = None
    namespace: str = ""
    name: str = ""
    kind: str = ""
    gang: str = ""
    user: str = ""
    queue: str = ""
    priority: int | None = None
    pods: int | None = None
    minimum: int | None = None
    array: Array | None = None
    requests: dict[str, str] = {}
    nodes: list[str] = []
    devices: list[str] = []
    submitted: str | None = None
    started: str | None = None
    limit: int | None = None
    no_later_than: str | None = None
    expected: str | None = None
    firm: bool = False
    planned: Window | None = None
    reasons: list[Why] = []
    hidden: bool = False


class Step(_Row, frozen=True):
    """One step in the history of a job."""

    at: str
    state: str
    message: str


class PodPlace(_Row, frozen=True):
    """A pod of a job and its current or planned node."""

    name: str
    node: str = ""


class Broken(_Row, frozen=True):
    """A broken promise."""

    at: str
    promised: str
    cause: Why


class JobDetail(_Row, frozen=True):
    """All that is known of one job."""

    job: Job
    story: list[Step] = []
    members: list[PodPlace] = []
    broken: list[Broken] = []
    ahead: int | None = None  # jobs ahead of it in the queue
    promised: str | None = None  # its first promised start


class Group(_Row, frozen=True):
    """Pods that start together, as their user knows them."""

    namespace: str = ""
    name: str = ""
    kind: str = ""
    state: str = ""
    size: int | None = None
    minimum: int | None = None
    waiting: int = 0
    placed: int = 0
    done: int = 0  # of an array
    user: str = ""
    queue: str = ""
    hidden: bool = False


class Amount(_Row, frozen=True):
    """The amount of a resource on a node: total, taken and free."""

    resource: str
    size: str
    taken: str
    free: str


class Use(_Row, frozen=True):
    """A user of a node or a device: a gang or an owner. Work of other namespaces is counted together."""

    namespace: str = ""
    name: str = ""
    pods: int = 0
    amount: int | None = None
    until: str | None = None
    hidden: bool = False


class Node(_Row, frozen=True):
    """A node, its free capacity, and the users of the rest."""

    name: str
    state: str
    amounts: list[Amount] = []
    pods: int = 0
    by: list[Use] = []
    next: str | None = None  # when the next planned gang starts there
    labels: dict[str, str] = {}


class Device(_Row, frozen=True):
    """An external resource."""

    name: str
    type: str
    size: int
    taken: int = 0
    online: bool = True
    by: list[Use] = []


class PlanEntry(_Row, frozen=True, rename={"start": "from", "end": "until"}):
    """An entry of the plan: which job has which nodes, from when until when."""

    state: str
    start: str
    end: str | None = None
    nodes: list[str] = []
    devices: list[str] = []
    namespace: str = ""
    name: str = ""
    pods: int | None = None
    array: Array | None = None
    hidden: bool = False


class Promise(_Row, frozen=True):
    """A promised start, and whether it was kept."""

    namespace: str
    name: str
    state: str
    no_later_than: str | None = None
    expected: str | None = None
    firm: bool = False
    first: str | None = None  # the first promise
    broken: list[Broken] = []


class PromiseTotals(_Row, frozen=True):
    """How many promises were kept and broken since this scheduler started."""

    kept: int = 0
    broken: dict[str, int] = {}


class Decision(_Row, frozen=True):
    """A decision of the scheduler."""

    number: int
    at: str
    decision: str
    namespace: str = ""
    name: str = ""
    pods: int = 0
    nodes: list[str] = []
    hidden: bool = False


class PastJob(_Row, frozen=True):
    """A run of a job in the history. ``id`` is the annotation jobid, ``nodes`` is in hostlist form. ``lost``:
    it has not ended, and the scheduler has written nothing about it since ``seen``."""

    id: str  # a number of 63 bits, which JavaScript cannot represent exactly
    run: int
    state: str
    namespace: str
    name: str
    submitted: str
    kind: str = ""
    gang: str = ""
    user: str = ""
    queue: str = ""
    priority: int = 0
    pods: int = 0
    minimum: int = 0
    requests: dict[str, str] = {}
    nodes: str = ""
    devices: list[str] = []
    limit: int | None = None
    no_later_than: str | None = None
    expected: str | None = None
    started: str | None = None
    ended: str | None = None
    seen: str | None = None
    lost: bool = False
    broken: int = 0
    reason: str = ""
    codes: list[str] = []
    scheduler: str = ""
    cluster: str = ""


class Usage(_Row, frozen=True):
    """A sum over the history. ``wait`` is the mean of the jobs that started; ``ran``, ``cpu`` and ``gpu`` are
    seconds, core seconds and GPU seconds."""

    user: str | None = None
    queue: str | None = None
    namespace: str | None = None
    state: str | None = None
    jobs: int = 0
    started: int = 0
    completed: int = 0
    failed: int = 0
    timeout: int = 0
    cancelled: int = 0
    wait: float | None = None
    ran: float = 0.0
    cpu: float = 0.0
    gpu: float = 0.0


class Gap(_Row, frozen=True):
    """When the history could not be written, and how many entries are missing."""

    began: str
    ended: str
    lost: int


class Setting(_Row, frozen=True):
    """A deciding setting and its value."""

    name: str
    value: Any = None


class ListMeta(_Row, frozen=True, rename={"continue_": "continue", "resource_version": "resourceVersion"}):
    """``resourceVersion`` is the number of the snapshot; ``continue`` leads to its next page. The history has
    no snapshots: its ``resourceVersion`` is 0, and its pages go back in time."""

    resource_version: str
    taken: str
    scheduler: str
    continue_: str = ""
    remaining_item_count: int = msgspec.field(default=0, name="remainingItemCount")
    unchecked_namespaces: int = msgspec.field(default=0, name="uncheckedNamespaces")


# The names of these fields are those of `whatif -o json`. All times are seconds.


class AskedReason(msgspec.Struct, frozen=True):
    """What a job would wait for."""

    kind: str
    codes: list[str]
    text: str


class AskedChange(msgspec.Struct, frozen=True):
    """A change of a job that would start it sooner."""

    what: str
    start: float
    to: int | msgspec.UnsetType | None = msgspec.UNSET
    to_s: float | msgspec.UnsetType = msgspec.UNSET


class AskedEnd(msgspec.Struct, frozen=True):
    """Running work that would end for a job. Of work that the reader may not see, nothing but the time is
    said."""

    job: str
    pods: int
    at: float
    lost_s: float
    cost_cluster_s: float


class AskedPreemption(msgspec.Struct, frozen=True):
    """What preemption would do for a job, or why it does nothing."""

    codes: list[str]
    text: str
    ends: list[AskedEnd]


class AskedJob(msgspec.Struct, frozen=True):
    """What would become of one job of the manifests."""

    job: str
    state: str
    starts_now: bool
    never: bool
    start_no_later_than: float | None
    expected_start: float | None
    reason: AskedReason
    waits_for: list[str]
    changes: list[AskedChange]
    preemption: AskedPreemption
    warnings: list[str]


class AskedDelay(msgspec.Struct, frozen=True):
    """A job that would start later."""

    job: str
    before: float
    after: float


class Asked(msgspec.Struct, frozen=True):
    """The answer for programs."""

    now: float
    jobs: list[AskedJob]
    delays: list[AskedDelay]


class WhatIf(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What would become of manifests that are not submitted. ``lines`` and ``wide`` have the answer in words,
    with the first jobs that would be delayed and with all."""

    kind: str = "WhatIf"
    metadata: ListMeta
    starts_now: bool
    never: bool
    answer: Asked
    lines: list[str]
    wide: list[str]
    notes: list[str] = []
    api_version: str = API_VERSION


class Manifests(msgspec.Struct, frozen=True):
    """The documents of one file."""

    documents: list[Any]
    source: str = "manifest"


class Question(msgspec.Struct, frozen=True):
    """Manifests to ask about. Objects that name no namespace are in that of the request."""

    files: list[Manifests]


class ItemList(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of a resource. ``totals`` is for promises, ``gaps`` for the history. If columns were selected,
    ``rows`` has their values, and there are no items."""

    kind: str
    metadata: ListMeta
    items: Sequence[msgspec.Struct] | msgspec.Raw
    totals: PromiseTotals | msgspec.UnsetType = msgspec.UNSET
    gaps: list[Gap] | msgspec.UnsetType = msgspec.UNSET
    columns: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    rows: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    api_version: str = API_VERSION
