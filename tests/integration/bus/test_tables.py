"""The tables of the bus: creation, contents, and deletion of expired rows."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus_tables import (
    count_rows,
    describe_tables,
    list_tables,
    read_row,
    read_rows,
    run_statement,
    set_time,
)
from tests.support.wait import eventually

from sparrow.bus import Event, EventStatus, Reject
from sparrow.bus.aio import EventBus
from sparrow.bus.codec.content_column import decode_content
from sparrow.bus.codec.document import decode_document, encode_document
from sparrow.bus.errors import TablesMissing
from sparrow.bus.sql.tables import ddl
from sparrow.bus.worker.maintenance import is_between
from sparrow.model.errors import SettingsError

from .conftest import MakeBus

MESSAGE_TABLES = {"cap.published", "cap.received", "cap.queue"}
HELPER_TABLES = {"cap.inbox", "cap.lock", "cap.schema_version"}
CAP_ORDER = ["Id", "Version", "Name", "Content", "Retries", "Added", "ExpiresAt", "StatusName"]
SECOND = timedelta(seconds=1)


class AtOnce(random.Random):
    """A random source without jitter."""

    def random(self) -> float:
        return 0.0


# -- creation --------------------------------------------------------------------------------------------------------


async def test_first_start_makes_exactly_the_tables_and_a_second_one_changes_nothing(make_bus: MakeBus) -> None:
    async with make_bus(runs_relay=False, runs_handlers=False) as first:
        assert await list_tables(first) == MESSAGE_TABLES | HELPER_TABLES
        await first.publish("order.created", {"n": 1})
        before, kept = await describe_tables(first), await read_rows(first, "published")
    async with make_bus(runs_relay=False, runs_handlers=False) as second:
        assert await list_tables(second) == MESSAGE_TABLES | HELPER_TABLES
        assert await describe_tables(second) == before
        assert await read_rows(second, "published") == kept


async def test_eight_threads_starting_together_all_succeed(make_bus: MakeBus) -> None:
    buses = [make_bus() for _ in range(8)]
    together = threading.Barrier(len(buses), timeout=10)

    def start(bus: EventBus) -> None:
        together.wait()
        bus.blocking.prepare()

    with ThreadPoolExecutor(len(buses)) as threads:
        await asyncio.gather(*(asyncio.wrap_future(threads.submit(start, bus)) for bus in buses))
    assert await list_tables(buses[0]) == MESSAGE_TABLES | HELPER_TABLES


STARTING = """
import sys
from sparrow.bus import EventBus
bus = EventBus(sys.argv[1], "memory://")
print("ready", flush=True)
sys.stdin.readline()
with bus:
    print("started", flush=True)
