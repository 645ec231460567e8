"""Look: reads a cluster into facts, within the rights of the user, and asks for the rights of accounts.

Nothing is written; the two pods are dry runs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from fluence import names
from fluence.doctor.facts import (
    ClusterFacts,
    EventReport,
    GangApiFacts,
    Installation,
    LeaseFacts,
    Replica,
    RightAnswer,
    RightFacts,
    Seen,
)
from fluence.doctor.installations import is_scheduler, read_installation, trouble_of
from fluence.doctor.look_admission import everywhere, look_at_admission, may, refusal, within
from fluence.doctor.rights import Right, hand_off_rights, needed_rights, users_rights, webhook_rights
from fluence.kube.client import Client
from fluence.kube.errors import ONCE, ApiError, Forbidden
from fluence.kube.gangs import ADAPTERS, GROUP, discover_coscheduling, discover_operators, probe
from fluence.kube.lease import LEASE_OBJECTS, RENEW, LeaseObject
from fluence.kube.listing import list_groups
from fluence.kube.resource import (
    DEPLOYMENTS,
    HAND_OFFS,
    NODES,
    OWNERS,
    PODS,
    Resource,
    ServerVersion,
    resources_of,
    server_version,
    versions_of,
)
from fluence.model.grant import by_one_name
from fluence.model.operators import OPERATORS
from fluence.model.owner import Group, Owner
from fluence.model.pod import Pod
from fluence.schedule.build import read_published
from fluence.schedule.settings import SchedulerSettings

_EVENTS_READ = 2000  # in any order: they are only hints
_WATCH_S = 1.0  # between two reads of a lease
_FEATURE = re.compile(r'^kubernetes_feature_enabled\{name="([^"]+)"[^}]*\} ([01])', re.MULTILINE)
_RAW_EVENTS: Resource[dict[str, object]] = Resource("", "v1", "events", "Event", dict[str, object])
_CONFIG_MAPS: Resource[dict[str, object]] = Resource("", "v1", "configmaps", "ConfigMap", dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the user asks for."""

    scheduler_name: str = names.SCHEDULER
    namespace: str | None = None
    """Only read pods and groups of this namespace."""
    account: str | None = None
    """The account whose rights are checked; None: the scheduler's."""
    waits_s: float = 3600.0


async def look(client: Client, question: Question) -> ClusterFacts:
    """All facts. What may not be read is marked as such. Raises if the server does not answer at all."""
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
    facts = replace(facts, nodes=await everywhere(client, NODES, "nodes", set()))
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
    for deployment in ours:  # read the ConfigMaps first: parsing the settings is pure
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
            items.append(Replica(f"{each.namespace}/{meta['name']}", images[0], trouble_of(pod)))  # type: ignore[index]
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
    published = (meta.annotations or {}).get(names.SETTINGS)
    said = None if published is None else read_published(published).values
    return LeaseFacts(
        meta.namespace,
        meta.name,
        holder=spec.holder_identity or "",
        scheduler_name=(meta.annotations or {}).get(names.SCHEDULER_NAME),
        acquired=_time(spec.acquire_time),
        renewed=_time(spec.renew_time),
        duration_s=spec.lease_duration_seconds or 15,
        aliases=_aliases(said),
        users_policy=None if said is None else str(said.get("users_policy", "")),
    )


def _aliases(settings: Mapping[str, object] | None) -> tuple[str, ...]:
    found = (settings or {}).get("scheduler_aliases", ())
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


async def _watched(client: Client, facts: ClusterFacts) -> Seen[LeaseFacts]:
    """Watch leases that look expired for their duration: clocks may differ, but a renewal is certain."""
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
    aliases = {alias for lease in facts.own_leases for alias in lease.aliases}
    if aliases:
        named = (by_one_name(pod, facts.scheduler_name, aliases) for pod in pods.items)
        pods = replace(pods, items=tuple(named))
    # If pods may be read in one namespace only, everything else is read there too.
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
    operators = await may(discover_operators(client))
    custom = [] if isinstance(operators, ApiError) else operators
    for resource in (*OWNERS, *custom):
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


_REVIEWS = "/apis/authorization.k8s.io/v1/"
_WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_AT_ONCE = 16
_OPTIONAL = (
    "scheduling.k8s.io",
    "scheduling.x-k8s.io",
    "scheduling.volcano.sh",
    "scheduling.run.ai",
    *{each.group: None for each in OPERATORS},
    HAND_OFFS.group,
)
"""API groups that a server may lack. Rights to missing resources are not needed."""


async def ask_rights(client: Client, facts: ClusterFacts, account: str | None) -> RightFacts:
    """The rights of ``account``, or of the scheduler's account, or, if neither can be asked for, of the
    user."""
    installed = _installation(facts, account)
    wanted = account or (installed.subject if installed is not None else None)
    rights = await _served(client, _needed(facts, installed, wanted))
    unseen = ""
    if wanted is not None:
        found = await _of_account(client, rights, wanted)
        if account is not None or not found.unseen:
            return found
        unseen = f"{found.unseen}; one's own are shown"
    elif facts.installations.unseen:
        unseen = (
            f"the scheduler's account is not known, one's own rights are shown: {facts.installations.unseen}"
        )
    try:
        own = await _who(client)
        return RightFacts(own, is_own=True, answers=await _ask(client, rights, None), unseen=unseen)
    except ApiError as error:
        return RightFacts("", is_own=True, unseen=f"nobody's rights can be asked for: {error}")


