"""Property strings."""

import pytest

from sparrow.model.errors import ProtocolError, Refused, TooLarge
from sparrow.wire.properties import PROPERTIES_BYTES_MAX, decode, encode, value_of


def test_written_with_a_separator_behind_each():
    assert encode({"TAGS": "TagA", "KEYS": "a b"}) == b"TAGS\x01TagA\x02KEYS\x01a b\x02"
    assert encode({}) == b""


def test_entries_no_reader_would_see_are_not_written():
    assert encode({"": "x", "y": "", "z": "1"}) == b"z\x011\x02"


@pytest.mark.parametrize(
    ("encoded", "found"),
    [
        (b"", {}),
        (b"a\x011\x02", {"a": "1"}),
        (b"a\x011", {"a": "1"}),
        (b"a\x011\x02a\x012\x02", {"a": "2"}),
        (b"a\x01\x02\x01x\x02nothing\x02b\x012\x02", {"b": "2"}),
        (b"a\x011\x012\x02", {"a": "1\x012"}),
    ],
)
def test_read_as_java_reads_them(encoded, found):
    assert decode(encoded) == found
    assert decode(memoryview(encoded)) == found


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a\x02": "b"}, {"a": "b\x02"}, {"a": "\ud800"}])
def test_what_would_be_cut_in_two_is_refused(properties):
    with pytest.raises(Refused):
        encode(properties)


def test_a_signed_short_bounds_them():
    assert len(encode({"a": "x" * (PROPERTIES_BYTES_MAX - 3)})) == PROPERTIES_BYTES_MAX
    with pytest.raises(TooLarge):
        encode({"a": "x" * (PROPERTIES_BYTES_MAX - 2)})


def test_text_that_is_none_is_a_protocol_error():
    with pytest.raises(ProtocolError):
        decode(b"a\x01\xff\x02")
    with pytest.raises(ProtocolError):
        value_of(b"a\x01\xff\x02", b"a")


def test_one_property_without_the_others():
    encoded = encode({"XTAGS": "no", "TAGS": "标签", "KEYS": "k"})
    assert value_of(encoded, b"TAGS") == "标签"
    assert value_of(encoded, b"KEYS") == "k"
    assert value_of(encoded, b"AGS") is None
    assert value_of(b"a\x011\x02a\x012", b"a") == "2"
