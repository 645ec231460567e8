"""Lease: at most one holder at a time, by a coordination.k8s.io/v1 Lease, and a new one within its duration.

The holder writes the lease every ``retry_s``. It considers itself the holder only until ``renew_s`` after it
*began* its last successful write, and publishes this in an annotation. A candidate takes the lease when it
has seen no change for ``renew_s + retry_s`` since it *received* the last one. A write is always seen after it
began, so the two never overlap, independent of wall clocks, hanging calls and sleeping processes:

    holder      ├─write begins──────── renew_s ─────────┤ not holder any more
    candidate          ├─sees the write─────── renew_s + retry_s ─────────┤ takes, and holds …
                ├───────────────────────── duration_s ──────────────────────────────────────┤ … before this

A candidate reads the lease about every ``retry_s / 2``, and at the moment when it expires. So the takeover is
complete within ``duration_s`` of the last renewal, if calls take less than the remaining time. A holder
without the annotation (another program) gets its whole leaseDurationSeconds.

Both use a monotonic clock. Check ``held`` before every write: a process that was stopped (SIGSTOP, a sleeping
machine) finds that it is no longer the holder as soon as it wakes up. ``held`` can be read from any thread;
everything else belongs to one loop, which can be another than that of the work: see ``live.threads``.

A lease is held without a gap, or lost: ``keep`` does not take a lease again that has expired or had another
holder meanwhile, even if it is free. Work that was begun under it is no longer protected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import random
import socket
import uuid
from collections.abc import Callable, Mapping

import msgspec

from fluence.clock import Clock
from fluence.kube.client import Client
from fluence.kube.errors import ONCE, ApiConflict, Forbidden, KubeError, Missing, Unauthorized
from fluence.kube.resource import LEASES, Resource
from fluence.units import rfc3339

logger = logging.getLogger(__name__)

# "IDENTITY SECONDS": the writer, and how long after the beginning of a write it is the holder.
RENEW = "fluence.flux-framework.org/renew-seconds"


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str
    namespace: str
    resource_version: str | None = None
    uid: str | None = None
    annotations: dict[str, str] | None = None


class LeaseObject(msgspec.Struct, frozen=True, rename="camel"):
    metadata: LeaseMeta
    spec: LeaseSpec = LeaseSpec()
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"


LEASE_OBJECTS: Resource[LeaseObject] = Resource(
    LEASES.group, LEASES.version, LEASES.plural, LEASES.kind, LeaseObject
)


class LeaseTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The three times of a lease, as kube-scheduler has them."""

    duration_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_s < self.duration_s - 2 * self.retry_s:
            raise ValueError("a lease needs retry_s < renew_s < duration_s - 2 * retry_s")


