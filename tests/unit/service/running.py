"""A service in a process of its own, and a channel to it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from fluence.service import match_v1_pb2 as v1
from fluence.service.api import SERVICE

_LINE = re.compile(r"serves on ([^\s,]+)")
_START_S = 60.0


class Service:
    """``fluence service run`` with some arguments."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        handle, name = tempfile.mkstemp(suffix=".log")
        self._log = Path(name)
        command = [sys.executable, "-m", "fluence.cli", "service", "run"]
        if "--service-address" not in arguments:
            command += ["--service-address", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=handle,
            env={**os.environ, **(env or {})},
        )
        os.close(handle)
        self.address = self._wait()

    def _wait(self) -> str:
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            found = _LINE.search(self.log)
            if found is not None:
                return found[1]
            if self.process.poll() is not None:
                raise RuntimeError(f"the service ended with {self.process.returncode}: {self.log}")
            time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"the service did not start: {self.log}")

    @property
    def log(self) -> str:
        if not self._log.exists():
            return self._last  # type: ignore[has-type]
        self._last = self._log.read_text()
        return self._last

    @property
    def memory_mb(self) -> float:
        """The most that was resident."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def kill(self) -> None:
        self.process.kill()
        self.stop()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(30)
        assert isinstance(self.log, str)
        self._log.unlink(missing_ok=True)
        return self.process.returncode


@contextmanager
def serving(
    *arguments: str, options: Sequence[tuple[str, Any]] = ()
) -> Iterator[tuple[Service, grpc.Channel]]:
    """A service and a channel to it, until the end of the block."""
    service = Service(*arguments)
    try:
        with channel_to(service.address, options) as channel:
            yield service, channel
    finally:
        service.stop()


@contextmanager
def channel_to(address: str, options: Sequence[tuple[str, Any]] = ()) -> Iterator[grpc.Channel]:
    options = [
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        *options,
    ]
    with grpc.insecure_channel(address, options=options) as channel:
        yield channel


class Client:
    """Our own API: ``client.Match(jobspec=…)``."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def __getattr__(self, method: str) -> Any:
        service = v1.DESCRIPTOR.services_by_name["MatchService"]
        described = service.methods_by_name[method]
        asked = getattr(v1, described.input_type.name)
        answered = getattr(v1, described.output_type.name)
        make = self._channel.unary_stream if described.server_streaming else self._channel.unary_unary
        call = make(
            f"/{SERVICE}/{method}",
            request_serializer=asked.SerializeToString,
            response_deserializer=answered.FromString,
        )

        def send(timeout: float = 30.0, **fields: Any) -> Any:
            return call(asked(**fields), timeout=timeout)

        return send


def reason(error: grpc.RpcError) -> str:
    """What the trailing metadata says."""
    return dict(error.trailing_metadata() or ()).get("fluence-reason", "")  # type: ignore[arg-type, call-overload]
