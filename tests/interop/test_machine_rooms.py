"""Java's AllocateMachineRoomNearby and Sparrow's `machine_room_nearby` in one group, on brokers named `room@name`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.interop.java import SETTLE_S, java_client
from tests.interop.official import Kit
from tests.support.recording_handlers import RecordingHandler
from tests.support.server_processes import broker_process
from tests.support.wait import eventually

from sparrow import Message, QueueRef, machine_room_nearby
from sparrow.client.aio import Admin, Consumer, Producer
from sparrow.nameserver.server import NameServer
from sparrow.settings import NameServerSettings

pytestmark = pytest.mark.timeout(300)
QUEUES = 4
EAST, WEST = "east@a", "west@b"


async def send_to_all_queues(producer: Producer, label: str) -> dict[str, set[str]]:
    """Send a message to each queue; return the bodies by broker."""
    sent: dict[str, set[str]] = {EAST: set(), WEST: set()}
    for broker_name, bodies in sent.items():
        for queue_id in range(QUEUES):
            body = f"{label} {broker_name} {queue_id}"
            await producer.send(Message("T", body), queue=QueueRef("T", broker_name, queue_id))
            bodies.add(body)
    return sent


async def test_java_and_python_read_the_queues_of_their_own_rooms(kit: Kit, tmp_path: Path) -> None:
    async with NameServer(NameServerSettings(port=0)) as naming:
        names = str(naming.address)
        async with (
            broker_process(EAST, tmp_path / "east", names),
            broker_process(WEST, tmp_path / "west", names),
            Admin(names) as admin,
            Producer(names) as producer,
        ):
            await admin.create_topic("T", QUEUES)
            (tmp_path / "java").mkdir()
            handler = RecordingHandler()
            ours = Consumer(names, group="g", strategy=machine_room_nearby(), instance_name="east@ours")

            def has(*broker_names: str) -> bool:
                expected = [QueueRef("T", name, queue_id) for name in broker_names for queue_id in range(QUEUES)]
                return [queue for queue in ours.queues if queue.topic == "T"] == expected

            with java_client(kit, names, tmp_path / "java") as java:
                async with ours:
                    await ours.subscribe("T")
                    await ours.start(handler)
                    await eventually(lambda: has(EAST, WEST), within_s=SETTLE_S)
                    theirs = await asyncio.to_thread(java.push_consumer, "g", "T", room="west")
                    await eventually(lambda: has(EAST), within_s=SETTLE_S)
                    await asyncio.to_thread(theirs.queues, QUEUES)
                    sent = await send_to_all_queues(producer, "both")
                    seen = await asyncio.to_thread(theirs.receive, QUEUES)
                    assert {message.body for message in seen} == sent[WEST]
                    await eventually(lambda: set(handler.texts) == sent[EAST])
                    await asyncio.to_thread(theirs.stop)  # the west has no consumer now
                    await eventually(lambda: has(EAST, WEST), within_s=SETTLE_S)
                    alone = await send_to_all_queues(producer, "alone")
                    await eventually(lambda: alone[EAST] | alone[WEST] <= set(handler.texts))
