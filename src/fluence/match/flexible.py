"""Requests with alternatives: sibling slots in any mix, and `xor_slot`s, exactly one of them.

Sibling slots at one level are alternatives: dynamic programming over the amounts left of each type finds the
mix with the most slots, so their types should be leaves. `xor_slot` siblings are expanded
into variants of the whole request, tried in the order in which they are written. `resource-query -T flexible`
turns this on, as in Fluxion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TypeAlias

from fluence.errors import InvalidJobspec
from fluence.match.candidates import Pool, Pools
from fluence.match.filter_usage import FilterCheck
from fluence.match.request import Need
from fluence.match.walk import Meeting, Walk

MOST_VARIANTS = 1000
_MOST_SLOTS = 2**31 - 1
_XOR = "xor_slot"

Counts: TypeAlias = tuple[int, ...]


def variants(needs: tuple[Need, ...], slot: int) -> list[tuple[Need, ...]]:
    """The variants of a request with one slot of each set of `xor_slot` siblings, in order."""
    return list(_variants(needs, slot, [0]))


def _variants(needs: tuple[Need, ...], slot: int, made: list[int]) -> Iterator[tuple[Need, ...]]:
    alternatives = [need for need in needs if need.name == _XOR]
    rest: list[list[Need]] = [list(_options(need, slot, made)) for need in needs if need.name != _XOR]
    chosen: list[tuple[Need, ...]] = [(own,) for need in alternatives for own in _options(need, slot, made)]
    for one in chosen or [()]:
        for others in product(*rest):
            made[0] += 1
            if made[0] > MOST_VARIANTS:
                raise InvalidJobspec(
                    f"the xor_slots make more than {MOST_VARIANTS} variants: ask for fewer alternatives"
                )
            yield (*others, *one)


def _options(need: Need, slot: int, made: list[int]) -> Iterator[Need]:
    for below in _variants(need.below, slot, made) if need.below else [()]:
        own = replace(need, below=below, slot=next((n for n in reversed(below) if n.is_slot), None))
        yield replace(own, type=slot, name="slot", is_slot=True) if need.name == _XOR else own


class FlexibleWalk(Walk):
    """A walk in which sibling slots are alternatives."""

    def _meet(self, u: int, type_: int, needs: tuple[Need, ...], pristine: bool) -> Meeting | None:
        match: Need | None = None
        slots: tuple[Need, ...] = ()
        for need in needs:
            if need.type == type_:
                if match is not None or slots:
                    return None
                match = need
                if need.slot is not None:
                    slots = need.below
            elif need.is_slot:
                if match is not None:
                    return None
                slots = needs
        if slots:
            if any(self._holds_slot(u, need) for need in slots):
                return match, tuple(need for need in slots if need.is_slot), (), False
        elif match is not None:
            return match, (), match.below, False
        # A vertex of the right type that can hold no slot is passed through, and fails at the end.
        return (match, (), needs, True) if pristine else None

    def _filters_pass(self, u: int, type_: int, needs: tuple[Need, ...], filters: FilterCheck) -> bool:
        """Of several slots the last one decides, as in Fluxion."""
        passes = True
        for need in needs:
            if need.is_slot:
                passes = filters.leaves(u, need.inside)
            elif need.type == type_:
                passes = filters.leaves(u, need.inside)
                if not passes:
                    break
        return passes

    def _build_slots(self, u: int, slots: tuple[Need, ...], pools: Pools, factor: int) -> None:
        union: dict[int, Need] = {}
        for slot in slots:
            for need in slot.below:
                known = union.get(need.type)
                if known is None or known.count.min < need.count.min:
                    union[need.type] = need
        asked = tuple(union[type_] for type_ in sorted(union))
        inner: Pools = {}
        self._explore_down(u, asked, False, True, inner, factor, shares=slots[-1].most)
        for pool in inner.values():
            pool.choose(pool.qualified, self._arrange_slot)
        order = sorted(union)
        left = tuple((inner.get((self.dom, type_)) or Pool()).qualified for type_ in order)
        mix = best_mix(slots, order, left)
        counts = {
            id(slot): [
                need.count.effective((inner.get((self.dom, need.type)) or Pool()).qualified)
                for need in slot.below
            ]
            for slot in slots
        }
        self._assemble(((slot, counts[id(slot)]) for slot in mix), inner, pools)


def best_mix(slots: tuple[Need, ...], order: list[int], left: Counts) -> list[Need]:
    """The alternatives to build, one after the other, for the largest number of slots."""
    place = {type_: i for i, type_ in enumerate(order)}
    if len(slots) == 1:
        (slot,) = slots
        if slot.most > _MOST_SLOTS:
            return []  # Fluxion reads the number as negative, and fails
        most = slot.most
        for need in slot.below:
            have = left[place[need.type]]
            count = need.count.effective(have)
            most = min(most, have // count) if count else 0
        return [slot] * most
    best: dict[Counts, tuple[int, int, Counts]] = {}  # left -> slots, first alternative, left after it
    stack = [left]
    while stack:
        now = stack[-1]
        if now in best:
            stack.pop()
            continue
        nexts: list[tuple[int, Counts]] = []
        for index, slot in enumerate(slots):
            amounts = list(now)
            for need in slot.below:
                count = need.count.effective(now[place[need.type]])
                if not count:
                    break
                amounts[place[need.type]] -= count
            else:
                nexts.append((index, tuple(amounts)))
        missing = [after for _, after in nexts if after not in best and after != now]
        if missing:
            stack.extend(missing)
            continue
        choice = (0, -1, now)
        for index, after in nexts:
            if after != now and best[after][0] + 1 > choice[0]:
                choice = (best[after][0] + 1, index, after)
        best[now] = choice
        stack.pop()
    mix: list[Need] = []
    count, index, after = best[left]
    while count:
        mix.append(slots[index])
        count, index, after = best[after]
    return mix
