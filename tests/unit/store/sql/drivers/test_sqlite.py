"""SQLite as a database of the SQL store: failures that only an in-process database can have."""

import asyncio

import pytest

from sparrow.store.sql.drivers.database import open_database


@pytest.fixture
async def two(tmp_path):
    """Two connections to one file, like two brokers."""
    url = f"sqlite:///{tmp_path}/sparrow.db"
    first, second = await open_database(url), await open_database(url)
    await first.execute("CREATE TABLE seen (number INTEGER)")
    yield first, second
    await first.close()
    await second.close()


async def count(database) -> int:
    return (await database.fetch("SELECT COUNT(*) FROM seen"))[0][0]


@pytest.mark.parametrize("cancels", [1, 2])
async def test_cancelling_the_begin_of_a_transaction_leaves_none_open(two, cancels):
    first, second = two
    begun = asyncio.Event()

    async def begin() -> None:
        begun.set()
        async with second.transaction() as session:
            await session.execute("INSERT INTO seen VALUES (1)")

    async with first.transaction():
        waiting = asyncio.create_task(begin())
        await begun.wait()
        while second._writing._work_queue.qsize():  # until its thread waits for the lock
            await asyncio.sleep(0)
        for _ in range(cancels):
            waiting.cancel()
            await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await first.execute("INSERT INTO seen VALUES (2)") == 1
    async with second.transaction() as session:
        await session.execute("INSERT INTO seen VALUES (3)")
    assert await count(first) == await count(second) == 2
