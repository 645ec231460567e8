"""Faults: a small script of what goes wrong on the way to the API server; pure.

    - {verb: watch, path: /pods, drop_after: 3, times: 2}      # cut two watches, each after three events
    - {verb: create, path: binding$, status: 503, every: 5}    # every fifth binding
    - {path: /nodes, status: 429, retry_after: 1, times: 3}
    - {verb: list, latency_s: 0.5}                             # always

The first rule that applies to a request is used. Verbs are Kubernetes': get, list, watch, create, update,
patch, delete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from fluence.errors import InvalidInput
from fluence.yaml_loader import load


class Rule(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which requests, how often, and what happens to them."""

    verb: str | None = None
    path: str = ""  # a regular expression, searched for in the path
    times: int | None = None  # None: for ever
    after: int = 0  # let this many through first
    every: int = 1

    latency_s: float = 0.0  # before anything else
    status: int | None = None  # answer this; the server never sees the request
    retry_after: float | None = None
    cut_after: int | None = None  # bytes of the answer; 0 loses the answer of a request that was carried out
    # for watches; counted in events
    drop_after: int | None = None  # the connection is cut
    hang_after: int | None = None  # nothing more comes, and the connection stays: half-open
    gone_after: int | None = None  # an ERROR event with 410
    error_after: int | None = None  # an ERROR event with 500
    duplicate: bool = False
    delay_s: float = 0.0  # each event comes late

    seen: int = 0
    used: int = 0

    def applies(self, verb: str, path: str) -> bool:
        """Does the rule hold for this request? Counts it if it is of the rule's kind."""
        if (self.verb is not None and self.verb != verb) or not re.search(self.path, path):
            return False
        if self.times is not None and self.used >= self.times:
            return False
        self.seen += 1
        if self.seen <= self.after or (self.seen - self.after - 1) % self.every:
            return False
        self.used += 1
        return True


def read_script(path: Path) -> list[Rule]:
    try:
        rules = msgspec.convert(load(path.read_text()) or [], list[Rule])
        for rule in rules:
            re.compile(rule.path)
    except OSError as error:
        raise InvalidInput(str(error.strerror), where=str(path)) from None
    except (yaml.YAMLError, msgspec.ValidationError, re.error) as error:
        raise InvalidInput(" ".join(str(error).split()), where=str(path)) from None
    return rules


def verb_of(method: str, path: str, query: Mapping[str, str]) -> str:
    """What Kubernetes calls a request."""
    if method == "GET":
        if query.get("watch") in ("true", "1"):
            return "watch"
        return "get" if _has_name(path) else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(
        method, method.lower()
    )


def _has_name(path: str) -> bool:
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return len(rest) > 1 or not rest
