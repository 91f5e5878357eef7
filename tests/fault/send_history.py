"""What senders of numbered messages were told, and the check of it against what replicas have stored.

1. Every acknowledged message is stored at the queue and offset that its sender was told.
2. The acknowledged messages of a sender are in each queue in the order in which they were sent.
3. A message is stored again only after a send that was not acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from tests.support.drafts import decode_bodies
from tests.support.server_processes import SMALL_LOG

from sparrow import Message, aio
from sparrow.model.errors import SparrowError
from sparrow.model.queue import Queue
from sparrow.settings import LogSettings
from sparrow.store.log import LogStore
from sparrow.store.spi import Slice

TOPIC = "orders"
QUEUES_MAX = 16
RETRY_S = 0.02

Place = tuple[int, int]
"""A queue, and an offset in it."""


class SendHistory:
    """The sends of all senders. A body is the name of its sender, a hyphen and a number."""

    def __init__(self) -> None:
        self.acknowledged: dict[Place, bytes] = {}
        self.attempts: Counter[str] = Counter()
        """How many sends each sender has tried."""
        self.confirmed: Counter[str] = Counter()
        """How many sends of each sender were acknowledged."""
        self.failures: Counter[str] = Counter()
        """Why sends failed."""

    def tried(self, sender: str) -> None:
        self.attempts[sender] += 1

    def failed(self, why: str) -> None:
        self.failures[why] += 1

    def told(self, body: bytes, place: Place) -> None:
        """Note an acknowledgement."""
        assert place not in self.acknowledged, f"{body!r} and {self.acknowledged[place]!r} are both at {place}"
        self.acknowledged[place] = body
        self.confirmed[body.rpartition(b"-")[0].decode()] += 1

    async def send(self, producer: aio.Producer, sender: str, is_over: asyncio.Event) -> None:
        """Send numbered messages, each until it is acknowledged. The producer repeats none itself."""
        number = 0
        while not is_over.is_set():
            body = f"{sender}-{number}".encode()
            self.tried(sender)
            try:
                result = await producer.send(Message(TOPIC, body))
            except SparrowError as error:
                self.failed(f"{type(error).__name__}: {error}")
                await asyncio.sleep(RETRY_S)
                continue
            if not result.is_ok:  # written, and too few replicas have it: it may survive or not
                self.failed(result.status.name)
                continue
            self.told(body, (result.queue_id, result.queue_offset))
            number += 1

    def check(self, stored: dict[Place, bytes]) -> Counter[str]:
        """Compare with what a replica has stored; return how many messages of each sender are there again."""
        lost = {place: body for place, body in self.acknowledged.items() if stored.get(place) != body}
        assert not lost, f"{len(lost)} acknowledged messages are lost or replaced, such as {next(iter(lost.items()))}"
        newest: dict[tuple[int, bytes], int] = {}
        for (queue, _), body in sorted(self.acknowledged.items()):
            sender, _, number = body.rpartition(b"-")
            assert int(number) > newest.get((queue, sender), -1), f"{body!r} is out of order in queue {queue}"
            newest[queue, sender] = int(number)
        counts: Counter[str] = Counter()
        for body, count in Counter(stored.values()).items():
            counts[body.rpartition(b"-")[0].decode()] += count - 1
        for name, count in counts.items():
            failed = self.attempts[name] - self.confirmed[name]
            assert count <= failed, f"{name}: {count} messages are there again, after {failed} failed sends"
        return counts


async def stored_in(path: Path, segment_bytes: int) -> dict[Place, bytes]:
    """Return the messages of the topic in the directory of a replica that has ended."""
    small = {name.lower(): value for name, value in SMALL_LOG.items()}
    settings = LogSettings(**small | {"segment_bytes": segment_bytes})
    found: dict[Place, bytes] = {}
    async with await asyncio.to_thread(LogStore, path, settings, follows=True) as store:
        for queue in range(QUEUES_MAX):
            offset = 0
            while isinstance(read := await store.read(Queue(TOPIC, queue), offset, count_max=1000), Slice):
                bodies = decode_bodies(read)
                found |= {(queue, offset + number): body for number, body in enumerate(bodies)}
                offset = int(read.next_offset)
    return found
