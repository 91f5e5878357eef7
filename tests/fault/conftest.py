"""What the tests of the bus share."""

from collections.abc import Iterator

import pytest
from tests.fault.bus_crew import Crew, crew


@pytest.fixture(scope="session")
def bus_crew() -> Iterator[Crew]:
    """For all tests: what its workers import takes longer than most of them live."""
    with crew() as workers:
        yield workers
