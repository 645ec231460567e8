"""External resources: devices that belong to no node (a quantum computer, a licence), and `resources.yaml`.

A device is a vertex of the graph under the cluster, a rack or a node. A device with a count is a pool, and
any part of it can be taken. A device without one is taken as a whole, with everything below it.

The document is a tree. Children inherit attributes, an attribute set to "" is cleared, and a set of
attributes can have a name:

    resources:
      - {type: qpu, name: sv1, attributes: braket, with: [{type: qubit, count: 34}]}
      - {type: licence, name: solver, count: 4, parent: rack-2}
    attributes:
      braket: {vendor: aws, region: us-east-1}

The older schema is a list: ``backends: [{name: sv1, num_qubits: 34, vendor: aws, qrmi_type: braket}]``, each
a `qpu` with qubits. A blank document declares nothing. Errors name the line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple, NoReturn, TypeAlias

import yaml

from fluence import names
from fluence.errors import InvalidInput
from fluence.model.meta import KubeObject, Wire
from fluence.model.pod import Container, EnvVar, Pod, pod_requests
from fluence.yaml_loader import compose

CLUSTER: Final = "cluster"
"""The parent of devices that belong to the whole cluster."""


@dataclass(frozen=True, slots=True)
class Device:
    """One entry of the tree, with its own and its inherited attributes."""

    type: str
    name: str
    count: int = 1
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    children: tuple[Device, ...] = ()
    online: bool = True
    parent: str = CLUSTER
    """Of a device at the top of its tree, a *backend*: the cluster, or the name of a node or a rack."""

    def walk(self) -> Iterator[Device]:
        """This device and all that are below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class DeviceTree:
    """All devices of a document. Without backends the cluster is classical."""

    backends: tuple[Device, ...] = ()
    """The devices at the top, which a pod may name (`require-backend`)."""

    def walk(self) -> Iterator[Device]:
        """Every device at every level."""
        for backend in self.backends:
            yield from backend.walk()

    @property
    def types(self) -> tuple[str, ...]:
        """Every type at every level, sorted by name: the types that pods can request."""
        return tuple(sorted({device.type for device in self.walk()}))

    @property
    def attribute_keys(self) -> tuple[str, ...]:
        """The keys of all attributes, in order."""
        return tuple(sorted({key for device in self.walk() for key in device.attributes}))


def requested_devices(amounts: Mapping[str, int]) -> dict[str, int]:
    """The external resources among the requests of a pod, by type."""
    prefix = names.DEVICE_PREFIX
    return {name.removeprefix(prefix): n for name, n in amounts.items() if n > 0 and name.startswith(prefix)}


def asked_by(pod: Pod) -> dict[str, int]:
    """The external resources that a pod requests, by type."""
    # Almost no pod requests a device, so this is checked before its quantities are parsed.
    return requested_devices(pod_requests(pod)) if any(_asking(pod)) else {}


def containers_without_backend(pod: Pod) -> tuple[str, ...]:
    """The containers that request a device and have no variable with the name of the chosen backend."""
    return tuple(container.name for container in _asking(pod) if not any(map(_is_told, container.env or ())))


def _asking(pod: Pod) -> Iterator[Container]:
    for container in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ())):
        if container.asks_for_device:
            yield container


def _is_told(variable: EnvVar) -> bool:
    """Whether a variable has one of Fluence's names, or reads the annotation under any name."""
    source = variable.value_from.field_ref if variable.value_from is not None else None
    return variable.name in BASE or (source is not None and names.BACKEND in source.field_path)


def variable(key: str) -> str:
    """The environment variable that carries an attribute: `qrmi_type` is in `FLUXION_QRMI_TYPE`."""
    return "FLUXION_" + re.sub("[^A-Z0-9]", "_", key.upper())


@dataclass(frozen=True, slots=True)
class DeviceTerm:
    """A condition on a device: an attribute, or `backend` for its name, must equal a value, or be a number of
    at least (``>=``) or at most (``<=``) a value."""

    key: str
    value: str
    operator: str = "="

    def __str__(self) -> str:
        return f"{self.key}{self.operator}{self.value}"


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """The external resources that pods of a gang request: units by type, each type once."""

    needs: tuple[tuple[str, int], ...]
    terms: tuple[DeviceTerm, ...] = ()
    per_pod: bool = False  # each pod has its own devices; otherwise all share them


DeviceKey: TypeAlias = tuple[str, ...]
"""The name of a backend, and the names on the path below it."""


class DeviceGrant(NamedTuple):
    """Units of one device that pods have."""

    device: DeviceKey
    type: str
    amount: int
    pods: frozenset[Hashable]  # that requested it: it is freed with the last of them
    shared: bool = True  # False: it is one pod's own, and others of its gang may have the same device

    @property
    def backend(self) -> str:
        return self.device[0]


