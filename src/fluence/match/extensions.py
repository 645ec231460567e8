"""What Fluence can do beyond Fluxion; all of it is off unless asked for, and off it changes no answer.

quantities
    Types whose vertices are pools of which any part can be taken: 500 of a memory of 4000. Fluxion gives a
    vertex whole or not at all. Several jobs share a pool as long as what they take fits.
constrained
    The types that a jobspec's constraints apply to. In Fluxion: nodes and storage nodes.
siblings
    Several requests for one type at the top of a jobspec, as the pods of a mixed gang make them. They are
    placed one after the other, all or none, and may share vertices that none of them wants for itself.
shared
    Record what a job asks to share (a quantum computer beside its own cores). Fluxion matches it, then drops
    it from R and lets others have it for themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

FLUXION_CONSTRAINED = frozenset(("node", "storage_node"))


@dataclass(frozen=True, slots=True)
class Extensions:
    """Which of them are on."""

    quantities: frozenset[str] = frozenset()
    constrained: frozenset[str] = FLUXION_CONSTRAINED
    siblings: bool = False
    shared: bool = False

    def __bool__(self) -> bool:
        return self != NONE


NONE = Extensions()
