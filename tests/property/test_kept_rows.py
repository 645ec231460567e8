"""Rows that are kept between snapshots are those that would be made from scratch, whatever happens.

The worlds of the machines of the scheduler: gangs, arrays, devices, held Jobs, nodes that come and go, pods
of others, and restarts. After each step users with different rights read all lists.
"""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import invariant, rule
from msgspec.structs import replace

from fluence import names
from fluence.schedule.events import BindOutcome, BindResult
from fluence.web.access import User
from fluence.web.cluster_rows import RESOURCES
from fluence.web.kept import KeptRows
from fluence.web.openapi import MAX_COLUMNS_LIMIT
from fluence.web.server import BASE, make_page, parse_query
from fluence.web.view import take
from tests.property.test_device_machine import DeviceMachine
from tests.property.test_held_machine import HeldMachine
from tests.unit.schedule import kit
from tests.unit.web.field import Sees

READERS = (Sees("default", "other"), Sees("default"), Sees("other"), Sees())
COLUMNS = {name: ",".join(row.__struct_encode_fields__) for name, (_, _, row) in RESOURCES.items()}
FEW = {"queue": "name,position,reasons", "plan": "nodes", "nodes": "by"}


class _Looks:
    """For a machine: users who read after each step, and changes of which only readers see something."""

    steps = 0

    @invariant()
    def look(self: Any) -> None:
        """The users and what they ask for take turns, so that each meets rows that were kept for others."""
        self.steps += 1
        if self.steps % 3 == 0:
            self.cycle()
            self.bind()
        if not hasattr(self, "kept"):
            self.kept = KeptRows()  # a restart does not renew it: here rows of other objects are at hand, too
        snapshot = take(self.scheduler.scheduler, self.now, kept=self.kept)
        for turn, name in enumerate(RESOURCES, self.steps):
            columns = (COLUMNS, FEW, {})[turn // 2 % 3].get(name, "")
            wanted = ({}, {}, {"expand": "true"}, {"state": "running,pending"}, {"name": "a1"})[turn % 5]
            asked = parse_query(
                f"{BASE}/{name}", {"limit": str(MAX_COLUMNS_LIMIT), "columns": columns, **wanted}, User("ann")
            )
            for reader in (READERS[0], READERS[turn % 4]):
                scratch = with_fields(snapshot, kept=KeptRows())  # nothing is kept for other users, either
                shown, fresh = (
                    msgspec.json.encode(make_page(each, reader, asked)) for each in (snapshot, scratch)
                )
                assert shown == fresh, name

    def bind(self: Any) -> None:
        """Every bind is carried out, if its pod and its node are still there."""
        for uid, bind in list(self.flight.items()):
            del self.flight[uid]
            pod, outcome = self.pods.get(bind.pod.metadata.name), BindOutcome.BOUND
            if pod is None or self.is_stale(bind):
                outcome = BindOutcome.GONE if pod is None else BindOutcome.STALE
            else:
                self.put(self.bound(pod, bind))
            self.scheduler.told(BindResult(bind, outcome), self.now)

    @rule(count=st.integers(1, 3), completions=st.integers(1, 5), most=st.none() | st.integers(1, 2))
    def submit_array(self: Any, count: int, completions: int, most: int | None) -> None:
        self.made += 1
        notes = {names.MAX_RUNNING: str(most)} if most else {}
        job = kit.owner(
            f"a{self.made}",
            completions=max(count, completions),
            parallelism=count,
            completion_mode="Indexed",
            annotations=notes,
        )
        self.scheduler.set_owner(job)
        for index in range(count):
            self.put(self.new_pod(f"a{self.made}-{index}", owner=job, cpu="1"))

    @rule(data=st.data(), key=st.sampled_from((names.USER, names.PRIORITY, names.HOLD, "example.com/a")))
    def annotate(self: Any, data: st.DataObject, key: str) -> None:
        if self.pods:
            pod = self.pods[self.pick(data, sorted(self.pods))]
            notes = {**pod.annotations, key: data.draw(st.sampled_from(("1", "-1", "true", "ann")))}
            self.put(replace(pod, metadata=replace(pod.metadata, annotations=notes)))

    @rule(data=st.data(), zone=st.sampled_from("ab"))
    def label(self: Any, data: st.DataObject, zone: str) -> None:
        name = self.pick(data, sorted(self.nodes))
        node = self.nodes[name]
        labels = {**(node.metadata.labels or {}), "zone": zone}
        self.nodes[name] = replace(node, metadata=replace(node.metadata, labels=labels))
        self.scheduler.set_node(self.nodes[name])


class DevicesAreRead(_Looks, DeviceMachine):
    """Gangs, arrays and devices."""


class HeldWorkIsRead(_Looks, HeldMachine):
    """Held Jobs, whose seats pass to their pods."""


_SETTINGS = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestDevicesAreRead = DevicesAreRead.TestCase
TestDevicesAreRead.settings = _SETTINGS
TestHeldWorkIsRead = HeldWorkIsRead.TestCase
TestHeldWorkIsRead.settings = _SETTINGS
