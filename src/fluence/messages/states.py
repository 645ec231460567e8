"""States: the words in which users are told where their work is, those of kubectl and of Slurm.

Pending         waits: for room, for its turn, or for members that still come
Reserved        waits, with a place in the plan: it starts no later than it was told
Starting        has its nodes: its volumes are being bound, or its containers started
Running
Succeeded, Failed, Cancelled
Unschedulable   does not start as it is: no empty cluster could hold it, or what it asks for is refused
"""

from __future__ import annotations

from fluence.queue.job import Phase

PENDING, RESERVED, STARTING, RUNNING = "Pending", "Reserved", "Starting", "Running"
SUCCEEDED, FAILED, CANCELLED, TERMINATING = "Succeeded", "Failed", "Cancelled", "Terminating"
UNSCHEDULABLE = "Unschedulable"

STATES = {
    Phase.GATHERING: PENDING,
    Phase.PENDING: PENDING,
    Phase.RESERVED: RESERVED,
    Phase.PREPARING: STARTING,
    Phase.BINDING: STARTING,
    Phase.RUNNING: RUNNING,
    Phase.DONE: SUCCEEDED,
    Phase.CANCELLED: CANCELLED,
    Phase.NEVER: UNSCHEDULABLE,
}
"""The word for each phase of a job in the queue."""
_WORDS = {phase.value: word for phase, word in STATES.items()}


def word(phase: str) -> str:
    """The same by the phase's own name; what is no phase of the queue has not come so far."""
    return _WORDS.get(phase, PENDING)
