from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATION_UNSPECIFIED: _ClassVar[Operation]
    ALLOCATE: _ClassVar[Operation]
    ALLOCATE_WITH_SATISFIABILITY: _ClassVar[Operation]
    ALLOCATE_ORELSE_RESERVE: _ClassVar[Operation]
    SATISFIABILITY: _ClassVar[Operation]
    WITHOUT_ALLOCATING: _ClassVar[Operation]
    WITHOUT_ALLOCATING_FUTURE: _ClassVar[Operation]
OPERATION_UNSPECIFIED: Operation
ALLOCATE: Operation
ALLOCATE_WITH_SATISFIABILITY: Operation
ALLOCATE_ORELSE_RESERVE: Operation
SATISFIABILITY: Operation
WITHOUT_ALLOCATING: Operation
WITHOUT_ALLOCATING_FUTURE: Operation

class MatchRequest(_message.Message):
    __slots__ = ("graph", "operation", "jobspec", "job", "now", "name", "format", "explain")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    JOBSPEC_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    graph: str
    operation: Operation
    jobspec: str
    job: int
    now: int
    name: str
    format: str
    explain: bool
    def __init__(self, graph: _Optional[str] = ..., operation: _Optional[_Union[Operation, str]] = ..., jobspec: _Optional[str] = ..., job: _Optional[int] = ..., now: _Optional[int] = ..., name: _Optional[str] = ..., format: _Optional[str] = ..., explain: _Optional[bool] = ...) -> None: ...

class MatchResponse(_message.Message):
    __slots__ = ("job", "at", "end", "reserved", "allocation", "shares", "seconds")
    JOB_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    job: int
    at: int
    end: int
    reserved: bool
    allocation: str
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    seconds: float
    def __init__(self, job: _Optional[int] = ..., at: _Optional[int] = ..., end: _Optional[int] = ..., reserved: _Optional[bool] = ..., allocation: _Optional[str] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ..., seconds: _Optional[float] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("name", "rank", "is_node", "is_whole", "amounts")
    class AmountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    IS_NODE_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    AMOUNTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    rank: int
    is_node: bool
    is_whole: bool
    amounts: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., rank: _Optional[int] = ..., is_node: _Optional[bool] = ..., is_whole: _Optional[bool] = ..., amounts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("graph", "jobspec", "now")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    JOBSPEC_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    graph: str
    jobspec: str
    now: int
    def __init__(self, graph: _Optional[str] = ..., jobspec: _Optional[str] = ..., now: _Optional[int] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("verdict", "nearest", "blocking", "earliest_end", "levels", "lines")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    NEAREST_FIELD_NUMBER: _ClassVar[int]
    BLOCKING_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_END_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    verdict: str
    nearest: str
    blocking: _containers.RepeatedScalarFieldContainer[int]
    earliest_end: int
    levels: _containers.RepeatedCompositeFieldContainer[Level]
    lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, verdict: _Optional[str] = ..., nearest: _Optional[str] = ..., blocking: _Optional[_Iterable[int]] = ..., earliest_end: _Optional[int] = ..., levels: _Optional[_Iterable[_Union[Level, _Mapping]]] = ..., lines: _Optional[_Iterable[str]] = ...) -> None: ...

class Level(_message.Message):
    __slots__ = ("path", "wanted", "considered", "fit", "causes", "lacks", "hint")
    class CausesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LacksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PATH_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    CONSIDERED_FIELD_NUMBER: _ClassVar[int]
    FIT_FIELD_NUMBER: _ClassVar[int]
    CAUSES_FIELD_NUMBER: _ClassVar[int]
    LACKS_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    path: str
    wanted: str
    considered: int
    fit: int
    causes: _containers.ScalarMap[str, int]
    lacks: _containers.ScalarMap[str, int]
    hint: str
    def __init__(self, path: _Optional[str] = ..., wanted: _Optional[str] = ..., considered: _Optional[int] = ..., fit: _Optional[int] = ..., causes: _Optional[_Mapping[str, int]] = ..., lacks: _Optional[_Mapping[str, int]] = ..., hint: _Optional[str] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("graph", "job", "missing_ok")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    MISSING_OK_FIELD_NUMBER: _ClassVar[int]
    graph: str
    job: int
    missing_ok: bool
    def __init__(self, graph: _Optional[str] = ..., job: _Optional[int] = ..., missing_ok: _Optional[bool] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("existed",)
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    existed: bool
    def __init__(self, existed: _Optional[bool] = ...) -> None: ...

class PartialCancelRequest(_message.Message):
    __slots__ = ("graph", "job", "text", "reader", "missing_ok")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    MISSING_OK_FIELD_NUMBER: _ClassVar[int]
    graph: str
    job: int
    text: str
    reader: str
    missing_ok: bool
    def __init__(self, graph: _Optional[str] = ..., job: _Optional[int] = ..., text: _Optional[str] = ..., reader: _Optional[str] = ..., missing_ok: _Optional[bool] = ...) -> None: ...

class PartialCancelResponse(_message.Message):
    __slots__ = ("whole_job", "paths")
    WHOLE_JOB_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    whole_job: bool
    paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, whole_job: _Optional[bool] = ..., paths: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdateRequest(_message.Message):
    __slots__ = ("graph", "job", "text", "reader", "at", "duration", "now", "name", "format")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    graph: str
    job: int
    text: str
    reader: str
    at: int
    duration: int
    now: int
    name: str
    format: str
    def __init__(self, graph: _Optional[str] = ..., job: _Optional[int] = ..., text: _Optional[str] = ..., reader: _Optional[str] = ..., at: _Optional[int] = ..., duration: _Optional[int] = ..., now: _Optional[int] = ..., name: _Optional[str] = ..., format: _Optional[str] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ("graph", "job", "format")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    graph: str
    job: int
    format: str
    def __init__(self, graph: _Optional[str] = ..., job: _Optional[int] = ..., format: _Optional[str] = ...) -> None: ...

class JobInfo(_message.Message):
    __slots__ = ("job", "name", "state", "at", "end", "size", "allocation", "shares", "reason")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job: int
    name: str
    state: str
    at: int
    end: int
    size: int
    allocation: str
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    reason: str
    def __init__(self, job: _Optional[int] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., at: _Optional[int] = ..., end: _Optional[int] = ..., size: _Optional[int] = ..., allocation: _Optional[str] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("graph", "limit", "after")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    graph: str
    limit: int
    after: int
    def __init__(self, graph: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "total", "more")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobInfo]
    total: int
    more: bool
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobInfo, _Mapping]]] = ..., total: _Optional[int] = ..., more: _Optional[bool] = ...) -> None: ...

