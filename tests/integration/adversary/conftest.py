"""The server of the run knows FluxJobs."""

from tests.integration.controller.conftest import flux_jobs_are_served

__all__ = ["flux_jobs_are_served"]
