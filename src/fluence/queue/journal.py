"""Journal: how to undo what was tried, step by step, until it is settled."""

from __future__ import annotations

from collections.abc import Callable


class Journal:
    """``note`` how to undo each step; ``undo`` goes back to a mark, the last step first."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def note(self, undo: Callable[[], object]) -> None:
        self._steps.append(undo)

    def mark(self) -> int:
        return len(self._steps)

    def undo(self, mark: object) -> None:
        assert isinstance(mark, int)
        while len(self._steps) > mark:
            self._steps.pop()()

    def settle(self) -> None:
        """What was done stays."""
        self._steps.clear()
