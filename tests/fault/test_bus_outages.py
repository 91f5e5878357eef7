"""Other failures of a bus: death at each single step, a missing broker, a database restart, wrong clocks, and two
versions of an application on the same tables.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncSession
from tests.fault.bus_kill_points import POINTS, PUBLISHER_POINTS
from tests.fault.bus_worker_pool import (
    LONG_LEASE_S,
    BusSetup,
    WorkerPool,
    bus_setup,
    count_handled_out_of_order,
    count_sent_out_of_order,
    poll_until,
    read_sent_messages,
)
from tests.support.databases import _free_port
from tests.support.tested_databases import databases_under_test

from sparrow.bus import EventBus
from sparrow.bus.handlers import attempt_log
from sparrow.bus.retry import NextAttempt
from sparrow.bus.sql.claims import claim_due
from sparrow.bus.sql.completion import mark_succeeded, reschedule
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import PUBLISHED_SIDE
from sparrow.bus.transports.memory import MemoryBroker, MemoryTransport
from sparrow.cli.server.platform import Platform
from sparrow.client.blocking.loop_thread import LoopThread
from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings
from sparrow.testing import RunningPlatform
from sparrow.testing.platform import SMALL_LOG_SETTINGS

pytestmark = [pytest.mark.timeout(300), pytest.mark.one_database]

DONE_S = 60.0
Scale = Literal["smoke", "full"]


@pytest.fixture
def setup(database: str, database_url: str, platform: RunningPlatform, worker_pool: WorkerPool) -> Iterator[BusSetup]:
    with bus_setup(database, database_url, platform.name_servers, worker_pool) as setup:
        yield setup


def wait_for_all(setup: BusSetup, count: int, *, groups: int = 1) -> None:
    """Wait until this many events are published and every group has handled each."""
    tables = setup.tables
    poll_until(
        lambda: tables.succeeded_count("received") == count * groups and tables.open_count() == 0,
        within_s=DONE_S,
    )
    assert tables.succeeded_count("published") == count
    assert Counter(effect.n for effect in tables.effects()) == Counter(dict.fromkeys(range(count), groups))


def test_a_worker_that_dies_between_any_two_steps_loses_no_event(setup: BusSetup, scale: Scale) -> None:
    each, rounds = (5, 1) if scale == "smoke" else (50, 3)
    published = 0
    for number, point in enumerate(POINTS * rounds):
        setup.tables.publish(published, each)
        published += each
        worker = setup.workers.start_worker(setup.job(number, dies_at=point))
        assert setup.workers.exit_status(worker) == -signal.SIGKILL, point
    setup.workers.start_worker(setup.job(100))
    wait_for_all(setup, published)
    sent = len(read_sent_messages(setup.tables.broker))
    setup.print_numbers(
        deaths=len(POINTS) * rounds, published=published, sent=sent, effects=setup.tables.effect_count()
    )


@pytest.mark.thorough
def test_a_publisher_that_dies_publishes_exactly_what_it_committed(setup: BusSetup) -> None:
    setup.workers.start_worker(setup.job(0))
    for number, point in enumerate(PUBLISHER_POINTS, 1):
        numbers = list(range(10)) if point == "committed" else [1_000]
        publisher = setup.workers.start_worker(setup.job(number, publishes=numbers, dies_at=point))
        assert setup.workers.exit_status(publisher) == -signal.SIGKILL
    wait_for_all(setup, 10)


@pytest.mark.thorough
def test_a_bus_that_starts_without_a_broker_catches_up_when_the_broker_starts(
    database: str, database_url: str, tmp_path: Path, worker_pool: WorkerPool
) -> None:
    count, port = 50, _free_port()
    quick_rounds = {"retry_round_interval_s": 0.5}
    with bus_setup(database, database_url, f"127.0.0.1:{port}", worker_pool) as setup:
        setup.tables.publish(0, count)
        setup.workers.start_worker(setup.job(0, settings=quick_rounds))
        has_failed = '"StatusName" = \'Failed\' OR "Rounds" > 0'
        poll_until(lambda: setup.tables.count(has_failed, "published") == count, within_s=DONE_S)
        with platform_at(port, tmp_path):
            wait_for_all(setup, count)


@contextmanager
def platform_at(port: int, folder: Path) -> Iterator[None]:
    """Run a platform whose name server listens on this port."""
    loop = LoopThread("late platform")
    platform = Platform(
        folder / "late",
        name_server=NameServerSettings(port=port),
        broker=BrokerSettings(port=0),
        log=LogSettings.model_validate(SMALL_LOG_SETTINGS),
    )
    try:
        loop.run(platform.start())
        yield
    finally:
        loop.run(platform.stop())
        loop.stop()


@pytest.mark.parametrize("database", databases_under_test("mariadb", "postgresql"))
def test_the_bus_continues_after_a_database_is_killed_and_restarted(
    database: str, database_servers, database_url: str, setup: BusSetup, scale: Scale
) -> None:
    server, share = database_servers(database), 100 if scale == "smoke" else 1_000
    restarts = 1 if scale == "smoke" else 5
    # A bus that starts while its database is away raises; this test is about buses that run.
    setup.workers.start_workers(*(setup.job(number) for number in range(2)))
    published = 0
    for _ in range(restarts):
        setup.tables.publish(published, share)
        published += share
        poll_until(lambda: setup.tables.effect_count() > 0, within_s=DONE_S)
        server.kill()
        server.start()
    setup.tables.publish(published, share)
    wait_for_all(setup, published + share)
    setup.print_numbers(
        restarts=restarts, published=published + share, sent=len(read_sent_messages(setup.tables.broker))
    )


@pytest.mark.thorough
@pytest.mark.parametrize("database", databases_under_test("mariadb", "postgresql"))
def test_while_a_database_is_away_a_handler_has_one_log_line_and_no_traceback(
    database: str, database_servers, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, count, slots = database_servers(database), 30, 6
    bus = EventBus(database_url, MemoryTransport(MemoryBroker()), app="away", concurrency=slots, lease_s=2.0)
    running, may_go_on = threading.Semaphore(0), threading.Event()

    @bus.subscribe("things")
    async def write_row(n: int, session: AsyncSession) -> None:
        await session.execute(text("INSERT INTO effects (n) VALUES (:n)"), {"n": n})
        running.release()
        while not may_go_on.is_set():
            await asyncio.sleep(0.01)

    def effects() -> list[int]:
        return bus.database.run_blocking(lambda db: [row[0] for row in db.exec_driver_sql("SELECT n FROM effects")])

    bus.database.run_blocking(lambda db: db.exec_driver_sql("CREATE TABLE effects (n INT NOT NULL)").close())
    with bus:
        bus.publish_many([("things", n) for n in range(count)])
        for _ in range(slots):
            assert running.acquire(timeout=DONE_S)
        server.kill()
        may_go_on.set()
        try:
            poll_until(lambda: len(attempt_lines(caplog)) > 0, within_s=DONE_S)
            poll_until(lambda: bus.health().findings, within_s=DONE_S)
        finally:
            server.start()
        poll_until(lambda: len(effects()) >= count, within_s=DONE_S)
    assert sorted(effects()) == list(range(count))
    [line] = attempt_lines(caplog)
    assert line.exc_info is None
    assert "write_row" in line.getMessage()


def attempt_lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name == attempt_log.__name__ and each.levelno >= logging.WARNING]


@pytest.mark.parametrize("database", databases_under_test("mariadb"))
def test_without_skip_locked_a_worker_that_lost_a_claim_race_can_end_its_own_messages(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = EventBus(database_url, "memory://overtaken")
    bus.prepare()
    bus.publish("things")
    run, real, overtakers = bus.database.run_blocking, SqlDialect.change, ["other"]
    sql = replace(bus.core.context.sql_for("mysql", bus.database.engine.dialect.paramstyle), skips_locked=False)

    def change(self: SqlDialect, db: Connection, statement: str, *values: object) -> int:
        """Between select and claim, another worker claims the message and fails, and the message is due again."""
        if '"LockToken"' in statement and overtakers:
            owner = overtakers.pop()
            (theirs,) = run(lambda db: claim_due(db, sql, PUBLISHED_SIDE, "", 1, owner=owner, lease_s=LONG_LEASE_S))
            run(lambda db: reschedule(db, sql, PUBLISHED_SIDE, theirs, NextAttempt("now", 0.0), "refused"))
        return real(self, db, statement, *values)

    monkeypatch.setattr(SqlDialect, "change", change)
    (ours,) = run(lambda db: claim_due(db, sql, PUBLISHED_SIDE, "", 1, owner="late", lease_s=LONG_LEASE_S))
    assert not overtakers
    run(lambda db: mark_succeeded(db, sql, PUBLISHED_SIDE, ours, 60.0))
    bus.database.engine.dispose()


@pytest.mark.thorough
def test_wrong_clocks_of_hosts_do_not_disturb_delivery(setup: BusSetup, scale: Scale) -> None:
    count = 200 if scale == "smoke" else 2_000
    hour_s = 3_600.0
    for number, off_s in enumerate((0.0, hour_s, -hour_s)):
        setup.workers.start_worker(setup.job(number, clock_shift_s=off_s, settings={"lease_s": LONG_LEASE_S}))
    for first in range(0, count, 50):
        setup.tables.publish(first, 50, keys=10)
    wait_for_all(setup, count)
    sent, effects = read_sent_messages(setup.tables.broker), setup.tables.effects()
    setup.print_numbers(sent=len(sent), effects=len(effects))
    assert len(sent) == count
    assert setup.tables.count('"LastError" IS NOT NULL', "published") == 0
    assert setup.tables.count('"LastError" IS NOT NULL', "received") == 0
    assert (count_sent_out_of_order(sent), count_handled_out_of_order(effects)) == (0, 0)


@pytest.mark.thorough
def test_two_versions_on_the_same_tables_do_not_take_each_others_messages(setup: BusSetup) -> None:
    share, tables = 50, setup.tables
    only_relay, only_executor = {"runs_handlers": False}, {"runs_relay": False}
    setup.workers.start_worker(setup.job(0, settings=only_relay))
    old = setup.workers.start_worker(setup.job(1, settings=only_executor))
    new = setup.workers.start_worker(setup.job(2, settings=only_executor | {"version": "v2"}))
    tables.publish(0, share)
    wait_for_all(setup, share, groups=2)
    # Messages for the killed version wait for a worker of that version.
    setup.workers.stop_worker(new)
    tables.publish(share, share)
    poll_until(lambda: len(handled_by(setup, "v1")) == 2 * share, within_s=DONE_S)
    setup.workers.stop_worker(old)
    setup.workers.start_worker(setup.job(3, settings=only_executor | {"version": "v2"}))
    wait_for_all(setup, 2 * share, groups=2)
    # Events published by the new version wait for a relay of that version.
    numbers = list(range(2 * share, 3 * share))
    publisher = setup.workers.start_worker(
        setup.job(4, settings={"version": "v2"}, publishes=numbers, dies_at="committed")
    )
    assert setup.workers.exit_status(publisher) == -signal.SIGKILL
    tables.publish(3 * share, 1)
    poll_until(lambda: 3 * share in handled_by(setup, "v2"), within_s=DONE_S)
    poll_until(lambda: tables.unsent_count() == share)  # the relay notes what it sent a moment after the handler has it
    setup.workers.start_worker(setup.job(5, settings={"version": "v2"}))
    setup.workers.start_worker(setup.job(6))
    wait_for_all(setup, 3 * share + 1, groups=2)
    for version in ("v1", "v2"):
        assert sorted(handled_by(setup, version)) == list(range(3 * share + 1))


def handled_by(setup: BusSetup, version: str) -> list[int]:
    return [effect.n for effect in setup.tables.effects() if effect.group.endswith(version)]
