"""`fluence webhook`: serves the admission rules over HTTPS, with certificates of its own."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import click

from fluence.admission.certificates import Renewal
from fluence.admission.manifests import SERVICE, WEBHOOK
from fluence.admission.server import Webhook, WebhookPlace
from fluence.cli.admission import admission_options, read_options
from fluence.cli.choice import Length
from fluence.commands.running import run_until_stopped
from fluence.kube.access import find_access
from fluence.kube.client import Client
from fluence.units import spell_duration

logger = logging.getLogger(__name__)

_SHORTEST_S = 10


@click.group()
def webhook() -> None:
    """The webhook of admission, for Kubernetes 1.35 and for sites without admission policies.

    \b
    Example:
      fluence webhook run
    """


@webhook.command()
@click.option(
    "--service", envvar="WEBHOOK_SERVICE", default=SERVICE, show_default=True, help="[WEBHOOK_SERVICE]"
)
@click.option(
    "-n",
    "--namespace",
    envvar="WEBHOOK_NAMESPACE",
    default="kube-system",
    show_default=True,
    help="Of the Service. [WEBHOOK_NAMESPACE]",
)
@click.option(
    "--parameters-namespace",
    metavar="NAME",
    help="Of the HandOff with the variables, which the scheduler keeps. Without it: that of the Service.",
)
@click.option(
    "--configuration",
    envvar="WEBHOOK_CONFIG",
    default=WEBHOOK,
    show_default=True,
    help="The MutatingWebhookConfiguration that gets the certificate. [WEBHOOK_CONFIG]",
)
@click.option(
    "--address",
    envvar="WEBHOOK_ADDR",
    default=":8443",
    show_default=True,
    metavar="[HOST]:PORT",
    help="Where it answers. [WEBHOOK_ADDR]",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Another name or address that the certificate is for, where no Service leads here; repeatable.",
)
@click.option(
    "--certificate-life",
    "life_ms",
    envvar="WEBHOOK_CERTIFICATE_LIFE",
    type=Length(),
    default="30d",
    show_default=True,
    help="How long a certificate is valid; it is renewed after two thirds of that. At least 10s. "
    "[WEBHOOK_CERTIFICATE_LIFE]",
)
@click.option(
    "--shutdown-delay",
    "delay_ms",
    envvar="WEBHOOK_SHUTDOWN_DELAY",
    type=Length(),
    default="10s",
    show_default=True,
    help="How long the webhook answers after SIGTERM, because the API server learns late that it stops; a "
    "second signal stops it at once. Above 25s its pod needs a longer terminationGracePeriodSeconds. "
    "[WEBHOOK_SHUTDOWN_DELAY]",
)
@click.option(
    "--kubeconfig", metavar="FILE", help="Without it: KUBECONFIG, ~/.kube/config, the pod's account."
)
@click.option("--context", metavar="NAME", help="The context in the kubeconfig.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@admission_options
def run(
    service: str,
    namespace: str,
    parameters_namespace: str | None,
    configuration: str,
    address: str,
    hosts: tuple[str, ...],
    life_ms: int,
    delay_ms: int,
    kubeconfig: str | None,
    context: str | None,
    log_level: str,
    **chosen: Any,
) -> None:
    """Answer the API server's reviews with the same rules as the policy.

    The certificate is made in memory, told to the API server and renewed long before it ends; no key is
    stored, and no Secret is read. Objects are allowed and changed; what is larger than rules look at, and
    would be changed, is refused. Told to stop, it says that it is not ready and answers until the API server
    calls other replicas.

    \b
    Examples:
      fluence webhook run                                    in a pod, behind its Service
      fluence webhook run --address 127.0.0.1:8443 --host 127.0.0.1

    \b
    Exit codes: 0 stopped by a signal; 1 a fault; 2 a wrong command line.
    """
    options = read_options(**chosen)
    if life_ms < _SHORTEST_S * 1000:
        raise click.UsageError(f"--certificate-life: at least {_SHORTEST_S}s, or it ends before it is known")
    renewal = Renewal.of(timedelta(milliseconds=life_ms))
    place = WebhookPlace(
        _address(address),
        configuration,
        (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local", *hosts),
        parameters_namespace or namespace,
    )

    async def work() -> None:
        access = find_access(kubeconfig=kubeconfig, context=context)
        async with Client(access) as client:
            hook = Webhook(client, options, place, renewal)
            async with hook.serving() as port:
                logger.info("answering on port %d; handlers: %s", port, ", ".join(options.order))
                try:
                    await asyncio.Event().wait()
                finally:
                    logger.info("told to stop: answering for %s more", spell_duration(delay_ms))
                    await hook.drain(delay_ms / 1000)

    run_until_stopped(work, log_level=log_level)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise click.UsageError(f"--address {text!r}: write [HOST]:PORT, such as :8443")
    return host.strip("[]"), int(port)
