"""What a machine may lack for some tests, which part of the promise is not tested then, and how to get it.

A test that lacks something calls `lacks`: it is skipped by name, or fails in CI. The end of a run lists what
was not tested.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from fluence.sandbox.testing import skip_or_fail


@dataclass(frozen=True, slots=True)
class Need:
    """``promise``: what the tests show that need it."""

    promise: str
    cure: str


NEEDS = {
    "a control plane": Need("everything on a real Kubernetes API server", "unset FLUENCE_TEST_SKIP_SANDBOX"),
    "real nodes": Need("containers that run: the image, the hand-off, kubelets", "run the tests as root"),
    "root": Need("programs of the image as its pods run them", "run the tests as root"),
    "mmdebstrap": Need("the image, built and run", "apt-get install mmdebstrap"),
    "amd64": Need("that the image has every shared library", "run the tests on amd64"),
    "PostgreSQL": Need("the history in PostgreSQL", "apt-get install postgresql"),
    "Chromium": Need("the page in a real browser", "apt-get install chromium"),
    "Prometheus": Need("alerts that fire, and the dashboard's queries", "apt-get install prometheus"),
    "a package index": Need(
        "that an installed wheel serves the page",
        "connect to PyPI, or name a folder with hatchling in PIP_FIND_LINKS",
    ),
    "kubectl": Need("kubectl fluence as a plug-in of a real kubectl", "install kubectl"),
    "aws": Need("queues of AWS Braket by the program aws", "install the AWS command line"),
    "boto3": Need("queues of AWS Braket", "pip install 'fluence-scheduler[braket]'"),
    "setsid": Need("--confirm without a terminal", "apt-get install util-linux"),
    "recorded sessions": Need(
        "answers equal to Fluxion's: 538 recorded sessions and its suite of jobspecs",
        "set FLUENCE_CONFORMANCE to their folder (docs/matcher.md)",
    ),
    "traces": Need(
        "simulations that give the published figures",
        "set FLUENCE_TRACES to a folder with hpc2n.swf and lublin_256.swf (docs/simulate.md)",
    ),
}
_REASON = re.compile(r"needs (?P<what>[^:]+): (?P<cure>.+)", re.DOTALL)


def lacks(what: str, *, module: bool = False) -> NoReturn:
    """Skip the test that calls, or the module, for this machine lacks something; fail in CI."""
    skip_or_fail(f"needs {what}: {NEEDS[what].cure}", module=module)


def untested(reasons: Iterable[str]) -> Iterator[str]:
    """What tests that were skipped for these reasons would have shown: a line each, and one on the cure."""
    counts = Counter(match.groups() for reason in reasons if (match := _REASON.search(reason)) is not None)
    for (what, cure), count in sorted(counts.items(), key=lambda item: -item[1]):
        promise = NEEDS[what].promise if what in NEEDS else "see the reason"
        yield f"{count:>4} {'test ' if count == 1 else 'tests'}  {promise}"
        yield f"{'':12}needs {what}: {cure}"
