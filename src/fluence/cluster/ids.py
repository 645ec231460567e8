"""Job numbers that are the same after a restart: they follow from a uid, not from a counter."""

from __future__ import annotations

from hashlib import blake2b


def job_number(uid: str) -> int:
    """A positive number of 62 bits for the uid of a pod, a group or an owner."""
    return int.from_bytes(blake2b(uid.encode(), digest_size=8).digest()) >> 2 or 1
