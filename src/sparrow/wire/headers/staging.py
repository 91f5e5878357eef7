"""Records that become messages all together or not at all: requests of Sparrow's own. Their bodies: `wire.portions`."""

from __future__ import annotations

from typing import Literal

import msgspec

from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong

CommitOutcome = Literal["committed", "already"]


class StageRecords(Header, frozen=True):
    """One more body of portions for a stage. The first makes the stage."""

    stage: str
    """A name of the client's own, used for nothing else before or after."""
    seq: JavaInt
    """0, 1, 2, ... One that has come before is taken for a repeat."""
    fills_checksum: JavaBool = False
    """The checksums of the bodies are left for the broker to fill in; else it compares them."""


class SealStage(Header, frozen=True):
    """Nothing more will come for the stage."""

    stage: str
    chunks: JavaInt
    """How many bodies it was sent."""


class SealStageResponse(Header, frozen=True):
    rows: JavaLong
    size_bytes: JavaLong = msgspec.field(name="bytes")
    """Of the records."""


class CommitStages(Header, frozen=True):
    """Append the stages that the body lists (JSON), in that order."""

    scope: str
    number: JavaLong


class QueryLedger(Header, frozen=True):
    scope: str


class QueryLedgerResponse(Header, frozen=True):
    number: JavaLong | None = None
    """How far the scope has got; None: it never said."""


class AppendOnce(Header, frozen=True):
    """The same with the records themselves in the body, and no stage."""

    scope: str
    number: JavaLong
    fills_checksum: JavaBool = False


class CommitStagesResponse(Header, frozen=True):
    outcome: CommitOutcome
    """`already`: the scope had got as far before, and nothing was appended."""
    rows: JavaLong
    """Messages that this request made."""


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
