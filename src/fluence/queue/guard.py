"""Runs what a site has added (policies, priorities, predictors) so that its faults stop nobody.

Such code may raise, or take too long by the timer that is passed in. The queue then goes on with its own
answer, and the fault is kept until somebody takes it: the live scheduler logs and counts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")
_KEPT = 100  # faults that nobody has taken


class OverBudget(Exception):
    """Site code took too long."""


@dataclass(frozen=True, slots=True)
class PluginFault:
    """What site code did wrong, and with which job, if that is known."""

    plugin: str
    error: Exception
    job: str = ""

    def __str__(self) -> str:
        of = f" of job {self.job}" if self.job else ""
        return f"{self.plugin}{of}: {type(self.error).__name__}: {self.error}"


class PluginGuard:
    """``timer`` gives seconds; without one, only exceptions are caught."""

    def __init__(self, budget: float, timer: Callable[[], float] | None) -> None:
        self.budget = budget
        self.timer = timer
        self.faults: list[PluginFault] = []

    def call(self, plugin: str, job: str, run: Callable[[], _T], otherwise: _T) -> _T:
        """What ``run`` answers, or ``otherwise`` if it fails."""
        check = self.deadline()
        try:
            answer = run()
            check()
        except Exception as error:
            self.note(plugin, error, job)
            return otherwise
        return answer

    def deadline(self) -> Callable[[], None]:
        """A function that raises once the budget is spent."""
        timer = self.timer
        if timer is None:
            return lambda: None
        end = timer() + self.budget

        def check() -> None:
            if timer() > end:
                raise OverBudget(f"took more than {self.budget} s")

        return check

    def note(self, plugin: str, error: Exception, job: str = "") -> None:
        if len(self.faults) < _KEPT:
            self.faults.append(PluginFault(plugin, error, job))

    def take(self) -> list[PluginFault]:
        """The faults since the last call."""
        found, self.faults = self.faults, []
        return found
