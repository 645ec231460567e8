"""Nodes and pods for tests, in one line each."""

from __future__ import annotations

import msgspec

from fluence.model.meta import Condition, ObjectMeta
from fluence.model.node import Node, NodeSpec, NodeStatus, Taint
from fluence.model.pod import Container, ContainerPort, Pod, PodSpec, PodStatus, ResourceRequirements

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"


def node(
    name: str,
    *,
    zone: str | None = None,
    labels: dict[str, str] | None = None,
    taints: list[Taint] | None = None,
    unschedulable: bool = False,
    ready: bool = True,
    offers: dict[str, str] | None = None,
    **resources: str,
) -> Node:
    own = {HOST: name, **({ZONE: zone} if zone else {}), **(labels or {})}
    has = {
        "cpu": "4",
        "memory": "8Gi",
        "pods": "10",
        **{k.replace("_", "-"): v for k, v in resources.items()},
        **(offers or {}),
    }
    if "gpu" in has:
        has["nvidia.com/gpu"] = has.pop("gpu")
    return Node(
        metadata=ObjectMeta(name=name, labels=own),
        spec=NodeSpec(unschedulable=unschedulable, taints=taints),
        status=NodeStatus(
            allocatable=has, conditions=[Condition(type="Ready", status="True" if ready else "False")]
        ),
    )


def pod(
    name: str,
    *,
    on: str | None = None,
    cpu: str = "1",
    gpu: str | None = None,
    port: int | None = None,
    labels: dict[str, str] | None = None,
    phase: str = "",
    **spec: object,
) -> Pod:
    requests = {"cpu": cpu, **({"nvidia.com/gpu": gpu} if gpu else {})}
    box = Container(
        name="c",
        resources=ResourceRequirements(requests=requests),
        ports=[ContainerPort(host_port=port)] if port else None,
    )
    return Pod(
        metadata=ObjectMeta(name=name, namespace="d", uid=f"uid-{name}", labels=labels),
        spec=PodSpec(node_name=on, containers=[box], **spec),  # type: ignore[arg-type]
        status=PodStatus(phase=phase),
    )


def bound(pod: Pod, node: str) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


def ended(pod: Pod, phase: str = "Succeeded") -> Pod:
    return msgspec.structs.replace(pod, status=PodStatus(phase=phase, conditions=pod.status.conditions))
