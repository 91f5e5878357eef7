"""The whole log store: watermarks, truncation, retention, and recovery after a crash."""

import asyncio
import shutil
import threading

import pyarrow as pa
import pytest
from tests.support.drafts import decode_bodies, decode_messages, make_draft
from tests.support.log_stores import (
    SMALL_SETTINGS,
    checkpoint,
    copy_as_crashed,
    corrupt_log,
    overwrite,
    segment_path,
    small_settings,
)
from tests.support.wait import eventually

from sparrow.model.errors import IllegalName, Refused, SparrowError, UnknownTopic
from sparrow.model.message import Host
from sparrow.model.queue import Queue, QueueBounds
from sparrow.model.topic import Group, Topic
from sparrow.store.log import LogStore
from sparrow.store.log.state.updates import STATE_QUEUE
from sparrow.store.spi import AtEnd, Moved
from sparrow.wire import columns, record

A, B = Queue("A", 0), Queue("B", 0)
HOUR_MS = 3_600_000


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


async def opened(path, settings=SMALL_SETTINGS, **parts) -> LogStore:
    store = await asyncio.to_thread(LogStore, path, settings, **parts)
    for name in ("A", "B"):
        if name not in await store.catalog.list_topics():
            await store.catalog.put_topic(Topic(name=name))
    return store


async def read_all(store: LogStore, queue: Queue, offset: int | None = None) -> list[bytes]:
    bounds = await store.bounds(queue)
    found, offset = [], int(bounds.first) if offset is None else offset
    while offset < bounds.end:
        part = await store.read(queue, offset)
        found, offset = found + decode_bodies(part), part.next_offset
    return found


# -- watermarks -------------------------------------------------------------------------------------------------------


async def test_readers_see_written_messages_at_once_and_growth_is_reported_in_order(tmp_path):
    grown: list[tuple[Queue, int]] = []
    async with await opened(tmp_path, on_growth=lambda *news: grown.append(news)) as store:
        grown.clear()
        store.append_nowait(A, [make_draft("0")])
        store.append_nowait(B, [make_draft("0"), make_draft("1")])
        store.append_nowait(A, [make_draft("1")])
        assert grown == [(A, 1), (B, 2), (A, 2)]
        assert store.bounds_nowait(A) == QueueBounds(0, 2)


async def test_readers_wait_for_the_disk_if_visible_after_durable(tmp_path):
    grown: list[tuple[Queue, int]] = []
    settings = small_settings(visible_after="durable", flush_interval_ms=HOUR_MS)
    async with await opened(tmp_path, settings, on_growth=lambda *news: grown.append(news)) as store:
        grown.clear()
        appended = store.append_nowait(A, [make_draft("0"), make_draft("1")])
        assert store.read_nowait(A, 0) == AtEnd(QueueBounds(0, 0))
        assert grown == []
        assert store.watermark("durable") < appended.end == store.watermark("written")
        store._flusher.sync()
        assert store.watermark("durable") == appended.end
        assert grown[-1:] == [(A, 2)]
        assert decode_bodies(store.read_nowait(A, 0)) == [b"0", b"1"]


async def test_readers_wait_for_the_replicas_if_visible_after_replicated(tmp_path):
    grown: list[tuple[Queue, int]] = []
    settings = small_settings(visible_after="replicated")
    async with await opened(tmp_path, settings, on_growth=lambda *news: grown.append(news)) as store:
        store.replica.commit_to(store.written)
        grown.clear()
        first = store.append_nowait(A, [make_draft("0")])
        second = store.append_nowait(A, [make_draft("1", keys="k")])
        await eventually(lambda: store.watermark("durable") == store.written)
        assert store.bounds_nowait(A) == QueueBounds(0, 0)
        store.replica.commit_to(first.end - 1)
        assert (store.bounds_nowait(A), grown) == (QueueBounds(0, 0), [])
        store.replica.commit_to(first.end)
        assert (store.bounds_nowait(A), grown) == (QueueBounds(0, 1), [(A, 1)])
        assert decode_bodies(await store.read(A, 0)) == [b"0"]
        assert await store.read(A, 1) == AtEnd(QueueBounds(0, 1))
        store.replica.commit_to(second.end + 1000)
        assert store.watermark("replicated") == store.written
        assert (store.bounds_nowait(A), grown) == (QueueBounds(0, 2), [(A, 1), (A, 2)])


