"""How far a query has read: the offsets that Spark keeps in its checkpoint. Pure.

    {"v": 1, "q": {"orders/broker-a/0": 120, ...}, "from": {"orders/broker-a/9": 0}}

1. `q` has, for each queue, the offset to be read next. Ranges are half open, everywhere.
2. `from` has the first offset of queues that were not in the offset before: replayed, the same range is read, though
   retention may have moved meanwhile.
3. Spark compares offsets as text. Keys are sorted by topic, broker and number, so equal offsets are equal text.
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
    """To be read next."""
    first_offsets: dict[QueueRef, int] = {}
    """Where queues start that the offset before did not know."""

    def to_json(self) -> dict[str, Any]:
        return {"v": OFFSETS_VERSION, "q": _written(self.next), "from": _written(self.first_offsets)}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> SourceOffsets:
        """What a checkpoint holds; it may be of another program, or of a version to come."""
        if said.get("v") != OFFSETS_VERSION or not isinstance(said.get("q"), dict):
            raise Refused(
                f"the checkpoint holds an offset that is none of ours: {str(said)[:200]}; "
                "a query needs a checkpoint of its own"
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
        raise Refused(f"{name!r} in the checkpoint is no queue: topic/broker/number is expected")
    return QueueRef(topic, broker, int(queue_id))
