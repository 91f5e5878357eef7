"""SQLite engines of the bus: the write-ahead log, and one writer at a time in this process.

SQLite has one writer. A connection that finds another one writing sleeps and tries again, for milliseconds that grow:
with many handlers most of the time is spent asleep. So the transactions of one process wait in a queue of ours, in the
order in which they came, whether a thread or a task runs them. Writers of other processes are not in that queue;
SQLite's own lock decides among processes, with its busy timeout.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import AdaptedConnection
from sqlalchemy.exc import OperationalError

from sparrow.model.errors import SettingsError

BUSY_TIMEOUT_S = 30.0
_BEGIN = "BEGIN IMMEDIATE"


class WriterQueue:
    """The transactions of this process that write to one database file: one is running, the others wait their turn."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._writer: object = None
        self._waiting: deque[tuple[object, Callable[[], None]]] = deque()

    def join(self, writer: object, wake: Callable[[], None]) -> bool:
        """Return whether it is the writer's turn; otherwise `wake` is called once it is, in any thread."""
        with self._mutex:
            if self._writer is None or self._writer is writer:
                self._writer = writer
                return True
            self._waiting.append((writer, wake))
            return False

    def leave(self, writer: object) -> None:
        """End the writer's turn, or its waiting; without either, do nothing."""
        with self._mutex:
            if self._writer is not writer:
                self._waiting = deque(each for each in self._waiting if each[0] is not writer)
                return
            self._writer = None
            if not self._waiting:
                return
            self._writer, wake = self._waiting.popleft()
        wake()


def prepare_sqlite(engine: Engine) -> None:
    """Enable the write-ahead log, and take the write lock at the beginning of each transaction.

    SQLite refuses a transaction that reads first and writes later if another one has written in between. Its error for
    a missing folder is "unable to open database file", so that is checked before each connection.
    """
    file = engine.url.database or ""
    path = file if file.startswith("file:") else os.path.abspath(file)

    @event.listens_for(engine, "do_connect")
    def connecting(*_: Any) -> None:
        folder = Path(path).parent
        if not file.startswith("file:") and not folder.is_dir():
            suggestion = "the path of a file in a folder that exists, or create that folder"
            reason = f"the folder {folder} does not exist"
            raise SettingsError("database", f"sqlite:///{file}", "the bus", suggestion, reason)

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver would begin the transaction late
        if isinstance(connection, sqlite3.Connection):
            # SQLite stores any bytes as text. One row that is not UTF-8 must not make the others unreadable.
            connection.text_factory = _decode_text
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        writer: Any = connection.connection.dbapi_connection
        queue = _writer_queue(path, os.getpid())
        try:
            if isinstance(writer, AdaptedConnection):
                writer.run_async(lambda driver: _begin_asyncio(driver, queue, writer))
            else:
                turn = threading.Event()
                if not queue.join(writer, turn.set) and not turn.wait(BUSY_TIMEOUT_S):
                    raise sqlite3.OperationalError("database is locked")
                writer.execute(_BEGIN)
        except sqlite3.Error as error:
            queue.leave(writer)
            raise OperationalError(_BEGIN, None, error) from error
        except BaseException:
            queue.leave(writer)
            raise

    # No event tells that a transaction is over, only that it is about to end.
    for name in ("do_commit", "do_rollback", "do_close", "do_terminate"):
        setattr(engine.dialect, name, _then_leave(getattr(engine.dialect, name), path))


async def _begin_asyncio(driver: Any, queue: WriterQueue, writer: object) -> None:
    from sparrow.bus.sql.connections.sqlite_asyncio import QuickConnection

    if isinstance(driver, QuickConnection):
        driver.begin_with_next_statement(_BEGIN, partial(_wait_for_turn, queue, writer))
    else:  # of an engine that the user has created
        await _wait_for_turn(queue, writer)
        await driver.execute(_BEGIN)


async def _wait_for_turn(queue: WriterQueue, writer: object) -> None:
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[bool] = loop.create_future()
    if queue.join(writer, partial(_wake, turn)):
        return
    timer = loop.call_later(BUSY_TIMEOUT_S, _settle, turn, False)
    try:
        if not await turn:
            raise sqlite3.OperationalError("database is locked")
    except BaseException:
        queue.leave(writer)
        raise
    finally:
        timer.cancel()


def _wake(turn: asyncio.Future[bool]) -> None:
    """Tell a task that it is its turn, at once if this is the thread of its loop: to wake a loop is a system call."""
    loop = turn.get_loop()
    if asyncio._get_running_loop() is loop:
        _settle(turn, True)
        return
    with suppress(RuntimeError):  # the loop is closed, and nobody waits
        loop.call_soon_threadsafe(_settle, turn, True)


def _settle(turn: asyncio.Future[bool], result: bool) -> None:
    if not turn.done():
        turn.set_result(result)


def _then_leave(end: Any, path: str) -> Any:
    def ended(connection: Any) -> None:
        try:
            end(connection)
        finally:
            # of the pool's wrapper, or the connection itself
            _writer_queue(path, os.getpid()).leave(getattr(connection, "dbapi_connection", connection))

    return ended


@lru_cache(256)
def _writer_queue(path: str, pid: int) -> WriterQueue:
    """Return the queue of a file, shared by all engines; a forked child has its own."""
    return WriterQueue()


def _decode_text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