async def test_keys_find_no_message_that_readers_cannot_see_yet(tmp_path):
    async with await opened(tmp_path, small_settings(visible_after="replicated")) as store:
        store.replica.commit_to(store.written)
        appended = store.append_nowait(A, [make_draft("0", keys="k")])
        assert await store.find_by_key("A", "k") == []
        store.replica.commit_to(appended.end)
        assert len(await store.find_by_key("A", "k")) == 1


async def test_a_watermark_never_goes_back(tmp_path):
    async with await opened(tmp_path, small_settings(visible_after="replicated")) as store:
        end = store.append_nowait(A, [make_draft("0")]).end
        store.replica.commit_to(end)
        store.replica.commit_to(10)
        assert store.watermark("replicated") == end
        assert store.bounds_nowait(A) == QueueBounds(0, 1)


async def test_messages_that_were_not_durable_when_the_store_closed_are_visible_after_opening(tmp_path):
    async with await opened(tmp_path, small_settings(visible_after="durable")) as store:
        store.append_nowait(A, [make_draft("0")])
    async with await opened(tmp_path, small_settings(visible_after="durable")) as store:
        assert store.bounds_nowait(A) == QueueBounds(0, 1)


async def test_deleting_a_topic_drops_its_pending_growth_reports(tmp_path):
    grown: list[tuple[Queue, int]] = []
    settings = small_settings(visible_after="replicated")
    async with await opened(tmp_path, settings, on_growth=lambda *news: grown.append(news)) as store:
        store.append_nowait(A, [make_draft("0"), make_draft("1")])
        await store.catalog.delete_topic("A")
        grown.clear()
        store.replica.commit_to(store.written)
        assert A not in dict(grown)


# -- truncating the log -----------------------------------------------------------------------------------------------


async def test_every_view_follows_a_truncation(tmp_path):
    async with await opened(tmp_path) as store:
        appended = [store.append_nowait(A, [make_draft(f"{n}" + "x" * 300, keys="k")]) for n in range(30)]
        await store.catalog.put_topic(Topic(name="C"))
        await store.catalog.put_group(Group(name="g"))
        store.append_nowait(B, [make_draft("b", keys="k")])
        end = appended[11].end
        await asyncio.to_thread(store.replica.truncate, end)
        for _ in range(2):
            assert store.bounds_nowait(A) == QueueBounds(0, 12)
            assert store.bounds_nowait(B) == QueueBounds(0, 0)
            assert [body[:2].rstrip(b"x") for body in await read_all(store, A)] == [b"%d" % n for n in range(12)]
            assert [record.decode(d).queue_offset for d in await store.find_by_key("A", "k")] == list(range(12))
            assert await store.find_by_key("B", "k") == []
            assert set(await store.catalog.list_topics()) == {"A", "B"}
            assert not await store.catalog.list_groups()
            assert await store.record_at(appended[12].physical_offsets[0]) is None
            await store.close()
            store = await opened(tmp_path)
        assert store.append_nowait(A, [make_draft("next", keys="k")]).offset == 12
        assert len(await store.find_by_key("A", "k")) == 13
        await store.close()


async def test_a_truncation_drops_messages_that_are_not_visible_yet(tmp_path):
    async with await opened(tmp_path, small_settings(visible_after="replicated")) as store:
        store.replica.commit_to(store.written)
        first = store.append_nowait(A, [make_draft("0")])
        store.append_nowait(A, [make_draft("1")])
        await asyncio.to_thread(store.replica.truncate, first.end)
        store.append_nowait(A, [make_draft("other 1")])
        store.replica.commit_to(store.written)
        assert await read_all(store, A) == [b"0", b"other 1"]


async def test_a_topic_whose_creation_is_truncated_is_gone(tmp_path):
    async with await opened(tmp_path) as store:
        end = store.written
        await store.catalog.put_topic(Topic(name="C"))
        store.append_nowait(Queue("C", 0), [make_draft("x")])
        await asyncio.to_thread(store.replica.truncate, end)
        assert set(await store.catalog.list_topics()) == {"A", "B"}
        with pytest.raises(UnknownTopic):
            store.append_nowait(Queue("C", 0), [make_draft("x")])
    async with await opened(tmp_path) as store:
        assert set(await store.catalog.list_topics()) == {"A", "B"}


