"""Run every test on both event loops: asyncio's own, which tests and tools use, and uvloop, which servers use."""

import asyncio

import pytest
import uvloop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config, item):
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