"""


async def test_two_processes_starting_together_both_succeed(database_url: str, make_bus: MakeBus) -> None:
    def start_both() -> list[str]:
        command = [sys.executable, "-c", STARTING, database_url]
        pipe = subprocess.PIPE
        both = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
        for process in both:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()
        for process in both:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        ends = [process.communicate(timeout=60) for process in both]
        assert [process.returncode for process in both] == [0, 0], ends
        return [out for out, _ in ends]

    assert await asyncio.to_thread(start_both) == ["started\n", "started\n"]
    assert await list_tables(make_bus()) == MESSAGE_TABLES | HELPER_TABLES


async def test_table_names_are_unique_ignoring_case(bus: EventBus) -> None:
    names = [name.lower() for name in await list_tables(bus)]
    assert [names.count(wanted) for wanted in ("cap.published", "cap.received", "cap.queue")] == [1, 1, 1]


async def test_schema_or_prefix_applies_to_all_tables(make_bus: MakeBus) -> None:
    handled: list[int] = []
    bus = make_bus(schema="Shop x", table_prefix="Shop x")
    bus.subscriptions.add("order.created", handled.append)
    async with bus:
        await bus.publish("order.created", 7)
        await bus.drain()
        names = {name.partition(".")[2] for name in await list_tables(bus)}
        assert {name.partition(".")[0] for name in await list_tables(bus)} == {"Shop x"}
    assert names == {"published", "received", "queue", "inbox", "lock", "schema_version"}
    assert handled == [7]


@pytest.mark.one_database
async def test_several_buses_share_a_database_without_mixing_messages(make_bus: MakeBus) -> None:
    one, two = (make_bus(schema=space, table_prefix=space) for space in ("one", "two"))
    await one.prepare()
    await two.prepare()
    await one.publish("order.created")
    assert (await count_rows(one), await count_rows(two)) == ((1, 0, 1), (0, 0, 0))


@pytest.mark.one_database
async def test_schema_or_prefix_with_quotes_is_refused(make_bus: MakeBus) -> None:
    for space in ('x"; DROP TABLE y; --', "x`"):
        with pytest.raises(SettingsError):
            make_bus(schema=space, table_prefix=space)


async def test_exported_ddl_makes_the_same_tables_as_a_start(make_bus: MakeBus) -> None:
    started, exported = (
        make_bus(schema=space, table_prefix=space, create_tables=space == "started") for space in ("started", "export")
    )
    await started.prepare()
    with pytest.raises(TablesMissing, match="published"):
        await exported.prepare()
    statements = ddl(exported.database.kind, "export").split(";\n")
    for _ in range(2):  # it may be run again
        for statement in filter(None, map(str.strip, statements)):
            await exported.database.run(lambda db, text=statement: db.exec_driver_sql(text).close())
    await exported.prepare()
    assert await describe_tables(exported) == await describe_tables(started)


async def test_start_without_create_tables_makes_nothing(make_bus: MakeBus) -> None:
    bus = make_bus(create_tables=False)
    with pytest.raises(TablesMissing, match="sparrow bus ddl"):
        await bus.start()
    assert await list_tables(bus) == set()


async def test_metadata_lists_the_existing_columns(bus: EventBus) -> None:
    there = {table: [column[0] for column in found["columns"]] for table, found in (await describe_tables(bus)).items()}
    translated_errors = {
        table.name.rpartition(".")[2]: [each.name for each in table.columns] for table in bus.metadata().tables.values()
    }
    assert there == translated_errors


async def test_strict_tables_makes_three_tables_that_deliver_once(make_bus: MakeBus, broker) -> None:
    handled: list[int] = []
    bus = make_bus(strict_tables=True)
    bus.subscriptions.add("order.created", handled.append)
    async with bus:
        assert await list_tables(bus) == MESSAGE_TABLES
        await bus.publish("order.created", 1)
        await bus.drain()
        broker.take([broker.sent[0]])
        await eventually(lambda: bus.core.context.probe.totals["bus_duplicates_total"] == 1)
        await bus.publish("order.created", 2)
        await bus.drain()
        await bus.core.worker.maintenance.delete_expired()
        await bus.core.worker.maintenance.repair_orphans()
        assert sorted(handled) == [1, 2]
        assert await count_rows(bus) == (2, 2, 0)
    async with make_bus(strict_tables=True) as again:
        assert await list_tables(again) == MESSAGE_TABLES


# -- contents --------------------------------------------------------------------------------------------------------


@pytest.mark.one_database
async def test_status_is_a_known_word_and_never_null(make_bus: MakeBus, broker) -> None:
    bus = make_bus()
    bus.subscriptions.add("good", lambda value: None)
    bus.subscriptions.add("bad", refusing)
    async with bus:
        await bus.publish_many([("good", 1), ("bad", 2)])
        await bus.publish("good", 3, delay=600)
        await bus.drain()
        found = await read_rows(bus, "published") + await read_rows(bus, "received")
        tables = await describe_tables(bus)
    assert {each["StatusName"] for each in found} == {"Successed", "Failed", "Delayed"}
    for table in ("published", "received"):
        [nullable] = [column[2] for column in tables[table]["columns"] if column[0] == "StatusName"]
        assert not nullable


@pytest.mark.one_database
async def test_five_states_have_the_required_spelling(make_bus: MakeBus) -> None:
    assert {"Scheduled", "Enqueued", "Processing", "Successed", "Failed"} <= {status.value for status in EventStatus}
    assert {status.value for status in EventStatus} - {"Delayed", "Cancelled"} == {
        "Scheduled", "Enqueued", "Processing", "Successed", "Failed",
    }  # fmt: skip
    assert EventStatus.of("Succeeded") is EventStatus.of("successed") is EventStatus.SUCCESSED
    async with make_bus(succeeded_spelling="Succeeded") as bus:
        await bus.publish("order.created")
        await bus.drain()
        assert (await read_row(bus, "published"))["StatusName"] == "Succeeded"


@pytest.mark.one_database
async def test_body_at_the_broker_is_utf8_json_and_the_document_round_trip_is_lossless(
    make_bus: MakeBus, broker
) -> None:
    async with make_bus() as bus:
        await bus.publish("order.created", {"name": "Zoë", "n": 2**60}, key="7", headers={"x": "ü"})
        await bus.drain()
    [envelope] = broker.sent
    assert envelope.body.decode() == '{"name":"Zoë","n":1152921504606846976}'
    text = encode_document(envelope)
    headers, body, document = decode_document(text)
    assert (headers, body, document.added) == (envelope.headers, envelope.body, envelope.added)
    assert encode_document(envelope).decode() == text.decode()


async def test_ids_are_unique_integers_and_text_in_json(bus: EventBus) -> None:
    numbers = await bus.publish_many([("order.created", n) for n in range(50)])
    numbers.append(await bus.publish("order.created"))
    stored = [each["Id"] for each in await read_rows(bus, "published")]
    assert stored == sorted(set(numbers))
    assert all(type(number) is int and 0 < number < 2**63 for number in numbers)
    assert decode_content((await read_rows(bus, "published"))[0]["Content"])[0]["cap-msg-id"] == str(stored[0])


@pytest.mark.one_database
async def test_name_is_the_topic_with_the_prefix(make_bus: MakeBus, broker) -> None:
    handled: list[str] = []
    bus = make_bus(topic_prefix="eu")

    @bus.subscribe("order.created")
    def handle(event: Event) -> None:
        handled.append(event.name)

    async with bus:
        await bus.publish("order.created")
        await bus.drain()
        assert (
            (await read_row(bus, "published"))["Name"]
            == (await read_row(bus, "received"))["Name"]
            == "eu.order.created"
        )
    assert [envelope.name for envelope in broker.sent] == handled == ["eu.order.created"]


async def test_content_is_json_text_and_keeps_every_character(make_bus: MakeBus) -> None:
    payload = {"text": "Grüße, 世界 🐦 \u0000 \x7f \" \\ ' % ? :x $1"}
    handled: list[Any] = []
    bus = make_bus()
    bus.subscriptions.add("order.created", handled.append)
    async with bus:
        await bus.publish("order.created", payload, headers={"grüße": "世界 🐦 % ?"})
        await bus.publish_many([("order.created", payload)])
        await bus.drain()
        contents = [each["Content"] for each in await read_rows(bus, "published") + await read_rows(bus, "received")]
    assert all(isinstance(content, str) for content in contents)
    assert decode_content(contents[0])[0]["grüße"] == "世界 🐦 % ?"
    assert handled == [payload, payload]


@pytest.mark.one_database
async def test_received_rows_and_events_have_their_group(make_bus: MakeBus) -> None:
    events: list[Event] = []
    bus = make_bus()

    @bus.subscribe("order.created", group="billing")
    async def handle(event: Event) -> None:
        events.append(event)

    async with bus:
        await bus.publish("order.created")
        await bus.drain()
        assert (await read_row(bus, "received"))["Group"] == "billing.v1"
    assert events[0].group == events[0].headers.group == "billing.v1"


async def test_added_is_database_time_in_utc_and_retries_do_not_change_it(make_bus: MakeBus) -> None:
    bus = make_bus()
    bus.subscriptions.add("order.created", failing)
    async with bus:
        before = datetime.now(UTC)
        await bus.publish("order.created")
        await bus.drain()
        first = [(await read_row(bus, table))["Added"] for table in ("published", "received")]
        bus.advance(100)
        await bus.drain()
        received = await read_row(bus, "received")
        assert received["Retries"] >= 2
        assert [(await read_row(bus, table))["Added"] for table in ("published", "received")] == first
    # The clock of SQLite has milliseconds, rounded down.
    assert all(before - timedelta(milliseconds=1) <= added <= datetime.now(UTC) for added in first)


async def test_expiry_is_null_while_open_then_one_day_or_fifteen(make_bus: MakeBus) -> None:
    bus = make_bus()
    bus.subscriptions.add("good", lambda value: None)
    bus.subscriptions.add("bad", refusing)
    await bus.prepare()
    open_one = await bus.publish("good")
    assert (await read_row(bus, "published", open_one))["ExpiresAt"] is None
    async with bus:
        await bus.publish("bad")
        await bus.drain()
        published, received = await read_rows(bus, "published"), await read_rows(bus, "received")
    for each in published + received:
        if each["StatusName"] == "Successed":
            assert timedelta(days=1) <= each["ExpiresAt"] - each["Added"] < timedelta(days=1, seconds=60)
        else:
            assert each["StatusName"] == "Failed"
            assert each["ExpiresAt"] - each["Added"] == timedelta(days=15)


async def test_only_received_has_a_group_and_columns_are_in_the_order_of_cap(bus: EventBus, make_bus: MakeBus) -> None:
    tables = {
        table: [column[0] for column in found["columns"]] for table, found in (await describe_tables(bus)).items()
    }
    assert tables["published"][:8] == CAP_ORDER
    assert tables["received"][:9] == [*CAP_ORDER[:3], "Group", *CAP_ORDER[3:]]
    assert "Group" not in tables["published"]
    async with make_bus() as running:
        await running.publish("order.created")
        await running.drain()
        [envelope] = running.core.context.transport.broker.sent  # type: ignore[attr-defined]
    assert b'"Group"' not in encode_document(envelope)
    assert b'"Group":"billing"' in encode_document(envelope, group="billing")


# -- cleanup ---------------------------------------------------------------------------------------------------------


@pytest.mark.one_database
async def test_cleanup_runs_at_the_start_and_every_hour(make_bus: MakeBus) -> None:
    handled: list[int] = []
    # Retry rounds run shortly before the cleanup: a counted round shows that the loop has read the clock.
    bus = make_bus(retry_round_interval_s=3_590.0, cleanup_pause_s=0.0)
    bus.core.context.rng = AtOnce()
    rounds = 'bus_retries_total{place="round"}'
    totals = bus.core.context.probe.totals
    await bus.prepare()
    bus.subscriptions.add("order.created", handled.append)

    async def expired(hour: int) -> None:
        """Make an expired row in each table, and a failed one for the next retry round."""
        await bus.publish("order.created", hour)
        await bus.drain()
        for table in ("published", "received"):
            await run_statement(bus, f'UPDATE {{{table}}} SET "ExpiresAt" = "Added" WHERE "Name" = ?', "order.created")
        number = await bus.publish("nobody", hour)
        await bus.drain()
        await run_statement(bus, 'UPDATE {published} SET "StatusName" = ? WHERE "Id" = ?', "Failed", number)

    async with bus:
        await eventually(lambda: "bus_cleaner_rows_total" in totals)
        for hour in (1, 2):
            await expired(hour)
            bus.advance(3_595.0 if hour == 1 else 3_590.0)
            await eventually(lambda: totals[rounds] == hour)  # noqa: B023
            assert totals["bus_cleaner_rows_total"] == 2 * (hour - 1)
            bus.advance(10.0)
            await eventually(lambda: totals["bus_cleaner_rows_total"] == 2 * hour)  # noqa: B023
        assert await read_rows(bus, "received") == []
    assert handled == [1, 2]


async def test_only_expired_rows_are_deleted_in_any_state(make_bus: MakeBus) -> None:
    bus = make_bus(runs_relay=False, runs_handlers=False, cleanup_batch=2, cleanup_pause_s=0.0)
    bus.core.context.rng = random.Random(1)
    async with bus:
        now = datetime.now(UTC)
        kept, gone = [], []
        for status in EventStatus:
            for table in ("published", "received"):
                for moment in (None, now + 60 * SECOND, now - SECOND):
                    number = await stored(bus, table, status.value)
                    await set_time(bus, table, "ExpiresAt", moment, number)
                    (gone if moment is not None and moment < now else kept).append((table, number))
        assert await bus.core.worker.maintenance.delete_expired() == len(gone) == 2 * len(EventStatus)
        left = [(table, each["Id"]) for table in ("published", "received") for each in await read_rows(bus, table)]
        assert sorted(left) == sorted(kept)


async def test_inbox_keys_are_kept_days_longer_than_their_messages(make_bus: MakeBus, broker) -> None:
    handled: list[int] = []
    bus = make_bus(cleanup_pause_s=0.0)
    bus.subscriptions.add("order.created", handled.append)
    async with bus:
        await bus.publish("order.created", 1)
        await bus.drain()
        bus.advance(2 * 86_400)
        await bus.core.worker.maintenance.delete_expired()
        assert await count_rows(bus) == (0, 0, 0)
        assert len(await read_rows(bus, "inbox")) == 1
        broker.take([broker.sent[0]])
        await eventually(lambda: bus.core.context.probe.totals["bus_duplicates_total"] == 1)
        bus.advance(6 * 86_400)
        while await read_rows(bus, "inbox"):  # the transaction of the duplicate may hold the row for a moment
            await bus.core.worker.maintenance.delete_expired()
    assert handled == [1]


async def test_only_one_process_cleans_at_a_time(make_bus: MakeBus) -> None:
    async with (
        make_bus(runs_relay=False, runs_handlers=False) as one,
        make_bus(runs_relay=False, runs_handlers=False) as two,
    ):
        turns = [await bus.core.worker.maintenance._alone("clean now", 3_600.0) for bus in (one, two, one)]
        assert turns == [True, False, True]
        one.advance(3_700.0)
        two.advance(3_700.0)
        assert await two.core.worker.maintenance._alone("clean now", 3_600.0)


@pytest.mark.one_database
async def test_deleted_rows_are_archived_first(make_bus: MakeBus, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    bus = make_bus(archive=tmp_path / "archive", cleanup_pause_s=0.0)
    bus.subscriptions.add("order.created", lambda value: None)
    async with bus:
        number = await bus.publish("order.created", {"text": "ü"}, key="7")
        await bus.drain()
        stored_row = await read_row(bus, "published")
        bus.advance(2 * 86_400)
        assert await bus.core.worker.maintenance.delete_expired() == 2
    [file] = (tmp_path / "archive" / "published").glob("day=*/*.parquet")
    [archived] = pq.ParquetFile(file).read().to_pylist()
    assert archived["Id"] == number
    assert (archived["Content"], archived["Added"]) == (stored_row["Content"], stored_row["Added"])


def test_window_of_hours_may_cross_midnight() -> None:
    night = (time(22), time(6))
    assert [is_between(time(hour), night) for hour in (21, 22, 0, 6, 7)] == [False, True, True, True, False]
    assert [is_between(time(hour), (time(1), time(6))) for hour in (0, 1, 7)] == [False, True, False]


async def test_missing_queue_rows_are_restored_and_orphans_deleted(make_bus: MakeBus) -> None:
    async with make_bus(runs_relay=False, runs_handlers=False) as bus:
        lost = await bus.publish("order.created", 1)
        stray = await bus.publish("order.created", 2)
        await run_statement(bus, 'DELETE FROM {queue} WHERE "MessageId" = ?', lost)
        await run_statement(bus, 'DELETE FROM {published} WHERE "Id" = ?', stray)
        bus.advance(301.0)
        assert await bus.core.worker.maintenance.repair_orphans() == (1, 1)
        assert [each["MessageId"] for each in await read_rows(bus, "queue")] == [lost]
        assert await bus.core.worker.maintenance.repair_orphans() == (0, 0)


# -- helpers ---------------------------------------------------------------------------------------------------------


def failing(value: object) -> None:
    raise ValueError("not today")


def refusing(value: object) -> None:
    raise Reject("never")


async def stored(bus: EventBus, table: str, status: str) -> int:
    """Insert a row in this state; no bus writes such a row."""
    number = bus.core.context.ids.next()
    columns, values = '"Id", "Name", "Content", "StatusName"', [number, "order.created", "{}", status]
    if table == "received":
        columns, values = f'{columns}, "Group", "MsgId"', [*values, "billing.v1", str(number)]
    marks = ", ".join("?" * len(values))
    await run_statement(
        bus, f'INSERT INTO {{{table}}} ({columns}, "Added") VALUES ({marks}, {bus.core.context.sql.now})', *values
    )
    return number
