"""Publishing in a transaction of its own whose commit is done, while its answer is lost."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from tests.support.cutting_proxy import cutting_proxy
from tests.support.tested_databases import databases_under_test

from sparrow.bus import EventBus


@pytest.mark.parametrize("database", databases_under_test("mariadb", "postgresql"))
def test_an_event_whose_commit_is_not_answered_is_not_published_twice(database_url: str) -> None:
    bus = EventBus(database_url, "memory://")
    bus.prepare()
    port = int(re.findall(r":(\d+)/", database_url)[0])
    with cutting_proxy(port, rb"COMMIT(?!TED)") as proxy:
        options = "?ssl=false" if bus.database.kind == "mysql" else ""
        cut_off = EventBus(database_url.replace(f":{port}/", f":{proxy.port}/") + options, "memory://")
        cut_off.publish("order.created", 1)
        proxy.cuts = 1
        with pytest.raises(DBAPIError):
            cut_off.publish("order.created", 2)
        assert not proxy.cuts
        cut_off.publish("order.created", 3)
        cut_off.stop()

    def contents(db: Connection) -> list[str]:
        sql = bus.core.context.sql_for(bus.database.kind, bus.database.engine.dialect.paramstyle)
        return [row[0] for row in sql.rows(db, f'SELECT "Content" FROM {sql.names.published} ORDER BY "Id"')]

    published = bus.database.run_blocking(contents)
    assert [re.findall(r'"Value": *"?(\d)', content) for content in published] == [["1"], ["2"], ["3"]]
    bus.stop()
