"""A store directory written by Apache RocketMQ's broker can be opened and reads as RocketMQ's client read it.

`tests/fixtures/rocketmq_store` holds one stopped cleanly, one copied while running, and the official client's results.
"""

import json
from pathlib import Path

import pytest

from sparrow.model import Draft, Queue, StoredMessage
from sparrow.settings import LogSettings
from sparrow.spark.runtime.tar_archive import extract
from sparrow.store.log import LogStore
from sparrow.store.spi import AtEnd, Slice
from sparrow.wire import record

FIXTURE = Path(__file__).parents[1] / "fixtures" / "rocketmq_store"
EXPECTED = json.loads((FIXTURE / "expected.json").read_text())
SETTINGS = LogSettings(index_slots=100, index_entries=200)


@pytest.fixture(params=["clean", "crashed"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    extract(FIXTURE / f"{request.param}.tar.xz", tmp_path / "store")
    return tmp_path / "store"


async def whole(store: LogStore, queue: Queue) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    while isinstance(found := await store.read(queue, len(messages), bytes_max=4096), Slice):
        messages += record.decode_all(found.tobytes())
    assert isinstance(found, AtEnd)
    return messages


def host(text: str) -> tuple[bytes, int]:
    address, port = text.rsplit(":", 1)
    return bytes(int(part) for part in address.split(".")), int(port)


async def test_every_message_equals_what_the_official_client_read(directory: Path) -> None:
    async with LogStore(directory, SETTINGS) as store:
        assert store.damage == []
        for queue in {Queue(each["topic"], each["queueId"]) for each in EXPECTED["messages"]}:
            expected = [each for each in EXPECTED["messages"] if Queue(each["topic"], each["queueId"]) == queue]
            messages = await whole(store, queue)
            assert len(messages) == len(expected) == (await store.bounds(queue)).end
            for message, want in zip(messages, expected, strict=True):
                assert message.body.hex() == want["body"]
                assert message.properties == want["properties"]
                assert message.queue_offset == want["queueOffset"]
                assert message.physical_offset == want["commitLogOffset"]
                assert message.flag == want["flag"]
                assert message.born_ms == want["bornTimestamp"]
                assert (message.born_host.ip, message.born_host.port) == host(want["bornHost"])
                assert message.store_ms == want["storeTimestamp"]
                assert (message.store_host.ip, message.store_host.port) == host(want["storeHost"])
                assert message.reconsume_times == want["reconsumeTimes"]
                assert message.prepared_offset == want["preparedTransactionOffset"]


async def test_messages_of_system_queues_are_readable(directory: Path) -> None:
    async with LogStore(directory, SETTINGS) as store:
        for want in EXPECTED["systemMessages"]:
            queue = Queue(want["topic"], want["queueId"])
            found = await store.read(queue, want["queueOffset"], count_max=1)
            assert isinstance(found, Slice)
            (message,) = record.decode_all(found.tobytes())
            assert message.body.hex() == want["body"]
            assert message.physical_offset == want["commitLogOffset"]


async def test_bounds_committed_offsets_topics_and_groups_are_imported(directory: Path) -> None:
    async with LogStore(directory, SETTINGS) as store:
        topics, groups = await store.catalog.list_topics(), await store.catalog.list_groups()
        assert topics["TopicTest"].read_queues == 2
        assert topics["Orders"].write_queues == 1
        assert groups["fixture_group"].retries_max == 16
        for want in EXPECTED["queues"]:
            queue = Queue(want["topic"], want["queueId"])
            assert tuple(await store.bounds(queue)) == (want["minOffset"], want["maxOffset"])
            for group, offset in want.get("committed", {}).items():
                assert await store.offsets.committed(group, queue) == offset


async def test_searches_by_time_and_key_agree_with_the_broker(directory: Path) -> None:
    async with LogStore(directory, SETTINGS) as store:
        for want in EXPECTED["searchByTime"]:
            queue = Queue(want["topic"], want["queueId"])
            assert await store.offset_at(queue, want["timestamp"]) == want["lowerBound"]
        by_offset = {each["commitLogOffset"]: each for each in EXPECTED["messages"]}
        for want in EXPECTED["queryByKey"]:
            found = [record.decode(data) for data in await store.find_by_key(want["topic"], want["key"], limit=64)]
            # RocketMQ leaves hash collisions and repeated keys to its clients; Sparrow does not.
            exact = {
                offset
                for offset in want["offsets"]
                if want["key"] in by_offset[offset]["properties"].get("KEYS", "").split(" ")
                or by_offset[offset]["properties"].get("UNIQ_KEY") == want["key"]
            }
            assert {message.physical_offset for message in found} == exact


async def test_messages_can_be_appended_and_the_store_reopened(directory: Path) -> None:
    queue = Queue("TopicTest", 0)
    async with LogStore(directory, SETTINGS) as store:
        end = (await store.bounds(queue)).end
        appended = await store.append(queue, [Draft(body=b"ours")])
        assert appended.offset == end
    async with LogStore(directory, SETTINGS) as store:
        messages = await whole(store, queue)
        assert messages[-1].body == b"ours"
        assert len(messages) == end + 1
        assert (await store.offsets.committed("fixture_group", queue)) == 40


async def test_consume_queue_entries_of_delayed_messages_contain_the_delivery_time(directory: Path) -> None:
    with LogStore(directory, SETTINGS) as store:
        (want,) = (each for each in EXPECTED["systemMessages"] if each["topic"] == "SCHEDULE_TOPIC_XXXX")
        entry = (directory / "consumequeue/SCHEDULE_TOPIC_XXXX/0/00000000000000000000").read_bytes()[:20]
        assert int.from_bytes(entry[12:20], "big") == want["storeTimestamp"] + 1000
        assert store.damage == []