async def test_truncating_the_deletion_of_a_topic_restores_its_messages(tmp_path):
    async with await opened(tmp_path) as store:
        end = store.append_nowait(A, [make_draft("0"), make_draft("1", keys="k")]).end
        await store.catalog.delete_topic("A")
        await asyncio.to_thread(store.replica.truncate, end)
        assert set(await store.catalog.list_topics()) == {"A", "B"}
        assert await read_all(store, A) == [b"0", b"1"]
        assert store.append_nowait(A, [make_draft("2")]).offset == 2


async def test_the_log_cannot_be_truncated_outside_its_bounds(tmp_path):
    async with await opened(tmp_path) as store:
        for end in (-1, store.written + 1):
            with pytest.raises(Refused):
                store.replica.truncate(end)


# -- retention --------------------------------------------------------------------------------------------------------


async def test_state_survives_the_segments_that_contained_it(tmp_path):
    now = Clock()
    settings = small_settings(retention_hours=1)
    async with await opened(tmp_path, settings, now_ms=now) as store:
        await store.catalog.put_group(Group(name="g", retries_max=3))
        await store.offsets.commit("g", A, 5)
        for n in range(40):
            now.now_ms += HOUR_MS // 10
            store.append_nowait(A, [make_draft(f"{n}" + "x" * 400, keys="k")])
            await store.trim()
        first, end = store.bounds_nowait(A)
        assert store.first > 0
        assert 0 < first < end == 40
        kept = await read_all(store, A)
    async with await opened(tmp_path, settings, now_ms=now) as store:
        assert store.bounds_nowait(A) == QueueBounds(first, end)
        assert await read_all(store, A) == kept
        assert [body[:2] for body in kept] == [b"%d" % n for n in range(first, end)]
        assert set(await store.catalog.list_topics()) == {"A", "B"}
        assert await store.catalog.list_groups() == {"g": Group(name="g", retries_max=3)}
        assert await store.offsets.committed("g", A) == 5
        found = [record.decode(data).queue_offset for data in await store.find_by_key("A", "k", limit=100)]
        assert found == list(range(first, end))


async def test_a_commit_while_old_state_is_re_appended_is_not_undone(tmp_path):
    """A commit between reading the old state and appending it must not be overwritten."""
    now = Clock()
    async with await opened(tmp_path, small_settings(retention_hours=1), now_ms=now) as store:
        await store.offsets.commit("g", A, 1)
        store._state.flush_offsets()
        for _ in range(8):
            now.now_ms += HOUR_MS
            store.append_nowait(A, [make_draft(bytes(1500))])

        class Gap:
            """A lock that runs other work each time it is released."""

            def __init__(self, lock) -> None:
                self.lock, self.depth, self.others = lock, 0, []

            def __enter__(self):
                self.lock.__enter__()
                self.depth += 1

            def __exit__(self, *cause):
                self.depth -= 1
                self.lock.__exit__(*cause)
                if self.depth == 0 and self.others:
                    self.others.pop()()

        gap = Gap(store._writer.lock)
        said = store._state.tables.updates_before

        def rewrite_before(place):
            words = said(place)
            gap.others.append(lambda: asyncio.run(store.offsets.commit("g", A, 7)))
            return words

        with store._threads.maintenance.paused(), store._writer.lock:
            store._state.tables.updates_before = rewrite_before
            store._writer.lock = gap
        trimming = threading.Thread(target=store._trim)
        trimming.start()
        await asyncio.to_thread(trimming.join)
        assert await store.offsets.committed("g", A) == 7


async def test_damage_at_the_start_of_a_segment_does_not_stop_retention(tmp_path):
    now = Clock()
    settings = small_settings(retention_hours=1)
    async with await opened(tmp_path, settings, now_ms=now) as store:
        places = [store.append_nowait(A, [make_draft(bytes(2000))]).physical_offsets[0] for _ in range(8)]
    head = next(at for at in places if at and at % 4096 == 0)
    corrupt_log(tmp_path, head, 4096, b"\0\0\0\0\0\0\0\0")
    now.now_ms += 3 * HOUR_MS
    async with await opened(tmp_path, settings, now_ms=now) as store:
        assert await store.trim() > 0


