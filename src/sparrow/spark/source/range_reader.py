"""Reading ranges in a task: large pulls, or mapped files, become Arrow batches. No loop runs over messages.

1. Every offset of a range is read, or the task fails; only `failOnDataLoss=false` lets it go on, and says how many.
2. A broker that is away is waited for, as long as the patience lasts; a pull names its offset, so nothing comes twice.
3. At most two pulls are in memory: one being decoded, the next on its way.
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
from sparrow.client.subscription import Subscription
from sparrow.model.errors import DataLost, Unavailable, UnknownTopic
from sparrow.model.queue import Queue
from sparrow.spark.client_pool import CLIENT_POOL
from sparrow.spark.source.offset_ranges import OffsetRange, TaskRanges
from sparrow.spark.source.offset_resolution import MessagesGone, format_queue_name
from sparrow.spark.source.options import SourceOptions
from sparrow.spark.source.schema import Projection, filter_by_tags, read_queue_offsets
from sparrow.wire import columns as codec
from sparrow.wire.hashes import tags_code

log = logging.getLogger(__name__)

ANONYMOUS_READER_GROUP = "SPARROW_SPARK"
"""As whom tasks pull when the query names no group. Nothing is committed under it."""
_PULL_COUNT = 65_536
_TRY_AGAIN_S = 0.2


class FetchedRecords(NamedTuple):
    """A run of one queue's records, as they lie in memory."""

    buf: Any
    starts: np.ndarray[Any, np.dtype[np.int64]]
    next_offset: int
    """After the last one looked at."""


def read_task(task: TaskRanges, options: SourceOptions, shape: Projection) -> Iterator[pa.RecordBatch]:
    """All rows of a task, range by range."""
    for each in task:
        yield from read_range(each, options, shape)


def read_range(wanted: OffsetRange, options: SourceOptions, shape: Projection) -> Iterator[pa.RecordBatch]:
    subscription = Subscription.of(wanted.queue.topic, options.tags, version_ms=clock.now_ms())
    tags = subscription.tags
    needs = tuple(dict.fromkeys((*shape.needs, "tags"))) if tags else shape.needs
    found = _from_files(wanted, options, tags) if options.access == "files" else _pulled(wanted, options, subscription)
    expected = wanted.start
    for records in found:
        expected = _without_holes(records, expected, wanted, options, is_filtered=bool(tags))
        for at in range(0, len(records.starts), options.arrow_batch_rows):
            decoded = codec.decode(
                records.buf,
                records.starts[at : at + options.arrow_batch_rows],
                columns=needs,
                verify_crc=options.verify_checksum,
                expand=options.decompress,
            )
            yield shape.to_batch(filter_by_tags(decoded, tags) if tags else decoded, wanted.queue)
    if expected < wanted.end:
        _lost(wanted, options, expected, wanted.end)


def _without_holes(
    records: FetchedRecords, expected: int, wanted: OffsetRange, options: SourceOptions, *, is_filtered: bool
) -> int:
    """Check that nothing is missing or comes twice; where to go on."""
    if not len(records.starts):
        return records.next_offset
    offsets = read_queue_offsets(records.buf, records.starts)
    if offsets[0] < expected or offsets[-1] >= wanted.end or (np.diff(offsets) <= 0).any():
        raise DataLost(f"{format_queue_name(wanted.queue)} answers out of order", expected, int(offsets[0]))
    missing = records.next_offset - expected - len(offsets)
    if missing and not is_filtered:
        at = int(np.argmax(offsets != np.arange(expected, expected + len(offsets))))
        _lost(wanted, options, expected + at, expected + at + missing)
    return records.next_offset


def _lost(wanted: OffsetRange, options: SourceOptions, start: int, end: int) -> None:
    if options.fail_on_data_loss:
        raise MessagesGone(wanted.queue, start, end, wanted.end)
    log.warning(
        "messages are gone and skipped: %s from %d, %d of them", format_queue_name(wanted.queue), start, end - start
    )


# -- files ------------------------------------------------------------------------------------------------------------


def _from_files(wanted: OffsetRange, options: SourceOptions, tags: tuple[str, ...]) -> Iterator[FetchedRecords]:
    from sparrow.store.log.readonly.store_directory import StoreDirectory

    assert options.path is not None, "the options say so"
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
            start = max(start, gone.first)  # what was skipped shows as a hole


# -- brokers ----------------------------------------------------------------------------------------------------------


def _pulled(wanted: OffsetRange, options: SourceOptions, subscription: Subscription) -> Iterator[FetchedRecords]:
    client = CLIENT_POOL.get(options.client)
    pulls = _Pulls(client.session, wanted, options, subscription)
    client.run(pulls.start())
    try:
        while (answer := client.run(pulls.next())) is not None:
            if answer.sizes is None:
                starts = codec.find_starts(answer.records)
            else:
                starts = codec.starts_from_sizes(np.frombuffer(answer.sizes, ">i4").astype(np.int64))
            yield FetchedRecords(*_within(answer.records, starts, wanted.end), min(answer.next_offset, wanted.end))
    finally:
        client.run(pulls.stop())


def _within(buf: Any, starts: Any, end: int) -> tuple[Any, Any]:
    """Without what lies behind the range: a broker that filters counts what matched."""
    if len(starts) and read_queue_offsets(buf, starts[-1:])[0] >= end:
        starts = starts[read_queue_offsets(buf, starts) < end]
    return buf, starts


class _Pulls:
    """The answers of one range, the next always on its way."""

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
        assert self._task is not None, "it was started"
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
                # The broker restarts, or its leader changes; a name server that has lost it knows nothing of its
                # topics. A pull names its offset, so asking again is safe.
                deadline = deadline or loop.time() + options.pull_timeout_ms / 1000
                if loop.time() > deadline:
                    raise Unavailable(
                        f"{format_queue_name(wanted.queue)} could not be read from offset {offset} on "
                        f"for {options.pull_timeout_ms} ms: {cause}"
                    ) from cause
                await asyncio.sleep(_TRY_AGAIN_S)
                await self._look_for_it()
                continue
            deadline = 0.0
            if answer.status is PullStatus.OFFSET_MOVED:
                if answer.next_offset <= offset or answer.next_offset >= wanted.end or options.fail_on_data_loss:
                    return  # whoever counts the offsets says what is missing
                log.warning(
                    "%s goes on at %d instead of %d", format_queue_name(wanted.queue), answer.next_offset, offset
                )
                offset = answer.next_offset
                continue
            if answer.status is PullStatus.NO_NEW_MESSAGE:
                return
            if answer.next_offset <= offset:
                raise Unavailable(f"{format_queue_name(wanted.queue)} does not move on from offset {offset}")
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

    async def _look_for_it(self) -> None:
        try:
            await self._session.route(self._wanted.queue.topic, is_fresh=True)
        except (Unavailable, UnknownTopic, TimeoutError):
            pass
