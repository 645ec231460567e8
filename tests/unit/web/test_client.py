"""The commands against a server: what they ask for and show, also where the view API does not answer."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from fluence import names
from fluence.commands.view_api import BASE, PAGE
from fluence.database_url import VARIABLES, parse_url
from fluence.store.history_store import HistoryStore
from tests.integration.store.entries import over

Answer = Callable[[str, dict[str, str]], tuple[int, Any]]


class Server:
    """Answers by a function of path and query; remembers what was asked."""

    def __init__(self, folder: Path) -> None:
        self.answer: Answer = lambda path, query: (404, {})
        self.asked: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.sent: list[bytes] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                outer.asked.append((url.path, query, dict(self.headers)))
                status, body = outer.answer(url.path, query)
                if status == 200 and query.get("watch") == "true":
                    self.stream(body)
                    return
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_PATCH(self) -> None:
                outer.sent.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.do_GET()

            do_POST = do_PATCH

            def stream(self, pages: Iterable[Any]) -> None:
                """Server-sent events, as the scheduler writes them; then the stream ends."""
                self.close_connection = True
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for each in pages:
                    data = json.dumps(each, separators=(",", ":")).encode()
                    self.wfile.write(b"event: list\ndata: " + data + b"\n\n: still here\n\n")
                    self.wfile.flush()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.kubeconfig = folder / "kubeconfig"
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        document = {
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "ann's"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "physics"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(document))

    def run(self, *arguments: str, then: str = "") -> tuple[int, str, str]:
        code = (
            "import sys\nfrom fluence.kubectl.commands import run\n"
            f"code = run(sys.argv[1:])\n{then}\nsys.exit(code)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments, "--kubeconfig", str(self.kubeconfig)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    def follow(self, *arguments: str, lines: int) -> tuple[list[str], str]:
        """The first lines of a command that does not end, and what is on stderr then."""
        # As the program starts: an interrupt that comes in a finalizer comes again.
        code = "from fluence.entry import kubectl_fluence; kubectl_fluence()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments, "--kubeconfig", str(self.kubeconfig)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        timer = threading.Timer(120, process.kill)
        timer.start()
        assert process.stdout is not None and process.stderr is not None
        try:
            shown = [process.stdout.readline().rstrip("\n") for _ in range(lines)]
        finally:
            timer.cancel()
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=120)
        return shown, told


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def page(items: list[dict[str, Any]], follows: str = "") -> dict[str, Any]:
    meta = {
        "resourceVersion": "1",
        "taken": "2026-09-01T12:00:00Z",
        "scheduler": "fluence",
        "continue": follows,
    }
    return {"kind": "QueueList", "metadata": meta, "items": items}


ROW = {"state": "pending", "position": 1, "namespace": "physics", "name": "train", "pods": 4, "minimum": 4}


def test_pages_are_read_to_the_end_with_the_users_token(server: Server) -> None:
    def answer(path: str, query: dict[str, str]) -> tuple[int, Any]:
        if query.get("continue") == "1.1":
            return 200, page([{**ROW, "name": "second", "position": 2}])
        return 200, page([ROW], follows="1.1")

    server.answer = answer
    code, out, err = server.run("queue", "--me", "-q", "batch", "-l", "a=b", "-o", "name")
    assert (code, out, err) == (0, "physics/train\nphysics/second\n", "")
    path, query, headers = server.asked[0]
    assert path == f"{BASE}/queue"
    assert (query["user"], query["queue"], query["labelSelector"]) == ("@me", "batch", "a=b")
    assert headers["Authorization"] == "Bearer ann's"
    code, out, _ = server.run("queue", "-n", "physics", "-o", "json")
    assert [row["name"] for row in json.loads(out)["items"]] == ["train", "second"]
    assert server.asked[-1][0] == f"{BASE}/namespaces/physics/queue"


def test_planned_starts_are_shown_also_if_nobody_has_one(server: Server) -> None:
    server.answer = lambda path, query: (200, page([{"state": "pending", "position": 1, "hidden": True}]))
    code, out, err = server.run("queue", "--start")
    assert (code, err) == (0, "") and "(another namespace)" in out
    later = {**ROW, "planned": {"from": "2026-09-01T14:00:00Z"}}
    sooner = {**ROW, "name": "solver", "planned": {"from": "2026-09-01T13:00:00Z"}}
    server.answer = lambda path, query: (200, page([later, ROW, sooner]))
    assert server.run("queue", "--start", "-o", "name")[1].split() == [
        "physics/solver",
        "physics/train",
        "physics/train",
    ]


def test_no_heavy_module_is_loaded(server: Server) -> None:
    server.answer = lambda path, query: (200, page([ROW]))
    heavy = ("numpy", "aiohttp", "asyncio", "rich", "ruamel.yaml", "cryptography", "fluence.schedule")
    then = f"print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    assert server.run("queue", then=then)[2] == "[]\n"


def refused(path: str, query: dict[str, str]) -> tuple[int, Any]:
    if path.startswith("/apis/") or path == "/api/v1/namespaces":
        return 503, {"kind": "Status", "message": "the server is currently unable to handle the request"}
    assert query["fieldSelector"] == "spec.schedulerName!=default-scheduler"
    report = {"reasons": [], "noLaterThan": "2026-09-01T14:00:00.000Z", "restsOn": "limits"}
    conditions = [
        {"type": "PodScheduled", "status": "False", "message": "1 of 2 pods fit."},
        {"type": names.WAIT_REPORTED, "status": "True", "reason": "X", "message": json.dumps(report)},
    ]

    def pod(
        name: str, *, told: bool = True, phase: str = "Pending", owner: str = "", **more: Any
    ) -> dict[str, Any]:
        labels = {names.GROUP_LABEL: "train"} if name.startswith("train") else {}
        reference = {"kind": "Job", "name": owner, "controller": True}
        meta = {
            "name": name,
            "namespace": "physics",
            "labels": labels,
            "annotations": {names.USER: "ann" if owner else "eve"},
            "creationTimestamp": "2026-09-01T11:00:00Z",
            **({"ownerReferences": [reference]} if owner else {}),
        }
        spec = {"schedulerName": "fluence", **more}
        status = {"phase": phase, "conditions": conditions if told else []}
        return {"metadata": meta, "spec": spec, "status": status}

    pods = [pod("train-0"), pod("train-1"), pod("lone"), pod("runs", told=False, nodeName="n0")]
    pods.append(pod("other", told=False, schedulerName="volcano"))
    pods += [
        pod("sweep-0", owner="sweep", told=False, nodeName="n0", phase="Succeeded"),
        pod("sweep-1", owner="sweep", told=False, nodeName="n0", phase="Running"),
        pod("sweep-2", owner="sweep"),
        pod("sweep-3", owner="sweep"),
    ]
    return 200, {"metadata": {}, "items": pods}


def test_without_the_view_the_conditions_of_pods_are_shown_and_a_line_says_so(server: Server) -> None:
    server.answer = refused
    code, out, err = server.run("queue", "-n", "physics", "-o", "json")
    assert code == 0
    assert err.startswith("note: the view API does not answer (the server is currently unable")
    rows = json.loads(out)["items"]
    assert [(row["name"], row["pods"]) for row in rows] == [("lone", 1), ("sweep", 4), ("train", 2)]
    assert rows[1]["array"] == {"size": 4, "waiting": 2, "running": 1, "done": 1}
    assert rows[2]["reasons"][0]["message"] == "1 of 2 pods fit"
    assert (rows[2]["noLaterThan"], rows[2]["firm"]) == ("2026-09-01T14:00:00.000Z", True)
    code, out, _ = server.run("jobs", "-o", "name")
    assert out.split() == ["physics/lone", "physics/train", "physics/runs", "physics/sweep"]
    for arguments, shown in (
        (("queue", "-u", "ann"), ["physics/sweep"]),
        (("queue", "--expand", "-u", "ann"), ["physics/sweep-2", "physics/sweep-3"]),
        (("jobs", "-t", "running"), ["physics/runs", "physics/sweep"]),
    ):
        code, out, err = server.run(*arguments, "-o", "name")
        assert (code, out.split()) == (0, shown) and err.startswith("note: "), arguments
    code, out, _ = server.run("groups", "-o", "custom-columns=N:.name,W:.waiting,P:.placed")
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["lone", "1", "0"],
        ["train", "2", "0"],
        ["runs", "0", "1"],
        ["sweep", "2", "1"],
    ]
    code, out, err = server.run("why", "train-1")
    assert code == 0 and "1 of 2 pods fit." in out and "by " in out and "note:" in err
    code, out, err = server.run("why", "missing")
    assert code == 1 and out == "" and "currently unable" in err


def test_without_the_view_who_may_not_list_all_pods_sees_those_of_their_namespace(server: Server) -> None:
    def only_own(path: str, query: dict[str, str]) -> tuple[int, Any]:
        if path == "/api/v1/pods":
            return 403, {"kind": "Status", "message": "pods is forbidden"}
        return refused(path, query)

    server.answer = only_own
    code, out, err = server.run("queue", "-o", "name")
    assert (code, out.split()) == (0, ["physics/lone", "physics/sweep", "physics/train"])
    assert err.endswith("without places and plan, of namespace physics only\n")
    server.answer = lambda path, query: (403, {"kind": "Status", "message": "pods is forbidden"})
    code, out, err = server.run("queue")
    assert (code, out) == (1, "") and "name a namespace whose pods you may list with -n" in err


def test_what_conditions_cannot_answer_is_an_error_of_one_line(server: Server) -> None:
    server.answer = refused
    for arguments in (("plan",), ("nodes",), ("graph",), ("queue", "--me")):
        code, out, err = server.run(*arguments)
        assert (code, out) == (1, "") and err.startswith("error: ") and err.count("\n") == 1, arguments
    server.answer = lambda path, query: (401, {"kind": "Status", "message": "Unauthorized"})
    assert server.run("queue")[0::2] == (1, "error: Unauthorized\n")
    assert server.run("queue", "-o", "toml")[0] == 2
    assert server.run("plan", "--for", "soon")[0] == 2
    assert server.run("top")[2] == "error: top needs a terminal: use `queue --watch`\n"


NODE = {
    "name": "n0",
    "state": "Ready",
    "amounts": [
        {"resource": "cpu", "size": "32", "taken": "500m", "free": "31500m"},
        {"resource": "memory", "size": "64Gi", "taken": "0", "free": "64Gi"},
    ],
}
SUMMARY = """\
Resource Graph Summary: 2 nodes, 1 ready