async def empty_a(path, settings, now) -> None:
    """Append five messages to A, then enough to B that retention deletes those of A."""
    async with await opened(path, settings, now_ms=now) as store:
        store.append_nowait(A, [make_draft(f"{n}") for n in range(5)])
        for _ in range(6):
            now.now_ms += HOUR_MS
            store.append_nowait(B, [make_draft(bytes(2000))])
        await store.trim()
        assert store.bounds_nowait(A) == QueueBounds(5, 5)


async def test_an_emptied_queue_keeps_its_offset_even_if_views_are_lost(tmp_path):
    """Offsets never go back: a group that read up to 5 must not get another message 0."""
    now = Clock()
    settings = small_settings(retention_hours=1)
    await empty_a(tmp_path, settings, now)
    async with await opened(tmp_path, settings, now_ms=now) as store:
        assert store.bounds_nowait(A) == QueueBounds(5, 5)
    shutil.rmtree(tmp_path / "consumequeue")
    async with await opened(tmp_path, settings, now_ms=now) as store:
        assert store.append_nowait(A, [make_draft("next")]).offset == 5


async def test_an_emptied_queue_without_files_does_not_make_every_start_rebuild_the_views(tmp_path, caplog):
    now = Clock()
    settings = small_settings(retention_hours=1)
    await empty_a(tmp_path, settings, now)
    shutil.rmtree(tmp_path / "consumequeue")
    async with await opened(tmp_path, settings, now_ms=now) as store:
        store.append_nowait(B, [make_draft("more")])
    assert "consume queues and key index are rebuilt from the log" in caplog.text
    caplog.clear()
    for _ in range(2):
        async with await opened(tmp_path, settings, now_ms=now) as store:
            assert store.bounds_nowait(A) == QueueBounds(5, 5)
            store.append_nowait(B, [make_draft("more")])
    assert "consume queues and key index are rebuilt from the log" not in caplog.text
    shutil.rmtree(tmp_path / "consumequeue" / "B")
    async with await opened(tmp_path, settings, now_ms=now) as store:
        assert store.append_nowait(A, [make_draft("next")]).offset == 5
    assert "consume queues and key index are rebuilt from the log" in caplog.text


# -- dead letters -----------------------------------------------------------------------------------------------------

DEAD = Queue("%DLQ%g", 0)


async def with_dead_letters(path, now: Clock, **settings: object) -> LogStore:
    """Append one dead letter and one message of A for each of the last ten hours."""
    store = await opened(path, small_settings(**settings), now_ms=now)
    await store.catalog.put_topic(Topic(name=DEAD.topic, read_queues=1, write_queues=1))
    for n in range(10):
        for queue in (DEAD, A):
            store.append_nowait(queue, [make_draft(f"{n}", keys="k")])
        now.now_ms += HOUR_MS
    return store


async def test_dead_letters_expire_after_their_own_retention_and_others_stay(tmp_path):
    now = Clock()
    async with await with_dead_letters(tmp_path, now, dead_letter_retention_hours=3) as store:
        assert store.bounds_nowait(DEAD) == QueueBounds(0, 10)
        await store.trim()
        assert store.bounds_nowait(DEAD) == QueueBounds(8, 10)  # one more reached the age of three hours just now
        assert await read_all(store, DEAD) == [b"8", b"9"]
        assert await store.read(DEAD, 0) == Moved(8, QueueBounds(8, 10))
        found = await store.find_by_key(DEAD.topic, "k")
        assert [record.decode(data).queue_offset for data in found] == [8, 9]
        assert await store.offset_at(DEAD, 0) == 8
        assert store.bounds_nowait(A) == QueueBounds(0, 10)
        assert store.first == 0


async def test_dead_letters_expire_without_a_request(tmp_path):
    now = Clock()
    async with await with_dead_letters(tmp_path, now, dead_letter_retention_hours=3) as store:
        store._threads.maintenance.run_soon("expire dead letters")
        await eventually(lambda: store.bounds_nowait(DEAD) == QueueBounds(8, 10))


