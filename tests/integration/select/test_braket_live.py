"""braket-live against a local stand-in for the AWS endpoint, through the real boto3 and aws program."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.integration.select.select_program import Done, Program
from tests.needs import lacks

if importlib.util.find_spec("boto3") is None:
    lacks("boto3", module=True)

P = "fluence.flux-framework.org"
NAMES = ["ankaa", "aria", "garnet"]


def arn(name: str) -> str:
    return f"arn:aws:braket:us-west-1::device/qpu/vendor/{name}"


ATTRIBUTES = "backends:\n" + "".join(
    f"  - {{name: {name}, device_arn: '{arn(name)}', cost_per_task: 0.3, cost_per_shot: 0.001}}\n"
    for name in NAMES
)
POD = f"""\
kind: Pod
metadata: {{name: p, annotations: {{{P}/select-policy: "POLICY"}}}}
spec: {{schedulerName: fluence}}
"""


class Braket(ThreadingHTTPServer):
    """GetDevice over HTTP, as botocore asks it; each device answers as the test says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.devices: dict[str, dict[str, object]] = {}
        self.faults: dict[str, tuple[int, str, str]] = {}
        self.delays: dict[str, float] = {}
        self.together: threading.Barrier | None = None  # none is answered before all have asked
        self.asked: list[str] = []
        self.authorizations: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def online(self, name: str, queue: str, *, status: str = "ONLINE") -> None:
        self.devices[name] = {
            "deviceArn": arn(name),
            "deviceName": name,
            "deviceStatus": status,
            "deviceType": "QPU",
            "providerName": "vendor",
            "deviceCapabilities": "{}",
            "deviceQueueInfo": [
                {"queue": "QUANTUM_TASKS_QUEUE", "queueSize": queue, "queuePriority": "Normal"},
                {"queue": "QUANTUM_TASKS_QUEUE", "queueSize": "0", "queuePriority": "Priority"},
                {"queue": "JOBS_QUEUE", "queueSize": "0"},
            ],
        }


