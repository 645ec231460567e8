"""The view API on a real control plane: through the aggregation layer as four users, directly by token."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import signal
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml
from deploy.helm.manifests import template
from playwright.async_api import expect

from fluence import names
from fluence.cli.web import explain
from fluence.database_url import VARIABLES
from fluence.errors import NotFound
from fluence.kube.access import Access
from fluence.kube.client import Client
from fluence.kube.errors import ONCE, ApiError, Missing
from fluence.kube.resource import JOBS, NAMESPACES, NODES, PODS, PRIORITY_CLASSES
from fluence.model.pod import add_into, pod_requests
from fluence.sandbox.proxy import Proxy
from fluence.sandbox.testing import Kube
from fluence.units import format_amount
from fluence.web import openapi, page
from fluence.web import resources as wire
from fluence.web.page import LiveView
from fluence.web.server import BASE, MAX_STREAMS, MAX_STREAMS_PER_USER
from fluence.web.serving import API_SERVICE, API_SERVICES
from tests.browser import Reader, browser, reader
from tests.eventually import eventually
from tests.integration.live.replica import SOON_S, Replica, free_port
from tests.integration.live.test_metrics_access import token
from tests.integration.rights import make_namespace, resource_of
from tests.integration.schedule.field import LABEL, Field, field
from tests.unit.web.openapi_check import faults
from tests.unit.web.test_server import send_large

DURATION = {names.DURATION: "1h"}


@dataclass
class World:
    """Two namespaces, of which `ann` may edit the first and `vic` may view it; `nobody` may do nothing."""

    field: Field
    other: str
    replica: Replica
    port: int
    folder: Path

    async def get(self, path: str, user: str | None = None) -> Any:
        """Through the API server, as a user; the error's status if there is one."""
        access = msgspec.structs.replace(self.field.kube.access(), impersonate=user)
        async with Client(access) as client:
            try:
                return msgspec.json.decode(await client.request("GET", path))
            except ApiError as error:
                return error.status.code

    async def rows(self, resource: str, user: str | None = None, query: str = "") -> list[dict[str, Any]]:
        page = await self.get(f"{BASE}/{resource}{query}", user)
        assert isinstance(page, dict), page
        return list(page["items"])

    async def submit(self, name: str, size: int, namespace: str, *, cpu: str = "4") -> None:
        labels = {names.GROUP_LABEL: name, names.GROUP_SIZE: str(size)}
        for index in range(size):
            body = self.field.pod(f"{name}-{index}", labels=labels, annotations=DURATION, cpu=cpu)
            await self.field.client.create(PODS, body, namespace=namespace)

    def job(self, name: str, priority_class: str) -> dict[str, Any]:
        """A gang of two."""
        notes = {names.GROUP_LABEL: name, names.GROUP_SIZE: "2", **DURATION}
        pods = self.field.spec(cpu="4", restartPolicy="Never", priorityClassName=priority_class)
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "annotations": notes},
            "spec": {"completions": 2, "parallelism": 2, "template": {"spec": pods}},
        }

    async def run(self, *arguments: str, user: str | None = None) -> tuple[int, str, str]:
        """`kubectl fluence` as a user."""
        access = self.field.kube.access()
        assert access.ca and access.client_cert and access.client_key
        who = {
            "client-certificate-data": base64.b64encode(access.client_cert).decode(),
            "client-key-data": base64.b64encode(access.client_key).decode(),
            **({} if user is None else {"as": user}),
        }
        cluster = {
            "server": access.server,
            "certificate-authority-data": base64.b64encode(access.ca).decode(),
        }
        kubeconfig = self.folder / f"kubeconfig-{user}"
        document = {
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": who}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }
        if not kubeconfig.exists():  # another command of this user may be reading it
            kubeconfig.write_text(yaml.safe_dump(document))
        code = "import sys; from fluence.kubectl.commands import run; sys.exit(run())"
        env = {key: value for key, value in os.environ.items() if key not in VARIABLES}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, *arguments, "--kubeconfig", str(kubeconfig)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**env, "XDG_STATE_HOME": str(self.folder / "state")},
        )
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def bound(client: Client, namespace: str) -> AsyncIterator[None]:
    """The roles of the users, and those of the chart for all of them."""
    group = "rbac.authorization.k8s.io"
    bodies: list[dict[str, Any]] = [
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{user}-{role}", "namespace": namespace},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        }
        for user, role in (("ann", "edit"), ("vic", "view"))
    ]
    text = template("--show-only", "templates/view.yaml")
    charted = [body for body in yaml.safe_load_all(text) if body is not None]
    bodies += [body for body in charted if body["metadata"]["name"] == "fluence-view-reader"]
    assert len(bodies) == 4
    for body in bodies:
        where = body["metadata"].get("namespace")
        await client.apply(resource_of(body), body, namespace=where, manager="test")
    try:
        yield
    finally:
        for body in bodies:
            where = body["metadata"].get("namespace")
            await client.delete(resource_of(body), body["metadata"]["name"], namespace=where)


