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
from concurrent.futures import Future
from functools import lru_cache
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
        self._waiting: deque[tuple[object, Future[None]]] = deque()

    def join(self, writer: object) -> Future[None] | None:
        """Return a future that ends when it is the writer's turn; None: it is its turn now."""
        with self._mutex:
            if self._writer is None or self._writer is writer:
                self._writer = writer
                return None
            turn: Future[None] = Future()
            self._waiting.append((writer, turn))
            return turn

    def leave(self, writer: object) -> None:
        """End the writer's turn, or its waiting; without either, do nothing."""
        with self._mutex:
            if self._writer is not writer:
                self._waiting = deque(each for each in self._waiting if each[0] is not writer)
                return
            self._writer = None
            if self._waiting:
                self._writer, turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():  # otherwise it stopped waiting, and is about to leave
                    turn.set_result(None)


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
        turn = queue.join(writer)
        try:
            if isinstance(writer, AdaptedConnection):
                writer.run_async(lambda driver: _begin_asyncio(driver, turn))
            else:
                if turn is not None:
                    turn.result(BUSY_TIMEOUT_S)
                writer.execute(_BEGIN)
        except (TimeoutError, sqlite3.Error) as error:
            queue.leave(writer)
            cause = error if isinstance(error, sqlite3.Error) else sqlite3.OperationalError("database is locked")
            raise OperationalError(_BEGIN, None, cause) from error
        except BaseException:
            queue.leave(writer)
            raise

    # No event tells that a transaction is over, only that it is about to end.
    for name in ("do_commit", "do_rollback", "do_close", "do_terminate"):
        setattr(engine.dialect, name, _then_leave(getattr(engine.dialect, name), path))


async def _begin_asyncio(driver: Any, turn: Future[None] | None) -> None:
    if turn is not None:
        async with asyncio.timeout(BUSY_TIMEOUT_S):
            await asyncio.wrap_future(turn)
    await driver.execute(_BEGIN)


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
