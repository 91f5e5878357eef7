"""The table of all consume queues of a store."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from sparrow.model.protocol import DLQ_TOPIC_PREFIX
from sparrow.model.queue import Queue
from sparrow.model.topic import is_legal_name
from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue
from sparrow.store.log.state.updates import STATE_QUEUE


class ConsumeQueueTable:
    """Consume queues by (topic, id). A queue is created with its first message."""

    def __init__(self, directory: Path, file_entries: int) -> None:
        self.directory, self.file_entries = directory, file_entries
        self._queues: dict[Queue, ConsumeQueue] = {}
        self._unsynced: set[str] = set()
        """Files that were written, and folders in which files were created, since the last `sync`."""
        self.get = self._queues.get

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Iterate over a copy: queues may be added or removed meanwhile."""
        return iter(list(self._queues.values()))

    def get_or_create(self, queue: Queue) -> ConsumeQueue:
        """Return the queue; create it, empty, if it does not exist."""
        found = self._queues.get(queue)
        if found is None:
            assert is_legal_name(queue.topic), "the topic is used as a folder name"
            directory = self.directory / queue.topic / str(queue.id)
            found = ConsumeQueue(queue, directory, self.file_entries, self._unsynced)
            found.is_internal = queue.topic == STATE_QUEUE.topic
            self._queues[queue] = found
        return found

    def load(self, log_first: int, log_end: int, ends: Mapping[str, Mapping[int, int]] | None = None) -> None:
        """Load all queues on disk, as far as they point into [log_first, log_end). `ends` are their probable ends."""
        for topic, queue_id in list_queues(self.directory):
            likely_end = (ends or {}).get(topic, {}).get(queue_id, 0)
            self.get_or_create(Queue(topic, queue_id)).load(log_first, log_end, likely_end)

    def sync(self) -> None:
        """Sync the files that were written since the last call, and the folders of new ones."""
        for path in sorted(self._unsynced):
            _sync(path)
            self._unsynced.discard(path)

    def ends(self) -> dict[str, dict[int, int]]:
        """Return topic -> id -> end of all queues that ever had a message."""
        ends: dict[str, dict[int, int]] = {}
        for queue in self:
            if queue.end:
                ends.setdefault(queue.queue.topic, {})[queue.queue.id] = queue.end
        return ends

    def emptied(self) -> dict[str, list[int]]:
        """Return topic -> ids of the queues that had messages and have none left."""
        emptied: dict[str, list[int]] = {}
        for queue in self:
            if queue.first == queue.end > 0:
                emptied.setdefault(queue.queue.topic, []).append(queue.queue.id)
        return emptied

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        return [queue for queue in self if queue.queue.topic == topic]

    def dead_letter_queues(self) -> list[ConsumeQueue]:
        return [queue for queue in self if queue.queue.topic.startswith(DLQ_TOPIC_PREFIX)]

    def drop_topic(self, topic: str) -> None:
        for queue in self.of_topic(topic):
            self.drop(queue)

    def drop(self, queue: ConsumeQueue) -> None:
        del self._queues[queue.queue]
        queue.delete()

    def forget(self) -> None:
        """Start with no queues, because their files were moved away."""
        for queue in self:
            queue.detach()
        self._queues.clear()

    def clear(self) -> None:
        for queue in self:
            queue.delete()
        self._queues.clear()


def _sync(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # its queue was deleted
        return
    try:
        sync = os.fsync if stat.S_ISDIR(os.fstat(fd).st_mode) else os.fdatasync
        sync(fd)
    finally:
        os.close(fd)


def list_queues(directory: Path) -> Iterator[tuple[str, int]]:
    """Yield topic and queue id of all queues that have files."""
    if not directory.is_dir():
        return
    for topic in sorted(os.listdir(directory)):
        if is_legal_name(topic) and (directory / topic).is_dir():
            for queue_id in os.listdir(directory / topic):
                if queue_id.isascii() and queue_id.isdecimal():
                    yield topic, int(queue_id)
