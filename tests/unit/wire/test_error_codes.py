"""Errors to response codes and back."""

import pytest
from tests.support.cases import each_case

from sparrow.model import errors
from sparrow.wire.codes import ResponseCode
from sparrow.wire.error_codes import (
    REMARK_CHARS_MAX,
    RemoteRefused,
    RemoteUnavailable,
    error_for_response,
    response_for_error,
)


@each_case(
    ("error", "code"),
    [
        (errors.UnknownTopic("T"), ResponseCode.TOPIC_NOT_EXIST),
        (errors.TooLarge("the body", 5, 4), ResponseCode.MESSAGE_ILLEGAL),
        (errors.UnknownOffset("g", "T/0"), ResponseCode.QUERY_NOT_FOUND),
        (errors.OffsetConflict("g", "T/0", 7), ResponseCode.ILLEGAL_OPERATION),
        (errors.IllegalName("topic", "!", "letters"), ResponseCode.INVALID_PARAMETER),
        (errors.BadRequest("SendMessage", "topic", "is missing"), ResponseCode.SYSTEM_ERROR),
        (errors.Refused("no"), ResponseCode.INVALID_PARAMETER),
        (errors.Busy("page cache"), ResponseCode.SYSTEM_BUSY),
        (errors.FlushTimeout(5000), ResponseCode.FLUSH_DISK_TIMEOUT),
        (errors.ReplicationTimeout(2500), ResponseCode.FLUSH_SLAVE_TIMEOUT),
        (errors.NoFollower("none"), ResponseCode.SLAVE_NOT_AVAILABLE),
        (errors.NotEnoughReplicas(1, 2), ResponseCode.SYSTEM_ERROR),
        (errors.NotLeader("not here"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (errors.Closed("the store"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (errors.StoreFull("/x", "90 %"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (errors.StoreFailed("/x", "EIO"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (errors.CorruptRecord(5, "crc"), ResponseCode.SYSTEM_ERROR),
        (errors.ProtocolError("cut"), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_an_error_becomes_its_code_and_its_message(error, code):
    assert response_for_error(error) == (code, str(error))


def test_an_unexpected_error_is_a_system_error_with_its_class_name():
    assert response_for_error(KeyError("x")) == (ResponseCode.SYSTEM_ERROR, "KeyError: 'x'")


def test_the_length_of_a_remark_is_limited():
    assert len(response_for_error(errors.Refused("x" * 10_000))[1]) == REMARK_CHARS_MAX


@each_case("code", [*(code for code in ResponseCode if code), 31_999])
def test_every_code_gives_an_error_that_gives_the_code_back(code):
    assert response_for_error(error_for_response(code, "why"))[0] == code
    assert str(error_for_response(code))


@pytest.mark.parametrize(
    "remark",
    [
        str(errors.UnknownTopic("T-1")),
        "topic[T-1] not exist, apply first please! See the page",
        "No topic route info in name server for the topic: T-1",
    ],
)
def test_the_unknown_topic_is_found_in_remarks_of_any_broker(remark):
    error = error_for_response(ResponseCode.TOPIC_NOT_EXIST, remark)
    assert isinstance(error, errors.UnknownTopic)
    assert error.topic == "T-1"


def test_the_error_class_follows_from_the_code():
    assert isinstance(error_for_response(ResponseCode.NO_PERMISSION, "x"), RemoteRefused)
    assert isinstance(error_for_response(ResponseCode.SERVICE_NOT_AVAILABLE, "x"), RemoteUnavailable)
    assert isinstance(error_for_response(ResponseCode.SYSTEM_BUSY, "x"), errors.Busy)
    assert str(error_for_response(ResponseCode.GO_AWAY, "bye")) == "GO_AWAY: bye"


def test_a_relayed_response_keeps_its_remark():
    assert response_for_error(error_for_response(ResponseCode.CONSUMER_NOT_ONLINE, "nobody")) == (206, "nobody")
