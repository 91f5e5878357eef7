"""Construction of messages."""

import pytest

from sparrow.model.errors import IllegalMessage
from sparrow.model.message import Message
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