class LeaseCandidate:
    """The decisions, without I/O: the last seen record, our own state, and the next write."""

    def __init__(self, identity: str, *, terms: LeaseTerms, clock: Clock) -> None:
        self.identity = identity
        self.terms = terms
        self._clock = clock
        self._seen: tuple[str | None, LeaseSpec] | None = None  # version and content of the record last seen
        self._free_at = 0.0  # when the last seen record expires
        self._valid_until: float | None = None

    @property
    def held(self) -> bool:
        """Are we the holder at this instant?"""
        until = self._valid_until  # once: another thread may change it between two looks
        return until is not None and self._clock.monotonic() < until

    @property
    def valid_until(self) -> float | None:
        """On the monotonic clock; None while we hold nothing."""
        return self._valid_until

    def observe(self, lease: LeaseObject) -> None:
        """A record was read from the server. Only a change restarts the time of the other holder."""
        seen = (lease.metadata.resource_version, lease.spec)
        if seen != self._seen:
            self._seen = seen
            self._free_at = self._clock.monotonic() + self._patience(lease)
        if lease.spec.holder_identity != self.identity:
            self._valid_until = None

    def _patience(self, lease: LeaseObject) -> float:
        """How long to wait for the next write of this holder."""
        terms, spec = self.terms, lease.spec
        # Never less than ours: a shorter one may be a mistake.
        duration = max(float(spec.lease_duration_seconds or 0), terms.duration_s)
        identity, _, seconds = (lease.metadata.annotations or {}).get(RENEW, "").rpartition(" ")
        # NB another program that takes the lease may leave the annotation of the holder before it
        if identity != spec.holder_identity or not seconds.isdecimal():
            return duration
        return min(duration, max(float(seconds), terms.renew_s) + terms.retry_s)

    @property
    def holder(self) -> str:
        """The holder of the lease when it was last read."""
        return (self._seen[1].holder_identity if self._seen is not None else None) or ""

    def may_take(self) -> bool:
        """After ``observe``: whether the lease is free, ours, or expired."""
        if self._seen is None or self._seen[1].holder_identity in (None, "", self.identity):
            return True
        return self._clock.monotonic() >= self._free_at

    def pause(self, rng: random.Random) -> float:
        """How long a candidate waits before it reads the lease again: at most until it expires."""
        # Jitter, because candidates that started together would collide every time.
        pause = self.terms.retry_s * rng.uniform(0.4, 0.6)
        left = self._free_at - self._clock.monotonic()
        return min(pause, left) if left > 0 else pause

    def record(self, before: LeaseObject | None, meta: LeaseMeta) -> LeaseObject:
        """What to write to take or keep the lease."""
        now = _stamp(self._clock.now())
        spec = before.spec if before is not None else LeaseSpec()
        is_ours = spec.holder_identity == self.identity
        taken = (spec.lease_transitions or 0) + (0 if is_ours or before is None else 1)
        notes = {**(meta.annotations or {}), RENEW: f"{self.identity} {_whole(self.terms.renew_s)}"}
        return LeaseObject(
            msgspec.structs.replace(meta, annotations=notes),
            LeaseSpec(
                self.identity,
                _whole(self.terms.duration_s),
                spec.acquire_time if is_ours and spec.acquire_time else now,
                now,
                taken,
            ),
        )

    def wrote(self, lease: LeaseObject, *, began: float) -> None:
        """Our write, begun at ``began``, was accepted. It does not restore a lease that had expired
        before."""
        ran_out = self._valid_until is not None and not self.held
        self.observe(lease)
        self._valid_until = None if ran_out else began + self.terms.renew_s

    def lost(self) -> None:
        self._valid_until = None


