"""The states of a stored message and the transitions between them; docs/event-bus.md explains them."""

from __future__ import annotations

from enum import StrEnum


class EventStatus(StrEnum):
    """The state of a stored message."""

    SCHEDULED = "Scheduled"
    DELAYED = "Delayed"
    ENQUEUED = "Enqueued"
    PROCESSING = "Processing"
    SUCCESSED = "Successed"
    """Spelled as in CAP's manual; CAP's own rows say Succeeded (see the setting `succeeded_spelling`)."""
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    @classmethod
    def of(cls, status_name: str) -> EventStatus:
        """Return the status for a spelling, CAP's included, in any letter case."""
        return _BY_WORD[status_name.lower()]

    @property
    def is_open(self) -> bool:
        """Whether work is left. Exactly the open messages have a row in Queue."""
        return self in OPEN_STATUSES


SUCCEEDED_SPELLINGS = ("Successed", "Succeeded")
OPEN_STATUSES = frozenset({EventStatus.SCHEDULED, EventStatus.DELAYED, EventStatus.ENQUEUED, EventStatus.PROCESSING})

TRANSITIONS: dict[EventStatus | None, frozenset[EventStatus]] = {
    None: frozenset(
        {EventStatus.SCHEDULED, EventStatus.DELAYED, EventStatus.FAILED}
    ),  # Failed at once: the received message cannot be read
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
    EventStatus.SUCCESSED: frozenset({EventStatus.ENQUEUED}),  # an operator requeues it
    EventStatus.CANCELLED: frozenset({EventStatus.ENQUEUED}),
}


def is_legal_transition(before: EventStatus | None, after: EventStatus) -> bool:
    return after in TRANSITIONS[before]


_BY_WORD = {status.value.lower(): status for status in EventStatus} | {"succeeded": EventStatus.SUCCESSED}
