"""Records of the commit log: the published vector, IPv6, V2, and damage."""

import struct

import pytest

from sparrow.model.errors import ProtocolError, TooLarge
from sparrow.model.message import Draft, Host, StoredMessage
from sparrow.wire import record
from sparrow.wire.checksum import body_crc
from sparrow.wire.compression import COMPRESSED_FLAG, Compression, compress

VECTOR = bytes.fromhex(
    """
    0000007c daa320a7 69c865ed 00000001 00000000 00000000 00000005 00000000 0001e240 00000000 0000018b cfe56800
    0a000009 0000c350 0000018b cfe56801 c0a80001 00002a9f 00000000 00000000 00000000 0000000e 48656c6c 6f20526f
    636b6574 4d510954 6f706963 54657374 000a5441 47530154 61674102
    """
)
MESSAGE = StoredMessage(
    topic="TopicTest",
    body=b"Hello RocketMQ",
    properties={"TAGS": "TagA"},
    queue_id=1,
    queue_offset=5,
    physical_offset=123456,
    born_ms=1700000000000,
    born_host=Host(bytes([10, 0, 0, 9]), 50000),
    store_ms=1700000000001,
    store_host=Host(bytes([192, 168, 0, 1]), 10911),
)
IPV6 = Host(bytes(range(16)), 10911)


def altered(**changes):
    fields = {name: getattr(MESSAGE, name) for name in MESSAGE.__struct_fields__}
    return StoredMessage(**(fields | changes))


def test_the_published_record_round_trips():
    assert len(VECTOR) == 124
    assert record.encode_message(MESSAGE) == VECTOR
    assert record.decode(VECTOR) == MESSAGE
    assert record.decode(memoryview(b"xx" + VECTOR), 2) == MESSAGE


def test_the_crc_of_the_body_has_31_bits():
    assert body_crc(b"Hello RocketMQ") == 1774740973


def test_the_smallest_record_has_91_bytes():
    smallest = record.encode_message(StoredMessage(topic=""))
    assert len(smallest) == record.RECORD_BYTES_MIN == 91
    assert record.decode(smallest).body == b""
    draft = Draft(body=b"")
    assert record.record_size(draft, record.topic_field(b""), draft.born_host) == 91


@pytest.mark.parametrize(
    ("born", "store", "bits", "extra"),
    [(IPV6, MESSAGE.store_host, 0x10, 12), (MESSAGE.born_host, IPV6, 0x20, 12), (IPV6, IPV6, 0x30, 24)],
)
def test_ipv6_hosts_take_12_more_bytes_each(born, store, bits, extra):
    message = altered(born_host=born, store_host=store)
    encoded = record.encode_message(message)
    assert len(encoded) == 124 + extra
    decoded = record.decode(encoded)
    assert (decoded.born_host, decoded.store_host, decoded.sys_flag) == (born, store, bits)
    assert decoded.properties == MESSAGE.properties


def test_v2_records_with_a_longer_topic_length_are_decoded():
    topic_at = 88 + len(MESSAGE.body)
    v2 = bytearray(VECTOR)
    v2[topic_at : topic_at + 1] = struct.pack(">H", v2[topic_at])
    struct.pack_into(">ii", v2, 0, len(v2), record.MAGIC_V2)
    assert record.decode(bytes(v2)) == MESSAGE


@pytest.mark.parametrize("kind", Compression)
def test_compressed_bodies_are_expanded_unless_disabled(kind):
    body, bits = compress(b"x" * 5000, kind)
    encoded = record.encode_message(altered(body=body, sys_flag=bits | 0x4))
    expanded, kept = record.decode(encoded), record.decode(encoded, expand=False)
    assert (expanded.body, expanded.sys_flag) == (b"x" * 5000, 0x4)
    assert kept.body == body
    assert kept.sys_flag & COMPRESSED_FLAG


def test_consecutive_records_are_decoded():
    assert record.decode_all(VECTOR * 3) == [MESSAGE] * 3
    assert record.decode_all(b"") == []
    with pytest.raises(ProtocolError):
        record.decode_all(VECTOR + VECTOR[:-1])


def test_a_flipped_bit_in_the_body_is_detected_unless_disabled():
    damaged = bytearray(VECTOR)
    damaged[90] ^= 1
    with pytest.raises(ProtocolError, match="checksum"):
        record.decode(bytes(damaged))
    assert record.decode(bytes(damaged), verify_crc=False).body != MESSAGE.body


@pytest.mark.parametrize("at", [0, 4, 84, 102, 112])
def test_a_damaged_length_or_magic_is_detected(at):
    damaged = bytearray(VECTOR)
    damaged[at] ^= 0x40
    with pytest.raises(ProtocolError):
        record.decode(bytes(damaged))


def test_values_that_do_not_fit_the_format_are_refused():
    with pytest.raises(TooLarge):
        record.topic_field(b"x" * 256)
    with pytest.raises(ProtocolError):
        record.pack_host(Host(b"123", 1))


@pytest.mark.parametrize("born", [MESSAGE.born_host, IPV6])
@pytest.mark.parametrize("store", [MESSAGE.store_host, IPV6])
def test_a_draft_keeps_all_fields_of_its_record_except_the_location(born, store):
    body, bits = compress(b"Hello RocketMQ" * 100, Compression.ZLIB)
    message = altered(
        born_host=born, store_host=store, body=body, sys_flag=bits | 8, flag=7, reconsume_times=3, prepared_offset=9
    )
    encoded = record.encode_message(message)
    again = record.draft_from_record(memoryview(encoded))
    assert again == Draft(
        body=body,
        properties=b"TAGS\x01TagA\x02",
        flag=7,
        sys_flag=bits | 8,
        born_ms=message.born_ms,
        born_host=record.pack_host(born),
        reconsume_times=3,
        prepared_offset=9,
    )
    assert record.properties_of(encoded) == again.properties
    assert record.queue_offset_of(encoded) == message.queue_offset


def test_a_draft_of_an_inconsistent_record_is_refused():
    whole = record.encode_message(MESSAGE)
    for at, value in ((0, 1 << 30), (4, 0), (84, 1 << 30), (84, -1)):
        damaged = bytearray(whole)
        struct.pack_into(">i", damaged, at, value)
        with pytest.raises(ProtocolError):
            record.draft_from_record(damaged)
    with pytest.raises(ProtocolError):
        record.draft_from_record(whole[:50])