MAX_DEVICES: Final = 10_000
MAX_UNITS: Final = 10**9
_MAX_DEPTH: Final = 8
_MAX_VALUES: Final = 200_000

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:@]*[A-Za-z0-9])?")
_TAKEN = frozenset(
    ("cluster", "node", "slot", "core", "memory", "pods", "storage")
)  # types of the graph itself
_ENTRY = ("type", "name", "count", "parent", "attributes", "with", "status")
_TOP = ("resources", "attributes", "backends", "version")


class InvalidResources(InvalidInput):
    """A document of devices cannot be read."""


def document_of(data: Mapping[str, str] | None) -> str:
    """The document in a ConfigMap. If there is only one key, any name is accepted, as made by
    `--from-file`."""
    data = data or {}
    if names.RESOURCES_KEY not in data and len(data) == 1:
        return next(iter(data.values()))
    return data.get(names.RESOURCES_KEY, "")


def parse(
    text: str, *, source: str = "resources.yaml", own_types: Collection[str] = frozenset()
) -> DeviceTree:
    """The devices that a document declares. ``own_types``: the types of nodes, which no device may have."""
    reader = _Reader(source, own_types)
    try:
        root = compose(text)
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark is not None else 1
        raise InvalidResources(f"{e.problem or 'is not YAML'}", where=f"{source}: line {line}") from None
    except yaml.YAMLError as e:
        raise InvalidResources(f"is not YAML: {_one_line(e)}", where=source) from None
    except (RecursionError, ValueError) as e:
        raise InvalidResources(f"cannot be read: {_one_line(e)}", where=source) from None
    if root is None or (isinstance(root, yaml.ScalarNode) and reader.is_null(root)):
        return DeviceTree()
    return reader.read(root)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:200]


@dataclass(frozen=True, slots=True)
class _Field:
    """A value of a mapping, and the place of its key."""

    key: yaml.Node
    value: yaml.Node


