"""Batches in the layout of Java; no member is read past its end."""

import struct

import pytest
from tests.support.cases import each_case

from sparrow.model.errors import ProtocolError, TooLarge, TooManyMessages
from sparrow.wire.batch import decode, encode

MEMBERS = [(0, b"one", b"TAGS\x01a\x02"), (7, b"", b""), (-1, b"three", b"")]


def test_members_round_trip_in_order():
    assert decode(encode(MEMBERS)) == MEMBERS
    assert decode(memoryview(encode(MEMBERS))) == MEMBERS
    assert decode(b"") == []


def test_the_layout_is_that_of_java():
    assert encode([(5, b"ab", b"k\x01v\x02")]) == struct.pack(">iiiii2sh4s", 28, 0, 0, 5, 2, b"ab", 4, b"k\x01v\x02")


def test_more_messages_than_permitted_are_not_decoded():
    assert decode(encode(MEMBERS), messages_max=3) == MEMBERS
    with pytest.raises(TooManyMessages, match=r"batch_messages_max = 2:"):
        decode(encode(MEMBERS) + b"not a message", messages_max=2)


def test_magic_and_crc_are_ignored():
    batch = bytearray(encode(MEMBERS))
    batch[4:12] = b"\xff" * 8
    assert decode(bytes(batch)) == MEMBERS


WHOLE = encode(MEMBERS)


@each_case(
    "damaged",
    [
        WHOLE[:-1],
        WHOLE + b"x",
        b"\0" * 22,
        struct.pack(">iiiiih", 21, 0, 0, 0, 0, 0),
        struct.pack(">iiiiih", -22, 0, 0, 0, 0, 0),
        struct.pack(">iiiiih", 22, 0, 0, 0, -1, 0),
        struct.pack(">iiiiih", 22, 0, 0, 0, 0x7FFFFFFF, 0),
        struct.pack(">iiiiih", 22, 0, 0, 0, 0, -1),
        struct.pack(">iiiiih", 22, 0, 0, 0, 0, 1),
        struct.pack(">iiiiih", 0x7FFFFFFF, 0, 0, 0, 0, 0),
    ],
)
def test_damage_is_a_protocol_error(damaged):
    with pytest.raises(ProtocolError):
        decode(damaged)


def test_properties_longer_than_a_short_are_refused():
    with pytest.raises(TooLarge):
        encode([(0, b"", bytes(32768))])
