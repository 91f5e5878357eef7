"""Writers of `format("sparrow")` that Spark calls: for batch jobs and for the batches of a stream.

1. Options, columns, the topic and its brokers are checked before the first task runs, as far as possible.
2. A batch of a stream is identified by the query id and the batch number; a batch job by an id that is created with its
   writer, or by `jobKey`. Inside `foreachBatch` a batch job is part of the stream's batch.
3. A batch without rows commits nothing.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sparrow.model.errors import Refused, UnknownTopic
from sparrow.spark.client_pool import CLIENT_POOL, PooledClient
from sparrow.spark.sink import driver_commit, partition_writer
from sparrow.spark.sink.brokers import SinkBrokers
from sparrow.spark.sink.commit_messages import TaskCommit, WriteId
from sparrow.spark.sink.message_columns import ColumnLayout, resolve_columns
from sparrow.spark.sink.options import DeliveryGuarantee, SinkOptions, parse_sink_options

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

CommitMessages = Sequence[WriterCommitMessage | None]

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of Spark tasks that belong to a stream."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicBatchWriter:
    """Return the writer of `df.write.format("sparrow").mode("append")`."""
    if overwrite:
        raise Refused("a topic cannot be overwritten, only appended to: use mode('append')")
    said = parse_sink_options(options)
    return TopicBatchWriter(said, _checked(said, schema))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicStreamWriter:
    """Return the writer of `df.writeStream.format("sparrow")`."""
    if overwrite:
        raise Refused("a topic cannot be overwritten, only appended to: use outputMode('append')")
    said = parse_sink_options(options)
    if said.job_key is not None:
        raise Refused("the option 'jobKey' is for batch jobs, a stream is identified by its checkpoint: remove it")
    try:
        return TopicStreamWriter(said, _checked(said, schema))
    except UnknownTopic:
        # The topic is new, or its brokers are unavailable. A writer is created for every batch; the tasks find out
        # which batch it is.
        return TopicStreamWriter(said, _layout(said, schema))


def _checked(options: SinkOptions, schema: StructType) -> ColumnLayout:
    layout = _layout(options, schema)
    if options.topic is not None:
        client = CLIENT_POOL.get(options.client)
        brokers = _brokers(client, options)
        if options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
            client.run(brokers.route(options.topic, may_be_new=True))
        else:
            client.run(brokers.check_staging(options.topic))
    return layout


def _layout(options: SinkOptions, schema: StructType) -> ColumnLayout:
    return resolve_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], options)


def _brokers(client: PooledClient, options: SinkOptions) -> SinkBrokers:
    return SinkBrokers(client.session, patience_ms=options.commit_timeout_ms, topic_queues=options.topic_queues)


class _Sink:
    """Common parts of both writers. Spark pickles them, so they hold values only."""

    def __init__(self, options: SinkOptions, layout: ColumnLayout) -> None:
        self._options, self._layout = options, layout

    def _written(self, batches: Iterator[pa.RecordBatch], transaction: WriteId, partition: int) -> TaskCommit:
        client = CLIENT_POOL.get(self._options.client)
        task = partition_writer.WriteTask(transaction, partition, can_create_topics=transaction.number == 0)
        return partition_writer.write_partition(batches, self._layout, self._options, task, client)

    def _of_stream(self, context: TaskContext) -> WriteId | None:
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            return None
        return WriteId(f"{query}/{self._options.sink_name}", int(batch))

    def _published(self, messages: CommitMessages) -> bool:
        """Publish the staged rows; return False if they were published before."""
        receipts = _receipts(messages)
        if not any(receipt.stages for receipt in receipts):
            return True
        client = CLIENT_POOL.get(self._options.client)
        return client.run(driver_commit.publish_stages(client.session, _brokers(client, self._options), receipts))

    def _dropped(self, messages: CommitMessages) -> None:
        stages = [staged for receipt in _receipts(messages) for staged in receipt.stages]
        if stages:
            client = CLIENT_POOL.get(self._options.client)
            client.run(driver_commit.discard_stages(client.session, _brokers(client, self._options), stages))


class TopicBatchWriter(_Sink, DataSourceArrowWriter):
    """Writer of a batch job. Pickled copies of one object run in all tasks and in the driver's commit."""

    def __init__(self, options: SinkOptions, layout: ColumnLayout) -> None:
        super().__init__(options, layout)
        self._job = WriteId(f"job/{options.job_key or uuid.uuid4().hex}/{options.sink_name}", 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        context = _context()
        of_stream = self._of_stream(context)
        if of_stream is not None and self._options.job_key is not None:
            raise Refused(
                "inside foreachBatch the batch is identified by its query and the sinkName: remove the option 'jobKey'"
            )
        return self._written(iterator, of_stream or self._job, context.partitionId())

    def commit(self, messages: CommitMessages) -> None:
        if self._published(messages):
            return
        if self._options.job_key is not None:
            log.warning(
                "nothing written: the job with the key %r was written before (sink %r)",
                self._options.job_key,
                self._options.sink_name,
            )
        else:
            log.warning(
                "nothing written: sink %r has written this batch before. If one foreachBatch writes twice, set a "
                "different sinkName for each write",
                self._options.sink_name,
            )

    def abort(self, messages: CommitMessages) -> None:
        self._dropped(messages)


class TopicStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writer of a stream. Spark creates one for every batch, and another one for its commit."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        context = _context()
        transaction = self._of_stream(context)
        if transaction is None:
            raise Refused(
                f"the task has no query id: Spark has set neither {_QUERY} nor {_BATCH}. Use writeStream, or a batch "
                "write inside foreachBatch"
            )
        return self._written(iterator, transaction, context.partitionId())

    def commit(self, messages: CommitMessages, batchId: int) -> None:
        assert all(receipt.transaction.number == batchId for receipt in _receipts(messages)), (
            "all tasks belong to this batch"
        )
        if not self._published(messages):
            log.info("batch %d of sink %r was written before", batchId, self._options.sink_name)

    def abort(self, messages: CommitMessages, batchId: int) -> None:
        self._dropped(messages)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "writers run in tasks"
    return context


def _receipts(messages: CommitMessages) -> list[TaskCommit]:
    return [message for message in messages if isinstance(message, TaskCommit)]
