"""The child process of tests that kill consumers: it records what is passed to its handler, and when.

It appends lines to a file, each one atomically, so that a kill loses none: `given queue offset moment` when the handler
is called, `done queue offset moment` when it returns. Moments are of CLOCK_MONOTONIC, which all processes share.
SIGTERM closes the consumer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

import sparrow
from sparrow import aio
from sparrow.model.message import StoredMessage


class ChildOptions(msgspec.Struct):
    """What the child is told, as JSON on its command line."""

    name_servers: str
    path: str
    topic: str
    group: str
    is_orderly: bool = False
    is_blocking: bool = False
    workers: int = 8
    handling_s: float = 0.005
    consumer: dict[str, Any] = {}
    """Options of the consumer."""


class Record(msgspec.Struct, frozen=True):
    """A line of a child's file."""

    kind: str
    queue_id: int
    offset: int
    moment: float


class RecordingConsumer:
    """A consumer in a process of its own."""

    def __init__(self, options: ChildOptions) -> None:
        self._options = options
        self.path = Path(options.path)
        self._read_bytes = 0
        self.records: list[Record] = []
        self.process: asyncio.subprocess.Process

    async def start(self, environment: dict[str, str]) -> None:
        words = (__file__, msgspec.json.encode(self._options).decode())
        self.process = await asyncio.create_subprocess_exec(sys.executable, *words, env=environment)

    async def end(self, number: signal.Signals) -> None:
        """End the process, and read its last records."""
        if self.process.returncode is None:
            self.process.send_signal(number)
            await self.process.wait()
        self.look()

    def look(self) -> list[Record]:
        """Read new records, and return all."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read_bytes += len(whole) + len(newline)
            for line in whole.decode().splitlines():
                kind, queue_id, offset, moment = line.split()
                self.records.append(Record(kind, int(queue_id), int(offset), float(moment)))
        return self.records

    def given(self) -> list[tuple[int, int]]:
        """Return queue and offset of each message that was passed to the handler."""
        return [(record.queue_id, record.offset) for record in self.look() if record.kind == "given"]

    @property
    def in_hand(self) -> int:
        """How many messages were passed to the handler that did not return."""
        kinds = [record.kind for record in self.look()]
        return kinds.count("given") - kinds.count("done")


def main(options: ChildOptions) -> None:
    file = os.open(options.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def write(kind: str, message: StoredMessage) -> None:
        os.write(file, f"{kind} {message.queue_id} {message.queue_offset} {time.monotonic()}\n".encode())

    (_run_blocking if options.is_blocking else _run_asyncio)(options, write)


def _run_asyncio(options: ChildOptions, write: Any) -> None:
    async def handle(message: StoredMessage) -> None:
        write("given", message)
        await asyncio.sleep(options.handling_s)
        write("done", message)

    async def run() -> None:
        leave = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
        async with aio.Consumer(options.name_servers, group=options.group, **options.consumer) as consumer:
            await consumer.subscribe(options.topic)
            await consumer.start(handle, workers=options.workers, orderly=options.is_orderly)
            await leave.wait()

    asyncio.run(run())


def _run_blocking(options: ChildOptions, write: Any) -> None:
    def handle(message: StoredMessage) -> None:
        write("given", message)
        time.sleep(options.handling_s)
        write("done", message)

    leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    with sparrow.Consumer(options.name_servers, group=options.group, **options.consumer) as consumer:
        consumer.subscribe(options.topic)
        consumer.start(handle, workers=options.workers, orderly=options.is_orderly)
        leave.wait()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=ChildOptions))
