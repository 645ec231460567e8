"""Lines: a byte stream cut at newlines, and at nothing else.

A watch is one JSON document per line. Text-mode readers also cut at U+0085 and its kin, which users may put
into any annotation, and readers with a line limit fail on a 3 MB object; both turn one pod into a crash loop.
"""

from __future__ import annotations


class LineSplitter:
    """Feed chunks, get whole lines; a chunk is never copied more than once, however long the line grows."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        first, *rest = chunk.split(b"\n")
        if not rest:
            self._partial.append(first)
            return []
        self._partial.append(first)
        lines = [b"".join(self._partial), *rest[:-1]]
        self._partial = [rest[-1]] if rest[-1] else []
        return [line for line in lines if line]

    @property
    def pending(self) -> int:
        """Bytes of a line that has no end yet: not zero at the end of a stream means that it was cut."""
        return sum(map(len, self._partial))
