"""A full disk: appends are refused, reads continue, and space that becomes free is used."""

import asyncio
import errno
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.drafts import decode_bodies, make_draft
from tests.support.log_stores import copy_as_crashed, small_settings
from tests.support.wait import eventually

from sparrow.model.errors import SparrowError, StorageError, StoreFull
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.settings import GIB, MIB, LogSettings
from sparrow.store.log import LogStore
from sparrow.store.log.commit_log import commit_log, mapped_pages

Q = Queue("T", 0)
DISK_BYTES = 256 * 1024
SEGMENT_BYTES = 16 * 1024


class Small:
    """A small file system: a real one if it can be mounted, else an allocator that counts."""

    def __init__(self, path, monkeypatch, size):
        self.path, self.size = path, size
        self._limit = None
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, check=False
        )
        self.is_real = mounted.returncode == 0
        if not self.is_real:
            self._limit = size
            monkeypatch.setattr(mapped_pages, "allocate", self._allocate)

    def _allocate(self, fd: int, at: int, length: int) -> None:
        used = sum(
            512 * file.stat().st_blocks for file in self.path.rglob("*") if file.is_file() and "log" in str(file)
        )
        if used + length > self._limit:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.posix_fallocate(fd, at, length)

    def fill(self) -> None:
        """Use all space for further segments."""
        if not self.is_real:
            self._limit = 0
            return
        with open(self.path / "ballast", "wb") as file:
            free = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
            os.posix_fallocate(file.fileno(), 0, free)

    def allocate(self) -> None:
        self._limit = self.size
        (self.path / "ballast").unlink(missing_ok=True)

    def grow(self, size: int) -> None:
        self._limit = size
        if self.is_real:
            subprocess.run(["mount", "-o", f"remount,size={size}", str(self.path)], check=True)

    def leave(self) -> None:
        if self.is_real:
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)


@contextmanager
def small_disk(path, monkeypatch, size=DISK_BYTES):
    disk = Small(path, monkeypatch, size)
    try:
        yield disk
    finally:
        disk.leave()


async def append_until_full(store: LogStore, body_bytes: int = 500) -> int:
    """Append until the store is full, and return the number of messages."""
    for n in range(10_000):
        try:
            store.append_nowait(Q, [make_draft(b"%06d" % n + bytes(body_bytes), keys=f"k{n}")])
        except StoreFull:
            return n
    raise AssertionError("the disk is never full")


async def test_a_full_filesystem_refuses_appends_serves_reads_and_recovers(tmp_path, monkeypatch):
    with small_disk(tmp_path, monkeypatch) as disk:
        settings = small_settings(segment_bytes=SEGMENT_BYTES)
        store = await asyncio.to_thread(LogStore, tmp_path / "store", settings)
        try:
            await store.catalog.put_topic(Topic(name="T"))
            disk.fill()
            count = await append_until_full(store)
            assert count > 0
            with pytest.raises(StoreFull):
                await store.append(Q, [make_draft(bytes(2000))])
            read, offset = [], 0
            while offset < count:
                found = await store.read(Q, offset)
                read, offset = read + decode_bodies(found), found.next_offset
            assert [int(body[:6]) for body in read] == list(range(count))
            disk.allocate()

            def is_taken() -> bool:
                try:
                    return store.append_nowait(Q, [make_draft(b"again" + bytes(2000))]).offset == count
                except StoreFull:
                    return False

            await eventually(is_taken)
            assert decode_bodies(await store.read(Q, count))[0][:5] == b"again"
        finally:
            await store.close()
        with LogStore(tmp_path / "store", settings) as store:
            assert store.bounds_nowait(Q).end == count + 1
            assert len(await store.find_by_key("T", f"k{count - 1}")) == 1


async def test_a_store_closed_on_a_full_disk_releases_its_directory_and_loses_nothing(tmp_path, monkeypatch):
    with small_disk(tmp_path, monkeypatch) as disk:
        # Slots are the largest part of an index that was never written.
        settings = small_settings(segment_bytes=SEGMENT_BYTES, index_slots=4096, index_entries=64)
        store = await asyncio.to_thread(LogStore, tmp_path / "store", settings)
        await store.catalog.put_topic(Topic(name="T"))
        await store.offsets.commit("g", Q, 1)
        disk.fill()
        count = await append_until_full(store)
        try:
            await store.close()
        except (OSError, SparrowError):
            pytest.fail("close must not raise")
        disk.allocate()
        with LogStore(tmp_path / "store", settings) as store:
            assert store.bounds_nowait(Q).end == count


async def test_a_store_that_has_no_space_to_open_says_so_and_opens_when_it_has(tmp_path, monkeypatch):
    with small_disk(tmp_path, monkeypatch, 16 << 20) as disk:
        if not disk.is_real:
            pytest.skip("no file system can be mounted here")
        settings = small_settings(segment_bytes=1 << 20, index_entries=1000)
        async with await asyncio.to_thread(LogStore, tmp_path / "store", settings) as store:
            await store.catalog.put_topic(Topic(name="T"))
            for number in range(3000):
                store.append_nowait(Q, [make_draft(bytes(500), keys=f"k{number}")])
            crashed = copy_as_crashed(store, tmp_path / "crashed")
        disk.fill()
        with pytest.raises(StorageError, match="free some space, and start again"):
            await asyncio.to_thread(LogStore, crashed, settings)
        disk.allocate()
        with LogStore(crashed, settings) as store:
            assert store.bounds_nowait(Q).end == 3000
            assert len(await store.find_by_key("T", "k2999")) == 1