async def ask_webhook_rights(client: Client, facts: ClusterFacts) -> tuple[RightFacts, ...]:
    """The rights of the accounts of the webhooks that change pods of this scheduler."""
    admission = facts.admission
    asked: dict[str, list[Right]] = {}
    for hook in admission.hooks_for(facts.scheduler_name):
        backing = admission.backing(hook)
        if backing is not None and backing.deployment and backing.parameters:
            namespace = backing.parameters.partition("/")[0]
            asked[backing.subject] = [*webhook_rights(configuration=hook.configuration, namespace=namespace)]
    return tuple([await _of_account(client, await _served(client, asked[who]), who) for who in sorted(asked)])


async def _of_account(client: Client, rights: list[Right], account: str) -> RightFacts:
    try:
        return RightFacts(account, answers=await _ask(client, rights, account))
    except ApiError:
        pass
    try:
        access = msgspec.structs.replace(client.access, impersonate=account)
        async with Client(access, retry=ONCE) as as_account:
            return RightFacts(account, answers=await _ask(as_account, rights, None))
    except ApiError:
        return RightFacts(
            account,
            unseen=f"the rights of {account} cannot be asked for: neither subjectaccessreviews nor "
            "impersonation is allowed",
        )


def _installation(facts: ClusterFacts, account: str | None) -> Installation | None:
    found = [each for each in facts.installations.items if account in (None, each.subject)]
    mine = [each for each in found if each.scheduler_name == facts.scheduler_name]
    if mine or account is not None:
        return next(iter(mine or found), None)
    return None


def _needed(facts: ClusterFacts, installed: Installation | None, account: str | None) -> tuple[Right, ...]:
    if installed is not None:
        # For an unknown lease, assume the chart's default: in the scheduler's own namespace.
        lease = installed.lease_key or f"{installed.namespace}/{names.SCHEDULER}"
        rights = needed_rights(
            lease=None if installed.lease is False else lease, metrics=bool(installed.opens_metrics)
        )
        if facts.users_policy:
            rights += users_rights(facts.users_policy)
        if not facts.admission.hand_over(facts.scheduler_name):
            return rights
        return (*rights, *hand_off_rights(lease.partition("/")[0]))
    users = users_rights(facts.users_policy) if facts.users_policy else ()
    own = next(iter(facts.own_leases), None)
    parts = (account or "").split(":")
    if own is not None:
        lease = own.key
    elif len(parts) == 4:
        lease = f"{parts[2]}/{names.SCHEDULER}"
    else:
        defaults = SchedulerSettings()
        lease = f"{defaults.lease_namespace}/{defaults.lease_name}"
    return (*needed_rights(lease=lease, metrics=False), *users)


async def _served(client: Client, rights: Sequence[Right]) -> list[Right]:
    """The rights without the resources that this server does not have."""
    there: dict[str, set[str]] = {}
    for group in _OPTIONAL:
        there[group] = set()
        try:
            for version in await versions_of(client, group):
                there[group].update(await resources_of(client, group, version))
        except ApiError:
            continue
    found = []
    for right in rights:
        if right.group in there:
            kept = tuple(each for each in right.resources if each in there[right.group])
            right = msgspec.structs.replace(right, resources=kept)
        if right.resources:
            found.append(right)
    return found


async def _ask(client: Client, rights: list[Right], subject: str | None) -> tuple[RightAnswer, ...]:
    turn = asyncio.Semaphore(_AT_ONCE)

    async def may(attributes: Mapping[str, str]) -> bool:
        async with turn:
            return await _review(client, attributes, subject)

    async def answer(right: Right) -> RightAnswer:
        asked = right.reviews()
        allowed = await asyncio.gather(*(may(attributes) for _, attributes in asked))
        lacks = [verb for (verb, _), yes in zip(asked, allowed, strict=True) if not yes]
        return RightAnswer(right, tuple(dict.fromkeys(lacks)))

    return tuple(await asyncio.gather(*map(answer, rights)))


async def _review(client: Client, attributes: Mapping[str, str], subject: str | None) -> bool:
    spec: dict[str, Any] = {"resourceAttributes": attributes}
    kind = "SelfSubjectAccessReview"
    if subject is not None:
        kind = "SubjectAccessReview"
        spec |= {"user": subject, "groups": _groups(subject)}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    answer = await client.request("POST", f"{_REVIEWS}{kind.lower()}s", body=msgspec.json.encode(body))
    return bool(msgspec.json.decode(answer).get("status", {}).get("allowed"))


def _groups(subject: str) -> list[str]:
    """The groups of an account, which a review must be given explicitly."""
    parts = subject.split(":")
    more = ["system:serviceaccounts", f"system:serviceaccounts:{parts[2]}"] if len(parts) == 4 else []
    return [*more, "system:authenticated"]


async def _who(client: Client) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = await client.request("POST", _WHO, body=msgspec.json.encode(body))
    except Forbidden:
        return "whoever asks"
    status = msgspec.json.decode(answer).get("status", {})
    return str(status.get("userInfo", {}).get("username") or "whoever asks")
