"""Messages that are appended all together, once: staging them at a broker, and committing what was staged.

Everything here may be asked again when no answer came: the broker knows what it has and what it has done.
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
"""For one body of some megabytes, behind others that are being checked and written."""
COMMIT_TIMEOUT_MS = 600_000
"""The answer comes when all is appended, and there may be gigabytes."""


class SealedStage(msgspec.Struct, frozen=True):
    """What a stage holds."""

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
    """Send body `seq` (0, 1, ...) of a stage, as `wire.portions.encode` makes it. The first begins the stage.

    `fills_checksum`: the records come without checksums, and the broker makes them.
    """
    header = StageRecords(stage_id, seq, fills_checksum)
    await session.invoke(address, RequestCode.STAGE_RECORDS, header, blob, timeout_ms=timeout_ms)


async def seal_stage(
    session: ClientSession, address: str, stage_id: str, chunks: int, *, timeout_ms: int = STAGE_TIMEOUT_MS
) -> SealedStage:
    """Say that a stage is complete with so many bodies. From then on it outlives the broker."""
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
    """Make messages of all that these stages hold, in this order. False: `scope` had got as far as `number` already."""
    body = bodies.write(list(stages))
    answer = await session.invoke(
        address, RequestCode.COMMIT_STAGES, CommitStages(scope, number), body, timeout_ms=timeout_ms
    )
    return headers.read(CommitStagesResponse, answer.ext).outcome == "committed"


async def drop_stages(
    session: ClientSession, address: str, stages: Sequence[str], *, timeout_ms: int = STAGE_TIMEOUT_MS
) -> None:
    """They will not be committed. What is not there is fine."""
    await session.invoke(address, RequestCode.DROP_STAGES, None, bodies.write(list(stages)), timeout_ms=timeout_ms)


async def query_ledger(
    session: ClientSession, address: str, scope: str, *, timeout_ms: int | None = None
) -> int | None:
    """How far a scope has got at this broker; None: it never committed."""
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
    """Make messages of one body without a stage. False: `scope` had got as far as `number` already."""
    header = AppendOnce(scope, number, fills_checksum)
    answer = await session.invoke(address, RequestCode.APPEND_ONCE, header, blob, timeout_ms=timeout_ms)
    return headers.read(CommitStagesResponse, answer.ext).outcome == "committed"
