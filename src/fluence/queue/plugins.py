"""What a site adds by entry points: queue policies, priorities, predictors.

[project.entry-points."fluence.priorities"]
fairshare = "our_site.priority:fairshare"
"""

from __future__ import annotations

from importlib.metadata import entry_points

from fluence.errors import InvalidInput

POLICIES = "fluence.queue_policies"
PRIORITIES = "fluence.priorities"
PREDICTORS = "fluence.predictors"


def names(group: str) -> list[str]:
    """What is installed in a group."""
    return sorted(point.name for point in entry_points(group=group))


def load(group: str, name: str, what: str, built_in: list[str]) -> object:
    """The object behind a name."""
    found = {point.name: point for point in entry_points(group=group)}
    if name not in found:
        known = ", ".join([*built_in, *sorted(found)])
        raise InvalidInput(f"unknown {what} {name!r}: choose one of {known}")
    try:
        return found[name].load()
    except Exception as fault:
        raise InvalidInput(f"the {what} {name!r} cannot be loaded: {fault}") from fault
