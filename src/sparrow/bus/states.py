"""The states of a stored message, and which may follow which."""

from __future__ import annotations

from enum import StrEnum


class EventStatus(StrEnum):
    SCHEDULED = "Scheduled"
    DELAYED = "Delayed"
    ENQUEUED = "Enqueued"
    PROCESSING = "Processing"
    SUCCESSED = "Successed"
    """So spelled in the requirement and in CAP's manual; CAP's own rows say Succeeded (`succeeded_spelling`)."""
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    @classmethod
    def of(cls, word: str) -> EventStatus:
        """Also reads CAP's spelling, in any letter case."""
        return _BY_WORD[word.lower()]

    @property
    def is_open(self) -> bool:
        """Whether work is left: exactly then the message has a row in Queue."""
        return self in OPEN_STATUSES


SUCCEEDED_SPELLINGS = ("Successed", "Succeeded")
OPEN_STATUSES = frozenset({EventStatus.SCHEDULED, EventStatus.DELAYED, EventStatus.ENQUEUED, EventStatus.PROCESSING})

TRANSITIONS: dict[EventStatus | None, frozenset[EventStatus]] = {
    None: frozenset(
        {EventStatus.SCHEDULED, EventStatus.DELAYED, EventStatus.FAILED}
    ),  # Failed: what came in cannot be read
    EventStatus.SCHEDULED: frozenset({EventStatus.ENQUEUED, EventStatus.CANCELLED, EventStatus.FAILED}),
    EventStatus.DELAYED: frozenset(
        {EventStatus.ENQUEUED, EventStatus.CANCELLED, EventStatus.FAILED, EventStatus.SCHEDULED}
    ),
    EventStatus.ENQUEUED: frozenset(
        {EventStatus.PROCESSING, EventStatus.ENQUEUED, EventStatus.SCHEDULED, EventStatus.FAILED}
    ),
    EventStatus.PROCESSING: frozenset(
        {EventStatus.SUCCESSED, EventStatus.SCHEDULED, EventStatus.FAILED, EventStatus.PROCESSING, EventStatus.ENQUEUED}
    ),
    EventStatus.FAILED: frozenset({EventStatus.ENQUEUED}),
    EventStatus.SUCCESSED: frozenset({EventStatus.ENQUEUED}),  # an operator has it sent or handled once more
    EventStatus.CANCELLED: frozenset({EventStatus.ENQUEUED}),
}


def is_legal_transition(before: EventStatus | None, after: EventStatus) -> bool:
    return after in TRANSITIONS[before]


_BY_WORD = {status.value.lower(): status for status in EventStatus} | {"succeeded": EventStatus.SUCCESSED}
