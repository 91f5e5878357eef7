"""Filing records of the log into their queues, in bulk: how views are built when the log is read again."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sparrow.model.queue import Queue
from sparrow.model.topic import is_legal_name
from sparrow.store.log.consume_queue import FILLER_SIZE, ConsumeQueue
from sparrow.store.log.scan import Starts
from sparrow.store.log.views import STATE, TopicSaid, words_of
from sparrow.wire import columns, record

log = logging.getLogger(__name__)

_COLUMNS = ["topic", "queue_id", "queue_offset", "sys_flag", "store_timestamp"]


class Dispatcher:
    """Files records into queues. Filing one again changes nothing."""

    def __init__(
        self,
        queue_of: Callable[[Queue], ConsumeQueue],
        drop_topic: Callable[[str], None],
        *,
        is_whole: bool,
    ) -> None:
        self._queue_of, self._drop_topic = queue_of, drop_topic
        self._is_whole = is_whole
        """The log was never trimmed, so that every queue starts at 0."""
        self.missing_max = 0
        """How many records may be missing: raised by whoever finds damage. A larger gap is itself damage."""
        self.refused: list[int] = []
        """Physical offsets of records whose queue offset cannot be right."""

    def file(self, view: memoryview, base: int, starts: Starts) -> None:
        """File the sound records at `starts` of a segment that begins at `base`."""
        batch = columns.decode(view, starts, columns=_COLUMNS, expand=False)
        topics = batch.column(0).dictionary_encode()
        names: list[str] = topics.dictionary.to_pylist()
        topic_ids = topics.indices.to_numpy()
        if STATE.topic in names:
            self._file_between_deletions(view, base, starts, batch, names, topic_ids)
        else:
            self._file_rows(view, base, starts, batch, names, topic_ids)

    def _file_between_deletions(self, view, base, starts, batch, names, topic_ids) -> None:  # type: ignore[no-untyped-def]
        """A topic's deletion stands in the log: what was filed for it before goes, what comes after stays."""
        done = 0
        for row in np.flatnonzero(topic_ids == names.index(STATE.topic)).tolist():
            message = record.decode(view, int(starts[row]))
            gone = [
                word.name
                for word in words_of(message.body, message.physical_offset)
                if isinstance(word, TopicSaid) and word.topic is None
            ]
            if gone:
                part = slice(done, row + 1)
                self._file_rows(view, base, starts[part], batch.slice(done, row + 1 - done), names, topic_ids[part])
                done = row + 1
                for name in gone:
                    self._drop_topic(name)
        part = slice(done, len(starts))
        self._file_rows(view, base, starts[part], batch.slice(done), names, topic_ids[part])

    def _file_rows(self, view, base, starts, batch, names, topic_ids) -> None:  # type: ignore[no-untyped-def]
        if len(starts) == 0:
            return
        queue_ids = batch.column(1).to_numpy()
        queue_offsets = batch.column(2).to_numpy()
        transaction = batch.column(3).to_numpy() & record.TRANSACTION_MASK
        store_ms = batch.column(4).cast("int64").to_numpy() // 1000
        entries = np.empty(len(starts), columns.QUEUE_ENTRY)
        entries["physical_offset"] = starts + base
        entries["size"] = columns.overlapping(view, ">i4")[starts]
        entries["tags_code"] = columns.tags_codes(view, starts)
        # Half messages and roll-backs are in the log only; consumers never see them.
        is_filed = (transaction == 0) | (transaction == record.COMMITTED)
        key = (topic_ids.astype(np.int64) << 32) | (queue_ids.astype(np.int64) & 0xFFFFFFFF)
        order = np.argsort(key, kind="stable")
        order = order[is_filed[order]]
        if len(order) == 0:
            return
        cuts = np.flatnonzero(np.diff(key[order])) + 1
        for rows in np.split(order, cuts):
            first = rows[0]
            topic, queue_id = names[topic_ids[first]], int(queue_ids[first])
            if queue_id < 0 or not is_legal_name(topic):
                self.refused += entries["physical_offset"][rows].tolist()
                continue
            queue = self._queue_of(Queue(topic, queue_id))
            if queue.delay_ms is not None:
                entries["tags_code"][rows] = store_ms[rows] + queue.delay_ms
            self._extend(queue, queue_offsets[rows], entries[rows])

    def _extend(self, queue: ConsumeQueue, offsets: npt.NDArray[np.int64], entries: npt.NDArray[np.void]) -> None:
        end = int(queue.end)
        if end == 0 and not self._is_whole and int(offsets[0]) > 0:
            queue.start_at(int(offsets[0]))
            end = int(queue.end)
        if (
            int(offsets[0]) == end
            and int(offsets[-1]) == end + len(offsets) - 1
            and bool((np.diff(offsets) == 1).all())
        ):
            queue.extend(entries.tobytes())
            return
        # The usual case is behind us: some are filed already, or some are missing.
        is_new = offsets >= end
        offsets, entries = offsets[is_new], entries[is_new]
        for offset, entry in zip(offsets.tolist(), entries, strict=True):
            end = int(queue.end)
            if offset < end or offset - end > self.missing_max:
                self.refused.append(int(entry["physical_offset"]))
                self.missing_max += 1
                continue
            hole = np.zeros(offset - end, columns.QUEUE_ENTRY)
            hole["physical_offset"], hole["size"] = entry["physical_offset"], FILLER_SIZE
            queue.extend(hole.tobytes())
            queue.extend(entry.tobytes())
