"""Store: the objects of one kind by name, with indexes, and handlers that get (old, new).

An object that was deleted and created again under the same name between two lists is two changes: (old,
None), then (None, new). Versions are opaque: they are equal or not, never older or newer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from fluence.model.meta import ObjectMeta

logger = logging.getLogger(__name__)


class HasMeta(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=HasMeta)
Key = tuple[str, str]  # namespace, name
Handler = Callable[[T | None, T | None], None]
Index = Callable[[T], Iterable[Hashable]]


def key_of(item: HasMeta) -> Key:
    return item.metadata.namespace, item.metadata.name


class Store(Generic[T]):
    """``Store({"node": lambda pod: [pod.spec.node_name]})`` then ``store.by("node", "n1")``."""

    def __init__(self, indexes: Mapping[str, Index[T]] | None = None) -> None:
        self._items: dict[Key, T] = {}
        self._index_of = dict(indexes or {})
        self._indexes: dict[str, dict[Hashable, dict[Key, T]]] = {name: {} for name in self._index_of}
        self._handlers: list[Handler[T]] = []
        self.handler_errors = 0
        self.changes = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._items.get((namespace, name))

    def by(self, index: str, value: Hashable) -> list[T]:
        """All objects that the named index files under this value."""
        return list(self._indexes[index].get(value, {}).values())

    def on_change(self, handler: Handler[T], *, replay: bool = True) -> None:
        """Call ``handler(old, new)`` after each change; with ``replay`` first (None, object) for all that is
        held."""
        self._handlers.append(handler)
        if replay:
            for item in self:
                self._call(handler, None, item)

    def put(self, item: T) -> bool:
        """An object as the server has it now. False if it is what we hold already."""
        key = key_of(item)
        old = self._items.get(key)
        if old is not None:
            same_object = old.metadata.uid == item.metadata.uid
            if same_object and old.metadata.resource_version == item.metadata.resource_version:
                return False
            if not same_object:
                self.remove(key)
                old = None
        self._items[key] = item
        self._reindex(key, old, item)
        self._tell(old, item)
        return True

    def remove(self, key: Key, *, last: T | None = None) -> bool:
        """Remove an object; ``last`` is its last state, if the server sent it. Returns False if the store did
        not have it."""
        old = self._items.pop(key, None)
        if old is None:
            return False
        self._reindex(key, old, None)
        if last is not None and last.metadata.uid == old.metadata.uid:
            old = last
        self._tell(old, None)
        return True

    def replace(self, items: Iterable[T], *, keep: Iterable[Key] = ()) -> tuple[int, int, int]:
        """Replace the contents by this list: objects that are not in it were deleted. ``keep`` names objects
        that exist but could not be parsed. Returns (added, changed, removed).
        """
        fresh = {key_of(item): item for item in items}
        kept = set(keep)
        added = changed = removed = 0
        for key in [key for key in self._items if key not in fresh and key not in kept]:
            removed += self.remove(key)
        for key, item in fresh.items():
            was_held = key in self._items
            if self.put(item):
                added, changed = added + (not was_held), changed + was_held
        return added, changed, removed

    def _reindex(self, key: Key, old: T | None, new: T | None) -> None:
        for name, index_of in self._index_of.items():
            buckets = self._indexes[name]
            before = set(self._values(name, index_of, old)) if old is not None else set()
            after = set(self._values(name, index_of, new)) if new is not None else set()
            for value in before - after:
                bucket = buckets.get(value, {})
                bucket.pop(key, None)
                if not bucket:
                    buckets.pop(value, None)
            if new is not None:
                for value in after:
                    buckets.setdefault(value, {})[key] = new

    def _values(self, name: str, index_of: Index[T], item: T) -> list[Hashable]:
        """An index function that fails on one object leaves it out of the index; the same object always
        fails."""
        try:
            return list(index_of(item))
        except Exception:
            self.handler_errors += 1
            logger.exception("index %s failed on %s", name, "/".join(key_of(item)))
            return []

    def _tell(self, old: T | None, new: T | None) -> None:
        self.changes += 1
        for handler in self._handlers:
            self._call(handler, old, new)

    def _call(self, handler: Handler[T], old: T | None, new: T | None) -> None:
        try:
            handler(old, new)
        except Exception:  # a handler's fault must not end the stream that feeds everybody else
            self.handler_errors += 1
            shown = new if new is not None else old
            logger.exception(
                "handler failed on %s", "/".join(key_of(shown)) if shown is not None else "nothing"
            )
