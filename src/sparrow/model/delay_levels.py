"""RocketMQ's 18 delay levels."""

from sparrow.model.protocol import SCHEDULE_TOPIC

_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000

DELAY_LEVELS_MS = (
    *(n * _SECOND for n in (1, 5, 10, 30)),
    *(n * _MINUTE for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(n * _HOUR for n in (1, 2)),
)


def level_delay_ms(topic: str, queue_id: int) -> int | None:
    """Return the delay of a queue of the schedule topic; None for any other queue."""
    if topic != SCHEDULE_TOPIC or queue_id >= len(DELAY_LEVELS_MS):
        return None
    return DELAY_LEVELS_MS[queue_id]
