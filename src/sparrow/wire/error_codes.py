"""The mapping between errors and response codes, used by brokers in one direction and by clients in the other."""

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
    NoFollower,
    NotEnoughReplicas,
    NotPermitted,
    OffsetConflict,
    ProtocolError,
    Refused,
    ReplicationTimeout,
    RequestTimeout,
    SparrowError,
    StorageError,
    StoreFailed,
    StoreFull,
    TooLarge,
    TooManyMessages,
    Unavailable,
    UnknownGroup,
    UnknownOffset,
    UnknownTopic,
)
from sparrow.wire.codes import ResponseCode

REMARK_CHARS_MAX = 1024
"""Longer remarks are cut: an error may quote long input."""


class RemoteRefused(Refused):
    """A broker or name server refused the request; `remark` is its explanation."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code, self.remark = code, remark

    def __str__(self) -> str:
        return f"{_name_of(self.code)}: {self.remark}" if self.remark else _name_of(self.code)


class RemoteNotPermitted(RemoteRefused, NotPermitted):
    """A broker requires a token, or the token, the topic or the group does not permit the request."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.what, self.why = "the request", remark


class RemoteUnavailable(Unavailable):
    """A broker or name server cannot serve the request now; another attempt, or another broker, may succeed."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code, self.remark = code, remark

    def __str__(self) -> str:
        return f"{_name_of(self.code)}: {self.remark}" if self.remark else _name_of(self.code)


class ErrorMapping(NamedTuple):
    """One row of the mapping: an error class and its response code."""

    error: type[SparrowError]
    code: ResponseCode
    from_remark: Callable[[str], SparrowError] | None = None
    """Makes the error from a remark, where the remark contains enough for that."""


def _unknown_topic(remark: str) -> SparrowError:
    return UnknownTopic(_quoted(remark))


def _not_permitted(remark: str) -> SparrowError:
    return RemoteNotPermitted(ResponseCode.NO_PERMISSION, remark)


# Subclasses first. Of several rows with one code, the first with `from_remark` is used for decoding.
ERROR_MAPPINGS = (
    ErrorMapping(UnknownTopic, ResponseCode.TOPIC_NOT_EXIST, _unknown_topic),
    ErrorMapping(UnknownGroup, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ErrorMapping(NotPermitted, ResponseCode.NO_PERMISSION, _not_permitted),
    ErrorMapping(TooLarge, ResponseCode.MESSAGE_ILLEGAL),
    ErrorMapping(TooManyMessages, ResponseCode.MESSAGE_ILLEGAL),
    ErrorMapping(IllegalMessage, ResponseCode.MESSAGE_ILLEGAL),
    ErrorMapping(UnknownOffset, ResponseCode.QUERY_NOT_FOUND),
    ErrorMapping(OffsetConflict, ResponseCode.ILLEGAL_OPERATION),
    ErrorMapping(IllegalName, ResponseCode.INVALID_PARAMETER),
    # RocketMQ answers an undecodable header with SYSTEM_ERROR, and its tools expect that.
    ErrorMapping(BadRequest, ResponseCode.SYSTEM_ERROR),
    ErrorMapping(Refused, ResponseCode.INVALID_PARAMETER),
    ErrorMapping(Busy, ResponseCode.SYSTEM_BUSY, Busy),
    ErrorMapping(FlushTimeout, ResponseCode.FLUSH_DISK_TIMEOUT),
    ErrorMapping(ReplicationTimeout, ResponseCode.FLUSH_SLAVE_TIMEOUT),
    ErrorMapping(NoFollower, ResponseCode.SLAVE_NOT_AVAILABLE),
    ErrorMapping(NotEnoughReplicas, ResponseCode.SYSTEM_ERROR),  # as RocketMQ 5.x answers below minInSyncReplicas
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
"""Codes of temporary errors, or of errors of one broker only."""


def response_for_error(error: BaseException) -> tuple[int, str]:
    """Return the response code and the remark for an error."""
    if isinstance(error, RemoteRefused | RemoteUnavailable):
        return error.code, error.remark
    for mapping in ERROR_MAPPINGS:
        if isinstance(error, mapping.error):
            return mapping.code, str(error)[:REMARK_CHARS_MAX]
    # A bug in Sparrow. Class and message are what RocketMQ sends, too.
    return ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"[:REMARK_CHARS_MAX]


def error_for_response(code: int, remark: str | None = None) -> SparrowError:
    """Return the error of a response. `response_for_error` returns the same code for it."""
    assert code != ResponseCode.SUCCESS, "SUCCESS is not an error"
    text = remark or ""
    from_remark = _FROM_REMARK.get(code)
    if from_remark is not None:
        return from_remark(text)
    return RemoteUnavailable(code, text) if code in RETRYABLE_CODES else RemoteRefused(code, text)


_FROM_REMARK = {
    int(mapping.code): mapping.from_remark for mapping in reversed(ERROR_MAPPINGS) if mapping.from_remark is not None
}


def _name_of(code: int) -> str:
    try:
        return ResponseCode(code).name
    except ValueError:
        return f"response code {code}"


def _quoted(remark: str) -> str:
    """Return the name in a remark: Sparrow quotes it, Java's brokers use brackets, its name server a colon."""
    found = re.search(r"'([^']+)'|\[([^\]]+)\]|: *([%|a-zA-Z0-9_-]+)\s*(?:\n|$)", remark)
    return next(filter(None, found.groups())) if found else remark
