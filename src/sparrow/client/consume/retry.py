"""Retries and dead letters: what a handler may raise, and the messages that are sent to retry topics.

After any other exception the broker chooses when the message is delivered again.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from types import MappingProxyType

from sparrow.client.produce.delayed_delivery import validate_delay_level
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
from sparrow.wire.consume_failure import (
    FAILURE_PROPERTIES,
    TRACEBACK_BYTES_MAX,
    ConsumeFailure,
    set_failure,
    shorten_start,
)
from sparrow.wire.message_ids import format_offset_id
from sparrow.wire.properties import decode, encode

DELAY_LEVEL_BY_BROKER, DELAY_LEVEL_DEAD_LETTER = 0, -1
"""Delay levels of a message that is given back, besides 1 to 18."""
TRACEBACK_FRAMES_MAX = 6
"""Innermost calls that the traceback of a dead letter shows."""
_TRACEBACK_LINE_CHARS_MAX = 400
FIRST_RETRY_DELAY_LEVEL = 3
"""The level of a broker's first retry (10 s); each further retry uses the next level."""

_NOT_AGAIN = (PROPERTY_TRANSACTION_PREPARED, PROPERTY_DELAY_LEVEL, PROPERTY_PRODUCER_ID, PROPERTY_SEQUENCE)
"""Properties that a retry must not have: it is not a half message, not delayed, and not a repeated send."""
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
        *FAILURE_PROPERTIES,
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
"""Properties of an earlier delivery, which would change how the message is delivered if it were sent again."""


class RetryLater(Exception):
    """Raised by a handler: deliver the message again after the delay of a level, 1 (1 s) to 18 (2 h).

    Without a level the broker chooses. In orderly consumption the queue waits; without a level, for a second.
    """

    def __init__(self, level: int | None = None) -> None:
        super().__init__(level)
        self.level = validate_delay_level(level) if level is not None else DELAY_LEVEL_BY_BROKER

    @property
    def delay_ms(self) -> int | None:
        """The delay of the level; None if the broker chooses."""
        return DELAY_LEVELS_MS[self.level - 1] if self.level else None


class DeadLetter(Exception):
    """Raised by a handler: do not deliver the message again, make it a dead letter.

    The dead letter keeps the reason: `raise DeadLetter("no such customer")`.
    """


def delay_level_for(failure: Exception) -> int:
    """Return the delay level with which a failed message is sent back."""
    if isinstance(failure, DeadLetter):
        return DELAY_LEVEL_DEAD_LETTER
    return failure.level if isinstance(failure, RetryLater) else DELAY_LEVEL_BY_BROKER


def is_handler_decision(failure: Exception) -> bool:
    """Return whether the handler raised `RetryLater` or `DeadLetter`, and did not fail."""
    return isinstance(failure, RetryLater | DeadLetter)


def describe_failure(failure: BaseException) -> ConsumeFailure:
    """Return what a handler raised, as it is stored with a dead letter.

    `RetryLater` and `DeadLetter` are no errors: the exception that they were raised from is described.
    """
    if not isinstance(failure, RetryLater | DeadLetter):
        return ConsumeFailure(_text(failure), _type_name(failure), _short_traceback(failure))
    reason = " ".join(map(str, failure.args)) if isinstance(failure, DeadLetter) else ""
    error = failure.__cause__ or (None if failure.__suppress_context__ else failure.__context__)
    if error is not None:
        return ConsumeFailure(reason or _text(error), _type_name(error), _short_traceback(error))
    return ConsumeFailure(reason or ("the handler raised RetryLater" if isinstance(failure, RetryLater) else ""))


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return str(error) or "the exception has no text"
    except Exception as cause:
        return f"the text of the exception is not available: str() raised {type(cause).__name__}"


def _short_traceback(error: BaseException) -> str:
    frames = error.__traceback__
    if frames is not None and frames.tb_next is not None:
        frames = frames.tb_next  # the first frame is ours
    lines = traceback.format_exception(type(error), error, frames, limit=-TRACEBACK_FRAMES_MAX)
    return shorten_start("".join(_shorten_line(line) for line in lines), TRACEBACK_BYTES_MAX)


def _shorten_line(line: str) -> str:
    return line if len(line) <= _TRACEBACK_LINE_CHARS_MAX else f"{line[:_TRACEBACK_LINE_CHARS_MAX]}…\n"


def make_retry_message(
    message: StoredMessage, group: str, level: int, failure: Mapping[str, str] = MappingProxyType({})
) -> Message:
    """Return the message as a consumer sends it to the retry topic of its group, with the properties of its failure.

    With `DELAY_LEVEL_DEAD_LETTER` it has no delay level: RocketMQ 4 would delay it before it becomes a dead letter.
    """
    properties = {name: value for name, value in message.properties.items() if name not in _NOT_AGAIN}
    properties.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, format_offset_id(message.store_host, message.physical_offset))
    if level != DELAY_LEVEL_DEAD_LETTER:
        properties[PROPERTY_DELAY_LEVEL] = str(level or FIRST_RETRY_DELAY_LEVEL + message.reconsume_times)
    properties = decode(set_failure(encode(properties), failure))
    return Message(topic=RETRY_TOPIC_PREFIX + group, body=message.body, properties=properties, flag=message.flag)


def make_redriven_message(letter: StoredMessage, group: str, *, to_group_only: bool) -> Message:
    """Return a dead letter as it was first sent, under its own id, for its topic or for one group."""
    original_topic = letter.properties.get(PROPERTY_RETRY_TOPIC)
    if original_topic is None:
        raise Refused(f"the dead letter {letter.unique_key!r} has no original topic: send its body as a new message")
    properties = {name: value for name, value in letter.properties.items() if name not in DELIVERY_STATE_PROPERTIES}
    if to_group_only:
        properties[PROPERTY_RETRY_TOPIC] = original_topic
    topic = RETRY_TOPIC_PREFIX + group if to_group_only else original_topic
    return Message(topic=topic, body=letter.body, properties=properties, flag=letter.flag)
