"""Fixtures of the bus's fault tests."""

from collections.abc import Iterator

import pytest
from tests.fault.bus_worker_pool import WorkerPool, running_worker_pool


@pytest.fixture(scope="session")
def worker_pool() -> Iterator[WorkerPool]:
    """Share one crew among all tests: its imports take longer than most workers live."""
    with running_worker_pool() as workers:
        yield workers
