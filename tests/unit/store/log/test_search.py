"""Finding messages by time and by key."""

import asyncio

import pytest
from tests.support.drafts import make_draft
from tests.support.log_stores import SMALL_SETTINGS, corrupt_log, small_settings

from sparrow.model.message import Draft
from sparrow.model.queue import Queue, QueueBounds
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore
from sparrow.wire import record
from sparrow.wire.hashes import index_hash

Q = Queue("T", 0)
TIMES = [1010, 1010, 1020, 1020, 1020, 1030]
IPV4 = b"\x7f\0\0\1\0\0\0\0"
# At the position of the store time with IPv4 hosts, these records hold numbers far below or above any time.
IPV6_OF_ZEROS, IPV6_OF_ONES = bytes(16) + b"\0\0\0\1", b"\x7f" * 16 + b"\0\0\0\1"


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def now():
    return Clock()


@pytest.fixture
async def store(tmp_path, now):
    async with LogStore(tmp_path, SMALL_SETTINGS, now_ms=now) as store:
        await store.catalog.put_topic(Topic(name="T"))
        yield store


def append_at(store: LogStore, now: Clock, times, born_hosts=(IPV4,)) -> None:
    for n, now.now_ms in enumerate(times):
        store.append_nowait(Q, [Draft(body=b"%d" % n, born_host=born_hosts[n % len(born_hosts)])])


# -- by time ----------------------------------------------------------------------------------------------------------

LOWER = {0: 0, 1009: 0, 1010: 0, 1011: 2, 1020: 2, 1021: 5, 1030: 5, 1031: 6, 1 << 62: 6}
UPPER = {1010: 1, 1011: 1, 1019: 1, 1020: 4, 1029: 4, 1030: 5, 1031: 5, 1 << 62: 5}


@pytest.mark.parametrize(
    "born_hosts",
    [(IPV4,), (IPV6_OF_ZEROS,), (IPV6_OF_ONES,), (IPV4, IPV6_OF_ONES), (IPV6_OF_ZEROS, IPV4, IPV6_OF_ONES)],
    ids=["ipv4", "zeros", "ones", "two kinds", "three kinds"],
)
async def test_for_equal_times_lower_is_the_first_and_upper_the_last_for_any_born_host(store, now, born_hosts):
    append_at(store, now, TIMES, born_hosts)
    assert {time_ms: await store.offset_at(Q, time_ms) for time_ms in LOWER} == LOWER
    assert {time_ms: await store.offset_at(Q, time_ms, upper=True) for time_ms in UPPER} == UPPER


async def test_before_all_messages_both_give_the_first_offset(store, now):
    append_at(store, now, TIMES)
    assert await store.offset_at(Q, 5) == await store.offset_at(Q, 5, upper=True) == 0


async def test_an_empty_queue_gives_offset_0_for_every_time(store):
    for queue in (Q, Queue("T", 7), Queue("Unknown", 0)):
        for upper in (False, True):
            assert await store.offset_at(queue, 1010, upper=upper) == 0