@pytest.mark.parametrize("ahead_bytes", [None, 64 * 1024])
async def test_a_segment_larger_than_the_disk_is_filled_until_the_disk_is_full(tmp_path, monkeypatch, ahead_bytes):
    """Its blocks are reserved before they are written: a write into a hole of the mapping would kill this process."""
    if ahead_bytes is not None:
        monkeypatch.setattr(commit_log, "_RESERVE_BYTES_MIN", ahead_bytes)
    settings = small_settings(
        segment_bytes=256 << 20, message_bytes_max=1 << 20, queue_file_entries=1000, index_entries=1000
    )
    with small_disk(tmp_path, monkeypatch, 8 << 20) as disk:
        store = await asyncio.to_thread(LogStore, tmp_path / "store", settings)
        try:
            await store.catalog.put_topic(Topic(name="T"))
            assert (tmp_path / "store/commitlog" / f"{0:020d}").stat().st_size == 256 << 20
            count = await append_until_full(store, 100_000)
            assert count > 50, "nearly everything is used"
            with pytest.raises(StoreFull, match="no space"):
                await store.append(Q, [make_draft(bytes(200_000))])
            found = await store.read(Q, count - 1)
            assert decode_bodies(found)[0][:6] == b"%06d" % (count - 1)
        finally:
            await store.close()
        disk.grow(16 << 20)
        with LogStore(tmp_path / "store", settings) as store:
            assert store.bounds_nowait(Q).end == count
            assert store.append_nowait(Q, [make_draft(bytes(200_000))]).offset == count


def allocated_bytes(folder: Path) -> int:
    return sum(512 * file.stat().st_blocks for file in folder.rglob("*") if file.is_file())


async def test_a_new_store_takes_little_disk_unless_told_to_preallocate(tmp_path):
    async with await asyncio.to_thread(LogStore, tmp_path / "sparse", LogSettings()) as store:
        await store.catalog.put_topic(Topic(name="T"))
        store.append_nowait(Q, [make_draft("x", keys="k")])
        assert len(await store.find_by_key("T", "k")) == 1
        store._log.prepare()
        assert (tmp_path / "sparse/commitlog" / f"{0:020d}").stat().st_size == GIB, "RocketMQ's size"
    assert allocated_bytes(tmp_path / "sparse") < 32 * MIB
    settings = LogSettings(segment_bytes=64 * MIB, preallocate=True, warm_bytes=0)
    async with await asyncio.to_thread(LogStore, tmp_path / "full", settings) as store:
        await store.catalog.put_topic(Topic(name="T"))
        assert allocated_bytes(tmp_path / "full") >= 64 * MIB


class Gauge:
    """The fill ratio that the disk reports."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio

    def __call__(self, _path) -> float:
        return self.ratio


RATIOS = {"disk_clean_ratio": 0.75, "disk_force_ratio": 0.85, "disk_refuse_ratio": 0.90}


async def test_appends_are_refused_above_one_ratio_and_accepted_again_below_another(tmp_path):
    gauge = Gauge(0.5)
    with LogStore(tmp_path, small_settings(**RATIOS), disk_ratio=gauge) as store:
        await store.catalog.put_topic(Topic(name="T"))
        for ratio, is_taken in [(0.90, True), (0.91, False), (0.88, False), (0.85, True), (0.88, True), (0.95, False)]:
            gauge.ratio = ratio
            store._maintenance.watch_disk()
            if is_taken:
                store.append_nowait(Q, [make_draft("x")])
            else:
                with pytest.raises(StoreFull):
                    store.append_nowait(Q, [make_draft("x")])
                assert decode_bodies(await store.read(Q, 0))
        await store.offsets.commit("g", Q, 2)
    with LogStore(tmp_path, small_settings(**RATIOS), disk_ratio=gauge) as store:
        assert await store.offsets.committed("g", Q) == 2, "committed offsets must still be written at the end"
        with pytest.raises(StoreFull):
            store.append_nowait(Q, [make_draft("x")])


async def test_refused_appends_leave_nothing_in_memory(tmp_path):
    """They raise one error, whose traceback must not grow: it would keep the frames of all, with their bodies."""
    gauge = Gauge(0.5)
    with LogStore(tmp_path, small_settings(**RATIOS), disk_ratio=gauge) as store:
        await store.catalog.put_topic(Topic(name="T"))
        gauge.ratio = 0.95
        store._maintenance.watch_disk()
        lengths = set()
        for number in range(100):
            with pytest.raises(StoreFull) as refused:
                await store.append(Q, [make_draft(b"%d" % number)])
            lengths.add(len(refused.traceback))
        assert len(lengths) == 1, f"the traceback grows up to {max(lengths)} frames"


async def test_the_maintenance_thread_watches_the_disk(tmp_path):
    gauge = Gauge(0.5)
    with LogStore(tmp_path, small_settings(**RATIOS), disk_ratio=gauge) as store:
        await store.catalog.put_topic(Topic(name="T"))
        gauge.ratio = 0.95

        def is_refused() -> bool:
            try:
                store.append_nowait(Q, [make_draft("x")])
            except StoreFull:
                return True
            return False

        await eventually(is_refused)
        gauge.ratio = 0.5
        await eventually(lambda: not is_refused())


async def test_a_store_too_full_for_appends_can_still_delete_old_segments(tmp_path):
    """Otherwise it would stay full: the state in the oldest segment must be appended again before it is deleted."""
    gauge = Gauge(0.5)
    with LogStore(tmp_path, small_settings(**RATIOS), disk_ratio=gauge) as store:
        await store.catalog.put_topic(Topic(name="T"))
        for _ in range(5):
            store.append_nowait(Q, [make_draft(bytes(2000))])
        gauge.ratio = 0.95
        store._maintenance.watch_disk()
        assert await store.trim() == 4096
        assert set(await store.catalog.list_topics()) == {"T"}
        with pytest.raises(StoreFull):
            store.append_nowait(Q, [make_draft("x")])