async def test_expired_dead_letters_stay_expired_after_a_restart(tmp_path):
    now = Clock()
    async with await with_dead_letters(tmp_path / "store", now, dead_letter_retention_hours=3) as store:
        await store.trim()
        crashed = copy_as_crashed(store, tmp_path / "crashed")
    shutil.copytree(tmp_path / "store", tmp_path / "without views")
    shutil.rmtree(tmp_path / "without views" / "consumequeue")
    for path in (tmp_path / "store", crashed, tmp_path / "without views"):
        async with await opened(path, small_settings(dead_letter_retention_hours=3), now_ms=now) as store:
            assert store.bounds_nowait(DEAD) == QueueBounds(8, 10)
            assert store.append_nowait(DEAD, [make_draft("next")]).offset == 10


async def test_a_queue_whose_dead_letters_all_expired_continues_at_its_offset(tmp_path):
    now = Clock()
    async with await with_dead_letters(tmp_path, now, dead_letter_retention_hours=0) as store:
        await store.trim()
        assert store.bounds_nowait(DEAD) == QueueBounds(10, 10)
        assert await store.read(DEAD, 10) == AtEnd(QueueBounds(10, 10))
    async with await opened(tmp_path, small_settings(dead_letter_retention_hours=1), now_ms=now) as store:
        assert store.append_nowait(DEAD, [make_draft("next")]).offset == 10
        now.now_ms += HOUR_MS - 1
        await store.trim()
        assert await read_all(store, DEAD) == [b"next"]


async def test_truncating_among_expired_dead_letters_leaves_no_gap(tmp_path):
    now = Clock()
    async with await with_dead_letters(tmp_path, now, dead_letter_retention_hours=3) as store:
        await store.trim()
        fifth = store._queues.get(DEAD).physical_offset_at(5)
        await asyncio.to_thread(store.replica.truncate, fifth)
        assert store.bounds_nowait(DEAD) == QueueBounds(5, 5)
        assert store.append_nowait(DEAD, [make_draft("5 again")]).offset == 5
        assert await read_all(store, DEAD) == [b"5 again"]


async def test_retention_of_the_log_also_deletes_dead_letters_with_a_longer_retention(tmp_path):
    now = Clock()
    async with await with_dead_letters(tmp_path, now, dead_letter_retention_hours=100, retention_hours=1) as store:
        for _ in range(6):
            store.append_nowait(B, [make_draft(bytes(2000))])
            now.now_ms += HOUR_MS
        assert await store.trim() > 0
        assert store.bounds_nowait(DEAD) == QueueBounds(10, 10)


# -- restarts and crashes ---------------------------------------------------------------------------------------------


async def test_store_times_do_not_go_back_after_a_restart_with_an_earlier_clock(tmp_path):
    now = Clock()
    async with await opened(tmp_path, now_ms=now) as store:
        before = store.append_nowait(A, [make_draft("0")]).store_ms
    now.now_ms -= HOUR_MS
    async with await opened(tmp_path, now_ms=now) as store:
        assert store.append_nowait(A, [make_draft("1")]).store_ms >= before


async def test_everything_written_survives_a_kill(tmp_path):
    store = await opened(tmp_path / "store")
    for n in range(50):
        store.append_nowait(A, [make_draft(f"{n}" + "x" * 200, keys="k")])
        if n == 25:
            checkpoint(store)
    await store.offsets.commit("g", A, 30)
    store._state.flush_offsets()
    copy = copy_as_crashed(store, tmp_path / "copy")
    await store.close()
    async with await opened(copy) as store:
        assert store.damage == []
        assert [body.rstrip(b"x") for body in await read_all(store, A)] == [b"%d" % n for n in range(50)]
        assert len(await store.find_by_key("A", "k", limit=100)) == 50
        assert await store.offsets.committed("g", A) == 30


async def test_after_a_clean_stop_nothing_is_replayed(tmp_path, caplog):
    async with await opened(tmp_path) as store:
        store.append_nowait(A, [make_draft(f"{n}") for n in range(20)])
        with pytest.raises(SparrowError):
            store.append_nowait(Queue("A", 7), [])  # a queue that was looked up and never had a message
        store.append_nowait(Queue("B", 3), [make_draft("half", sys_flag=record.TRANSACTION_PREPARED)])
        end = store.written
    caplog.clear()
    async with await opened(tmp_path) as store:
        assert store._reader.checked_from == end
    assert "consume queues and key index are rebuilt from the log" not in caplog.text


