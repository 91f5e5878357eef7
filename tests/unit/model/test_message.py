"""Making a message."""

import pytest

from sparrow.model.errors import IllegalMessage
from sparrow.model.message import Message
from sparrow.model.priority import Priority
from sparrow.model.protocol import PROPERTY_PRIORITY


@pytest.mark.parametrize("priority", ["high", Priority.HIGH])
def test_a_priority_is_a_word_or_a_value(priority):
    assert Message.of("T", "x", priority=priority).properties == {PROPERTY_PRIORITY: "high"}


def test_a_message_that_says_no_priority_has_no_such_property():
    assert Message.of("T", "x").properties == {}


@pytest.mark.parametrize("word", ["High", "urgent", ""])
def test_a_priority_that_is_none_is_refused_before_it_is_sent(word):
    with pytest.raises(IllegalMessage, match="high, middle or low"):
        Message.of("T", "x", priority=word)