class Handler(BaseHTTPRequestHandler):
    server: Braket

    def do_GET(self) -> None:
        name = unquote(self.path).rpartition("/")[2]
        self.server.asked.append(name)
        self.server.authorizations.append(self.headers.get("Authorization", ""))
        time.sleep(self.server.delays.get(name, 0))
        if self.server.together is not None:
            self.server.together.wait(timeout=120)
        if name in self.server.faults:
            code, kind, message = self.server.faults[name]
            self.answer(code, {"message": message}, {"x-amzn-ErrorType": kind})
        else:
            self.answer(200, self.server.devices[name], {})

    def answer(self, code: int, body: dict[str, object], headers: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        try:
            self.send_response(code)
            for key, value in {**headers, "Content-Type": "application/json"}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the asker has given up, as it should

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def braket() -> Iterator[Braket]:
    server = Braket()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    for name, queue in zip(NAMES, ["13", ">4000", "5"], strict=True):
        server.online(name, queue)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Selecting:
    """`select -o json` of a pod with a policy, against the stand-in."""

    def __init__(self, program: Program, braket: Braket) -> None:
        self.program = program
        self.braket = braket
        (program.directory / "attributes.yaml").write_text(ATTRIBUTES)
        self.environment = {
            "AWS_ENDPOINT_URL_BRAKET": braket.url,
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }

    def __call__(self, policy: str, *arguments: str, **environment: str) -> Done:
        return self.program(
            "select",
            *("-f", "-", "--attributes", "attributes.yaml", "--providers", "file,braket-live", *arguments),
            stdin=POD.replace("POLICY", policy),
            **{**self.environment, **environment},
        )


@pytest.fixture
def selecting(program: Program, braket: Braket) -> Selecting:
    return Selecting(program, braket)


def chosen(done: Done) -> str:
    assert done.code == 0, done.err
    name: str = json.loads(done.out)["selections"][0]["chosen"]
    return name


def test_the_shortest_queue_is_asked_for_with_the_users_credentials(
    selecting: Selecting, braket: Braket
) -> None:
    done = selecting("online-only,min-queue", "-o", "json")
    assert chosen(done) == "garnet"
    candidates = {c["name"]: c for c in json.loads(done.out)["selections"][0]["candidates"]}
    assert {n: c["attributes"]["queue_size"] for n, c in candidates.items()} == {
        "ankaa": 13,
        "aria": 4001,
        "garnet": 5,
    }
    assert candidates["garnet"]["sources"]["queue_size"] == "braket-live"
    assert sorted(braket.asked) == NAMES
    assert all("AKIDEXAMPLE" in header and "us-west-1/braket" in header for header in braket.authorizations)


def test_nobody_is_asked_where_no_policy_needs_it(selecting: Selecting, braket: Braket) -> None:
    assert chosen(selecting("min-cost", "-o", "json")) == "ankaa"
    assert braket.asked == []


def test_offline_devices_are_dropped(selecting: Selecting, braket: Braket) -> None:
    braket.online("garnet", "5", status="OFFLINE")
    assert chosen(selecting("online-only,min-queue", "-o", "json")) == "ankaa"


def test_only_what_the_scheduler_offers_is_asked(
    selecting: Selecting, braket: Braket, kubectl: object
) -> None:
    kubectl.offers("- name: ankaa\n- name: aria\n")  # type: ignore[attr-defined]
    assert (
        chosen(selecting("min-queue", "-o", "json", "--providers", "configmap,file,braket-live")) == "ankaa"
    )
    assert sorted(braket.asked) == ["ankaa", "aria"]


def test_each_device_is_asked_once_for_all_workloads(selecting: Selecting, braket: Braket) -> None:
    text = POD.replace("POLICY", "min-queue")
    done = selecting.program(
        *(
            "select",
            "-f",
            "-",
            "--attributes",
            "attributes.yaml",
            "--providers",
            "file,braket-live",
            "-o",
            "json",
        ),
        stdin=f"{text}---\n{text}",
        **selecting.environment,
    )
    assert len(json.loads(done.out)["selections"]) == 2
    assert sorted(braket.asked) == NAMES


def test_a_refusal_is_soft_and_reported_and_stays_out_of_the_cluster(
    selecting: Selecting, braket: Braket
) -> None:
    secret = "User: arn:aws:iam::123456789012:user/ada is not authorized to perform: braket:GetDevice"
    braket.faults["garnet"] = (403, "AccessDeniedException", secret)
    done = selecting("online-only,min-queue")
    assert done.code == 0
    assert f"{P}/require-backend" in done.out
    assert '"chosen":"ankaa"' in json.dumps(done.out).replace("\\", "")
    assert f"note: braket-live: garnet: AccessDeniedException: {secret}" in done.err
    assert "dropped garnet: online-only: status is UNKNOWN: AccessDeniedException" in done.err
    assert "123456789012" not in done.out
    assert "braket-live: 1 of 3 devices did not answer" in done.out


def test_throttling_is_tried_again_and_then_reported(selecting: Selecting, braket: Braket) -> None:
    braket.faults["garnet"] = (429, "ThrottlingException", "Rate exceeded")
    done = selecting("min-queue", "-o", "json")
    assert chosen(done) == "ankaa"
    assert braket.asked.count("garnet") > 1
    assert "braket-live: garnet: ThrottlingException: Rate exceeded" in done.err


def test_a_device_that_does_not_answer_in_time_is_given_up(selecting: Selecting, braket: Braket) -> None:
    braket.delays["garnet"] = 30
    start = time.monotonic()
    done = selecting("min-queue", "-o", "json", "--live-timeout", "2")
    assert time.monotonic() - start < 15
    assert chosen(done) == "ankaa"
    assert "braket-live: garnet: no answer within 2 s" in done.err


def test_devices_are_asked_at_the_same_time(selecting: Selecting, braket: Braket) -> None:
    braket.together = threading.Barrier(len(NAMES))
    done = selecting("min-queue", "-o", "json", "--live-timeout", "20")
    assert chosen(done) == "garnet" and not braket.together.broken
    assert sorted(braket.asked) == sorted(NAMES)


def test_if_nobody_answers_the_failure_names_every_reason(selecting: Selecting, braket: Braket) -> None:
    for name in NAMES:
        braket.faults[name] = (500, "InternalServiceException", "try later")
    done = selecting("online-only,min-queue")
    assert (done.code, done.out) == (1, "")
    last = done.err.splitlines()[-1]
    assert (
        'policy "online-only" removed all candidates; dropped: ankaa (online-only: status is UNKNOWN' in last
    )


def test_without_credentials_the_reason_is_said(selecting: Selecting) -> None:
    nothing = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    done = selecting("min-queue", **nothing)
    assert done.code == 1
    assert "braket-live: ankaa: NoCredentialsError: Unable to locate credentials" in done.err


def test_candidates_without_an_arn_are_not_asked_for(selecting: Selecting, braket: Braket) -> None:
    (selecting.program.directory / "attributes.yaml").write_text(
        "backends: [{name: a, attributes: {queue_size: 3}}, {name: b, attributes: {queue_size: 2}}]"
    )
    done = selecting("min-queue", "-o", "json")
    assert chosen(done) == "b"
    assert braket.asked == []


@pytest.fixture
def without_boto3(selecting: Selecting) -> dict[str, str]:
    """An environment whose Python finds no boto3."""
    blocker = selecting.program.directory / "blocker"
    blocker.mkdir()
    (blocker / "boto3.py").write_text("raise ImportError('blocked by the test')\n")
    return {"PYTHONPATH": str(blocker)}


def test_without_boto3_and_aws_the_cure_is_said(selecting: Selecting, without_boto3: dict[str, str]) -> None:
    done = selecting("min-queue", **without_boto3)
    assert done.code == 1
    assert (
        "neither boto3 nor the aws program is installed; pip install 'fluence-scheduler[braket]'" in done.err
    )


def test_without_boto3_the_aws_program_is_asked(
    selecting: Selecting, without_boto3: dict[str, str], braket: Braket
) -> None:
    program = shutil.which("aws") or lacks("aws")
    # Its Python must find its own boto3, so only ours is blocked: by a wrapper that clears the path.
    wrapper = Path(selecting.program.environment["PATH"].partition(":")[0]) / "aws"
    own = f'PATH="{os.environ["PATH"]}" HOME="{Path.home()}"'
    wrapper.write_text(f'#!/bin/sh\nunset PYTHONPATH\n{own} exec "{program}" "$@"\n')
    wrapper.chmod(0o755)
    braket.faults["garnet"] = (403, "AccessDeniedException", "not for you")
    done = selecting("min-queue", "-o", "json", "--live-timeout", "40", **without_boto3)
    assert chosen(done) == "ankaa", done.err
    assert "braket-live: garnet: " in done.err
    assert "AccessDeniedException" in done.err
    assert sorted(set(braket.asked)) == NAMES


def test_nothing_of_aws_is_loaded_without_need(selecting: Selecting) -> None:
    directory = selecting.program.directory
    (directory / "pod.yaml").write_text(POD.replace("POLICY", "min-cost"))
    line = [
        "select",
        "-f",
        "pod.yaml",
        "--attributes",
        "attributes.yaml",
        "--providers",
        "file",
        "-o",
        "json",
    ]
    code = (
        f"import sys; from fluence.kubectl.commands import run; run({line!r})\n"
        "names = ('boto3', 'botocore', 'numpy', 'ruamel.yaml', 'rich')\n"
        "print([name for name in names if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=directory, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"