@pytest.mark.parametrize("lost", ["consumequeue", "index", "sparrow.checkpoint", "sparrow.state", "sparrow.layout"])
@pytest.mark.parametrize("was_clean", [True, False])
async def test_all_files_except_the_log_can_be_lost(tmp_path, lost, was_clean):
    store = await opened(tmp_path / "store")
    await store.catalog.put_topic(Topic(name="Gone"))
    store.append_nowait(Queue("Gone", 0), [make_draft("x", keys="k")])
    await store.catalog.delete_topic("Gone")
    for n in range(30):
        store.append_nowait(A, [make_draft(f"{n}" + "x" * 200, keys="k")])
    await store.offsets.commit("g", A, 3)
    store._state.flush_offsets()
    checkpoint(store)
    copy = copy_as_crashed(store, tmp_path / "copy")
    await store.close()
    path = store.path if was_clean else copy
    if (path / lost).is_dir():
        shutil.rmtree(path / lost)
    else:
        (path / lost).unlink()
    async with await opened(path) as store:
        assert [body.rstrip(b"x") for body in await read_all(store, A)] == [b"%d" % n for n in range(30)]
        assert len(await store.find_by_key("A", "k", limit=100)) == 30
        assert set(await store.catalog.list_topics()) == {"A", "B"}
        assert await store.offsets.committed("g", A) == 3
        assert store.bounds_nowait(Queue("Gone", 0)) == QueueBounds(0, 0)


async def test_a_torn_tail_is_truncated_and_the_next_message_takes_its_place(tmp_path):
    store = await opened(tmp_path / "store")
    places = [store.append_nowait(A, [make_draft(f"{n}")]).physical_offsets[0] for n in range(3)]
    copy = copy_as_crashed(store, tmp_path / "copy")
    await store.close()
    overwrite(segment_path(copy, 0), places[2] + 50, bytes(1000))
    async with await opened(copy) as store:
        assert await read_all(store, A) == [b"0", b"1"]
        assert store.append_nowait(A, [make_draft("new 2")]).offset == 2
    async with await opened(copy) as store:
        assert await read_all(store, A) == [b"0", b"1", b"new 2"]


async def test_records_behind_damage_that_hides_their_borders_are_saved(tmp_path, caplog):
    """Without queues, nothing tells whether bytes behind a lost header are records or part of a body."""
    async with await opened(tmp_path) as store:
        places = [(await store.append(A, [make_draft(f"{n}")])).physical_offsets[0] for n in range(4)]
    corrupt_log(tmp_path, places[1], SMALL_SETTINGS.segment_bytes, b"\xff" * 8)
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "sparrow.checkpoint").unlink()
    async with await opened(tmp_path) as store:
        assert store.bounds_nowait(A).end == 1
    saved = tmp_path / f"sparrow.cut_off.{places[1]:020d}"
    assert b"3" in saved.read_bytes()
    assert str(saved) in caplog.text


async def test_a_damaged_record_leaves_a_gap_and_the_others_keep_their_offsets(tmp_path):
    store = await opened(tmp_path / "store")
    places = [store.append_nowait(A, [make_draft(f"{n} body")]).physical_offsets[0] for n in range(10)]
    copy = copy_as_crashed(store, tmp_path / "copy")
    await store.close()
    corrupt_log(copy, places[4] + 90, 4096)
    async with await opened(copy) as store:
        (hole,) = store.damage
        assert (hole.start, hole.end) == (places[4], places[5])
        assert store.bounds_nowait(A) == QueueBounds(0, 10)
        found = await store.read(A, 0)
        assert [message.queue_offset for message in decode_messages(found)] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert found.next_offset == 10


async def test_a_snapshot_of_lost_records_is_ignored_later(tmp_path):
    """The disk kept the snapshot but lost the end of the log; then the log grew past that position differently."""
    store = await opened(tmp_path / "store")
    end = store.written
    await store.catalog.put_topic(Topic(name="Lost"))
    checkpoint(store)
    copy = copy_as_crashed(store, tmp_path / "copy")
    await store.close()
    (copy / "sparrow.checkpoint").unlink()
    overwrite(segment_path(copy, 0), end, bytes(4096 - end))
    store = await opened(copy)
    assert set(await store.catalog.list_topics()) == {"A", "B"}
    await store.catalog.put_topic(Topic(name="New1"))
    await store.catalog.put_topic(Topic(name="New2"))
    again = copy_as_crashed(store, tmp_path / "again")
    await store.close()
    async with await opened(again) as store:
        assert set(await store.catalog.list_topics()) == {"A", "B", "New1", "New2"}


