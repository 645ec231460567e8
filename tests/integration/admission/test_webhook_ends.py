"""The webhook when something goes: told to stop it answers until others are called, and a server that cannot
be asked for a while leaves it as it is."""

from __future__ import annotations

import asyncio
import logging
import signal
from datetime import UTC, datetime, timedelta

import pytest

from fluence.admission.certificates import WEBHOOK_CONFIGURATIONS, Renewal
from fluence.admission.manifests import webhook_configuration
from fluence.kube.client import Client
from fluence.sandbox.proxy import Proxy, Rule
from fluence.sandbox.sandbox import Sandbox
from tests.eventually import eventually
from tests.integration.admission.field import field, is_effective, webhook_for
from tests.integration.admission.program import program
from tests.integration.live.replica import SOON_S

CONFIGURATIONS = "mutatingwebhookconfigurations"


async def test_told_to_stop_it_answers_on_and_told_again_it_stops_at_once(sandbox: Sandbox) -> None:
    async with (
        Client(sandbox.access()) as client,
        field(client) as at,
        program(sandbox, client, at, "1h") as found,
    ):
        await eventually(lambda: found.get("/readyz"), (200, "ok\n"), timeout_s=SOON_S)
        found.process.send_signal(signal.SIGTERM)
        await eventually(lambda: found.get("/readyz"), (503, "it is shutting down\n"), timeout_s=SOON_S)
        assert (await found.get("/healthz"))[0] == 200  # nobody is to kill it meanwhile
        for _ in range(20):
            assert await is_effective(client, at)
        assert found.process.returncode is None
        found.process.send_signal(signal.SIGTERM)
        assert await found.ended() == 0


async def test_told_to_stop_it_ends_by_itself(sandbox: Sandbox) -> None:
    async with (
        Client(sandbox.access()) as client,
        field(client) as at,
        program(sandbox, client, at, "1s") as found,
    ):
        found.process.send_signal(signal.SIGTERM)
        assert await found.ended() == 0


async def test_it_is_ready_only_when_the_server_has_had_time_to_read_its_certificate(
    sandbox: Sandbox,
) -> None:
    never = Renewal(check_s=0.1, first_s=3600)
    async with (
        Client(sandbox.access()) as client,
        field(client) as at,
        webhook_for(client, at, renewal=never) as hook,
    ):
        assert await is_effective(client, at)
        assert hook.unready() == "the API server does not know our certificate yet"


async def test_a_server_that_cannot_be_asked_leaves_it_ready(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    """Else every replica would be taken out of the Service at once, for as long as nobody looks again."""
    async with (
        Client(sandbox.access()) as client,
        field(client) as at,
        Proxy(sandbox.access()) as proxy,
        Client(proxy.access) as acting,
        webhook_for(client, at, acting=acting) as hook,
    ):
        await eventually(hook.unready, "")
        fault = Rule(path=CONFIGURATIONS, status=500)
        with caplog.at_level(logging.WARNING, "fluence.admission.certificates"):
            proxy.rules.append(fault)
            async with asyncio.timeout(SOON_S):
                while "could not be announced" not in caplog.text:
                    await asyncio.sleep(0.05)
                    assert hook.unready() == ""
        assert fault.used and hook.unready() == "" and await is_effective(client, at)
        proxy.rules.clear()


async def test_a_certificate_that_ended_while_the_server_could_not_be_told_is_said(sandbox: Sandbox) -> None:
    short = Renewal(life=timedelta(seconds=10), check_s=0.1, settle_s=0.1, first_s=0.0)
    async with (
        Client(sandbox.access()) as client,
        field(client) as at,
        Proxy(sandbox.access()) as proxy,
        Client(proxy.access) as acting,
        webhook_for(client, at, renewal=short, acting=acting) as hook,
    ):
        proxy.rules.append(Rule(path=CONFIGURATIONS, status=500))
        said = "our certificate could not be announced to the API server: "
        await eventually(hook.unready, lambda why: why.startswith(said), timeout_s=SOON_S)
        assert datetime.now(UTC) >= hook.keeper.current.ends


async def test_a_configuration_that_is_gone_is_missed(sandbox: Sandbox) -> None:
    async with (
        Client(sandbox.access()) as client,
        field(client) as at,
        webhook_for(client, at) as hook,
    ):
        body = webhook_configuration(at.options, client={"url": "https://127.0.0.1:1"}, name=at.run)
        await client.delete(WEBHOOK_CONFIGURATIONS, at.run)
        said = "does not exist; apply it first"
        await eventually(hook.unready, lambda why: why.endswith(said), timeout_s=SOON_S)
        await client.create(WEBHOOK_CONFIGURATIONS, body)
        await eventually(hook.unready, "", timeout_s=SOON_S)
