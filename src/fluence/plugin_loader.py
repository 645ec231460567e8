"""Plugin loader: finds a site's own code by a registered name, an entry point, or `module:name`.

    [project.entry-points."fluence.priorities"]
    fair-share = "our_site.queue:fair_share"

`module:name` imports code. So it is only loaded after `allow`, which is called for settings and flags of the
person who runs the program. Names from elsewhere (an annotation, a Lease, a call to the match service) only
find plug-ins that are registered or installed here.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from fluence.errors import InvalidInput

API_VERSION = 1
"""The version of `fluence.plugins`. It is increased when a plug-in for the last version might no longer
work."""
VERSION_NAME = "FLUENCE_PLUGIN_API"

MATCH_POLICIES = "fluence.match_policies"
QUEUE_POLICIES = "fluence.queue_policies"
PRIORITIES = "fluence.priorities"
PREDICTORS = "fluence.predictors"

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_registered: dict[tuple[str, str], object] = {}
_allowed: set[str] = set()


def is_reference(text: object) -> bool:
    """Whether a text has the form `module:name`."""
    return isinstance(text, str) and _REFERENCE.fullmatch(text) is not None


def allow(text: str) -> None:
    """Let `find` import this `module:name`. Other texts have no effect."""
    if is_reference(text):
        _allowed.add(text)


def is_allowed(text: object) -> bool:
    """Whether a text may be looked up without importing code that only others have named."""
    return not is_reference(text) or text in _allowed


def register(group: str, name: str, plugin: object) -> None:
    """Register an object under a name in this process."""
    _registered[group, name] = plugin


def names(group: str) -> list[str]:
    """The names that are registered or installed in a group."""
    return sorted({name for kind, name in _registered if kind == group} | set(_installed(group)))


def exists(group: str, name: str) -> bool:
    """Whether `find` can load something by this name."""
    known = (group, name) in _registered or name in _installed(group)
    return known or (is_reference(name) and is_allowed(name))


def find(group: str, name: str, what: str, built_in: list[str]) -> object:
    """The object with this name, which is not built in."""
    if (group, name) in _registered:
        return _registered[group, name]
    point = _installed(group).get(name)
    if not exists(group, name):
        known = ", ".join([*built_in, *names(group)])
        raise InvalidInput(f"unknown {what} {name!r}: choose one of {known}")
    module_name, attribute = (point.module, point.attr) if point is not None else name.split(":")
    try:
        plugin: object = import_module(module_name)
        for part in attribute.split("."):
            plugin = getattr(plugin, part)
    except Exception as fault:
        cure = "" if point is not None else ": install its package, or name its folder in PYTHONPATH"
        raise InvalidInput(f"the {what} {name!r} cannot be loaded: {fault}{cure}") from fault
    _check_version(module_name, name, what)
    _registered[group, name] = plugin
    return plugin


def _check_version(module_name: str, name: str, what: str) -> None:
    version = getattr(sys.modules[module_name], VERSION_NAME, API_VERSION)
    if version != API_VERSION:
        raise InvalidInput(
            f"the {what} {name!r} was written for version {version} of fluence.plugins, and this Fluence has "
            f"version {API_VERSION}: install a release of the plug-in for version {API_VERSION}"
        )


@cache  # reading the metadata of all packages takes milliseconds, and users may write any name
def _installed(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}
