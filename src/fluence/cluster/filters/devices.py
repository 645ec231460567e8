"""External resources: why a request for them cannot be satisfied, ever, now, or on some nodes.

A kubelet ignores a resource that its node does not advertise. If the node advertises it, the kubelet counts:
it fails pods that request more than the node offers. A node whose device plugin is gone offers 0.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence

from fluence.cluster.columns import NodeColumns
from fluence.graph.graph import Mask
from fluence.match import policy as policies
from fluence.model.external_resources import DeviceRequest, DeviceTerm
from fluence.model.reason import Code, Reason
from fluence.names import DEVICE_PREFIX
from fluence.placer.backends import BackendTable, DeviceNeed
from fluence.placer.gang_fit import GangFit
from fluence.placer.placer import GangRequest
from fluence.placer.profile import FreeView
from fluence.units import MAX_AMOUNT

_MAX_NAMES = 20  # types, keys, values and backends in a reason


def open_nodes(columns: NodeColumns, asked: Sequence[tuple[str, int]]) -> Iterator[tuple[Reason, Mask]]:
    """For each type that a pod requests, the nodes whose kubelet does not fail the pod."""
    for type_, amount in asked:
        resource = DEVICE_PREFIX + type_
        offers = columns.offers(resource)
        short = (offers >= 0) & (offers < min(amount, MAX_AMOUNT))
        if short.any():
            yield Reason.of(Code.NODE_OFFERS_TOO_LITTLE, resource=resource, wanted=amount), ~short


def refusal(table: BackendTable, request: DeviceRequest, needs: Sequence[DeviceNeed]) -> Reason | None:
    """Why the existing devices cannot satisfy a request, regardless of their use; computed once."""
    known = table.refusals
    if request not in known or request.per_pod:  # the answer depends on the amounts of each pod
        known[request] = _refusal(table, request, needs)
    return known[request]


def _refusal(table: BackendTable, request: DeviceRequest, needs: Sequence[DeviceNeed]) -> Reason | None:
    for type_, _ in request.needs:
        if not table.of_type(type_):
            return Reason.of(Code.DEVICE_TYPE_UNKNOWN, type=type_, types=table.types[:_MAX_NAMES])
    asked = [type_ for type_, _ in request.needs] or list(table.types)
    for term in request.terms:
        fault = _unknown(table, term, asked)
        if fault is not None:
            return fault
    for need in needs:
        if not need.suits:
            return _none_suits(table, need.type, request.terms)
    return _too_few(table, needs)


def busy(fit: GangFit, gang: GangRequest, view: FreeView, *, now: int, duration: int | None) -> list[Reason]:
    """The devices of a gang that are not free, and until when."""
    policy = policies.find(gang.policy) if isinstance(gang.policy, str) else gang.policy
    table = fit.backends
    short = table.lacking(gang.devices, view, policy)
    if not short and next(table.choices(gang.devices, view, policy), None) is None:
        short = list(gang.devices)  # each is free separately, but not all together
    found = {}
    for need in short:
        until = fit.devices_from([need], policy, now=now, duration=duration)
        found[need.type] = Reason.of(
            Code.DEVICE_BUSY,
            type=need.type,
            wanted=need.count,
            backends=_names(table.backends_of(need.suits)),
            until=until,
        )
    return list(found.values())


def _unknown(table: BackendTable, term: DeviceTerm, types: Sequence[str]) -> Reason | None:
    """A term that no device of these types can satisfy, or that applies to none of them."""
    entries = [entry for type_ in types for entry in table.of_type(type_)]
    known = dict.fromkeys(value for each in entries if (value := table.value(each, term.key)) is not None)
    if not known:
        keys = dict.fromkeys(key for each in entries for key in each.attributes)
        return Reason.of(Code.DEVICE_NO_ATTRIBUTE, key=term.key, keys=_names(keys))
    if any(table.meets(each, term) for each in entries):
        return None
    nearest = difflib.get_close_matches(term.value, known, 1, cutoff=0.5) if term.operator == "=" else []
    shown = tuple(nearest) or _names(sorted(known))
    return Reason.of(
        Code.DEVICE_VALUE_UNKNOWN, key=term.key, operator=term.operator, value=term.value[:60], nearest=shown
    )


def _none_suits(table: BackendTable, type_: str, terms: Sequence[DeviceTerm]) -> Reason:
    """The reason that no device of a type satisfies all terms, or that all such devices are offline."""
    concerned = [term for term in terms if table.concerns(term, type_)]
    right = [each for each in table.of_type(type_) if all(table.meets(each, term) for term in concerned)]
    offline = dict.fromkeys(each.key[0] for each in right if not each.online)
    if offline:
        return Reason.of(Code.DEVICE_OFFLINE, type=type_, backends=_names(offline))
    return Reason.of(Code.DEVICE_NONE_SUITS, type=type_, terms=tuple(map(str, concerned)))


def _too_few(table: BackendTable, needs: Sequence[DeviceNeed]) -> Reason | None:
    for need in needs:
        most = table.most_units(need.suits)
        if need.count > most:
            return Reason.of(Code.DEVICE_TOO_FEW, type=need.type, wanted=need.count, most=most)
    for type_ in dict.fromkeys(need.type for need in needs):
        of_type = [need for need in needs if need.type == type_]
        wanted = sum(need.count for need in of_type)
        there = table.units({number for need in of_type for number in need.suits})
        if wanted > there:
            return Reason.of(Code.DEVICE_TOO_FEW, type=type_, wanted=wanted, most=there)
    return None


def _names(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(given)[:_MAX_NAMES]
