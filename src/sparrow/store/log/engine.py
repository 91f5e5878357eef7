"""The log store: one commit log, and the views (consume queues, key index, state) that are built from it.

`append_nowait` and `read_nowait` are plain functions: the broker's hot path. The coroutines of the store interface add
what may take time: waiting for the disk, and cold reads in threads. Every change happens under one lock, held briefly;
slow work (file creation, sync, index, deletion) runs in the threads of the flusher and of the maintenance tasks.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

import numpy as np
import numpy.typing as npt

from sparrow import clock
from sparrow.model.errors import Closed, Refused, SparrowError, StorageError, StoreFailed, UnknownTopic
from sparrow.model.message import LOOPBACK_HOST, Draft, Host
from sparrow.model.queue import Queue, QueueBounds, QueueOffset
from sparrow.settings import LogSettings, Watermark
from sparrow.store.ledger_limits import checked_number, checked_scope
from sparrow.store.log import search
from sparrow.store.log.append.atomic_append import AtomicAppends
from sparrow.store.log.append.batch_append import append_batch
from sparrow.store.log.append.writer import GrowthListener
from sparrow.store.log.commit_log.log_scan import DamagedRange
from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue
from sparrow.store.log.directory_lock import DirectoryLock
from sparrow.store.log.group_progress import consumed_to
from sparrow.store.log.key_index.key_indexer import KEY_BACKLOG_BYTES_MAX, KeyIndexer
from sparrow.store.log.maintenance import LogMaintenance, disk_ratio
from sparrow.store.log.parts import build_parts
from sparrow.store.log.recovery.recovery import recover
from sparrow.store.log.replica import LogReplica
from sparrow.store.log.state.catalog import LogCatalog
from sparrow.store.log.state.group_offsets import LogGroupOffsets
from sparrow.store.log.state.marks import LogMarks
from sparrow.store.log.state.tokens import LogTokens
from sparrow.store.log.threads import LogThreads
from sparrow.store.spi import AppendResult, BatchFields, BrokerStore, ReadLimits, ReadResult, StoreFiles, wait_durable
from sparrow.wire.columns.batch import batch_to_records
from sparrow.wire.queue_batches import QueueBatch

log = logging.getLogger(__name__)

_COLUMNAR_BATCH_MIN = 600
"""With this many messages or more in a batch, judged by the size of its first, encoding columns is faster than encoding
one message after the other."""
_EMPTY = QueueBounds(QueueOffset(0), QueueOffset(0))


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
        steady_ms: Callable[[], int] | None = None,
        disk_ratio: Callable[[Path], float] = disk_ratio,
        follows: bool = False,
    ) -> None:
        """Open or create the store, and repair what the last stop left incomplete. Blocks; not for the event loop.

        `store_host` is the address written into message ids. `on_growth` is called when readers may see more of a
        queue, in the thread that appended or flushed. `archived_to` returns the physical offset up to which an archive
        has everything (None: there is no archive). `steady_ms` is a clock that nobody sets, by which jumps of `now_ms`
        are noticed; without it, jumps of another clock than the system's are believed. `follows`: the store writes
        nothing of its own (`replica`).
        """
        self.path, self.settings = Path(path), settings or LogSettings()
        self._is_closed = False
        self._directory_lock = DirectoryLock(self.path)
        try:
            steady_ms = steady_ms or (clock.steady_ms if now_ms is clock.now_ms else now_ms)
            self._open(store_host, on_growth, archived_to, now_ms, steady_ms, disk_ratio, follows=follows)
        except BaseException as cause:
            self._directory_lock.release(is_clean=False)
            if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageError(
                    f"the disk has no space to open the store in {self.path}: free some space, and start again. "
                    "No message is lost."
                ) from cause
            raise
        self._flusher.start()
        self._threads.start()

    def _open(
        self,
        store_host: Host,
        on_growth: GrowthListener | None,
        archived_to: Callable[[], int | None],
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        disk_ratio: Callable[[Path], float],
        *,
        follows: bool,
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
            is_replica=follows,
        )
        self._writer, self._reader = parts.writer, parts.reader
        self._flusher, self._state = parts.flusher, parts.state
        self.tokens, self.marks = LogTokens(self._state, self._wait_durable), LogMarks(self._state)
        self.offsets = LogGroupOffsets(self._state, self._writer.lock, self._wait_durable)
        self._atomic_appends = AtomicAppends(self._writer, self._state, self._appendable, self._failed)
        self._maintenance = LogMaintenance(
            parts, now_ms=now_ms, steady_ms=steady_ms, archived_to=archived_to, disk_ratio=disk_ratio
        )
        self._threads = LogThreads(parts, self._maintenance)
        self._key_indexer = KeyIndexer(parts, self._maintenance, self._threads)
        self.catalog = LogCatalog(parts, self._maintenance, self._threads, self._wait_durable)
        self.replica = LogReplica(parts, self._maintenance, self._threads.paused)
        if found.is_unchanged:
            self._maintenance.trust_checkpoint()
        if follows:
            self.replica.follow()
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
    def batch_appender(self) -> LogStore:
        """The store itself."""
        return self

    @property
    def files(self) -> StoreFiles:
        """The directory, its settings, and the range of the log on disk."""
        return StoreFiles(self.path, self.settings, self.first, self.watermark("durable"), self._flusher.durations)

    def append_batch_nowait(
        self, queue: Queue, batch: bytes | memoryview, common: BatchFields, *, messages_max: int = sys.maxsize
    ) -> AppendResult:
        """Append the messages of a batch send, by columns if there are many."""
        size = max(int.from_bytes(batch[:4], "big"), 1)
        if len(batch) // size < _COLUMNAR_BATCH_MIN:
            appended = append_batch(
                self._writer, self._appendable(queue), bytes(batch), common, messages_max=messages_max
            )
            if appended is not None:
                return appended
        encoded = batch_to_records(
            batch,
            topic=queue.topic,
            store_host_bytes=len(self._writer.store_host),
            messages_max=messages_max,
            **common._asdict(),
        )
        return self.append_encoded_nowait(queue, encoded.data, encoded.sizes, verify_crc=False)

    def append_encoded_nowait(
        self, queue: Queue, data: bytes | memoryview, sizes: npt.ArrayLike, *, verify_crc: bool = True
    ) -> AppendResult:
        """Append records that `wire.columns.encode` laid out; `verify_crc=False` if this process encoded them."""
        self._key_indexer.run_soon()
        return self._writer.append_encoded(
            self._appendable(queue), memoryview(data).cast("B"), np.asarray(sizes, np.int64), verify_crc=verify_crc
        )

    def read_nowait(self, queue: Queue, offset: int, **limits: Unpack[ReadLimits]) -> ReadResult | None:
        """Return what `read` returns, or None if that needs the disk."""
        if self._is_closed:
            raise Closed(f"the store {self.path}")
        return self._reader.read(self._queues.get(queue), offset, nowait=True, **limits)

    def when_durable(self, end: int) -> asyncio.Future[None] | None:
        """Return a future that is done once the log is on disk, or committed, up to `end`; None if there is no wait."""
        if self.replica.when_committed is not None:
            return self.replica.when_committed(end)
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

    # -- the store interface ------------------------------------------------------------------------------------------

    async def append(self, queue: Queue, drafts: Sequence[Draft]) -> AppendResult:
        appended = self.append_nowait(queue, drafts)
        await self._wait_durable(appended.end)
        return appended

    async def append_atomically(
        self, scope: str, number: int, batches: Sequence[QueueBatch], *, verify_crc: bool = True, token: int = 0
    ) -> bool:
        """See `Store.append_atomically`. Other appends wait while the records are copied."""
        checked_scope(scope)
        checked_number(number)
        if self._state.ledger_covers(scope, number):
            end = None
        else:
            end = await self._threads.run(self._append_atomically, scope, number, batches, verify_crc=verify_crc)
        # A repeated call must not return before the first append is as safe as the policy says.
        await self._wait_durable(self._state.tables.ledger_record_at(scope) + 1 if end is None else end)
        return end is not None

    def _append_atomically(
        self, scope: str, number: int, batches: Sequence[QueueBatch], *, verify_crc: bool
    ) -> int | None:
        self._key_indexer.run_soon()
        runs = self._atomic_appends.parse(batches, verify_crc=verify_crc, keys_bytes_max=KEY_BACKLOG_BYTES_MAX)
        end = self._atomic_appends.append(scope, number, runs)
        self._key_indexer.run_soon()
        return end

    async def ledger(self, scope: str) -> int | None:
        noted = self._state.tables.ledger.get(scope)
        if noted is None:
            return None
        await self._wait_durable(self._state.tables.ledger_record_at(scope) + 1)
        return noted.number

    async def _wait_durable(self, end: int) -> None:
        await wait_durable(self, end)

    async def read(self, queue: Queue, offset: int, **limits: Unpack[ReadLimits]) -> ReadResult:
        result = self.read_nowait(queue, offset, **limits)
        if result is None:
            cold = functools.partial(self._reader.read, self._queues.get(queue), offset, nowait=False, **limits)
            result = await self._threads.run(cold)
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
        return await self._threads.run(search.offset_at, self._log, found, time_ms, upper=upper)

    async def find_by_key(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = 1 << 62
    ) -> list[bytes]:
        return await self._threads.run(self._find_by_key, topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)

    def _find_by_key(self, topic: str, key: str, *, limit: int, begin_ms: int, end_ms: int) -> list[bytes]:
        with self._key_indexer.complete_index() as index:
            parts = index, self._reader, self._queues
            return search.find_by_key(*parts, topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)

    async def record_at(self, physical_offset: int) -> bytes | None:
        if physical_offset >= min(self.watermark(self.settings.visible_after), self._writer.hidden_from):
            return None
        return await self._threads.run(search.record_at, self._log, self._reader, self._queues, physical_offset)

    def consumed_to(self, group: str) -> int | None:
        """Return the physical offset below which a group needs nothing of its topics; None if it reads no topic."""
        offsets = self.offsets.of_group(group)
        return consumed_to(self._log.written, self._queues, offsets) if offsets else None

    # -- retention and replication ------------------------------------------------------------------------------------

    async def trim(self) -> int:
        """Delete expired segments now, and return how many bytes of log were deleted."""
        return await self._threads.run(self._trim)

    def _trim(self) -> int:
        with self._threads.maintenance.paused():
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

    def raw(self, physical_offset: int, length_max: int) -> bytes:
        """Return bytes of the log as they are stored, from one segment."""
        return self._log.raw(physical_offset, length_max)

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
        self._threads.stop()
        is_clean = not isinstance(self._writer.refusal, StoreFailed)
        try:
            if is_clean:
                self._finish()
        except (OSError, SparrowError) as cause:
            is_clean = False
            log.error("the store is not closed cleanly: %(error)s; the next start repairs it", {"error": cause})
        finally:
            self._writer.refusal = Closed(f"the store {self.path}")
            self._flusher.stop()
            self._log.close()
            self._directory_lock.release(is_clean=is_clean)

    def _finish(self) -> None:
        with self._writer.lock:
            with self._writer.allowing_full_disk():
                self._state.flush_offsets_if_possible()
                self._state.discard_unflushed_offsets()
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


_KEEPS_THE_SPI: type[BrokerStore] = LogStore