NODES  CPU/NODE  MEMORY/NODE
2      32        64Gi

RESOURCE  SIZE   TAKEN  FREE
cpu       64     1      63
memory    128Gi  0      128Gi
"""


def test_the_summary_of_the_graph_and_the_options_of_the_earlier_plugin(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = lambda path, query: (200, page([NODE, {**NODE, "state": "NotReady"}]))
    assert server.run("graph") == (0, SUMMARY, "")
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    found = subprocess.run(
        [sys.executable, "-c", CODE, "--host", "127.0.0.1", "--port", "4242"], capture_output=True, text=True
    )
    assert (found.returncode, found.stdout) == (0, SUMMARY) and found.stderr.startswith("note: --host")
    server.answer = lambda path, query: (
        200,
        page([{"state": "running", "name": "train", "namespace": "physics"}]),
    )
    found = subprocess.run([sys.executable, "-c", CODE, "--groups"], capture_output=True, text=True)
    assert found.returncode == 0 and "train" in found.stdout
    assert server.asked[-1][0] == f"{BASE}/groups"


def completed(server: Server, *words: str) -> list[str]:
    code = "from fluence.kubectl import complete; complete()"
    command = [sys.executable, "-c", code, words[0], "--kubeconfig", str(server.kubeconfig), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_names_are_completed_from_the_cluster(server: Server) -> None:
    rows: list[dict[str, Any]] = [
        {**ROW, "kind": "Job", "user": "ann", "queue": "batch"},
        {**ROW, "name": "tree", "kind": "Group", "user": "eve"},
        {**ROW, "name": "solver", "kind": "Group"},
        {"state": "pending", "position": 4, "hidden": True},
    ]

    def answer(path: str, query: dict[str, str]) -> tuple[int, Any]:
        if path == "/api/v1/namespaces":
            return 403, {"kind": "Status", "message": "forbidden"}
        return 200, page(rows)

    server.answer = answer
    assert completed(server, "why", "tr") == ["train\tpending", "tree\tpending", ":4"]
    assert server.asked[-1][0] == f"{BASE}/namespaces/physics/jobs", "of the kubeconfig's namespace"
    assert completed(server, "hold", "train", "tr") == ["tree\tpending", ":4"], "not what is there already"
    assert completed(server, "cancel", "-n", "biology", "job/") == ["job/train\tpending", ":4"]
    assert server.asked[-1][0] == f"{BASE}/namespaces/biology/jobs"
    assert completed(server, "queue", "-n", "") == ["physics", ":4"], "as namespaces cannot be listed"
    assert completed(server, "queue", "-u", "a") == ["ann", ":4"]
    assert completed(server, "queue", "-q", "") == ["batch", ":4"]
    assert completed(server, "queue", "--context", "") == ["c", ":4"]
    assert completed(server, "queue", "-o", "j") == ["json", ":4"]
    server.answer = refused
    assert completed(server, "why", "sw") == ["sweep\trunning", ":4"], "by the pods themselves"
    server.answer = lambda path, query: (401, {"kind": "Status", "message": "Unauthorized"})
    assert completed(server, "why", "") == [":4"]


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "lone", "namespace": "physics", "uid": "u1", "labels": {}},
    "spec": {"containers": []},
}


@pytest.mark.parametrize(
    ("gang", "lists"), [("physics/pod:lone", False), ("physics/lone", True), (None, True)]
)
def test_a_verb_looks_through_all_pods_only_if_the_name_may_be_a_group(
    server: Server, gang: str | None, lists: bool
) -> None:
    def answer(path: str, query: dict[str, str]) -> tuple[int, Any]:
        if path.startswith(BASE):
            detail = {"job": {**ROW, "name": "lone", "gang": gang}}
            return (404, {"kind": "Status"}) if gang is None else (200, page([detail]))
        if path.endswith("/pods"):
            return 200, {"metadata": {}, "items": [POD]}
        return (200, POD) if path.endswith("/pods/lone") else (404, {"kind": "Status"})

    server.answer = answer
    code, out, told = server.run("hold", "lone", "--dry-run")
    assert (code, out, told) == (0, "pod/lone held (server dry run)\n", "")
    asked = [path for path, _, _ in server.asked]
    assert ("/api/v1/namespaces/physics/pods" in asked) == lists
    path, query, headers = server.asked[-1]
    assert (path, query) == ("/api/v1/namespaces/physics/pods/lone", {"dryRun": "All"})
    assert headers["Content-Type"] == "application/merge-patch+json"


def test_a_table_asks_for_its_columns_and_takes_whole_rows_of_an_earlier_scheduler(server: Server) -> None:
    columns = ["name", "namespace", "state", "hidden"]

    def answer(path: str, query: dict[str, str]) -> tuple[int, Any]:
        assert query["limit"] == "20000" and set(columns) <= set(query["columns"].split(","))
        rows = [["train", "physics", "reserved", False], ["", "", "pending", True]]
        return 200, {**page([]), "columns": columns, "rows": rows}

    def earlier(path: str, query: dict[str, str]) -> tuple[int, Any]:
        if "columns" in query:
            return 400, {"kind": "Status", "message": "columns: no such parameter; there are limit"}
        return 200, page([ROW])

    server.answer = answer
    _, out, _ = server.run("jobs")
    assert [line.split()[0] for line in out.splitlines()] == ["STATE", "reserved", "pending"]
    assert "(another namespace)" in out
    server.answer = earlier
    code, out, told = server.run("jobs", "-o", "name")
    assert (code, out, told) == (0, "physics/train\n", "")


CODE = "import sys; from fluence.kubectl.commands import run; sys.exit(run())"


# -- streams -------------------------------------------------------------------------------------------------


def test_watch_shows_all_pages_of_a_stream_and_again_when_they_change(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(path: str, query: dict[str, str]) -> tuple[int, Any]:
        assert path == f"{BASE}/queue" and query["limit"] == str(PAGE)
        if token := query.get("continue"):
            return 200, page([{**ROW, "name": f"second-{token}", "position": 2}])
        assert query["watch"] == "true"
        return 200, [page([ROW], follows="1.1"), page([ROW], follows="2.1")]

    server.answer = answer
    shown, told = server.follow("queue", "--watch", "-o", "name", lines=4)
    assert shown == ["physics/train", "physics/second-1.1", "physics/train", "physics/second-2.1"]
    assert told.strip() == ""


def test_watch_shows_what_is_unchanged_only_once(server: Server) -> None:
    last = {**ROW, "name": "last"}
    server.answer = lambda path, query: (200, [page([ROW]), page([ROW]), page([last])])
    assert server.follow("queue", "-w", "-o", "name", lines=2)[0] == ["physics/train", "physics/last"]


def forbidden(path: str, query: dict[str, str]) -> tuple[int, Any]:
    if path.startswith("/apis/"):
        return 403, {"kind": "Status", "message": 'queue is forbidden: User "vic" cannot list resource'}
    return refused(path, query)


def test_watch_without_rights_on_the_view_shows_conditions_and_says_so_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def answer(path: str, query: dict[str, str]) -> tuple[int, Any]:
        nonlocal looks
        status, body = forbidden(path, query)
        if status == 200:
            looks += 1
            body["items"] = body["items"][: 4 if looks == 1 else 3 if looks == 2 else 2]
        return status, body

    server.answer = answer
    shown, told = server.follow("queue", "--watch", "-n", "physics", "-o", "name", lines=3)
    assert shown == ["physics/lone", "physics/train", "physics/train"], "and once more when it has changed"
    assert told.count("note:") == 1 and "fluence-view-reader" in told and "conditions" in told


def test_who_may_not_read_the_view_gets_one_line_and_no_raw_refusal(server: Server) -> None:
    server.answer = forbidden
    for arguments in (("plan",), ("nodes",), ("graph",), ("queue", "--me"), ("plan", "-w"), ("nodes", "-w")):
        code, out, err = server.run(*arguments)
        assert (code, out, err.count("\n")) == (1, "", 1), arguments
        assert "ClusterRole fluence-view-reader" in err and "is forbidden" not in err, err
    code, out, err = server.run("queue", "-n", "physics", "-o", "name")
    assert code == 0 and out.split()[0] == "physics/lone" and "fluence-view-reader" in err


# -- history -------------------------------------------------------------------------------------------------


def no_database(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    """As on a user's machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


