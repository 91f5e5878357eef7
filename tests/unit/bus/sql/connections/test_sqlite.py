"""One writer at a time on SQLite: whose turn it is, and what happens when somebody stops waiting."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from tests.support.wait import eventually

from sparrow.bus.sql.connections import sqlite
from sparrow.bus.sql.connections.database import is_conflict
from sparrow.bus.sql.connections.sqlite import WriterQueue, prepare_sqlite


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{tmp_path}/one.db")
    prepare_sqlite(engine)
    with engine.begin() as db:
        db.exec_driver_sql("CREATE TABLE log (who TEXT)")
    return engine


class Waiter:
    """A writer in the queue, and whether it was told that it is its turn."""

    def __init__(self, queue: WriterQueue, name: str) -> None:
        self.is_woken = False
        self.has_turn = queue.join(name, self._wake)

    def _wake(self) -> None:
        self.is_woken = True


def test_turns_are_given_in_the_order_of_arrival() -> None:
    queue = WriterQueue()
    assert Waiter(queue, "a").has_turn
    assert Waiter(queue, "a").has_turn, "it is a's turn already"
    b, c = Waiter(queue, "b"), Waiter(queue, "c")
    assert (b.has_turn, c.has_turn) == (False, False)
    queue.leave("x")
    assert not b.is_woken
    queue.leave("a")
    assert (b.is_woken, c.is_woken) == (True, False)
    queue.leave("b")
    assert c.is_woken
    queue.leave("c")
    assert Waiter(queue, "d").has_turn


@pytest.mark.parametrize("has_turn", [False, True])
def test_writer_that_stops_waiting_is_passed_over(has_turn: bool) -> None:
    """Also if it gets its turn a moment before it leaves."""
    queue = WriterQueue()
    Waiter(queue, "a")
    Waiter(queue, "b")
    c = Waiter(queue, "c")
    if has_turn:
        queue.leave("a")
    queue.leave("b")
    queue.leave("a")
    assert c.is_woken


def test_transaction_ends_its_turn_by_commit_rollback_and_close(engine: Engine) -> None:
    def blocked() -> bool:
        return sqlite._writer_queue(engine.url.database or "", os.getpid())._writer is not None

    with engine.connect() as db:
        for end in (Connection.commit, Connection.rollback):
            db.exec_driver_sql("INSERT INTO log VALUES ('a')")
            assert blocked()
            end(db)
            assert not blocked()
        db.exec_driver_sql("INSERT INTO log VALUES ('b')")
        assert blocked()
    assert not blocked()
    with engine.connect() as db:
        db.exec_driver_sql("INSERT INTO log VALUES ('c')")
        db.invalidate()
        assert not blocked()


async def test_threads_and_tasks_wait_in_one_queue(engine: Engine) -> None:
    async_engine = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))
    prepare_sqlite(async_engine.sync_engine)
    wrote: list[str] = []

    async def write_in_task() -> None:
        async with async_engine.begin() as db:
            await db.exec_driver_sql("INSERT INTO log VALUES ('task')")
            wrote.append("task")

    def write_in_thread() -> None:
        with engine.begin() as db:
            db.exec_driver_sql("INSERT INTO log VALUES ('thread')")
            wrote.append("thread")

    async with async_engine.begin():
        works = [asyncio.create_task(write_in_task()), asyncio.create_task(asyncio.to_thread(write_in_thread))]
        cancelled = asyncio.create_task(write_in_task())
        queue = sqlite._writer_queue(engine.url.database or "", os.getpid())
        await eventually(lambda: len(queue._waiting) == 3)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert wrote == []
    await asyncio.gather(*works)
    assert sorted(wrote) == ["task", "thread"]
    assert queue._writer is None
    await async_engine.dispose()


def test_writer_that_waits_too_long_gets_the_error_of_sqlite(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    with engine.begin(), pytest.raises(OperationalError, match="database is locked") as caught, engine.begin():
        raise AssertionError("two writers at a time")
    assert is_conflict(caught.value)
    with engine.begin() as db:
        db.exec_driver_sql("INSERT INTO log VALUES ('after')")


def test_forked_child_has_a_queue_of_its_own(engine: Engine) -> None:
    ours = sqlite._writer_queue("a.db", 1)
    assert sqlite._writer_queue("a.db", 1) is ours
    assert sqlite._writer_queue("a.db", 2) is not ours


def test_many_threads_write_without_an_error(engine: Engine) -> None:
    def write() -> None:
        for _ in range(20):
            with engine.begin() as db:
                db.exec_driver_sql("INSERT INTO log VALUES ('x')")

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with engine.begin() as db:
        assert db.exec_driver_sql("SELECT COUNT(*) FROM log").scalar() == 160
