"""Backends: the external resources as a table, and the choice of devices for a gang.

A device with other devices below it is allocated as a whole, with all of them, and only if no part of it is
in use. Of a device without others below it, any number of free units can be allocated. Units of a type below
the top come from one backend: `qubit: 20` means 20 qubits of one machine. If a request names a type and one
below it (`qpu: 1` and `qubit: 20`), the second is the required size of the first.

A device under a node or a rack can be used only by pods there. Devices are chosen with the same columns as
nodes (`FreeView`), so both are free during the same window.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from cachetools import LRUCache

from fluence.graph.graph import Ints, Mask, Rows
from fluence.match.matcher import Matcher
from fluence.match.policy import MatchPolicy
from fluence.model.external_resources import DeviceGrant, DeviceKey, DeviceRequest, DeviceTerm
from fluence.model.reason import Reason
from fluence.placer.node_table import NodeTable
from fluence.placer.profile import FreeView, Profile, SlotsOverTime

_CACHE_SIZE = 1024
_MAX_PLACES = 256  # nodes and racks that are tried for one gang


class DeviceEntry(NamedTuple):
    """One device in the graph."""

    key: DeviceKey
    row: int
    type: str
    size: int
    attributes: Mapping[str, str]
    online: bool
    under: int | None  # the row of the node or rack that it is under; None: the cluster


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """A need that some pods of a gang share, and the suitable devices."""

    type: str
    count: int
    suits: tuple[int, ...]  # numbers in the table, in its order
    pods: frozenset[Hashable]
    shared: bool = True  # by these pods; False: it belongs to one pod


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Devices for a gang, and where its pods must be placed."""

    grants: tuple[DeviceGrant, ...]
    under: int | None = None  # the row of a node or rack


@dataclass(slots=True)
class _Device:
    """An entry and its relatives in the tree."""

    entry: DeviceEntry
    below: list[int] = field(default_factory=list)  # numbers of all devices below it

    @property
    def is_leaf(self) -> bool:
        return not self.below


