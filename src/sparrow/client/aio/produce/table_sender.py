"""Sends of Arrow tables: every row is a message, in large batches, several at a time. No loop runs over rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from sparrow.client.aio.produce.memory_budget import MemoryBudget
from sparrow.client.aio.produce.sender import Sender, SendPayload
from sparrow.model.errors import PartialSend, Refused
from sparrow.model.queue import QueueRef
from sparrow.wire.columns.batch import EncodedBatch, encode_batches

BATCH_BYTES_MAX = 1024 * 1024
"""Of one request: larger ones are not faster, and brokers accept 4 MiB at most."""
_ENCODED_BYTES = 8 * 1024 * 1024
"""How much of a table is encoded at a time: it is held in memory, and the event loop waits for it."""


class MessageColumns(NamedTuple):
    """The columns of messages, all of one length."""

    body: Any
    keys: Any
    tags: Any
    properties: Any

    def slice(self, at: int, rows: int) -> MessageColumns:
        """Return some rows."""
        return MessageColumns(*(column if column is None else column.slice(at, rows) for column in self))


def message_columns(
    table: Any, *, body: str, keys: str | None, tags: str | None, properties: str | None
) -> MessageColumns:
    """Return the columns of an Arrow table, a record batch or a pandas frame that messages are made of."""
    if not isinstance(table, pa.Table | pa.RecordBatch):
        if not hasattr(table, "columns"):
            raise Refused(f"a {type(table).__name__} is no table: pass an Arrow table, a record batch or a DataFrame")
        table = pa.Table.from_pandas(table, preserve_index=False)
    names = table.schema.names
    if body not in names:
        raise Refused(
            f"the table has no column {body!r} for the bodies, only {', '.join(map(repr, names)) or 'none'}: "
            "name the column of the bodies with body=..."
        )

    def optional(name: str | None) -> Any:
        return table.column(name) if name is not None and name in names else None

    return MessageColumns(table.column(body), optional(keys), optional(tags), optional(properties))


def encode_table(columns: MessageColumns) -> Iterator[EncodedBatch]:
    """Encode all rows, in order, into the bodies of requests."""
    rows = len(columns.body)
    row_bytes = sum(column.nbytes for column in columns if column is not None) / max(rows, 1)
    step = max(1, int(_ENCODED_BYTES / max(row_bytes, 1)))
    for at in range(0, rows, step):
        body, keys, tags, properties = columns.slice(at, step)
        yield from encode_batches(body, keys=keys, tags=tags, properties=properties, bytes_max=BATCH_BYTES_MAX)


async def send_table(
    sender: Sender,
    budget: MemoryBudget,
    topic: str,
    columns: MessageColumns,
    *,
    queue: QueueRef | None,
    in_flight: int,
    timeout_ms: int,
) -> int:
    """Send all rows and return how many; raise `PartialSend` if a batch fails."""
    if in_flight < 1:
        raise Refused(f"in_flight is {in_flight}: use 1 or more")
    if queue is not None:
        in_flight = 1  # otherwise a retried batch would be stored after the next one
    acknowledged = 0
    running: set[asyncio.Task[int]] = set()
    failure: BaseException | None = None

    async def deliver(batch: EncodedBatch) -> int:
        await sender.send(topic, SendPayload(batch.data, is_batch=True), queue=queue, timeout_ms=timeout_ms)
        return batch.count

    def settle(done: set[asyncio.Task[int]]) -> None:
        nonlocal acknowledged, failure
        for task in done:
            error = task.exception()
            if error is None:
                acknowledged += task.result()
            else:
                failure = failure or error

    try:
        for batch in encode_table(columns):
            while len(running) >= in_flight:
                done, running = await asyncio.wait(running, return_when="FIRST_COMPLETED")
                settle(done)
            if failure is not None:
                break
            size = len(batch.data)
            await budget.acquire(size)
            task = asyncio.create_task(deliver(batch))
            task.add_done_callback(lambda _, size=size: budget.release(size))  # type: ignore[misc]
            running.add(task)
        while running:
            done, running = await asyncio.wait(running)
            settle(done)
    except asyncio.CancelledError:
        for task in running:
            task.cancel()
        raise
    except Exception as error:  # a row that cannot be encoded; earlier ones may be in flight
        if running:
            settle((await asyncio.wait(running))[0])
        if not acknowledged and failure is None:
            raise
        failure = failure or error
    if failure is not None:
        raise PartialSend(topic, acknowledged, len(columns.body)) from failure
    return acknowledged
