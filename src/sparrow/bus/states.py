"""The states of a stored message, and which may follow which."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    SCHEDULED = "Scheduled"
    DELAYED = "Delayed"
    ENQUEUED = "Enqueued"
    PROCESSING = "Processing"
    SUCCESSED = "Successed"
    """So spelled in the requirement and in CAP's manual; CAP's own rows say Succeeded (`succeeded_word`)."""
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    @classmethod
    def of(cls, word: str) -> Status:
        """Also reads CAP's spelling, in any letter case."""
        return _BY_WORD[word.lower()]

    @property
    def is_open(self) -> bool:
        """Whether work is left: exactly then the message has a row in Queue."""
        return self in OPEN


SUCCEEDED_WORDS = ("Successed", "Succeeded")
OPEN = frozenset({Status.SCHEDULED, Status.DELAYED, Status.ENQUEUED, Status.PROCESSING})

FOLLOWING: dict[Status | None, frozenset[Status]] = {
    None: frozenset({Status.SCHEDULED, Status.DELAYED, Status.FAILED}),  # Failed: what came in cannot be read
    Status.SCHEDULED: frozenset({Status.ENQUEUED, Status.CANCELLED, Status.FAILED}),
    Status.DELAYED: frozenset({Status.ENQUEUED, Status.CANCELLED, Status.FAILED, Status.SCHEDULED}),
    Status.ENQUEUED: frozenset({Status.PROCESSING, Status.ENQUEUED, Status.SCHEDULED, Status.FAILED}),
    Status.PROCESSING: frozenset(
        {Status.SUCCESSED, Status.SCHEDULED, Status.FAILED, Status.PROCESSING, Status.ENQUEUED}
    ),
    Status.FAILED: frozenset({Status.ENQUEUED}),
    Status.SUCCESSED: frozenset({Status.ENQUEUED}),  # an operator has it sent or handled once more
    Status.CANCELLED: frozenset({Status.ENQUEUED}),
}


def may_follow(before: Status | None, after: Status) -> bool:
    return after in FOLLOWING[before]


_BY_WORD = {status.value.lower(): status for status in Status} | {"succeeded": Status.SUCCESSED}
