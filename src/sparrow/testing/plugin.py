"""The pytest plugin: installed with Sparrow, and nothing but two fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparrow.testing.platforms import RunningPlatform, running


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[RunningPlatform]:
    """A name server and a broker for this test alone."""
    with running(tmp_path / "sparrow") as platform:
        yield platform


@pytest.fixture(scope="session")
def sparrow_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    """A name server and a broker for the whole run: use topics and groups of your own."""
    with running(tmp_path_factory.mktemp("sparrow")) as platform:
        yield platform
