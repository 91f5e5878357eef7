"""What a request costs in Python: decoding, handling and encoding, without sockets and without a second process.

The broker runs in this process. Frames are passed to a connection's protocol as a socket would pass them, and the
answers are dropped. Neither the kernel nor a load takes part, so a change of the code is seen more clearly than with
`bench/broker.py`: compare two versions in turn.
"""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import uvloop

from _harness import Row, folder_on_disk, is_smoke, report
from broker import BODY, IN_FLIGHT, pull_frame, send_frame
from sparrow.cli.server.platform import Platform
from sparrow.net.channel import Channel
from sparrow.settings import BrokerSettings, NameServerSettings
from sparrow.wire import batch, headers
from sparrow.wire.batch import BatchMessage
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand, Serialization, encode
from sparrow.wire.headers import SendMessageV2
from transactions import commit_frame, half_frame

ROUNDS = 2 if is_smoke() else 9
SENDS = 500 if is_smoke() else 20_000
_PLACES = re.compile(rb'"msgId":"[0-9A-F]{16}([0-9A-F]{16})".*?"queueOffset":"(\d+)"')


class DroppingTransport(asyncio.Transport):
    """A transport that drops what is written, or keeps it while `kept` is a list."""

    kept: list[bytes] | None = None
    is_paused = False

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"peername": ("127.0.0.1", 40_000), "socket": socket.socket()}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.kept is not None:
            self.kept.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def abort(self) -> None: ...


def binary_send_frame(opaque: int) -> bytes:
    properties = f"UNIQ_KEY\x017F0000010A2B18B4AAC20000000{opaque % 99_999:05d}\x02TAGS\x01paid\x02WAIT\x01true\x02"
    header = SendMessageV2("bench", "bench", "TBW102", 4, opaque % 4, 0, 1_700_000_000_000, 0, properties)
    ext = headers.write(header)
    return encode(
        RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque, ext=ext, body=BODY, serialization=Serialization.BINARY)
    )


def batch_frame(opaque: int, count: int) -> bytes:
    """A batch as RocketMQ's Java client sends it: messages with a unique id, without tags."""
    header = SendMessageV2("bench", "bench", "TBW102", 4, opaque % 4, 0, 1_700_000_000_000, 0, "", batch=True)
    body = batch.encode(
        [
            BatchMessage(0, BODY, b"UNIQ_KEY\x017F0000010A2B18B4AAC2%012X\x02WAIT\x01true\x02" % (opaque * count + n))
            for n in range(count)
        ]
    )
    return encode(RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, opaque, ext=headers.write(header), body=body))


class HandlerBench:
    """Feeds frames to one connection of a broker."""

    def __init__(self, platform: Platform) -> None:
        self._transport = DroppingTransport()
        self._channel: Channel = platform.broker._listener._accept()
        self._channel.connection_made(self._transport)

    async def feed(self, reads: list[bytes]) -> float:
        """Pass what a socket would have read, and return the CPU time of this thread."""
        begun = time.thread_time()
        for number, data in enumerate(reads):
            self._channel.data_received(data)
            while self._transport.is_paused or number % 64 == 63:
                await asyncio.sleep(0)
                number = 0
        await asyncio.sleep(0)
        return time.thread_time() - begun

    async def answers(self, reads: list[bytes]) -> bytes:
        self._transport.kept = kept = []
        await self.feed(reads)
        self._transport.kept = None
        return b"".join(kept)

    async def cost_us(self, reads: list[bytes], count: int) -> float:
        """Return the cost of one of `count` messages, in the fastest of several rounds."""
        return min([await self.feed(reads) for _ in range(ROUNDS)]) / count * 1e6

    async def transaction_us(self, count: int) -> float:
        """Return the cost of a half message and its commit."""
        found = []
        for number in range(ROUNDS):
            first = number * count
            halves = b"".join(half_frame(first + n) for n in range(count))
            begun = time.thread_time()
            answered = await self.answers([halves])
            took = time.thread_time() - begun
            places = [(int(offset), int(place, 16)) for place, offset in _PLACES.findall(answered)]
            assert len(places) == count, f"{len(places)} of {count} half messages were stored"
            commits = b"".join(commit_frame(n, *at) for n, at in enumerate(places))
            found.append((took + await self.feed([commits])) / count)
        return min(found) * 1e6


def reads_of(frame: Callable[[int], bytes], count: int, each: int) -> list[bytes]:
    """Return `count` frames, as reads of `each`."""
    frames = [frame(number) for number in range(count)]
    return [b"".join(frames[at : at + each]) for at in range(0, count, each)]


async def measure(folder: Path) -> list[Row]:
    platform = Platform(folder, name_server=NameServerSettings(port=0), broker=BrokerSettings(port=0))
    await platform.start()
    gc.freeze()  # as servers do after their start
    try:
        bench = HandlerBench(platform)
        for topic_frame in (send_frame, half_frame):
            await bench.feed([topic_frame(0)])  # creates the topic
            await asyncio.sleep(0.5)
        await bench.feed(reads_of(send_frame, 2_000, IN_FLIGHT))
        pulls = reads_of(lambda number: pull_frame(number, number % 300), SENDS // 10, 1)
        await bench.feed(pulls[:1])  # creates the group
        await asyncio.sleep(0.5)
        assert len(await bench.answers(pulls[:1])) > 32 * 200, "the pull must return 32 messages"
        pulled = await bench.cost_us(pulls, len(pulls))
        single = await bench.cost_us(reads_of(send_frame, SENDS, IN_FLIGHT), SENDS)
        rows = [
            Row(f"send, reads of {IN_FLIGHT}", single, "µs"),
            Row("send, reads of 1", await bench.cost_us(reads_of(send_frame, SENDS // 4, 1), SENDS // 4), "µs"),
            Row(
                f"send with a binary header, reads of {IN_FLIGHT}",
                await bench.cost_us(reads_of(binary_send_frame, SENDS, IN_FLIGHT), SENDS),
                "µs",
            ),
        ]
        for size in (2, 10, 100, 400):
            count = max(1, SENDS // size)
            reads = reads_of(lambda number, size=size: batch_frame(number, size), count, 1)
            cost = await bench.cost_us(reads, count * size)
            rows.append(Row(f"batch of {size}: a message", cost, "µs"))
            rows.append(Row(f"batch of {size}: a message / a single send", cost / single, "times"))
        rows.append(Row("pull of 32 near the end, reads of 1", pulled, "µs"))
        rows.append(Row("a transaction: half message and commit", await bench.transaction_us(100), "µs"))
        return rows
    finally:
        await platform.stop()


def main() -> None:
    with folder_on_disk() as folder:
        report("handlers", uvloop.run(measure(folder)))


if __name__ == "__main__":
    main()
