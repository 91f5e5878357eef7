"""Fail-over of replicated databases under load: a Galera cluster, and PostgreSQL with a synchronous standby.

Nothing that was acknowledged is lost, ids have no gap, and the effect of each event happens once.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Literal

import pytest
from sqlalchemy.exc import SQLAlchemyError
from tests.fault.bus_worker_pool import WorkerPool, bus_setup, poll_until
from tests.fault.sql_writer import LANE
from tests.fault.test_sql_dense import Acknowledged, check, follow, until, whole, writing
from tests.support.databases import ServerNotInstalled
from tests.support.replication import Replicated, galera_cluster, postgres_pair

from sparrow.model.errors import SparrowError
from sparrow.model.topic import Topic
from sparrow.settings import SqlSettings
from sparrow.store.sql.engine import SqlStore
from sparrow.testing import RunningPlatform

pytestmark = [pytest.mark.timeout(1_800), pytest.mark.one_database, pytest.mark.thorough]

Scale = Literal["smoke", "full"]
KILLS = {"smoke": 1, "full": 20}
PAUSE_S = {"smoke": 1.0, "full": 3.0}
WRITERS = {"smoke": 2, "full": 4}
DONE_S = 120.0
CLUSTERS = {"galera": galera_cluster, "postgresql": postgres_pair}


@pytest.fixture(params=list(CLUSTERS))
def replicated(request: pytest.FixtureRequest) -> Iterator[Replicated]:
    """Start servers that replicate each other."""
    try:
        with CLUSTERS[request.param]() as servers:
            yield servers
    except ServerNotInstalled as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


async def test_a_store_loses_nothing_when_the_writing_host_is_killed(
    replicated: Replicated, scale: Scale, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SPARROW_SEED") or random.SystemRandom().getrandbits(32))
    url, told, is_over = replicated.new_database(), Acknowledged(), asyncio.Event()
    seen: list[bytes] = []
    failed_over_s: list[float] = []
    try:
        async with await SqlStore.open(url, SqlSettings(database_wait_ms=60_000)) as store:
            await store.catalog.put_topic(Topic(name=LANE.topic, write_queues=1))
            reading = asyncio.create_task(follow(store, seen, is_over))
            with writing(url, WRITERS[scale], seed, told, tmp_path / "complaints", kill_s=2.0):
                for _ in range(KILLS[scale]):
                    await until(time.monotonic() + PAUSE_S[scale], reading)
                    failed_over_s.append(await fail_over_under_load(replicated, told, reading))
                await until(time.monotonic() + PAUSE_S[scale], reading)
            is_over.set()
            await asyncio.wait_for(reading, DONE_S)
        for server in replicated.servers:
            async with await SqlStore.open(f"{server.url}/{url.rpartition('/')[2]}") as alone:
                assert await whole(alone) == seen, f"{server.url} has other messages than the host that was read"
        await check(url, told, seen)
        assert not told.counts["died"], (tmp_path / "complaints").read_text()
    except BaseException as cause:
        cause.add_note(f"to do it again: SPARROW_SEED={seed}; {dict(told.counts)}, {len(seen)} messages read")
        complaints = (tmp_path / "complaints").read_text()
        cause.add_note(complaints[complaints.find("Traceback") :][:4_000])
        raise
    print(
        f"{url.partition(':')[0]}: {len(seen)} messages, {dict(told.counts)}, killed {len(failed_over_s)} times;"
        f" longest pause of appends {max(failed_over_s):.1f} s (SPARROW_SEED={seed})"
    )


async def fail_over_under_load(replicated: Replicated, told: Acknowledged, reading: asyncio.Task[None]) -> float:
    """Kill the writing host and bring it back as a replica; return how long nothing was appended."""
    begun = time.monotonic()
    await asyncio.to_thread(replicated.fail_over)
    repairing = asyncio.create_task(asyncio.to_thread(replicated.repair))  # a primary alone would not commit
    before = told.counts["stored"]
    while told.counts["stored"] < before + 3:
        await until(time.monotonic() + 0.05, reading)
        assert time.monotonic() < begun + DONE_S, "no append succeeded after the fail-over"
    took_s = time.monotonic() - begun
    await repairing
    return took_s


def test_a_bus_handles_each_event_once_when_the_writing_host_is_killed(
    replicated: Replicated, scale: Scale, platform: RunningPlatform, worker_pool: WorkerPool
) -> None:
    published: set[int] = set()
    unsure: set[int] = set()
    with bus_setup("replicated", replicated.new_database(), platform.name_servers, worker_pool) as setup:
        setup.workers.start_workers(*(setup.job(number) for number in range(2)))
        number = 0

        def publish() -> None:
            nonlocal number
            numbers = range(number, number + 10)
            number += 10
            try:
                setup.tables.publish(numbers.start, len(numbers))
                published.update(numbers)
            except (SQLAlchemyError, SparrowError, OSError):  # the commit may have been done
                unsure.update(numbers)

        def publish_until(count: int) -> None:
            deadline = time.monotonic() + DONE_S
            while len(published) < count:
                publish()
                assert time.monotonic() < deadline, "nothing is published after the fail-over"

        def fail_over() -> None:
            replicated.fail_over()
            replicated.repair()

        publish_until(100)
        poll_until(lambda: setup.tables.effect_count() > 0, within_s=DONE_S)
        for _ in range(KILLS[scale]):
            publish_until(len(published) + 100)
            failing_over = Thread(target=fail_over)
            failing_over.start()
            publish_until(len(published) + 200)
            failing_over.join()
        poll_until(lambda: setup.tables.open_count() == 0, within_s=DONE_S)
        poll_until(lambda: published <= {effect.n for effect in setup.tables.effects()}, within_s=DONE_S)
        effects = Counter(effect.n for effect in setup.tables.effects())
        setup.print_numbers(kills=KILLS[scale], published=len(published), unsure=len(unsure))
        assert {n: count for n, count in effects.items() if count > 1} == {}
        assert published <= effects.keys() <= published | unsure
