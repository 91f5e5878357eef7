"""Frames: the published vectors, both header serializations, and broken frames."""

import struct

import msgspec
import pytest
from tests.support.cases import each_case

from sparrow.model.errors import ProtocolError, Refused, TooLarge
from sparrow.wire.codes import ADVERTISED_VERSION, REQUEST_CODE_ALIASES, Language, RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand, Serialization, decode, encode, encode_without_body, response_to

JAVA_HEADER = (
    b'{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"JAVA","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":401}'
)
JAVA_FRAME = bytes.fromhex("0000008700000083") + JAVA_HEADER
BINARY_FRAME = bytes.fromhex(
    "0000002d 01000029 0069 00 0191 00000007 00000000 00000000 000000140005 746f706963 00000009 546f70696354657374"
)
ROUTE = {"code": RequestCode.GET_ROUTEINFO_BY_TOPIC, "opaque": 7, "language": Language.JAVA, "version": 401}


def framed(header: bytes, body: bytes = b"", serialization: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), serialization << 24 | len(header)) + header + body


def test_a_json_frame_of_java_is_decoded():
    assert len(JAVA_HEADER) == 131
    command = decode(JAVA_FRAME)
    assert (command.code, command.opaque, command.flag, command.version) == (105, 7, 0, 401)
    assert command.language is Language.JAVA
    assert command.fields() == {"topic": "TopicTest"}
    assert command.serialization is Serialization.JSON
    assert command.body == b""


def test_a_binary_frame_of_java_round_trips_byte_for_byte():
    command = decode(BINARY_FRAME)
    assert command == RemotingCommand(**ROUTE, ext={"topic": "TopicTest"}, serialization=Serialization.BINARY)
    assert encode(command) == BINARY_FRAME


def test_json_is_compact_and_has_text_values_for_go():
    frame = encode(RemotingCommand(**ROUTE, ext={"topic": "T"}, body=b"xyz"))
    assert b" " not in frame[8:]
    assert b'"extFields":{"topic":"T"}' in frame
    assert frame.endswith(b"}xyz")
    assert b"remark" not in frame, "null members are left out"


def test_a_frame_start_counts_a_body_that_is_sent_separately():
    command = RemotingCommand(**ROUTE, body=memoryview(b"records"))
    assert encode_without_body(command) + b"records" == encode(command)


def test_a_response_keeps_opaque_and_serialization_and_uses_the_language_java():
    for frame in (JAVA_FRAME, BINARY_FRAME):
        request = decode(frame)
        response = decode(encode(response_to(request, ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")))
        assert (response.code, response.opaque, response.remark) == (17, 7, "no such topic")
        assert response.is_response
        assert not response.is_one_way
        assert response.serialization is request.serialization
        assert response.version == ADVERTISED_VERSION >= 233
        assert response.language is Language.JAVA


def test_the_empty_remark_of_go_is_no_remark():
    assert decode(framed(b'{"code":0,"flag":1,"remark":"","language":"GO"}')).remark is None


@pytest.mark.parametrize(("written", "meant"), [('"GO"', Language.GO), ("9", Language.GO), ('"COBOL"', Language.OTHER)])
def test_an_unknown_language_becomes_other(written, meant):
    assert decode(framed(b'{"code":1,"language":%b}' % written.encode())).language is meant


@pytest.mark.parametrize("member", [b"", b',"extFields":null', b',"extFields":{}'])
def test_missing_null_and_empty_ext_fields_are_equal(member):
    assert decode(framed(b'{"code":1%b}' % member)).fields() == {}


def test_unquoted_numbers_and_booleans_in_ext_fields_are_read_as_text():
    command = decode(framed(b'{"code":1,"extFields":{"a":1,"b":true,"c":null,"d":"x"}}'))
    assert command.fields() == {"a": "1", "b": "true", "d": "x"}


def test_pop_codes_fit_the_16_bits_of_a_binary_header():
    assert REQUEST_CODE_ALIASES[3442] == RequestCode.POP_MESSAGE
    assert REQUEST_CODE_ALIASES[3543] == RequestCode.BATCH_ACK_MESSAGE
    assert REQUEST_CODE_ALIASES[3448] == 200056
    for code in (200050, 200051, 200052, 200053, 200054, 200055, 200056, 200151):
        frame = encode(RemotingCommand(code, serialization=Serialization.BINARY))
        assert struct.unpack_from(">h", frame, 8) == (code & 0xFFFF,)
        assert decode(frame).code == code


def test_a_response_code_is_never_mapped_to_a_pop_request():
    assert decode(framed(b'{"code":3442,"flag":1}')).code == 3442


def test_raw_fields_can_be_relayed_in_another_serialization():
    request = decode(JAVA_FRAME)
    relayed = msgspec.structs.replace(request, serialization=Serialization.BINARY)
    assert encode(relayed) == BINARY_FRAME
    assert decode(encode(request)).fields() == request.fields()


@each_case(
    "frame",
    [
        b"",
        b"\0\0\0\4\0\0\0",
        struct.pack(">II", 3, 0),
        struct.pack(">II", 4, 1),
        struct.pack(">II", 4, 0),
        struct.pack(">II", 0xFFFFFFFF, 0),
        JAVA_FRAME[:-1],
        JAVA_FRAME + b"x",
        framed(b"{}"),
        framed(b"[]"),
        framed(b'{"code":"x"}'),
        framed(b'{"code":2147483648}'),
        framed(b'{"code":1,"extFields":' + b"[" * 5000),
        framed(JAVA_HEADER, serialization=2),
        framed(b"\0" * 12, serialization=1),
        framed(b"\0" * 13 + struct.pack(">ii", 5, 0), serialization=1),
        framed(b"\0" * 13 + struct.pack(">ii", -1, 0), serialization=1),
        framed(b"\0" * 13 + struct.pack(">ii", 0, 9) + b"\0\1k", serialization=1),
        framed(b"\0" * 13 + struct.pack(">iih", 0, 7, 1) + b"\xff" + struct.pack(">i", 0), serialization=1),
    ],
)
def test_a_broken_frame_is_a_protocol_error(frame):
    with pytest.raises(ProtocolError):
        decode(frame)


def test_a_frame_of_the_maximum_size_of_java_is_accepted_and_one_byte_more_is_not():
    largest = RemotingCommand(1, body=bytes(16 * 1024 * 1024 - len(encode(RemotingCommand(1)))))
    frame = encode(largest)
    assert len(frame) == 16 * 1024 * 1024
    assert decode(frame).body == largest.body
    with pytest.raises(TooLarge):
        encode(RemotingCommand(1, body=largest.body + b"x"))
    with pytest.raises(ProtocolError, match="limit is 100"):
        decode(JAVA_FRAME, frame_bytes_max=100)


def test_a_version_larger_than_a_short_is_refused_in_a_binary_header():
    with pytest.raises(Refused, match="out of range"):
        encode(RemotingCommand(1, version=40_000, serialization=Serialization.BINARY))


def test_the_short_pop_codes_are_mapped_in_json_too():
    assert decode(framed(b'{"code":3442}')).code == RequestCode.POP_MESSAGE


@pytest.mark.parametrize("serialization", Serialization)
def test_an_unpaired_surrogate_is_refused_before_anything_is_sent(serialization):
    with pytest.raises(Refused):
        encode(RemotingCommand(1, remark="\ud800", serialization=serialization))
