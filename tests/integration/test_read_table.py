"""A topic read as an Arrow table: complete, filtered by columns, tags and time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.platform_driver import PlatformDriver, running_platform_driver
from tests.support.wait import eventually

from sparrow.client.aio.consume import table_reader
from sparrow.client.aio.consume.consumer import Consumer
from sparrow.model.errors import ProtocolError, Refused, SettingsError, UnknownTopic
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.wire.compression import COMPRESSED_FLAG


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[PlatformDriver]:
    async with running_platform_driver(tmp_path) as running:
        yield running


def rows(table: pa.Table) -> list[tuple[int, int, str]]:
    return [
        (row["queue_id"], row["queue_offset"], row["body"].decode())
        for row in table.select(["queue_id", "queue_offset", "body"]).to_pylist()
    ]


async def test_table_of_a_topic_equals_the_sent_messages(driver, monkeypatch):
    await driver.create_topic("T", queues=3)
    await driver.send_to_each_queue("T", queues=3, each=400)
    expected = [(queue, number, f"{queue}-{number}") for queue in range(3) for number in range(400)]
    async with Consumer(driver.name_servers, group="readers") as consumer:
        assert rows(await consumer.read_table("T")) == expected
        monkeypatch.setattr(table_reader, "PULL_COUNT_MAX", 7)  # as from a broker that returns few messages per pull
        assert rows(await consumer.read_table("T")) == expected
    assert await driver.committed_offset("readers", "T") is None, "reading a table must not commit offsets of a group"


async def test_table_has_the_requested_columns(driver):
    await driver.create_topic("T")
    await driver.send("T", ["a", "b"], tags="t")
    async with Consumer(driver.name_servers, group="readers") as consumer:
        table = await consumer.read_table("T", columns=["body", "tags", "store_timestamp"])
        assert table.column_names == ["body", "tags", "store_timestamp"]
        assert table.column("body").to_pylist() == [b"a", b"b"]
        assert table.column("tags").to_pylist() == ["t", "t"]
        only = await consumer.read_table("T", columns=["body"], expression="t")
        assert only.to_pydict() == {"body": [b"a", b"b"]}


async def test_tag_filter_is_exact_even_when_hashes_collide(driver):
    await driver.create_topic("T", queues=2)
    for number in range(12):
        await driver.send("T", [str(number)], number % 2, tags=["Aa", "BB", "C"][number % 3])
    async with Consumer(driver.name_servers, group="readers") as consumer:
        assert [row[2] for row in rows(await consumer.read_table("T", expression="Aa"))] == ["0", "6", "3", "9"]
        both = await consumer.read_table("T", expression="BB || C")
        assert sorted(int(row[2]) for row in rows(both)) == [1, 2, 4, 5, 7, 8, 10, 11]
        assert (await consumer.read_table("T", expression="none")).num_rows == 0


@pytest.mark.parametrize("expression", ["*", "even"])
async def test_time_range_excludes_its_end(driver, expression):
    await driver.create_topic("T")
    broker = driver.platform.broker.broker
    times: list[int] = []
    for part in range(3):
        before_ms = broker.now_ms()
        await eventually(lambda before_ms=before_ms: broker.now_ms() > before_ms)
        times.append(broker.now_ms())
        for number in range(part * 10, part * 10 + 10):
            await driver.send("T", [str(number)], tags="odd" if number % 2 else "even")
    wanted = [str(number) for number in range(30) if expression == "*" or number % 2 == 0]
    third = len(wanted) // 3
    moments = [datetime.fromtimestamp(ms / 1000, tz=UTC) for ms in times]
    async with Consumer(driver.name_servers, group="readers") as consumer:

        async def bodies_of(start: object, end: object) -> list[str]:
            table = await consumer.read_table("T", start, end, expression=expression)
            return [row[2] for row in rows(table)]

        assert await bodies_of("first", times[1]) == wanted[:third]
        assert await bodies_of(times[1], times[2]) == wanted[third : 2 * third]
        assert await bodies_of(moments[1], moments[2]) == wanted[third : 2 * third]
        assert await bodies_of(times[2], "last") == wanted[2 * third :]
        assert await bodies_of(0, broker.now_ms() + 60_000) == wanted
        assert await bodies_of(times[2], times[1]) == []
        assert await bodies_of("last", "first") == []


async def test_empty_topic_gives_an_empty_table_and_an_unknown_one_is_refused(driver):
    await driver.create_topic("T", queues=2)
    async with Consumer(driver.name_servers, group="readers") as consumer:
        table = await consumer.read_table("T")
        assert table.num_rows == 0
        assert "body" in table.column_names
        with pytest.raises(UnknownTopic):
            await consumer.read_table("nowhere")


async def test_unknown_column_is_refused_by_name(driver):
    await driver.create_topic("T")
    await driver.send("T", ["a"])
    async with Consumer(driver.name_servers, group="readers") as consumer:
        with pytest.raises(Refused, match="colour"):
            await consumer.read_table("T", columns=["body", "colour"])


async def test_a_body_that_does_not_decompress_leaves_the_topic_readable(driver, caplog):
    await driver.create_topic("T", queues=2)
    broken = Draft(body=b"no zlib", sys_flag=COMPRESSED_FLAG, properties=b"TAGS\x01t\x02")
    await driver.send("T", ["a"], tags="t")
    await driver.platform.broker.broker.store.append(Queue("T", 0), [broken])
    await driver.send("T", ["b"], tags="t")
    await driver.send("T", ["c"], 1, tags="t")
    async with Consumer(driver.name_servers, group="readers") as consumer:
        table = await consumer.read_table("T")
        assert table.column_names[-1] == "decode_error"
        assert table.column("body").to_pylist() == [b"a", None, b"b", b"c"]
        errors = table.column("decode_error").to_pylist()
        assert [error is None for error in errors] == [True, False, True, True]
        assert "not a valid zlib stream" in errors[1]
        (warning,) = [each.getMessage() for each in caplog.records if each.name == table_reader.__name__]
        assert warning.startswith("1 messages of queue T/sparrow/0 are read with a null body")
        assert "The first is at offset 1: the body is not a valid zlib stream" in warning

        pruned = await consumer.read_table("T", columns=["body"], expression="t")
        assert pruned.to_pydict() == {"body": [b"a", None, b"b", b"c"]}
        kept = await consumer.read_table("T", columns=["body", "queue_offset"], on_undecodable="skip")
        assert kept.to_pydict() == {"body": [b"a", b"b", b"c"], "queue_offset": [0, 2, 0]}
        assert "1 messages of queue T/sparrow/0 are left out" in caplog.text
        with pytest.raises(ProtocolError, match="T/sparrow/0 at offset 1 cannot be read"):
            await consumer.read_table("T", on_undecodable="raise")
        assert (await consumer.read_table("T", columns=["queue_offset"], on_undecodable="raise")).num_rows == 4
        with pytest.raises(SettingsError, match="on_undecodable"):
            await consumer.read_table("T", on_undecodable="ignore")