async def test_a_message_sent_while_its_topic_is_deleted_is_refused_or_dropped(tmp_path):
    async with await opened(tmp_path, small_settings(flush="sync")) as store:
        await store.append(A, [make_draft("0")])
        deleting = asyncio.ensure_future(store.catalog.delete_topic("A"))
        refused = 0
        while not deleting.done():
            try:
                store.append_nowait(A, [make_draft("late")])
            except UnknownTopic:
                refused += 1
            await asyncio.sleep(0)
        await deleting
        with pytest.raises(UnknownTopic):
            store.append_nowait(A, [make_draft("too late")])
        assert store.bounds_nowait(A) == QueueBounds(0, 0)
    shutil.rmtree(tmp_path / "consumequeue")
    async with await opened(tmp_path) as store:
        assert store.damage == []


async def test_only_the_store_writes_to_its_state_queue(tmp_path):
    """A message there would be read as a state record, and an invalid one would prevent the store from opening."""
    store = await opened(tmp_path)
    try:
        with pytest.raises(Refused):
            store.append_nowait(STATE_QUEUE, [make_draft("not a word")])
        with pytest.raises((Refused, IllegalName)):
            await store.catalog.put_topic(Topic(name=STATE_QUEUE.topic))
    finally:
        await store.close()
    async with await opened(tmp_path) as store:
        assert set(await store.catalog.list_topics()) == {"A", "B"}


async def test_half_messages_are_in_the_log_but_in_no_queue(tmp_path):
    store = await opened(tmp_path / "store")
    half = store.append_nowait(A, [make_draft("half", sys_flag=record.TRANSACTION_PREPARED)])
    store.append_nowait(A, [make_draft("rolled back", sys_flag=record.TRANSACTION_ROLLED_BACK)])
    store.append_nowait(A, [make_draft("committed", sys_flag=record.TRANSACTION_COMMITTED)])
    copy = copy_as_crashed(store, tmp_path / "copy")
    for found in (store, await opened(copy)):
        assert await read_all(found, A) == [b"committed"]
        assert record.decode(found._reader.record_at(half.physical_offsets[0])).body == b"half"
        assert await found.record_at(half.physical_offsets[0]) is None, "no queue says that a record starts there"
        await found.close()


async def test_a_refused_run_leaves_nothing_in_the_log(tmp_path):
    """Data beyond the end must not be recovered after a crash. Here: records for IPv4, and a store host of IPv6."""
    store = await opened(tmp_path / "store", store_host=Host(bytes(range(16)), 1))
    encoded = columns.encode(pa.array([bytes(50)] * 3, pa.binary()), topic="A")
    with pytest.raises(Refused):
        store.append_encoded_nowait(A, encoded.data, encoded.sizes)
    assert store.bounds_nowait(A) == QueueBounds(0, 0)
    end = store.written
    assert segment_path(store.path, 0).read_bytes()[end:] == bytes(4096 - end)
    await store.close()


async def test_an_encoded_run_is_appended_completely_or_not_at_all(tmp_path):
    async with await opened(tmp_path) as store:
        encoded = columns.encode(pa.array([bytes(50)] * 3, pa.binary()), topic="A")
        spoilt = bytearray(encoded.data)
        spoilt[-30] ^= 1
        for data, sizes, queue in (
            (bytes(spoilt), encoded.sizes, A),
            (encoded.data, encoded.sizes, B),
            (encoded.data, encoded.sizes[:2], A),
            (bytes(encoded.data)[:-1], encoded.sizes, A),
            (b"", [], A),
        ):
            end = store.written
            with pytest.raises(Refused):
                store.append_encoded_nowait(queue, data, sizes)
            assert store.written == end
        appended = store.append_encoded_nowait(A, encoded.data, encoded.sizes)
        assert (appended.offset, len(appended.physical_offsets)) == (0, 3)
        assert await read_all(store, A) == [bytes(50)] * 3


async def test_only_the_owner_can_read_a_new_store(tmp_path):
    with LogStore(tmp_path / "store") as store:
        await store.catalog.put_topic(Topic(name="T"))
        store.append_nowait(Queue("T", 0), [make_draft(b"x")])
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert {"sparrow.state", "00000000000000000000"} <= {path.name for path in files}
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []
