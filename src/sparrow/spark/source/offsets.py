"""Offsets of a streaming query, as Spark stores them in its checkpoint. Pure.

    {"v": 1, "q": {"orders/broker-a/0": 120, ...}, "from": {"orders/broker-a/9": 0}}

1. `q` holds the next offset to read of each queue. All ranges are half open.
2. `from` holds the first offset of queues that were not in the offset before. A replayed batch then reads the same
   range, even if retention has deleted messages since.
3. Spark compares offsets as text. Keys are sorted by topic, broker and queue id, so that equal offsets are equal text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sparrow.model.errors import Refused
from sparrow.wire.bodies import QueueRef

OFFSETS_VERSION = 1
OffsetsOfQueues = Mapping[QueueRef, int]


class SourceOffsets(msgspec.Struct, frozen=True):
    """The position of a streaming query in all its queues."""

    next: dict[QueueRef, int]
    """The next offset to read of each queue."""
    first_offsets: dict[QueueRef, int] = {}
    """The first offset of queues that were not in the offset before."""

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark stores it."""
        return {"v": OFFSETS_VERSION, "q": _to_names(self.next), "from": _to_names(self.first_offsets)}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> SourceOffsets:
        """Parse an offset of a checkpoint, which may come from another source or a later version."""
        if given.get("v") != OFFSETS_VERSION or not isinstance(given.get("q"), dict):
            raise Refused(
                f"the checkpoint belongs to another source or a newer version (offset {str(given)[:200]}): use a "
                "new checkpoint location for this query"
            )
        return cls(_from_names(given["q"]), _from_names(given.get("from") or {}))


def _to_names(positions: OffsetsOfQueues) -> dict[str, int]:
    return {f"{q.topic}/{q.broker_name}/{q.queue_id}": positions[q] for q in sorted(positions)}


def _from_names(given: Mapping[str, int]) -> dict[QueueRef, int]:
    return {parse_queue_name(name): offset for name, offset in given.items()}


def parse_queue_name(name: str) -> QueueRef:
    """Parse `topic/broker/queue id`."""
    topic, _, rest = name.partition("/")
    broker, _, queue_id = rest.rpartition("/")
    if not (topic and broker and queue_id.isdigit()):
        raise Refused(f"invalid queue {name!r} in the checkpoint: the format is topic/broker/queue id")
    return QueueRef(topic, broker, int(queue_id))
