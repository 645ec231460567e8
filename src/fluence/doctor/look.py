"""Look: read a cluster into facts, as far as one may. Nothing is written; the two pods are dry runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from fluence import names
from fluence.doctor.access_reviews import ask_rights, ask_webhook_rights
from fluence.doctor.facts import (
    ClusterFacts,
    EventReport,
    GangApiFacts,
    Installation,
    LeaseFacts,
    Replica,
)
from fluence.doctor.installations import is_scheduler, read_installation
from fluence.doctor.look_admission import look_at_admission
from fluence.doctor.reading import everywhere, may, refusal, within
from fluence.doctor.seen import Seen
from fluence.kube.client import Client
from fluence.kube.discovery import ServerVersion, resources_of, server_version, versions_of
from fluence.kube.errors import ApiError
from fluence.kube.gangs import ADAPTERS, GROUP, discover_coscheduling, probe
from fluence.kube.lease import LEASE_OBJECTS, RENEW, LeaseObject
from fluence.kube.listing import list_groups
from fluence.kube.resource import DEPLOYMENTS, OWNERS, PODS, Resource
from fluence.model.group import Group
from fluence.model.owner import Owner
from fluence.model.pod import Pod

_EVENTS_READ = 2000  # newest or not: they are hints
_WATCH_S = 1.0  # between two looks at a lease
_FEATURE = re.compile(r'^kubernetes_feature_enabled\{name="([^"]+)"[^}]*\} ([01])', re.MULTILINE)
_RAW_EVENTS: Resource[dict[str, object]] = Resource("", "v1", "events", "Event", dict[str, object])
_CONFIG_MAPS: Resource[dict[str, object]] = Resource("", "v1", "configmaps", "ConfigMap", dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked for."""

    scheduler_name: str = names.SCHEDULER
    namespace: str | None = None
    """Look at pods and groups of this one only."""
    account: str | None = None
    """Whose rights; None: the scheduler's."""
    waits_s: float = 3600.0


async def look(client: Client, question: Question) -> ClusterFacts:
    """All facts; what may not be read is left open and says so. Raises if there is no answer at all."""
    version = await may(server_version(client))
    gang_api = await _gang_api(client, question.namespace or client.access.namespace)
    gates, gates_unseen = await _gates(client)
    coscheduling = await may(discover_coscheduling(client))
    installations = await _installations(client)
    facts = ClusterFacts(
        now=datetime.now(UTC),
        scheduler_name=question.scheduler_name,
        waits_s=question.waits_s,
        server=version if isinstance(version, ServerVersion) else None,
        gang_api=gang_api,
        gates=gates,
        gates_unseen=gates_unseen,
        coscheduling=None if isinstance(coscheduling, ApiError) else coscheduling is not None,
        installations=installations,
        replicas=await _replicas(client, installations.items, question.scheduler_name),
        leases=await _leases(client, installations.items),
        reports=await _reports(client, question.scheduler_name),
    )
    facts = await _with_pods(client, facts, question.namespace)
    facts = replace(facts, leases=await _watched(client, facts), now=datetime.now(UTC))
    facts = replace(facts, admission=await look_at_admission(client, facts, question.namespace))
    return replace(
        facts,
        rights=await ask_rights(client, facts, question.account),
        webhook_rights=await ask_webhook_rights(client, facts),
    )


# -- the server ----------------------------------------------------------------------------------------------


async def _gang_api(client: Client, namespace: str) -> GangApiFacts:
    served = await may(versions_of(client, GROUP))
    if isinstance(served, ApiError):
        return GangApiFacts(unseen=refusal(f"the versions of {GROUP}", served))
    for adapter in ADAPTERS:
        if adapter.version not in served:
            continue
        resources = await may(resources_of(client, GROUP, adapter.version))
        if isinstance(resources, ApiError):
            return GangApiFacts(unseen=refusal(f"{GROUP}/{adapter.version}", resources))
        if adapter.resource.plural in resources:
            lost = await probe(client, adapter, namespace=namespace or "default")
            return GangApiFacts(adapter.version, tuple(served), None if lost is None else tuple(lost))
    return GangApiFacts("", tuple(served))


