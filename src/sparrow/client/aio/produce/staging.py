"""Staged writes: messages that are sent to a broker in parts and appended all together, once.

Every call may be repeated after a missing response: the broker detects what it has done already.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sparrow.client.aio.connection.session import ClientSession
from sparrow.wire import bodies, headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import (
    AppendOnce,
    CommitStages,
    CommitStagesResponse,
    QueryLedger,
    QueryLedgerResponse,
    SealStage,
    SealStageResponse,
    StageRecords,
)

STAGE_TIMEOUT_MS = 60_000
"""For one body of some megabytes, which may have to wait for others that are being checked and written."""
COMMIT_TIMEOUT_MS = 600_000
"""The response is sent when everything is appended, which may be gigabytes."""


class SealedStage(msgspec.Struct, frozen=True):
    """The size of a sealed stage."""

    rows: int
    bytes: int
    """Of the records."""


async def stage_records(
    session: ClientSession,
    address: str,
    stage_id: str,
    seq: int,
    blob: bytes,
    *,
    fills_checksum: bool,
    timeout_ms: int = STAGE_TIMEOUT_MS,
) -> None:
    """Send body `seq` (0, 1, ...) of a stage, encoded by `sparrow.wire.queue_batches`. The first one begins the stage.

    `fills_checksum`: the records have no checksums, and the broker computes them.
    """
    header = StageRecords(stage_id, seq, fills_checksum)
    await session.invoke(address, RequestCode.STAGE_RECORDS, header, blob, timeout_ms=timeout_ms)


async def seal_stage(
    session: ClientSession, address: str, stage_id: str, chunks: int, *, timeout_ms: int = STAGE_TIMEOUT_MS
) -> SealedStage:
    """Declare a stage complete, with the number of its bodies. From then on it survives a restart of the broker."""
    answer = await session.invoke(address, RequestCode.SEAL_STAGE, SealStage(stage_id, chunks), timeout_ms=timeout_ms)
    found = headers.read(SealStageResponse, answer.ext)
    return SealedStage(found.rows, found.size_bytes)


async def commit_stages(
    session: ClientSession,
    address: str,
    scope: str,
    number: int,
    stages: Sequence[str],
    *,
    timeout_ms: int = COMMIT_TIMEOUT_MS,
) -> bool:
    """Append the messages of these stages, in this order. Return False if `scope` had reached `number` already."""
    body = bodies.write(list(stages))
    answer = await session.invoke(
        address, RequestCode.COMMIT_STAGES, CommitStages(scope, number), body, timeout_ms=timeout_ms
    )
    return headers.read(CommitStagesResponse, answer.ext).outcome == "committed"


async def drop_stages(
    session: ClientSession, address: str, stages: Sequence[str], *, timeout_ms: int = STAGE_TIMEOUT_MS
) -> None:
    """Discard stages. Unknown ones are no error."""
    await session.invoke(address, RequestCode.DROP_STAGES, None, bodies.write(list(stages)), timeout_ms=timeout_ms)


async def query_ledger(
    session: ClientSession, address: str, scope: str, *, timeout_ms: int | None = None
) -> int | None:
    """Return how far a scope has committed at this broker; None if it never did."""
    answer = await session.invoke(address, RequestCode.QUERY_LEDGER, QueryLedger(scope), timeout_ms=timeout_ms)
    return headers.read(QueryLedgerResponse, answer.ext).number


async def append_once(
    session: ClientSession,
    address: str,
    scope: str,
    number: int,
    blob: bytes,
    *,
    fills_checksum: bool,
    timeout_ms: int = STAGE_TIMEOUT_MS,
) -> bool:
    """Append the messages of one body without a stage. Return False if `scope` had reached `number` already."""
    header = AppendOnce(scope, number, fills_checksum)
    answer = await session.invoke(address, RequestCode.APPEND_ONCE, header, blob, timeout_ms=timeout_ms)
    return headers.read(CommitStagesResponse, answer.ext).outcome == "committed"
