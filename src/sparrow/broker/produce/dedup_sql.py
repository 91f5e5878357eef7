"""Deduplication of delayed and half messages of idempotent producers on a database.

A message that is appended at once is deduplicated by its lane's writer (`store/sql/append/lane_writer`). Delayed and
half messages use rows of the same table, with producer numbers that differ in one bit.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.store.sql.append.dedup import producer_sequence_of
from sparrow.store.sql.drivers.database import SqlSession
from sparrow.store.sql.schema.table_names import is_internal_topic
from sparrow.store.sql.statements import batches as statements

_KIND_BITS = {"delayed": 1 << 61, "half": 1 << 60}
"""The bit that is flipped in a producer's number."""


class DeferredSendKey(NamedTuple):
    """Identifies a send of a producer."""

    producer: int
    seq: int


def deferred_send_key(queue: Queue, draft: Draft, kind: Literal["delayed", "half"]) -> DeferredSendKey | None:
    """Return the key of a send; None if a repeat of it may be stored again."""
    # A message in a retry topic is not a repeat, although it has the sequence number of the first.
    sequence = None if is_internal_topic(queue.topic) else producer_sequence_of((draft,))
    return None if sequence is None else DeferredSendKey(sequence[0] ^ _KIND_BITS[kind], sequence[1])


async def claim_send(session: SqlSession, key: DeferredSendKey, value: int, at_ms: int) -> None:
    """Store the key with a value for repeats of the send; raise `DuplicateKey` if it is stored already."""
    await session.execute(
        statements.INSERT_FOR_ALL_LANES,
        producer=key.producer,
        seq=key.seq,
        value=value,
        at=at_ms,
    )


async def claimed_value(session: SqlSession, key: DeferredSendKey) -> int | None:
    """Return the value that was stored with the key, if any."""
    found = await session.fetch(
        statements.SELECT_FOR_ALL_LANES,
        producer=key.producer,
        seq=key.seq,
    )
    return int(found[0][0]) if found else None
