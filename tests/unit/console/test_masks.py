"""Rules that hide bodies, members of JSON bodies and properties."""

import json

import pytest

from sparrow.console.masks import HIDDEN, READ_BYTES_MAX, Masks
from sparrow.model.protocol import (
    DLQ_TOPIC_PREFIX,
    PROPERTY_DLQ_REASON,
    PROPERTY_KEYS,
    PROPERTY_RETRY_TOPIC,
    RETRY_TOPIC_PREFIX,
    TRACE_TOPIC,
)
from sparrow.operations.messages import MessageView
from sparrow.settings import ConsoleMask


def message(body: bytes = b"{}", topic: str = "payments", **properties: str) -> MessageView:
    return MessageView(
        id="1",
        offset_id="1",
        topic=topic,
        broker=None,
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        tags="paid",
        keys=("card-1",),
        born_ms=0,
        born_host="",
        store_ms=0,
        store_host="",
        reconsume_times=0,
        properties=properties,
        body=body,
    )


def test_members_of_a_json_body_are_hidden_at_any_depth() -> None:
    masks = Masks([ConsoleMask(topics=["pay*"], fields=["card*", "IBAN"])])
    body = {"order": 7, "cardNumber": "4111", "payer": [{"iban": "DE1", "city": "Berlin"}]}
    masked = masks.mask(message(json.dumps(body).encode()))
    assert json.loads(masked.message.body) == {
        "order": 7,
        "cardNumber": HIDDEN,
        "payer": [{"iban": HIDDEN, "city": "Berlin"}],
    }
    assert (masked.is_body_hidden, masked.is_changed) == (False, True)


def test_a_message_without_such_members_and_one_of_another_topic_stay_as_they_are() -> None:
    masks = Masks([ConsoleMask(topics=["payments"], fields=["card"])])
    for each in (message(b'{ "order":7 }'), message(b'{"card": 1}', topic="orders")):
        masked = masks.mask(each)
        assert (masked.message, masked.is_changed) == (each, False)


@pytest.mark.parametrize(
    "body",
    [b"card=4111", b"\xff\xfe", b"[" * 100_000, b'"' + b"x" * READ_BYTES_MAX + b'"'],
    ids=["text", "binary", "deep", "large"],
)
def test_a_body_that_cannot_be_read_is_hidden_as_a_whole(body: bytes) -> None:
    masked = Masks([ConsoleMask(fields=["card"])]).mask(message(body))
    assert (masked.message.body, masked.is_body_hidden) == (b"", True)


def test_properties_keys_and_tags_are_hidden_by_name() -> None:
    masks = Masks([ConsoleMask(properties=["x-*", "keys", "TAGS"])])
    masked = masks.mask(message(**{"x-token": "secret", "city": "Berlin"})).message
    assert masked.properties == {"x-token": HIDDEN, "city": "Berlin"}
    assert (masked.keys, masked.tags) == ((HIDDEN,), HIDDEN)


def test_copies_in_retry_and_dead_letter_topics_are_masked_as_their_topic() -> None:
    masks = Masks([ConsoleMask(topics=["payments"], body=True)])
    copy = message(
        b"4111", DLQ_TOPIC_PREFIX + "billing", **{PROPERTY_RETRY_TOPIC: "payments", PROPERTY_DLQ_REASON: "card 4111"}
    )
    masked = masks.mask(copy)
    assert masked.is_body_hidden
    assert masked.message.properties[PROPERTY_DLQ_REASON] == HIDDEN


def test_content_is_not_searched_where_it_is_hidden() -> None:
    masks = Masks([ConsoleMask(topics=["payments"], body=True), ConsoleMask(properties=["x"])])
    assert masks.hides_content("payments")
    assert masks.hides_content(DLQ_TOPIC_PREFIX + "billing")
    assert masks.hides_content(None)
    assert not masks.hides_content("orders")
    assert not Masks([ConsoleMask(properties=["x"])]).hides_content("payments")


def test_events_of_the_bus_are_masked_by_their_name() -> None:
    masks = Masks([ConsoleMask(topics=["order.*"], fields=["card"], properties=["user"])])
    assert masks.mask_value("order.created", {"card": 1, "n": 2}) == {"card": HIDDEN, "n": 2}
    assert masks.mask_headers("order.created", {"user": "olga", "a": "b"}) == {"user": HIDDEN, "a": "b"}
    assert Masks([ConsoleMask(body=True)]).mask_value("order.created", {"n": 2}) == HIDDEN


def test_error_texts_are_hidden_with_any_part_of_the_message() -> None:
    letter = {PROPERTY_RETRY_TOPIC: "payments", PROPERTY_DLQ_REASON: "card 4111"}
    topic = DLQ_TOPIC_PREFIX + "billing"
    by_field = ConsoleMask(topics=["payments"], fields=["card"])
    by_key = ConsoleMask(topics=["payments"], properties=["KEYS"])
    for rule in (by_field, by_key):
        masked = Masks([rule]).mask(message(b'{"card": 4111}', topic, **letter)).message
        assert masked.properties == {**letter, PROPERTY_DLQ_REASON: HIDDEN}
    without_card = Masks([by_field]).mask(message(b"{}", topic, **letter))
    assert without_card.message.properties == letter


@pytest.mark.parametrize("topic", [RETRY_TOPIC_PREFIX + "billing", DLQ_TOPIC_PREFIX + "billing", TRACE_TOPIC])
def test_all_rules_hold_for_a_copy_that_does_not_say_where_it_comes_from(topic: str) -> None:
    masks = Masks([ConsoleMask(topics=["payments"], body=True, properties=["KEYS"])])
    masked = masks.mask(message(b"4111", topic))
    assert (masked.is_body_hidden, masked.message.keys) == (True, (HIDDEN,))
    of_orders = masks.mask(message(b"4111", topic, **{PROPERTY_RETRY_TOPIC: "orders"}))
    assert not of_orders.is_changed


def test_labels_of_messages_that_wait_are_hidden() -> None:
    masks = Masks([ConsoleMask(topics=["payments"], properties=["keys"])])
    assert masks.mask_labels("payments", ("card-1",), "paid") == ((HIDDEN,), "paid")
    assert masks.mask_labels(RETRY_TOPIC_PREFIX + "billing", ("card-1",), None) == ((HIDDEN,), None)
    assert masks.mask_labels("payments", (), None) == ((), None)
    assert masks.mask_labels("orders", ("card-1",), "paid") == (("card-1",), "paid")


def test_what_is_hidden_is_known_for_searches() -> None:
    masks = Masks([ConsoleMask(topics=["payments"], properties=["key?"])])
    assert masks.hides_property("payments", PROPERTY_KEYS)
    assert masks.hides_property(DLQ_TOPIC_PREFIX + "billing", PROPERTY_KEYS)
    assert not masks.hides_property("orders", PROPERTY_KEYS)
    assert masks.hides_anything("payments")
    assert not masks.hides_anything("orders")
