"""The faults that Fluence raises; an expected result is a value, never an exception.

    FluenceError
    ├── InvalidInput         a document or argument is wrong: name the place and the cure
    │   ├── InvalidGraph     a resource graph (JGF, GRUG, Rv1, hwloc)
    │   └── InvalidJobspec   a jobspec
    ├── NotFound             no such job, path, rank or file
    └── Conflict             a request contradicts the current state

Programs print the message alone, on one line, and exit with ``exit_code``.
"""

from __future__ import annotations


class FluenceError(Exception):
    """An error that its message explains."""

    exit_code = 1


class InvalidInput(FluenceError):
    """A document or an argument is wrong; ``where`` is the place in it."""

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class InvalidGraph(InvalidInput):
    """A resource graph cannot be read."""


class InvalidJobspec(InvalidInput):
    """A jobspec cannot be read."""


class NotFound(FluenceError):
    """No such job, path, rank or file."""


class Conflict(FluenceError):
    """A request contradicts the current state."""
