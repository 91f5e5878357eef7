"""Read offset ranges in a task: pull or map large runs of records, and decode them to Arrow without a loop per message.

1. Every offset of a range is read, or the task fails. With `failOnDataLoss=false` gaps are skipped and logged.
2. Pulls are retried while a broker is unavailable, for at most `pullTimeoutMs`. A pull names its offset, so a retry
   returns no message twice.
3. Messages whose bodies do not decompress are read as `onUndecodable` says, and their number is logged.
4. At most two pull responses are in memory: one being decoded, one being received.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparrow import clock
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.pull import PullResult, PullStatus, pull
from sparrow.client.consume.subscription import Subscription
from sparrow.model.errors import DataLost, Unavailable, UnknownTopic
from sparrow.model.queue import Queue
from sparrow.spark.client_pool import CLIENT_POOL
from sparrow.spark.source.offset_ranges import OffsetRange, TaskRanges
from sparrow.spark.source.offset_resolution import MessagesGone, format_queue_name
from sparrow.spark.source.options import SourceOptions
from sparrow.spark.source.schema import Projection, filter_by_tags, read_queue_offsets
from sparrow.wire import columns as codec
from sparrow.wire.hashes import tags_code
from sparrow.wire.undecodable import UndecodableBodies

log = logging.getLogger(__name__)

ANONYMOUS_READER_GROUP = "SPARROW_SPARK"
"""The consumer group of pulls when the query has no `groupId`. Nothing is committed to it."""
_PULL_COUNT = 65_536
_RETRY_DELAY_S = 0.2


class FetchedRecords(NamedTuple):
    """Consecutive records of one queue in one buffer."""

    buf: Any
    starts: np.ndarray[Any, np.dtype[np.int64]]
    next_offset: int
    """The offset after the last record examined."""


def read_task(task: TaskRanges, options: SourceOptions, projection: Projection) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, range by range."""
    for each in task:
        yield from read_range(each, options, projection)


