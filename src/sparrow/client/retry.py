"""What a handler may say of a message it does not want now, and the messages that become of it.

A handler that raises anything else has failed; that message comes again when the broker thinks best.
"""

from __future__ import annotations

from sparrow.client.delayed_delivery import validate_delay_level
from sparrow.model.delay_levels import DELAY_LEVELS_MS
from sparrow.model.errors import Refused
from sparrow.model.message import Message, StoredMessage
from sparrow.model.protocol import (
    PROPERTY_CHECK_TIMES,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_PRODUCER_ID,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REGION,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SEQUENCE,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_WAIT_STORED,
    RETRY_TOPIC_PREFIX,
)
from sparrow.wire.message_ids import format_offset_id

DELAY_LEVEL_BY_BROKER, DELAY_LEVEL_DEAD_LETTER = 0, -1
"""Delay levels of a message that is given back, besides 1 to 18."""
FIRST_RETRY_DELAY_LEVEL = 3
"""Where the broker begins: 10 s, and one level more with each time."""

_NOT_AGAIN = (PROPERTY_TRANSACTION_PREPARED, PROPERTY_DELAY_LEVEL, PROPERTY_PRODUCER_ID, PROPERTY_SEQUENCE)
"""Sent again, it is a message of its own: not half of a transaction, not delayed, and no repeat of what was sent."""
DELIVERY_STATE_PROPERTIES = frozenset(
    {
        *(PROPERTY_RETRY_TOPIC, PROPERTY_ORIGIN_MESSAGE_ID, "RECONSUME_TIME", "MAX_RECONSUME_TIMES", *_NOT_AGAIN),
        *(
            PROPERTY_DELAY_LEVEL,
            PROPERTY_REAL_TOPIC,
            PROPERTY_REAL_QUEUE_ID,
            PROPERTY_WAIT_STORED,
            PROPERTY_CLUSTER,
            PROPERTY_REGION,
            PROPERTY_TRACE_SWITCH,
        ),
        *(
            PROPERTY_TRANSACTION_PREPARED,
            PROPERTY_PRODUCER_GROUP,
            PROPERTY_CHECK_TIMES,
            "TRAN_PREPARED_QUEUE_OFFSET",
            "__transactionId__",
        ),
        *(
            PROPERTY_TIMER_DELIVER_MS,
            PROPERTY_TIMER_DELAY_MS,
            PROPERTY_TIMER_DELAY_S,
            PROPERTY_TIMER_OUT_MS,
            PROPERTY_TIMER_ROLL_TIMES,
        ),
        *(
            "TIMER_ENQUEUE_MS",
            "TIMER_DEQUEUE_MS",
            "TIMER_DELAY_LEVEL",
            "MIN_OFFSET",
            "MAX_OFFSET",
            "CONSUME_START_TIME",
        ),
    }
)
"""Properties that say what a message has been through, and would send it the same way again."""


class RetryLater(Exception):
    """Raised by a handler: bring it again after the time of a level, 1 (1 s) to 18 (2 h); the broker chooses without.

    Where messages come in order the queue waits for it; without a level, for a second.
    """

    def __init__(self, level: int | None = None) -> None:
        super().__init__(level)
        self.level = validate_delay_level(level) if level is not None else DELAY_LEVEL_BY_BROKER

    @property
    def delay_ms(self) -> int | None:
        return DELAY_LEVELS_MS[self.level - 1] if self.level else None


class DeadLetter(Exception):
    """Raised by a handler: no use in trying again, put it to the dead letters."""


def delay_level_for(failure: Exception) -> int:
    """The delay level with which a message is given back."""
    if isinstance(failure, DeadLetter):
        return DELAY_LEVEL_DEAD_LETTER
    return failure.level if isinstance(failure, RetryLater) else DELAY_LEVEL_BY_BROKER


def is_handler_decision(failure: Exception) -> bool:
    """Whether the handler meant it, rather than broke down."""
    return isinstance(failure, RetryLater | DeadLetter)


def make_retry_message(message: StoredMessage, group: str, level: int) -> Message:
    """The message as a consumer itself sends it to its group's retry topic, to come after a level's time.

    One that goes `DELAY_LEVEL_DEAD_LETTER` has no level: RocketMQ 4 would let it wait before it is buried.
    """
    words = {name: value for name, value in message.properties.items() if name not in _NOT_AGAIN}
    words.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
    words.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, format_offset_id(message.store_host, message.physical_offset))
    if level != DELAY_LEVEL_DEAD_LETTER:
        words[PROPERTY_DELAY_LEVEL] = str(level or FIRST_RETRY_DELAY_LEVEL + message.reconsume_times)
    return Message(topic=RETRY_TOPIC_PREFIX + group, body=message.body, properties=words, flag=message.flag)


def make_redriven_message(letter: StoredMessage, group: str, *, to_group_only: bool) -> Message:
    """A dead letter as it was when it was young, under its own id. For its topic, or for one group of its readers."""
    own_topic = letter.properties.get(PROPERTY_RETRY_TOPIC)
    if own_topic is None:
        raise Refused(f"the dead letter {letter.unique_key!r} does not say of which topic it was")
    words = {name: value for name, value in letter.properties.items() if name not in DELIVERY_STATE_PROPERTIES}
    if to_group_only:
        words[PROPERTY_RETRY_TOPIC] = own_topic
    topic = RETRY_TOPIC_PREFIX + group if to_group_only else own_topic
    return Message(topic=topic, body=letter.body, properties=words, flag=letter.flag)
