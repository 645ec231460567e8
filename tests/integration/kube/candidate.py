"""One candidate for a lease in a process of its own; writes down when it held it, by the shared monotonic
clock."""

import asyncio
import sys
from pathlib import Path

from fluence.kube.access import Access, find_access
from fluence.kube.client import Client
from fluence.kube.lease import Elector, Terms


async def main(where: str, namespace: str, identity: str, log: Path) -> None:
    access = Access(server=where) if where.startswith("http:") else find_access(kubeconfig=where)
    async with Client(access) as client:
        terms = Terms(duration_s=3.0, renew_s=2.0, retry_s=0.4)
        elector = Elector(client, name="leader", namespace=namespace, identity=identity, terms=terms)

        async def lead() -> None:
            while True:
                now = client.clock.monotonic()
                until = elector.candidate.valid_until
                if elector.held and until is not None:
                    with log.open("a") as file:
                        file.write(f"{identity} {now} {until}\n")
                await asyncio.sleep(0.05)

        await elector.run(lead)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