@contextlib.asynccontextmanager
async def registered(client: Client, namespace: str, port: int) -> AsyncIterator[None]:
    """An APIService of the chart's kind, whose Service leads to a port of this machine."""
    service: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "fluence-view"},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }
    text = template("--show-only", "templates/view.yaml")
    (made,) = (body for body in yaml.safe_load_all(text) if body and body["kind"] == "APIService")
    made["spec"]["service"] = {"name": "fluence-view", "namespace": namespace, "port": port}
    path = f"/api/v1/namespaces/{namespace}/services"
    await client.request("POST", path, body=msgspec.json.encode(service))
    await client.create(API_SERVICES, made)
    try:
        yield
    finally:
        await client.delete(API_SERVICES, API_SERVICE)


@contextlib.asynccontextmanager
async def world(kube: Kube, folder: Path) -> AsyncIterator[World]:
    other, port = f"{kube.namespace}-other", free_port()
    async with field(kube, 2) as f, Proxy(kube.access()) as proxy, contextlib.AsyncExitStack() as stack:
        await make_namespace(f.client, other)
        stack.push_async_callback(f.client.delete, NAMESPACES, other)
        await stack.enter_async_context(bound(f.client, kube.namespace))
        await stack.enter_async_context(registered(f.client, kube.namespace, port))
        replica = Replica(f, folder, proxy.access, "--view-address", f"0.0.0.0:{port}")
        replica.flags += ["--database-url", str(folder / "history.db")]
        replica.flags += ["--queue-policy", "conservative"]
        stack.push_async_callback(replica.end)
        await replica.start()
        await replica.leads()
        made = World(f, other, replica, port, folder)
        await eventually(
            lambda: made.get(f"{BASE}/queue", "nobody"),
            lambda page: isinstance(page, dict),
            what="the API server hands on",
            timeout_s=SOON_S,
        )
        yield made


async def test_what_users_see_is_what_their_rights_allow_and_the_server_says(
    kube: Kube, tmp_path: Path
) -> None:
    async with world(kube, tmp_path) as w:
        space = w.field.namespace
        await w.submit("running", 2, space)
        await w.field.until_bound(["running-0", "running-1"])
        await w.submit("mine", 2, space)
        await w.field.until_told("mine-0")
        await w.submit("theirs", 2, w.other)

        async def queued(user: str | None) -> list[tuple[int | None, str | None]]:
            return [(row.get("position"), row.get("name")) for row in await w.rows("queue", user)]

        whole: list[tuple[int | None, str | None]] = [(1, "mine"), (2, "theirs")]
        await eventually(lambda: queued(None), whole, what="both wait", timeout_s=SOON_S)
        for user in ("ann", "vic"):
            await eventually(lambda user=user: queued(user), [(1, "mine"), (2, None)], what=user)
        assert await queued("nobody") == [(1, None), (2, None)]

        (job,) = await w.rows("jobs", "vic", "?state=running")
        pods = await w.field.pods()
        assert job["nodes"] == sorted(
            {str(pod.spec.node_name) for pod in pods.values() if pod.spec.node_name}
        )
        assert await w.get(f"{BASE}/namespaces/{w.other}/jobs/theirs", "ann") == 404
        detail = await w.get(f"{BASE}/namespaces/{space}/jobs/mine", "ann")
        assert detail["items"][0]["job"]["noLaterThan"] and detail["items"][0]["job"]["reasons"]
        told = pods["mine-0"].condition("PodScheduled")
        assert told is not None
        assert detail["items"][0]["job"]["reasons"][0]["message"] in told.message
        for resource in (
            "groups",
            "nodes",
            "devices",
            "plan",
            "promises",
            "decisions",
            "settings",
            "history",
        ):
            for user in ("ann", "vic", "nobody"):
                text = str(await w.rows(resource, user))
                assert w.other not in text and "theirs" not in text, (resource, user)
        assert {row["name"] for row in await w.rows("nodes", "nobody")} >= set(w.field.nodes)
        assert await w.get(f"{BASE}/secrets", None) == 404

        await _commands(w)
        await _page(w)
        await _direct(w)
        await _streams(w)
        await _many_streams(w)
        await _every_verb(w)
        await _without_scheduler(w)


async def _page(w: World) -> None:
    """`fluence web` reads the same, with the rights of the user who started it, and follows it."""
    access = msgspec.structs.replace(w.field.kube.access(), impersonate="ann")
    async with (
        Client(access) as client,
        aiohttp.ClientSession() as session,
        page.serving(page.LiveView(client)) as address,
    ):
        url = f"{address}{BASE.removeprefix('/')}/queue"
        async with session.get(url) as answer:
            rows = (await answer.json())["items"]
        assert [row.get("name") for row in rows] == ["mine", None]
        async with session.get(f"{url}?watch=true") as answer:
            assert answer.content_type == "text/event-stream"
            assert await answer.content.readline() == b"event: list\n"
        async with session.get(f"{address}api/v1/secrets") as answer:
            assert answer.status == 404


