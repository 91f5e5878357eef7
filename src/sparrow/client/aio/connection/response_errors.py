"""The errors of responses that are no success, with a hint if the server is of the wrong kind."""

from __future__ import annotations

from sparrow.model.errors import SparrowError, WrongServer
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.frame import RemotingCommand

# Requests that every server of the kind supports: one that does not is of the other kind.
_NAME_SERVER_CODES = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    }
)
_BROKER_CODES = frozenset({RequestCode.HEART_BEAT, RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.GET_MAX_OFFSET})


def error_of(answer: RemotingCommand, code: int, address: str) -> SparrowError:
    """Return the error of a response to a request with this code."""
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        if code in _NAME_SERVER_CODES:
            return WrongServer(address, True)
        if code in _BROKER_CODES:
            return WrongServer(address, False)
    return error_for_response(answer.code, answer.remark)