def read_range(wanted: OffsetRange, options: SourceOptions, projection: Projection) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one range."""
    subscription = Subscription.of(wanted.queue.topic, options.tags, version_ms=clock.now_ms())
    tags = subscription.tags
    needs = tuple(dict.fromkeys((*projection.needs, "tags"))) if tags else projection.needs
    found = (
        _from_files(wanted, options, tags)
        if options.access == "files"
        else _from_brokers(wanted, options, subscription)
    )
    expected = wanted.start
    undecodable = UndecodableBodies(options.on_undecodable, format_queue_name(wanted.queue))
    for records in found:
        expected = _check_offsets(records, expected, wanted, options, is_filtered=bool(tags))
        for at in range(0, len(records.starts), options.arrow_batch_rows):
            decoded = codec.decode(
                records.buf,
                records.starts[at : at + options.arrow_batch_rows],
                columns=needs,
                verify_crc=options.verify_checksum,
                expand=options.decompress,
                undecodable=undecodable,
            )
            yield projection.to_batch(filter_by_tags(decoded, tags) if tags else decoded, wanted.queue)
    undecodable.report(log)
    if expected < wanted.end:
        _report_gap(wanted, options, expected, wanted.end)


def _check_offsets(
    records: FetchedRecords, expected: int, wanted: OffsetRange, options: SourceOptions, *, is_filtered: bool
) -> int:
    """Check that no offset is missing or repeated, and return the next expected offset."""
    if not len(records.starts):
        return records.next_offset
    offsets = read_queue_offsets(records.buf, records.starts)
    if offsets[0] < expected or offsets[-1] >= wanted.end or (np.diff(offsets) <= 0).any():
        raise DataLost(f"{format_queue_name(wanted.queue)} returned offsets out of order", expected, int(offsets[0]))
    missing = records.next_offset - expected - len(offsets)
    if missing and not is_filtered:
        at = int(np.argmax(offsets != np.arange(expected, expected + len(offsets))))
        _report_gap(wanted, options, expected + at, expected + at + missing)
    return records.next_offset


def _report_gap(wanted: OffsetRange, options: SourceOptions, start: int, end: int) -> None:
    if options.fail_on_data_loss:
        raise MessagesGone(wanted.queue, start, end, wanted.end)
    log.warning(
        "%(count)d messages of queue %(queue)s from offset %(offset)d on are skipped: retention has deleted them",
        {"count": end - start, "queue": format_queue_name(wanted.queue), "offset": start},
    )


# -- from files -------------------------------------------------------------------------------------------------------


def _from_files(wanted: OffsetRange, options: SourceOptions, tags: tuple[str, ...]) -> Iterator[FetchedRecords]:
    from sparrow.store.log.readonly.store_directory import StoreDirectory

    assert options.path is not None, "SourceOptions.parse requires path with access=files"
    directory = StoreDirectory(options.path)
    queue = Queue(wanted.queue.topic, wanted.queue.queue_id)
    codes = frozenset(map(tags_code, tags)) if tags else None
    start = wanted.start
    while start < wanted.end:
        try:
            for found in directory.read(queue, start, wanted.end, rows_max=_PULL_COUNT, tags_codes=codes):
                start = found.next_offset
                yield FetchedRecords(found.view, found.starts, found.next_offset)
            return
        except DataLost as gone:
            if options.fail_on_data_loss:
                raise
            start = max(start, gone.first)  # the gap is reported when the offsets are checked


# -- from brokers -----------------------------------------------------------------------------------------------------


def _from_brokers(wanted: OffsetRange, options: SourceOptions, subscription: Subscription) -> Iterator[FetchedRecords]:
    client = CLIENT_POOL.get(options.client)
    pulls = _PullPrefetch(client.session, wanted, options, subscription)
    client.run(pulls.start())
    try:
        while (answer := client.run(pulls.next())) is not None:
            if answer.sizes is None:
                starts = codec.find_starts(answer.records)
            else:
                starts = codec.starts_from_sizes(np.frombuffer(answer.sizes, ">i4").astype(np.int64))
            yield FetchedRecords(
                *_cut_to_range(answer.records, starts, wanted.end), min(answer.next_offset, wanted.end)
            )
    finally:
        client.run(pulls.stop())


def _cut_to_range(buf: Any, starts: Any, end: int) -> tuple[Any, Any]:
    """Drop records after the range: with a filter, a broker counts matching messages only."""
    if len(starts) and read_queue_offsets(buf, starts[-1:])[0] >= end:
        starts = starts[read_queue_offsets(buf, starts) < end]
    return buf, starts


class _PullPrefetch:
    """The pull responses of one range, with one pull in advance."""

    def __init__(
        self, session: ClientSession, wanted: OffsetRange, options: SourceOptions, subscription: Subscription
    ) -> None:
        self._session, self._wanted, self._options = session, wanted, options
        self._subscription = subscription
        self._answers: asyncio.Queue[PullResult | BaseException | None] = asyncio.Queue(1)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def next(self) -> PullResult | None:
        answer = await self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def stop(self) -> None:
        assert self._task is not None, "start() was called"
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            async with aclosing(self._all()) as answers:
                async for answer in answers:
                    await self._answers.put(answer)
            await self._answers.put(None)
        except Exception as error:
            await self._answers.put(error)

    async def _all(self) -> AsyncGenerator[PullResult, None]:
        wanted, options = self._wanted, self._options
        offset = wanted.start
        deadline = 0.0
        loop = asyncio.get_running_loop()
        while offset < wanted.end:
            try:
                answer = await self._pull(offset)
            except (Unavailable, UnknownTopic, TimeoutError) as cause:
                # The broker restarts, or its leader changes; a name server that has lost the broker has no route for
                # its topics. A pull names its offset, so a retry is safe.
                deadline = deadline or loop.time() + options.pull_timeout_ms / 1000
                if loop.time() > deadline:
                    raise Unavailable(
                        f"cannot read {format_queue_name(wanted.queue)} from offset {offset}: {cause}. Gave up "
                        f"after {options.pull_timeout_ms} ms (option pullTimeoutMs)"
                    ) from cause
                await asyncio.sleep(_RETRY_DELAY_S)
                await self._refresh_route()
                continue
            deadline = 0.0
            if answer.status is PullStatus.OFFSET_MOVED:
                if answer.next_offset <= offset or answer.next_offset >= wanted.end or options.fail_on_data_loss:
                    return  # `read_range` reports the missing offsets
                log.warning(
                    "queue %(queue)s continues at offset %(next)d instead of %(offset)d: retention has deleted the "
                    "messages between",
                    {"queue": format_queue_name(wanted.queue), "next": answer.next_offset, "offset": offset},
                )
                offset = answer.next_offset
                continue
            if answer.status is PullStatus.NO_NEW_MESSAGE:
                return
            if answer.next_offset <= offset:
                raise Unavailable(
                    f"the broker of {format_queue_name(wanted.queue)} returned no progress at offset {offset}"
                )
            offset = answer.next_offset
            yield answer

    async def _pull(self, offset: int) -> PullResult:
        return await pull(
            self._session,
            self._wanted.queue,
            offset,
            group=self._options.group or ANONYMOUS_READER_GROUP,
            subscription=self._subscription,
            count_max=min(_PULL_COUNT, self._wanted.end - offset),
            bytes_max=self._options.pull_bytes,
            includes_subscription=True,
            with_sizes=True,
        )

    async def _refresh_route(self) -> None:
        try:
            await self._session.route(self._wanted.queue.topic, is_fresh=True)
        except (Unavailable, UnknownTopic, TimeoutError):
            pass
