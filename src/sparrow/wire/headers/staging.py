"""Headers of staged (atomic) and idempotent appends: requests of Sparrow's own. Their body is `queue_batches`."""

from __future__ import annotations

from typing import Literal

import msgspec

from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong

CommitOutcome = Literal["committed", "already"]


class StageRecords(Header, frozen=True):
    """Adds a body of records to a stage. The first one creates the stage."""

    stage: str
    """A unique name that the client chooses and never uses again."""
    seq: JavaInt
    """0, 1, 2, … A number that was received before is a repetition and is ignored."""
    fills_checksum: JavaBool = False
    """The broker computes the checksums of the bodies; else it verifies them."""


class SealStage(Header, frozen=True):
    """Completes a stage: no more records follow."""

    stage: str
    chunks: JavaInt
    """The number of bodies that were sent."""


class SealStageResponse(Header, frozen=True):
    rows: JavaLong
    size_bytes: JavaLong = msgspec.field(name="bytes")
    """The size of the records."""


class CommitStages(Header, frozen=True):
    """Appends the stages that the body lists (JSON), in that order, atomically."""

    scope: str
    number: JavaLong


class QueryLedger(Header, frozen=True):
    scope: str


class QueryLedgerResponse(Header, frozen=True):
    number: JavaLong | None = None
    """The last committed number of the scope; None: there is none."""


class AppendOnce(Header, frozen=True):
    """Appends the records in the body, once per scope and number, without a stage."""

    scope: str
    number: JavaLong
    fills_checksum: JavaBool = False


class CommitStagesResponse(Header, frozen=True):
    outcome: CommitOutcome
    """`already`: the number was committed before, and nothing was appended."""
    rows: JavaLong
    """The number of messages that this request appended."""


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.STAGE_RECORDS: StageRecords,
    RequestCode.SEAL_STAGE: SealStage,
    RequestCode.COMMIT_STAGES: CommitStages,
    RequestCode.QUERY_LEDGER: QueryLedger,
    RequestCode.APPEND_ONCE: AppendOnce,
}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.SEAL_STAGE: SealStageResponse,
    RequestCode.COMMIT_STAGES: CommitStagesResponse,
    RequestCode.QUERY_LEDGER: QueryLedgerResponse,
    RequestCode.APPEND_ONCE: CommitStagesResponse,
}
