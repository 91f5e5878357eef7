"""The scale of a run, for fixtures that all attacks share."""

import os

import pytest


@pytest.fixture(scope="module")
def scale_of_run() -> str:
    """Return `smoke` or `full`, from SPARROW_SCALE."""
    return os.environ.get("SPARROW_SCALE", "smoke")
