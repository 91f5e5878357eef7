"""Offset ids and unique ids."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from sparrow.model.errors import ProtocolError
from sparrow.model.message import Host
from sparrow.wire.message_ids import (
    UniqueId,
    UniqueIdGenerator,
    format_offset_id,
    format_unique_id,
    offset_id_prefix,
    parse_offset_id,
    parse_unique_id,
    unique_id_time,
)

BROKER = Host(bytes([192, 168, 0, 1]), 10911)
NOVEMBER = datetime(2023, 11, 1, tzinfo=UTC)


def test_the_published_offset_id_round_trips():
    assert format_offset_id(BROKER, 123456) == "C0A8000100002A9F000000000001E240"
    assert parse_offset_id("C0A8000100002A9F000000000001E240") == (BROKER, 123456)
    assert parse_offset_id("c0a8000100002a9f000000000001e240") == (BROKER, 123456)


def test_the_offset_id_prefix_gives_the_same_id():
    assert offset_id_prefix(BROKER) + f"{123456:016X}" == format_offset_id(BROKER, 123456)


def test_an_ipv6_offset_id_has_56_characters():
    host = Host(bytes(range(16)), 10911)
    text = format_offset_id(host, 7)
    assert len(text) == 56
    assert parse_offset_id(text) == (host, 7)


@pytest.mark.parametrize(
    "text", ["", "C0", "X" * 32, "C0A8000100002A9F00000000 001E240", "C0" * 17, "F" * 32, "标" * 32]
)
def test_invalid_text_is_a_protocol_error(text):
    with pytest.raises(ProtocolError):
        parse_offset_id(text)


def maker(clock_ms, ip=b"\x0a\0\0\1"):
    return UniqueIdGenerator(ip, pid=0x1_2345, generator_id=0xCAFEBABE, clock_ms=clock_ms)


def test_a_unique_id_has_the_layout_of_java():
    made = NOVEMBER + timedelta(days=14, milliseconds=5)
    text = maker(lambda: int(made.timestamp() * 1000)).make()
    assert text == "0A0000012345CAFEBABE481908050000"
    assert parse_unique_id(text) == UniqueId(b"\x0a\0\0\1", 0x2345, 0xCAFEBABE, 14 * 86_400_000 + 5, 0)
    assert format_unique_id(parse_unique_id(text)) == text
    assert unique_id_time(text, made + timedelta(hours=1)) == made


def test_an_id_of_last_month_gets_a_date_in_last_month():
    made = NOVEMBER + timedelta(days=29)
    text = maker(lambda: int(made.timestamp() * 1000)).make()
    assert unique_id_time(text, NOVEMBER + timedelta(days=31)) == made


def test_a_unique_id_with_ipv6_has_56_characters():
    assert len(maker(lambda: 0, ip=bytes(16)).make()) == 56
    with pytest.raises(ValueError, match="4 or 16"):
        maker(lambda: 0, ip=b"1")


def test_the_time_restarts_each_month():
    now = int((NOVEMBER + timedelta(days=30)).timestamp() * 1000) - 1
    ids = maker(lambda: now)
    assert parse_unique_id(ids.make()).ms_of_month == 30 * 86_400_000 - 1
    now += 1
    assert parse_unique_id(ids.make()).ms_of_month == 0


def test_the_counter_wraps_after_65536():
    ids = maker(lambda: 0)
    made = [ids.make() for _ in range(65537)]
    assert len(set(made[:65536])) == 65536
    assert made[65536] == made[0]


def test_many_ids_are_those_that_single_calls_would_have_made():
    one, many = maker(lambda: 5), maker(lambda: 5)
    singly = [one.make() for _ in range(65540)]
    assert many.make_many(65530) + many.make_many(10) == singly
    assert many.make() == one.make()
    assert len(singly[0]) == many.id_chars


def test_ids_of_concurrent_threads_are_unique():
    ids, found = maker(lambda: 0), []

    def work():
        found.extend(ids.make() for _ in range(5000))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 20_000
