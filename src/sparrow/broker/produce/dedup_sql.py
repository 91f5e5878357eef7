"""Messages of idempotent producers that wait before they are appended: a repeat of such a send finds the first.

What is appended at once is known to the lanes' writers. These are filed beside those, under numbers of their own.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.store.sql.append.dedup import producer_sequence_of
from sparrow.store.sql.drivers.database import SqlSession
from sparrow.store.sql.schema.table_names import is_internal_topic

_KINDS = {"delayed": 1 << 61, "half": 1 << 60}
"""Bits that are turned in a producer's number."""


class DeferredSendKey(NamedTuple):
    """Which send of which producer."""

    producer: int
    seq: int


def deferred_send_key(queue: Queue, draft: Draft, kind: Literal["delayed", "half"]) -> DeferredSendKey | None:
    """None: the message may be stored as often as it is sent. `kind` says what it waits for."""
    # What is for a group's retries is no repeat, though it has the ticket of the first.
    ticket = None if is_internal_topic(queue.topic) else producer_sequence_of((draft,))
    return None if ticket is None else DeferredSendKey(ticket[0] ^ _KINDS[kind], ticket[1])


async def claim_send(session: SqlSession, once: DeferredSendKey, value: int, at_ms: int) -> None:
    """File it, with a value for those who repeat it; `Duplicate` if it is filed already."""
    await session.execute(
        "INSERT INTO hermes_batch (lane, producer, seq, base_id, n, at) VALUES (0, :producer, :seq, :value, 1, :at)",
        producer=once.producer,
        seq=once.seq,
        value=value,
        at=at_ms,
    )


async def claimed_value(session: SqlSession, once: DeferredSendKey) -> int | None:
    """What was filed for it."""
    found = await session.fetch(
        "SELECT base_id FROM hermes_batch WHERE lane = 0 AND producer = :producer AND seq = :seq",
        producer=once.producer,
        seq=once.seq,
    )
    return int(found[0][0]) if found else None
