"""Stream reader of `spark.readStream.format("sparrow")`: plans micro-batches in the driver and reads them in tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from sparrow.model.errors import Refused, SparrowError, Unavailable, UnknownTopic
from sparrow.spark.source import offset_resolution
from sparrow.spark.source.batch_reader import RangePartition
from sparrow.spark.source.metadata import QueueExtents, SourceMetadata, fetch_extents, open_metadata
from sparrow.spark.source.offset_ranges import OffsetRange, apportion, plan_tasks
from sparrow.spark.source.offset_resolution import MessagesGone, format_queue_name
from sparrow.spark.source.offsets import SourceOffsets
from sparrow.spark.source.options import SourceOptions
from sparrow.spark.source.range_reader import read_task
from sparrow.spark.source.schema import make_projection
from sparrow.wire.bodies import QueueRef

log = logging.getLogger(__name__)

_DEFAULT_RECORD_BYTES = 1024
"""Assumed record size where the broker does not report one."""
_WARNING_INTERVAL_S, _WARNING_INTERVAL_MAX_S = 60.0, 600.0
"""The second warning about unavailable brokers follows after the first interval; later intervals double."""


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a streaming query. One lives in a driver process and plans; pickled copies read in tasks."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.parse(given)
        self._projection = make_projection(schema, kafka=self._options.kafka_schema)
        self._planner: MicroBatchPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_projection": self._projection, "_planner": None}  # only the driver plans

    @property
    def _active_planner(self) -> MicroBatchPlanner:
        if self._planner is None:
            self._planner = MicroBatchPlanner(self._options, open_metadata(self._options))
        return self._planner

    # -- planning, in the driver --------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._active_planner.initial_offsets().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.batch_rows_max:
            return ReadMaxRows(self._options.batch_rows_max)
        if self._options.batch_bytes_max:
            return ReadMaxBytes(self._options.batch_bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch. Commit `start` to the group: all before it is processed."""
        known = SourceOffsets.from_json(start)
        self._active_planner.commit_progress(known)
        planned = self._active_planner.plan(known, limit)
        return start if planned is None else planned.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._active_planner.freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        extents = self._active_planner.latest_extents()
        return SourceOffsets({queue: extent.end for queue, extent in extents.items()}).to_json() if extents else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch, from arguments and options only: a replay reads the same."""
        options = self._options
        planned = plan_tasks(
            ranges_between(SourceOffsets.from_json(start), SourceOffsets.from_json(end)),
            partitions_min=options.partitions_min,
            range_rows_max=options.range_rows_max,
            task_rows_target=options.task_rows_target,
        )
        return [RangePartition(task) for task in planned]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark calls this a batch late and never for the last one. `latestOffset` commits."""

    # -- reading, in tasks --------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition), "partitions() returns RangePartition only"
        return read_task(partition.task, self._options, self._projection)


def ranges_between(start: SourceOffsets, end: SourceOffsets) -> list[OffsetRange]:
    """Return the ranges between two offsets of a query."""
    ranges = []
    for queue, last in end.next.items():
        first = start.next.get(queue, end.first_offsets.get(queue))
        if first is None:
            raise Refused(
                f"the checkpoint has no starting offset for queue {format_queue_name(queue)}: use a new checkpoint "
                "location"
            )
        if last > first:
            ranges.append(OffsetRange(queue, first, last))
    return ranges


