"""Encoding of property strings."""

import pytest

from sparrow.model.errors import ProtocolError, Refused, TooLarge
from sparrow.wire.properties import PROPERTIES_BYTES_MAX, decode, encode, has_property, property_value, set_properties


def test_every_property_ends_with_a_separator():
    assert encode({"TAGS": "TagA", "KEYS": "a b"}) == b"TAGS\x01TagA\x02KEYS\x01a b\x02"
    assert encode({}) == b""


def test_empty_names_and_values_are_not_written():
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
def test_property_strings_decode_as_in_java(encoded, found):
    assert decode(encoded) == found
    assert decode(memoryview(encoded)) == found


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a\x02": "b"}, {"a": "b\x02"}, {"a": "\ud800"}])
def test_separators_inside_names_or_values_are_refused(properties):
    with pytest.raises(Refused):
        encode(properties)


def test_the_length_is_limited_by_a_signed_short():
    assert len(encode({"a": "x" * (PROPERTIES_BYTES_MAX - 3)})) == PROPERTIES_BYTES_MAX
    with pytest.raises(TooLarge):
        encode({"a": "x" * (PROPERTIES_BYTES_MAX - 2)})


def test_invalid_utf8_is_a_protocol_error():
    with pytest.raises(ProtocolError):
        decode(b"a\x01\xff\x02")
    with pytest.raises(ProtocolError):
        property_value(b"a\x01\xff\x02", "a")


def test_one_property_is_read_without_decoding_the_others():
    encoded = encode({"XTAGS": "no", "TAGS": "标签", "KEYS": "k"})
    assert property_value(encoded, "TAGS") == "标签"
    assert property_value(encoded, "KEYS") == "k"
    assert property_value(encoded, "AGS") is None
    assert property_value(b"a\x011\x02a\x012", "a") == "2"


def test_the_presence_of_a_property_is_found_without_decoding_it():
    encoded = encode({"XTAGS": "TAGS", "TAGS": "a", "KEYS": "k"})
    assert has_property(encoded, "TAGS")
    assert has_property(encoded, "XTAGS")
    assert not has_property(encoded, "AGS")
    assert not has_property(b"XTAGS\x01TAGS\x02", "TAGS")
    assert not has_property(b"", "TAGS")
    assert has_property(b"XTAGS\x011\x02TAGS\x012", "TAGS")


@pytest.mark.parametrize(
    ("encoded", "values", "found"),
    [
        (b"", {"a": "1"}, {"a": "1"}),
        (b"a\x011\x02", {"b": "2"}, {"a": "1", "b": "2"}),
        (b"a\x011", {"b": "2"}, {"a": "1", "b": "2"}),
        (b"a\x011\x02b\x012\x02", {"a": "3"}, {"b": "2", "a": "3"}),
        (b"a\x011\x02b\x012\x02", {"a": ""}, {"b": "2"}),
        (b"xa\x011\x02", {"a": ""}, {"xa": "1"}),
        (b"xa\x011\x02", {"a": "2"}, {"xa": "1", "a": "2"}),
        (b"a\x011\x02a\x012\x02", {"a": ""}, {}),
        (b"a\x011\x02", {}, {"a": "1"}),
    ],
)
def test_properties_are_set_and_removed(encoded, values, found):
    changed = set_properties(encoded, values)
    assert decode(changed) == found
    assert list(decode(changed)) == list(found)


def test_a_property_that_was_set_is_readable():
    changed = set_properties(b"REAL_TOPIC\x01old\x02", {"REAL_TOPIC": "new", "REAL_QID": "3"})
    assert property_value(changed, "REAL_TOPIC") == "new"
    assert has_property(changed, "REAL_QID")
    assert b"old" not in changed, "the old value must be removed"


def test_a_value_with_a_separator_cannot_be_set():
    with pytest.raises(Refused):
        set_properties(b"a\x011\x02", {"b": "x\x02y"})
