"""Why a consumer could not handle a message: properties of its retry and of its dead letter.

1. A client reports a failure with the send-back request, or as properties of the retry message that it sends itself.
   The broker adds the consumer and the attempt, and stores the properties.
2. The values come from a client, so the broker bounds them and removes characters that would split the property string.
3. A message is more important than its failure: what does not fit into the property string is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from sparrow.model.protocol import (
    PROPERTY_DLQ_ATTEMPT,
    PROPERTY_DLQ_CONSUMER,
    PROPERTY_DLQ_ERROR_TYPE,
    PROPERTY_DLQ_REASON,
    PROPERTY_DLQ_TRACEBACK,
)
from sparrow.wire.properties import PROPERTIES_BYTES_MAX, set_properties

REASON_BYTES_MAX, NAME_BYTES_MAX, TRACEBACK_BYTES_MAX = 512, 256, 2048
FAILURE_PROPERTIES = (
    PROPERTY_DLQ_REASON,
    PROPERTY_DLQ_ERROR_TYPE,
    PROPERTY_DLQ_CONSUMER,
    PROPERTY_DLQ_ATTEMPT,
    PROPERTY_DLQ_TRACEBACK,
)
_RESERVED_BYTES = 128
"""Space that is left for properties that a broker adds later, such as the delay level."""
_CONTROL_CHARS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_CUT = "…"


class ConsumeFailure(NamedTuple):
    """What a handler raised. Empty texts are unknown."""

    reason: str = ""
    error_type: str = ""
    traceback: str = ""

    def properties(self, *, consumer: str, attempt: int, with_traceback: bool = True) -> dict[str, str]:
        """Return the properties, bounded. An empty value removes the property of an earlier failure."""
        return {
            PROPERTY_DLQ_REASON: shorten(self.reason, REASON_BYTES_MAX),
            PROPERTY_DLQ_ERROR_TYPE: shorten(self.error_type, NAME_BYTES_MAX),
            PROPERTY_DLQ_CONSUMER: shorten(consumer, NAME_BYTES_MAX),
            PROPERTY_DLQ_ATTEMPT: str(attempt),
            PROPERTY_DLQ_TRACEBACK: shorten_start(self.traceback, TRACEBACK_BYTES_MAX) if with_traceback else "",
        }


def set_failure(encoded: bytes, values: Mapping[str, str]) -> bytes:
    """Return the property string with the properties of a failure; the last ones are left out if not all fit."""
    for count in range(len(FAILURE_PROPERTIES), -1, -1):
        changed = set_properties(
            encoded, {name: values.get(name, "") if at < count else "" for at, name in enumerate(FAILURE_PROPERTIES)}
        )
        if len(changed) <= PROPERTIES_BYTES_MAX - _RESERVED_BYTES:
            return changed
    return encoded


def shorten(text: str, bytes_max: int) -> str:
    """Return the text without control characters, and without its end if it is too long."""
    encoded = _clean(text)
    if len(encoded) <= bytes_max:
        return encoded.decode()
    return encoded[: bytes_max - len(_CUT.encode())].decode(errors="ignore") + _CUT


def shorten_start(text: str, bytes_max: int) -> str:
    """Return the text without control characters, and without its start if it is too long."""
    encoded = _clean(text)
    if len(encoded) <= bytes_max:
        return encoded.decode()
    return _CUT + encoded[len(encoded) - bytes_max + len(_CUT.encode()) :].decode(errors="ignore")


def _clean(text: str) -> bytes:
    return _CONTROL_CHARS.sub(" ", text).strip().encode(errors="replace")
