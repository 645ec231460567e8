"""Requests of pods to a cluster graph, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from fluence.cluster.graph import ClusterGraph, PodSetRequest, Refused
from fluence.cluster.requests import PodGang
from fluence.model.pod import Pod
from fluence.model.reason import Reason


def compiled(cluster: ClusterGraph, pods: Sequence[Pod], **asked: Any) -> PodGang | Refused:
    """The pods of a group as the cluster places them."""
    return cluster.gang(PodSetRequest(tuple(pods), **asked))


def why(cluster: ClusterGraph, pods: Sequence[Pod], *, now: int = 0, **asked: Any) -> list[Reason]:
    """What stands in the way of the pods of a group."""
    gang = compiled(cluster, pods, **asked)
    return [gang.reason] if isinstance(gang, Refused) else cluster.why(gang, now=now)


def nominated(pod: Pod, node: str) -> Pod:
    """A pod that its scheduler is about to bind to a node: it counts there."""
    return structs.replace(pod, status=structs.replace(pod.status, nominated_node_name=node))
