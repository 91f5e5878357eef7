"""Reading old messages from files: verified, and without damaged records."""

import logging
import os

import pytest
from tests.support.drafts import decode_bodies, make_draft
from tests.support.log_stores import SMALL_SETTINGS, corrupt_log, small_settings

from sparrow.model.message import StoredMessage
from sparrow.model.queue import Queue, QueueBounds
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore
from sparrow.store.log.page_cache import read_cached
from sparrow.store.spi import AtEnd
from sparrow.wire import record
from sparrow.wire.hashes import tags_code

Q = Queue("T", 0)
BODY_AT = 88


@pytest.fixture
async def written(tmp_path):
    """Write ten messages to a store and close it; return their physical offsets."""
    with LogStore(tmp_path, SMALL_SETTINGS) as store:
        await store.catalog.put_topic(Topic(name="T"))
        return [store.append_nowait(Q, [make_draft(f"{n} body", keys=f"k{n}")]).physical_offsets[0] for n in range(10)]


async def test_a_damaged_record_is_skipped_and_the_others_are_returned(tmp_path, written):
    corrupt_log(tmp_path, written[3] + BODY_AT, 4096, b"X")
    with LogStore(tmp_path, SMALL_SETTINGS) as store:
        assert store.read_nowait(Q, 0) is None, "a thread finds out which records are damaged"
        found = await store.read(Q, 0)
        assert decode_bodies(found) == [b"%d body" % n for n in range(10) if n != 3]
        assert (found.next_offset, found.bounds) == (10, QueueBounds(0, 10))
        found = await store.read(Q, 3, count_max=1)
        assert (decode_bodies(found), found.next_offset) == ([], 4)
        assert await store.record_at(written[3]) is None
        assert await store.find_by_key("T", "k3") == []
        assert len(await store.find_by_key("T", "k4")) == 1


@pytest.mark.parametrize("at", [0, 4, 12, 28, BODY_AT])
async def test_damage_in_any_field_of_a_record_skips_it(tmp_path, written, at):
    corrupt_log(tmp_path, written[5] + at, 4096, b"\x7f\x7f\x7f\x7f")
    with LogStore(tmp_path, SMALL_SETTINGS) as store:
        assert decode_bodies(await store.read(Q, 0)) == [b"%d body" % n for n in range(10) if n != 5]


async def test_damage_is_reported_once(tmp_path, written, caplog):
    corrupt_log(tmp_path, written[3] + BODY_AT, 4096, b"X")
    with LogStore(tmp_path, SMALL_SETTINGS) as store, caplog.at_level(logging.ERROR):
        for _ in range(3):
            await store.read(Q, 0)
    reports = [entry for entry in caplog.records if "is damaged and is skipped" in entry.message]
    assert [entry.args["physical_offset"] for entry in reports] == [written[3]]


async def test_read_nowait_returns_recent_messages_and_the_end(tmp_path):
    with LogStore(tmp_path, small_settings(hot_bytes=1000)) as store:
        await store.catalog.put_topic(Topic(name="T"))
        for n in range(20):
            store.append_nowait(Q, [make_draft(f"{n}", tags="t" * 50)])
        assert decode_bodies(store.read_nowait(Q, 19)) == [b"19"]
        assert decode_bodies(await store.read(Q, 0, count_max=2)) == [b"0", b"1"]
        assert store.read_nowait(Q, 20) == AtEnd(QueueBounds(0, 20))


def says_what_is_cached(directory) -> bool:
    """Whether the file system can say what the page cache has."""
    with (directory / "probe").open("wb+") as file:
        file.write(b"x")
        file.flush()
        return read_cached(file.fileno(), 0, 1) is not None


