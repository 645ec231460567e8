"""Gangs of any number of shapes pass through, and what they leave behind does not grow."""

from __future__ import annotations

import gc
import itertools
import json
import os
import resource
from collections import deque
from types import FunctionType, ModuleType

from cachetools import Cache
from msgspec.structs import replace

from fluence import names
from fluence.schedule.events import BindOutcome, BindResult
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_promised_starts import node

NOW = int(kit.T0.timestamp() * 1000)
GANGS = int(os.environ.get("FLUENCE_GANGS", "0")) or 1000  # 100,000 in `make soak`


def pass_through(driver: Driver, numbers: range) -> None:
    """Gangs of two that have all to themselves: a size, a constraint, a limit and a user each."""
    for number in numbers:
        now = NOW + number * 1000
        notes = {
            names.DURATION: f"{60 + number}s",
            names.CONSTRAINTS: json.dumps({"not": [{"hostlist": [f"none[{number}-{number + 1}]"]}]}),
        }
        group = kit.group(f"g{number}", 2, namespace=f"ns-{number % 500}")
        pods = [
            kit.pod(
                f"g{number}-{index}",
                field=group.name,
                namespace=group.namespace,
                cpu=f"{100 + number % 7919}m",
                annotations={**notes, "example.org/user": f"user-{number}"},
                labels={"app": f"app-{number}"},
            )
            for index in range(2)
        ]
        driver.set_group(group)
        for pod in pods:
            driver.set_pod(pod)
        decisions = driver.cycle(now)
        bound = [bind for binds in decisions.binds for bind in binds]
        assert len(bound) == 2
        for bind in bound:
            there = replace(bind.pod, spec=replace(bind.pod.spec, node_name=bind.node))
            driver.told(BindResult(bind, BindOutcome.BOUND), now)
            driver.set_pod(there)
        for bind in bound:
            driver.remove_pod(replace(bind.pod, spec=replace(bind.pod.spec, node_name=bind.node)))
        driver.remove_group(group)
        driver.cycle(now + 500)


def unbounded(root: object, least: int) -> list[str]:
    """The tables with so many entries that can be reached, but for those that have a largest size."""
    seen, found, front = {id(root)}, [], [root]
    while front:
        each = front.pop()
        if isinstance(each, Cache) or (isinstance(each, deque) and each.maxlen is not None):
            continue
        if isinstance(each, dict | list | set | frozenset | tuple | deque) and len(each) >= least:
            some = list(itertools.islice(each, 2))
            found.append(f"{type(each).__name__} of {len(each)}: {some}"[:300])
        for other in gc.get_referents(each):
            if id(other) not in seen and not isinstance(other, type | ModuleType | FunctionType):
                seen.add(id(other))
                front.append(other)
    return found


def test_what_passed_through_is_forgotten_and_memory_stays_flat():
    driver = Driver(native=True)
    for number in range(4):
        driver.set_node(node(f"n{number}"))
    half = GANGS // 2
    pass_through(driver, range(GANGS, GANGS + 100))  # what is loaded at first use
    pass_through(driver, range(half))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pass_through(driver, range(half, GANGS))
    # Caches fill up to their bounds: in the short form, a few kB for each gang; in the long one, nothing.
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after < 1.1 * before + 20 * min(GANGS, 10_000)
    gc.collect()
    assert unbounded(driver, GANGS // 4) == []


def wait_and_leave(driver: Driver, numbers: range) -> None:
    """Gangs that are promised a start months away, and are deleted before it."""
    for number in numbers:
        now = NOW + number * 2000
        notes = {names.DURATION: f"{60 + number}s"}
        group = kit.group(f"w{number}", 2, namespace=f"ns-{number % 500}")
        pods = [
            kit.pod(f"w{number}-{i}", field=group.name, namespace=group.namespace, annotations=notes)
            for i in range(2)
        ]
        driver.set_group(group)
        for pod in pods:
            driver.set_pod(pod)
        driver.cycle(now)
        found = next(each for each in driver.pod_sets.by_key.values() if f"w{number}" in each.key)
        assert found.no_later_than is not None and found.expected is not None
        for pod in pods:
            driver.remove_pod(pod)
        driver.remove_group(group)
        driver.cycle(now + 500)


def test_those_who_wait_for_months_and_leave_are_forgotten():
    driver = Driver(native=True)
    driver.set_node(node("n0"))
    driver.set_pod(kit.pod("long", cpu="32", annotations={names.DURATION: "200d"}))
    driver.cycle(NOW)
    patient = kit.pod("patient", cpu="32", annotations={names.DURATION: "1d"})
    driver.set_pod(patient)  # the first of those who are told, and it stays
    wait_and_leave(driver, range(GANGS))
    gc.collect()
    assert unbounded(driver, GANGS // 4) == []
