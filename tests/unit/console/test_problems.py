"""Errors and their HTTP status."""

import pytest

from sparrow.bus.errors import IllegalTransition, UnknownMessage
from sparrow.console.problems import status_of
from sparrow.console.security import CrossSiteRequest, NotAuthenticated
from sparrow.model.errors import (
    BadRequest,
    Busy,
    ConnectionLost,
    IllegalName,
    NotPermitted,
    Refused,
    RequestTimeout,
    SparrowError,
    StoreFull,
    TooLarge,
    UnknownGroup,
    UnknownTopic,
)
from sparrow.operations.errors import AlreadyExists, MembersOnline, NotFound, PlanChanged
from sparrow.wire.codes import ResponseCode
from sparrow.wire.error_codes import error_for_response


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("message", "1", "…"), 404),
        (UnknownTopic("a"), 404),
        (UnknownGroup("a"), 404),
        (UnknownMessage("published", 1), 404),
        (NotPermitted("it", "no"), 403),
        (CrossSiteRequest("it", "no"), 403),
        (NotAuthenticated("no"), 401),
        (AlreadyExists("topic", "a"), 409),
        (PlanChanged("it", "a", "b"), 409),
        (MembersOnline("a", 1), 409),
        (IllegalTransition(1, "Failed", "Enqueued"), 409),
        (TooLarge("it", 2, 1), 413),
        (IllegalName("topic", "a b", "no"), 422),
        (BadRequest("it", "a", "no"), 422),
        (Refused("no"), 422),
        (Busy("full"), 503),
        (ConnectionLost("a:1", "refused"), 503),
        (RequestTimeout("a:1", "it", 1), 503),
        (StoreFull("/data", "full"), 503),
        (SparrowError("?"), 500),
        (error_for_response(ResponseCode.TOPIC_NOT_EXIST, "topic 'a' does not exist"), 404),
        (error_for_response(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "a"), 404),
        (error_for_response(ResponseCode.NO_PERMISSION, "no"), 403),
        (error_for_response(ResponseCode.CONSUMER_NOT_ONLINE, "no"), 409),
        (error_for_response(ResponseCode.SYSTEM_BUSY, "busy"), 503),
        (error_for_response(ResponseCode.INVALID_PARAMETER, "no"), 422),
        (error_for_response(ResponseCode.MESSAGE_ILLEGAL, "no"), 422),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_an_error_has_the_status_of_its_kind(error: SparrowError, status: int) -> None:
    assert status_of(error) == status
