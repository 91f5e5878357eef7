"""Other failures of a bus: death at each single step, a missing broker, a database restart, wrong clocks, and two
versions of an application on the same tables.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from sqlalchemy import Connection
from tests.fault.bus_kill_points import POINTS, PUBLISHING
from tests.fault.bus_worker_pool import (
    CALM_LEASE_S,
    Crew,
    Place,
    handled_out_of_order,
    placed,
    sent_messages,
    sent_out_of_order,
    until,
)
from tests.support.databases import _free_port

from sparrow.bus import EventBus
from sparrow.bus.retry import NextAttempt
from sparrow.bus.sql.claims import claim_due
from sparrow.bus.sql.completion import mark_succeeded, reschedule
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.sql.outbox import PUBLISHED_SIDE
from sparrow.cli.server.platform import Platform
from sparrow.client.blocking.loop_thread import LoopThread
from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings
from sparrow.testing import RunningPlatform
from sparrow.testing.platform import SMALL_LOG_SETTINGS

pytestmark = [pytest.mark.timeout(300), pytest.mark.one_database]

DONE_S = 60.0
Scale = Literal["smoke", "full"]


@pytest.fixture
def place(database: str, database_url: str, platform: RunningPlatform, bus_crew: Crew) -> Iterator[Place]:
    with placed(database, database_url, platform.name_servers, bus_crew) as place:
        yield place


def wait_for_all(place: Place, count: int, *, groups: int = 1) -> None:
    """Wait until this many events are published and every group has handled each."""
    tables = place.tables
    until(
        lambda: tables.successed("received") == count * groups and tables.open_count() == 0,
        within_s=DONE_S,
    )
    assert tables.successed("published") == count
    assert Counter(effect.n for effect in tables.effects()) == Counter(dict.fromkeys(range(count), groups))


def test_a_worker_that_dies_between_any_two_steps_loses_no_event(place: Place, scale: Scale) -> None:
    each, rounds = (5, 1) if scale == "smoke" else (50, 3)
    published = 0
    for number, point in enumerate(POINTS * rounds):
        place.tables.publish(published, each)
        published += each
        worker = place.crew.hire(place.job(number, dies_at=point))
        assert place.crew.status(worker) == -signal.SIGKILL, point
    place.crew.hire(place.job(100))
    wait_for_all(place, published)
    sent = len(sent_messages(place.tables.broker))
    place.say(deaths=len(POINTS) * rounds, published=published, sent=sent, effects=place.tables.effect_count())


def test_a_publisher_that_dies_publishes_exactly_what_it_committed(place: Place) -> None:
    place.crew.hire(place.job(0))
    for number, point in enumerate(PUBLISHING, 1):
        numbers = list(range(10)) if point == "committed" else [1_000]
        publisher = place.crew.hire(place.job(number, publishes=numbers, dies_at=point))
        assert place.crew.status(publisher) == -signal.SIGKILL
    wait_for_all(place, 10)


def test_a_bus_that_starts_without_a_broker_catches_up_when_the_broker_starts(
    database: str, database_url: str, tmp_path: Path, bus_crew: Crew
) -> None:
    count, port = 50, _free_port()
    quick_rounds = {"retry_round_interval_s": 0.5}
    with placed(database, database_url, f"127.0.0.1:{port}", bus_crew) as place:
        place.tables.publish(0, count)
        place.crew.hire(place.job(0, settings=quick_rounds))
        has_failed = '"StatusName" = \'Failed\' OR "Rounds" > 0'
        until(lambda: place.tables.count(has_failed, "published") == count, within_s=DONE_S)
        with platform_at(port, tmp_path):
            wait_for_all(place, count)


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


@pytest.mark.parametrize("database", ["mariadb", "postgresql"])
def test_the_bus_continues_after_a_database_is_killed_and_restarted(
    database: str, database_servers, database_url: str, place: Place, scale: Scale
) -> None:
    server, share = database_servers(database), 100 if scale == "smoke" else 1_000
    restarts = 1 if scale == "smoke" else 5
    for number in range(2):
        place.crew.hire(place.job(number))
    published = 0
    for _ in range(restarts):
        place.tables.publish(published, share)
        published += share
        until(lambda: place.tables.effect_count() > 0, within_s=DONE_S)
        server.kill()
        server.start()
    place.tables.publish(published, share)
    wait_for_all(place, published + share)
    place.say(restarts=restarts, published=published + share, sent=len(sent_messages(place.tables.broker)))


@pytest.mark.parametrize("database", ["mariadb"])
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
            (theirs,) = run(lambda db: claim_due(db, sql, PUBLISHED_SIDE, "", 1, owner=owner, lease_s=CALM_LEASE_S))
            run(lambda db: reschedule(db, sql, PUBLISHED_SIDE, theirs, NextAttempt("now", 0.0), "refused"))
        return real(self, db, statement, *values)

    monkeypatch.setattr(SqlDialect, "change", change)
    (ours,) = run(lambda db: claim_due(db, sql, PUBLISHED_SIDE, "", 1, owner="late", lease_s=CALM_LEASE_S))
    assert not overtakers
    run(lambda db: mark_succeeded(db, sql, PUBLISHED_SIDE, ours, 60.0))
    bus.database.engine.dispose()


def test_wrong_clocks_of_hosts_do_not_disturb_delivery(place: Place, scale: Scale) -> None:
    count = 200 if scale == "smoke" else 2_000
    hour_s = 3_600.0
    for number, off_s in enumerate((0.0, hour_s, -hour_s)):
        place.crew.hire(place.job(number, clock_off_s=off_s, settings={"lease_s": CALM_LEASE_S}))
    for first in range(0, count, 50):
        place.tables.publish(first, 50, keys=10)
    wait_for_all(place, count)
    sent, effects = sent_messages(place.tables.broker), place.tables.effects()
    place.say(sent=len(sent), effects=len(effects))
    assert len(sent) == count
    assert place.tables.count('"LastError" IS NOT NULL', "published") == 0
    assert place.tables.count('"LastError" IS NOT NULL', "received") == 0
    assert (sent_out_of_order(sent), handled_out_of_order(effects)) == (0, 0)


def test_two_versions_on_the_same_tables_do_not_take_each_others_messages(place: Place) -> None:
    share, tables = 50, place.tables
    only_relay, only_executor = {"runs_handlers": False}, {"runs_relay": False}
    place.crew.hire(place.job(0, settings=only_relay))
    old = place.crew.hire(place.job(1, settings=only_executor))
    new = place.crew.hire(place.job(2, settings=only_executor | {"version": "v2"}))
    tables.publish(0, share)
    wait_for_all(place, share, groups=2)
    # Messages for the killed version wait for a worker of that version.
    place.crew.end(new)
    tables.publish(share, share)
    until(lambda: len(handled_by(place, "v1")) == 2 * share, within_s=DONE_S)
    place.crew.end(old)
    place.crew.hire(place.job(3, settings=only_executor | {"version": "v2"}))
    wait_for_all(place, 2 * share, groups=2)
    # Events published by the new version wait for a relay of that version.
    numbers = list(range(2 * share, 3 * share))
    publisher = place.crew.hire(place.job(4, settings={"version": "v2"}, publishes=numbers, dies_at="committed"))
    assert place.crew.status(publisher) == -signal.SIGKILL
    tables.publish(3 * share, 1)
    until(lambda: 3 * share in handled_by(place, "v2"), within_s=DONE_S)
    assert tables.unsent_count() == share
    place.crew.hire(place.job(5, settings={"version": "v2"}))
    place.crew.hire(place.job(6))
    wait_for_all(place, 3 * share + 1, groups=2)
    for version in ("v1", "v2"):
        assert sorted(handled_by(place, version)) == list(range(3 * share + 1))


def handled_by(place: Place, version: str) -> list[int]:
    return [effect.n for effect in place.tables.effects() if effect.group.endswith(version)]