class BackendTable:
    """The devices of a matcher's graph, in the order of the document that declares them."""

    def __init__(self, matcher: Matcher, table: NodeTable) -> None:
        self._matcher = matcher
        self._table = table
        self._devices: list[_Device] = []
        self._number: dict[DeviceKey, int] = {}
        self._of_type: dict[str, list[int]] = {}
        self._has_places = False
        # Results for the current devices. The cache is bounded, because users can make up any number of
        # requests.
        self._suited: LRUCache[Hashable, tuple[int, ...]] = LRUCache(_CACHE_SIZE)
        self._orders: LRUCache[MatchPolicy, tuple[int, dict[int, int]]] = LRUCache(_CACHE_SIZE)
        self.refusals: LRUCache[DeviceRequest, Reason | None] = LRUCache(_CACHE_SIZE)

    def __bool__(self) -> bool:
        return bool(self._devices)

    @property
    def entries(self) -> Iterator[DeviceEntry]:
        return (device.entry for device in self._devices)

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(sorted(self._of_type))

    def set(self, entries: Sequence[DeviceEntry]) -> None:
        """Set the devices, parents before children."""
        self._suited.clear()
        self._orders.clear()
        self.refusals.clear()
        self._devices = [_Device(entry) for entry in entries]
        self._number = {entry.key: number for number, entry in enumerate(entries)}
        self._has_places = any(entry.under is not None for entry in entries)
        self._of_type = {}
        for number, entry in enumerate(entries):
            self._of_type.setdefault(entry.type, []).append(number)
            for length in range(1, len(entry.key)):
                self._devices[self._number[entry.key[:length]]].below.append(number)

    def of_type(self, type_: str) -> list[DeviceEntry]:
        """The devices of a type, whether they are online or not."""
        return [self._devices[number].entry for number in self._of_type.get(type_, ())]

    def entries_of(self, suits: Iterable[int]) -> list[DeviceEntry]:
        return [self._devices[number].entry for number in suits]

    def entry(self, key: DeviceKey) -> DeviceEntry | None:
        number = self._number.get(key)
        return None if number is None else self._devices[number].entry

    # -- what suits ------------------------------------------------------------------------------------------

    def needs(self, request: DeviceRequest, pods: Mapping[Hashable, Mapping[str, int]]) -> list[DeviceNeed]:
        """The needs of a request; ``pods`` has the amounts that each pod requests."""
        asked = dict(request.needs) or self._pinned(request.terms)
        wanted = self._without_parts(asked)
        found: list[DeviceNeed] = []
        for type_, (count, parts) in wanted.items():
            suits = self._suits(type_, request.terms, parts)
            named = {type_, *parts}
            askers = [pod for pod, needs in pods.items() if not named.isdisjoint(needs) or not request.needs]
            if request.per_pod:
                found += [
                    DeviceNeed(type_, pods[pod].get(type_, count), suits, frozenset((pod,)), shared=False)
                    for pod in askers
                ]
            else:
                found.append(DeviceNeed(type_, count, suits, frozenset(askers)))
        return found

    def _pinned(self, terms: Sequence[DeviceTerm]) -> dict[str, int]:
        """One unit of the backend that is named by a request without devices."""
        named = (self.entry((term.value,)) for term in terms if term.key == "backend")
        return {entry.type: 1 for entry in named if entry is not None}

    def _suits(self, type_: str, terms: tuple[DeviceTerm, ...], parts: Mapping[str, int]) -> tuple[int, ...]:
        key = (type_, terms, tuple(parts.items()))
        found = self._suited.get(key)
        if found is None:
            found = self._suited[key] = tuple(self._suitable(type_, terms, parts))
        return found

    def _suitable(self, type_: str, terms: Sequence[DeviceTerm], parts: Mapping[str, int]) -> Iterator[int]:
        """The devices of a type that are online, satisfy the terms, and have these parts."""
        concerned = [term for term in terms if self.concerns(term, type_)]
        for number in self._of_type.get(type_, ()):
            device = self._devices[number]
            if (
                device.entry.online
                and all(self.meets(device.entry, term) for term in concerned)
                and all(self._units_below(device, part) >= count for part, count in parts.items())
            ):
                yield number

    def concerns(self, term: DeviceTerm, type_: str) -> bool:
        """Whether a term applies to a type: a device of the type has such an attribute."""
        if term.key == "backend":
            return True
        return any(self.value(entry, term.key) is not None for entry in self.of_type(type_))

    def meets(self, entry: DeviceEntry, term: DeviceTerm) -> bool:
        value = self.value(entry, term.key)
        if value is None or term.operator == "=":
            return value == term.value
        try:
            has, asked = float(value), float(term.value)
        except ValueError:
            return False
        return has >= asked if term.operator == ">=" else has <= asked

    def value(self, entry: DeviceEntry, key: str) -> str | None:
        """An attribute of a device; the name of its backend; or, for `qubits`, the number of `qubit` of its
        backend."""
        if key == "backend":
            return entry.key[0]
        said = entry.attributes.get(key)
        if said is None and (one := self._counted(key)) is not None:
            top = self._devices[self._number[entry.key[:1]]]
            units = self._units_below(top, one) + (top.entry.size if top.entry.type == one else 0)
            said = str(units) if units else None
        return said

    def backends_of(self, suits: Sequence[int]) -> list[str]:
        """The names of the backends of some devices."""
        return list(dict.fromkeys(self._devices[number].entry.key[0] for number in suits))

    def units(self, suits: Iterable[int]) -> int:
        """The total number of units of some devices."""
        return sum(self._devices[number].entry.size for number in suits)

    def most_units(self, suits: Sequence[int]) -> int:
        """The most units that one request can get: of one backend, or of all backends for devices at the
        top."""
        sums: dict[DeviceKey, int] = {}
        for number in suits:
            entry = self._devices[number].entry
            whole = () if len(entry.key) == 1 else entry.key[:1]
            sums[whole] = sums.get(whole, 0) + entry.size
        return max(sums.values(), default=0)

    def _counted(self, key: str) -> str | None:
        """The type that a key counts: `qubits` and `qubit` count qubits."""
        return next((each for each in (key, key.removesuffix("s")) if each in self._of_type), None)

    def _units_below(self, device: _Device, type_: str) -> int:
        entries = (self._devices[number].entry for number in device.below)
        return sum(entry.size for entry in entries if entry.type == type_)

    def _without_parts(self, wanted: dict[str, int]) -> dict[str, tuple[int, dict[str, int]]]:
        """The requested types, each with the types below it that give its required size."""
        found: dict[str, tuple[int, dict[str, int]]] = {type_: (n, {}) for type_, n in wanted.items()}
        for type_, count in wanted.items():
            for above in wanted:
                if above != type_ and above in found and self._is_below(type_, above):
                    found[above][1][type_] = count
                    found.pop(type_, None)
                    break
        return found

    def _is_below(self, type_: str, above: str) -> bool:
        return any(
            self._devices[below].entry.type == type_
            for number in self._of_type.get(above, ())
            for below in self._devices[number].below
        )

    # -- choosing --------------------------------------------------------------------------------------------

    def choices(
        self, needs: Sequence[DeviceNeed], view: FreeView, policy: MatchPolicy
    ) -> Iterator[DeviceChoice]:
        """Devices for all needs, one choice per place of the pods: first without a restriction."""
        order = self._order(policy)
        for under in (None, *self._places(needs, order)):
            grants = self._choose(needs, view, order, under)
            if grants is not None:
                yield DeviceChoice(grants, under)

    def _places(self, needs: Sequence[DeviceNeed], order: Mapping[int, int]) -> list[int]:
        """The nodes and racks that have suitable devices."""
        if not self._has_places:
            return []
        suits = sorted({number for need in needs for number in need.suits}, key=lambda number: order[number])
        places = dict.fromkeys(self._devices[number].entry.under for number in suits)
        return [under for under in places if under is not None][:_MAX_PLACES]

    def lacking(self, needs: Sequence[DeviceNeed], view: FreeView, policy: MatchPolicy) -> list[DeviceNeed]:
        """The needs that cannot be satisfied, each considered separately."""
        return [need for need in needs if next(self.choices([need], view, policy), None) is None]

    def nodes_under(self, row: int, nodes: Rows) -> Mask:
        """Which of these nodes, by row, are below a vertex."""
        tree = self._matcher.tree.shape()
        return np.isin(nodes, tree.subtree(row))

    def candidates(
        self, need: DeviceNeed, profile: Profile, view: FreeView, starts: Ints, ends: Ints
    ) -> Mask:
        """The windows in which a need might be satisfied; only a choice is certain."""
        where = np.full(len(view.free), -1)
        for number in need.suits:
            where[self._devices[number].entry.row] = number
        units = SlotsOverTime(profile, view, where, 1, need.count)
        return units.suffice(need.count, starts, ends)

    def _order(self, policy: MatchPolicy) -> dict[int, int]:
        """The position of each device in the order of a policy, by default the order of the document."""
        at = self._matcher.graph.state_generation
        known = self._orders.get(policy)
        if known is None or known[0] != at:
            known = self._orders[policy] = (at, self._ordered(policy))
        return known[1]

    def _ordered(self, policy: MatchPolicy) -> dict[int, int]:
        column = self._table.scores(policy)
        if column is None:
            return {number: number for number in range(len(self._devices))}
        scores = column[[device.entry.row for device in self._devices]]
        by = np.argsort(scores if policy.ascending else -scores, kind="stable").tolist()
        return {number: at for at, number in enumerate(by)}

    def _choose(
        self, needs: Sequence[DeviceNeed], view: FreeView, order: Mapping[int, int], under: int | None
    ) -> tuple[DeviceGrant, ...] | None:
        taken: dict[int, int] = {}  # units taken by earlier needs, by device number
        grants: list[DeviceGrant] = []
        used_place = under is None
        for need in needs:
            there: Sequence[int] = sorted(need.suits, key=order.__getitem__)
            if self._has_places:
                there = [each for each in there if self._devices[each].entry.under in (None, under)]
            found = self._units(need, there, view, taken)
            if found is None:
                return None
            for number, amount in found:
                device = self._devices[number]
                self._take(taken, number, amount)
                used_place = used_place or device.entry.under == under
                grants.append(DeviceGrant(device.entry.key, need.type, amount, need.pods, need.shared))
        return tuple(grants) if used_place else None

    def _units(
        self, need: DeviceNeed, numbers: Sequence[int], view: FreeView, taken: Mapping[int, int]
    ) -> list[tuple[int, int]] | None:
        """Choose this number of units: from one backend, or at the top from several."""
        for number in numbers:  # usually one is enough
            if self._free(number, view, taken) >= need.count:
                return [(number, need.count)]
        of_backend: dict[DeviceKey, list[int]] = {}
        for number in numbers:
            of_backend.setdefault(self._devices[number].entry.key[:1], []).append(number)
        for some in of_backend.values():
            found = self._first(need.count, some, view, taken)
            if found is not None:
                return found
        top = [number for number in numbers if len(self._devices[number].entry.key) == 1]
        return self._first(need.count, top, view, taken)

    def _first(
        self, count: int, numbers: Sequence[int], view: FreeView, taken: Mapping[int, int]
    ) -> list[tuple[int, int]] | None:
        found = []
        for number in numbers:
            units = min(count, self._free(number, view, taken))
            if units:
                found.append((number, units))
                count -= units
            if not count:
                return found
        return None

    def _free(self, number: int, view: FreeView, taken: Mapping[int, int]) -> int:
        """The number of units of a device that can be allocated."""
        device = self._devices[number]
        row = device.entry.row
        if device.is_leaf:
            return max(0, int(view.free[row]) - taken.get(number, 0))
        untouched = view.users[row] == 0 and view.free[row] >= device.entry.size
        parts = any(below in taken for below in device.below)
        return device.entry.size if untouched and number not in taken and not parts else 0

    def _take(self, taken: dict[int, int], number: int, amount: int) -> None:
        taken[number] = taken.get(number, 0) + amount
        for below in self._devices[number].below:
            taken[below] = taken.get(below, 0) + self._devices[below].entry.size

    # -- holding ---------------------------------------------------------------------------------------------

    def held(self, grants: Sequence[DeviceGrant]) -> tuple[dict[int, int], list[int]]:
        """The resources of grants: amounts by row, and the rows above them. Devices that are gone do not
        count."""
        taken: dict[int, int] = {}
        above: dict[int, None] = {}
        for grant in grants:
            number = self._number.get(grant.device)
            if number is None:
                continue
            device = self._devices[number]
            row = device.entry.row
            taken[row] = taken.get(row, 0) + grant.amount
            for below in device.below:
                entry = self._devices[below].entry
                taken[entry.row] = max(taken.get(entry.row, 0), entry.size)
            above.update(dict.fromkeys(self._matcher.tree.ancestors(row)))
        return taken, [row for row in above if row not in taken]

    def suits(self, grant: DeviceGrant, terms: Iterable[DeviceTerm]) -> bool:
        """Whether the device of a grant exists, is online, and satisfies the terms."""
        entry = self.entry(grant.device)
        return (
            entry is not None
            and entry.online
            and all(self.meets(entry, term) for term in terms if self.concerns(term, entry.type))
        )

    def are_there(self, grants: Sequence[DeviceGrant]) -> bool:
        """Whether all devices of some grants exist and are online."""
        return all(self.suits(grant, ()) for grant in grants)
