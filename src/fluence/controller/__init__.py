"""Controller: a FluxJob for each workload that was held back, which says where it stands in the queue.

`FluxJobController` runs beside a `LiveScheduler` that leads: it reads that one's state and writes FluxJobs;
nothing that is decided depends on them, except that deleting one cancels its workload.
"""

from __future__ import annotations

from fluence.controller.controller import FluxJobController

__all__ = ["FluxJobController"]
