"""Controller: a FluxJob for each held workload, which shows its place in the queue.

`FluxJobController` runs beside a leading `LiveScheduler`: it reads the scheduler's state and writes FluxJobs.
No decision depends on FluxJobs, except that deleting one cancels its workload.
"""

from __future__ import annotations

from fluence.controller.controller import FluxJobController

__all__ = ["FluxJobController"]
