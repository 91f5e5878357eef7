"""Copies the log of an Apache master into a store that follows, over the HA port, until it is stopped.

1. Only durable bytes are acknowledged: a SYNC_MASTER may count our acknowledgement as its only copy.
2. A connection that ends anywhere, even inside a record, is opened again; the copy continues at the last whole record.
3. If the master has deleted what we need next, the copy starts again at the master's first byte.
4. Work on the store runs in threads, and no step begins before those of a cancelled one have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable

from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import ConnectionLost, ProtocolError, SparrowError
from sparrow.net.address import Address
from sparrow.replication.rocketmq.ha_session import HaSession, starting_point
from sparrow.replication.rocketmq.master_client import MasterPosition, RocketMQMasterClient
from sparrow.store.log import LogStore

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_COMPARED_BYTES = 4096
_CONNECT_TIMEOUT_S = 5.0
_TICK_S = 0.5
_POSITION_INTERVAL_S = 2.0
_RATE_WINDOW_S = 5.0


class LogCopy:
    """The running copy. `start` and `stop` it on one event loop."""

    def __init__(
        self,
        store: LogStore,
        master: RocketMQMasterClient,
        ha_address: Address,
        *,
        retry_s: float = 1.0,
    ) -> None:
        """Prepare the copy. The store was opened with `follows=True`, and has the master's segment size."""
        self._store, self._master, self._ha_address, self._retry_s = store, master, ha_address, retry_s
        self._failures = LogIntervals()
        self._task: asyncio.Task[None] | None = None
        self._grown, self._synced = asyncio.Event(), asyncio.Event()
        self._rates: deque[tuple[float, int]] = deque()
        self._threads: set[asyncio.Future[object]] = set()
        self.position = MasterPosition(0, 0)
        """Where the master's log began and ended when it was last asked."""
        self.error: str | None = None
        """Why nothing is copied at the moment; None while it is."""
        self.restarts = 0
        """How often everything was copied again, because the master had deleted what was needed next."""

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to copy, if it is not running."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop to copy, and make durable what has arrived."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._end_threads()
        self._store.replica.discard_incomplete()
        await self._sync()

    @property
    def end(self) -> int:
        """Up to where the log is copied, durably."""
        return int(self._store.watermark("durable"))

    @property
    def bytes_behind(self) -> int:
        """How many bytes the master had more, when it was last asked."""
        return max(0, self.position.end - self.end)

    @property
    def bytes_per_s(self) -> float:
        """The speed of the copy in the last seconds."""
        if len(self._rates) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._rates[0], self._rates[-1]
        return max(0, last - first) / max(last_s - first_s, 1e-3)

    async def reach(self, physical_offset: int) -> None:
        """Wait until the log is copied up to an offset."""
        while self.end < physical_offset:
            self._synced.clear()
            await self._synced.wait()

    async def update_position(self) -> MasterPosition:
        """Ask the master where its log begins and ends."""
        self.position = await self._master.position()
        return self.position

    # -- the copy -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._copy()
            except (SparrowError, OSError) as error:
                self.error = str(error)
                if self._failures.is_due("copy", type(error)):
                    log.warning(
                        "the log of %(master)s cannot be copied: %(error)s; trying again",
                        {"master": self._master.address, "error": error},
                    )
            except Exception as error:  # a bug of ours, or bytes that nobody has thought of: the copy must not end
                self.error = f"{type(error).__name__}: {error}"
                log.exception("the copy of the log of %(master)s failed", {"master": self._master.address})
            await asyncio.sleep(self._retry_s)

    async def _copy(self) -> None:
        """Copy over one connection, until it ends."""
        replica = self._store.replica
        await self._end_threads()
        replica.discard_incomplete()
        await self._sync()
        position = await self.update_position()
        start = starting_point(self.end, master_first=position.first, master_end=position.end)
        if start != self.end:
            if self._store.written > self._store.first:
                self.restarts += 1
                log.warning(
                    "the master has deleted its log before %(first)s, and ours ends at %(end)s: everything is copied "
                    "again",
                    {"first": start, "end": self.end},
                )
            await self._in_thread(replica.restart_at, start)
        if position.end == 0:
            self.error = None
            return  # 4.9 closes a connection that reports more than it has
        reader, writer = await self._connect()
        tasks: list[asyncio.Task[None]] = []
        try:
            session = HaSession(self.end, time.monotonic(), tail=self._tail())
            writer.write(session.first_report)
            tasks = [
                asyncio.create_task(self._receive(session, reader)),
                asyncio.create_task(self._acknowledge(session, writer)),
                asyncio.create_task(self._watch(session)),
            ]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                return await asyncio.open_connection(*self._ha_address, limit=_READ_BYTES)
        except OSError as cause:  # a timeout is one, too
            why = f"{cause.strerror or 'no connection'}; check the HA port of the master, and the firewall"
            raise ConnectionLost(str(self._ha_address), why) from cause

    async def _receive(self, session: HaSession, reader: asyncio.StreamReader) -> None:
        """Append what the master sends. Raises `ConnectionLost` when it closes the connection."""
        while data := await reader.read(_READ_BYTES):
            found = session.take(data, time.monotonic())
            if found is not None:
                await self._in_thread(self._store.replica.append, found.offset, found.data)
                self._grown.set()
            self.error = None
            if self._failures.end("copy"):
                log.info("the log of %(master)s is copied again", {"master": self._master.address})
        raise ConnectionLost(str(self._ha_address), "the master has closed it")

    async def _acknowledge(self, session: HaSession, writer: asyncio.StreamWriter) -> None:
        """Make the log durable whenever it has grown, and report it."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._grown.wait()
            self._grown.clear()
            await self._sync()
            now_s = time.monotonic()
            self._note_rate(now_s)
            report = session.report(self.end, now_s)
            if report is not None:
                writer.write(report)
                await writer.drain()
            if session.is_lost(now_s):
                raise ConnectionLost(str(self._ha_address), "the master is silent")

    async def _watch(self, session: HaSession) -> None:
        """Compare positions with the master, and delete what it has deleted."""
        while True:
            await asyncio.sleep(_POSITION_INTERVAL_S)
            position = await self.update_position()
            if session.is_idle and position.end > session.next_offset:
                raise ProtocolError(
                    f"the master has a log up to {position.end}, and sends nothing at {session.next_offset}"
                )
            if position.first > self._store.first:
                await self._in_thread(self._store.replica.delete_before, min(position.first, self.end))

    def _tail(self) -> bytes:
        """Return the last bytes of our log, as far as the master must have the same."""
        segment = self.end - self.end % self._store.settings.segment_bytes
        # Not across segments: what lies behind the last record of one is nobody's.
        start = max(1, segment, self.end - _COMPARED_BYTES)
        return self._store.raw(start, self.end - start) if start < self.end else b""

    async def _sync(self) -> None:
        """Make the log durable, and show it. The store flushes it by itself, too, and may have been faster."""
        if self._store.written > self.end:
            await self._in_thread(self._store.replica.sync)
        self._store.replica.commit_to(self.end)
        self._synced.set()

    async def _in_thread(self, work: Callable[..., object], *args: object) -> None:
        """Run work that may block. If the caller is cancelled, it goes on, and `_end_threads` waits for it."""
        thread = asyncio.ensure_future(asyncio.to_thread(work, *args))
        self._threads.add(thread)
        thread.add_done_callback(self._thread_ended)
        await asyncio.shield(thread)

    def _thread_ended(self, thread: asyncio.Future[object]) -> None:
        self._threads.discard(thread)
        if not thread.cancelled():
            thread.exception()  # else asyncio complains if the caller was cancelled

    async def _end_threads(self) -> None:
        if self._threads:
            await asyncio.wait(set(self._threads))

    def _note_rate(self, now_s: float) -> None:
        self._rates.append((now_s, self.end))
        while self._rates[0][0] < now_s - _RATE_WINDOW_S:
            self._rates.popleft()
