"""`sparrow pipeline outbox`: published and unsent events go to their topics, also while relays run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.bus_tables import read_rows
from typer.testing import CliRunner

from sparrow.bus.aio import EventBus
from sparrow.bus.publish.outgoing_event import OutgoingEvent
from sparrow.bus.sql.claims import claim_due
from sparrow.bus.sql.outbox import PUBLISHED_SIDE
from sparrow.bus.transports.sparrow.message_format import to_delivery
from sparrow.bus.worker.relay import EventRelay
from sparrow.cli.main import app
from sparrow.cli.pipeline.jobs.outbox_relay import BulkRelay
from sparrow.client import Admin, Consumer
from sparrow.model.message import StoredMessage
from sparrow.spark.jobs.outbox import OutboxJob, run
from sparrow.testing.platform import RunningPlatform

pytestmark = pytest.mark.xdist_group("spark")


def publish(url: str, events: Sequence[OutgoingEvent]) -> list[int]:
    async def work() -> list[int]:
        bus = EventBus(url, "memory://")
        try:
            await bus.prepare()
            return await bus.publish_many(events)
        finally:
            await bus.database.close()

    return asyncio.run(work())


def looked_up(url: str, table: str) -> list[dict[str, Any]]:
    async def work() -> list[dict[str, Any]]:
        bus = EventBus(url, "memory://")
        try:
            await bus.prepare()
            return await read_rows(bus, table)
        finally:
            await bus.database.close()

    return asyncio.run(work())


def events(platform: RunningPlatform, topic: str) -> list[tuple[int, StoredMessage]]:
    """Return every event of a topic with its number, queue by queue."""
    with Consumer(platform.name_servers, group="readers") as consumer:
        table = consumer.read_table(topic, columns=["msg_id"]).to_pylist()
    with Admin(platform.name_servers) as admin:
        messages = [admin.find_by_id(row["msg_id"], topic=topic) for row in table]
    return [(int(to_delivery(message).headers["cap-msg-id"] or 0), message) for message in messages]


@pytest.mark.thorough
def test_a_backlog_of_due_events_is_sent_and_marked(
    spark: SparkSession, platform: RunningPlatform, database_url: str
) -> None:
    plain = publish(database_url, [OutgoingEvent("order.created", {"n": number}) for number in range(100)])
    keyed = publish(
        database_url, [OutgoingEvent("order.paid", {"n": number}, f"k{number % 3}") for number in range(12)]
    )
    (later,) = publish(database_url, [OutgoingEvent("order.created", {}, delay=timedelta(hours=1))])
    relaying = BulkRelay(name_servers=platform.name_servers, database=database_url, batch_size=40)
    on_progress: list[tuple[int, int | None]] = []
    done = run(
        spark,
        OutboxJob(tasks=2),
        relaying,
        relaying.count_unsent_events,
        on_progress=lambda done: on_progress.append((done.rows, done.lag)),
    )
    assert (done.sent, done.failed, done.left) == (112, 0, 1)
    assert on_progress[0] == (0, 113)
    assert sorted(number for number, _ in events(platform, "order|created")) == sorted(plain)
    paid = events(platform, "order|paid")
    for key in range(3):
        in_its_queue = [number for number, message in paid if message.properties["__SHARDINGKEY"] == f"k{key}"]
        assert in_its_queue == keyed[key::3], "events of a key must keep their order"
    status = {row["Id"]: row["StatusName"] for row in looked_up(database_url, "published")}
    assert {status[number] for number in [*plain, *keyed]} == {"Successed"}
    assert status[later] == "Delayed"
    assert [row["MessageId"] for row in looked_up(database_url, "queue")] == [later]


@pytest.mark.thorough
def test_relays_that_run_at_the_same_time_share_the_work(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/sparrow.db"
    numbers = publish(url, [OutgoingEvent("order.created", {"n": number}) for number in range(300)])
    relaying = BulkRelay(name_servers=platform.name_servers, database=url, batch_size=25)

    async def both() -> tuple[int, int]:
        bus = EventBus(url, f"sparrow://{platform.name_servers}", relay_batch=5)
        await bus.prepare()
        relay = EventRelay(bus.core.context)
        try:
            await relay.step()
            job = asyncio.create_task(
                asyncio.to_thread(run, spark, OutboxJob(tasks=2), relaying, relaying.count_unsent_events)
            )
            while not job.done():
                if not await relay.step():
                    await asyncio.sleep(0.01)
                await relay.drain()
            return (await job).sent, bus.core.context.probe.totals["bus_sent_total"]
        finally:
            await relay.stop(5)
            await bus.core.context.transport.close()
            await bus.database.close()

    by_job, by_relay = asyncio.run(both())
    assert by_relay >= 5
    assert by_job + by_relay == len(numbers)
    assert sorted(number for number, _ in events(platform, "order|created")) == sorted(numbers), (
        "every event must be published once"
    )


@pytest.mark.thorough
def test_events_claimed_by_other_workers_are_left_alone(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/sparrow.db"
    numbers = publish(url, [OutgoingEvent("order.created", {"n": number}) for number in range(5)])

    async def held() -> set[int]:
        bus = EventBus(url, "memory://")
        try:
            await bus.prepare()
            claims = await bus.database.run(
                lambda db: claim_due(db, bus.core.context.sql, PUBLISHED_SIDE, "", 2, owner="somebody", lease_s=600)
            )
            return {each.message_id for each in claims}
        finally:
            await bus.database.close()

    others = asyncio.run(held())
    relaying = BulkRelay(name_servers=platform.name_servers, database=url)
    done = run(spark, OutboxJob(tasks=1), relaying, relaying.count_unsent_events)
    assert (done.sent, done.left) == (3, 2)
    assert {number for number, _ in events(platform, "order|created")} == set(numbers) - others


@pytest.mark.thorough
def test_an_event_that_no_broker_accepts_does_not_block_others(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/sparrow.db"
    (whole,) = publish(url, [OutgoingEvent("order.created", {"n": 1})])
    # The bus's own broker accepts such names, so that the events are stored.
    (strange,) = publish(url, [OutgoingEvent("order.created!", {"n": 2}, "k")])
    (behind,) = publish(url, [OutgoingEvent("order.created", {"n": 3}, "k")])
    words = ["outbox", "--database", url, "-n", platform.name_servers, "--tasks", "1"]
    done = CliRunner().invoke(app, ["pipeline", *words])
    assert done.exit_code == 0, done.output
    assert "1 events sent" in done.output
    assert "1 attempts failed" in done.output
    assert [number for number, _ in events(platform, "order|created")] == [whole]
    rows = {row["Id"]: row for row in looked_up(url, "published")}
    assert rows[behind]["StatusName"] == "Scheduled", "a key must keep its order across jobs"
    refused = rows[strange]
    assert (refused["StatusName"], refused["Retries"]) == ("Scheduled", 1)
    assert "IllegalName" in refused["LastError"]
