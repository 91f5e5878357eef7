"""Errors and response codes: one table, read by the broker in one direction and by the client in the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from sparrow.model.errors import (
    BadRequest,
    Busy,
    Closed,
    ConnectionLost,
    FlushTimeout,
    IllegalMessage,
    IllegalName,
    NotPermitted,
    ProtocolError,
    Refused,
    RequestTimeout,
    SparrowError,
    StorageError,
    StoreFailed,
    StoreFull,
    TooLarge,
    Unavailable,
    UnknownGroup,
    UnknownOffset,
    UnknownTopic,
)
from sparrow.wire.codes import Response

REMARK_CHARS_MAX = 1024
"""An error may quote what it was given; an answer need not carry all of it back."""


class AnsweredNo(Refused):
    """A peer refused, in its own words."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code, self.remark = code, remark

    def __str__(self) -> str:
        return f"{_name_of(self.code)}: {self.remark}" if self.remark else _name_of(self.code)


class AnsweredNotNow(Unavailable):
    """A peer could not just now, in its own words: trying again, perhaps elsewhere, may work."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code, self.remark = code, remark

    def __str__(self) -> str:
        return f"{_name_of(self.code)}: {self.remark}" if self.remark else _name_of(self.code)


class Fault(NamedTuple):
    error: type[SparrowError]
    code: Response
    told: Callable[[str], SparrowError] | None = None
    """Makes the error from a peer's remark, where a remark holds enough to do so."""


def _unknown_topic(remark: str) -> SparrowError:
    return UnknownTopic(_quoted(remark))


# Narrower classes first; of several rows with one code, the first that can be told from a remark is read back.
FAULTS = (
    Fault(UnknownTopic, Response.TOPIC_NOT_EXIST, _unknown_topic),
    Fault(UnknownGroup, Response.SUBSCRIPTION_GROUP_NOT_EXIST),
    Fault(NotPermitted, Response.NO_PERMISSION),
    Fault(TooLarge, Response.MESSAGE_ILLEGAL),
    Fault(IllegalMessage, Response.MESSAGE_ILLEGAL),
    Fault(UnknownOffset, Response.QUERY_NOT_FOUND),
    Fault(IllegalName, Response.INVALID_PARAMETER),
    # RocketMQ answers a header it cannot decode with its catch-all, and tools know it as such.
    Fault(BadRequest, Response.SYSTEM_ERROR),
    Fault(Refused, Response.INVALID_PARAMETER),
    Fault(Busy, Response.SYSTEM_BUSY, Busy),
    Fault(FlushTimeout, Response.FLUSH_DISK_TIMEOUT),
    Fault(RequestTimeout, Response.CONSUME_MSG_TIMEOUT),
    Fault(ConnectionLost, Response.SERVICE_NOT_AVAILABLE),
    Fault(Closed, Response.SERVICE_NOT_AVAILABLE),
    Fault(Unavailable, Response.SERVICE_NOT_AVAILABLE),
    Fault(StoreFull, Response.SERVICE_NOT_AVAILABLE),
    Fault(StoreFailed, Response.SERVICE_NOT_AVAILABLE),
    Fault(StorageError, Response.SYSTEM_ERROR),
    Fault(ProtocolError, Response.SYSTEM_ERROR),
    Fault(SparrowError, Response.SYSTEM_ERROR),
)

WORTH_RETRYING = frozenset(
    {
        Response.SYSTEM_ERROR,
        Response.SYSTEM_BUSY,
        Response.FLUSH_DISK_TIMEOUT,
        Response.SLAVE_NOT_AVAILABLE,
        Response.FLUSH_SLAVE_TIMEOUT,
        Response.SERVICE_NOT_AVAILABLE,
        Response.NO_BUYER_ID,
        Response.NOT_IN_CURRENT_UNIT,
        Response.CONSUME_MSG_TIMEOUT,
        Response.POLLING_FULL,
        Response.POLLING_TIMEOUT,
        Response.FLOW_CONTROL,
        Response.NOT_LEADER_FOR_QUEUE,
        Response.GO_AWAY,
        Response.CONTROLLER_NOT_LEADER,
    }
)
"""Codes that mean "not now, or not here"."""


def response_of(error: BaseException) -> tuple[int, str]:
    """The code and the remark that tell a peer of this error."""
    if isinstance(error, AnsweredNo | AnsweredNotNow):
        return error.code, error.remark
    for fault in FAULTS:
        if isinstance(error, fault.error):
            return fault.code, str(error)[:REMARK_CHARS_MAX]
    # Our own mistake. The class alone says little and the message may quote anything; still, it is what RocketMQ sends.
    return Response.SYSTEM_ERROR, f"{type(error).__name__}: {error}"[:REMARK_CHARS_MAX]


def error_of(code: int, remark: str | None = None) -> SparrowError:
    """The error a response stands for. Its `response_of` gives the code back."""
    assert code != Response.SUCCESS, "a success is no error"
    words = remark or ""
    told = _TOLD.get(code)
    if told is not None:
        return told(words)
    return AnsweredNotNow(code, words) if code in WORTH_RETRYING else AnsweredNo(code, words)


_TOLD = {int(fault.code): fault.told for fault in reversed(FAULTS) if fault.told is not None}


def _name_of(code: int) -> str:
    try:
        return Response(code).name
    except ValueError:
        return f"response code {code}"


def _quoted(remark: str) -> str:
    """The name in a remark: ours has it in quotes, Java's brokers in brackets, its name server after a colon."""
    found = re.search(r"'([^']+)'|\[([^\]]+)\]|: *([%|a-zA-Z0-9_-]+)\s*(?:\n|$)", remark)
    return next(filter(None, found.groups())) if found else remark
