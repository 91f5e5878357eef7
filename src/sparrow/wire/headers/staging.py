"""Records that become messages all together or not at all: requests of Sparrow's own. Their bodies: `wire.portions`."""

from __future__ import annotations

from typing import Literal

import msgspec

from sparrow.wire.codes import Code
from sparrow.wire.headers.codec import Flag, Header, Int, Long

Outcome = Literal["committed", "already"]


class StageRecords(Header, frozen=True):
    """One more body of portions for a stage. The first makes the stage."""

    stage: str
    """A name of the client's own, used for nothing else before or after."""
    seq: Int
    """0, 1, 2, ... One that has come before is taken for a repeat."""
    fills_checksum: Flag = False
    """The checksums of the bodies are left for the broker to fill in; else it compares them."""


class SealStage(Header, frozen=True):
    """Nothing more will come for the stage."""

    stage: str
    chunks: Int
    """How many bodies it was sent."""


class StageSealed(Header, frozen=True):
    rows: Long
    size_bytes: Long = msgspec.field(name="bytes")
    """Of the records."""


class CommitStages(Header, frozen=True):
    """Append the stages that the body lists (JSON), in that order."""

    scope: str
    number: Long


class QueryLedger(Header, frozen=True):
    scope: str


class LedgerFound(Header, frozen=True):
    number: Long | None = None
    """How far the scope has got; None: it never said."""


class AppendOnce(Header, frozen=True):
    """The same with the records themselves in the body, and no stage."""

    scope: str
    number: Long
    fills_checksum: Flag = False


class Committed(Header, frozen=True):
    outcome: Outcome
    """`already`: the scope had got as far before, and nothing was appended."""
    rows: Long
    """Messages that this request made."""


REQUESTS: dict[Code, type[Header]] = {
    Code.STAGE_RECORDS: StageRecords,
    Code.SEAL_STAGE: SealStage,
    Code.COMMIT_STAGES: CommitStages,
    Code.QUERY_LEDGER: QueryLedger,
    Code.APPEND_ONCE: AppendOnce,
}
RESPONSES: dict[Code, type[Header]] = {
    Code.SEAL_STAGE: StageSealed,
    Code.COMMIT_STAGES: Committed,
    Code.QUERY_LEDGER: LedgerFound,
    Code.APPEND_ONCE: Committed,
}
