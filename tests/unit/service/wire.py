"""Clients as they were built from the predecessors' .proto files: messages made from their numbers alone.

Nothing here comes from our own definitions: a pool of its own has the packages, names and numbers that old
programs were compiled with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint64": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    "float": descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
}
Fields = Sequence[tuple[int, str, str]]
_POD: Fields = (
    (1, "id", "string"),
    (2, "container", "string"),
    (3, "cpu", "int32"),
    (4, "memory", "int64"),
    (5, "gpu", "int64"),
    (6, "storage", "int64"),
    (7, "labels", "repeated string"),
)
_NODE: Fields = ((1, "nodeID", "string"), (2, "tasks", "int32"))

# converged-computing/fluxion, which fluxqueue calls. Enumerations are numbers on the wire.
FLUXION: Mapping[str, Fields] = {
    "InitRequest": ((1, "policy", "string"), (2, "jgf", "string")),
    "InitResponse": ((1, "status", "int32"),),
    "MatchRequest": ((1, "jobspec", "string"), (2, "request", "string"), (3, "reservation", "bool")),
    "MatchResponse": (
        (1, "allocation", "string"),
        (2, "jobid", "int64"),
        (3, "reserved", "bool"),
        (4, "at", "int64"),
        (5, "overhead", "float"),
        (6, "status", "int32"),
    ),
    "CancelRequest": ((2, "jobID", "int64"),),
    "CancelResponse": ((1, "jobID", "int64"), (2, "error", "int32"), (3, "status", "int32")),
    "GrowRequest": ((1, "jgf", "string"),),
    "GrowResponse": ((1, "status", "int32"),),
    "ShrinkRequest": ((1, "nodepaths", "repeated string"),),
    "ShrinkResponse": ((1, "status", "int32"),),
}
# Its older form, in which field 3 was a count.
FLUXION_OLD: Mapping[str, Fields] = {
    **FLUXION,
    "MatchRequest": ((1, "jobspec", "string"), (2, "request", "string"), (3, "count", "int32")),
}
FLUXNETES: Mapping[str, Fields] = {
    "PodSpec": _POD,
    "NodeAlloc": _NODE,
    "MatchRequest": (
        (1, "podspec", "PodSpec"),
        (3, "count", "int32"),
        (4, "reserve", "bool"),
        (5, "jobName", "string"),
    ),
    "MatchResponse": (
        (1, "fluxID", "uint64"),
        (2, "nodelist", "repeated NodeAlloc"),
        (3, "reserved", "bool"),
        (4, "reserved_at", "int64"),
        (5, "allocated", "bool"),
    ),
    "CancelRequest": ((1, "fluxID", "uint64"), (2, "NoExistOK", "bool")),
    "CancelResponse": ((1, "fluxID", "uint64"), (2, "error", "int32")),
}
FLUXCLI: Mapping[str, Fields] = {
    "PodSpec": _POD,
    "NodeAlloc": _NODE,
    "MatchRequest": ((1, "ps", "PodSpec"), (2, "request", "string"), (3, "count", "int32")),
    "MatchResponse": ((1, "podID", "string"), (2, "nodelist", "repeated NodeAlloc"), (3, "jobID", "int64")),
    "CancelRequest": ((2, "jobID", "int64"),),
    "CancelResponse": ((1, "jobID", "int64"), (2, "error", "int32")),
}
EXTERNAL: Mapping[str, Fields] = {
    "ResourceRequest": (),
    "ResourceResponse": ((1, "graph", "string"),),
    "GroupRequest": ((1, "group", "string"),),
    "GroupResponse": ((1, "name", "string"), (2, "size", "int64")),
}

# grpc.reflection.v1, as far as a client asks for services and their files.
REFLECTION: Mapping[str, Fields] = {
    "ServerReflectionRequest": ((4, "file_containing_symbol", "string"), (7, "list_services", "string")),
    "ServerReflectionResponse": (
        (4, "file_descriptor_response", "FileDescriptorResponse"),
        (6, "list_services_response", "ListServiceResponse"),
        (7, "error_response", "ErrorResponse"),
    ),
    "FileDescriptorResponse": ((1, "file_descriptor_proto", "repeated bytes"),),
    "ListServiceResponse": ((1, "service", "repeated ServiceResponse"),),
    "ServiceResponse": ((1, "name", "string"),),
    "ErrorResponse": ((1, "error_code", "int32"),),
}


def messages(package: str, table: Mapping[str, Fields]) -> dict[str, Any]:
    """Message classes by name, in a pool of their own."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for number, field, type_ in fields:
            repeated, _, plain = type_.rpartition(" ")
            added = message.field.add(name=field, number=number)
            added.label = added.LABEL_REPEATED if repeated else added.LABEL_OPTIONAL
            if plain in _TYPES:
                added.type = _TYPES[plain]
            else:
                added.type, added.type_name = added.TYPE_MESSAGE, f".{package}.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in table
    }


