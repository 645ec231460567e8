"""Many held Jobs in one queue, a scheduler and a controller in this process, and what is written."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from fluence.controller.controller import FluxJobController
from fluence.controller.flux_job import FluxJob, Workload
from fluence.kube.access import Access
from fluence.kube.client import Client
from fluence.live.scheduler import LiveScheduler
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.owner import Owner
from fluence.model.pod import PodStatus
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Changed
from fluence.schedule.settings import SchedulerSettings
from tests.unit.schedule.test_held import NOW, as_bound, held, let_go, node, rank


class QueueOfJobs:
    """``writes`` by FluxJob: one for what is applied of it, and one for each status."""

    def __init__(self, nodes: int) -> None:
        client = Client(Access(server="http://127.0.0.1:1"))
        self.live = LiveScheduler(client, SchedulerSettings(lease=False))
        self.live.leads = True
        self.controller = FluxJobController(self.live)
        self.writes: Counter[str] = Counter()
        self.made: set[str] = set()  # FluxJobs
        self.now = NOW
        self.nodes = nodes
        self.jobs: dict[str, Owner] = {}
        for index in range(nodes):
            self.live._put(Changed(None, node(f"n{index}", 1)))

    def submit(self, count: int) -> None:
        self.submit_named(*(f"j{index}" for index in range(count)))

    def submit_named(self, *names: str) -> None:
        for name in names:
            self._put_job(held(name, 1))

    def _put_job(self, job: Owner) -> None:
        self.live._put(Changed(self.jobs.get(job.metadata.name), job))
        self.jobs[job.metadata.name] = job

    def restarted(self) -> QueueOfJobs:
        """A fresh process that finds what this one left on the server, with its queue as it is."""
        found = QueueOfJobs(self.nodes)
        found.now = self.now
        for name, job in sorted(self.jobs.items()):  # as a server lists them
            found._put_job(job)
            written = self.controller._sent.get((job.metadata.namespace, f"{name}-job"))
            if written is not None:
                meta = ObjectMeta(
                    name=f"{name}-job",
                    namespace=job.metadata.namespace,
                    uid=f"of-{name}",
                    generation=1,
                    owner_references=[Workload(job).reference],
                )
                found.controller.flux_jobs.store.put(
                    FluxJob(metadata=meta, spec=written[0], status=written[1])
                )
        found.controller._remember()
        return found

    def order(self) -> list[str]:
        """The jobs that wait, in the queue's order."""
        return [record.key for record in self.live.scheduler.state.queue.waiting()]

    def cycle(self) -> Decisions:
        """A cycle, a round of the controller, and what it writes is written."""
        decisions = self.look()
        self.write()
        return decisions

    def look(self) -> Decisions:
        """A cycle and a round, while the server is slow."""
        self.now += 1000
        decisions = self.live.scheduler.handle(self.live._take_events(), self.now)
        assert not decisions.faults
        self.controller.decided(decisions)
        while self.controller.round():
            pass
        return decisions

    def write(self) -> None:
        for (namespace, name), update in list(self.controller._writer._waiting.items()):
            self.writes[name] += 1 + (update.spec is not None)
            self.made.update([name] if update.spec is not None else [])
            self.controller._writer.drop((namespace, name))

    def settle(self) -> Decisions:
        decisions = self.cycle()
        while self.live.scheduler.has_more:
            more = self.cycle()
            decisions.releases += more.releases
        return decisions

    def run_through(self, decisions: Decisions) -> Decisions:
        """All Jobs that were let go run and end, and the next are let go."""
        for release in decisions.releases:
            job: Owner = let_go(release.owner, Decisions(releases=[release]))
            self._put_job(job)
            pod = rank(job, 0)
            self.live._put(Changed(None, pod))
            (binds,) = self.settle().binds
            bound = as_bound(pod, binds[0].node, dict(binds[0].annotations))
            self.live._put(Changed(pod, bound))
            self.settle()
            self.live._put(Changed(bound, replace(bound, status=PodStatus(phase="Succeeded"))))
            ended = replace(job.status, succeeded=1, conditions=[Condition(type="Complete", status="True")])
            self._put_job(replace(job, status=ended))
        return self.settle()
