"""What pop writes into its topic of the log. Heard again in order, the words give what is in flight.

Each is a record of its own, a MessagePack array. The place of a `BatchPopped` in the topic's queue is the lot's number.
"""

from __future__ import annotations

import msgspec

from sparrow.model.message import Draft


class _Word(msgspec.Struct, frozen=True, array_like=True):
    pass


class BatchPopped(_Word, frozen=True, tag="taken"):
    """Messages of one queue were handed out to a group. Bit i of the mask stands for `start + i`."""

    group: str
    topic: str
    queue_id: int
    start: int
    pop_ms: int
    invisible_ms: int
    mask: bytes


class BatchesSettled(_Word, frozen=True, tag="settled"):
    """These of some lots need nothing more: they were acknowledged, or are stored elsewhere to be handed out again."""

    batches: list[tuple[int, bytes]]


class FifoChanged(_Word, frozen=True, tag="ran"):
    """Where a queue stands that a group reads in order. The newest word on it counts."""

    group: str
    topic: str
    queue_id: int
    pop_ms: int
    next_offset: int
    attempt: str | None
    dues: list[tuple[int, int]]
    """Offsets not acknowledged, and until when each is invisible. None left: the group goes on at `next_offset`."""
    counts: list[tuple[int, int]]


JournalEntry = BatchPopped | BatchesSettled | FifoChanged

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[JournalEntry] = msgspec.msgpack.Decoder(JournalEntry)


def encode_entry(word: JournalEntry) -> Draft:
    return Draft(body=_encode(word))


def decode_entry(body: bytes) -> JournalEntry | None:
    """None for what is no word: somebody else may have written to the topic."""
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError:
        return None


def pack_mask(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def unpack_mask(mask: bytes) -> int:
    return int.from_bytes(mask, "little")