class OldClient:
    """A stub of one service: ``client.Match(jobspec=…)``."""

    def __init__(
        self,
        channel: grpc.Channel,
        service: str,
        package: str,
        table: Mapping[str, Fields],
        **odd: tuple[str, str],
    ) -> None:
        """``odd``: methods whose messages are not called after them."""
        self._channel = channel
        self._service = service
        self._messages = messages(package, table)
        self._odd = odd

    def __getattr__(self, method: str) -> Any:
        asked, answered = self._odd.get(method, (f"{method}Request", f"{method}Response"))
        call = self._channel.unary_unary(
            f"/{self._service}/{method}",
            request_serializer=self._messages[asked].SerializeToString,
            response_deserializer=self._messages[answered].FromString,
        )

        def send(timeout: float = 30.0, **fields: Any) -> Any:
            return call(self._messages[asked](**fields), timeout=timeout)

        return send

    def message(self, name: str, **fields: Any) -> Any:
        return self._messages[name](**fields)


def fluxion(channel: grpc.Channel, *, old: bool = False) -> OldClient:
    return OldClient(channel, "fluxion.FluxionService", "fluxion", FLUXION_OLD if old else FLUXION)


def fluxnetes(channel: grpc.Channel) -> OldClient:
    return OldClient(channel, "fluxion.FluxionService", "fluxion", FLUXNETES)


def fluxcli(channel: grpc.Channel) -> OldClient:
    return OldClient(channel, "fluxcli.FluxcliService", "fluxcli", FLUXCLI)


def external(channel: grpc.Channel) -> OldClient:
    return OldClient(
        channel,
        "service.ExternalPluginService",
        "service",
        EXTERNAL,
        GetResources=("ResourceRequest", "ResourceResponse"),
        ListGroups=("GroupRequest", "GroupResponse"),
        GetGroup=("GroupRequest", "GroupResponse"),
    )


def reflected_services(channel: grpc.Channel) -> list[str]:
    """The names of the services that reflection v1 lists."""
    return [service.name for service in _reflect(channel, list_services="*").list_services_response.service]


def reflected_files(channel: grpc.Channel, symbol: str) -> list[bytes]:
    """The definitions that reflection v1 has of a symbol."""
    answer = _reflect(channel, file_containing_symbol=symbol)
    assert answer.error_response.error_code == (0 if answer.file_descriptor_response.ByteSize() else 5)
    return list(answer.file_descriptor_response.file_descriptor_proto)


def _reflect(channel: grpc.Channel, **fields: str) -> Any:
    known = messages("grpc.reflection.v1", REFLECTION)
    call = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=known["ServerReflectionRequest"].SerializeToString,
        response_deserializer=known["ServerReflectionResponse"].FromString,
    )
    (answer,) = call(iter([known["ServerReflectionRequest"](**fields)]), timeout=30)
    return answer