class MicroBatchPlanner:
    """Plans the micro-batches of a running query."""

    def __init__(self, options: SourceOptions, metadata: SourceMetadata) -> None:
        self._options, self._metadata = options, metadata
        self._extents: QueueExtents = {}
        self._polled_s = self._refreshed_s = float("-inf")
        self._frozen: QueueExtents | None = None
        self._first: SourceOffsets | None = None
        self._waiting_s: float | None = None
        self._committed: dict[QueueRef, int] = {}
        self._warned_s = 0.0
        self._warning_interval_s = 0.0
        """0: the last call succeeded."""

    def initial_offsets(self) -> SourceOffsets:
        """Return the starting offsets, the same at every call before the first batch."""
        if self._first is None:
            extents = offset_resolution.fetch_extents_with_retries(self._options, self._metadata)
            self._first = SourceOffsets(
                offset_resolution.resolve_starting_offsets(self._options, self._metadata, extents, default="latest")
            )
        return self._first

    def latest_extents(self) -> QueueExtents:
        """Return the extents, at most `offsetPollIntervalMs` old. An idle query asks 100 times a second."""
        now = time.monotonic()
        if now - self._polled_s < self._options.offset_poll_ms / 1000:
            return self._extents
        is_fresh = now - self._refreshed_s >= self._options.metadata_refresh_ms / 1000
        try:
            self._extents = fetch_extents(self._options, self._metadata, is_fresh=is_fresh, without_absent=True)
        except (Unavailable, UnknownTopic, TimeoutError) as cause:
            # An unavailable broker loses no messages; its queues just have nothing new. Its topics may be unknown
            # meanwhile, too.
            self._warn_unavailable(cause, now)
        else:
            self._refreshed_s = now if is_fresh else self._refreshed_s
            if self._warning_interval_s:
                self._warning_interval_s = 0.0
                log.info(
                    "the end offsets can be fetched from %(name_servers)s again",
                    {"name_servers": self._options.name_servers},
                )
        self._polled_s = now
        return self._extents

    def _warn_unavailable(self, cause: Exception, now: float) -> None:
        """Warn at the first failure, then at growing intervals."""
        if self._warning_interval_s and now - self._warned_s < self._warning_interval_s:
            return
        self._warned_s = now
        self._warning_interval_s = min(max(_WARNING_INTERVAL_S, 2 * self._warning_interval_s), _WARNING_INTERVAL_MAX_S)
        log.warning(
            "cannot fetch the end offsets from %(name_servers)s: %(error)s; the query waits and tries again",
            {"name_servers": self._options.name_servers, "error": cause},
        )

    def freeze(self) -> None:
        """Fix the current ends, up to which a query with the trigger AvailableNow reads."""
        self._frozen = offset_resolution.fetch_extents_with_retries(self._options, self._metadata)

    def plan(self, start: SourceOffsets, limit: ReadLimit) -> SourceOffsets | None:
        """Return the end of the next micro-batch; None if there is nothing to read yet."""
        extents = self._frozen if self._frozen is not None else self.latest_extents()
        self._check_topics(start)
        position, first_offsets = self._check_positions(start, extents)
        backlogs = {
            queue: extent.end - position[queue] for queue, extent in extents.items() if extent.end > position[queue]
        }
        if not backlogs and not first_offsets and position == start.next:
            self._waiting_s = None
            return None
        if self._frozen is None and not self._has_enough_rows(sum(backlogs.values()), limit):
            return None
        shares = self._limit_rows(backlogs, extents, limit)
        return SourceOffsets({queue: at + shares.get(queue, 0) for queue, at in position.items()}, first_offsets)

    def _check_topics(self, start: SourceOffsets) -> None:
        if self._options.pattern is not None:
            return
        wanted = set(self._options.subscribe or self._options.assign or ())
        foreign = sorted({queue.topic for queue in start.next} - wanted)
        if foreign:
            raise Refused(
                f"the checkpoint contains offsets of topic {foreign[0]!r}, but the query reads "
                f"{', '.join(sorted(wanted))}: use a separate checkpoint location for each query"
            )

    def _check_positions(
        self, start: SourceOffsets, extents: QueueExtents
    ) -> tuple[dict[QueueRef, int], dict[QueueRef, int]]:
        """Return the position of every queue, and the first offsets of new ones. Skip or refuse deleted messages."""
        position, first_offsets = {}, {}
        for queue, at in start.next.items():
            extent = extents.get(queue)
            if (
                extent is None or extent.first <= at <= extent.end
            ):  # None: the broker is unavailable; reading continues here later
                position[queue] = at
            elif self._options.fail_on_data_loss:
                raise MessagesGone(queue, at, extent.first, extent.end)
            else:
                position[queue] = extent.first if at < extent.first else extent.end
                log.warning(
                    "queue %(queue)s continues at offset %(next)d instead of %(offset)d: retention has deleted the "
                    "messages between; start the query more often, or keep messages longer",
                    {"queue": format_queue_name(queue), "next": position[queue], "offset": at},
                )
        for queue, extent in extents.items():
            if queue not in start.next:
                position[queue] = first_offsets[queue] = extent.first
        return position, first_offsets

    def _has_enough_rows(self, rows: int, limit: ReadLimit) -> bool:
        least = limit.min_rows if isinstance(limit, ReadMinRows) else self._options.batch_rows_min
        if least is None or rows >= least:
            self._waiting_s = None
            return True
        now = time.monotonic()
        self._waiting_s = self._waiting_s if self._waiting_s is not None else now
        if (now - self._waiting_s) * 1000 < self._options.batch_delay_max_ms:
            return False
        self._waiting_s = None
        return True

    def _limit_rows(
        self, backlogs: dict[QueueRef, int], extents: QueueExtents, limit: ReadLimit
    ) -> dict[QueueRef, int]:
        """Return how many rows of each backlog the micro-batch takes."""
        if isinstance(limit, ReadMaxRows):
            backlogs = apportion(backlogs, limit.max_rows)
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if most is None and not isinstance(limit, ReadAllAvailable):
            most = self._options.batch_bytes_max  # Spark applies one limit only; here both apply
        if most is None:
            return backlogs
        sizes = {queue: extents[queue].mean_bytes or _DEFAULT_RECORD_BYTES for queue in backlogs}
        in_bytes = apportion({queue: rows * sizes[queue] for queue, rows in backlogs.items()}, most)
        return {queue: max(1, size // sizes[queue]) for queue, size in in_bytes.items()}

    def commit_progress(self, offsets: SourceOffsets) -> None:
        """Commit the position of the query to its group. This only shows progress, so a failure is logged."""
        group = self._options.group
        if group is None:
            return
        changed = {queue: at for queue, at in offsets.next.items() if self._committed.get(queue) != at}
        if not changed:
            return
        self._committed.update(changed)
        try:
            self._metadata.commit(group, changed)
        except SparrowError as cause:
            log.warning(
                "cannot commit the progress of the query to group %(group)s: %(error)s; the query goes on, the lag of "
                "the group is out of date",
                {"group": group, "error": cause},
            )
