"""The log store: one commit log, and the views (consume queues, key index, state) that are built from it.

`append_nowait` and `read_nowait` are plain functions: the broker's hot path. The coroutines of the store interface add
what may take time: waiting for the disk, and cold reads in threads. Every change happens under one lock, held briefly;
slow work (file creation, sync, index, deletion) runs in the threads of the flusher and of the maintenance tasks.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from sparrow import clock
from sparrow.model.errors import Closed, Refused, SparrowError, StoreFailed, UnknownTopic
from sparrow.model.message import LOOPBACK_HOST, Draft, Host
from sparrow.model.queue import Queue, QueueBounds, QueueOffset
from sparrow.settings import LogSettings, Watermark
from sparrow.store.ledger_limits import checked_number, checked_scope
from sparrow.store.log import search
from sparrow.store.log.append.atomic_append import AtomicAppends
from sparrow.store.log.append.writer import GrowthListener
from sparrow.store.log.commit_log.log_scan import DamagedRange
from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue
from sparrow.store.log.directory_lock import DirectoryLock
from sparrow.store.log.group_progress import consumed_to
from sparrow.store.log.maintenance import LogMaintenance, disk_ratio
from sparrow.store.log.parts import build_parts
from sparrow.store.log.periodic_tasks import PeriodicTask, PeriodicTaskThread
from sparrow.store.log.recovery.recovery import recover
from sparrow.store.log.recovery.truncation import truncate_log
from sparrow.store.log.state.catalog import LogCatalog
from sparrow.store.log.state.group_offsets import LogGroupOffsets
from sparrow.store.log.state.marks import LogMarks
from sparrow.store.log.state.tokens import LogTokens
from sparrow.store.log.state.updates import StateUpdate
from sparrow.store.spi import AppendResult, BrokerStore, ReadLimits, ReadResult, StoreFiles
from sparrow.wire.queue_batches import QueueBatch

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_COLD_READERS = 4
_EMPTY = QueueBounds(QueueOffset(0), QueueOffset(0))
_KEY_BACKLOG_BYTES_MAX = 64 << 20
"""Memory for keys of encoded runs that are not in the key index yet; beyond it, the appending thread indexes them."""


class LogStore:
    """An open store directory. Only one process at a time can open it."""

    assigns_offsets_at_once = True
    deduplicates_sends = False
    remembers_tokens = False
    records_store_host = True
    all_topics_have_lanes = False

    def __init__(
        self,
        path: Path | str,
        settings: LogSettings | None = None,
        *,
        store_host: Host = LOOPBACK_HOST,
        on_growth: GrowthListener | None = None,
        archived_to: Callable[[], int | None] = lambda: None,
        now_ms: Callable[[], int] = clock.now_ms,
        disk_ratio: Callable[[Path], float] = disk_ratio,
    ) -> None:
        """Open or create the store, and repair what the last stop left incomplete. Blocks; not for the event loop.

        `store_host` is the address written into message ids. `on_growth` is called when readers may see more of a
        queue, in the thread that appended or flushed. `archived_to` returns the physical offset up to which an archive
        has everything (None: there is no archive).
        """
        self.path, self.settings = Path(path), settings or LogSettings()
        self._is_closed = False
        self._directory_lock = DirectoryLock(self.path)
        try:
            self._open(store_host, on_growth, archived_to, now_ms, disk_ratio)
        except BaseException:
            self._directory_lock.release(is_clean=False)
            raise
        self._flusher.start()
        self._maintenance_thread.start()
        self._segment_thread.start()

    def _open(
        self,
        store_host: Host,
        on_growth: GrowthListener | None,
        archived_to: Callable[[], int | None],
        now_ms: Callable[[], int],
        disk_ratio: Callable[[Path], float],
    ) -> None:
        found = recover(self.path, self.settings)
        self.damage: list[DamagedRange] = found.damage
        """Ranges of the log that recovery could not read."""
        self._log, self._queues, self._index = found.log, found.queues, found.index
        parts = build_parts(
            self.path,
            self.settings,
            found,
            store_host=store_host,
            on_growth=on_growth,
            now_ms=now_ms,
            on_failure=self._failed,
        )
        self._parts, self._writer, self._reader = parts, parts.writer, parts.reader
        self._flusher, self._state = parts.flusher, parts.state
        self.catalog = LogCatalog(self._state, self._wait_durable, self._delete_topic)
        self.tokens, self.marks = LogTokens(self._state, self._wait_durable), LogMarks(self._state)
        self.offsets = LogGroupOffsets(self._state.tables, self._writer.lock)
        self._atomic_appends = AtomicAppends(self._writer, self._state, self._appendable, self._failed)
        self._maintenance = LogMaintenance(parts, now_ms=now_ms, archived_to=archived_to, disk_ratio=disk_ratio)
        self._maintenance_thread = PeriodicTaskThread("maintenance", self._maintenance.tasks())
        # A thread of its own: pages must be ready and timeouts reported in time, however busy maintenance is.
        prepare = PeriodicTask("prepare segments", 0.05, self._log.prepare)
        expire = PeriodicTask("expire flush timeouts", 0.05, self._flusher.expire)
        self._segment_thread = PeriodicTaskThread("segments", [prepare, expire])
        self._log.on_pages_low = functools.partial(self._segment_thread.run_soon, "prepare segments")
        self._threads = ThreadPoolExecutor(_COLD_READERS, "sparrow-store")
        if found.is_unchanged:
            self._maintenance.trust_checkpoint()
        self._state.reload()
        self._directory_lock.mark_open()
        self._maintenance.watch_disk()
        self._maintenance.checkpoint()

    # -- the hot path: plain functions --------------------------------------------------------------------------------

    def append_nowait(self, queue: Queue, drafts: Sequence[Draft]) -> AppendResult:
        """Append a batch. It is written at once; `when_durable` tells when it is as safe as the policy promises."""
        return self._writer.append(self._appendable(queue), drafts)

    @property
    def message_bytes_max(self) -> int:
        return self.settings.message_bytes_max

    @property
    def encoded_appender(self) -> LogStore:
        """The store itself."""
        return self

    @property
    def files(self) -> StoreFiles:
        """The directory, its settings, and the range of the log on disk."""
        return StoreFiles(self.path, self.settings, self.first, self.watermark("durable"))

    def append_encoded_nowait(
        self, queue: Queue, data: bytes | memoryview, sizes: npt.ArrayLike, *, verify_crc: bool = True
    ) -> AppendResult:
        """Append records that `wire.columns.encode` laid out; `verify_crc=False` if this process encoded them."""
        self._index_keys_soon()
        return self._writer.append_encoded(
            self._appendable(queue), memoryview(data).cast("B"), np.asarray(sizes, np.int64), verify_crc=verify_crc
        )

    def read_nowait(self, queue: Queue, offset: int, **limits: Unpack[ReadLimits]) -> ReadResult | None:
        """Return what `read` returns, or None if that needs the disk."""
        if self._is_closed:
            raise Closed(f"the store {self.path}")
        return self._reader.read(self._queues.get(queue), offset, hot_only=True, **limits)

    def when_durable(self, end: int) -> asyncio.Future[None] | None:
        """Return a future that is done once the log is on disk up to `end`; None if the policy needs no wait."""
        return None if self.settings.flush == "async" else self._flusher.when_durable(end)

    def _appendable(self, queue: Queue) -> ConsumeQueue:
        found = self._queues.get(queue)
        if found is None:
            if queue.topic not in self._state.tables.topics:
                raise UnknownTopic(queue.topic)
            if not 0 <= queue.id < 1 << 31:
                raise Refused(f"queue id {queue.id} is out of range: use 0 to {(1 << 31) - 1}")
            with self._writer.lock:
                found = self._queues.get_or_create(queue)
        if found.is_internal:
            raise Refused(f"topic {queue.topic!r} is internal to the store: send to another topic")
        return found

    def _index_keys_soon(self) -> None:
        """Start indexing of keys that wait in memory; do it in this thread if there are too many."""
        held_bytes = self._writer.key_backlog.held_bytes
        if held_bytes > _KEY_BACKLOG_BYTES_MAX:
            self._index_keys()
        elif held_bytes:
            self._maintenance_thread.run_soon("index keys")

    def _index_keys(self) -> None:
        with self._maintenance_thread.paused():
            self._maintenance.catch_up_key_index()

    # -- the store interface ------------------------------------------------------------------------------------------

    async def append(self, queue: Queue, drafts: Sequence[Draft]) -> AppendResult:
        appended = self.append_nowait(queue, drafts)
        await self._wait_durable(appended.end)
        return appended

    async def append_atomically(
        self, scope: str, number: int, batches: Sequence[QueueBatch], *, verify_crc: bool = True
    ) -> bool:
        """See `Store.append_atomically`. Other appends wait while the records are copied."""
        checked_scope(scope)
        checked_number(number)
        if self._state.ledger_covers(scope, number):
            end = None
        else:
            end = await self._in_thread(self._append_atomically, scope, number, batches, verify_crc=verify_crc)
        # A repeated call must not return before the first append is as safe as the policy says.
        await self._wait_durable(self._state.tables.ledger_record_at(scope) + 1 if end is None else end)
        return end is not None

    def _append_atomically(
        self, scope: str, number: int, batches: Sequence[QueueBatch], *, verify_crc: bool
    ) -> int | None:
        self._index_keys_soon()
        runs = self._atomic_appends.parse(batches, verify_crc=verify_crc, keys_bytes_max=_KEY_BACKLOG_BYTES_MAX)
        end = self._atomic_appends.append(scope, number, runs)
        self._index_keys_soon()
        return end

    async def ledger(self, scope: str) -> int | None:
        noted = self._state.tables.ledger.get(scope)
        if noted is None:
            return None
        await self._wait_durable(self._state.tables.ledger_record_at(scope) + 1)
        return noted.number

    async def _wait_durable(self, end: int) -> None:
        future = self.when_durable(end)
        if future is not None:
            await future

    async def read(self, queue: Queue, offset: int, **limits: Unpack[ReadLimits]) -> ReadResult:
        result = self.read_nowait(queue, offset, **limits)
        if result is None:
            cold = functools.partial(self._reader.read, self._queues.get(queue), offset, hot_only=False, **limits)
            result = await self._in_thread(cold)
        assert result is not None, "only a hot read may decline"
        return result

    async def bounds(self, queue: Queue) -> QueueBounds:
        return self.bounds_nowait(queue)

    def bounds_nowait(self, queue: Queue) -> QueueBounds:
        found = self._queues.get(queue)
        return found.bounds if found is not None else _EMPTY

    async def offset_at(self, queue: Queue, time_ms: int, *, upper: bool = False) -> QueueOffset:
        found = self._queues.get(queue)
        if found is None:
            return QueueOffset(0)
        return await self._in_thread(search.offset_at, self._log, found, time_ms, upper=upper)

    async def find_by_key(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = 1 << 62
    ) -> list[bytes]:
        return await self._in_thread(self._find_by_key, topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)

    def _find_by_key(self, topic: str, key: str, *, limit: int, begin_ms: int, end_ms: int) -> list[bytes]:
        with self._maintenance_thread.paused():
            self._maintenance.catch_up_key_index()
            parts = self._index, self._reader, self._queues
            return search.find_by_key(*parts, topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)

    async def record_at(self, physical_offset: int) -> bytes | None:
        if physical_offset >= min(self.watermark(self.settings.visible_after), self._writer.hidden_from):
            return None
        return await self._in_thread(self._reader.record_at, physical_offset)

    # -- topics -------------------------------------------------------------------------------------------------------

    async def _delete_topic(self, name: str, updates: list[StateUpdate]) -> int:
        return await self._in_thread(self._drop_topic, name, updates)

    def _drop_topic(self, name: str, updates: list[StateUpdate]) -> int:
        # No checkpoint in between: it would include queues that the log says are deleted.
        with self._maintenance_thread.paused():
            with self._writer.lock:
                end = self._state.append(updates)
                self._queues.drop_topic(name)
            self._maintenance.checkpoint()
        return end

    def consumed_to(self, group: str) -> int | None:
        """Return the physical offset below which a group needs nothing of its topics; None if it reads no topic."""
        written = self._log.written
        offsets = self.offsets.of_group(group)
        return consumed_to(written, self._queues, offsets) if offsets else None

    # -- retention and replication ------------------------------------------------------------------------------------

    async def trim(self) -> int:
        """Delete expired segments now, and return how many bytes of log were deleted."""
        return await self._in_thread(self._trim)

    def _trim(self) -> int:
        with self._maintenance_thread.paused():
            return self._maintenance.trim()

    @property
    def first(self) -> int:
        """The physical offset of the oldest byte in the log."""
        return self._log.first

    @property
    def written(self) -> int:
        return self._log.written

    def watermark(self, name: Watermark) -> int:
        """Return the physical offset up to which the log is written, durable or replicated."""
        if name == "written":
            return self._log.written
        return self._writer.durable if name == "durable" else self._writer.replicated

    def replicated_to(self, physical_offset: int) -> None:
        """Move the `replicated` watermark: enough replicas have everything below the offset."""
        self._writer.advance_watermark("replicated", min(physical_offset, self._log.written))

    def raw(self, physical_offset: int, length_max: int) -> bytes:
        """Return bytes of the log as they are stored, from one segment."""
        return self._log.raw(physical_offset, length_max)

    def truncate(self, end: int) -> None:
        """Truncate the log at the end of a record, and every view with it. Blocks; not for the event loop.

        An atomic append that would lose its end is removed completely. Do not truncate below state updates that
        retention has rewritten since: they are the only copy.
        """
        with self._maintenance_thread.paused(), self._segment_thread.paused(), self._writer.lock:
            truncate_log(self._parts, self._maintenance, end)

    # -- failure and close --------------------------------------------------------------------------------------------

    def _failed(self, cause: Exception) -> SparrowError:
        error = StoreFailed(self.path, str(cause))
        with self._writer.lock:
            self._writer.refusal = error
        return error

    async def close(self) -> None:
        await asyncio.to_thread(self.close_blocking)

    def close_blocking(self) -> None:
        """Write everything to disk and close the files; the next start then has nothing to repair."""
        if self._is_closed:
            return
        self._is_closed = True
        self._maintenance_thread.stop()
        self._segment_thread.stop()
        self._threads.shutdown()
        is_clean = not isinstance(self._writer.refusal, StoreFailed)
        try:
            if is_clean:
                self._finish()
        except (OSError, SparrowError) as cause:
            is_clean = False
            log.error("store not closed cleanly; the next start repairs it", extra={"error": str(cause)})
        finally:
            self._writer.refusal = Closed(f"the store {self.path}")
            self._flusher.stop()
            self._log.close()
            self._directory_lock.release(is_clean=is_clean)

    def _finish(self) -> None:
        with self._writer.lock:
            with self._writer.allowing_full_disk():
                self._state.flush_offsets()
            self._writer.refusal = Closed(f"the store {self.path}")
        self._flusher.sync()
        self._maintenance.checkpoint()
        self._index.close()

    def __enter__(self) -> LogStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_blocking()

    async def __aenter__(self) -> LogStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _in_thread(self, work: Callable[..., _Result], *args: object, **named: object) -> _Result:
        if self._is_closed:
            raise Closed(f"the store {self.path}")
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(work, *args, **named))


_KEEPS_THE_SPI: type[BrokerStore] = LogStore
