"""Access reviews: may an account do what the scheduler does? Asked of the API server, which decides.

another's rights    SubjectAccessReview; where that is not allowed, its own question by impersonation
one's own           SelfSubjectAccessReview, which everybody may ask
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fluence import names
from fluence.doctor.facts import ClusterFacts, Installation, RightAnswer, RightFacts
from fluence.doctor.rights import Right, hand_off_rights, needed_rights, webhook_rights
from fluence.kube.client import Client
from fluence.kube.discovery import resources_of, versions_of
from fluence.kube.errors import ApiError, Forbidden
from fluence.kube.resource import HAND_OFFS
from fluence.kube.retry import ONCE
from fluence.schedule.settings import SchedulerSettings

_REVIEWS = "/apis/authorization.k8s.io/v1/"
_WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_AT_ONCE = 16
_OPTIONAL = (
    "scheduling.k8s.io",
    "scheduling.x-k8s.io",
    "scheduling.volcano.sh",
    "scheduling.run.ai",
    HAND_OFFS.group,
)
"""Groups that a server may lack: no right is needed to what is not there."""


async def ask_rights(client: Client, facts: ClusterFacts, account: str | None) -> RightFacts:
    """The rights of ``account``, of the scheduler's own, or, if neither can be asked for, those of whoever
    asks."""
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
        # An unknown lease is asked for by the chart's default: in the scheduler's own namespace.
        lease = installed.lease_key or f"{installed.namespace}/{names.SCHEDULER}"
        rights = needed_rights(
            lease=None if installed.lease is False else lease, metrics=bool(installed.opens_metrics)
        )
        if not facts.admission.hand_over(facts.scheduler_name):
            return rights
        return (*rights, *hand_off_rights(lease.partition("/")[0]))
    own = next(iter(facts.own_leases), None)
    parts = (account or "").split(":")
    if own is not None:
        lease = own.key
    elif len(parts) == 4:
        lease = f"{parts[2]}/{names.SCHEDULER}"
    else:
        defaults = SchedulerSettings()
        lease = f"{defaults.lease_namespace}/{defaults.lease_name}"
    return needed_rights(lease=lease, metrics=False)


async def _served(client: Client, rights: Sequence[Right]) -> list[Right]:
    """Without the resources that this server does not have."""
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
    """The groups that an account is in; a review has none unless it is told."""
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
