"""The queues of delayed messages, and whether a delivery time has come or is too far away.

The queues are RocketMQ's: one for each level in the schedule topic, and one for delivery times in the timer topic,
which also contains cancellations (`TIMER_DEL_UNIQKEY`).
"""

from __future__ import annotations

from sparrow.model.delay_levels import DELAY_LEVELS_MS
from sparrow.model.errors import IllegalMessage
from sparrow.model.protocol import SCHEDULE_TOPIC, TIMER_TOPIC
from sparrow.model.queue import Queue

DELAY_QUEUES = (*(Queue(SCHEDULE_TOPIC, number) for number in range(len(DELAY_LEVELS_MS))), Queue(TIMER_TOPIC, 0))
TIMER_QUEUE_INDEX = len(DELAY_QUEUES) - 1


def is_due(due_ms: int, now_ms: int, *, horizon_ms: int, cancels: bool) -> bool:
    """Return whether a message is due. Raise `IllegalMessage` if it is beyond the horizon, or cancels too late."""
    if due_ms <= now_ms:
        if cancels:
            raise IllegalMessage("it would cancel a message that is delivered already")
        return True
    if due_ms - now_ms > horizon_ms:
        raise IllegalMessage(
            f"a delay of {due_ms - now_ms} ms is beyond the horizon of {horizon_ms} ms: raise "
            "delay_horizon_ms, or send later"
        )
    return False
