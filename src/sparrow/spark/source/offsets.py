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
    next: dict[QueueRef, int]
    """The next offset to read of each queue."""
    first_offsets: dict[QueueRef, int] = {}
    """The first offset of queues that were not in the offset before."""

    def to_json(self) -> dict[str, Any]:
        return {"v": OFFSETS_VERSION, "q": _written(self.next), "from": _written(self.first_offsets)}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> SourceOffsets:
        """Parse an offset of a checkpoint, which may come from another source or a later version."""
        if said.get("v") != OFFSETS_VERSION or not isinstance(said.get("q"), dict):
            raise Refused(
                f"the checkpoint belongs to another source or a newer version (offset {str(said)[:200]}): use a "
                "new checkpoint location for this query"
            )
        return cls(_read(said["q"]), _read(said.get("from") or {}))


def _written(positions: OffsetsOfQueues) -> dict[str, int]:
    return {f"{q.topic}/{q.broker_name}/{q.queue_id}": positions[q] for q in sorted(positions)}


def _read(said: Mapping[str, int]) -> dict[QueueRef, int]:
    return {parse_queue_name(name): offset for name, offset in said.items()}


def parse_queue_name(name: str) -> QueueRef:
    topic, _, rest = name.partition("/")
    broker, _, queue_id = rest.rpartition("/")
    if not (topic and broker and queue_id.isdigit()):
        raise Refused(f"invalid queue {name!r} in the checkpoint: the format is topic/broker/queue id")
    return QueueRef(topic, broker, int(queue_id))
