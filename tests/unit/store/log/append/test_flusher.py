"""Group commit: when waiting appends return, and the effect of a failing disk."""

import asyncio
import threading

import pytest
from tests.support.drafts import decode_bodies, make_draft
from tests.support.log_stores import checkpoint, small_settings
from tests.support.wait import eventually

from sparrow.model.errors import FlushTimeout, StoreFailed
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore
from sparrow.store.log.commit_log.segment import Segment

Q = Queue("T", 0)
LATER_MS = 3_600_000


class Disk:
    """A disk whose syncs are counted, can fail, and can be delayed. All other calls are real."""

    def __init__(self, monkeypatch):
        self.open = threading.Event()
        self.open.set()
        self.syncs = 0
        self.failure: OSError | None = None
        real = Segment.sync

        def sync(segment):
            self.syncs += 1
            if threading.current_thread().name == "sparrow-flush":
                self.open.wait(10)
            if self.failure is not None:
                raise self.failure
            real(segment)

        monkeypatch.setattr(Segment, "sync", sync)


@pytest.fixture
def disk(monkeypatch):
    disk = Disk(monkeypatch)
    yield disk
    disk.open.set()


async def opened(path, **changes) -> LogStore:
    store = await asyncio.to_thread(LogStore, path, small_settings(flush="sync", flush_interval_ms=LATER_MS, **changes))
    await store.catalog.put_topic(Topic(name="T"))
    return store


async def test_appends_during_a_sync_share_the_next_sync_and_return_in_order(tmp_path, disk):
    async with await opened(tmp_path) as store:
        disk.open.clear()
        before = disk.syncs
        released: list[int] = []
        tasks = []
        for n in range(20):
            tasks.append(asyncio.ensure_future(store.append(Q, [make_draft(f"{n}")])))
            tasks[-1].add_done_callback(lambda _, n=n: released.append(n))
        await eventually(lambda: disk.syncs > before and store.written > store.watermark("durable"))
        assert released == []
        disk.open.set()
        appended = await asyncio.gather(*tasks)
        assert released == list(range(20))
        assert [a.offset for a in appended] == list(range(20))
        assert disk.syncs - before <= 3, "appends during a flush must share the next one"
        assert store.watermark("durable") == store.written


async def test_appends_share_a_future_until_the_sync_for_it_starts(tmp_path, disk):
    async with await opened(tmp_path) as store:
        disk.open.clear()
        before = disk.syncs
        first = [store.when_durable(store.append_nowait(Q, [make_draft(f"{n}")]).end) for n in range(3)]
        assert len(set(first)) == 1, "a message must not need a future of its own"
        await eventually(lambda: disk.syncs > before)
        second = store.when_durable(store.append_nowait(Q, [make_draft("during the sync")]).end)
        assert second is not first[0]
        synced_to = []
        first[0].add_done_callback(lambda _: synced_to.append(store.watermark("durable")))
        disk.open.set()
        await asyncio.wait_for(asyncio.gather(first[0], second), 30)
        assert synced_to[0] > 0
        assert store.watermark("durable") == store.written


async def test_a_cancelled_append_leaves_the_others_of_its_group_alone(tmp_path, disk):
    async with await opened(tmp_path) as store:
        disk.open.clear()
        tasks = [asyncio.ensure_future(store.append(Q, [make_draft(f"{n}")])) for n in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        assert not tasks[0].done()
        disk.open.set()
        first, cancelled, last = await asyncio.gather(*tasks, return_exceptions=True)
        assert (first.offset, last.offset) == (0, 2)
        assert isinstance(cancelled, asyncio.CancelledError)


async def test_durable_data_is_not_waited_for(tmp_path):
    async with await opened(tmp_path) as store:
        appended = await store.append(Q, [make_draft("x")])
        assert store.when_durable(appended.end) is None


async def test_the_asynchronous_policy_waits_for_nothing_and_flushes_soon(tmp_path):
    with LogStore(tmp_path, small_settings(flush_interval_ms=5)) as store:
        await store.catalog.put_topic(Topic(name="T"))
        appended = store.append_nowait(Q, [make_draft("x")])
        assert store.when_durable(appended.end) is None
        await eventually(lambda: store.watermark("durable") >= appended.end)


async def test_a_slow_disk_raises_flush_timeout_and_the_message_is_still_written(tmp_path, disk):
    async with await opened(tmp_path, flush_timeout_ms=500) as store:
        disk.open.clear()
        with pytest.raises(FlushTimeout):
            await store.append(Q, [make_draft("late")])
        assert decode_bodies(await store.read(Q, 0)) == [b"late"], "the message must be written anyway"
        disk.open.set()
        await eventually(lambda: store.watermark("durable") == store.written)


async def test_after_a_failed_sync_all_waiting_appends_fail_and_no_more_are_accepted(tmp_path, disk):
    store = await opened(tmp_path)
    await store.append(Q, [make_draft("safe")])
    disk.open.clear()
    disk.failure = OSError(5, "Input/output error")
    tasks = [asyncio.ensure_future(store.append(Q, [make_draft(f"{n}")])) for n in range(3)]
    await asyncio.sleep(0)
    disk.open.set()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, StoreFailed)
    disk.failure = None  # a second sync would succeed although data is lost
    with pytest.raises(StoreFailed):
        await store.append(Q, [make_draft("no")])
    with pytest.raises(StoreFailed):
        await store.catalog.put_topic(Topic(name="no"))
    assert decode_bodies(await store.read(Q, 0))[0] == b"safe", "reads must still work"
    await store.close()
    assert (tmp_path / "abort").exists(), "the shutdown must not count as clean"


async def test_a_failed_sync_of_the_maintenance_thread_stops_the_store_too(tmp_path, disk):
    """The kernel reports a failed write-back once. The thread that gets the error must stop the whole store."""
    store = await asyncio.to_thread(LogStore, tmp_path, small_settings(flush="async", flush_interval_ms=LATER_MS))
    try:
        await store.catalog.put_topic(Topic(name="T"))
        store.append_nowait(Q, [make_draft("x")])
        disk.failure = OSError(5, "Input/output error")
        with store._threads.maintenance.paused(), pytest.raises((OSError, StoreFailed)):
            checkpoint(store)
        disk.failure = None
        with pytest.raises(StoreFailed):
            store.append_nowait(Q, [make_draft("y")])
    finally:
        await store.close()


async def test_truncating_the_log_during_a_sync_does_not_stop_the_flusher(tmp_path, disk):
    async with await opened(tmp_path) as store:
        end = (await store.append(Q, [make_draft("stays")])).end
        disk.open.clear()
        before = disk.syncs
        lost = asyncio.ensure_future(store.append(Q, [make_draft("goes")]))
        await eventually(lambda: disk.syncs > before)
        cut = asyncio.ensure_future(asyncio.to_thread(store.replica.truncate, end))
        await eventually(lambda: store.written == end)
        disk.open.set()
        await asyncio.gather(cut, lost, return_exceptions=True)
        appended = await asyncio.wait_for(store.append(Q, [make_draft("next")]), 12)
        assert appended.offset == 1
        assert store.watermark("durable") >= appended.end
