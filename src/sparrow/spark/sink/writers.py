"""Writers of `format("sparrow")` that Spark calls: for batch jobs and for the batches of a stream.

1. Options, columns, the topic and its brokers are checked before the first task runs, as far as possible.
2. A batch of a stream is identified by the query id and the batch number; a batch job by an id that is created with its
   writer, or by `jobKey`. Inside `foreachBatch` a batch job is part of the stream's batch.
3. A batch without rows publishes nothing, but the first batch of a stream, and a job, create the topic of the option
   `topic` even without rows. Later batches of a stream cannot create it, see `brokers`.
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

FIRST_BATCH = 0
"""Number of the first batch of a stream, and of a job."""
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of Spark tasks that belong to a stream."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicBatchWriter:
    """Return the writer of `df.write.format("sparrow").mode("append")`."""
    if overwrite:
        raise Refused("a topic cannot be overwritten, only appended to: use mode('append')")
    parsed = parse_sink_options(options)
    return TopicBatchWriter(parsed, _check(parsed, schema))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicStreamWriter:
    """Return the writer of `df.writeStream.format("sparrow")`."""
    if overwrite:
        raise Refused("a topic cannot be overwritten, only appended to: use outputMode('append')")
    parsed = parse_sink_options(options)
    if parsed.job_key is not None:
        raise Refused("the option 'jobKey' is for batch jobs, a stream is identified by its checkpoint: remove it")
    try:
        return TopicStreamWriter(parsed, _check(parsed, schema))
    except UnknownTopic:
        # The topic is new, or its brokers are unavailable. A writer is created for every batch; the tasks find out
        # which batch it is.
        return TopicStreamWriter(parsed, _layout(parsed, schema))


def _check(options: SinkOptions, schema: StructType) -> ColumnLayout:
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
    return SinkBrokers(client.session, retry_timeout_ms=options.commit_timeout_ms, topic_queues=options.topic_queues)


class _TopicWriter:
    """Common parts of both writers. Spark pickles them, so they hold values only."""

    def __init__(self, options: SinkOptions, layout: ColumnLayout) -> None:
        self._options, self._layout = options, layout

    def _write_partition(self, batches: Iterator[pa.RecordBatch], write_id: WriteId, partition: int) -> TaskCommit:
        client = CLIENT_POOL.get(self._options.client)
        task = partition_writer.WriteTask(write_id, partition, can_create_topics=write_id.number == FIRST_BATCH)
        return partition_writer.write_partition(batches, self._layout, self._options, task, client)

    def _stream_write_id(self, context: TaskContext) -> WriteId | None:
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            return None
        return WriteId(f"{query}/{self._options.sink_name}", int(batch))

    def _publish(self, messages: CommitMessages, *, is_first: bool) -> bool:
        """Publish the staged rows; return False if they were published before."""
        commits = _task_commits(messages)
        if is_first:
            self._create_topic()
        if not any(commit.stages for commit in commits):
            return True
        client = CLIENT_POOL.get(self._options.client)
        return client.run(driver_commit.publish_stages(client.session, _brokers(client, self._options), commits))

    def _create_topic(self) -> None:
        """Create the topic if no task had rows for it. Spark's checkpoint records the batch after its commit."""
        options = self._options
        if options.topic is None or options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
            return  # topics of a column are known with their first row; a send creates a topic at any time
        client = CLIENT_POOL.get(options.client)
        client.run(_brokers(client, options).ensure_route(options.topic))

    def _discard(self, messages: CommitMessages) -> None:
        stages = [staged for commit in _task_commits(messages) for staged in commit.stages]
        if stages:
            client = CLIENT_POOL.get(self._options.client)
            client.run(driver_commit.discard_stages(client.session, _brokers(client, self._options), stages))


class TopicBatchWriter(_TopicWriter, DataSourceArrowWriter):
    """Writer of a batch job. Pickled copies of one object run in all tasks and in the driver's commit."""

    def __init__(self, options: SinkOptions, layout: ColumnLayout) -> None:
        super().__init__(options, layout)
        self._job = WriteId(f"job/{options.job_key or uuid.uuid4().hex}/{options.sink_name}", FIRST_BATCH)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        context = _context()
        stream_write_id = self._stream_write_id(context)
        if stream_write_id is not None and self._options.job_key is not None:
            raise Refused(
                "inside foreachBatch the batch is identified by its query and the sinkName: remove the option 'jobKey'"
            )
        return self._write_partition(iterator, stream_write_id or self._job, context.partitionId())

    def commit(self, messages: CommitMessages) -> None:
        is_first = any(commit.write_id.number == FIRST_BATCH for commit in _task_commits(messages))
        if self._publish(messages, is_first=is_first):
            return
        if self._options.job_key is not None:
            log.warning(
                "nothing written: the job with the key %(job_key)r was written before by sink %(sink)r",
                {"job_key": self._options.job_key, "sink": self._options.sink_name},
            )
        else:
            log.warning(
                "nothing written: sink %(sink)r has written this batch before. If one foreachBatch writes twice, set a "
                "different sinkName for each write",
                {"sink": self._options.sink_name},
            )

    def abort(self, messages: CommitMessages) -> None:
        self._discard(messages)


class TopicStreamWriter(_TopicWriter, DataSourceStreamArrowWriter):
    """Writer of a stream. Spark creates one for every batch, and another one for its commit."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        context = _context()
        write_id = self._stream_write_id(context)
        if write_id is None:
            raise Refused(
                f"the task has no query id: Spark has set neither {_QUERY} nor {_BATCH}. Use writeStream, or a batch "
                "write inside foreachBatch"
            )
        return self._write_partition(iterator, write_id, context.partitionId())

    def commit(self, messages: CommitMessages, batchId: int) -> None:
        assert all(commit.write_id.number == batchId for commit in _task_commits(messages)), (
            "all tasks belong to this batch"
        )
        if not self._publish(messages, is_first=batchId == FIRST_BATCH):
            log.info(
                "batch %(batch)d of sink %(sink)r was written before",
                {"batch": batchId, "sink": self._options.sink_name},
            )

    def abort(self, messages: CommitMessages, batchId: int) -> None:
        self._discard(messages)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "writers run in tasks"
    return context


def _task_commits(messages: CommitMessages) -> list[TaskCommit]:
    return [message for message in messages if isinstance(message, TaskCommit)]
