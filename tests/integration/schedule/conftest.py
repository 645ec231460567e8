"""A control plane with the kinds and the controllers of operators."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from fluence.kube.client import Client
from fluence.sandbox.sandbox import Sandbox
from fluence.sandbox.testing import Kube, namespace_in
from tests.integration.schedule.operated import MAKERS, install
from tests.operators.controllers import running
from tests.operators.programs import find_operators


@pytest.fixture(scope="module")
def operated(own_control_plane: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A control plane with the kinds of all these operators, and the controllers of `tests.operators`."""
    real = find_operators()

    async def start(stack: contextlib.AsyncExitStack) -> None:
        client = await stack.enter_async_context(Client(own_control_plane.access()))
        for operator in real:
            folder = tmp_path_factory.mktemp("operators") / operator.name
            await stack.enter_async_context(running(operator, own_control_plane, client, folder))
        for kind in sorted(MAKERS.keys() - {operator.kind for operator in real}):
            await install(client, kind)

    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        try:
            runner.run(start(stack))
            yield own_control_plane
        finally:
            runner.run(stack.aclose())


@pytest.fixture
def operators(operated: Sandbox) -> Iterator[Kube]:
    """A namespace there."""
    with namespace_in(operated) as kube:
        yield kube
