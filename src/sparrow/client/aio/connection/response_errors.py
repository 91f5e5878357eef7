"""The errors of requests: responses that are no success, servers of the wrong kind, and name servers that are away."""

from __future__ import annotations

from sparrow.model.errors import ConnectionLost, NoNameServer, SparrowError, WrongServer
from sparrow.net.dialer import UNREACHABLE_REMEDY
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


def name_server_outage(failure: SparrowError, name_servers: str) -> SparrowError:
    """Return the error of a request that no name server answered, with all their addresses if none can be reached."""
    if not isinstance(failure, ConnectionLost) or not failure.why.endswith(UNREACHABLE_REMEDY):
        return failure
    outage = NoNameServer(name_servers, failure.why.removesuffix(f"; {UNREACHABLE_REMEDY}"))
    outage.__cause__ = failure
    return outage
