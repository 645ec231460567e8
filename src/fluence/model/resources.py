"""What a pod asks of its node: the arithmetic of containers, sidecars, init containers, overhead and resize.

This is ``k8s.io/component-helpers/resource.PodRequests``, which Kubernetes counts as part of its API:

    effective = max( containers + sidecars,  max over init i of ( init_i + sidecars started before i ) )

per resource; pod-level requests replace cpu, memory and hugepages; overhead is added last. A bound pod costs
what the kubelet has allocated or is still using where that is more than the spec says (in-place resize,
KEP-1287).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fluence.model.pod import Container, ContainerStatus, Pod
from fluence.units import NANO, amount, parse_quantity

Nanos = dict[str, int]


def pod_requests(pod: Pod, *, bound: bool = False) -> dict[str, int]:
    """Milli-CPU, and whole units of every other resource, with ``pods: 1``. ``bound`` counts a running
    resize too."""
    totals = _nanos(pod, bound=bound)
    totals["pods"] = NANO
    return {name: amount(name, nanos) for name, nanos in totals.items() if nanos}


def add_into(total: dict[str, int], more: Mapping[str, int], *, sign: int = 1) -> None:
    """Add (or, with ``sign=-1``, take away) one set of amounts in place; zeros disappear."""
    for name, value in more.items():
        left = total.get(name, 0) + sign * value
        if left:
            total[name] = left
        else:
            total.pop(name, None)


def _nanos(pod: Pod, *, bound: bool) -> Nanos:
    statuses = _by_name(pod.status.container_statuses) if bound else {}
    init_statuses = _by_name(pod.status.init_container_statuses) if bound else {}
    infeasible = bound and _resize_is_infeasible(pod)

    totals: Nanos = {}
    for container in pod.spec.containers or ():
        _add(totals, _container(container, statuses.get(container.name), infeasible=infeasible))
    sidecars: Nanos = {}
    peak: Nanos = {}
    for container in pod.spec.init_containers or ():
        wants = _container(container, init_statuses.get(container.name), infeasible=infeasible)
        if container.restart_policy == "Always":
            _add(totals, wants)
            _add(sidecars, wants)
            _raise_to(peak, sidecars)
        else:
            _add(wants, sidecars)
            _raise_to(peak, wants)
    _raise_to(totals, peak)

    if pod.spec.resources is not None and pod.spec.resources.requests:
        for name, value in _parse(pod.spec.resources.requests).items():
            if _pod_level(name):
                totals[name] = value
        if bound:
            for status in (pod.status.allocated_resources, _requests(pod.status.resources)):
                _raise_to(totals, {name: value for name, value in _parse(status).items() if _pod_level(name)})
    _add(totals, _parse(pod.spec.overhead))
    return totals


def _container(container: Container, status: ContainerStatus | None, *, infeasible: bool) -> Nanos:
    asked = container.resources
    wants = _parse(asked.requests)
    # The API server copies a limit into a missing request; manifests that never passed it have not had that
    # done.
    for name, text in (asked.limits or {}).items():
        wants.setdefault(name, parse_quantity(text))
    if status is None:
        return wants
    actual = _parse(_requests(status.resources))
    _raise_to(actual, _parse(status.allocated_resources))
    if infeasible and actual:
        return actual  # a resize that the node refused for good: only what it runs with counts
    _raise_to(wants, actual)
    return wants


def _requests(resources: object) -> dict[str, str] | None:
    return getattr(resources, "requests", None)


def _resize_is_infeasible(pod: Pod) -> bool:
    pending = pod.condition("PodResizePending")
    return pending is not None and pending.reason == "Infeasible"


def _by_name(statuses: Iterable[ContainerStatus] | None) -> dict[str, ContainerStatus]:
    return {each.name: each for each in statuses or ()}


def _pod_level(name: str) -> bool:
    return name in ("cpu", "memory") or name.startswith("hugepages-")


def _parse(given: Mapping[str, str] | None) -> Nanos:
    return {name: parse_quantity(text) for name, text in given.items()} if given else {}


def _add(total: Nanos, more: Nanos) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _raise_to(total: Nanos, floor: Nanos) -> None:
    for name, value in floor.items():
        if value > total.get(name, 0):
            total[name] = value
