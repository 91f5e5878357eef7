"""Construction of messages, and their bodies as values."""

import codecs
from collections import UserDict
from enum import Enum, StrEnum
from typing import Any

import msgspec
import pytest

from sparrow.model.codec import JsonCodec
from sparrow.model.errors import IllegalMessage, UnreadableBody
from sparrow.model.message import Message, StoredMessage
from sparrow.model.priority import Priority
from sparrow.model.protocol import PROPERTY_PRIORITY


@pytest.mark.parametrize("priority", ["high", Priority.HIGH])
def test_a_priority_is_a_name_or_an_enum_value(priority):
    assert Message("T", "x", priority=priority).properties == {PROPERTY_PRIORITY: "high"}


def test_a_message_without_a_priority_has_no_priority_property():
    assert Message("T", "x").properties == {}


@pytest.mark.parametrize("word", ["High", "urgent", ""])
def test_an_invalid_priority_is_refused_before_sending(word):
    with pytest.raises(IllegalMessage, match="high, middle or low"):
        Message("T", "x", priority=word)


def test_tags_and_keys_are_stored_as_properties():
    message = Message("T", b"x", tags="paid", keys=["a", "b"], properties={"city": "Oslo"}, flag=7)
    assert message.properties == {"city": "Oslo", "TAGS": "paid", "KEYS": "a b"}
    assert (message.tags, message.keys, message.unique_key, message.flag) == ("paid", ["a", "b"], None, 7)


def test_the_properties_of_the_caller_are_copied():
    properties = {"city": "Oslo"}
    message = Message("T", properties=properties, tags="paid")
    assert properties == {"city": "Oslo"}
    assert message == Message("T", properties={"city": "Oslo", "TAGS": "paid"})


def test_the_old_constructor_warns():
    with pytest.warns(DeprecationWarning, match=r"use Message\(\.\.\.\)"):
        assert Message.of("T", "x", tags="a", city="Oslo") == Message("T", "x", tags="a", properties={"city": "Oslo"})


class Amount(Enum):
    SMALL = "small"


class Tag(StrEnum):
    PAID = "paid"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"body": {"item": "a book"}}, r"not dict {'item': 'a book'}: write Message\.json"),
        ({"body": 7}, r"not int 7: write Message\.json"),
        ({"body": None}, r"not None: write Message\.json"),
        ({"tags": ["paid", "late"]}, r"one tag, and tags is list \['paid', 'late'\]: write tags='paid'"),
        ({"keys": 7}, r"not int 7: write keys="),
        ({"keys": [7]}, r"not list \[7\]: write keys="),
        ({"keys": b"order-7"}, r"not bytes b'order-7': write keys="),
        ({"properties": {"amount": 7}}, r"property 'amount' of a message is int 7.*write {'amount': '7'}"),
        ({"properties": {"amount": Amount.SMALL}}, r"property 'amount' of a message is Amount"),
        ({"properties": {"amount": None}}, r"property 'amount' of a message is None.*leave it out"),
        ({"properties": {7: "amount"}}, r"property 7 .*write {'7': 'amount'}"),
        ({"properties": ["amount"]}, r"a dict, not list \['amount'\]: write properties="),
        ({"key": "order-7"}, r"no argument 'key': write keys="),
        ({"tag": "paid"}, r"no argument 'tag': write tags="),
        ({"property": {}}, r"no argument 'property': write properties="),
        ({"header": {}}, r"no argument 'header': write properties="),
        ({"headers": {}}, r"no argument 'headers': write properties="),
        ({"value": b"x"}, r"no argument 'value': write body="),
        ({"propertys": {}}, r"no argument 'propertys': write properties="),
        ({"delay_level": 3}, r"producer\.send\(message, delay_level=\.\.\.\)"),
        ({"city": "Oslo"}, r"its arguments are topic, .*write properties={'city': '\.\.\.'}"),
    ],
    ids=str,
)
def test_an_argument_that_cannot_be_sent_is_refused_with_what_to_write_instead(arguments, said):
    with pytest.raises(TypeError, match=said):
        Message("T", **arguments)


@pytest.mark.parametrize("body", [bytearray(b"abc"), memoryview(b"abc"), "abc"])
def test_text_and_buffers_become_bytes(body):
    message = Message("T", body)
    assert (message.body, type(message.body)) == (b"abc", bytes)


def test_a_buffer_that_changes_later_does_not_change_the_message():
    buffer = bytearray(b"before")
    message = Message("T", buffer)
    buffer[:] = b"after!"
    assert message.body == b"before"


def test_texts_of_other_types_are_accepted():
    message = Message("T", tags=Tag.PAID, keys=(Tag.PAID,), properties=UserDict({"state": Tag.PAID}))
    assert message.properties == {"state": "paid", "TAGS": "paid", "KEYS": "paid"}


# -- values as bodies -------------------------------------------------------------------------------------------------


class Order(msgspec.Struct):
    item: str
    amount: int = 1


def test_a_json_message_is_read_back():
    message = Message.json("T", {"item": "a book"}, tags="paid", properties={"city": "Oslo"})
    assert (message.body, message.tags, message.properties["city"]) == (b'{"item":"a book"}', "paid", "Oslo")
    received = StoredMessage(topic="T", body=message.body)
    assert message.json() == received.json() == {"item": "a book"}
    assert message.json(Order) == received.json(Order) == Order("a book")


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (
            b"a book",
            Any,
            r"message M1 of topic 'T' is not the expected JSON \(JSON is malformed.*begins with b'a book'",
        ),
        (b"", Any, r"it is empty"),
        (b'{"amount":1}', Order, r"missing required field `item`"),
    ],
)
def test_a_body_that_is_no_such_json_is_reported_with_its_beginning(body, kind, said):
    message = StoredMessage(topic="T", body=body, properties={"UNIQ_KEY": "M1"})
    with pytest.raises(UnreadableBody, match=said):
        message.json(kind)


def test_a_value_that_json_cannot_hold_is_refused():
    with pytest.raises(TypeError, match=r"object cannot be written as JSON"):
        Message.json("T", object())


class Rot13:
    def encode(self, value: str) -> bytes:
        return codecs.encode(value, "rot13").encode()

    def decode(self, body: bytes) -> str:
        if not body.isalpha():
            raise ValueError("not a letter")
        return codecs.decode(body.decode(), "rot13")


def test_any_codec_can_be_used():
    message = Message.encode("T", "book", Rot13(), keys="order-7")
    assert (message.body, message.keys, message.decode(Rot13())) == (b"obbx", ["order-7"], "book")
    with pytest.raises(UnreadableBody, match=r"is not what Rot13 reads \(not a letter\)"):
        StoredMessage(topic="T", body=b"7").decode(Rot13())


def test_a_json_codec_checks_the_type():
    orders = JsonCodec(Order)
    assert Message.encode("T", Order("a book", 3), orders).decode(orders) == Order("a book", 3)
