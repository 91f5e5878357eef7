"""Decisions of a handler, and the retry or dead letter that a failed message becomes."""

import pytest

from sparrow.client.consume.retry import (
    DELAY_LEVEL_BY_BROKER,
    DELAY_LEVEL_DEAD_LETTER,
    DeadLetter,
    RetryLater,
    delay_level_for,
    describe_failure,
    is_handler_decision,
    make_redriven_message,
    make_retry_message,
)
from sparrow.model.errors import Refused
from sparrow.model.message import Host, StoredMessage

HOST = Host(b"\x0a\0\0\1", 10911)
FIRST_ID = "0A00000100002A9F000000000000007B"


def message(topic: str = "orders", **properties: str) -> StoredMessage:
    return StoredMessage(
        topic=topic, body=b"a book", properties=properties, physical_offset=123, store_host=HOST, flag=7
    )


def test_a_handler_selects_a_delay_level_the_brokers_delay_or_the_dead_letter_queue():
    assert [delay_level_for(each) for each in (RetryLater(5), RetryLater(), ValueError("oh"), DeadLetter())] == [
        5,
        DELAY_LEVEL_BY_BROKER,
        DELAY_LEVEL_BY_BROKER,
        DELAY_LEVEL_DEAD_LETTER,
    ]
    assert [is_handler_decision(each) for each in (RetryLater(), DeadLetter(), ValueError())] == [True, True, False]


def test_a_delay_level_has_a_fixed_time_and_must_exist():
    assert (RetryLater(1).delay_ms, RetryLater(18).delay_ms, RetryLater().delay_ms) == (1_000, 7_200_000, None)
    with pytest.raises(Refused, match="19"):
        RetryLater(19)


def test_a_retry_keeps_its_topic_and_first_id_and_is_not_a_half_message():
    again = make_retry_message(message(TAGS="paid", TRAN_MSG="true"), "billing", 4)
    assert (again.topic, again.body, again.flag) == ("%RETRY%billing", b"a book", 7)
    assert again.properties == {"TAGS": "paid", "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": FIRST_ID, "DELAY": "4"}


def test_a_retry_without_a_level_is_delayed_longer_each_time_and_a_dead_letter_is_not_delayed():
    tired = message(DELAY="7")
    tired.reconsume_times = 2
    assert make_retry_message(tired, "billing", DELAY_LEVEL_BY_BROKER).properties["DELAY"] == "5"
    assert "DELAY" not in make_retry_message(tired, "billing", DELAY_LEVEL_DEAD_LETTER).properties


def test_a_retry_of_a_retry_keeps_the_original_topic_and_id():
    again = make_retry_message(message(RETRY_TOPIC="first", ORIGIN_MESSAGE_ID="ID"), "billing", 4)
    assert (again.properties["RETRY_TOPIC"], again.properties["ORIGIN_MESSAGE_ID"]) == ("first", "ID")


def test_a_failure_is_described_by_its_reason_its_type_and_the_end_of_its_traceback():
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def raised(failure: Exception) -> Exception:
        try:
            raise failure
        except Exception as error:
            return error

    plain = describe_failure(raised(ValueError("oh")))
    assert (plain.reason, plain.error_type) == ("oh", "ValueError")
    assert plain.traceback.endswith("ValueError: oh")
    assert describe_failure(DeadLetter("no such customer")) == ("no such customer", "", "")
    assert describe_failure(DeadLetter()) == ("", "", "")
    assert describe_failure(RetryLater(3)).reason == "the handler raised RetryLater"
    decided = DeadLetter("no such customer")
    decided.__cause__ = raised(KeyError("7"))
    assert describe_failure(decided)[:2] == ("no such customer", "KeyError")
    assert "str() raised RuntimeError" in describe_failure(Odd()).reason
    long = describe_failure(raised(ValueError("x" * 100_000)))
    assert "in raised" in long.traceback, "a long text leaves the calls"


def test_redrive_restores_the_original_topic_and_properties_of_a_dead_letter():
    letter = message(
        "%DLQ%billing",
        TAGS="paid",
        KEYS="order-7",
        UNIQ_KEY="A1",
        colour="red",
        RETRY_TOPIC="orders",
        ORIGIN_MESSAGE_ID=FIRST_ID,
        REAL_TOPIC="%RETRY%billing",
        REAL_QID="0",
        DELAY="3",
        WAIT="false",
        CLUSTER="c",
    )
    young = {"TAGS": "paid", "KEYS": "order-7", "UNIQ_KEY": "A1", "colour": "red"}
    again = make_redriven_message(letter, "billing", to_group_only=False)
    assert (again.topic, again.body, again.properties, again.flag) == ("orders", b"a book", young, 7)
    again = make_redriven_message(letter, "billing", to_group_only=True)
    assert (again.topic, again.properties) == ("%RETRY%billing", {**young, "RETRY_TOPIC": "orders"})


def test_a_dead_letter_without_an_original_topic_cannot_be_redriven():
    with pytest.raises(Refused, match="'A1'"):
        make_redriven_message(message("%DLQ%billing", UNIQ_KEY="A1"), "billing", to_group_only=False)
