"""Conformance of the SQL store to the store SPI, on every database."""

import asyncio

import pytest
from tests.integration.conformance import OTHER, Q0, Q1, StoreConformance, queue_records, read_all, topic
from tests.support.drafts import make_draft

from sparrow.model.queue import QueueBounds
from sparrow.settings import SqlSettings
from sparrow.store.sql.append import bulk_insert
from sparrow.store.sql.drivers.database import open_database
from sparrow.store.sql.drivers.errors import StoreDatabaseUnreachable
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.maintenance import retention


class TestSqlStore(StoreConformance):
    name_max = 40

    @pytest.fixture
    def open_store(self, database_url):
        async def opened():
            return await SqlStore.open(database_url)

        return opened

    # -- connections --------------------------------------------------------------------------------------------------

    async def test_a_connection_attempt_can_be_cancelled_at_any_point(self, database_url):
        for turns in range(200):  # iterations of the event loop before the cancellation
            opening = asyncio.create_task(open_database(database_url))
            for _ in range(turns):
                await asyncio.sleep(0)
            if opening.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await opening
            else:
                await opening.result().close()

    # -- atomic appends, with several processes on one database -------------------------------------------------------

    async def test_concurrent_repeats_of_an_atomic_append_by_several_brokers_are_done_once(
        self, store, open_store, opened
    ):
        opened += [await open_store() for _ in range(3)]
        everybody = [store, *opened[-3:]]
        for number in range(6):
            group = [
                queue_records(OTHER, "x"),
                queue_records(Q0, *(f"{number}.{n}" for n in range(700))),
                queue_records(Q1, "c"),
            ]
            done = await asyncio.gather(*(each.append_atomically("query", number, group) for each in everybody))
            assert sorted(done) == [False, False, False, True]
        for each in everybody:
            assert (await each.bounds(Q0), await each.bounds(OTHER)) == (QueueBounds(0, 4200), QueueBounds(0, 6))
            assert await each.ledger("query") == 5

    async def test_atomic_appends_of_several_brokers_do_not_deadlock(self, store, open_store, opened):
        opened += [await open_store() for _ in range(2)]

        async def appended(each: SqlStore, scope: str, *queues) -> None:
            for number in range(10):
                assert await each.append_atomically(
                    scope, number, [queue_records(queue, scope, scope) for queue in queues]
                )
                await each.append(queues[0], [make_draft("single")])

        await asyncio.gather(
            appended(store, "f", Q0, Q1, OTHER),
            appended(opened[-1], "g", OTHER, Q1, Q0),
            appended(opened[-2], "h", Q1, OTHER, Q0),
        )
        assert [(await store.bounds(queue)).end for queue in (Q0, Q1, OTHER)] == [70, 70, 70]
        for queue in (Q0, Q1, OTHER):
            sent = b"".join(await read_all(store, queue)).replace(b"single", b"")
            assert sorted(sent[at : at + 2] for at in range(0, 60, 2)) == [b"ff"] * 10 + [b"gg"] * 10 + [b"hh"] * 10

    async def test_an_atomic_append_notifies_other_brokers_with_parked_requests(self, store, database_url, opened):
        grown: list[tuple[object, int]] = []
        waiting = await SqlStore.open(
            database_url,
            on_growth=lambda queue, end: grown.append((queue, end)),
            is_awaited=lambda queue: queue in (Q0, OTHER),
        )
        opened.append(waiting)
        await store.append_atomically("query", 0, [queue_records(Q0, "a", "b"), queue_records(OTHER, "c")])
        async with asyncio.timeout(30):
            while {(Q0, 2), (OTHER, 1)} - set(grown):
                await asyncio.sleep(0.001)
        assert await read_all(waiting, Q0) == [b"a", b"b"]

    async def test_an_atomic_append_creates_missing_partitions(self, database_url, opened):
        store = await SqlStore.open(database_url, SqlSettings(partition_rows=100))
        opened.append(store)
        for name in (Q0.topic, OTHER.topic):
            await store.catalog.put_topic(topic(name))
        sent = [f"{n}" for n in range(1500)]
        assert await store.append_atomically("query", 0, [queue_records(Q0, *sent), queue_records(OTHER, *sent)])
        assert await read_all(store, Q0, count_max=500) == [body.encode() for body in sent]
        assert await store.bounds(OTHER) == QueueBounds(0, 1500)

    async def test_an_atomic_append_that_fails_in_the_middle_stores_nothing(self, store, monkeypatch):
        insert, calls = bulk_insert._insert_keys, []

        async def fails_the_second_time(*args: object) -> None:
            calls.append(args)
            if len(calls) == 2:
                raise RuntimeError("injected bug")
            await insert(*args)

        monkeypatch.setattr(bulk_insert, "_insert_keys", fails_the_second_time)
        with pytest.raises(RuntimeError):
            await store.append_atomically("query", 0, [queue_records(Q0, "a"), queue_records(OTHER, "b")])
        assert (await store.bounds(Q0), await store.ledger("query")) == (QueueBounds(0, 0), None)
        assert await store.append_atomically("query", 0, [queue_records(Q0, "a"), queue_records(OTHER, "b")])
        assert await read_all(store, Q0) == [b"a"]

    async def test_an_atomic_append_whose_commit_response_is_lost_is_done_once(self, store, monkeypatch):
        transaction, calls = store.database.transaction, []

        class Losing:
            def __init__(self) -> None:
                self._real = transaction()

            async def __aenter__(self):
                return await self._real.__aenter__()

            async def __aexit__(self, *raised: object) -> None:
                await self._real.__aexit__(*raised)
                calls.append(raised)
                if len(calls) == 1:
                    raise StoreDatabaseUnreachable("here", "after the commit")

        monkeypatch.setattr(store.database, "transaction", Losing)
        assert await store.append_atomically("query", 0, [queue_records(Q0, "a"), queue_records(OTHER, "b")]) is True
        monkeypatch.undo()
        assert await read_all(store, Q0) == [b"a"]
        assert await store.append_atomically("query", 0, [queue_records(Q0, "a")]) is False

    async def test_the_ledger_deletes_scopes_that_are_inactive_for_months(self, store):
        await store.append_atomically("idle", 1, [])
        now_ms = store._now_ms() + retention.LEDGER_SCOPE_AGE_MAX_MS + 60_000
        store._now_ms = lambda: now_ms
        await store.append_atomically("busy", 1, [])
        trimmed = await retention.trim(store.database, store.catalog, store.settings, now_ms, grace_s=0)
        assert trimmed.scopes == 1
        assert (await store.ledger("idle"), await store.ledger("busy")) == (None, 1)