async def _gates(client: Client) -> tuple[dict[str, bool], str]:
    answer = await may(client.request("GET", "/metrics"))
    if isinstance(answer, ApiError):
        return {}, refusal("the feature gates (/metrics of kube-apiserver)", answer)
    found = {name: value == "1" for name, value in _FEATURE.findall(answer.decode("utf-8", "replace"))}
    return (found, "") if found else ({}, "/metrics of kube-apiserver names no feature gates")


# -- the scheduler -------------------------------------------------------------------------------------------


async def _installations(client: Client) -> Seen[Installation]:
    found = await everywhere(client, DEPLOYMENTS.raw(), "Deployments", {names.INSTALLED_IN})
    configs: dict[tuple[str, str], Mapping[str, str] | None] = {}
    ours = [each for each in found.items if is_scheduler(each)]
    for deployment in ours:  # settings first: reading them is pure
        meta: Any = deployment["metadata"]
        spec: Any = deployment["spec"]
        for volume in spec["template"]["spec"].get("volumes") or ():
            if "configMap" in volume:
                name = volume["configMap"].get("name", "")
                got = await may(client.get(_CONFIG_MAPS, name, namespace=meta["namespace"]))
                data: Any = None if isinstance(got, ApiError) else got.get("data") or {}
                configs[meta["namespace"], name] = data
    read = [read_installation(each, lambda space, name: configs.get((space, name))) for each in ours]
    return Seen(tuple(sorted(read, key=lambda each: each.key)), found.unseen)


async def _replicas(client: Client, found: tuple[Installation, ...], name: str) -> Seen[Replica]:
    items: list[Replica] = []
    unseen = ""
    for each in found:
        if each.scheduler_name != name or not each.selector:
            continue
        selector = ",".join(f"{key}={value}" for key, value in each.selector.items())
        got = await may(client.list(PODS.raw(), namespace=each.namespace, label_selector=selector))
        if isinstance(got, ApiError):
            unseen = refusal(f"the pods of the Deployment {each.key}", got)
            continue
        for pod in got.items or ():
            meta, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
            if status.get("phase") in ("Succeeded", "Failed"):  # type: ignore[attr-defined]
                continue
            images = [one.get("image", "") for one in spec.get("containers") or ()]  # type: ignore[attr-defined]
            items.append(Replica(f"{each.namespace}/{meta['name']}", images[0]))  # type: ignore[index]
    return Seen(tuple(items), unseen)


async def _leases(client: Client, found: tuple[Installation, ...]) -> Seen[LeaseFacts]:
    used = {each.lease_key for each in found if each.lease and each.lease_key}
    got = await may(client.list(LEASE_OBJECTS))
    if not isinstance(got, ApiError):
        ours = [each for each in got.items or () if _is_ours(each) or _key(each) in used]
        return Seen(tuple(map(_lease, ours)))
    items = []
    for key in sorted(used | {f"kube-system/{names.SCHEDULER}", f"{names.INSTALLED_IN}/{names.SCHEDULER}"}):
        namespace, _, name = key.partition("/")
        one = await may(client.get(LEASE_OBJECTS, name, namespace=namespace))
        if not isinstance(one, ApiError):
            items.append(_lease(one))
    return Seen(tuple(items), refusal("leases", got))


def _is_ours(lease: LeaseObject) -> bool:
    return bool({RENEW, names.SCHEDULER_NAME} & set(lease.metadata.annotations or {}))


def _key(lease: LeaseObject) -> str:
    return f"{lease.metadata.namespace}/{lease.metadata.name}"


