"""Random sessions of resource-query: graphs, jobspecs and commands, the same for the same seed.

They use what Fluxion 0.54 offers and keep away from what docs/matcher.md lists as a difference, so that a
session which two programs answer differently is worth a look. `tests.conformance.compare` runs them.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from fluence.graph import files
from tests.conformance.sessions import QuerySession, run_here

Json = dict[str, Any]

POLICIES = (
    *(
        "first",
        "firstnodex",
        "low",
        "high",
        "lonode",
        "hinode",
        "lonodex",
        "hinodex",
        "locality",
        "variation",
    ),
    *("policy=low node_centric=true", "policy=high stop_on_1_matches=true", "policy=low node_exclusive=true"),
)
FILTERS = (
    *("ALL:core", "ALL:node", "ALL:core,ALL:node", "ALL:core,ALL:gpu,ALL:node", "cluster:node,node:core"),
    *("rack:node,node:core", "node:gpu,ALL:core", "ALL:memory,ALL:core", "ALL:slot"),
)
FORMATS = (
    *("simple", "pretty_simple", "jgf", "jgf_shorthand", "rlite", "rv1_nosched"),
    *("rv1", "rv1_shorthand"),
)
OPERATIONS = (
    *("allocate", "allocate_orelse_reserve", "allocate_with_satisfiability"),
    *("satisfiability", "without_allocating", "without_allocating_future"),
)
PROPERTIES = ("arm", "fast", "gpunode", "ssd-node", "perf_class")
_DURATIONS = (0, 0.5, 10.2, 50, 60, 60, 600, 3600, 31536000, 3153600000)


@dataclass
class RandomGraph:
    """A JGF document, and what a generator wants to know about it."""

    document: Json
    levels: list[str]  # from the cluster to what holds the leaves
    paths: list[str] = field(default_factory=list)
    nodes: dict[int, str] = field(default_factory=dict)  # rank -> name
    parts: dict[int, dict[str, list[int]]] = field(default_factory=dict)  # rank -> type -> ids


def generate(seed: int, folder: Path) -> QuerySession:
    """One session; the documents that it names are written into the folder."""
    dice = random.Random(seed)
    graph, arguments = _input(dice, folder)
    arguments += ["-P", dice.choice(POLICIES), "-F", dice.choice(FORMATS)]
    if dice.random() < 0.4:
        arguments += ["-p", dice.choice(FILTERS)]
    if dice.random() < 0.1:
        # A graph has no other subsystem than containment: to match in all of them is refused.
        arguments += ["-S", dice.choice(("CA", "CA", "CA", "ALL"))]
    if dice.random() < 0.1:
        arguments += ["-r", dice.choice(("0", "100000", "abc", "-1"))]
    flexible = dice.random() < 0.15
    if flexible:
        arguments += ["-T", "flexible"]
    arguments += ["-t", "OUT"]
    kinds: tuple[str, ...] = dice.choice(
        (("match",), ("match", "look"), ("match", "look", "status"), ("match", "look", "change"))
    )
    if arguments[3] != "jgf":
        kinds = tuple(kind for kind in kinds if kind != "change")  # which are made from the JGF
    lines: list[str] = []
    jobs = 0
    for number in range(dice.randint(4, 16)):
        kind = dice.choice(kinds) if dice.random() < 0.4 else "match"
        if kind == "match" and jobs and dice.random() < 0.2:
            lines.append(f"cancel {dice.randint(1, jobs)}{dice.choice(('', ' stats'))}")
        elif kind == "match":
            operation = dice.choice(OPERATIONS[:3] if dice.random() < 0.8 else OPERATIONS)
            names = []
            for part in range(dice.randint(2, 3) if dice.random() < 0.1 else 1):
                names.append(f"job-{number}-{part}.json")
                (folder / names[-1]).write_text(json.dumps(random_jobspec(dice, graph, flexible=flexible)))
            lines.append(f"{'multi-match' if len(names) > 1 else 'match'} {operation} {' '.join(names)}")
            jobs += len(names)
        elif kind == "look":
            lines.append(_look(dice, graph, jobs))
        elif kind == "status":
            lines.append(f"set-status {dice.choice(graph.paths)} {dice.choice(('up', 'down'))}")
        else:
            lines.extend(
                _change(dice, graph, folder, number, QuerySession(tuple(arguments), tuple(lines), folder))
            )
    lines.append("find sched-now=allocated")
    return _without_listed(QuerySession(tuple(arguments), tuple(lines), folder))


def _without_listed(session: QuerySession) -> QuerySession:
    """The session without what docs/matcher.md lists: what a writer of Fluxion's keeps for its next document.

    A search that is left out leaves the rest as it is; after a job, or a duration that Fluxion refuses too
    late, the session ends.
    """
    format_ = session.arguments[session.arguments.index("-F") + 1]
    shown = run_here(_with_format(session, "simple")).per_command
    written = run_here(session).per_command
    lines: list[str] = []
    for line, simple, answer in zip(session.lines, shown, written, strict=False):
        vertices = sum(text.startswith(" ") for text in simple)
        documents = sum(text.startswith("{") for text in answer)
        if line.startswith("find"):
            unwritten = vertices == 1 and format_.startswith(("jgf", "rv1"))
            if unwritten or (vertices and not documents and format_.startswith("rv1")):
                continue
        placed = sum(text.startswith("INFO: RESOURCES=") for text in simple)
        lines.append(line)
        if placed > documents and format_ in ("rv1", "rv1_shorthand"):
            return replace(session, lines=tuple(lines[:-1]))
        if line.startswith(("match", "multi-match")) and _beyond(session.folder, line):
            return replace(session, lines=tuple(lines))
    return replace(session, lines=tuple(lines)) if written else session


def _beyond(folder: Path, line: str) -> bool:
    names = line.split()[2:]
    systems = [json.loads((folder / name).read_text())["attributes"]["system"] for name in names]
    return any(system["duration"] > max(_DURATIONS) for system in systems)


# -- inputs --------------------------------------------------------------------------------------------------


def _input(dice: random.Random, folder: Path) -> tuple[RandomGraph, list[str]]:
    """A graph in one of the formats, and the options that load it."""
    kind = dice.random()
    if kind < 0.76:
        graph = random_graph(dice)
        (folder / "graph.json").write_text(json.dumps(graph.document))
        return graph, ["-L", "graph.json", "-f", "jgf"]
    if kind < 0.84:
        text, name, format_ = _recipe(dice), "graph.graphml", "grug"
    elif kind < 0.92:
        text, name, format_ = _r(dice), "graph.R", "rv1exec"
    else:
        text, name, format_ = _topology(dice), "graph.xml", "hwloc"
    (folder / name).write_text(text)
    allow = dice.choice((None, "node,core,gpu", "node,socket,core")) if format_ == "hwloc" else None
    read = files.graph_of(text.encode(), format_, source=name, allow=allow and allow.split(","))
    there = {read.type_name(row) for row in range(read.rows)}
    graph = RandomGraph({}, [level for level in ("cluster", "rack", "node", "socket") if level in there])
    for row in range(read.rows):
        graph.paths.append(read.path(row) or "")
        rank, type_ = int(read.rank[row]), read.type_name(row)
        if type_ == "node":
            graph.nodes[rank] = read.name[row]
    return graph, ["-L", name, "-f", format_, *(("-W", allow) if allow else ())]


def _recipe(dice: random.Random) -> str:
    """Racks of nodes of cores, by their numbers."""
    keys = {"root": "int", "type": "string", "basename": "string", "size": "long", "subsystem": "string"}
    along = {
        "e_subsystem": "containment",
        "relation": "contains",
        "rrelation": "in",
        "gen_method": "MULTIPLY",
    }
    text = ['<graphml xmlns="http://graphml.graphdrawing.org/xmlns">']
    for key, type_ in keys.items():
        text.append(f'<key id="{key}" for="node" attr.name="{key}" attr.type="{type_}"/>')
    for key in along:
        text.append(f'<key id="{key}" for="edge" attr.name="{key}" attr.type="string"/>')
    for key in ("multi_scale", "id_scope", "id_start", "id_stride"):
        text.append(f'<key id="{key}" for="edge" attr.name="{key}" attr.type="int"/>')
    text.append('<graph id="g" edgedefault="directed">')
    levels = ["cluster", *dice.choice(((), ("rack",))), "node", *dice.choice(((), ("socket",))), "core"]
    for level in levels:
        root = '<data key="root">1</data>' if level == "cluster" else '<data key="root">0</data>'
        text.append(
            f'<node id="{level}">{root}<data key="type">{level}</data><data key="basename">{level}</data>'
            '<data key="size">1</data><data key="subsystem">containment</data></node>'
        )
    for above, below in pairwise(levels):
        scope = 1 if below == "node" else 0
        numbers = {"multi_scale": dice.randint(1, 4), "id_scope": scope, "id_start": 0, "id_stride": 1}
        data = "".join(f'<data key="{key}">{value}</data>' for key, value in (along | numbers).items())
        text.append(f'<edge source="{above}" target="{below}">{data}</edge>')
    return "\n".join((*text, "</graph></graphml>", ""))


def _r(dice: random.Random) -> str:
    """An R whose ranks have different cores and gpus."""
    ranks = range(dice.randint(1, 5))
    entries = []
    for rank in ranks:
        children = {"core": f"0-{dice.randint(1, 7)}"}
        if dice.random() < 0.4:
            children["gpu"] = "0-1"
        entries.append({"rank": str(rank), "children": children})
    execution: Json = {"R_lite": entries, "nodelist": [f"tux{rank}" for rank in ranks]}
    execution |= {"starttime": 0, "expiration": 0}
    if dice.random() < 0.5:
        execution["properties"] = {dice.choice(PROPERTIES): str(dice.choice(ranks))}
    return json.dumps({"version": 1, "execution": execution})


def _topology(dice: random.Random) -> str:
    """One machine with packages of cores."""

    def element(type_: str, first: int, count: int, inside: str, **more: object) -> str:
        mask = f"0x{((1 << count) - 1) << first:08x}"
        words = " ".join(f'{key}="{value}"' for key, value in more.items())
        return (
            f'<object type="{type_}" cpuset="{mask}" complete_cpuset="{mask}" nodeset="0x1" {words}>'
            f"{inside}</object>"
        )

    sockets, cores = dice.randint(1, 3), dice.randint(1, 4)
    packages = ""
    for socket in range(sockets):
        first = socket * cores
        inside = "".join(
            element("Core", at, 1, element("PU", at, 1, "", os_index=at), os_index=at)
            for at in range(first, first + cores)
        )
        packages += element("Package", first, cores, inside, os_index=socket)
    host = '<info name="HostName" value="tux7"/>'
    root = element("Machine", 0, sockets * cores, host + packages, os_index=0)
    head = '<?xml version="1.0"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'
    return f'{head}<topology version="2.0">{root}</topology>'


# -- graphs --------------------------------------------------------------------------------------------------


def random_graph(dice: random.Random) -> RandomGraph:
    levels = ["cluster"]
    if dice.random() < 0.4:
        levels.append("rack")
    levels.append("node")
    if dice.random() < 0.3:
        levels.append("socket")
    graph = RandomGraph({"graph": {"nodes": [], "edges": []}}, levels)
    rank = dice.choice((0, 3))
    root = _vertex(graph, "cluster", 0, None, -1, {})
    racks = [root]
    if "rack" in levels:
        racks = [_vertex(graph, "rack", i, root, -1, {}) for i in range(dice.randint(1, 3))]
    prefix, step = dice.choice(("node", "n-", "tux")), dice.choice((1, 1, 7))
    bare = dice.random() < 0.5
    # A rack or a socket with nothing below it would be a leaf, and its type one that Fluxion counts too late.
    for number in range(max(len(racks), dice.randint(2, 22 if dice.random() < 0.2 else 6))):
        more: Json = {"name": f"{prefix}{number * step}"}
        if not bare:
            chosen = dice.sample(PROPERTIES, dice.randint(0, 3))
            more["properties"] = {key: dice.choice(("", "1", "amd", "x y")) for key in chosen}
        if dice.random() < 0.03:
            more["status"] = 1
        node = _vertex(graph, "node", number * step, racks[number % len(racks)], rank, more)
        graph.nodes[rank] = more["name"]
        graph.parts[rank] = {}
        holders = [node]
        if "socket" in levels:
            holders = [_vertex(graph, "socket", i, node, rank, {}) for i in range(2)]
        for type_, most, size in (("core", 8, 1), ("gpu", 3, 1), ("memory", 1, dice.choice((2, 4, 16)))):
            count = dice.randint(len(holders) if type_ == "core" else 0, most)
            ids = graph.parts[rank].setdefault(type_, [])
            for index in range(count):
                holder = holders[index * len(holders) // count]
                _vertex(graph, type_, index, holder, rank, {"size": size} if size > 1 else {})
                ids.append(index)
        rank += 1
    if dice.random() < 0.2:
        _vertex(graph, "licence", 0, root, -1, {"size": 5})
    return graph


def _vertex(graph: RandomGraph, type_: str, id_: int, above: Json | None, rank: int, more: Json) -> Json:
    name = more.get("name", f"{type_}{id_}")
    path = f"{above['metadata']['paths']['containment'] if above else ''}/{name}"
    nodes, edges = graph.document["graph"]["nodes"], graph.document["graph"]["edges"]
    vertex: Json = {
        "id": str(len(nodes)),
        "metadata": {"type": type_, "id": id_, "rank": rank, **more, "paths": {"containment": path}},
    }
    nodes.append(vertex)
    graph.paths.append(path)
    if above is not None:
        edges.append({"source": above["id"], "target": vertex["id"]})
    return vertex


# -- jobspecs ------------------------------------------------------------------------------------------------


def random_jobspec(dice: random.Random, graph: RandomGraph, *, flexible: bool) -> Json:
    system: Json = {"duration": dice.choice(_DURATIONS)}
    if dice.random() < 0.02:
        system["duration"] = 4e9
    if dice.random() < 0.15:
        system["constraints"] = _constraint(dice, graph, 2)
    if dice.random() < 0.1:
        system["queue"] = "batch"
    return {
        "version": 9999,
        "resources": [_resource(dice, graph, flexible=flexible)] if dice.random() > 0.01 else [],
        "tasks": [{"command": ["a"], "slot": "default", "count": {"per_slot": 1}}],
        "attributes": {"system": system},
    }


def _resource(dice: random.Random, graph: RandomGraph, *, flexible: bool) -> Json:
    """A chain from some level down, with a slot somewhere, or without one and something exclusive."""
    start = dice.randint(0, len(graph.levels) - 1)
    chain = graph.levels[start:]
    leaves = [
        _leaf(dice, type_) for type_ in dice.sample(("core", "gpu", "memory"), dice.choice((1, 1, 1, 2)))
    ]
    if not any(leaf["type"] == "core" for leaf in leaves) and dice.random() < 0.7:
        leaves = [_leaf(dice, "core")]
    if dice.random() < 0.15 and len(chain) > 1:
        chain, leaves = chain[:-1], []  # whole vertices: nothing below them is named
    at = dice.randint(0, len(chain) - (not leaves))
    slotless = dice.random() < 0.1
    below = leaves
    for index in range(len(chain), -1, -1):
        if index == at and not slotless:
            below = _slots(dice, below, flexible=flexible) if below else below
        if index:
            one: Json = {
                "type": chain[index - 1],
                "count": 1 if chain[index - 1] == "cluster" else _count(dice, 3),
            }
            if below:
                one["with"] = below
            # An exclusive cluster is one vertex and no edge in the shorthand, which Fluxion cannot write.
            if dice.random() < (0.5 if slotless else 0.1) and chain[index - 1] != "cluster":
                one["exclusive"] = True
            below = [one]
    found: Json = below[0] if below else {"type": "node", "count": 1, "exclusive": True}
    return found


def _slots(dice: random.Random, below: list[Json], *, flexible: bool) -> list[Json]:
    kind = "slot"
    slots: list[Json] = [{"type": kind, "count": _count(dice, 3), "label": "default", "with": below}]
    leaves = all("with" not in need for need in below)
    if flexible and leaves and dice.random() < 0.7:
        kind = dice.choice(("slot", "xor_slot"))
        slots[0]["type"] = kind
        for number in range(dice.randint(1, 2)):
            other = [
                _leaf(dice, type_) for type_ in dice.sample(("core", "gpu", "memory"), dice.choice((1, 2)))
            ]
            slots.append({"type": kind, "count": _count(dice, 3), "label": f"s{number}", "with": other})
    return slots


def _leaf(dice: random.Random, type_: str) -> Json:
    leaf: Json = {"type": type_, "count": _count(dice, 4)}
    if dice.random() < 0.05:
        leaf["exclusive"] = dice.choice((True, True, False))
    return leaf


def _count(dice: random.Random, most: int) -> int | Json:
    least = dice.randint(1, most)
    if dice.random() < 0.8:
        return least
    if dice.random() < 0.3:
        return {"min": least}
    operator, operand = dice.choice((("+", 1), ("+", 2), ("*", 2), ("*", 3), ("^", 2)))
    least = max(least, 2) if operator == "^" else least
    return {"min": least, "max": least + dice.randint(0, 6), "operator": operator, "operand": operand}


def _constraint(dice: random.Random, graph: RandomGraph, depth: int) -> Json:
    kind = dice.choice(("properties", "hostlist", "ranks", "and", "or", "not")[: 3 if not depth else None])
    if kind == "properties":
        return {
            kind: [dice.choice(("", "", "^")) + dice.choice(PROPERTIES) for _ in range(dice.randint(1, 2))]
        }
    if kind == "hostlist":
        return {kind: [dice.choice(list(graph.nodes.values())) for _ in range(dice.randint(1, 3))]}
    if kind == "ranks":
        low = dice.choice(list(graph.nodes))
        return {kind: [f"{low}-{low + dice.randint(0, 3)}"]}
    return {kind: [_constraint(dice, graph, depth - 1) for _ in range(dice.randint(1, 2))]}


# -- other commands ------------------------------------------------------------------------------------------


def _look(dice: random.Random, graph: RandomGraph, jobs: int) -> str:
    path = dice.choice(graph.paths)
    kind = dice.random()
    if kind < 0.15:
        return f"set-property {path} {dice.choice(PROPERTIES)}={dice.choice(('1', 'amd'))}"
    if kind < 0.3:
        return dice.choice((f"get-property {path}", f"get-status {path}"))
    terms = [_predicate(dice, graph, jobs) for _ in range(dice.choice((1, 1, 1, 2)))]
    return f"find {dice.choice((' and ', ' or ', ' ')).join(terms)}"


def _predicate(dice: random.Random, graph: RandomGraph, jobs: int) -> str:
    job = dice.randint(1, jobs + 1)
    return dice.choice(
        (
            *("status=up", "status=down", "sched-now=allocated", "sched-now=free", "sched-future=reserved"),
            *("sched-future=free", f"property={dice.choice(PROPERTIES)}", "agfilter=true"),
            *(f"jobid-alloc={job}", f"jobid-reserved=0x{job:x}", f"jobid-tag={job}", f"jobid-span={job}"),
            f"names={dice.choice(list(graph.nodes.values()))}",
        )
    )


def _change(
    dice: random.Random, graph: RandomGraph, folder: Path, number: int, so_far: QuerySession
) -> list[str]:
    """Commands that change the graph, or give back a part of a job that holds whole nodes."""
    kind = dice.random()
    name = f"change-{number}.json"
    ranks = list(graph.nodes)
    if kind < 0.25:
        rank = max(ranks) + 1
        more = RandomGraph({"graph": {"nodes": [], "edges": []}}, graph.levels)
        for vertex in graph.document["graph"]["nodes"]:
            if vertex["metadata"]["type"] in ("cluster", "rack"):
                more.document["graph"]["nodes"].append(vertex)
        tops = more.document["graph"]["nodes"]
        more.document["graph"]["edges"] = [
            edge for edge in graph.document["graph"]["edges"] if edge["target"] in {top["id"] for top in tops}
        ]
        above = tops[-1]
        path = f"{above['metadata']['paths']['containment']}/new{rank}"
        node = {
            "id": str(1000 + 20 * number),
            "metadata": {
                "type": "node",
                "id": rank,
                "name": f"new{rank}",
                "rank": rank,
                "paths": {"containment": path},
            },
        }
        tops.append(node)
        more.document["graph"]["edges"].append({"source": above["id"], "target": node["id"]})
        for index in range(dice.randint(1, 4)):
            core = {
                "id": str(1001 + 20 * number + index),
                "metadata": {
                    "type": "core",
                    "id": index,
                    "rank": rank,
                    "paths": {"containment": f"{path}/core{index}"},
                },
            }
            tops.append(core)
            more.document["graph"]["edges"].append({"source": node["id"], "target": core["id"]})
        (folder / name).write_text(json.dumps(more.document))
        graph.nodes[rank] = f"new{rank}"
        graph.paths.append(path)
        return [f"attach {name}"]
    if kind < 0.4:
        # Fluxion does not survive the removal of the oldest child, nor, under `first`, of the fullest, after
        # which nothing is compared.
        first = "first" in str(so_far.arguments)
        return [f"remove {max(ranks)} false"] if not first or dice.random() < 0.2 else []
    if kind < 0.6 and "socket" not in graph.levels and "rack" not in graph.levels:
        rank = dice.choice([rank for rank in ranks if rank in graph.parts])
        cores = graph.parts[rank]["core"]
        taken = sorted(dice.sample(cores, dice.randint(1, len(cores))))
        document = {
            "version": 1,
            "execution": {
                "R_lite": [{"rank": str(rank), "children": {"core": ",".join(map(str, taken))}}],
                "nodelist": [graph.nodes[rank]],
                "starttime": 0,
                "expiration": 0,
            },
        }
        (folder / name).write_text(json.dumps(document))
        return [f"update allocate rv1exec {name} {100 + number} 0 {dice.choice((60, 3600))}"]
    if kind < 0.85:
        return _moved(dice, folder, name, number, so_far)
    held = [
        (int(line.partition("=")[2]), json.loads(answer[0]))
        for answer in run_here(_with_format(so_far, "rv1_nosched")).per_command
        for line in answer
        if line.startswith("INFO: JOBID=")
        and answer[0].startswith("{")
        and "RESOURCES=ALLOCATED" in str(answer)
    ]
    if not held:
        return []
    job, document = dice.choice(held)
    if any("rack" in text and text.endswith(":x]") for text in _shown(so_far, job)):
        return []  # Fluxion never gives back what is exclusive above the ranks
    entries = document["execution"]["R_lite"]
    kept = dice.choice(entries)
    document["execution"]["R_lite"] = [kept]
    (folder / name).write_text(json.dumps(document))
    return [f"partial-cancel {job} rv1exec {name}"]


def _shown(session: QuerySession, job: int) -> tuple[str, ...]:
    """What a job holds, line by line."""
    answers = run_here(_with_format(session, "simple")).per_command
    wanted = {f"INFO: JOBID={job}", "INFO: RESOURCES=ALLOCATED"}
    return next((answer for answer in reversed(answers) if wanted <= set(answer)), ())


def _moved(dice: random.Random, folder: Path, name: str, number: int, so_far: QuerySession) -> list[str]:
    """A job is cancelled, and re-created under another id from the JGF that was written for it."""
    held = [
        (int(line.partition("=")[2]), answer[0])
        for answer in run_here(_with_format(so_far, "jgf")).per_command
        for line in answer
        if line.startswith("INFO: JOBID=")
        and answer[0].startswith('{"graph"')
        and "RESOURCES=ALLOCATED" in str(answer)
    ]
    if not held:
        return []
    job, text = dice.choice(held)
    (folder / name).write_text(text)
    return [f"cancel {job}", f"update allocate jgf {name} {200 + number} 0 {dice.choice((60, 3600))}"]


def _with_format(session: QuerySession, format_: str) -> QuerySession:
    arguments = list(session.arguments)
    arguments[arguments.index("-F") + 1] = format_
    return QuerySession(tuple(arguments), session.lines, session.folder)
