"""The conformance suite of the store SPI. An engine's test module subclasses `StoreConformance` with one fixture:

`open_store` is an async function that opens the store; every call opens the same store.

The suite uses only the interface of `store/spi.py`. Records are returned in RocketMQ's layout.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pyarrow as pa
import pytest
from tests.support.drafts import decode_bodies, decode_messages, make_draft
from tests.support.wait import eventually

from sparrow import clock
from sparrow.model.errors import IllegalName, Refused, TooLarge, UnknownTopic
from sparrow.model.message import Draft
from sparrow.model.priority import LANE_COUNT, LANES_SYS_FLAG
from sparrow.model.queue import Queue, QueueBounds
from sparrow.model.topic import Group, Topic
from sparrow.store.spi import AppendResult, AtEnd, Moved, Slice, Store
from sparrow.wire import columns, record
from sparrow.wire.hashes import tags_code
from sparrow.wire.queue_batches import QueueBatch

OpenStore = Callable[[], Awaitable[Store]]
Q0, Q1 = Queue("orders", 0), Queue("orders", 1)
OTHER = Queue("other", 0)
LATEST_MS = 1 << 62


def topic(name: str, *, parts: int = 1, **more: object) -> Topic:
    """Return a topic with lanes, which every engine supports and some require."""
    return Topic(name=name, write_queues=parts, read_queues=parts * LANE_COUNT, sys_flag=LANES_SYS_FLAG, **more)


def queue_records(queue: Queue, *sent: str | bytes, tags: str = "", keys: str = "") -> QueueBatch:
    """Return encoded messages for a queue."""
    encoded = columns.encode(
        pa.array([body.encode() if isinstance(body, str) else body for body in sent], pa.binary()),
        topic=queue.topic,
        queue_id=queue.id,
        tags=pa.array([tags] * len(sent), pa.string()),
        keys=pa.array([keys] * len(sent), pa.string()),
        born_ms=7,
    )
    return QueueBatch(queue, memoryview(encoded.data), encoded.sizes)


async def send(store: Store, queue: Queue, *drafts: Draft) -> AppendResult:
    """Append, and wait until the messages are visible; the delay depends on the flush policy."""
    appended = await store.append(queue, drafts)
    await wait_until_visible(store, queue, appended.offset + len(drafts))
    return appended


async def wait_until_visible(store: Store, queue: Queue, end: int) -> None:
    async with asyncio.timeout(30):
        while (await store.bounds(queue)).end < end:
            await asyncio.sleep(0.001)


async def send_with_unique_time(store: Store, queue: Queue, *drafts: Draft) -> AppendResult:
    """Append with a store time that no earlier or later message has."""
    begun_ms = clock.now_ms()
    await eventually(lambda: clock.now_ms() > begun_ms)
    appended = await send(store, queue, *drafts)
    await eventually(lambda: clock.now_ms() > appended.store_ms)
    return appended


async def read_all(store: Store, queue: Queue, offset: int = 0, **limits: object) -> list[bytes]:
    """Return the bodies from `offset` to the end, in as many reads as needed."""
    found: list[bytes] = []
    while True:
        result = await store.read(queue, offset, **limits)
        if isinstance(result, AtEnd):
            return found
        assert isinstance(result, Slice), result
        assert result.next_offset > offset, "a read that returns records must make progress"
        found += decode_bodies(result)
        offset = result.next_offset


async def now_and_reopened(store: Store, reopen: OpenStore) -> AsyncIterator[Store]:
    """Yield the store, then the same store after it was closed and opened again."""
    yield store
    yield await reopen()


class StoreConformance:
    """The tests of the suite; a subclass is named after its engine."""

    name_max = 127
    """The maximum length of a topic name."""

    @pytest.fixture
    async def opened(self):
        stores: list[Store] = []
        yield stores
        for store in stores:
            await store.close()

    @pytest.fixture
    async def empty(self, open_store: OpenStore, opened: list[Store]) -> Store:
        """A store without any topic."""
        opened.append(await open_store())
        return opened[-1]

    @pytest.fixture
    async def store(self, empty: Store) -> Store:
        await empty.catalog.put_topic(topic(Q0.topic))
        await empty.catalog.put_topic(topic(OTHER.topic))
        return empty

    @pytest.fixture
    def reopen(self, open_store: OpenStore, opened: list[Store]) -> OpenStore:
        """Return a function that closes the store and opens it again."""

        async def reopened() -> Store:
            await opened.pop().close()
            opened.append(await open_store())
            return opened[-1]

        return reopened

    # -- appending ----------------------------------------------------------------------------------------------------

    async def test_offsets_are_dense_and_start_at_0_in_each_queue(self, store):
        for n in range(5):
            assert (await send(store, Q0, make_draft(f"a{n}"))).offset == n
            assert (await send(store, Q1, make_draft(f"b{n}"))).offset == n
        assert await store.bounds(Q0) == await store.bounds(Q1) == QueueBounds(0, 5)
        assert await read_all(store, Q0) == [b"a0", b"a1", b"a2", b"a3", b"a4"]

    async def test_a_batch_gets_consecutive_offsets_and_returns_its_physical_offsets(self, store):
        await send(store, Q0, make_draft("before"))
        appended = await send(store, Q0, *(make_draft(f"{n}") for n in range(10)))
        assert (appended.queue, appended.offset, len(appended.physical_offsets)) == (Q0, 1, 10)
        found = decode_messages(await store.read(Q0, 1))
        assert [message.queue_offset for message in found] == list(range(1, 11))
        assert [message.physical_offset for message in found] == list(appended.physical_offsets)
        assert sorted(set(appended.physical_offsets)) == list(appended.physical_offsets)
        assert appended.end > appended.physical_offsets[-1]

    async def test_a_message_is_read_back_unchanged(self, store):
        sent = Draft(
            body=bytes(range(256)),
            properties=b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02name\x01\xe9\xba\xbb\xe9\x9b\x80\x02",
            flag=7,
            sys_flag=0,
            born_ms=1_700_000_000_000,
            born_host=b"\x0a\0\0\x09\0\0\xc3\x50",
            reconsume_times=3,
            prepared_offset=0,
        )
        before_ms = clock.now_ms()
        appended = await send(store, Q1, sent)
        (message,) = decode_messages(await store.read(Q1, 0))
        assert (message.topic, message.queue_id, message.queue_offset) == ("orders", 1, 0)
        assert (message.body, message.flag, message.reconsume_times) == (sent.body, 7, 3)
        assert message.properties == {"TAGS": "TagA", "KEYS": "k1 k2", "name": "麻雀"}
        assert (message.born_ms, record.pack_host(message.born_host)) == (sent.born_ms, sent.born_host)
        assert before_ms <= message.store_ms == appended.store_ms <= clock.now_ms()

    async def test_store_times_never_decrease_along_a_queue(self, store):
        for n in range(20):
            await send(store, Q0, make_draft(f"{n}"))
        times = [message.store_ms for message in decode_messages(await store.read(Q0, 0))]
        assert times == sorted(times)

    async def test_a_body_may_be_empty(self, store):
        await send(store, Q0, make_draft(b""))
        assert await read_all(store, Q0) == [b""]

    async def test_a_body_may_be_a_view_of_another_buffer(self, store):
        await send(store, Q0, Draft(body=memoryview(b"--body--")[2:6]))
        assert await read_all(store, Q0) == [b"body"]

    async def test_an_append_to_an_unknown_topic_is_refused(self, store):
        with pytest.raises(UnknownTopic):
            await store.append(Queue("nowhere", 0), [make_draft("x")])
        assert await store.bounds(Queue("nowhere", 0)) == QueueBounds(0, 0)

    @pytest.mark.parametrize("queue_id", [-1, 1 << 31])
    async def test_an_invalid_queue_id_is_refused(self, store, queue_id):
        with pytest.raises(Refused):
            await store.append(Queue("orders", queue_id), [make_draft("x")])

    async def test_an_empty_batch_is_refused(self, store):
        with pytest.raises(Refused):
            await store.append(Q0, [])
        assert (await send(store, Q0, make_draft("first"))).offset == 0

    async def test_a_batch_with_one_message_too_large_is_refused_completely(self, store):
        with pytest.raises(TooLarge):
            await store.append(Q0, [make_draft("good"), make_draft(bytes(17 << 20)), make_draft("good")])
        with pytest.raises(TooLarge):
            await store.append(Q0, [make_draft("good"), Draft(body=b"", properties=b"a\x01" + b"x" * 32767)])
        assert await store.bounds(Q0) == QueueBounds(0, 0)
        assert (await send(store, Q0, make_draft("next"))).offset == 0
        assert await read_all(store, Q0) == [b"next"]

    async def test_a_batch_with_properties_that_are_not_text_is_refused_completely(self, store):
        with pytest.raises(Refused):
            await store.append(Q0, [make_draft("good"), Draft(body=b"", properties=b"a\x01\xff\xfe\x02")])
        assert (await send(store, Q0, make_draft("next"))).offset == 0

    # -- reading ------------------------------------------------------------------------------------------------------

    async def test_an_empty_queue_ends_at_0(self, store):
        for queue in (Q0, Queue("nowhere", 3)):
            assert await store.read(queue, 0) == AtEnd(QueueBounds(0, 0))
            assert await store.read(queue, 1) == Moved(0, QueueBounds(0, 0))
            assert await store.read(queue, -1) == Moved(0, QueueBounds(0, 0))

    async def test_a_read_at_the_end_of_a_queue_returns_at_end(self, store):
        await send(store, Q0, make_draft("0"), make_draft("1"))
        assert await store.read(Q0, 2) == AtEnd(QueueBounds(0, 2))

    @pytest.mark.parametrize(("asked", "to"), [(-1, 0), (-(1 << 40), 0), (3, 2), (1 << 60, 2)])
    async def test_an_offset_outside_the_queue_is_moved_to_the_nearest_bound(self, store, asked, to):
        await send(store, Q0, make_draft("0"), make_draft("1"))
        assert await store.read(Q0, asked) == Moved(to, QueueBounds(0, 2))

    async def test_a_slice_contains_the_next_offset_and_the_queue_bounds(self, store):
        await send(store, Q0, *(make_draft(f"{n}") for n in range(10)))
        found = await store.read(Q0, 3, count_max=4)
        assert (decode_bodies(found), found.next_offset, found.bounds) == (
            [b"3", b"4", b"5", b"6"],
            7,
            QueueBounds(0, 10),
        )
        assert decode_bodies(await store.read(Q0, 9)) == [b"9"]

    @pytest.mark.parametrize("count_max", [1, 3, 7, 100, 1000])
    async def test_a_queue_is_read_completely_with_any_count_max(self, store, count_max):
        sent = [f"{n}" for n in range(40)]
        for at in range(0, 40, 8):
            await send(store, Q0, *map(make_draft, sent[at : at + 8]))
            await send(store, Q1, make_draft("between"))
        assert await read_all(store, Q0, count_max=count_max) == [body.encode() for body in sent]

    async def test_a_slice_respects_bytes_max_but_has_at_least_one_record(self, store):
        await send(store, Q0, *(make_draft(bytes(100)) for _ in range(6)))
        size = (await store.read(Q0, 0, count_max=1)).sizes[0]
        assert list((await store.read(Q0, 0, bytes_max=3 * size)).sizes) == [size] * 3
        assert list((await store.read(Q0, 0, bytes_max=3 * size - 1)).sizes) == [size] * 2
        assert list((await store.read(Q0, 0, bytes_max=1)).sizes) == [size]
        assert list((await store.read(Q0, 2, bytes_max=0)).sizes) == [size]

    @pytest.mark.parametrize("is_large_first", [True, False])
    async def test_large_reads_of_mixed_sizes_are_complete_and_well_filled(self, store, reopen, is_large_first):
        lots = [[b"x" * 2_000]] * 70 + [[b"%d" % (20 * lot + n) for n in range(20)] for lot in range(75)]
        for lot in lots if is_large_first else lots[::-1]:
            await send(store, Q0, *map(make_draft, lot))
        sent = [body for lot in (lots if is_large_first else lots[::-1]) for body in lot]
        async for reader in now_and_reopened(store, reopen):
            offset, answers = 0, []
            while isinstance(found := await reader.read(Q0, offset, count_max=65_536, bytes_max=64 << 10), Slice):
                assert sum(found.sizes) <= 64 << 10
                answers.append(decode_bodies(found))
                offset = found.next_offset
            assert [body for answer in answers for body in answer] == sent
            assert len(answers) < 12

    async def test_bytes_max_holds_in_large_reads(self, store):
        for _ in range(10):
            await send(store, Q0, *(make_draft(b"x") for _ in range(30)))
        size = (await store.read(Q0, 0, count_max=1)).sizes[0]
        found = await store.read(Q0, 0, count_max=300, bytes_max=17 * size + 5)
        assert (len(found.sizes), found.next_offset) == (17, 17)

    async def test_a_read_with_tags_returns_matching_messages_and_skips_the_others(self, store):
        await send(store, Q0, *(make_draft(f"{n}", tags="ABC"[n % 3]) for n in range(9)))
        await send(store, Q0, make_draft("no tag"))
        wanted = frozenset({tags_code("B")})
        found = await store.read(Q0, 0, tags_codes=wanted)
        assert (decode_bodies(found), found.next_offset) == ([b"1", b"4", b"7"], 10)
        assert await read_all(store, Q0, tags_codes=wanted, count_max=1) == [b"1", b"4", b"7"]
        both = frozenset({tags_code("A"), tags_code("C")})
        assert await read_all(store, Q0, tags_codes=both) == [b"0", b"2", b"3", b"5", b"6", b"8"]
        assert await read_all(store, Q0, tags_codes=frozenset({0})) == [b"no tag"]

    async def test_a_read_with_tags_without_matches_reaches_the_end(self, store):
        await send(store, Q0, *(make_draft(f"{n}", tags="A") for n in range(9)))
        found = await store.read(Q0, 2, tags_codes=frozenset({tags_code("B")}))
        assert isinstance(found, Slice)
        assert (decode_bodies(found), found.next_offset, found.bounds) == ([], 9, QueueBounds(0, 9))

    async def test_repeated_reads_return_the_same_bytes(self, store, reopen):
        await send(store, Q0, *(make_draft(f"{n}", keys="k", tags="t") for n in range(10)))
        before = (await store.read(Q0, 0)).tobytes()
        for n in range(30):
            await send(store, Q0, make_draft(f"later {n}"))
            await send(store, Q1, make_draft(bytes(1000)))
        assert (await store.read(Q0, 0, count_max=10)).tobytes() == before
        store = await reopen()
        assert (await store.read(Q0, 0, count_max=10)).tobytes() == before

    async def test_a_slice_does_not_change_during_later_appends(self, store):
        await send(store, Q0, make_draft("first"))
        found = await store.read(Q0, 0)
        before = found.tobytes()
        for _ in range(20):
            await send(store, Q0, make_draft(bytes(1000)))
        assert found.tobytes() == before

    # -- by time ------------------------------------------------------------------------------------------------------

    async def test_offsets_are_found_by_time(self, store):
        sent = [await send_with_unique_time(store, Q0, make_draft(f"{n}"), make_draft("twin")) for n in range(4)]
        times = [appended.store_ms for appended in sent]
        for n, at_ms in enumerate(times):
            assert await store.offset_at(Q0, at_ms) == 2 * n
            assert await store.offset_at(Q0, at_ms + 1) == 2 * n + 2
            assert await store.offset_at(Q0, at_ms, upper=True) == 2 * n + 1
            assert await store.offset_at(Q0, at_ms + 1, upper=True) == 2 * n + 1

    async def test_a_time_outside_the_queue_gives_its_bounds(self, store):
        sent = await send(store, Q0, *(make_draft(f"{n}") for n in range(3)))
        assert await store.offset_at(Q0, sent.store_ms - 1) == 0
        assert await store.offset_at(Q0, 0) == 0
        assert await store.offset_at(Q0, sent.store_ms + 1) == 3
        assert await store.offset_at(Q0, LATEST_MS) == 3
        assert await store.offset_at(Q0, sent.store_ms - 1, upper=True) == 0
        assert await store.offset_at(Q0, LATEST_MS, upper=True) == 2

    @pytest.mark.parametrize("upper", [False, True])
    async def test_every_time_gives_offset_0_in_an_empty_queue(self, store, upper):
        for queue in (Q0, Queue("nowhere", 0)):
            for time_ms in (0, clock.now_ms(), LATEST_MS):
                assert await store.offset_at(queue, time_ms, upper=upper) == 0

    # -- by key and by id ---------------------------------------------------------------------------------------------

    @staticmethod
    async def found(store: Store, key: str, topic: str = "orders", **bounds: int) -> list[bytes]:
        return [record.decode(data).body for data in await store.find_by_key(topic, key, **bounds)]

    async def test_messages_are_found_by_each_of_their_keys_and_by_their_unique_id(self, store):
        await send(store, Q0, make_draft("0", keys="order pay", unique="0A01"), make_draft("1", keys="pay"))
        await send(store, Q1, make_draft("2", keys="order"), make_draft("3"))
        assert await self.found(store, "order") == [b"0", b"2"]
        assert await self.found(store, "pay") == [b"0", b"1"]
        assert await self.found(store, "0A01") == [b"0"]
        for nothing in ("ord", "order pay", "", "nobody"):
            assert await self.found(store, nothing) == []

    async def test_a_message_with_a_repeated_key_is_found_once(self, store):
        await send(store, Q0, make_draft("0", keys="k k", unique="k"))
        assert await self.found(store, "k") == [b"0"]

    async def test_keys_of_another_topic_are_not_found(self, store):
        await send(store, Q0, make_draft("mine", keys="k"))
        await send(store, OTHER, make_draft("theirs", keys="k"))
        assert await self.found(store, "k") == [b"mine"]
        assert await self.found(store, "k", topic="other") == [b"theirs"]
        assert await self.found(store, "k", topic="nowhere") == []

    async def test_keys_with_the_same_hash_are_distinguished(self, store):
        assert tags_code("TopicTest#Aa") == tags_code("TopicTest#BB")
        await send(store, Q0, *(make_draft(f"{key}{n}", keys=key) for n in range(3) for key in ("Aa", "BB")))
        assert await self.found(store, "Aa") == [b"Aa0", b"Aa1", b"Aa2"]
        assert await self.found(store, "BB") == [b"BB0", b"BB1", b"BB2"]
        assert await self.found(store, "Aa", limit=2) == [b"Aa1", b"Aa2"]

    async def test_a_key_query_returns_the_newest_matches_oldest_first(self, store):
        for at in range(0, 40, 5):
            await send(store, Q0, *(make_draft(f"{n}", keys="k") for n in range(at, at + 5)))
        assert await self.found(store, "k", limit=3) == [b"37", b"38", b"39"]
        assert await self.found(store, "k", limit=100) == [f"{n}".encode() for n in range(40)]

    async def test_a_key_query_respects_its_time_range_to_the_millisecond(self, store):
        times = [(await send_with_unique_time(store, Q0, make_draft(f"{n}", keys="k"))).store_ms for n in range(4)]
        assert await self.found(store, "k", begin_ms=times[1], end_ms=times[2]) == [b"1", b"2"]
        assert await self.found(store, "k", begin_ms=times[1] + 1, end_ms=times[3] - 1) == [b"2"]
        assert await self.found(store, "k", begin_ms=times[2]) == [b"2", b"3"]
        assert await self.found(store, "k", end_ms=times[1]) == [b"0", b"1"]
        assert await self.found(store, "k", begin_ms=times[3] + 1) == []
        assert await self.found(store, "k", end_ms=times[0] - 1) == []
        assert await self.found(store, "k", limit=1, end_ms=times[2]) == [b"2"]

    async def test_a_record_is_found_only_at_its_physical_offset(self, store):
        appended = await send(store, Q0, *(make_draft(f"{n}") for n in range(3)))
        for n, at in enumerate(appended.physical_offsets):
            assert record.decode(await store.record_at(at)).body == f"{n}".encode()
        places = set(appended.physical_offsets)
        for at in range(appended.physical_offsets[0] + 1, appended.end):
            if at not in places:
                assert await store.record_at(at) is None
        for at in (-1, -(1 << 40), appended.end, appended.end + 1, 1 << 60):
            assert await store.record_at(at) is None

    # -- topics and groups --------------------------------------------------------------------------------------------

    async def test_topics_are_stored_as_put(self, empty, reopen):
        first = topic("a", parts=2, permission=4, is_ordered=True, attributes={"+a": "b"})
        await empty.catalog.put_topic(first)
        await empty.catalog.put_topic(topic("b"))
        changed = topic("b", parts=2)
        await empty.catalog.put_topic(changed)
        async for found in now_and_reopened(empty, reopen):
            assert dict(await found.catalog.list_topics()) == {"a": first, "b": changed}

    async def test_a_returned_topic_list_does_not_change_later(self, store):
        told = await store.catalog.list_topics()
        await store.catalog.put_topic(topic("new"))
        assert "new" not in told

    @pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "..", "ü", "x" * 128, "a\0", "a\n"])
    async def test_an_illegal_topic_name_is_refused(self, empty, name):
        with pytest.raises(IllegalName):
            await empty.catalog.put_topic(Topic(name=name))
        assert not await empty.catalog.list_topics()

    async def test_retry_topics_and_long_names_are_legal(self, empty):
        for name in ("%RETRY%group", "%DLQ%g-1_x|y", "%RETRY%" + "x" * 120, "x" * self.name_max):
            await empty.catalog.put_topic(topic(name))
            await send(empty, Queue(name, 0), make_draft("x"))
            assert await read_all(empty, Queue(name, 0)) == [b"x"]

    async def test_deleting_a_topic_deletes_its_messages_and_committed_offsets(self, store, reopen):
        appended = await send(store, Q0, *(make_draft(f"{n}", keys="k") for n in range(5)))
        await send(store, OTHER, make_draft("stays", keys="k"))
        await store.offsets.commit("g", Q0, 3)
        await store.offsets.commit("g", OTHER, 1)
        await store.catalog.delete_topic("orders")
        async for found in now_and_reopened(store, reopen):
            assert set(await found.catalog.list_topics()) == {"other"}
            assert await found.bounds(Q0) == QueueBounds(0, 0)
            assert await found.read(Q0, 0) == AtEnd(QueueBounds(0, 0))
            assert await found.read(Q0, 2) == Moved(0, QueueBounds(0, 0))
            assert await found.offsets.committed("g", Q0) is None
            assert await found.offset_at(Q0, appended.store_ms) == 0
            with pytest.raises(UnknownTopic):
                await found.append(Q0, [make_draft("x")])
            assert await read_all(found, OTHER) == [b"stays"]
            assert await found.offsets.committed("g", OTHER) == 1

    async def test_messages_of_a_deleted_topic_are_not_found_by_key(self, store, reopen):
        await send(store, Q0, make_draft("old", keys="k", unique="u"))
        await store.catalog.delete_topic("orders")
        async for found in now_and_reopened(store, reopen):
            assert await self.found(found, "k") == await self.found(found, "u") == []
        await found.catalog.put_topic(Topic(name="orders"))
        await send(found, Q0, make_draft("new", keys="k"))
        assert await self.found(found, "k") == [b"new"]

    async def test_a_recreated_topic_starts_at_0(self, store, reopen):
        await send(store, Q0, *(make_draft(f"old {n}") for n in range(5)))
        await store.offsets.commit("g", Q0, 3)
        await store.catalog.delete_topic("orders")
        await store.catalog.put_topic(topic("orders", parts=2))
        assert await store.offsets.committed("g", Q0) is None
        assert (await send(store, Q0, make_draft("new 0"))).offset == 0
        await send(store, Q0, make_draft("new 1"))
        async for found in now_and_reopened(store, reopen):
            assert await found.bounds(Q0) == QueueBounds(0, 2)
            assert await read_all(found, Q0) == [b"new 0", b"new 1"]
            assert (await found.catalog.list_topics())["orders"].write_queues == 2
            assert await found.offsets.committed("g", Q0) is None

    async def test_deleting_an_unknown_topic_is_refused(self, store):
        with pytest.raises(UnknownTopic):
            await store.catalog.delete_topic("nowhere")

    async def test_groups_are_stored_as_put(self, empty, reopen):
        first = Group(name="a", may_consume=False, retries_max=3, attributes={"x": "y"})
        await empty.catalog.put_group(first)
        await empty.catalog.put_group(Group(name="b"))
        await empty.catalog.put_group(Group(name="b", retry_queues=4))
        await empty.catalog.put_group(Group(name="c"))
        await empty.catalog.delete_group("c")
        await empty.catalog.delete_group("never there")
        async for found in now_and_reopened(empty, reopen):
            assert dict(await found.catalog.list_groups()) == {"a": first, "b": Group(name="b", retry_queues=4)}

    @pytest.mark.parametrize("name", ["", "a b", "x" * 121, "ü"])
    async def test_an_illegal_group_name_is_refused(self, empty, name):
        with pytest.raises(IllegalName):
            await empty.catalog.put_group(Group(name=name))

    # -- committed offsets --------------------------------------------------------------------------------------------

    async def test_a_group_without_commits_has_no_offset(self, store):
        assert await store.offsets.committed("g", Q0) is None

    async def test_a_commit_may_move_either_way_and_returns_the_previous_offset(self, store, reopen):
        assert await store.offsets.commit("g", Q0, 5) is None
        assert await store.offsets.commit("g", Q0, 9) == 5
        assert await store.offsets.commit("g", Q0, 9) == 9
        assert await store.offsets.commit("g", Q0, 2) == 9
        assert await store.offsets.commit("g", Q0, 0) == 2
        await store.offsets.commit("g", Q1, 7)
        await store.offsets.commit("other", Q0, 1)
        async for found in now_and_reopened(store, reopen):
            assert await found.offsets.committed("g", Q0) == 0
            assert await found.offsets.committed("g", Q1) == 7
            assert await found.offsets.committed("other", Q0) == 1
            assert await found.offsets.committed("other", Q1) is None
            assert await found.offsets.committed("g", OTHER) is None

    async def test_a_conditional_commit_needs_the_expected_offset(self, store, reopen):
        offsets = store.offsets
        assert not await offsets.commit_if("g", Q0, 5, expected=0)
        assert await offsets.commit_if("g", Q0, 5, expected=None)
        assert not await offsets.commit_if("g", Q0, 6, expected=None)
        assert await offsets.committed("g", Q0) == 5
        assert [await offsets.commit_if("g", Q0, to, expected=5) for to in (8, 9)] == [True, False]
        assert await offsets.commit("g", Q0, 3) == 8  # without a condition
        assert not await offsets.commit_if("g", Q0, 9, expected=8)
        assert await offsets.commit_if("g", Q0, 4, expected=3)
        async for found in now_and_reopened(store, reopen):
            assert await found.offsets.committed("g", Q0) == 4

    async def test_of_concurrent_conditional_commits_one_succeeds(self, store):
        await store.offsets.commit("g", Q0, 5)
        tried = await asyncio.gather(*(store.offsets.commit_if("g", Q0, 6 + n, expected=5) for n in range(5)))
        assert sum(tried) == 1
        assert await store.offsets.committed("g", Q0) == 6 + tried.index(True)

    async def test_conditional_commits_that_follow_each_other_closely_all_succeed(self, store):
        await store.offsets.commit("g", Q0, 0)
        reached = []

        async def advance() -> None:
            while (at := await store.offsets.committed("g", Q0)) < 30:
                if await store.offsets.commit_if("g", Q0, at + 1, expected=at):
                    reached.append(at + 1)

        await asyncio.gather(*(advance() for _ in range(5)))
        assert sorted(reached) == list(range(1, 31))
        assert await store.offsets.committed("g", Q0) == 30

    async def test_all_committed_offsets_are_listed_by_topic_and_group(self, store, reopen):
        assert await store.offsets.all() == {}
        await store.offsets.commit("g", Q0, 3)
        await store.offsets.commit("g", Q1, 7)
        await store.offsets.commit("other", OTHER, 1)
        async for found in now_and_reopened(store, reopen):
            assert await found.offsets.all() == {("orders", "g"): {0: 3, 1: 7}, ("other", "other"): {0: 1}}

    async def test_a_returned_offset_table_does_not_change_later(self, store):
        await store.offsets.commit("g", Q0, 3)
        told = await store.offsets.all()
        await store.offsets.commit("g", Q0, 4)
        await store.offsets.commit("g", Q1, 1)
        assert told == {("orders", "g"): {0: 3}}

    async def test_deleting_a_group_deletes_its_committed_offsets(self, store, reopen):
        await store.catalog.put_group(Group(name="g"))
        await store.offsets.commit("g", Q0, 5)
        await store.offsets.commit("stays", Q0, 6)
        await store.catalog.delete_group("g")
        async for found in now_and_reopened(store, reopen):
            assert await found.offsets.committed("g", Q0) is None
            assert await found.offsets.committed("stays", Q0) == 6

    async def test_deleting_a_group_keeps_its_offsets_on_request(self, store, reopen):
        await store.catalog.put_group(Group(name="g"))
        await store.offsets.commit("g", Q0, 5)
        await store.catalog.delete_group("g", keeps_offsets=True)
        async for found in now_and_reopened(store, reopen):
            assert "g" not in await found.catalog.list_groups()
            assert await found.offsets.committed("g", Q0) == 5

    async def test_marks_keep_their_last_value(self, store, reopen):
        assert await store.marks.get("work") is None
        await store.marks.put("work", 7)
        await store.marks.put("work", 5)
        await store.marks.put("other", -1)
        async for found in now_and_reopened(store, reopen):
            assert (await found.marks.get("work"), await found.marks.get("other")) == (5, -1)

    async def test_commits_below_0_or_of_unknown_topics_are_refused(self, store):
        with pytest.raises(Refused):
            await store.offsets.commit("g", Q0, -1)
        with pytest.raises(UnknownTopic):
            await store.offsets.commit("g", Queue("nowhere", 0), 1)
        assert await store.offsets.committed("g", Q0) is None
        assert await store.offsets.committed("g", Queue("nowhere", 0)) is None

    # -- atomic appends -----------------------------------------------------------------------------------------------

    async def test_an_atomic_append_covers_queues_of_several_topics_in_order(self, store, reopen):
        await send(store, Q0, make_draft("before"))
        group = [
            queue_records(Q0, "a", "b"),
            queue_records(OTHER, "x"),
            queue_records(Q1, "c"),
            queue_records(Q0, "d"),
            queue_records(OTHER, "y", "z"),
        ]
        assert await store.append_atomically("query", 0, group) is True
        for queue, end in ((Q0, 4), (Q1, 1), (OTHER, 3)):
            await wait_until_visible(store, queue, end)
        await send(store, Q0, make_draft("after"))
        async for found in now_and_reopened(store, reopen):
            assert await read_all(found, Q0) == [b"before", b"a", b"b", b"d", b"after"]
            assert await read_all(found, Q1) == [b"c"]
            assert await read_all(found, OTHER) == [b"x", b"y", b"z"]

    async def test_messages_of_an_atomic_append_are_readable_like_others(self, store, reopen):
        before_ms = clock.now_ms()
        await store.append_atomically(
            "query", 0, [queue_records(Q0, "a", "b", tags="T", keys="k1 k2"), queue_records(Q0, "c")]
        )
        await wait_until_visible(store, Q0, 3)
        async for found in now_and_reopened(store, reopen):
            first, second, third = decode_messages(await found.read(Q0, 0))
            assert (first.topic, first.queue_id, first.queue_offset) == ("orders", 0, 0)
            assert (second.body, second.tags, second.keys, second.born_ms) == (b"b", "T", ["k1", "k2"], 7)
            assert before_ms <= first.store_ms <= third.store_ms <= clock.now_ms()
            assert await read_all(found, Q0, tags_codes=frozenset({tags_code("T")})) == [b"a", b"b"]
            assert await self.found(found, "k2") == [b"a", b"b"]
            assert record.decode(await found.record_at(third.physical_offset)).body == b"c"

    async def test_an_atomic_append_is_done_once_per_scope_and_number(self, store, reopen):
        assert await store.ledger("query") is None
        assert await store.append_atomically("query", 3, [queue_records(Q0, "three")]) is True
        await wait_until_visible(store, Q0, 1)
        async for found in now_and_reopened(store, reopen):
            for number in (3, 2, 0):
                assert (
                    await found.append_atomically(
                        "query", number, [queue_records(Q0, "again"), queue_records(Q1, "again")]
                    )
                    is False
                )
            assert await found.ledger("query") == 3
            assert await found.bounds(Q0) == QueueBounds(0, 1)
            assert await found.bounds(Q1) == QueueBounds(0, 0)
        store = found
        assert await store.append_atomically("query", 7, [queue_records(Q0, "seven")]) is True
        assert await store.append_atomically("other", 3, [queue_records(Q0, "other's")]) is True
        await wait_until_visible(store, Q0, 3)
        assert await read_all(store, Q0) == [b"three", b"seven", b"other's"]
        assert (await store.ledger("query"), await store.ledger("other"), await store.ledger("no")) == (7, 3, None)

    async def test_an_empty_atomic_append_is_recorded_in_the_ledger(self, store, reopen):
        assert await store.append_atomically("query", 0, []) is True
        assert await store.append_atomically("query", 1, [queue_records(Q0)]) is True
        async for found in now_and_reopened(store, reopen):
            assert await found.append_atomically("query", 1, []) is False
            assert await found.ledger("query") == 1
            assert await found.bounds(Q0) == QueueBounds(0, 0)

    async def test_a_refused_atomic_append_stores_nothing(self, store):
        good = queue_records(Q0, "good")
        unsound = bytearray(queue_records(Q1, "body that will not match").data)
        unsound[90] ^= 1
        for error, bad in (
            (UnknownTopic, queue_records(Queue("nowhere", 0), "x")),
            (Refused, queue_records(Queue("orders", 1 << 30), "x")._replace(queue=Queue("orders", -1))),
            (Refused, queue_records(OTHER, "of another topic")._replace(queue=Q1)),
            (Refused, queue_records(Q1, "x", "y")._replace(sizes=queue_records(Q1, "x").sizes)),
            (
                Refused,
                QueueBatch(Q1, memoryview(bytes(unsound)), queue_records(Q1, "body that will not match").sizes),
            ),
            (TooLarge, queue_records(Q1, "fine", bytes(17 << 20))),
        ):
            with pytest.raises(error):
                await store.append_atomically("query", 0, [good, bad])
        for scope, number in (("", 0), ("x" * 191, 0), ("a\x00b", 0), ("query", -1), ("query", 1 << 63)):
            with pytest.raises(Refused):
                await store.append_atomically(scope, number, [good])
        assert await store.ledger("query") is None
        assert await store.bounds(Q0) == await store.bounds(Q1) == QueueBounds(0, 0)
        assert await store.append_atomically("query", 0, [good]) is True
        await wait_until_visible(store, Q0, 1)

    async def test_a_large_atomic_append_is_stored_completely(self, store, reopen):
        """It exceeds a segment of the small log and one SQL statement, and so does one of its queue batches."""
        sent = {queue: [f"{queue}.{n}." + "x" * (n % 90) for n in range(1, 1200)] for queue in (Q0, Q1, OTHER)}
        group = [queue_records(queue, *sent[queue][at : at + 1000]) for at in (0, 1000) for queue in sent]
        assert await store.append_atomically("query", 0, group) is True
        for queue in sent:
            await wait_until_visible(store, queue, 1199)
        async for found in now_and_reopened(store, reopen):
            for queue, wanted in sent.items():
                assert await read_all(found, queue, count_max=500) == [body.encode() for body in wanted]
                assert (await send(found, queue, make_draft("next"))).offset >= 1199
            break

    async def test_concurrent_repeats_of_an_atomic_append_are_done_once(self, store):
        group = [queue_records(OTHER, "x"), queue_records(Q0, "a", "b"), queue_records(Q1, "c")]
        done = await asyncio.gather(*(store.append_atomically("query", 0, group) for _ in range(8)))
        assert sorted(done) == [False] * 7 + [True]
        for queue, end in ((Q0, 2), (OTHER, 1)):
            await wait_until_visible(store, queue, end)
        assert await store.bounds(Q0) == QueueBounds(0, 2)
        assert await store.bounds(OTHER) == QueueBounds(0, 1)

    async def test_atomic_and_ordinary_appends_do_not_interleave_or_block_each_other(self, store, reopen):
        async def ordinary(queue: Queue) -> None:
            for n in range(30):
                await store.append(queue, [make_draft(f"{n}")])

        async def groups(scope: str, *queues: Queue) -> None:
            for number in range(15):
                group = [queue_records(queue, *(f"{scope}{number}.{n}" for n in range(4))) for queue in queues]
                assert await store.append_atomically(scope, number, group)

        await asyncio.gather(
            ordinary(Q0), ordinary(Q1), groups("f", Q0, Q1, OTHER), groups("g", OTHER, Q1, Q0), groups("h", Q1, Q0)
        )
        for queue, end in ((Q0, 30 + 180), (Q1, 30 + 180), (OTHER, 120)):
            await wait_until_visible(store, queue, end)
        async for found in now_and_reopened(store, reopen):
            for queue in (Q0, Q1, OTHER):
                bodies_found = [body.decode() for body in await read_all(found, queue)]
                assert [body for body in bodies_found if body.isdecimal()] == [
                    f"{n}" for n in range(30) if queue != OTHER
                ]
                for scope in "fgh" if queue != OTHER else "fg":
                    wanted = [f"{scope}{number}.{n}" for number in range(15) for n in range(4)]
                    assert [body for body in bodies_found if body.startswith(scope)] == wanted
                    for number in range(15):  # contiguous: no other message in between
                        at = bodies_found.index(f"{scope}{number}.0")
                        assert bodies_found[at : at + 4] == wanted[4 * number : 4 * number + 4]

    async def test_readers_see_an_atomic_append_completely_or_not_at_all(self, store):
        seen: list[tuple[int, int]] = []
        is_done = asyncio.Event()

        async def look() -> None:
            while not is_done.is_set():
                for queue in (Q0, OTHER):
                    end = (await store.bounds(queue)).end
                    noted = await store.ledger("query")
                    seen.append((end, -1 if noted is None else noted))
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        for number in range(20):
            await store.append_atomically(
                "query", number, [queue_records(Q0, *"abcdefgh"), queue_records(OTHER, *"abcdefgh")]
            )
        await wait_until_visible(store, OTHER, 160)
        is_done.set()
        await looking
        assert all(end % 8 == 0 for end, _ in seen), "an atomic append must never be visible in part"
        assert all(noted >= end // 8 - 1 for end, noted in seen), "visible appends must be in the ledger"

    # -- close and reopen ---------------------------------------------------------------------------------------------

    async def test_messages_indexes_and_offsets_survive_a_reopen(self, store, reopen):
        appended = [
            await send_with_unique_time(store, Q0, make_draft(f"{n}", keys=f"k{n % 3}", tags="AB"[n % 2]))
            for n in range(9)
        ]
        await send(store, Q1, make_draft("one"))
        await store.offsets.commit("g", Q0, 4)
        store = await reopen()
        assert await store.bounds(Q0) == QueueBounds(0, 9)
        assert await store.bounds(Q1) == QueueBounds(0, 1)
        assert await read_all(store, Q0) == [f"{n}".encode() for n in range(9)]
        assert await read_all(store, Q0, tags_codes=frozenset({tags_code("B")})) == [b"1", b"3", b"5", b"7"]
        assert await self.found(store, "k1") == [b"1", b"4", b"7"]
        assert await store.offset_at(Q0, appended[6].store_ms) == 6
        assert record.decode(await store.record_at(appended[5].physical_offsets[0])).body == b"5"
        assert (await send(store, Q0, make_draft("9"))).offset == 9
        assert await read_all(store, Q0, 8) == [b"8", b"9"]

    async def test_reopening_many_times_changes_nothing(self, store, reopen):
        await send(store, Q0, *(make_draft(f"{n}", keys="k") for n in range(5)))
        before = (await store.read(Q0, 0)).tobytes()
        for _ in range(3):
            store = await reopen()
            assert (await store.read(Q0, 0)).tobytes() == before
            assert len(await store.find_by_key("orders", "k")) == 5

    async def test_an_empty_store_is_empty_after_a_reopen(self, empty, reopen):
        store = await reopen()
        assert not await store.catalog.list_topics()
        assert not await store.catalog.list_groups()

    async def test_closing_twice_is_harmless(self, store):
        await send(store, Q0, make_draft("x"))
        await store.close()
        await store.close()
