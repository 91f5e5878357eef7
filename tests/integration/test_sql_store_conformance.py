"""The SQL engine keeps what the store SPI promises, on every database."""

import pytest
from tests.integration.conformance import StoreConformance

from sparrow.store.sql.engine import SqlStore


class TestSqlStore(StoreConformance):
    name_max = 40

    @pytest.fixture
    def open_store(self, database_url):
        async def opened():
            return await SqlStore.open(database_url)

        return opened
