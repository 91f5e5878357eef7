"""Write one partition in a task: encode rows and send them to brokers while Spark computes the next rows.

1. `exactlyOnce`: rows go to stages with names that only this attempt has. The driver commits only stages of attempts
   that succeed.
2. `idempotent`: rows are appended in numbered chunks of a fixed size. A broker drops chunks that it has already. The
   chunks do not depend on how Spark divides its batches.
3. `atLeastOnce`: rows are sent, see `at_least_once`.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Iterator

import pyarrow as pa

from sparrow import clock
from sparrow.client.aio.produce import staging
from sparrow.model.errors import Refused, SparrowError
from sparrow.spark.client_pool import PooledClient
from sparrow.spark.sink.at_least_once import AtLeastOnceWriter
from sparrow.spark.sink.commit_messages import StagedRows, TaskCommit
from sparrow.spark.sink.driver_commit import discard_stages
from sparrow.spark.sink.message_columns import ColumnLayout, MessageRows
from sparrow.spark.sink.options import DeliveryGuarantee, SinkOptions
from sparrow.spark.sink.ordered_sends import OrderedSends
from sparrow.spark.sink.queue_selection import select_queues, split_by_topic
from sparrow.spark.sink.record_encoder import BlobBuilder, RecordEncoder, split_rows
from sparrow.spark.sink.write_context import PartitionWriter, WriteContext, WriteTask

__all__ = ["WriteTask", "rechunk", "write_partition"]

CHUNK_NUMBER_BITS = 24
"""Low bits of a ledger number with the number of the chunk; the high bits hold the number of the batch."""


def write_partition(
    batches: Iterable[pa.RecordBatch], layout: ColumnLayout, options: SinkOptions, task: WriteTask, client: PooledClient
) -> TaskCommit:
    """Write a partition and return its commit message."""
    work = WriteContext.open(task, layout.topic, options, client)
    if options.delivery is DeliveryGuarantee.IDEMPOTENT:
        batches = rechunk(batches, options.chunk_rows)
    writer = _WRITERS[options.delivery](work)
    rows = 0
    try:
        for batch in batches:
            if batch.num_rows:
                writer.add(layout.rows(batch, first=rows))
                rows += batch.num_rows
        stages = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return TaskCommit(task.write_id, task.partition, rows, stages, work.routes.brokers())


def rechunk(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Divide the same rows into batches of this size; the last may be smaller."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while batch.num_rows:
            part = batch.slice(0, rows - count)
            batch = batch.slice(part.num_rows)
            waiting.append(part)
            count += part.num_rows
            if count == rows:
                yield _concatenate(waiting)
                waiting, count = [], 0
    if waiting:
        yield _concatenate(waiting)


def _concatenate(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


class RecordWriter(ABC):
    """Encodes rows as blobs of records, which go one after the other to each broker."""

    def __init__(self, work: WriteContext) -> None:
        self._work = work
        self._encoder = RecordEncoder(work.options, work.ids, clock.now_ms)
        self._sends = OrderedSends(work.options.max_in_flight_bytes)
        self._builders: dict[str, BlobBuilder] = {}
        """By broker."""

    @abstractmethod
    def _send(self, broker: str, address: str, number: int, blob: bytes) -> Awaitable[object]:
        """Send the next blob to a broker. May be called again with the same blob."""

    def add(self, rows: MessageRows) -> None:
        for topic, topic_rows in split_by_topic(rows, self._work.topic):
            queues = self._work.routes[topic].write_queues
            for piece in split_rows(topic_rows):
                for broker, batch in self._encoder.encode_batches(piece, queues, select_queues(piece, len(queues))):
                    builder = self._builders.setdefault(broker, BlobBuilder(topic))
                    if (blob := builder.add(batch)) is not None:
                        self._submit(broker, builder, blob)

    def _flush(self) -> None:
        for broker, builder in self._builders.items():
            if (blob := builder.take()) is not None:
                self._submit(broker, builder, blob)

    def _submit(self, broker: str, builder: BlobBuilder, blob: bytes) -> None:
        number, topic = builder.blobs - 1, builder.topic

        def send() -> Awaitable[object]:
            return self._work.brokers.call(broker, topic, lambda address: self._send(broker, address, number, blob))

        self._work.client.run(self._sends.submit(broker, len(blob), send))

    def abandon(self) -> None:
        self._work.client.run(self._sends.abandon())


class ExactlyOnceWriter(RecordWriter):
    """Writes rows to stages, which stay invisible until the driver commits."""

    def __init__(self, work: WriteContext) -> None:
        super().__init__(work)
        self._names: dict[str, str] = {}

    def _stage(self, broker: str) -> str:
        return self._names.setdefault(broker, uuid.uuid4().hex)

    def _send(self, broker: str, address: str, number: int, blob: bytes) -> Awaitable[object]:
        session, fills_checksum = self._work.client.session, self._work.options.fills_checksum
        return staging.stage_records(session, address, self._stage(broker), number, blob, fills_checksum=fills_checksum)

    def finish(self) -> tuple[StagedRows, ...]:
        self._flush()
        return self._work.client.run(self._seal_all())

    async def _seal_all(self) -> tuple[StagedRows, ...]:
        await self._sends.finish()
        return tuple([await self._seal(broker) for broker in sorted(self._builders)])

    async def _seal(self, broker: str) -> StagedRows:
        builder, name, session = self._builders[broker], self._stage(broker), self._work.client.session
        sealed = await self._work.brokers.call(
            broker, builder.topic, lambda address: staging.seal_stage(session, address, name, builder.blobs)
        )
        if sealed.rows != builder.rows:
            raise SparrowError(
                f"broker {broker!r} has staged {sealed.rows} rows, but {builder.rows} were sent: the write is aborted"
            )
        return StagedRows(broker, builder.topic, name, sealed.rows, sealed.bytes)

    def abandon(self) -> None:
        super().abandon()
        staged = [StagedRows(broker, each.topic, self._stage(broker), 0, 0) for broker, each in self._builders.items()]
        self._work.client.run(discard_stages(self._work.client.session, self._work.brokers, staged))


class IdempotentWriter(RecordWriter):
    """Appends rows immediately, in numbered chunks."""

    def add(self, rows: MessageRows) -> None:
        super().add(rows)
        self._flush()  # a chunk ends here, even if the blob has space left

    def _send(self, broker: str, address: str, number: int, blob: bytes) -> Awaitable[object]:
        if number >> CHUNK_NUMBER_BITS:
            raise Refused(f"a partition has more than {1 << CHUNK_NUMBER_BITS} chunks: increase the option chunkRows")
        batch, session = self._work.task.write_id.number, self._work.client.session
        scope = f"{self._work.task.write_id.scope}/{self._work.task.partition}"
        fills_checksum = self._work.options.fills_checksum
        return staging.append_once(
            session, address, scope, batch << CHUNK_NUMBER_BITS | number, blob, fills_checksum=fills_checksum
        )

    def finish(self) -> tuple[StagedRows, ...]:
        self._work.client.run(self._sends.finish())
        return ()


_WRITERS: dict[DeliveryGuarantee, type[PartitionWriter]] = {
    DeliveryGuarantee.EXACTLY_ONCE: ExactlyOnceWriter,
    DeliveryGuarantee.IDEMPOTENT: IdempotentWriter,
    DeliveryGuarantee.AT_LEAST_ONCE: AtLeastOnceWriter,
}