class WatchPlanRequest(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: str
    def __init__(self, graph: _Optional[str] = ...) -> None: ...

class PlanEvent(_message.Message):
    __slots__ = ("type", "job")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TYPE_UNSPECIFIED: _ClassVar[PlanEvent.Type]
        ADDED: _ClassVar[PlanEvent.Type]
        CHANGED: _ClassVar[PlanEvent.Type]
        REMOVED: _ClassVar[PlanEvent.Type]
        SYNCED: _ClassVar[PlanEvent.Type]
    TYPE_UNSPECIFIED: PlanEvent.Type
    ADDED: PlanEvent.Type
    CHANGED: PlanEvent.Type
    REMOVED: PlanEvent.Type
    SYNCED: PlanEvent.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    type: PlanEvent.Type
    job: JobInfo
    def __init__(self, type: _Optional[_Union[PlanEvent.Type, str]] = ..., job: _Optional[_Union[JobInfo, _Mapping]] = ...) -> None: ...

class LoadGraphRequest(_message.Message):
    __slots__ = ("graph", "text", "format", "policy", "allow", "replace", "prune_filters", "pools")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    PRUNE_FILTERS_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    graph: str
    text: str
    format: str
    policy: str
    allow: _containers.RepeatedScalarFieldContainer[str]
    replace: bool
    prune_filters: str
    pools: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, graph: _Optional[str] = ..., text: _Optional[str] = ..., format: _Optional[str] = ..., policy: _Optional[str] = ..., allow: _Optional[_Iterable[str]] = ..., replace: _Optional[bool] = ..., prune_filters: _Optional[str] = ..., pools: _Optional[_Iterable[str]] = ...) -> None: ...

