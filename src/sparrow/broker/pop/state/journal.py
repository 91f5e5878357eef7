"""The journal of pops on a log store: the entries from which the messages in flight are rebuilt at startup.

Each entry is a record in the revive topic, a MessagePack array. The queue offset of a `BatchPopped` is the number of
its batch.
"""

from __future__ import annotations

import msgspec

from sparrow.model.message import Draft


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    pass


class BatchPopped(_Entry, frozen=True, tag="taken"):
    """A group popped messages of one queue. Bit i of the mask stands for `start + i`."""

    group: str
    topic: str
    queue_id: int
    start: int
    pop_ms: int
    invisible_ms: int
    mask: bytes


class BatchesSettled(_Entry, frozen=True, tag="settled"):
    """Messages of some batches are settled: acknowledged, or stored again."""

    batches: list[tuple[int, bytes]]


class FifoChanged(_Entry, frozen=True, tag="ran"):
    """The state of a FIFO queue. The newest entry is valid."""

    group: str
    topic: str
    queue_id: int
    pop_ms: int
    next_offset: int
    attempt: str | None
    dues: list[tuple[int, int]]
    """Unacknowledged offsets, and until when each is invisible. If none is left, the group continues at `next_offset`.
    """
    counts: list[tuple[int, int]]


JournalEntry = BatchPopped | BatchesSettled | FifoChanged

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[JournalEntry] = msgspec.msgpack.Decoder(JournalEntry)


def encode_entry(entry: JournalEntry) -> Draft:
    return Draft(body=_encode(entry))


def decode_entry(body: bytes) -> JournalEntry | None:
    """Decode an entry; None if the record is not one, because others may write to the topic."""
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError:
        return None


def pack_mask(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def unpack_mask(mask: bytes) -> int:
    return int.from_bytes(mask, "little")