class _Reader:
    """The reader of one document; it checks that names are unique."""

    def __init__(self, source: str, own_types: Collection[str]) -> None:
        self._source = source
        self._own_types = own_types
        self._seen = 0
        self._devices = 0
        self._names: dict[str, tuple[int, int]] = {}  # of backends: on which line, and where in the text
        self._given: dict[str, int] = {}  # per type: how many had no name
        self._variables: dict[str, str] = {}  # of attributes: which key is in it
        self._sets: dict[str, Mapping[str, str]] = {}

    def read(self, root: yaml.Node) -> DeviceTree:
        top = self._mapping(root, _TOP, what="the document")
        if "resources" in top and "backends" in top:
            self._fail(top["backends"].key, "has both `resources` and the older `backends`; keep one of them")
        if "attributes" in top:
            for name, entry in self._mapping(top["attributes"].value, None, what="attributes").items():
                self._sets[name] = self._attributes(entry.value, {})
        if "backends" in top:
            return DeviceTree(
                tuple(self._old(item) for item in self._list(top["backends"].value, "backends"))
            )
        if "resources" not in top:
            self._fail(root, "has no `resources`; see `fluence resources check --help` for an example")
        entries = self._list(top["resources"].value, "resources")
        return DeviceTree(tuple(backend for item in entries for backend in self._entry(item)))

    # -- entries ---------------------------------------------------------------------------------------------

    def _entry(self, node: yaml.Node) -> Iterator[Device]:
        fields = self._mapping(node, _ENTRY, what="a resource")
        parent = self._text(fields["parent"].value, "parent") if "parent" in fields else CLUSTER
        for device in self._devices_of(node, fields, {}, top=True, online=True, depth=0):
            yield replace(device, parent=parent)

    def _devices_of(
        self,
        node: yaml.Node,
        fields: Mapping[str, _Field],
        inherited: Mapping[str, str],
        *,
        top: bool,
        online: bool,
        depth: int,
    ) -> list[Device]:
        """An entry: one device, or as many as it counts if something is below each."""
        if depth > _MAX_DEPTH:
            self._fail(node, f"is nested over {_MAX_DEPTH} levels deep; make the tree flatter")
        if "type" not in fields:
            self._fail(node, "has no `type`; say what it is, such as `type: qpu`")
        type_ = self._type(fields["type"].value)
        count = self._count(fields["count"].value) if "count" in fields else 1
        online = online and ("status" not in fields or self._status(fields["status"].value))
        attributes = inherited
        if "attributes" in fields:
            attributes = self._attributes(fields["attributes"].value, inherited)
        if "parent" in fields and not top:
            self._fail(fields["parent"].key, "only a resource at the top has a `parent`; move it there")
        name = self._text(fields["name"].value, "name", like=_DEVICE_NAME) if "name" in fields else None
        below = self._list(fields["with"].value, "with") if "with" in fields else []
        copies = count if below else 1
        self._bound(node, copies)
        devices = []
        for number in range(copies):
            children: list[Device] = []
            for entry in below:
                parts = self._mapping(entry, _ENTRY, what="a resource")
                children += self._devices_of(
                    entry, parts, attributes, top=False, online=online, depth=depth + 1
                )
            own = self._named(node, type_, name, number if copies > 1 else None, top=top)
            plain = MappingProxyType({key: value for key, value in attributes.items() if value})
            devices.append(Device(type_, own, 1 if below else count, plain, _apart(children), online))
        return devices

    def _old(self, node: yaml.Node) -> Device:
        """An entry of `backends`: a qpu with that many qubits; all else that it says is an attribute."""
        fields = self._mapping(node, None, what="a backend")
        if "name" not in fields:
            self._fail(node, "has no `name`; each of `backends` needs one")
        name = self._text(fields["name"].value, "name", like=_DEVICE_NAME)
        rest = {key: value for key, value in fields.items() if key not in ("name", "num_qubits", "status")}
        attributes: dict[str, str] = {}
        for key, entry in rest.items():
            self._attribute(attributes, key, entry)
        qubits: tuple[Device, ...] = ()
        online = "status" not in fields or self._status(fields["status"].value)
        plain = MappingProxyType({key: value for key, value in attributes.items() if value})
        if "num_qubits" in fields:
            count = self._count(fields["num_qubits"].value, "num_qubits")
            qubits = (Device("qubit", "qubit0", count, plain, (), online),)
        self._bound(node, 2)
        own = self._named(node, "qpu", name, None, top=True)
        return Device("qpu", own, 1, plain, qubits, online)

    def _named(self, node: yaml.Node, type_: str, name: str | None, number: int | None, *, top: bool) -> str:
        if name is None:
            if not top:
                return f"{type_}{0 if number is None else number}"
            at = self._given.get(type_, 0)
            self._given[type_] = at + 1
            name = f"{type_}{at}"
        elif number is not None:
            name = f"{name}-{number}"
        if top:
            line = node.start_mark.line + 1
            known = self._names.setdefault(name, (line, node.start_mark.index))[0]
            if self._names[name] != (line, node.start_mark.index):
                self._fail(
                    node, f"{name!r} is also on line {known}; every resource at the top needs its own name"
                )
        return name

    def _bound(self, node: yaml.Node, more: int) -> None:
        self._devices += more
        if self._devices > MAX_DEVICES:
            self._fail(node, f"makes it over {MAX_DEVICES} devices; use a `count` without `with` for a pool")

    # -- values ----------------------------------------------------------------------------------------------

    def _attributes(self, node: yaml.Node, inherited: Mapping[str, str]) -> dict[str, str]:
        """A mapping, or the name of one; it overrides inherited attributes. An attribute that is set to "" is
        cleared."""
        attributes = dict(inherited)
        if isinstance(node, yaml.ScalarNode):
            if self.is_null(node):
                return attributes
            known = self._sets.get(node.value)
            if known is None:
                self._fail(
                    node, f"no set of attributes is called {node.value!r}{_nearest(node.value, self._sets)}"
                )
            return {**attributes, **known}
        for key, entry in self._mapping(node, None, what="attributes").items():
            self._attribute(attributes, key, entry)
        return attributes

    def _attribute(self, into: dict[str, str], key: str, entry: _Field) -> None:
        if key == "backend":
            self._fail(entry.key, "`backend` is the name of the device itself; choose another key")
        if len(key) > 50 or not _NAME.fullmatch(key):
            self._fail(
                entry.key,
                f"{_show(key)} is no key of an attribute: at most 50 letters, digits, '-', '_' and '.'",
            )
        taken = self._variables.setdefault(variable(key), key)
        if taken != key:
            self._fail(
                entry.key, f"{key!r} and {taken!r} would be the same variable, {variable(key)}; rename one"
            )
        if not isinstance(entry.value, yaml.ScalarNode):
            self._fail(entry.value, f"attribute {key!r} must be text or a number")
        value = "" if self.is_null(entry.value) else entry.value.value
        if len(value) > 1024 or not value.isprintable():
            self._fail(entry.value, f"attribute {key!r} must be one line of at most 1024 characters")
        into[key] = value

    def _type(self, node: yaml.Node) -> str:
        text = self._text(node, "type", like=_NAME)
        if len(text) > 63:
            self._fail(node, f"type {_show(text)} is longer than 63 characters")
        if text in _TAKEN or text in self._own_types:
            self._fail(node, f"type {text!r} is what nodes have; choose another name for the device")
        return text

    def _count(self, node: yaml.Node, name: str = "count") -> int:
        text = node.value if isinstance(node, yaml.ScalarNode) else ""
        if not re.fullmatch(r"[0-9]{1,12}", text) or not 1 <= int(text) <= MAX_UNITS:
            self._fail(node, f"`{name}` must be a whole number from 1 to {MAX_UNITS}, not {_show(text)}")
        return int(text)

    def _status(self, node: yaml.Node) -> bool:
        text = node.value if isinstance(node, yaml.ScalarNode) else ""
        if text not in ("online", "offline"):
            self._fail(node, f"`status` must be `online` or `offline`, not {_show(text)}")
        return text == "online"

    def _text(self, node: yaml.Node, name: str, *, like: re.Pattern[str] | None = None) -> str:
        if not isinstance(node, yaml.ScalarNode) or self.is_null(node):
            self._fail(node, f"`{name}` must be text")
        text: str = node.value
        if len(text) > 253 or not (like or _DEVICE_NAME).fullmatch(text):
            self._fail(
                node, f"`{name}` {_show(text)} must be letters, digits, '-', '_' and '.', at most 253 of them"
            )
        return text

    # -- structure -------------------------------------------------------------------------------------------

    def _mapping(self, node: yaml.Node, known: Sequence[str] | None, *, what: str) -> dict[str, _Field]:
        self._look(node)
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, f"{what} must be a mapping")
        fields: dict[str, _Field] = {}
        for key, value in node.value:
            self._look(value)
            if not isinstance(key, yaml.ScalarNode):
                self._fail(key, f"a key of {what} must be text")
            if key.value in fields:
                self._fail(key, f"{_show(key.value)} stands twice in {what}")
            if known is not None and key.value not in known:
                self._fail(key, f"{what} has no field {_show(key.value)}{_nearest(key.value, known)}")
            fields[key.value] = _Field(key, value)
        return fields

    def _list(self, node: yaml.Node, name: str) -> list[yaml.Node]:
        self._look(node)
        if isinstance(node, yaml.ScalarNode) and self.is_null(node):
            return []
        if not isinstance(node, yaml.SequenceNode):
            self._fail(node, f"`{name}` must be a list")
        return list(node.value)

    def _look(self, node: yaml.Node) -> None:
        """Count a value, and refuse the document if there are too many: aliases can multiply what was
        written."""
        self._seen += 1
        if self._seen > _MAX_VALUES:
            self._fail(node, f"holds over {_MAX_VALUES} values; make the document smaller")

    def is_null(self, node: yaml.ScalarNode) -> bool:
        return bool(node.tag == "tag:yaml.org,2002:null")

    def _fail(self, node: yaml.Node, message: str) -> NoReturn:
        raise InvalidResources(message, where=f"{self._source}: line {node.start_mark.line + 1}")


