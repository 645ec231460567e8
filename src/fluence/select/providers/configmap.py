"""The `configmap` provider: the offers of the scheduler, read with the `kubectl` of the user.

The ConfigMap ``fluence-resources`` has two schemas. The newer is a tree; children inherit attributes, an
attribute set to "" is cleared, and a set of attributes can be kept under a name:

    resources:
      - {type: qpu, name: sv1, attributes: braket, with: [{type: qubit, count: 34}]}
    attributes:
      braket: {vendor: aws, qubits: 34}

The older is a list: ``backends: [{name: sv1, num_qubits: 34, vendor: aws, qrmi_type: braket}]``. Every name
in either schema is an offer; those with attributes are backends that can be chosen without a file.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import yaml

from fluence.names import RESOURCES_CONFIGMAP, RESOURCES_KEY
from fluence.select.policies import Backend, priced
from fluence.select.providers import BackendAnswer, BackendQuery
from fluence.yaml_loader import load


class Unreadable(Exception):
    """What the scheduler offers cannot be found out; the message says why."""


class ConfigMapProvider:
    """Reads the ConfigMap once. If it cannot be read, all backends of other providers can be chosen."""

    name = "configmap"
    supplies: frozenset[str] | None = None

    def __init__(self, namespace: str, kubectl_flags: Sequence[str], timeout_s: float) -> None:
        self._namespace = namespace
        self._flags = tuple(kubectl_flags)
        self._timeout_s = timeout_s

    @cached_property
    def _resources(self) -> object | Unreadable:
        try:
            return parse_resources(read_configmap(self._namespace, self._flags, timeout_s=self._timeout_s))
        except Unreadable as error:
            return error

    def fetch(self, ask: BackendQuery) -> BackendAnswer:
        if isinstance(self._resources, Unreadable):
            return BackendAnswer(
                warnings=[
                    f"could not read scheduler offerings ({self._resources}); selecting without intersection"
                ]
            )
        described = describe(self._resources)
        backends = [
            Backend(
                name=b.name,
                region=b.region,
                device_arn=b.device_arn,
                attributes=priced(b.attributes, shots=ask.request.shots),
                strings=b.strings,
            )
            for b in described
        ]
        offers = frozenset(find_names(self._resources))
        return BackendAnswer(backends, offers=offers, types=find_types(self._resources))


def read_configmap(namespace: str, kubectl_flags: Sequence[str], *, timeout_s: float) -> str:
    """The body of the ConfigMap, by way of `kubectl`: every context, proxy and login plugin works."""
    program = shutil.which("kubectl")
    if program is None:
        raise Unreadable("kubectl is not on PATH")
    what = f"kubectl get configmap {RESOURCES_CONFIGMAP} -n {namespace}"
    command = [
        program,
        "get",
        "configmap",
        RESOURCES_CONFIGMAP,
        "-n",
        namespace,
        "-o",
        "json",
        *kubectl_flags,
    ]
    if not any(flag.startswith("--request-timeout") for flag in kubectl_flags):
        command.append(f"--request-timeout={max(1, math.ceil(timeout_s))}s")
    try:
        # If kubectl cannot reach its server, it retries a few times, each with the timeout of a request.
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=2 * timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unreadable(f"{what}: no answer within {2 * timeout_s:g} s") from error
    except OSError as error:
        raise Unreadable(f"{what}: {error.strerror}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise Unreadable(f"{what}: {lines[-1].strip() if lines else f'exit code {done.returncode}'}")
    try:
        data = json.loads(done.stdout).get("data") or {}
    except (ValueError, AttributeError) as error:
        raise Unreadable(f"{what}: the answer is not a ConfigMap") from error
    body = data.get(RESOURCES_KEY) or next(iter(data.values()), "")
    if not body.strip():
        raise Unreadable(f"{RESOURCES_CONFIGMAP} ConfigMap has no {RESOURCES_KEY} data")
    return str(body)


def parse_resources(body: str) -> object:
    """The YAML of the ConfigMap; it must name something."""
    try:
        value: object = load(body)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise Unreadable(f"{RESOURCES_KEY} is not YAML{f', line {mark.line + 1}' if mark else ''}") from error
    if not any(find_names(value)):
        raise Unreadable("no device names found in resource graph")
    return value


def find_names(value: object) -> Iterator[str]:
    """Every ``name`` at any level; names of racks and nodes do no harm, because no provider describes them as
    backends."""
    if isinstance(value, dict):
        if isinstance(name := value.get("name"), str):
            yield name
        for inner in value.values():
            yield from find_names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from find_names(inner)


def find_types(value: object) -> dict[str, frozenset[str]]:
    """By the name of each offer, its type and those of its parts."""
    found: dict[str, frozenset[str]] = {}
    if isinstance(value, dict):
        for entry in _list(value.get("backends")):
            if isinstance(entry, dict) and isinstance(name := entry.get("name"), str):
                found[name] = frozenset(("qpu", "qubit"))
        _collect_types(_list(value.get("resources")), found)
    return found


def _collect_types(resources: Sequence[object], found: dict[str, frozenset[str]]) -> set[str]:
    """All types of some entries, those of their parts included."""
    every: set[str] = set()
    for resource in resources:
        if isinstance(resource, dict):
            types = _collect_types(_list(resource.get("with")), found)
            if isinstance(type_ := resource.get("type"), str):
                types.add(type_)
            if isinstance(name := resource.get("name"), str):
                found[name] = frozenset(types)
            every |= types
    return every


def describe(value: object) -> list[Backend]:
    """The backends that the ConfigMap gives attributes for."""
    if not isinstance(value, dict):
        return []
    backends = [_older(entry) for entry in _list(value.get("backends")) if isinstance(entry, dict)]
    sets = value.get("attributes")
    backends += _newer(_list(value.get("resources")), sets if isinstance(sets, dict) else {}, {})
    return [backend for backend in backends if backend.name and backend.is_described]


def _older(entry: Mapping[str, object]) -> Backend:
    fields = dict(entry)
    name = fields.pop("name", None)
    nested = fields.pop("attributes", None)
    backend = _backend(name, {**fields, **(nested if isinstance(nested, dict) else {})})
    # The older schema's word for what files call qubits.
    if (qubits := backend.number("num_qubits")) is not None:
        backend.attributes.setdefault("qubits", qubits)
    return backend


def _newer(
    resources: Sequence[object], sets: Mapping[str, object], inherited: Mapping[str, object]
) -> Iterator[Backend]:
    for resource in resources:
        if not isinstance(resource, dict):
            continue
        own = resource.get("attributes")
        if isinstance(own, str):
            own = sets.get(own)
        attributes = {**inherited, **(own if isinstance(own, dict) else {})}
        yield _backend(resource.get("name"), attributes)
        yield from _newer(_list(resource.get("with")), sets, attributes)


def _backend(name: object, fields: Mapping[str, object]) -> Backend:
    numbers: dict[str, float] = {}
    strings: dict[str, str] = {}
    for key, value in fields.items():
        if isinstance(value, bool):
            strings[str(key)] = str(value).lower()
        elif isinstance(value, str | int | float) and str(value).strip():
            # Attributes become labels of the graph, so numbers are often written as text.
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if math.isfinite(number):
                numbers[str(key)] = number
            else:
                strings[str(key)] = str(value)
    region, arn = strings.pop("region", None), strings.pop("device_arn", None)
    return Backend(
        name=name if isinstance(name, str) else "",
        region=region,
        device_arn=arn or strings.get("arn"),
        attributes=numbers,
        strings=strings,
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
