"""Fixtures of the bus's fault tests."""

from collections.abc import Iterator

import pytest
from tests.fault.bus_worker_pool import Crew, crew


@pytest.fixture(scope="session")
def bus_crew() -> Iterator[Crew]:
    """Share one crew among all tests: its imports take longer than most workers live."""
    with crew() as workers:
        yield workers
