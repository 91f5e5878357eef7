"""Statements on `hermes_batch`: which batches are stored, so that a repeated one is not stored again.

Rows with lane 0 belong to idempotent producers and count for all lanes; their `base_id` is a physical offset.
"""

from __future__ import annotations

from collections.abc import Iterable

INSERT_FOR_ALL_LANES = """
    INSERT INTO hermes_batch (lane, producer, seq, base_id, n, at)
    VALUES (0, :producer, :seq, :value, 1, :at)"""

SELECT_FOR_ALL_LANES = "SELECT base_id FROM hermes_batch WHERE lane = 0 AND producer = :producer AND seq = :seq"

DELETE_USED = "DELETE FROM hermes_batch WHERE lane = :lane AND producer = :producer AND seq < :seq"

DELETE_OF_LANE = """
    DELETE FROM hermes_batch
    WHERE lane = :lane OR (lane = 0 AND base_id >= :first AND base_id < :end)"""

DELETE_OLDER = "DELETE FROM hermes_batch WHERE at < :until"


def select_stored(batches: Iterable[tuple[int, int]]) -> str:
    """Select those of some batches, given as (producer, sequence), that are stored in a lane or for all lanes."""
    conditions = " OR ".join(f"(producer = {producer} AND seq = {seq})" for producer, seq in batches)
    return f"SELECT lane, producer, seq, base_id, at FROM hermes_batch WHERE lane IN (0, :lane) AND ({conditions})"


def select_nth_older(n: int) -> str:
    """Select the time of the n-th oldest batch of those older than a time."""
    return f"SELECT at FROM hermes_batch WHERE at < :older ORDER BY at LIMIT 1 OFFSET {n - 1}"
