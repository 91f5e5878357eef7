"""A short run of every fuzz target, with the same inputs each time; `make fuzz` runs millions, guided by coverage."""

from __future__ import annotations

import pytest
from tests.fuzz.mutations import mutated
from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import TARGETS

INPUTS = {"http_requests": 300}
"""Where an input costs a millisecond and more."""
INPUTS_USUAL = 3_000

FOUND: dict[str, list[bytes]] = {
    "records": [
        b"\0\0\0\x5c\xda\xa3\x20\xa7" + b"\xff" * 40 + bytes(51)
    ],  # IPv6 hosts in a record that is too short for them
}
"""Inputs that failed once."""


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_give_a_value_or_the_documented_error(name: str) -> None:
    for data in mutated(SEEDS[name], INPUTS.get(name, INPUTS_USUAL), seed=18):
        try:
            TARGETS[name](data)
        except Exception as error:
            raise AssertionError(f"{name} fails on {data!r}") from error


@pytest.mark.parametrize("name", FOUND)
def test_inputs_that_failed_once_pass(name: str) -> None:
    for data in FOUND[name]:
        TARGETS[name](data)
