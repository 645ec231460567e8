from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from tests.unit.service.running import Client, Service, channel_to


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """A service without a graph; tests load graphs of their own names, or call Init."""
    running = Service("--max-graphs", "64")
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture
def channel(service: Service) -> Iterator[grpc.Channel]:
    with channel_to(service.address) as found:
        yield found


@pytest.fixture
def client(channel: grpc.Channel) -> Client:
    return Client(channel)