def _apart(children: list[Device]) -> tuple[Device, ...]:
    """Gives the children of one parent distinct names: unnamed children are numbered."""
    numbers: dict[str, int] = {}
    taken: set[str] = set()
    renamed = []
    for child in children:
        name = child.name
        while name in taken:
            numbers[child.type] = numbers.get(child.type, 0) + 1
            name = f"{child.type}{numbers[child.type]}"
        taken.add(name)
        renamed.append(child if name == child.name else replace(child, name=name))
    return tuple(renamed)


def _nearest(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean `{near[0]}`?" if near else ""


def _show(text: str) -> str:
    return ascii(text) if len(text) <= 60 else f"{text[:56]!a}..."


BASE: Final = {
    "FLUXION_BACKEND": names.BACKEND,
    "QRMI_BACKEND": names.BACKEND,
    # Variables that QRMI reads under any scheduler: names and types as lists of equal length.
    "QRMI_JOB_QPU_RESOURCES": names.BACKEND,
    "QRMI_JOB_QPU_TYPES": f"{names.ATTRIBUTE}qrmi_type",
}
"""The variables that every container with a device gets, in addition to those of attributes."""
PART_OF: Final = {"app.kubernetes.io/name": "fluence"}
"""The label of what belongs to admission."""


class _Spec(Wire, frozen=True):
    variables: dict[str, str] | None = None


class HandOff(KubeObject, frozen=True):
    """The parameters of admission."""

    spec: _Spec = _Spec()

    @property
    def variables(self) -> dict[str, str]:
        return self.spec.variables or {}

    @property
    def lists_gangs(self) -> bool:
        """Whether pods get the PodGroup of their gang. It is an annotation, because the server refuses a
        field that the installed definition lacks, and Helm does not update definitions."""
        return (self.metadata.annotations or {}).get(names.LISTS_GANGS) == "true"


def hand_off_variables(tree: DeviceTree) -> dict[str, str]:
    """By name, the annotation that each carries: the data of the HandOff."""
    return BASE | {variable(key): f"{names.ATTRIBUTE}{key}" for key in tree.attribute_keys}
