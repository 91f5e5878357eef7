"""The bus under kills: no committed event is lost, no effect happens twice, and messages with one key keep their order.

Each test runs on PostgreSQL, on MariaDB, on MariaDB without SKIP LOCKED, and on SQLite, with a real broker and with
workers in separate processes. It prints its counts.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from tests.fault.bus_worker import Job
from tests.fault.bus_worker_pool import (
    BATCH,
    LONG_LEASE_S,
    BusSetup,
    WorkerPool,
    bus_setup,
    count_handled_out_of_order,
    count_sent_out_of_order,
    deliver_twice,
    poll_until,
    read_sent_messages,
    split_evenly,
)
from tests.support.tested_databases import databases_under_test

from sparrow.testing import RunningPlatform

pytestmark = [pytest.mark.timeout(600), pytest.mark.one_database]

WORKERS = 4
DONE_S = 120.0
AMID_S = 0.001
"""The polling interval of tests that must kill in the middle of an operation."""
ONLY_RELAY = {"runs_handlers": False}
ONLY_EXECUTOR = {"runs_relay": False}
Scale = Literal["smoke", "full"]


@pytest.fixture(params=databases_under_test("postgresql", "mariadb", "mariadb-lease-only", "sqlite"))
def tables_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def database(tables_name: str) -> str:
    return tables_name.removesuffix("-lease-only")


@pytest.fixture
def setup(
    tables_name: str, database_url: str, platform: RunningPlatform, worker_pool: WorkerPool
) -> Iterator[BusSetup]:
    with bus_setup(tables_name, database_url, platform.name_servers, worker_pool) as setup:
        yield setup


# -- relays -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_live_relays_send_each_message_once(setup: BusSetup, scale: Scale) -> None:
    count = 4_000 if scale == "full" else 400
    for number in range(WORKERS):
        setup.workers.start_worker(setup.job(number, settings=ONLY_RELAY | {"lease_s": LONG_LEASE_S}))
    for first in range(0, count, 100):
        setup.tables.publish(first, 100)
    poll_until(lambda: setup.tables.open_count() == 0, within_s=DONE_S)
    sent = read_sent_messages(setup.tables.broker)
    setup.print_numbers(sent=len(sent), duplicates=len(sent) - count)
    assert sorted(one.value["n"] for one in sent) == list(range(count))
    assert len({one.id for one in sent}) == count
    assert setup.tables.succeeded_count("published") == count


@pytest.mark.thorough
def test_killed_relays_lose_nothing_and_repeat_at_most_one_batch_each(setup: BusSetup, scale: Scale) -> None:
    count, kills = (8_000, 12) if scale == "full" else (800, 4)
    rng = random.Random(setup.seed)
    # Long enough for a slow machine: a relay that is only slow may repeat a batch too, but this test is about dead
    # relays.
    how = ONLY_RELAY | {"lease_s": 2.0}
    living = [setup.workers.start_worker(setup.job(number, settings=how)) for number in range(WORKERS)]
    published = 0
    for number, share in enumerate(split_evenly(count, kills)):
        setup.tables.publish(published, share)
        published += share
        left = rng.randrange(1, share)
        poll_until(lambda left=left: setup.tables.unsent_count() <= left, within_s=DONE_S, interval_s=AMID_S)
        setup.workers.stop_worker(living.pop(rng.randrange(len(living))))
        living.append(setup.workers.start_worker(setup.job(WORKERS + number, settings=how)))
    poll_until(lambda: setup.tables.open_count() == 0, within_s=DONE_S)
    sent = read_sent_messages(setup.tables.broker)
    numbers = {one.value["n"] for one in sent}
    duplicates = len(sent) - len(numbers)
    setup.print_numbers(kills=kills, lost=count - len(numbers), duplicates=duplicates, bound=kills * BATCH)
    assert numbers == set(range(count))
    assert len({one.id for one in sent}) == count, "a repeated message must have the id of the first"
    assert duplicates <= kills * BATCH
    assert setup.tables.succeeded_count("published") == count


# -- executors --------------------------------------------------------------------------------------------------------


def test_killed_and_late_executors_apply_each_effect_once(setup: BusSetup, scale: Scale, tmp_path: Path) -> None:
    count, kills, late = (1_500, 10, 0.02) if scale == "full" else (150, 3, 0.1)
    rng = random.Random(setup.seed)
    runs = tmp_path / "runs"

    def job(number: int) -> Job:
        return setup.job(number, settings=ONLY_EXECUTOR, outlive_chance=late, runs_file=str(runs))

    living = [setup.workers.start_worker(job(number)) for number in range(WORKERS)]
    sent = 0
    for number, share in enumerate(split_evenly(count, kills)):
        deliver_twice(setup.tables.broker, sent, share)
        sent += share
        wanted = sent - rng.randrange(1, share)
        poll_until(lambda wanted=wanted: setup.tables.effect_count() >= wanted, within_s=DONE_S)
        setup.workers.stop_worker(living.pop(rng.randrange(len(living))))
        living.append(setup.workers.start_worker(job(WORKERS + number)))
    poll_until(
        lambda: setup.tables.succeeded_count("received") == count and setup.tables.open_count() == 0, within_s=DONE_S
    )
    delivered = read_sent_messages(setup.tables.broker)
    effects = setup.tables.effects()
    handled = len(runs.read_text().splitlines())
    setup.print_numbers(kills=kills, delivered=len(delivered), effects=len(effects), handler_runs=handled)
    assert len(delivered) == 2 * count
    assert Counter(effect.n for effect in effects) == Counter(range(count))
    assert setup.tables.count("1 = 1", "received") == count


# -- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_messages_with_one_key_keep_their_order(setup: BusSetup, scale: Scale) -> None:
    count, keys = (1_500, 50) if scale == "full" else (200, 20)
    for number in range(WORKERS):
        setup.workers.start_worker(
            setup.job(number, send_failure_chance=0.05, handler_failure_chance=0.05, settings={"lease_s": LONG_LEASE_S})
        )
    for first in range(0, count, 50):
        setup.tables.publish(first, 50, keys=keys)
    poll_until(
        lambda: setup.tables.succeeded_count("received") == count and setup.tables.open_count() == 0, within_s=DONE_S
    )
    sent = read_sent_messages(setup.tables.broker)
    queues = defaultdict(set)
    for one in sent:
        queues[one.value["key"]].add(one.queue)
    effects = setup.tables.effects()
    sent_wrong, handled_wrong = count_sent_out_of_order(sent), count_handled_out_of_order(effects)
    setup.print_numbers(
        sends=len(sent), effects=len(effects), sent_out_of_order=sent_wrong, handled_out_of_order=handled_wrong
    )
    assert {len(each) for each in queues.values()} == {1}
    assert Counter(effect.n for effect in effects) == Counter(range(count))
    assert (sent_wrong, handled_wrong) == (0, 0)
