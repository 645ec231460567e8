"""Pods, groups and owners for tests, in few words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from fluence import names
from fluence.model.meta import Condition, ObjectMeta, OwnerReference
from fluence.model.owner import OWNERS, Group, Job, Owner
from fluence.model.pod import (
    Container,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    SchedulingGate,
    SchedulingGroup,
    WorkloadReference,
)

T0 = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)
V136, V137 = "scheduling.k8s.io/v1alpha2", "scheduling.k8s.io/v1beta1"
GROUP, SIZE = names.GROUP_LABEL, names.GROUP_SIZE


def pod(
    name: str,
    *,
    namespace: str = "default",
    scheduler: str = "fluence",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    field: str | None = None,
    workload: tuple[str, str, str] | None = None,
    owner: Owner | None = None,
    node: str | None = None,
    phase: str = "Pending",
    gated: bool = False,
    deleting: bool = False,
    uid: str = "",
    age: int = 0,
    bound: int | None = None,
    cpu: str = "1",
    **spec: Any,
) -> Pod:
    refs = [reference(owner)] if owner is not None else None
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=uid or f"uid-{namespace}-{name}",
            labels=labels,
            annotations=annotations,
            owner_references=refs,
            creation_timestamp=T0 - timedelta(seconds=age),
            deletion_timestamp=T0 if deleting else None,
        ),
        spec=PodSpec(
            scheduler_name=scheduler,
            node_name=node,
            scheduling_group=SchedulingGroup(pod_group_name=field) if field else None,
            workload_ref=(
                WorkloadReference(name=workload[0], pod_group=workload[1], pod_group_replica_key=workload[2])
                if workload
                else None
            ),
            scheduling_gates=spec.pop("scheduling_gates", [SchedulingGate(name="hold")] if gated else None),
            containers=[Container(name="c", resources=ResourceRequirements(requests={"cpu": cpu}))],
            **spec,
        ),
        status=PodStatus(phase=phase, conditions=None if bound is None else [_scheduled(bound)]),
    )


def _scheduled(age: int) -> Condition:
    at = (T0 - timedelta(seconds=age)).isoformat()
    return Condition(type="PodScheduled", status="True", last_transition_time=at)


def group(name: str, min_count: int | None, *, source: str = V136, **more: Any) -> Group:
    more.setdefault("uid", f"uid-group-{name}")
    more.setdefault("namespace", "default")
    return Group(name=name, min_count=min_count, source=source, **more)


def owner(
    name: str,
    *,
    kind: type[Owner] = Job,
    namespace: str = "default",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    parent: Owner | None = None,
    succeeded: int | None = None,
    **spec: Any,
) -> Owner:
    return kind(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=f"uid-{kind.kind}-{namespace}-{name}",
            labels=labels,
            annotations=annotations,
            owner_references=[reference(parent)] if parent is not None else None,
        ),
        spec=type(kind().spec)(**spec),
        status=type(kind().status)(succeeded=succeeded),
    )


def reference(owner: Owner) -> OwnerReference:
    version = next(version for (version, kind) in OWNERS if kind == owner.kind)
    return OwnerReference(
        api_version=version,
        kind=owner.kind,
        name=owner.metadata.name,
        uid=owner.metadata.uid,
        controller=True,
    )


def ranks(count: int, name: str = "rank", **more: Any) -> list[Pod]:
    return [pod(f"{name}-{i}", **more) for i in range(count)]
