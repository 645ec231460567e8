"""The `braket-live` provider: queue depth and status of AWS Braket devices, with the user's own credentials.

All devices are queried at once, through boto3 if it is installed, else through the `aws` program, with one
time limit for all. A device that does not answer is not an error: its status is UNKNOWN, which
``online-only`` drops, it has no queue size, and a note says why.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Final

from fluence.select.policies import QUERY_ERROR, QUEUE, STATUS, Backend
from fluence.select.providers import BackendAnswer, BackendQuery

UNKNOWN: Final = "UNKNOWN"
UNREADABLE_QUEUE: Final = 1e9
"""Always ranks last."""

# Braket's simulators have no region in their ARN; they live here unless the user says otherwise.
DEFAULT_REGION: Final = "us-east-1"

GetDevice = Callable[[str], Mapping[str, Any]]
"""From an ARN to the GetDevice answer of Braket; may raise any exception."""


class NoBraketClient(Exception):
    """Neither boto3 nor the `aws` program is installed."""


class BraketLiveProvider:
    """Queries each device once per run, for any number of workloads."""

    name = "braket-live"
    supplies: frozenset[str] | None = frozenset({QUEUE, STATUS})

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._answers: dict[str, Mapping[str, Any] | str] = {}

    def fetch(self, ask: BackendQuery) -> BackendAnswer:
        devices = {b.device_arn: b for b in ask.known.values() if b.device_arn}
        if not devices:
            # Another provider may have given the queue size or the status.
            is_known = any(b.number(QUEUE) is not None or b.text(STATUS) for b in ask.known.values())
            note = "braket-live: no candidate has a device_arn, so no device was asked"
            return BackendAnswer(notes=[] if is_known else [note])
        new = {arn: region_of(device) for arn, device in devices.items() if arn not in self._answers}
        self._answers.update(ask_all(new, timeout_s=self._timeout_s))
        backends, warnings = [], []
        for backend in ask.known.values():
            if not backend.device_arn:
                continue
            answer = self._answers[backend.device_arn]
            if isinstance(answer, str):
                warnings.append(f"braket-live: {backend.name}: {answer}")
            backends.append(read_device(backend.name, answer))
        notes = []
        if warnings:
            notes = [f"braket-live: {len(warnings)} of {len(backends)} devices did not answer"]
        return BackendAnswer(backends, notes, warnings)


def region_of(backend: Backend) -> str | None:
    """The region to query: the given one, else the one in the ARN, else the user's default."""
    arn = (backend.device_arn or "").split(":")
    return backend.region or (arn[3] if len(arn) > 3 and arn[3] else None)


def read_device(name: str, answer: Mapping[str, Any] | str) -> Backend:
    """What a GetDevice answer, or the text of its failure, says about a backend."""
    if isinstance(answer, str):
        return Backend(name, provider="braket", strings={STATUS: UNKNOWN, QUERY_ERROR: answer})
    numbers: dict[str, float] = {}
    for queue in answer.get("deviceQueueInfo") or []:
        # The priority queue is for hybrid jobs; a plain task waits in the normal one.
        is_normal = str(queue.get("queuePriority", "")).lower() != "priority"
        if "QUANTUM_TASKS" in str(queue.get("queue", "")).upper() and is_normal:
            numbers[QUEUE] = read_queue_size(str(queue.get("queueSize", "")))
    return Backend(
        name,
        provider="braket",
        attributes=numbers,
        strings={STATUS: str(answer.get("deviceStatus") or UNKNOWN)},
    )


def read_queue_size(text: str) -> float:
    """Braket says ``12``, or ``>4000`` where it stops counting."""
    digits = text.strip().removeprefix(">")
    if not (digits.isascii() and digits.isdigit()):
        return UNREADABLE_QUEUE
    return float(int(digits) + (1 if text.strip().startswith(">") else 0))


def ask_all(devices: Mapping[str, str | None], *, timeout_s: float) -> dict[str, Mapping[str, Any] | str]:
    """Ask every device, given as ARN and region, at once: its answer, or the reason why it has none."""
    deadline = time.monotonic() + timeout_s
    answers: dict[str, Mapping[str, Any] | str] = {}
    arrived: SimpleQueue[tuple[str, Mapping[str, Any] | str]] = SimpleQueue()

    def work(arn: str, get_device: GetDevice) -> None:
        try:
            arrived.put((arn, get_device(arn)))
        except Exception as error:
            arrived.put((arn, describe_failure(error)))

    askers: dict[str | None, GetDevice | str] = {}
    for region in set(devices.values()):
        try:
            askers[region] = asker(region, timeout_s=timeout_s)
        except Exception as error:
            askers[region] = describe_failure(error)
    for arn, region in devices.items():
        asks = askers[region]
        if isinstance(asks, str):
            answers[arn] = asks
        else:
            # Daemons: a device that never answers must not keep the program from ending.
            threading.Thread(target=work, args=(arn, asks), daemon=True).start()
    while len(answers) < len(devices):
        try:
            arn, answer = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            break
        answers[arn] = answer
    for arn in devices:
        answers.setdefault(arn, f"no answer within {timeout_s:g} s")
    return answers


def asker(region: str | None, *, timeout_s: float) -> GetDevice:
    """The function that queries devices of *region*; made one after the other, because boto3 sessions are not
    thread-safe."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        return _aws_program(region, timeout_s=timeout_s)
    session = boto3.Session()
    client = session.client(
        "braket",
        region_name=region or session.region_name or DEFAULT_REGION,
        config=Config(
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            retries={"mode": "standard", "total_max_attempts": 3},
        ),
    )

    def get_device(arn: str) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = client.get_device(deviceArn=arn)
        return answer

    return get_device


def _aws_program(region: str | None, *, timeout_s: float) -> GetDevice:
    program = shutil.which("aws")
    if program is None:
        raise NoBraketClient(
            "neither boto3 nor the aws program is installed; pip install 'fluence-scheduler[braket]'"
        )

    def get_device(arn: str) -> Mapping[str, Any]:
        command = [program, "braket", "get-device", "--device-arn", arn, "--output", "json"]
        command += ["--region", region] if region else []
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise RuntimeError(lines[-1].strip() if lines else f"aws: exit code {done.returncode}")
        answer = json.loads(done.stdout)
        if not isinstance(answer, dict):
            raise RuntimeError("aws: the answer is not an object")
        return answer

    return get_device


def describe_failure(error: Exception) -> str:
    """One line for a user: what AWS said, or what kind of failure it was."""
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        fault = response["Error"]
        return f"{fault.get('Code', 'error')}: {fault.get('Message') or 'no message'}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer within {error.timeout:g} s"
    text = " ".join(str(error).split())
    if isinstance(error, RuntimeError | NoBraketClient) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