@pytest.mark.parametrize("is_opened_again", [False, True])
async def test_old_messages_in_the_page_cache_are_returned_as_a_thread_returns_them(tmp_path, is_opened_again):
    if not says_what_is_cached(tmp_path):
        pytest.skip("this file system cannot say what the page cache has")
    settings = small_settings(hot_bytes=1000, segment_bytes=1 << 16, queue_file_entries=1000)
    queues = [Q, Queue("T", 1), Queue("U", 0)]
    bodies = [bytes([n]) * (n * 7919 % 1500) for n in range(200)]
    with LogStore(tmp_path, settings) as store:
        for topic in ("T", "U"):
            await store.catalog.put_topic(Topic(name=topic))
        for n, body in enumerate(bodies):
            store.append_nowait(queues[n % 3], [make_draft(body, tags=f"tag{n % 5}")])
        if is_opened_again:
            store.close_blocking()
            store = LogStore(tmp_path, settings)
        at_once = 0
        limits = [{}, {"count_max": 3}, {"bytes_max": 5_000}, {"tags_codes": frozenset({tags_code("tag3")})}]
        for queue in queues:
            for offset in range(0, 60, 7):
                for limit in limits:
                    found = store.read_nowait(queue, offset, **limit)
                    by_thread = store._reader.read(store._queues.get(queue), offset, nowait=False, **limit)
                    if found is not None:
                        at_once += 1
                        assert b"".join(found.buffers) == b"".join(by_thread.buffers)
                        assert (found.sizes, found.next_offset) == (by_thread.sizes, by_thread.next_offset)
        assert at_once > 50, "most reads need one segment only"
        store.close_blocking()


async def test_old_messages_that_have_left_the_page_cache_are_read_in_a_thread(tmp_path, written):
    if not says_what_is_cached(tmp_path):
        pytest.skip("this file system cannot say what the page cache has")
    with LogStore(tmp_path, SMALL_SETTINGS) as store:
        assert store.read_nowait(Q, 0, count_max=2) is not None
    for path in (tmp_path / "commitlog").iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            # Asked once: some kernels begin to read what they do not have.
            if read_cached(file.fileno(), written[0], 1, is_likely=True) is not None:
                pytest.skip("this system keeps what it is asked to drop")
    with LogStore(tmp_path, SMALL_SETTINGS) as store:
        assert decode_bodies(await store.read(Q, 0, count_max=2)) == [b"0 body", b"1 body"]
        assert decode_bodies(store.read_nowait(Q, 0, count_max=2)) == [b"0 body", b"1 body"], "now it is cached"


@pytest.mark.parametrize(
    ("field", "value"), [(0, b"\0\0\0\x70"), (12, b"\0\0\0\1"), (20, bytes(8)), (28, b"\0" * 7 + b"\1")]
)
async def test_a_record_that_belongs_elsewhere_is_not_returned_at_once(tmp_path, field, value):
    with LogStore(tmp_path, small_settings(hot_bytes=0)) as store:
        await store.catalog.put_topic(Topic(name="T"))
        places = [store.append_nowait(Q, [make_draft(f"{n}")]).physical_offsets[0] for n in range(3)]
        segment = store._log.segment_at(places[1])
        at = places[1] - segment.base + field
        segment.mapping[at : at + len(value)] = value
        assert store.read_nowait(Q, 0) is None
        assert decode_bodies(await store.read(Q, 0)) == [b"0", b"2"]


async def test_a_closed_store_returns_no_invented_data(tmp_path):
    store = LogStore(tmp_path, SMALL_SETTINGS)
    await store.catalog.put_topic(Topic(name="T"))
    store.append_nowait(Q, [make_draft("real")])
    store.close_blocking()
    try:
        found = await store.read(Q, 0)
    except Exception:
        return
    assert decode_bodies(found) == [b"real"]


async def test_bytes_of_a_body_are_no_record_for_those_who_name_their_place(tmp_path):
    """An attacker knows where the body of the next message comes to lie, and sends a record for that place."""
    with LogStore(tmp_path, SMALL_SETTINGS) as store:
        await store.catalog.put_topic(Topic(name="T"))
        (first,) = store.append_nowait(Q, [make_draft("first")]).physical_offsets
        place = store.written + BODY_AT
        for queue_offset in (0, 1, 7, -1):  # another message's, its own, none's
            forged = StoredMessage(topic="T", body=b"forged", queue_offset=queue_offset, physical_offset=place)
            own = store.append_nowait(Q, [make_draft(record.encode_message(forged))])
            assert store._reader.record_at(place) is not None, "the bytes are a record"
            assert await store.record_at(place) is None
            assert await store.record_at(own.physical_offsets[0]) is not None
            place = store.written + BODY_AT
        assert await store.record_at(first) is not None