class Elector:
    """Acquires a lease, keeps it, and releases it.

    await elector.stand()
    why = await elector.keep()  # in parallel to the work, which checks ``elector.held`` before it writes
    await elector.release()  # the next holder need not wait until it expires
    """

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        namespace: str,
        identity: str | None = None,
        annotations: Mapping[str, str] | None = None,
        terms: LeaseTerms | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.identity = identity or f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self.annotations = dict(annotations or {})  # written with every renewal
        self.terms = terms or LeaseTerms()
        self._client = client
        self._clock = clock or client.clock
        self._rng = rng or random.Random()
        self.candidate = LeaseCandidate(self.identity, terms=self.terms, clock=self._clock)
        self.last_error = ""

    @property
    def held(self) -> bool:
        return self.candidate.held

    async def close(self) -> None:
        """Close the client."""
        await self._client.close()

    async def stand(self) -> None:
        """Wait until the lease is ours."""
        while not await self._try(self.terms.renew_s):
            await asyncio.sleep(self.candidate.pause(self._rng))
        logger.info("lease %s/%s is held by %s", self.namespace, self.name, self.identity)

    async def keep(self, dead: Callable[[], str] = lambda: "") -> str:
        """Renew until the lease is lost, and return the reason. It is also given up if ``dead`` reports that
        the work under it has stopped, so that another replica can take it."""
        while True:
            await asyncio.sleep(self.terms.retry_s)
            while True:
                if why := dead():
                    self.candidate.lost()
                    return why
                until = self.candidate.valid_until
                if until is None:
                    return f"another had the lease: {self.last_error}"
                left = until - self._clock.monotonic()
                if left <= 0:
                    self.candidate.lost()
                    why = self.last_error or "the process stood still"
                    return f"the lease was not renewed within {self.terms.renew_s:g} s: {why}"
                # Half of the remaining time: if a connection hangs, there is time for another one.
                if await self._try(max(left / 2, min(left, self.terms.retry_s))):
                    break
                await asyncio.sleep(min(left, self.terms.retry_s * self._rng.uniform(0.2, 0.5)))

    async def _try(self, timeout_s: float) -> bool:
        """One attempt to take or renew, inside ``timeout_s``. True if we hold the lease now."""
        try:
            async with asyncio.timeout(timeout_s):
                held = await self._attempt(timeout_s)
                self.last_error = "" if held else self.last_error
                return held
        except TimeoutError:
            self.last_error = f"no answer within {timeout_s:.1f} s"
        except (Forbidden, Unauthorized) as error:
            self.last_error = str(error)
            logger.error("lease %s/%s: %s", self.namespace, self.name, error)
        except ApiConflict as error:
            self.last_error = str(error)  # another replica wrote it: read it again next time
        except KubeError as error:
            self.last_error = str(error)
            logger.warning("lease %s/%s: %s", self.namespace, self.name, error)
        return False

    async def _attempt(self, timeout_s: float) -> bool:
        was_ours = self.candidate.valid_until is not None
        lease = await self._read(timeout_s)
        if lease is not None:
            self.candidate.observe(lease)
        if was_ours and self.candidate.valid_until is None:
            holder = lease.spec.holder_identity if lease is not None else ""
            self.last_error = f"held by {holder}" if holder else "it was given back since"
            return False
        if not self.candidate.may_take():  # also if it vanished: its holder may not have noticed
            self.last_error = f"held by {self.candidate.holder}"
            return False
        began = self._clock.monotonic()
        meta = lease.metadata if lease is not None else LeaseMeta(self.name, self.namespace)
        notes = {**(meta.annotations or {}), **self.annotations}
        meta = msgspec.structs.replace(meta, annotations=notes or None)
        written = await self._write(self.candidate.record(lease, meta), timeout_s)
        self.candidate.wrote(written, began=began)
        return self.candidate.held

    async def _read(self, timeout_s: float) -> LeaseObject | None:
        path = LEASES.path(self.name, namespace=self.namespace)
        try:
            answer = await self._client.request("GET", path, timeout_s=timeout_s, retry=ONCE)
        except Missing:
            return None
        return msgspec.json.decode(answer, type=LeaseObject)

    async def _write(self, lease: LeaseObject, timeout_s: float) -> LeaseObject:
        """Create, or replace exactly the version that we read: the server refuses the slower of two
        writers."""
        is_new = lease.metadata.resource_version is None
        path = LEASES.path(None if is_new else self.name, namespace=self.namespace)
        answer = await self._client.request(
            "POST" if is_new else "PUT",
            path,
            body=msgspec.json.encode(lease),
            timeout_s=timeout_s,
            retry=ONCE,
        )
        return msgspec.json.decode(answer, type=LeaseObject)

    async def release(self) -> None:
        """Release the lease if it is still ours; if that fails, it expires."""
        left = (self.candidate.valid_until or 0.0) - self._clock.monotonic()
        self.candidate.lost()
        if left <= 0:
            return
        with contextlib.suppress(KubeError, TimeoutError):
            async with asyncio.timeout(left):
                lease = await self._read(left)
                if lease is None or lease.spec.holder_identity != self.identity:
                    return
                now = _stamp(self._clock.now())
                free = LeaseSpec("", 1, now, now, lease.spec.lease_transitions)
                await self._write(msgspec.structs.replace(lease, spec=free), left)


def _whole(seconds: float) -> int:
    """Rounded up: a lease's times are whole seconds."""
    return math.ceil(seconds)


def _stamp(now: float) -> str:
    return rfc3339(int(now * 1e6), "microseconds")
