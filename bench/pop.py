"""Receiving and acknowledging by pop: one Python consumer, batches of 32, a broker in a separate process.

The consumer does all work of a client: it decodes the messages and builds the acknowledgements. The peer in the same
run is a consumer that pulls and decodes the same messages. The report also shows the broker's CPU time per message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import uvloop

from _harness import Row, folder_on_disk, is_smoke, report
from broker import broker, cpu_of
from sparrow.net import Address, Channel, connect
from sparrow.wire import batch, bodies, headers, record
from sparrow.wire.bodies.pop import Ack, BatchAck, encode_bitset
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import AckMessage, PopMessage, PopMessageResponse, PullMessage, SendMessageV2
from sparrow.wire.headers.pull import SUBSCRIPTION_FLAG

TOPIC = "bench_pop"
QUEUES = 4
BATCH = 32
INVISIBLE_MS = 60_000
CONSUMERS = 4
"""Pops a consumer has on the wire at a time."""
BODY = b"x" * 100
PROPERTIES = b"UNIQ_KEY\x017F0000010A2B18B4AAC2000000000001\x02TAGS\x01paid\x02KEYS\x01order-1\x02WAIT\x01true\x02"


async def fill(channel: Channel, count: int) -> None:
    members = batch.encode([(0, BODY, PROPERTIES)] * 500)
    for number in range(count // 500):
        header = SendMessageV2("bench", TOPIC, "TBW102", QUEUES, number % QUEUES, 0, 1, 0, "", batch=True)
        answer = await channel.request(RequestCode.SEND_BATCH_MESSAGE, header, members, timeout_ms=10_000)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def pop(channel: Channel, group: str) -> RemotingCommand:
    header = PopMessage(group, TOPIC, -1, BATCH, INVISIBLE_MS, 0, int(time.time() * 1000), 0, "TAG", "*")
    return await channel.request(RequestCode.POP_MESSAGE, header, timeout_ms=10_000)


def entries(text: str | None) -> dict[str, str]:
    """Return the text of each queue."""
    return {entry.split(" ")[1]: entry.split(" ")[2] for entry in (text or "").split(";")}


async def receive_in_batches(channel: Channel, group: str) -> int:
    """Pop, decode, and acknowledge each batch in one request, until the queues are empty."""
    count = 0
    while (answer := await pop(channel, group)).code == ResponseCode.SUCCESS:
        count += len(record.decode_all(answer.body))
        response = headers.read(PopMessageResponse, answer.ext)
        taken = entries(response.message_offsets)
        acks = []
        for queue, start in entries(response.start_offsets).items():
            places = [int(offset) - int(start) for offset in taken[queue].split(",")]
            bits = encode_bitset(places)
            acks.append(
                Ack(
                    group,
                    TOPIC,
                    "0",
                    int(start),
                    int(queue),
                    response.revive_queue,
                    response.pop_ms,
                    INVISIBLE_MS,
                    bits,
                )
            )
        body = bodies.write(BatchAck("sparrow", acks))
        acked = await channel.request(RequestCode.BATCH_ACK_MESSAGE, headers.BatchAckMessage(), body, timeout_ms=10_000)
        assert acked.code == ResponseCode.SUCCESS, acked.remark
    return count


async def receive_one_by_one(channel: Channel, group: str) -> int:
    """Pop, decode, and acknowledge each message in a separate request, as Java's consumer does."""
    count = 0
    while (answer := await pop(channel, group)).code == ResponseCode.SUCCESS:
        response = headers.read(PopMessageResponse, answer.ext)
        starts = entries(response.start_offsets)
        requests: list[Awaitable[RemotingCommand]] = []
        for message in record.decode_all(answer.body):
            queue_id, offset = message.queue_id, message.queue_offset
            handle = f"{starts[str(queue_id)]} {response.pop_ms} {INVISIBLE_MS} 0 0 sparrow {queue_id} {offset}"
            header = AckMessage(group, TOPIC, queue_id, handle, offset)
            requests.append(channel.request(RequestCode.ACK_MESSAGE, header, timeout_ms=10_000))
        for acked in await asyncio.gather(*requests):
            assert acked.code == ResponseCode.SUCCESS, acked.remark
        count += len(requests)
    return count


async def pull_all(channel: Channel, queue_ids: Iterable[int]) -> int:
    """Pull the same messages in the same batches, for comparison."""
    count = 0
    for queue_id in queue_ids:
        offset = 0
        while True:
            header = PullMessage("pullers", TOPIC, queue_id, offset, BATCH, SUBSCRIPTION_FLAG, 0, 0, 0, "*", "TAG")
            answer = await channel.request(RequestCode.PULL_MESSAGE, header, timeout_ms=10_000)
            if answer.code != ResponseCode.SUCCESS:
                break
            messages = record.decode_all(answer.body)
            count += len(messages)
            offset = messages[-1].queue_offset + 1
    return count


async def measure(pid: int, work: Callable[[], Awaitable[int]], count: int) -> tuple[float, float]:
    """Return messages per second, and the broker's CPU time per message in microseconds."""
    begun, cpu = time.perf_counter(), cpu_of(pid)
    received = await work()
    took, cost = time.perf_counter() - begun, cpu_of(pid) - cpu
    assert received == count, f"{received} of {count} messages were received"
    return count / took, cost / count * 1e6


async def receive_concurrently(receive: Callable[[Channel, str], Awaitable[int]], channel: Channel, group: str) -> int:
    return sum(await asyncio.gather(*(receive(channel, group) for _ in range(CONSUMERS))))


async def run(folder: Path) -> list[Row]:
    count = 2_000 if is_smoke() else 100_000
    rounds = 1 if is_smoke() else 3
    with broker(folder) as (pid, port, _):
        channel = await connect(Address("127.0.0.1", port))
        await fill(channel, count)

        async def best(name: str, receive: Callable[[Channel, str], Awaitable[int]]) -> tuple[float, float]:
            runs = [
                await measure(pid, lambda group=f"{name}{number}": receive_concurrently(receive, channel, group), count)  # type: ignore[misc]
                for number in range(rounds)
            ]
            return max(rate for rate, _ in runs), min(cost for _, cost in runs)

        batched, batched_us = await best("batched", receive_in_batches)
        single, single_us = await best("single", receive_one_by_one)
        pulled, pulled_us = await measure(pid, lambda: pull_all(channel, range(QUEUES)), count)
        channel.close()
    goal = None if is_smoke() else 30_000.0
    return [
        Row("pop and batch ack", batched, "messages/s", goal),
        Row("pop and ack one by one", single, "messages/s"),
        Row("pull, the peer", pulled, "messages/s"),
        Row("pop and batch ack: broker CPU", batched_us, "µs/message"),
        Row("pop and ack one by one: broker CPU", single_us, "µs/message"),
        Row("pull: broker CPU", pulled_us, "µs/message"),
    ]


def main() -> None:
    with folder_on_disk() as folder:
        report("pop", uvloop.run(run(folder)))


if __name__ == "__main__":
    main()