async def test_times_are_found_across_segments_and_queue_files(store, now):
    append_at(store, now, range(2000, 2200, 2))
    assert len(store._log.segments) > 2
    assert [await store.offset_at(Q, 2000 + n) for n in range(199)] == [(n + 1) // 2 for n in range(199)]
    assert [await store.offset_at(Q, 2000 + n, upper=True) for n in range(200)] == [n // 2 for n in range(200)]


async def test_times_are_found_after_retention(tmp_path, now):
    async with LogStore(tmp_path, small_settings(retention_hours=1), now_ms=now) as store:
        await store.catalog.put_topic(Topic(name="T"))
        append_at(store, now, range(3_600_000, 360_000_000, 3_600_000))
        assert await store.trim() > 0
        first, end = store.bounds_nowait(Q)
        assert 0 < first < end
        assert await store.offset_at(Q, 0) == first
        for offset in (first, end - 1):
            assert await store.offset_at(Q, 3_600_000 * (offset + 1)) == offset
            assert await store.offset_at(Q, 3_600_000 * (offset + 1), upper=True) == offset


async def test_a_search_by_time_ends_at_the_visible_messages(tmp_path, now):
    async with LogStore(tmp_path, small_settings(visible_after="replicated"), now_ms=now) as store:
        await store.catalog.put_topic(Topic(name="T"))
        append_at(store, now, TIMES[:3])
        store.replica.commit_to(store.written)
        append_at(store, now, TIMES[3:])
        assert await store.offset_at(Q, 1 << 62) == 3
        assert await store.offset_at(Q, 1 << 62, upper=True) == 2


# -- by key -----------------------------------------------------------------------------------------------------------


async def found(store: LogStore, key: str, topic: str = "T", **limits: int) -> list[bytes]:
    return [record.decode(data).body for data in await store.find_by_key(topic, key, **limits)]


async def test_a_message_is_found_by_each_of_its_keys_and_by_its_unique_key(store):
    store.append_nowait(Q, [make_draft("0", keys="k1 k2", unique="u"), make_draft("1", keys="k2")])
    assert await found(store, "k1") == await found(store, "u") == [b"0"]
    assert await found(store, "k2") == [b"0", b"1"]
    for key in ("k", "k1 k2", "", "u2"):
        assert await found(store, key) == []
    assert await found(store, "k1", topic="Other") == []


async def test_keys_with_equal_hashes_are_distinguished(store):
    assert index_hash("T", "Aa") == index_hash("T", "BB")
    store.append_nowait(Q, [make_draft("0", keys="Aa"), make_draft("1", keys="BB"), make_draft("2", keys="Aa")])
    assert await found(store, "Aa") == [b"0", b"2"]
    assert await found(store, "BB") == [b"1"]


async def test_a_message_with_a_repeated_key_is_found_once(store):
    store.append_nowait(Q, [make_draft("0", keys="k k", unique="k")])
    assert await found(store, "k") == [b"0"]


async def test_the_newest_messages_are_returned_oldest_first(store):
    store.append_nowait(Q, [make_draft(f"{n}", keys="k") for n in range(9)])
    assert await found(store, "k", limit=3) == [b"6", b"7", b"8"]


async def test_both_ends_of_a_time_range_are_included(store, now):
    for n, now.now_ms in enumerate(TIMES):
        store.append_nowait(Q, [make_draft(f"{n}", keys="k")])
    assert await found(store, "k", begin_ms=1020, end_ms=1020) == [b"2", b"3", b"4"]
    assert await found(store, "k", begin_ms=1011, end_ms=1019) == []
    assert await found(store, "k", end_ms=1010) == [b"0", b"1"]
    assert await found(store, "k", begin_ms=1021) == [b"5"]


async def test_messages_of_a_deleted_topic_are_not_found_even_if_it_is_created_again(store):
    store.append_nowait(Q, [make_draft("old", keys="k")])
    assert await found(store, "k") == [b"old"]
    await store.catalog.delete_topic("T")
    assert await found(store, "k") == []
    await store.catalog.put_topic(Topic(name="T"))
    assert await found(store, "k") == []
    store.append_nowait(Q, [make_draft("new", keys="k")])
    assert await found(store, "k") == [b"new"]


async def test_half_messages_are_not_found(store):
    store.append_nowait(Q, [make_draft("half", keys="k", sys_flag=record.TRANSACTION_PREPARED)])
    store.append_nowait(Q, [make_draft("back", keys="k", sys_flag=record.TRANSACTION_ROLLED_BACK)])
    assert await found(store, "k") == []
    store.append_nowait(Q, [make_draft("whole", keys="k", sys_flag=record.TRANSACTION_COMMITTED)])
    assert await found(store, "k") == [b"whole"]


async def test_invisible_messages_do_not_count_towards_the_limit(tmp_path):
    async with LogStore(tmp_path, small_settings(visible_after="replicated")) as store:
        await store.catalog.put_topic(Topic(name="T"))
        store.append_nowait(Q, [make_draft(f"{n}", keys="k") for n in range(3)])
        store.replica.commit_to(store.written)
        store.append_nowait(Q, [make_draft(f"{n}", keys="k") for n in range(3, 6)])
        assert await found(store, "k", limit=2) == [b"1", b"2"]


async def test_truncated_messages_are_not_found(store):
    end = store.append_nowait(Q, [make_draft("0", keys="k")]).end
    store.append_nowait(Q, [make_draft("1", keys="k")])
    assert await found(store, "k") == [b"0", b"1"]
    await asyncio.to_thread(store.replica.truncate, end)
    assert await found(store, "k") == [b"0"]


async def test_a_damaged_record_is_not_found_by_its_key(store):
    appended = store.append_nowait(Q, [make_draft(f"body {n}", keys="k") for n in range(3)])
    corrupt_log(store.path, appended.physical_offsets[1] + record.FIXED_HEADER_BYTES, SMALL_SETTINGS.segment_bytes)
    assert await found(store, "k") == [b"body 0", b"body 2"]
    assert store.bounds_nowait(Q) == QueueBounds(0, 3)
