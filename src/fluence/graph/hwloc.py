"""hwloc XML, the topology of one machine, as a cluster with one node: no libhwloc needed.

Fluxion reads the topology as the hwloc library presents it, not as the file has it. So a topology is read in
three steps:

1. *import*: objects are sorted into normal, memory, I/O and misc children. In files of hwloc 1 a NUMA node
   contains cores; in hwloc 2 it is a memory child beside them, below a group where its parent is larger.
2. *reduce*: processors that may not be used go, and levels of groups and caches that only repeat the level
   above or below are merged into it. What remains is numbered by level.
3. *walk*: objects of a kind that Fluxion knows, and that the allow-list names, become vertices. The
   children of any other object hang below the nearest kept ancestor.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from fluence.errors import InvalidGraph
from fluence.graph import markup
from fluence.graph.columns import CONTAINMENT
from fluence.graph.graph import Batch
from fluence.graph.markup import Element
from fluence.model.hostlist import split

Place = Literal["normal", "memory", "io", "misc"]

_CACHES = tuple(f"l{level}{letter}cache" for level in range(1, 6) for letter in ("", "i"))
_KINDS: dict[Place, tuple[str, ...]] = {
    "normal": ("machine", "package", "die", "core", "pu", "group", *_CACHES),
    "memory": ("numanode", "memcache"),
    "io": ("bridge", "pcidev", "osdev"),
    "misc": ("misc",),
}
_PLACES: dict[str, Place] = {kind: place for place, kinds in _KINDS.items() for kind in kinds}
_OTHER_NAMES = {
    "system": "machine",
    "socket": "package",
    "node": "numanode",
    "tile": "group",
    "module": "group",
}
# Levels of these kinds are removed if they repeat a neighbour. Of two such levels, the one with the higher
# number stays; if the numbers are equal, the upper one.
_REDUCIBLE = {"group": 0} | {kind: 19 if "i" in kind else 20 for kind in _CACHES}
_NEVER = 100
_MAX_LEVELS = 1000

_BLOCK, _GPU, _DMA, _COPROCESSOR = 0, 1, 4, 5  # osdev_type
_LONG_MAX = 2**63 - 1
_C_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,30})")
_BITMAP_WORD = re.compile(r"(?:0x)?([0-9a-fA-F]{1,8})")


@dataclass(slots=True, eq=False)
class Object:
    """One object of a topology, with its children in the order in which they are walked."""

    kind: str
    element: Element
    where: str
    cpuset: int = 0
    complete_cpuset: int = 0
    normal: list[Object] = field(default_factory=list)
    memory: list[Object] = field(default_factory=list)
    io: list[Object] = field(default_factory=list)
    misc: list[Object] = field(default_factory=list)
    variant: str = ""  # groups of different origin make different levels
    index: int = 0  # hwloc's logical index

    def children(self) -> list[Object]:
        return [*self.normal, *self.memory, *self.io, *self.misc]

    def info(self, name: str) -> str | None:
        """The value of the first info with this name."""
        for info in self.element.named("info"):
            if info.attributes.get("name") == name:
                return info.attributes.get("value", "")
        return None

    def attribute(self, name: str) -> str:
        return self.element.attributes.get(name, "")


def read(
    text: str | bytes, *, allow: Collection[str] | None = None, rank: int = -1, source: str = "hwloc"
) -> Batch:
    """A cluster with the machine that the topology describes.

    ``allow`` names what may become a vertex (node, group, numanode, socket, L1cache to L3cache, core, pu,
    gpu, storage); None or an empty list allows all. With a ``rank``, all of the machine has it; without,
    only the node has one, 0.
    """
    root = _import(markup.parse(text, source=source), source)
    _reduce(root)
    _number_devices(root)
    batch = Batch()
    cluster = batch.vertex("cluster", id=0, uniq_id=0)
    batch.roots[CONTAINMENT] = cluster
    allowed = frozenset(allow or ())
    stack = [(root, cluster)]
    while stack:
        found, parent = stack.pop()
        row = _vertex(batch, found, allowed, rank)
        if row is not None:
            batch.edge(parent, row)
            parent = row
        stack.extend((child, parent) for child in reversed(found.children()))
    return batch


def _vertex(batch: Batch, found: Object, allow: Collection[str], rank: int) -> int | None:
    """The vertex of an object, or None if it is not used."""

    def add(type_: str, basename: str = "", *, id: int = found.index, size: int = 1) -> int | None:  # noqa: A002
        basename = basename or type_
        allowed = basename if type_ == "cache" else type_
        if allow and allowed not in allow:
            return None
        return batch.vertex(type_, basename=basename, id=id, uniq_id=len(batch.type), rank=rank, size=size)

    match found.kind:
        case "group" | "numanode" | "core" | "pu" as type_:
            return add(type_)
        case "package":
            return add("socket")
        case "l1cache" | "l2cache" | "l3cache":
            size = _whole(found, "cache_size") // 1024
            return add("cache", f"L{found.kind[1]}cache", size=size)
        case "machine":
            return _node(batch, found, allow, rank)
        case "osdev":
            device, name = _whole(found, "osdev_type"), found.attribute("name")
            if device == _COPROCESSOR or (device == _GPU and name.startswith("rsmi")):
                if allow and "gpu" not in allow:
                    return None
                return add("gpu", id=_gpu_id(found, name))
            if device == _BLOCK:
                if allow and "storage" not in allow:
                    return None
                row = add("storage", size=_storage_size(found))
                if row is not None:
                    batch.properties[row] = {"LinuxDeviceID": found.info("LinuxDeviceID") or "-1"}
                return row
    return None


def _node(batch: Batch, machine: Object, allow: Collection[str], rank: int) -> int | None:
    name = machine.info("HostName")
    if not name or (allow and "node" not in allow):
        return None
    base, number = split(name, where=machine.where)
    return batch.vertex(
        "node",
        basename=base,
        name=name,
        id=number,
        uniq_id=len(batch.type),
        rank=rank if rank >= 0 else 0,
    )


def _gpu_id(device: Object, name: str) -> int:
    """The number in the name, because hwloc numbers all devices together: cuda0, rsmi1, opencl0d2."""
    if name.startswith(("cuda", "rsmi")):
        return _c_integer(name[4:])
    if name.startswith("opencl"):
        _, delimiter, number = name[6:].partition("d")
        if not delimiter:
            raise InvalidGraph(
                f"OpenCL device {name[:40]!r} has no device number; it is named like opencl0d1",
                where=device.where,
            )
        return _c_integer(number)
    return device.index


def _storage_size(device: Object) -> int:
    """In GB; hwloc uses kB."""
    text = device.info("Size")
    if text is None:
        raise InvalidGraph(
            'the block device has no size; add <info name="Size"> in kB or allow no storage',
            where=device.where,
        )
    size = _c_integer(text)
    if not 0 < size < _LONG_MAX:
        raise InvalidGraph(
            f"the size of the block device is {text[:40]!r}, not a number of kB", where=device.where
        )
    return size // 1_000_000


def _c_integer(text: str) -> int:
    """A number as C parses it: the leading digits of the text; without digits, 0."""
    found = _C_INTEGER.match(text)
    return 0 if found is None else max(-_LONG_MAX, min(int(found[1]), _LONG_MAX))


def _whole(found: Object, name: str) -> int:
    text = found.attribute(name) or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidGraph(f"{name} is {text[:40]!r}; it must be a whole number", where=found.where)
    return int(text)


# -- import ----------------------------------------------------------------------------------------------


def _import(document: Element, source: str) -> Object:
    where = f"{source}: line {document.line}"
    if document.tag not in ("topology", "root"):
        raise InvalidGraph(
            f"the document is <{document.tag}>; hwloc XML begins with <topology>, as lstopo writes it",
            where=where,
        )
    version = document.attributes.get("version", "1.0")
    if version.partition(".")[0] not in ("1", "2"):
        raise InvalidGraph(
            f"hwloc XML version {version[:20]!r} is not supported; write version 2 with "
            "lstopo --export-xml-flags v2",
            where=where,
        )
    first = next(document.named("object"), None)
    if first is None:
        raise InvalidGraph("the topology has no object; write it with lstopo file.xml", where=where)
    is_old = version.startswith("1")
    root = _object(first, None, source)
    root, into = _root(root, is_old)
    # The remaining work: an element, and the parent of its object.
    stack = [(child, into) for child in reversed(list(first.named("object")))]
    imported: list[Object] = [into]
    while stack:
        element, parent = stack.pop()
        child = _object(element, parent, source)
        below = _insert(child, parent, imported, is_old)
        stack.extend((e, below) for e in reversed(list(element.named("object"))))
    for found in imported:
        _sort(found.normal)
    if not any(found.memory for found in imported) and not root.memory:
        _add_memory(root)
    return root


def _add_memory(root: Object) -> None:
    """Add a NUMA node to a machine without one, as the library does: below the lowest object that covers the
    whole machine."""
    inside = root.normal[0] if len(root.normal) == 1 else root
    holder = inside if inside.cpuset == root.cpuset and inside.kind != "pu" else root
    holder.memory.append(Object("numanode", root.element, root.where, root.cpuset, root.complete_cpuset))


def _root(root: Object, is_old: bool) -> tuple[Object, Object]:
    """The topmost object, and the parent of the other objects."""
    if root.kind == "machine":
        return root, root
    if root.kind == "numanode" and is_old:  # hwloc 1 could leave the machine out
        machine = Object("machine", root.element, root.where, root.cpuset, root.complete_cpuset)
        machine.memory.append(root)
        return machine, machine
    raise InvalidGraph(f"the first object is a {root.kind}; it must be a Machine", where=root.where)


def _object(element: Element, parent: Object | None, source: str) -> Object:
    name = element.attributes.get("type", "")
    where = f"{source}: line {element.line}, object {name[:40]!r}"
    kind = name.lower()
    kind = _OTHER_NAMES.get(kind, kind)
    if kind == "cache":  # hwloc 1: one type for all caches
        letter = "i" if element.attributes.get("cache_type") == "2" else ""
        kind = f"l{element.attributes.get('depth', '')}{letter}cache"
    elif kind.startswith("group"):
        kind = "die" if element.attributes.get("subtype") == "Die" else "group"
    if kind == "machine" and parent is not None:
        kind = "group"
    if kind == "misc" and "cpuset" in element.attributes:
        kind = "group"
    if kind not in _PLACES:
        raise InvalidGraph("the type of the object is unknown; write the file with hwloc 1 or 2", where=where)
    attributes = element.attributes
    found = Object(kind, element, where)
    if kind == "group":
        found.variant = f"{attributes.get('kind', '0')} {attributes.get('subkind', '0')}"
    if "cpuset" in attributes:
        found.cpuset = _bitmap(attributes["cpuset"], where)
        found.complete_cpuset = _bitmap(attributes.get("complete_cpuset", attributes["cpuset"]), where)
    elif _PLACES[kind] == "normal":
        raise InvalidGraph("the object has no cpuset; every part of a processor needs one", where=where)
    return found


def _insert(child: Object, parent: Object, imported: list[Object], is_old: bool) -> Object:
    """Put an object where hwloc 2 has it; returns the parent of its children."""
    place, above = _PLACES[child.kind], _PLACES[parent.kind]
    fits = {
        "normal": above == "normal",
        "memory": above in ("normal", "memory"),
        "io": above in ("normal", "io"),
        "misc": True,
    }[place]
    if not fits:
        raise InvalidGraph(f"it lies inside a {parent.kind}, where it cannot be", where=child.where)
    if child.kind == "osdev" and _whole(child, "osdev_type") == _DMA:
        return parent  # ignored by hwloc; its contents move up
    if child.kind == "group" and is_old and "complete_cpuset" not in child.element.attributes:
        return parent  # hwloc before 1.8 wrote incomplete groups around devices
    if child.kind == "numanode" and is_old:
        if child.complete_cpuset != parent.complete_cpuset and not _is_beside(child, parent):
            group = Object("group", child.element, child.where, child.cpuset, child.cpuset)
            group.variant = "memory"
            parent.normal.append(group)
            imported.append(group)
            parent = group
        parent.memory.append(child)
        return parent
    match place:
        case "normal":
            parent.normal.append(child)
        case "memory":
            parent.memory.append(child)
        case "io":
            parent.io.append(child)
        case _:
            parent.misc.append(child)
    imported.append(child)
    return child


def _is_beside(child: Object, parent: Object) -> bool:
    """Fast memory without processors becomes a sibling of the only normal memory."""
    kind = child.attribute("subtype") or child.info("Type")
    return kind == "MCDRAM" and not child.complete_cpuset and len(parent.memory) == 1


def _sort(siblings: list[Object]) -> None:
    """Sort by the first processor; objects without processors come last."""
    siblings.sort(key=lambda o: (not o.complete_cpuset, o.complete_cpuset & -o.complete_cpuset))


def _bitmap(text: str, where: str) -> int:
    """A set of processors as an integer, from words of 32 bits; ``0xf...f`` means all following bits."""
    if len(text) > 100_000:
        raise InvalidGraph("the cpuset is too long", where=where)
    words = text.split(",")
    value = 0
    if words[0] == "0xf...f":
        value = -1
        words = words[1:]
    for word in words:
        found = _BITMAP_WORD.fullmatch(word)
        if found is None and word:
            raise InvalidGraph(
                f"{text[:40]!r} is not a cpuset; it is words of eight hex digits, like 0x000000ff",
                where=where,
            )
        value = value << 32 | (int(found[1], 16) if found else 0)
    return value


# -- reduce ----------------------------------------------------------------------------------------------


def _reduce(root: Object) -> None:
    allowed = root.attribute("allowed_cpuset")
    if allowed:
        _restrict(root, _bitmap(allowed, root.where))
    levels = _levels(root)
    at = len(levels) - 1
    while at > 0:
        upper, lower = levels[at - 1], levels[at]
        worth = _worth(upper), _worth(lower)
        if min(worth) < _NEVER and _repeats(upper, lower):
            if worth[0] >= worth[1]:
                for parent, child in zip(upper, lower, strict=True):
                    parent.normal = child.normal
                    parent.memory += child.memory
                    parent.io += child.io
                    parent.misc += child.misc
                del levels[at]
            else:
                _replace(levels, at)
        at -= 1
    for level in levels:
        for index, found in enumerate(level):
            found.index = index


def _worth(level: list[Object]) -> int:
    """Which of two equal levels stays: the one with the higher number."""
    if any(found.attribute("dont_merge") == "1" for found in level):
        return _NEVER
    return _REDUCIBLE.get(level[0].kind, _NEVER)


def _replace(levels: list[list[Object]], at: int) -> None:
    """Replace the parents of a level by the objects of the level."""
    instead = dict(zip(map(id, levels[at - 1]), levels[at], strict=True))
    for level in levels[: at - 1]:
        for found in level:
            found.normal = [instead.get(id(child), child) for child in found.normal]
    for parent, child in zip(levels[at - 1], levels[at], strict=True):
        child.memory = parent.memory + child.memory
        child.io = parent.io + child.io
        child.misc = parent.misc + child.misc
    del levels[at - 1]


def _repeats(upper: list[Object], lower: list[Object]) -> bool:
    """Whether each object of the upper level contains exactly one of the lower level, with memory above
    processors."""
    keep_memory = lower[0].kind == "pu"
    return len(upper) == len(lower) and all(
        len(parent.normal) == 1 and parent.normal[0] is child and not (keep_memory and parent.memory)
        for parent, child in zip(upper, lower, strict=True)
    )


def _restrict(root: Object, allowed: int) -> None:
    """Remove the parts of processors that may not be used."""
    order = [root]
    for found in order:
        order.extend(found.normal)
    for found in reversed(order):
        found.cpuset &= allowed
        found.normal = [c for c in found.normal if c.cpuset or c.normal or c.memory or c.io]


def _levels(root: Object) -> list[list[Object]]:
    """Normal objects level by level; a level has one kind, and all of that kind that are not nested."""
    order = [root]
    for found in order:
        order.extend(found.normal)
    kinds = {id(found): (found.kind, found.variant) for found in order}
    below: dict[int, set[tuple[str, str]]] = {}  # the kinds strictly below an object
    for found in reversed(order):
        below[id(found)] = set().union(*(below[id(c)] | {kinds[id(c)]} for c in found.normal))
    levels = [[root]]
    front = list(root.normal)
    while front:
        top = kinds[id(next((o for o in front if o.kind != "pu"), front[0]))]
        for found in front:
            if kinds[id(found)] != top and top in below[id(found)]:
                top = kinds[id(found)]
        levels.append([o for o in front if kinds[id(o)] == top])
        if len(levels) > _MAX_LEVELS:
            raise InvalidGraph(f"the topology has more than {_MAX_LEVELS} levels", where=root.where)
        front = [o for found in front for o in (found.normal if kinds[id(found)] == top else (found,))]
    return levels


def _number_devices(root: Object) -> None:
    """Number memory, I/O and misc objects, each kind separately, in the order of the walk."""
    counts: dict[str, int] = {}
    stack = [root]
    while stack:
        found = stack.pop()
        if _PLACES[found.kind] != "normal":
            found.index = counts.get(found.kind, 0)
            counts[found.kind] = found.index + 1
        stack.extend(reversed(found.children()))