PAST = {
    "id": "7",
    "run": 1,
    "state": "completed",
    "namespace": "physics",
    "name": "train",
    "kind": "Job",
    "user": "ann",
    "pods": 2,
    "requests": {"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "2"},
    "nodes": "n[1-2]",
    "limit": 60,
    "submitted": "2026-09-21T14:13:20.000Z",
    "started": "2026-09-21T14:14:20.000Z",
    "ended": "2026-09-21T15:14:20.000Z",
}


def test_the_history_is_that_of_the_scheduler_with_the_users_token(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_database(monkeypatch, tmp_path)
    gap = {"began": "2026-09-21T14:13:20.000Z", "ended": "2026-09-21T14:13:21.000Z", "lost": 7}

    def answer(path: str, query: dict[str, str]) -> tuple[int, Any]:
        if query.get("continue") == "h.1.7.1":
            return 200, {**page([{**PAST, "id": "6", "name": "earlier"}]), "gaps": [gap]}
        return 200, {**page([PAST], follows="h.1.7.1"), "gaps": [gap]}

    server.answer = answer
    options = ("-u", "ann", "-n", "physics", "--name", "t*", "-s", "completed", "--since", "2026-09-01")
    code, out, err = server.run("history", *options)
    assert code == 0
    assert out.splitlines() == [
        "NAMESPACE  NAME     USER  QUEUE  STATE      PODS  SUBMITTED            WAIT   ELAPSED  NODES",
        "physics    earlier  ann   -      completed  2     2026-09-21 14:13:20  1 min  1 h      n[1-2]",
        "physics    train    ann   -      completed  2     2026-09-21 14:13:20  1 min  1 h      n[1-2]",
    ]
    assert err.startswith("note: 7 entries are missing, from 2026-09-21T14:13:20") and err.count("\n") == 1
    path, query, headers = server.asked[0]
    assert (path, headers["Authorization"]) == (f"{BASE}/history", "Bearer ann's")
    assert query == {
        "user": "ann",
        "namespace": "physics",
        "name": "t*",
        "state": "completed",
        "limit": "100",
        "since": "2026-09-01T00:00:00.000+00:00",
    }
    code, out, _ = server.run("history", "--me", "--limit", "1", "-o", "json")
    assert server.asked[-1][1] == {"user": "@me", "limit": "1"}
    (job,) = json.loads(out)["jobs"]
    assert (job["job"], job["cpu"], job["memory"], job["gpus"], job["limit"]) == (7, 1.5, 1 << 30, 2, 60.0)
    assert job["requests"] == {"cpu": 1500, "memory": 1 << 30, "nvidia.com/gpu": 2}


def test_sums_are_those_of_the_scheduler(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_database(monkeypatch, tmp_path)
    used = {"user": "ann", "jobs": 3, "started": 2, "completed": 2, "wait": 60.0, "ran": 7200.0}
    server.answer = lambda path, query: (200, page([{**used, "cpu": 3600.0, "gpu": 1800.0}]))
    code, out, _ = server.run("history", "--sum", "user")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        [
            "USER",
            "JOBS",
            "STARTED",
            "COMPLETED",
            "FAILED",
            "TIMEOUT",
            "CANCELLED",
            "WAIT",
            "HOURS",
            "CPU-HOURS",
            "GPU-HOURS",
        ],
        ["ann", "3", "2", "2", "0", "0", "0", "1", "min", "2.00", "1.00", "0.50"],
    ]
    assert server.asked[-1][:2] == (f"{BASE}/usage", {"by": "user"})


def test_without_an_answer_the_history_is_the_file_of_this_machine_or_one_line(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_database(monkeypatch, tmp_path)
    server.answer = refused
    code, out, err = server.run("history")
    assert (code, out, err.count("\n")) == (1, "", 1) and "--database" in err and "currently unable" in err
    server.answer = forbidden
    code, out, err = server.run("history")
    assert (code, out, err.count("\n")) == (1, "", 1) and "fluence-view-reader" in err
    assert "is forbidden" not in err
    assert server.run("history", "--me", "--database", str(tmp_path / "none"))[2].count("\n") == 1
    server.answer = lambda path, query: (401, {"kind": "Status", "message": "Unauthorized"})
    assert server.run("history")[0::2] == (1, "error: Unauthorized\n")

    async def fill() -> None:
        async with HistoryStore(parse_url(str(tmp_path / "fluence" / "history.db"))) as store:
            await store.migrate()
            await store.write([(over(1), "")])

    asyncio.run(fill())
    server.answer = refused
    code, out, err = server.run("history", "--format", "name")
    assert code == 0 and out.split() == ["NAME", "sim-1"] and "shown is the history at" in err


def test_the_history_of_the_scheduler_needs_no_sql(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_database(monkeypatch, tmp_path)
    server.answer = lambda path, query: (200, page([PAST]))
    heavy = ("numpy", "aiohttp", "sqlalchemy", "alembic", "rich", "cryptography")
    then = f"print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    assert server.run("history", then=then)[2] == "[]\n"


# -- without the right to list nodes and all pods ------------------------------------------------------------


def only_the_view(path: str, query: dict[str, str]) -> tuple[int, Any]:
    """What a user with the role `edit` gets: the view answers, and the cluster may not be listed."""
    if path == f"{BASE}/devices":
        uses = [
            {"namespace": "physics", "name": "train", "amount": 1, "until": "2026-09-01T14:00:00Z"},
            {"amount": 1, "hidden": True},
        ]
        return 200, page([{"name": "qpu-0", "type": "qpu", "size": 4, "taken": 2, "by": uses}])
    if path.startswith(BASE):
        return 200, page([NODE] if path.endswith("/nodes") else [])
    if path in ("/api", "/apis", "/version"):
        return 200, {"kind": "APIGroupList", "groups": [], "versions": ["v1"], "gitVersion": "v1.36.4"}
    message = f'x is forbidden: User "ann" cannot list resource "x" in {path}'
    return 403, {
        "kind": "Status",
        "status": "Failure",
        "reason": "Forbidden",
        "message": message,
        "code": 403,
    }


def test_devices_are_those_of_the_view_where_the_cluster_may_not_be_listed(server: Server) -> None:
    server.answer = only_the_view
    code, out, err = server.run("resources", "list")
    assert code == 0 and err.startswith("note: you may not list nodes"), err
    assert out.splitlines()[0].split() == ["TYPE", "NAME", "USED", "HELD", "BY"]
    assert "qpu-0" in out and "2/4" in out and "physics/train until" in out and "(another namespace)" in out
    (device,) = json.loads(server.run("resources", "list", "-o", "json")[1])
    assert (device["used"], device["count"], device["status"]) == (2, 4, "online")
    assert [each["gang"] for each in device["holders"]] == ["physics/train", "(another namespace)"]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    container = {"name": "c", "image": "none"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump(pod))
    return path


def test_whatif_is_answered_by_the_view(server: Server, manifest: Path) -> None:
    told = {
        "kind": "WhatIf",
        "startsNow": False,
        "never": False,
        "answer": {"now": 1.5, "jobs": []},
        "lines": ["physics/pod:p: it would wait\x1b[2J"],
        "wide": ["all of it"],
        "notes": ["a Service is left out"],
    }
    server.answer = lambda path, query: (200, told)
    code, out, err = server.run("whatif", "-f", str(manifest))
    assert (code, err) == (3, "note: a Service is left out\n")
    assert out.startswith("physics/pod:p: it would wait") and "\x1b" not in out
    (path, _, headers), (sent,) = server.asked[-1], server.sent
    assert path == f"{BASE}/namespaces/physics/whatif" and headers["Content-Type"] == "application/json"
    assert json.loads(sent)["files"][0]["documents"][0]["metadata"] == {"name": "p"}
    assert server.run("whatif", "-f", str(manifest), "-o", "wide")[1] == "all of it\n"
    assert json.loads(server.run("whatif", "-f", str(manifest), "-o", "json")[1]) == told["answer"]
    assert server.run("whatif", "-f", str(manifest), "-n", "biology")[0] == 3
    assert server.asked[-1][0] == f"{BASE}/namespaces/biology/whatif"


def test_whatif_shows_in_one_line_what_the_view_refuses(server: Server, manifest: Path) -> None:
    for status, message in (
        (400, "pod.yaml: document 1: metadata.name: is missing"),
        (429, "ann has 1 question under way: wait until one ends"),
        (422, "manifest: makes no pod with schedulerName: fluence"),
        (403, "you may not list pods in namespace physics; you need the role `view` there"),
        (503, "the scheduler is in a long cycle: try again"),
    ):

        def answer(path: str, query: dict[str, str], told: Any = (status, message)) -> tuple[int, Any]:
            if path.startswith(BASE):
                return told[0], {"kind": "Status", "message": told[1], "code": told[0]}
            return only_the_view(path, query)

        server.answer = answer
        code, out, err = server.run("whatif", "-f", str(manifest))
        assert (code, out, err) == (1, "", f"error: {message}\n")


def test_whatif_says_in_one_line_which_right_it_needs(server: Server, manifest: Path) -> None:
    """Where the scheduler answers no such question."""
    server.answer = lambda path, query: (
        (405, {"message": "POST"}) if path.startswith(BASE) else only_the_view(path, query)
    )
    code, out, err = server.run("whatif", "-f", str(manifest))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "you may not list nodes and the pods of all namespaces" in err and "is forbidden" not in err


def test_a_view_that_nobody_serves_is_said_in_one_line(server: Server, manifest: Path) -> None:
    """The aggregation layer answers in plain text while the Service of the view has no endpoint."""
    server.answer = lambda path, query: (
        (503, b"service unavailable\n") if path.startswith(BASE) else only_the_view(path, query)
    )
    for words in (("whatif", "-f", str(manifest)), ("why", "a", "-n", "team")):
        code, out, err = server.run(*words)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "the API server does not reach the scheduler's view" in err


def test_the_graph_of_fluence_is_that_of_the_view_where_the_cluster_may_not_be_listed(server: Server) -> None:
    server.answer = only_the_view
    command = [sys.executable, "-m", "fluence.cli", "graph", "--live", "--kubeconfig", str(server.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr.startswith("note: you may not list nodes"), done.stderr
    assert done.stdout == server.run("graph")[1]
    drawn = subprocess.run([*command, "--tree"], capture_output=True, text=True, timeout=120)
    assert drawn.stdout == server.run("graph", "tree")[1] and "n0" in drawn.stdout
    found = subprocess.run([*command, "--find", "status=up"], capture_output=True, text=True, timeout=120)
    assert found.returncode == 1 and found.stderr.count("\n") == 1 and "is forbidden" not in found.stderr


def test_a_verb_without_rights_says_which_one_is_missing(server: Server) -> None:
    server.answer = lambda path, query: (
        403,
        {
            "kind": "Status",
            "status": "Failure",
            "reason": "Forbidden",
            "code": 403,
            "message": 'jobs.batch "x" is forbidden: User "ann" cannot get resource "jobs" in API group',
        },
    )
    code, out, err = server.run("hold", "job/x")
    assert (code, out) == (1, "")
    assert err == "error: job/x: you may not get jobs in namespace physics; you need the role `edit` there\n"
