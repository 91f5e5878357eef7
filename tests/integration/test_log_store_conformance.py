"""Conformance of the log store to the store SPI, with each flush policy."""

import asyncio

import pytest
from tests.integration.conformance import StoreConformance
from tests.support.log_stores import small_settings

from sparrow.model.errors import StoreInUse
from sparrow.store.log import LogStore

POLICIES = {
    "async": {"flush": "async"},
    "sync": {"flush": "sync"},
    "durable": {"flush": "async", "flush_interval_ms": 1, "visible_after": "durable"},
    # No bytes are hot, so that nearly every read is verified: what the page cache has at once, or all in a thread.
    "cached": {"hot_bytes": 0},
    "cold": {"hot_bytes": 0},
}


@pytest.mark.parametrize("policy", POLICIES)
class TestLogStore(StoreConformance):
    @pytest.fixture
    def open_store(self, tmp_path, policy, request):
        if policy == "cold":
            request.getfixturevalue("no_page_cache")

        async def opened():
            return await asyncio.to_thread(LogStore, tmp_path / "store", small_settings(**POLICIES[policy]))

        return opened

    async def test_opening_a_directory_twice_is_refused(self, empty, open_store, opened):
        with pytest.raises(StoreInUse):
            await open_store()
        await opened.pop().close()
        opened.append(await open_store())