def _lease(lease: LeaseObject) -> LeaseFacts:
    meta, spec = lease.metadata, lease.spec
    return LeaseFacts(
        meta.namespace,
        meta.name,
        holder=spec.holder_identity or "",
        scheduler_name=(meta.annotations or {}).get(names.SCHEDULER_NAME),
        acquired=_time(spec.acquire_time),
        renewed=_time(spec.renew_time),
        duration_s=spec.lease_duration_seconds or 15,
    )


async def _watched(client: Client, facts: ClusterFacts) -> Seen[LeaseFacts]:
    """A lease that looks run out is watched for its duration: clocks may differ, a renewal does not lie."""
    now = datetime.now(UTC)

    def is_odd(each: LeaseFacts) -> bool:
        age = each.age_s(now)
        return bool(each.holder) and (age is None or not -2 <= age <= each.duration_s)

    ours = [*facts.own_leases, *(each for each in facts.leases.items if each.scheduler_name is None)]
    odd = [each for each in ours if is_odd(each)]
    done = dict(zip(odd, await asyncio.gather(*(_watch(client, each) for each in odd)), strict=True))
    return replace(facts.leases, items=tuple(done.get(each, each) for each in facts.leases.items))


async def _watch(client: Client, lease: LeaseFacts) -> LeaseFacts:
    for _ in range(int(min(lease.duration_s, 60) / _WATCH_S)):
        await asyncio.sleep(_WATCH_S)
        got = await may(client.get(LEASE_OBJECTS, lease.name, namespace=lease.namespace))
        if isinstance(got, ApiError):
            return lease
        new = _lease(got)
        if (new.renewed, new.holder) != (lease.renewed, lease.holder):
            return replace(new, changed=bool(new.holder))
    return replace(lease, changed=False)


async def _reports(client: Client, name: str) -> Seen[EventReport]:
    params = {"fieldSelector": f"reportingComponent={name}", "limit": str(_EVENTS_READ)}
    answer = await may(client.request("GET", _RAW_EVENTS.path(), params=params))
    if isinstance(answer, ApiError):
        return Seen((), refusal("events", answer))
    found = []
    for each in _RAW_EVENTS.page_decoder.decode(answer).items or ():
        series: Any = each.get("series") or {}
        at = _time(series.get("lastObservedTime") or each.get("eventTime") or each.get("lastTimestamp"))
        instance = str(each.get("reportingInstance") or "")
        if at is not None and instance:
            found.append(EventReport(instance, at))
    return Seen(tuple(found))


def _time(text: object) -> datetime | None:
    try:
        at = datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None
    return at if at is None or at.tzinfo is not None else None


# -- pods and groups -----------------------------------------------------------------------------------------


async def _with_pods(client: Client, facts: ClusterFacts, namespace: str | None) -> ClusterFacts:
    if namespace is None:
        pods: Seen[Pod] = await everywhere(client, PODS, "pods", {client.access.namespace})
    else:
        pods = await within(client, PODS, "pods", namespace)
    # Where pods may be read in one namespace only, all else is read there, too.
    where = namespace or (client.access.namespace if pods.unseen else None)
    groups: Seen[Group] = Seen()
    has_groups, systems = True, frozenset[str]()
    listed = await may(list_groups(client, namespace=where))
    if isinstance(listed, ApiError):
        groups = Seen((), refusal("PodGroups", listed))
    else:
        has_groups, systems = listed.native, listed.systems
        groups = Seen(tuple(listed.groups))
    owners: list[Owner] = []
    follows: list[str] = []
    unseen = ""
    for resource in OWNERS:
        got = await may(client.list(resource, namespace=where))
        if isinstance(got, ApiError):
            unseen = refusal(resource.plural, got)
        else:
            owners += got.items or ()
            follows.append(resource.kind)
    return replace(
        facts,
        pods=pods,
        groups=groups,
        owners=Seen(tuple(owners), unseen),
        follows=tuple(follows),
        has_groups=has_groups,
        systems=systems,
    )