async def _commands(w: World) -> None:
    """`kubectl fluence` shows the same."""
    code, out, err = await w.run("queue", user="ann")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].split()[:4] == ["POS", "STATE", "NAMESPACE", "NAME"]
    assert "mine" in lines[1] and "(another namespace)" in lines[2] and "theirs" not in out
    code, out, _ = await w.run("queue", "-o", "json", "-n", w.field.namespace, user="vic")
    assert [row["name"] for row in json.loads(out)["items"]] == ["mine"]
    code, out, _ = await w.run("why", "mine", "-n", w.field.namespace, user="ann")
    assert code == 0 and "position 1, the first" in out and "Planned on:" in out
    code, out, err = await w.run("why", "theirs", "-n", w.other, user="ann")
    assert code == 1 and "theirs" in err and not out
    code, out, _ = await w.run("plan", user="ann")
    assert code == 0 and f"{w.field.namespace}/running" in out and "█" in out and "░" in out
    code, out, _ = await w.run("nodes", user="nobody")
    assert code == 0 and w.field.nodes[0] in out and "1 of others" in out


async def _direct(w: World) -> None:
    """On the port itself: TLS, and a token that the API server knows."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    url = f"https://127.0.0.1:{w.port}{BASE}/queue"
    good = await token(w.field.client, w.field.namespace, "reader")
    async with aiohttp.ClientSession() as session:

        async def ask(headers: dict[str, str]) -> int:
            async with session.get(url, headers=headers, ssl=tls) as answer:
                return answer.status

        assert await ask({"Authorization": f"Bearer {good}"}) == 200
        assert await ask({"Authorization": f"Bearer {good[:-4]}AAAA"}) == 401, "forged"
        assert await ask({}) == 401
        assert await ask({"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}) == 401
        status, _ = await send_large(*await asyncio.open_connection("127.0.0.1", w.port, ssl=tls), good)
        assert status == 413
        script = {"Authorization": f"Bearer {good}", "Origin": "https://evil.example"}
        assert await ask({**script, "Sec-Fetch-Site": "cross-site"}) == 403, "another origin's script"
        async with session.options(url, headers=script, ssl=tls) as answer:
            assert answer.status == 405
            assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
        with_plain = f"http://127.0.0.1:{w.port}{BASE}/queue"
        try:
            async with session.get(with_plain, headers={"Authorization": f"Bearer {good}"}) as answer:
                assert answer.status != 200
        except aiohttp.ClientError:
            pass
    assert good not in w.replica.said


async def _streams(w: World) -> None:
    """Events through the API server, and no more streams than a user may have."""
    access: Access = msgspec.structs.replace(w.field.kube.access(), impersonate="ann")
    tls = ssl.create_default_context(cadata=(access.ca or b"").decode())
    files = [w.folder / "ann.crt", w.folder / "ann.key"]
    for file, content in zip(files, (access.client_cert, access.client_key), strict=True):
        file.write_bytes(content or b"")
    tls.load_cert_chain(str(files[0]), str(files[1]))
    url = f"{access.server}{BASE}/queue?watch=true"
    headers = {"Impersonate-User": "ann"}
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def begin() -> aiohttp.ClientResponse:
            return await stack.enter_async_context(session.get(url, headers=headers, ssl=tls))

        first = await begin()
        assert first.status == 200

        async def page() -> list[str | None]:
            while not (line := await first.content.readline()).startswith(b"data: "):
                assert line, "the stream has ended"
            return [row.get("name") for row in json.loads(line[6:])["items"]]

        async with asyncio.timeout(SOON_S):
            assert await page() == ["mine", None]
            await w.submit("late", 2, w.field.namespace)
            while await page() != ["mine", None, "late"]:
                pass

        async def others() -> list[int]:
            """As many more as a user may have in all; they end again. NB so may those of before have done,
            and the server learns of that later."""
            async with aiohttp.ClientSession() as second, contextlib.AsyncExitStack() as some:
                answers = [
                    await some.enter_async_context(second.get(url, headers=headers, ssl=tls))
                    for _ in range(MAX_STREAMS_PER_USER)
                ]
                return [answer.status for answer in answers]

        all_but_one = [200] * (MAX_STREAMS_PER_USER - 1) + [429]
        await eventually(others, all_but_one, what="no more streams than a user may have", pause_s=1)
        assert isinstance(await w.get(f"{BASE}/queue", "vic"), dict), "others are answered"


async def _many_streams(w: World) -> None:
    """Five hundred streams of a hundred users: so many as all together may have, and lists are answered."""
    access = w.field.kube.access()
    tls = ssl.create_default_context(cadata=(access.ca or b"").decode())
    tls.load_cert_chain(str(w.folder / "ann.crt"), str(w.folder / "ann.key"))
    url = f"{access.server}{BASE}/queue?watch=true"
    async with contextlib.AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0, ssl=tls)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        turns = asyncio.Semaphore(20)

        async def begin(number: int) -> int:
            headers = {"Impersonate-User": f"user-{number % 100}"}
            async with turns:
                answer = await stack.enter_async_context(session.get(url, headers=headers))
                if answer.status == 200:
                    assert (await answer.content.readline()).startswith(b"event: list")
                return answer.status

        statuses = await asyncio.gather(*(begin(number) for number in range(500)))
        counts = Counter(statuses)  # NB those of `_streams` may still have their places
        assert set(counts) == {200, 429} and counts.total() == 500
        assert MAX_STREAMS - MAX_STREAMS_PER_USER <= counts[200] <= MAX_STREAMS
        rows = await w.rows("queue", "vic")
        assert [row.get("name") for row in rows] == ["mine", None, "late"]

    async def free() -> int:
        headers = {"Impersonate-User": "vic"}
        async with aiohttp.ClientSession() as one, one.get(url, headers=headers, ssl=tls) as answer:
            return answer.status

    await eventually(free, 200, what="their places are free again", timeout_s=SOON_S)


USERS = {"admin": None, "edit": "ann", "view": "vic", "nothing": "nobody"}
GOLDEN = Path(__file__).with_name("verbs.txt")
REFRESH = os.environ.get("FLUENCE_REFRESH_VERBS") == "1"
VERBS = (
    "queue",
    "queue --start",
    "jobs",
    "groups",
    "plan --width 80",
    "nodes -l LABEL",
    "graph -l LABEL",
    "why mine -n SPACE",
    "why sweep -n SPACE",
    "why theirs -n OTHER",
    "hold job/sweep -n SPACE --dry-run",
    "release job/sweep -n SPACE --dry-run",
    "priority job/sweep 5 -n SPACE --dry-run",
    "cancel job/sweep -n SPACE --dry-run",
    "requeue job/sweep -n SPACE --dry-run",
    "cancel pod/theirs-0 -n OTHER --dry-run",
    "queue --me",
    "queue -o wide -n SPACE",
    "jobs -o wide",
    "groups -o yaml -n SPACE",
    "plan --by-node --width 80 -n SPACE",
    "nodes -o wide -l LABEL",
    "graph tree -l LABEL",
    "explain mine -n SPACE --scheduler-name SCHEDULER",
    "history --format namespace,name,user,state,pods,cpu,nodes",
    "history --sum namespace --sum state --format namespace,state,jobs,started",
)
LATER = (
    "queue",
    "jobs",
    "groups",
    "plan --width 80",
    "nodes -l LABEL",
    "graph -l LABEL",
    "why mine -n SPACE",
    "why running -n SPACE",
    "history --format namespace,name,user,state,pods,cpu,nodes",
    "history --sum namespace --sum state --format namespace,state,jobs,started,completed",
    "history -n OTHER --format name,state",
)
TYPES: dict[str, type[msgspec.Struct]] = {
    "queue": wire.Job,
    "jobs": wire.Job,
    "groups": wire.Group,
    "plan": wire.PlanEntry,
    "nodes": wire.Node,
}


async def _every_verb(w: World) -> None:
    """Each as four users. The golden file has what they print; ``FLUENCE_REFRESH_VERBS=1`` writes it."""
    tasks = {"completions": 3, "parallelism": 3, "completionMode": "Indexed"}
    template = {"metadata": {"annotations": DURATION}, "spec": w.field.spec(cpu="4", restartPolicy="Never")}
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "sweep"},
        "spec": {**tasks, "template": template},
    }
    await w.field.client.create(JOBS.raw(), body, namespace=w.field.namespace)

    async def planned() -> list[tuple[str | None, str, bool]]:
        rows = await w.rows("queue")
        return [
            (row.get("name"), row["state"], bool(row.get("noLaterThan") and row.get("reasons")))
            for row in rows
        ]

    waiting = [(name, "reserved", True) for name in ("mine", "theirs", "late", "sweep")]
    await eventually(planned, waiting, what="all are planned and told", timeout_s=SOON_S)
    await eventually(
        lambda: w.rows("queue"), lambda rows: rows[-1]["array"]["waiting"] == 3, what="all tasks wait"
    )
    turns = asyncio.Semaphore(4)

    async def shown(verb: str, who: str) -> str:
        words = verb.replace("LABEL", f"{LABEL}=SPACE").replace("SPACE", w.field.namespace)
        for name, value in (
            ("OTHER", w.other),
            ("SCHEDULER", w.field.name),
        ):
            words = words.replace(name, value)
        async with turns:
            code, out, err = await w.run(*words.split(), user=USERS[who])
        said = _plain(w, out + err)
        if verb.startswith("history --format"):  # jobs of one second have no order
            head, *lines = said.splitlines(keepends=True)
            said = head + "".join(sorted(lines))
        return f"$ kubectl fluence {verb}   # {who}, exit code {code}\n{said}"

    await _history_has(w, running=1, reserved=6)  # mine, theirs, late, and each task of sweep
    golden = [await _printed(shown, VERBS)]
    await _printed(shown, ["resources list"])  # of devices that other tests may have declared
    await asyncio.gather(*(_as_data(w, resource, who, turns) for resource in TYPES for who in USERS))
    await _as_the_server_says(w)
    await _by_the_document(w)
    await _doctor_and_graph(w)

    await w.field.end("running-0", "running-1")  # mine starts in its place
    await w.field.until_bound(["mine-0", "mine-1"])
    await eventually(
        lambda: w.rows("queue"),
        lambda rows: (
            [row["name"] for row in rows] == ["theirs", "late", "sweep"]
            and all(row["state"] == "reserved" for row in rows)
        ),
        what="the others are planned again",
        timeout_s=SOON_S,
    )
    await _history_has(w, cancelled=1, running=1, reserved=5)
    await _as_the_server_says(w)
    golden.append(await _printed(shown, LATER))
    text = "\n# After a job has ended\n\n".join(golden)
    if REFRESH:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


async def _printed(shown: Callable[[str, str], Awaitable[str]], verbs: Sequence[str]) -> str:
    asked = [(verb, who) for verb in verbs for who in USERS]
    answers = await asyncio.gather(*(shown(verb, who) for verb, who in asked))
    for (_, who), text in zip(asked, answers, strict=True):
        _shows_no_more(who, text)  # also of what is written anew
    return "\n".join(answers)


def _shows_no_more(who: str, text: str) -> None:
    """An answer or one line, and nothing of namespaces whose pods the user may not list."""
    head, _, body = text.partition("\n")
    assert re.search(r"exit code [0134]$", head), text
    assert "Traceback" not in body and "is forbidden" not in body, text
    if head.endswith("exit code 1"):
        assert len(body.strip().splitlines()) == 1, text
    named = "theirs" in head  # in the question
    assert who == "admin" or named or "theirs" not in body, text
    assert who != "nothing" or not re.search(r"\bmine\b|\bsweep\b", body) or "error" in body, text


async def _history_has(w: World, **states: int) -> None:
    """Wait until it has so many jobs of both namespaces in these states, and no others."""

    async def written() -> Counter[str]:
        rows = await w.rows("history")
        return Counter(row["state"] for row in rows if row["namespace"] in (w.field.namespace, w.other))

    await eventually(written, Counter(states), what="the history is written", timeout_s=SOON_S)


async def _as_the_server_says(w: World) -> None:
    """The commands show what the API server has: what is free on nodes, who waits, and where who runs."""
    _, out, _ = await w.run("nodes", "-l", f"{LABEL}={w.field.namespace}", "-o", "json")
    everywhere = (await w.field.client.list(PODS)).items or ()
    pods = [pod for pod in everywhere if pod.status.phase not in ("Succeeded", "Failed")]
    objects = {node.name: node for node in (await w.field.client.list(NODES)).items or ()}
    rows = json.loads(out)["items"]
    assert {row["name"] for row in rows} == set(w.field.nodes)
    for row in rows:
        there = [pod for pod in pods if pod.spec.node_name == row["name"]]
        assert row.get("pods", 0) == len(there)
        asked: dict[str, int] = {}
        for pod in there:
            add_into(asked, pod_requests(pod))
        size = objects[row["name"]].allocatable()
        free = {each["resource"]: each["free"] for each in row["amounts"]}
        for name in ("cpu", "memory", "pods"):
            assert free[name] == format_amount(name, size[name] - asked.get(name, 0)), (row, name)
    ours = [pod for pod in pods if pod.spec.scheduler_name == w.field.name]
    _, out, _ = await w.run("queue", "-o", "json")
    waiting = sum(
        row["array"]["waiting"] if "array" in row else row["pods"] for row in json.loads(out)["items"]
    )
    assert waiting == sum(pod.spec.node_name is None for pod in ours)
    _, out, _ = await w.run("jobs", "-t", "running", "-o", "json")
    shown = {node for row in json.loads(out)["items"] for node in row["nodes"]}
    assert shown == {pod.spec.node_name for pod in ours if pod.spec.node_name}


async def _by_the_document(w: World) -> None:
    """The document, as the API server hands it on, holds for every answer."""
    document = await eventually(
        lambda: w.get(f"/openapi/v3{BASE}", "nobody"),
        lambda found: isinstance(found, dict) and BASE + "/history" in found.get("paths", {}),
        what="the API server has the document",
        timeout_s=2 * SOON_S,
    )
    named = {"queue": "mine", "jobs": "sweep", "groups": "mine", "nodes": w.field.nodes[0], "plan": "mine"}
    for path, operations in document["paths"].items():
        if "get" not in operations:
            continue
        resource = path.removeprefix(f"{BASE}/").replace("namespaces/{namespace}/", "").partition("/")[0]
        if "{name}" in path and resource not in named:
            continue
        asked = path.format(namespace=w.field.namespace, name=named.get(resource))
        for user in (None, "vic"):
            answer = await w.get(asked + ("?by=user" if resource == "usage" else ""), user)
            assert isinstance(answer, dict), (asked, answer)
            assert faults(document, path, answer) == []


async def _doctor_and_graph(w: World) -> None:
    """What differs from server to server: that there is an answer, and that it can be read."""
    for user in USERS.values():
        code, out, err = await w.run("doctor", "-o", "json", user=user)
        assert code in (0, 1, 2) and json.loads(out), (user, err)
        assert "Traceback" not in err
        code, out, err = await w.run("graph", "jgf", "-l", f"{LABEL}={w.field.namespace}", user=user)
        assert (code, err) == (0, "")
        vertices = json.loads(out)["graph"]["nodes"]
        assert {each["metadata"]["name"] for each in vertices if each["metadata"]["type"] == "node"} == set(
            w.field.nodes
        )


async def _as_data(w: World, resource: str, who: str, turns: asyncio.Semaphore) -> None:
    """JSON is as the types of the OpenAPI document say, and nothing else is in it."""
    async with turns:
        code, out, err = await w.run(resource, "-o", "json", user=USERS[who])
    assert (code, err) == (0, "")
    items = json.loads(out)["items"]
    rows = [msgspec.convert(item, TYPES[resource]) for item in items]
    assert msgspec.to_builtins(rows) == items, (resource, who)


def _plain(w: World, text: str) -> str:
    """Without what differs from run to run: names of namespaces and nodes, times, and what other tests have
    on this server."""
    for word, plain in (
        (w.field.name, "SCHEDULER"),
        (w.other, "OTHER"),
        (w.field.namespace, "SPACE"),
        (w.field.nodes[0].removesuffix("000"), "NODE-"),
    ):
        text = text.replace(word, plain)
    for pattern, plain in (
        (r"\b\d\d:\d\d\b", "HH:MM"),
        (r"(HH:MM +)+HH:MM\n", "HH:MM\n"),  # as many as have room above a chart
        (r"\d+/\d+ nodes are available: [^;\n]*", "N nodes are available"),
        (r"([█▒░·])[█▒░·]*", r"\1"),  # where a bar begins depends on when it is drawn
        (r"one character is [^;]*;", "one character is A WHILE;"),
        (r"(░ NODE-)\d+", r"\1N"),
        (r"(?m)^ *Story:\n( +HH:MM.*\n)+", ""),
        (r"(?m)^ +sooner .*\n( {12}.*\n)*", ""),  # other tests' nodes may be free
        (r"\d{4}-\d\d-\d\d HH:MM:\d\d UTC \(in [^)]*\)", "DATE"),
        (r"\b(\d+ min )?\d+ s\b|\b\d+ min\b", "AGE"),
        (r"\b(asked-\d)-[a-z0-9]{5}\b", r"\1-xxxxx"),
        (r" +", " "),
    ):
        text = re.sub(pattern, plain, text)
    return text


async def test_four_users_ask_what_if_and_get_the_answer_of_the_live_plan(kube: Kube, tmp_path: Path) -> None:
    """With the right to list pods of one namespace. The administrator gets the same, with all names."""
    async with world(kube, tmp_path) as w, contextlib.AsyncExitStack() as stack:
        space = w.field.namespace
        urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
        await w.field.client.create(PRIORITY_CLASSES.raw(), {**urgent, "metadata": {"name": space}})
        stack.push_async_callback(w.field.client.delete, PRIORITY_CLASSES, space)
        await w.submit("running", 2, w.other)
        await eventually(
            lambda: w.rows("jobs", None, "?state=running"),
            lambda rows: len(rows) == 1,
            what="it runs",
            timeout_s=SOON_S,
        )
        manifest = w.job("asked", space)
        (tmp_path / "asked.yaml").write_text(yaml.safe_dump(manifest))

        async def printed(who: str) -> tuple[int, str, str]:
            words = ("whatif", "-f", str(tmp_path / "asked.yaml"), "-n", space)
            code, out, err = await w.run(*words, user=USERS[who])
            return code, _plain(w, out), err

        code, whole, err = await printed("admin")
        assert (code, err) == (3, ""), whole
        assert whole.startswith("SPACE/asked: it would wait") and "job OTHER/running would end now" in whole
        for who in ("edit", "view"):
            code, own, err = await printed(who)
            assert (code, err) == (3, ""), own
            assert "a job of another namespace would end now" in own and "OTHER" not in own, own
            assert _without_names(own) == _without_names(whole), "the answer is the administrator's"
        code, out, err = await printed("nothing")
        assert (code, out, err.count("\n")) == (1, "", 1) and "you may not list pods in namespace" in err

        await _asked_by_the_api(w, manifest)
        assert await w.rows("queue") == [], "nothing was submitted"
        assert not (await w.field.client.list(JOBS, namespace=space)).items


def _without_names(text: str) -> list[str]:
    """An answer without those who would end, and those that it waits for."""
    return [line for line in text.splitlines() if "waiting for" not in line and "would end" not in line]


async def _asked_by_the_api(w: World, manifest: dict[str, Any]) -> None:
    """As its document says, and within its bounds."""
    body = msgspec.json.encode({"files": [{"source": "asked.yaml", "documents": [manifest]}]})

    async def ask(text: bytes, user: str | None, namespace: str = w.field.namespace) -> Any:
        access = msgspec.structs.replace(w.field.kube.access(), impersonate=user)
        async with Client(access) as client:
            path = f"{BASE}/namespaces/{namespace}/whatif"
            try:
                return msgspec.json.decode(await client.request("POST", path, body=text, retry=ONCE))
            except ApiError as error:
                return error.status.code

    told = await ask(body, "ann")
    assert isinstance(told, dict), told
    assert faults(openapi.document(), f"{BASE}/namespaces/{{namespace}}/whatif", told) == []
    assert (told["startsNow"], told["never"]) == (False, False)
    assert await ask(body, "nobody") == 403
    assert await ask(body, "ann", w.other) == 403
    assert await ask(b"[" * 100_000, "ann") == 400
    assert await ask(b" " * 1_000_000, "ann") == 413
    huge = {**manifest, "spec": {**manifest["spec"], "parallelism": 10**9, "completions": 10**9}}
    assert await ask(msgspec.json.encode({"files": [{"documents": [huge]}]}), "ann") == 400
    async with Client(msgspec.structs.replace(w.field.kube.access(), impersonate="ann")) as client:

        async def again() -> Any:
            path = f"{BASE}/namespaces/{w.field.namespace}/whatif"
            try:
                return msgspec.json.decode(await client.request("POST", path, body=body, retry=ONCE))
            except ApiError as error:
                return error.status.code

        many = await asyncio.gather(*(again() for _ in range(20)))
    refused = [answer for answer in many if not isinstance(answer, dict)]
    assert refused and set(refused) == {429} and len(refused) < 20
    await eventually(
        lambda: ask(body, "vic"), lambda told: isinstance(told, dict), what="others are answered"
    )


async def _without_scheduler(w: World) -> None:
    """With no scheduler, commands show what pods say, and say so."""
    await w.field.until_told("late-0")
    await w.replica.end()
    code, out, err = await w.run("queue", "-n", w.field.namespace, user="ann")
    assert code == 0, err
    assert "the view API does not answer" in err and "conditions" in err
    shown = [line.split() for line in out.splitlines()[1:]]
    assert [words[2] for words in shown] == ["late", "sweep"]
    code, _, err = await w.run("nodes", user="ann")
    assert code == 1 and err.startswith("error: ")


async def test_a_replica_that_follows_hands_on_to_the_leader(kube: Kube, tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    async with field(kube, 1) as f, Proxy(kube.access()) as proxy, aiohttp.ClientSession() as session:
        replicas = [
            Replica(f, tmp_path / str(port), proxy.access, "--view-address", f"127.0.0.2:{port}")
            for port in ports
        ]
        admin = await token(f.client, f.namespace, "boss")
        group = "rbac.authorization.k8s.io"
        body: dict[str, Any] = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"boss-{f.namespace}"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "boss", "namespace": f.namespace}],
        }
        await f.client.apply(resource_of(body), body, manager="test")

        async def ask(port: int) -> tuple[int, str]:
            url = f"https://127.0.0.2:{port}{BASE}/settings"
            try:
                async with session.get(url, headers={"Authorization": f"Bearer {admin}"}, ssl=tls) as answer:
                    return answer.status, (await answer.json())["metadata"].get("scheduler", "")
            except (aiohttp.ClientError, OSError):
                return 0, ""

        try:
            await replicas[0].start()
            await replicas[0].leads()
            await eventually(lambda: ask(ports[0]), (200, f.name), what="the leader", timeout_s=SOON_S)
            await replicas[1].start()
            await eventually(lambda: ask(ports[1]), (200, f.name), what="the other", timeout_s=SOON_S)
            assert "leads" not in replicas[1].said
        finally:
            for replica in replicas:
                await replica.end()
            with contextlib.suppress(Missing):
                await f.client.delete(resource_of(body), body["metadata"]["name"])


async def test_the_page_shows_what_the_server_says_and_comes_back_with_the_scheduler(
    kube: Kube, tmp_path: Path
) -> None:
    """In a browser, as a user with rights on one namespace, over gangs that wait, start and end."""
    async with world(kube, tmp_path) as w, browser() as started:
        space = w.field.namespace
        await w.submit("running", 2, space)
        await w.field.until_bound(["running-0", "running-1"])
        await w.submit("mine", 2, space)
        await w.submit("theirs", 2, w.other)
        await w.field.until_told("mine-0")
        await eventually(
            lambda: w.rows("queue", "vic"), lambda rows: len(rows) == 2, what="both wait", timeout_s=SOON_S
        )
        access = msgspec.structs.replace(w.field.kube.access(), impersonate="vic")
        async with (
            Client(access) as client,
            page.serving(LiveView(client)) as address,
            reader(started) as shown,
        ):
            await shown.open(address, "queue?show=all")
            names = shown.page.locator("tbody tr:not(.space) td:nth-child(2)")
            await expect(names).to_contain_text([f"{space}/running", f"{space}/mine"])
            assert "theirs" not in await shown.page.content()

            await shown.open(address, f"jobs/{space}/running")
            cells = shown.page.locator("tbody tr")
            await expect(cells).to_have_count(2)
            said = {name: pod.spec.node_name for name, pod in (await w.field.pods()).items()}
            rows = [(await cell.inner_text()).split() for cell in await cells.all()]
            assert rows == [[name, said[name]] for name in ("running-0", "running-1")]

            assert rows == await _nodes_in_plan(w, shown, address)
            await _views_of_one_namespace(w, shown, address)
            code, _, fault = await w.run("queue", user="vic")  # which leaves the user's kubeconfig
            assert code == 0, fault
            flags = ["--kubeconfig", str(w.folder / "kubeconfig-vic"), "--scheduler-name", w.field.name]
            told = await explain(flags, "Group", space, "mine")
            assert told["state"] in ("Pending", "Reserved") and told.keys() & {"blocks", "notes"}, told
            saved, command = w.folder / "saved.json", ("-m", "fluence.cli", "web", "--save")
            process = await asyncio.create_subprocess_exec(sys.executable, *command, str(saved), *flags[:2])
            assert await process.wait() == 0
            rows_saved = msgspec.json.decode(saved.read_bytes())["lists"]["queue"]["items"]
            assert [row.get("name") for row in rows_saved] == ["mine", None]
            with pytest.raises(NotFound, match="nosuch"):
                await explain(flags, "Group", space, "nosuch")

            await shown.open(address, "queue?show=all")
            await w.field.end("running-0", "running-1")  # mine starts in their place
            await w.field.until_bound(["mine-0", "mine-1"])
            state = shown.page.locator("tbody tr", has_text=f"{space}/mine").locator("td:nth-child(3)")
            await expect(state).to_have_text("running")

            assert shown.faults == []
            w.replica.signal(signal.SIGTERM)  # it gives its lease back
            await w.replica.process.wait()
            await expect(shown.page.locator("#connection")).to_have_class("lost")
            await w.replica.start()
            await w.replica.leads(2)
            await expect(shown.page.locator("#connection")).to_have_text("Live")
            await expect(state).to_have_text("running")
            await shown.page.goto("about:blank")  # ends its streams before their server ends


async def _nodes_in_plan(w: World, shown: Reader, address: str) -> list[list[str]]:
    """The nodes of the running gang as the plan shows them, and the cluster's table against the server."""
    await shown.open(address, "plan")
    planned = {row[0]: row for row in await shown.rows("Plan as a table")}
    running = planned[f"{w.field.namespace}/running"]
    said = {name: str(pod.spec.node_name) for name, pod in (await w.field.pods()).items()}
    assert running[1] == "running"
    assert set(running[5].split(", ")) == {said["running-0"], said["running-1"]}
    await shown.open(address, "cluster")
    nodes = {row[0]: row for row in await shown.rows("Nodes")}
    assert set(nodes) >= set(w.field.nodes)
    for name in w.field.nodes:
        here = [pod for pod, node in said.items() if node == name]
        assert (nodes[name][1], nodes[name][2]) == ("Ready", str(len(here))), nodes[name]
        assert (f"{w.field.namespace}/running" in nodes[name][4]) == bool(here)
    return [[name, said[name]] for name in ("running-0", "running-1")]


async def _views_of_one_namespace(w: World, shown: Reader, address: str) -> None:
    """No view says anything of the other namespace, and all are accessible."""
    for view in ("cluster", "queue", "plan", "devices", "promises", f"jobs/{w.field.namespace}/mine"):
        await shown.open(address, view)
        text = await shown.page.content()
        assert "theirs" not in text and w.other not in text, view
        assert await shown.violations() == [], view