class GraphInfo(_message.Message):
    __slots__ = ("graph", "policy", "vertices", "jobs", "read_only", "source")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    VERTICES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    graph: str
    policy: str
    vertices: int
    jobs: int
    read_only: bool
    source: str
    def __init__(self, graph: _Optional[str] = ..., policy: _Optional[str] = ..., vertices: _Optional[int] = ..., jobs: _Optional[int] = ..., read_only: _Optional[bool] = ..., source: _Optional[str] = ...) -> None: ...

class UnloadGraphRequest(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: str
    def __init__(self, graph: _Optional[str] = ...) -> None: ...

class UnloadGraphResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: int
    def __init__(self, jobs: _Optional[int] = ...) -> None: ...

class ListGraphsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGraphsResponse(_message.Message):
    __slots__ = ("graphs",)
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    graphs: _containers.RepeatedCompositeFieldContainer[GraphInfo]
    def __init__(self, graphs: _Optional[_Iterable[_Union[GraphInfo, _Mapping]]] = ...) -> None: ...

class GetGraphRequest(_message.Message):
    __slots__ = ("graph", "format")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    graph: str
    format: str
    def __init__(self, graph: _Optional[str] = ..., format: _Optional[str] = ...) -> None: ...

class GetGraphResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class FindRequest(_message.Message):
    __slots__ = ("graph", "criteria", "now", "format")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    CRITERIA_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    graph: str
    criteria: str
    now: int
    format: str
    def __init__(self, graph: _Optional[str] = ..., criteria: _Optional[str] = ..., now: _Optional[int] = ..., format: _Optional[str] = ...) -> None: ...

class FindResponse(_message.Message):
    __slots__ = ("text", "paths")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    text: str
    paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, text: _Optional[str] = ..., paths: _Optional[_Iterable[str]] = ...) -> None: ...

class StatRequest(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: str
    def __init__(self, graph: _Optional[str] = ...) -> None: ...

class StatResponse(_message.Message):
    __slots__ = ("vertices", "edges", "jobs", "matches", "failures", "load_seconds", "min_seconds", "max_seconds", "avg_seconds", "types")
    VERTICES_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    LOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    AVG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    vertices: int
    edges: int
    jobs: int
    matches: int
    failures: int
    load_seconds: float
    min_seconds: float
    max_seconds: float
    avg_seconds: float
    types: _containers.RepeatedCompositeFieldContainer[TypeCount]
    def __init__(self, vertices: _Optional[int] = ..., edges: _Optional[int] = ..., jobs: _Optional[int] = ..., matches: _Optional[int] = ..., failures: _Optional[int] = ..., load_seconds: _Optional[float] = ..., min_seconds: _Optional[float] = ..., max_seconds: _Optional[float] = ..., avg_seconds: _Optional[float] = ..., types: _Optional[_Iterable[_Union[TypeCount, _Mapping]]] = ...) -> None: ...

class TypeCount(_message.Message):
    __slots__ = ("type", "count", "size", "down")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    type: str
    count: int
    size: int
    down: int
    def __init__(self, type: _Optional[str] = ..., count: _Optional[int] = ..., size: _Optional[int] = ..., down: _Optional[int] = ...) -> None: ...

class GrowRequest(_message.Message):
    __slots__ = ("graph", "jgf")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    JGF_FIELD_NUMBER: _ClassVar[int]
    graph: str
    jgf: str
    def __init__(self, graph: _Optional[str] = ..., jgf: _Optional[str] = ...) -> None: ...

class GrowResponse(_message.Message):
    __slots__ = ("vertices",)
    VERTICES_FIELD_NUMBER: _ClassVar[int]
    vertices: int
    def __init__(self, vertices: _Optional[int] = ...) -> None: ...

class ShrinkRequest(_message.Message):
    __slots__ = ("graph", "paths")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    graph: str
    paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, graph: _Optional[str] = ..., paths: _Optional[_Iterable[str]] = ...) -> None: ...

class ShrinkResponse(_message.Message):
    __slots__ = ("vertices", "jobs")
    VERTICES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    vertices: int
    jobs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, vertices: _Optional[int] = ..., jobs: _Optional[_Iterable[int]] = ...) -> None: ...

class SetStatusRequest(_message.Message):
    __slots__ = ("graph", "path", "down")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    graph: str
    path: str
    down: bool
    def __init__(self, graph: _Optional[str] = ..., path: _Optional[str] = ..., down: _Optional[bool] = ...) -> None: ...

class SetStatusResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
