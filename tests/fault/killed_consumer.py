"""The child process of `test_rebalance`: a consumer that records its messages until it is killed or asked to leave.

It appends lines to a file, each one atomically, and a kill loses none of them: `shares queue ...` for each computed
allocation of its queues, and `given queue offset` for each message passed to its handler.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from sparrow.client.aio.consume.consumer import Consumer
from sparrow.client.consume.allocation import averagely
from sparrow.client.options import Prefetch
from sparrow.model.message import StoredMessage
from sparrow.wire.bodies import QueueRef

GROUP, TOPIC = "readers", "T"
PREFETCH = Prefetch(count_max=200, pull_count_max=32)
WORKERS = 10
HANDLING_S = 0.001
COMMIT_INTERVAL_MS = 500


async def main(name_servers: str, path: str) -> None:
    file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def write_line(*words: object) -> None:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())

    def strategy(group: str, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
        mine = averagely(group, client_id, queues, client_ids)
        if queues and queues[0].topic == TOPIC:
            write_line("shares", *(queue.queue_id for queue in mine))
        return mine

    async def handler(message: StoredMessage) -> None:
        write_line("given", message.queue_id, message.queue_offset)
        await asyncio.sleep(HANDLING_S)

    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    async with Consumer(
        name_servers, group=GROUP, strategy=strategy, prefetch=PREFETCH, commit_interval_ms=COMMIT_INTERVAL_MS
    ) as consumer:
        await consumer.subscribe(TOPIC)
        await consumer.start(handler, workers=WORKERS)
        await leave.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
