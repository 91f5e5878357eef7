"""URLs with several hosts, for the SQL store and the event bus: the first host that may be written is used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest
from sqlalchemy import Connection
from tests.support.databases import Server
from tests.support.tested_databases import database_server, databases_under_test

from sparrow.bus import EventBus
from sparrow.bus.sql.connections.database import is_unreachable
from sparrow.databases import writable
from sparrow.store.sql.drivers.database import StoreDatabase, open_database
from sparrow.store.sql.drivers.errors import StoreDatabaseUnreachable

PORT = {"mysql": "SELECT @@port", "postgresql": "SELECT current_setting('port')"}
READ_ONLY = {
    "mysql": "SET GLOBAL read_only = {}",
    "postgresql": "ALTER SYSTEM SET default_transaction_read_only = {}",
}


@pytest.fixture(scope="module", params=databases_under_test("mariadb", "postgresql"))
def servers(request: pytest.FixtureRequest) -> Iterator[list[Server]]:
    with database_server(request.param) as one, database_server(request.param) as other:
        one.new_database()
        other.new_database()
        yield [one, other]


@pytest.fixture
def url(servers: list[Server]) -> Iterator[str]:
    yield f"{servers[0].url},{address(servers[1])}/db1"
    for server in servers:
        if not server.is_running:
            server.start()
        set_read_only(server, False)


def address(server: Server) -> str:
    return server.url.rpartition("@")[2]


def port(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


def set_read_only(server: Server, is_on: bool) -> None:
    kind = server.url.partition(":")[0]
    server.execute(READ_ONLY[kind].format("ON" if is_on else "OFF"))
    if kind == "postgresql":
        server.execute("SELECT pg_reload_conf()")


async def store_port(database: StoreDatabase) -> int:
    ((found,),) = await database.fetch(PORT[database.dialect])
    return int(found)


def bus_port(bus: EventBus) -> int:
    return bus.database.run_blocking(lambda db: _port(db, bus.database.kind))


def _port(db: Connection, kind: str) -> int:
    return int(db.exec_driver_sql(PORT[kind]).scalar_one())


async def test_the_first_host_that_may_be_written_is_used(servers: list[Server], url: str) -> None:
    for is_read_only, expected in ((False, servers[0]), (True, servers[1])):
        set_read_only(servers[0], is_read_only)
        database = await open_database(url)
        assert await store_port(database) == port(expected)
        await database.close()
        bus = EventBus(url, "memory://")
        assert bus_port(bus) == port(expected)
        assert await bus.database.run(partial(_port, kind=bus.database.kind)) == port(expected)
        await bus.database.close()


async def test_connections_move_to_another_host_and_return(
    servers: list[Server], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, bus = await open_database(url), EventBus(url, "memory://")
    assert (await store_port(database), bus_port(bus)) == (port(servers[0]), port(servers[0]))
    servers[0].kill()
    with pytest.raises(StoreDatabaseUnreachable):
        await database.fetch("SELECT 1")
    assert (await store_port(database), bus_port(bus)) == (port(servers[1]), port(servers[1]))
    servers[0].start()
    assert await store_port(database) == port(servers[1])
    later = time.monotonic() + writable.RECHECK_S + 1
    monkeypatch.setattr("sparrow.databases.writable.monotonic", lambda: later)
    assert await store_port(database) == port(servers[0])
    await database.close()
    await bus.database.close()


async def test_a_host_that_becomes_read_only_is_left(servers: list[Server], url: str) -> None:
    database = await open_database(url)
    await database.execute("CREATE TABLE IF NOT EXISTS left_behind (n INT PRIMARY KEY)")
    if database.dialect == "mysql":  # the test's account may write regardless; a transaction may not
        refused = "START TRANSACTION READ ONLY; INSERT INTO left_behind VALUES (1)"
    else:
        refused = "SET SESSION default_transaction_read_only = on; INSERT INTO left_behind VALUES (1)"
    set_read_only(servers[0], True)
    with pytest.raises(StoreDatabaseUnreachable):
        for statement in refused.split("; "):
            await database.execute(statement)
    assert await store_port(database) == port(servers[1])
    await database.close()


async def test_if_no_host_may_be_written_the_error_names_each(servers: list[Server], url: str) -> None:
    set_read_only(servers[0], True)
    servers[1].kill()
    with pytest.raises(StoreDatabaseUnreachable) as of_store:
        await open_database(url)
    bus = EventBus(url, "memory://")
    with pytest.raises(OSError) as of_bus:
        bus_port(bus)
    assert is_unreachable(of_bus.value)
    for raised in (of_store.value, of_bus.value):
        assert f"{address(servers[0])} is read-only" in str(raised)
        assert f"{address(servers[1])} failed: " in str(raised)
    await bus.database.close()


def test_messages_of_the_bus_name_all_hosts_and_no_password() -> None:
    bus = EventBus("mysql://me:secret@a,b:3307/shop", "memory://")
    assert str(bus.database) == "mysql://me:***@a:3306,b:3307/shop"
