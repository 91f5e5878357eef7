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
from sparrow.wire.codes import ResponseCode

REMARK_CHARS_MAX = 1024
"""An error may quote what it was given; an answer need not carry all of it back."""


class RemoteRefused(Refused):
    """A peer refused, in its own words."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code, self.remark = code, remark

    def __str__(self) -> str:
        return f"{_name_of(self.code)}: {self.remark}" if self.remark else _name_of(self.code)


class RemoteUnavailable(Unavailable):
    """A peer could not just now, in its own words: trying again, perhaps elsewhere, may work."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code, self.remark = code, remark

    def __str__(self) -> str:
        return f"{_name_of(self.code)}: {self.remark}" if self.remark else _name_of(self.code)


class ErrorMapping(NamedTuple):
    error: type[SparrowError]
    code: ResponseCode
    told: Callable[[str], SparrowError] | None = None
    """Makes the error from a peer's remark, where a remark holds enough to do so."""


def _unknown_topic(remark: str) -> SparrowError:
    return UnknownTopic(_quoted(remark))


# Narrower classes first; of several rows with one code, the first that can be told from a remark is read back.
ERROR_MAPPINGS = (
    ErrorMapping(UnknownTopic, ResponseCode.TOPIC_NOT_EXIST, _unknown_topic),
    ErrorMapping(UnknownGroup, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ErrorMapping(NotPermitted, ResponseCode.NO_PERMISSION),
    ErrorMapping(TooLarge, ResponseCode.MESSAGE_ILLEGAL),
    ErrorMapping(IllegalMessage, ResponseCode.MESSAGE_ILLEGAL),
    ErrorMapping(UnknownOffset, ResponseCode.QUERY_NOT_FOUND),
    ErrorMapping(IllegalName, ResponseCode.INVALID_PARAMETER),
    # RocketMQ answers a header it cannot decode with its catch-all, and tools know it as such.
    ErrorMapping(BadRequest, ResponseCode.SYSTEM_ERROR),
    ErrorMapping(Refused, ResponseCode.INVALID_PARAMETER),
    ErrorMapping(Busy, ResponseCode.SYSTEM_BUSY, Busy),
    ErrorMapping(FlushTimeout, ResponseCode.FLUSH_DISK_TIMEOUT),
    ErrorMapping(RequestTimeout, ResponseCode.CONSUME_MSG_TIMEOUT),
    ErrorMapping(ConnectionLost, ResponseCode.SERVICE_NOT_AVAILABLE),
    ErrorMapping(Closed, ResponseCode.SERVICE_NOT_AVAILABLE),
    ErrorMapping(Unavailable, ResponseCode.SERVICE_NOT_AVAILABLE),
    ErrorMapping(StoreFull, ResponseCode.SERVICE_NOT_AVAILABLE),
    ErrorMapping(StoreFailed, ResponseCode.SERVICE_NOT_AVAILABLE),
    ErrorMapping(StorageError, ResponseCode.SYSTEM_ERROR),
    ErrorMapping(ProtocolError, ResponseCode.SYSTEM_ERROR),
    ErrorMapping(SparrowError, ResponseCode.SYSTEM_ERROR),
)

RETRYABLE_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.CONSUME_MSG_TIMEOUT,
        ResponseCode.POLLING_FULL,
        ResponseCode.POLLING_TIMEOUT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        ResponseCode.GO_AWAY,
        ResponseCode.CONTROLLER_NOT_LEADER,
    }
)
"""Codes that mean "not now, or not here"."""


def response_for_error(error: BaseException) -> tuple[int, str]:
    """The code and the remark that tell a peer of this error."""
    if isinstance(error, RemoteRefused | RemoteUnavailable):
        return error.code, error.remark
    for fault in ERROR_MAPPINGS:
        if isinstance(error, fault.error):
            return fault.code, str(error)[:REMARK_CHARS_MAX]
    # Our own mistake. The class alone says little and the message may quote anything; still, it is what RocketMQ sends.
    return ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"[:REMARK_CHARS_MAX]


def error_for_response(code: int, remark: str | None = None) -> SparrowError:
    """The error a response stands for. Its `response_for_error` gives the code back."""
    assert code != ResponseCode.SUCCESS, "a success is no error"
    words = remark or ""
    told = _TOLD.get(code)
    if told is not None:
        return told(words)
    return RemoteUnavailable(code, words) if code in RETRYABLE_CODES else RemoteRefused(code, words)


_TOLD = {int(fault.code): fault.told for fault in reversed(ERROR_MAPPINGS) if fault.told is not None}


def _name_of(code: int) -> str:
    try:
        return ResponseCode(code).name
    except ValueError:
        return f"response code {code}"


def _quoted(remark: str) -> str:
    """The name in a remark: ours has it in quotes, Java's brokers in brackets, its name server after a colon."""
    found = re.search(r"'([^']+)'|\[([^\]]+)\]|: *([%|a-zA-Z0-9_-]+)\s*(?:\n|$)", remark)
    return next(filter(None, found.groups())) if found else remark
