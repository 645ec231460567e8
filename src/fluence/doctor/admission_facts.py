"""Admission facts: what the doctor saw of those who change new pods, and of what they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from fluence.admission.certificates import EARLY
from fluence.doctor.seen import Seen
from fluence.model.meta import LabelSelector, selector_matches

EVERYWHERE = LabelSelector()
HELD = "-held"
"""How the scopes end whose rules hold new work back."""


@dataclass(frozen=True, slots=True)
class Space:
    """A namespace."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """A MutatingAdmissionPolicy of Fluence."""

    name: str
    scope: str = "pods"
    schedulers: frozenset[str] = frozenset()  # whose pods it looks at
    hands_over: bool = True
    selector: LabelSelector = EVERYWHERE


@dataclass(frozen=True, slots=True)
class Binding:
    """What puts a policy in force. ``parameters``: the HandOff that it reads, namespace/name; "": none."""

    name: str
    policy: str
    parameters: str = ""
    selector: LabelSelector = EVERYWHERE


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate that the API server trusts a webhook by."""

    begins: datetime
    ends: datetime

    def is_valid(self, now: datetime) -> bool:
        return self.begins <= now < self.ends

    def is_fresh(self, now: datetime) -> bool:
        """A webhook renews after two thirds of the time; in the last quarter it is late."""
        return self.is_valid(now) and (self.ends - now) * 4 >= self.ends - self.begins - EARLY


@dataclass(frozen=True, slots=True)
class Hook:
    """One webhook of a MutatingWebhookConfiguration of Fluence."""

    configuration: str
    scope: str = "pods"
    schedulers: frozenset[str] = frozenset()
    selector: LabelSelector = EVERYWHERE
    service: str = ""  # namespace/name; "": a url
    authorities: tuple[Authority, ...] = ()
    refuses: bool = False
    """Objects are refused where it does not answer: not as we make it."""


@dataclass(frozen=True, slots=True)
class Backing:
    """What is behind a webhook's Service. A setting is None where it cannot be seen."""

    service: str
    exists: bool = True
    ready: int = 0
    deployment: str = ""  # namespace/name; "": none was seen
    wanted: int = 1
    account: str = "default"
    scopes: tuple[str, ...] | None = None  # that it answers
    hands_over: bool | None = None
    parameters: str | None = None  # the HandOff that it reads

    @property
    def subject(self) -> str:
        """Its account, as the API server calls it."""
        return f"system:serviceaccount:{self.service.partition('/')[0]}:{self.account}"


@dataclass(frozen=True, slots=True)
class Table:
    """A HandOff: by name of the variable, the annotation that it carries."""

    key: str
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declared:
    """The devices that the scheduler knows: ``at`` a ConfigMap, namespace/name; "": there is none.

    ``variables`` are those that a container must get by it; None: they cannot be seen, or not be read.
    """

    at: str = ""
    has_devices: bool = False
    variables: Mapping[str, str] | None = None
    fault: str = ""
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """A pod that asks for a device, as a dry run. ``variables``: those that it got; None: not tried."""

    namespace: str = ""
    variables: tuple[str, ...] | None = None
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class AdmissionFacts:
    """Everything about new pods. What the server serves is None where that cannot be seen."""

    has_policies: bool | None = None
    has_hand_offs: bool | None = None
    has_flux_jobs: bool | None = None
    dropped: tuple[str, ...] = ()  # fields of a FluxJob's status that the server would not keep
    policies: Seen[Policy] = Seen()
    bindings: Seen[Binding] = Seen()
    hooks: Seen[Hook] = Seen()
    backings: Seen[Backing] = Seen()
    tables: Seen[Table] = Seen()
    spaces: Seen[Space] = Seen()
    declared: Declared = Declared()
    trial: Trial = Trial()

    def bound(self, policy: Policy) -> list[Binding]:
        return [each for each in self.bindings.items if each.policy == policy.name]

    def backing(self, hook: Hook) -> Backing | None:
        return next((each for each in self.backings.items if each.service == hook.service), None)

    def policies_for(self, scheduler: str) -> list[Policy]:
        return [each for each in self.policies.items if scheduler in each.schedulers]

    def hooks_for(self, scheduler: str) -> list[Hook]:
        return [each for each in self.hooks.items if scheduler in each.schedulers]

    def applies(self, each: Policy | Hook, space: Space) -> bool:
        """Whether its rules hold for new objects there; a policy needs a binding that does."""
        if not selector_matches(each.selector, space.labels):
            return False
        return isinstance(each, Hook) or any(
            selector_matches(one.selector, space.labels) for one in self.bound(each)
        )

    def hand_over(self, scheduler: str) -> list[Policy | Hook]:
        """Those that tell containers of this scheduler their backend; of a webhook, unless it says it does
        not."""
        found: list[Policy | Hook] = [
            each for each in self.policies_for(scheduler) if each.hands_over and each.scope.startswith("pods")
        ]
        for hook in self.hooks_for(scheduler):
            backing = self.backing(hook)
            says_no = backing is not None and backing.hands_over is False
            if hook.scope.startswith("pods") and not says_no:
                found.append(hook)
        return found

    def surely(self, each: Policy | Hook) -> bool:
        """Whether it is known that it hands over: of a webhook only what it is started with says that."""
        backing = None if isinstance(each, Policy) else self.backing(each)
        return isinstance(each, Policy) or (backing is not None and bool(backing.hands_over))

    @property
    def unseen(self) -> str:
        """What hides somebody who changes pods."""
        return self.policies.unseen or self.hooks.unseen or self.bindings.unseen
