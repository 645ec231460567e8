"""One candidate for a lease in a process of its own; writes down when it held it, by the monotonic clock that
all processes share."""

import asyncio
import random
import sys
from pathlib import Path

from fluence import names
from fluence.clock import SystemClock
from fluence.kube.access import Access, find_access
from fluence.kube.client import Client
from fluence.kube.lease import Elector, LeaseTerms

# A takeover begins 4.4 s after the last renewal was seen; the rest of the duration is for calls on a machine
# that is starved, on which a holder also needs some seconds for a renewal.
TERMS = LeaseTerms(duration_s=20.0, renew_s=4.0, retry_s=0.4)
# To the doctor, whose tests may run beside, a lease without it could be anybody's.
NAMED = {names.SCHEDULER_NAME: "somebody-else"}


class Jumping(SystemClock):
    """A wall clock that somebody sets all the time, by up to a day."""

    def now(self) -> float:
        return super().now() + random.uniform(-86_400, 86_400)


async def main(where: str, namespace: str, identity: str, log: Path, clock: SystemClock) -> None:
    access = Access(server=where) if where.startswith("http:") else find_access(kubeconfig=where)
    async with Client(access, clock=clock) as client, asyncio.TaskGroup() as tasks:
        elector = Elector(
            client, name="leader", namespace=namespace, identity=identity, terms=TERMS, annotations=NAMED
        )

        async def lead() -> None:
            while True:
                now = clock.monotonic()
                until = elector.candidate.valid_until
                if elector.held and until is not None:
                    with log.open("a") as file:
                        file.write(f"{identity} {now} {until}\n")
                await asyncio.sleep(0.05)

        async def tell_when_standing() -> None:
            while "held by" not in elector.last_error:
                await asyncio.sleep(0.02)
            log.with_name(f"{identity}.stands").touch()

        tasks.create_task(tell_when_standing())

        async def hold() -> None:
            while True:  # a test may have it lead again
                await elector.stand()
                work = asyncio.create_task(lead())
                await elector.keep()
                work.cancel()
                await asyncio.wait({work})

        tasks.create_task(hold())


if __name__ == "__main__":
    chosen = Jumping() if "jumping" in sys.argv[5:] else SystemClock()
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), chosen))
