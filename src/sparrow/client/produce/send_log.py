"""The log of sends: one line for each message that is stored, written one way, or failed, with its keys and its result.

A line is made from the request when it has ended, and only if the logger is enabled for the level of the producer.
Otherwise a request costs one check of that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal

from sparrow.client.aio.produce.batches.message_batch import send_results
from sparrow.client.aio.produce.sender import SendOutcome, SendPayload
from sparrow.model.protocol import PROPERTY_KEYS, PROPERTY_UNIQUE_KEY
from sparrow.wire import batch
from sparrow.wire.properties import property_value

log = logging.getLogger(__name__)

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO}


class SendLog:
    """Logs the sends of one producer."""

    def __init__(self, level: Literal["debug", "info"]) -> None:
        self._level = _LEVELS[level]

    @property
    def is_enabled(self) -> bool:
        """Whether a line would be written."""
        return log.isEnabledFor(self._level)

    def stored(self, payload: SendPayload, outcome: SendOutcome) -> None:
        """Log the result of each message of a request."""
        messages = list(_messages(payload))
        results = send_results(outcome, [message_id for message_id, _ in messages])
        for (_, keys), result in zip(messages, results, strict=True):
            log.log(
                self._level,
                "message %(message_id)s with keys %(keys)r sent to %(queue)s: %(status)s, "
                "queue offset %(queue_offset)d, offset id %(offset_id)s",
                {
                    "message_id": result.message_id,
                    "keys": keys,
                    "queue": f"{result.topic}/{result.broker_name}/{result.queue_id}",
                    "status": result.status.value,
                    "queue_offset": result.queue_offset,
                    "offset_id": result.offset_id,
                },
            )

    def written(self, topic: str, payload: SendPayload) -> None:
        """Log a message that is sent one way: it has no result."""
        for message_id, keys in _messages(payload):
            log.log(
                self._level,
                "message %(message_id)s with keys %(keys)r sent one way to topic %(topic)s, without a result",
                {"message_id": message_id, "keys": keys, "topic": topic},
            )

    def failed(self, topic: str, payload: SendPayload, error: Exception) -> None:
        """Log each message of a request that failed."""
        for message_id, keys in _messages(payload):
            log.log(
                self._level,
                "message %(message_id)s with keys %(keys)r not sent to topic %(topic)s: %(error)s",
                {"message_id": message_id, "keys": keys, "topic": topic, "error": error},
            )


def _messages(payload: SendPayload) -> Iterator[tuple[str, str]]:
    """Yield the unique id and the keys of each message of a request; empty where a message has none."""
    if payload.is_batch:
        found = [message.properties for message in batch.decode(payload.body)]
    else:
        found = [payload.properties.encode()]
    for properties in found:
        yield property_value(properties, PROPERTY_UNIQUE_KEY) or "", property_value(properties, PROPERTY_KEYS) or ""
