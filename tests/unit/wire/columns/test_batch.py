"""Batches from columns and to records: single cases."""

import asyncio
import struct
from array import array
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.cases import each_case
from tests.support.log_stores import small_settings

from sparrow.model.errors import ProtocolError, Refused, TooLarge, TooManyMessages
from sparrow.model.message import Host
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore
from sparrow.store.spi import Slice
from sparrow.wire import batch, columns, message_ids, record
from sparrow.wire.columns.batch import batch_to_records, encode_batches, joined_offset_ids
from sparrow.wire.columns.encoder import EncodedRecords
from sparrow.wire.columns.layout import binary_array
from sparrow.wire.columns.properties import PROPERTY_MAP_TYPE
from sparrow.wire.record import BORN_HOST_IPV6_FLAG, STORE_HOST_IPV6_FLAG

SOMEWHERE = bytes([10, 0, 0, 9]) + (50000).to_bytes(4, "big")
CLUSTER = b"CLUSTER\x01DefaultCluster\x02"


def records_of(data: bytes | memoryview, **options: object) -> EncodedRecords:
    given = {"topic": "t", "sys_flag": 0, "born_ms": 1, "born_host": SOMEWHERE} | options
    return batch_to_records(data, **given)  # type: ignore[arg-type]


def raw_properties(encoded: EncodedRecords) -> list[str]:
    return columns.decode(encoded.data, columns=["properties_raw"]).column(0).to_pylist()


# -- columns to batches -----------------------------------------------------------------------------------------------


def test_the_layout_is_that_of_java() -> None:
    (only,) = encode_batches(pa.array([b"ab"]), tags=pa.array(["v"]), flag=5)
    assert bytes(only.data) == struct.pack(">iiiii2sh7s", 31, 0, 0, 5, 2, b"ab", 7, b"TAGS\x01v\x02")
    assert only.count == 1


def test_batches_are_filled_up_to_the_limit() -> None:
    members = 22 + 3
    for bytes_max, counts in ((3 * members, [3, 3, 1]), (3 * members - 1, [2, 2, 2, 1]), (7 * members, [7])):
        batches = encode_batches(pa.array([b"abc"] * 7), bytes_max=bytes_max)
        assert [each.count for each in batches] == counts
        assert [len(each.data) for each in batches] == [members * count for count in counts]


def test_a_message_longer_than_the_limit_is_a_batch_of_its_own() -> None:
    batches = encode_batches(pa.array(["a", "b" * 100, "c", "d"]), bytes_max=50)
    assert [[member.body for member in batch.decode(each.data)] for each in batches] == [
        [b"a"],
        [b"b" * 100],
        [b"c", b"d"],
    ]


def test_batches_have_at_most_so_many_messages() -> None:
    bodies = [b"a", b"b", b"c" * 100, b"d", b"e", b"f"]
    batches = encode_batches(pa.array(bodies), messages_max=2)
    assert [[member.body for member in batch.decode(each.data)] for each in batches] == [
        bodies[:2],
        bodies[2:4],
        bodies[4:],
    ]


def test_no_messages_give_no_batches() -> None:
    assert encode_batches(pa.array([], pa.binary()), tags=pa.array([], pa.string())) == []


def test_runs_longer_than_one_encoding_block_stay_in_order() -> None:
    bodies = [bytes([i % 251]) * (300_000 + i) for i in range(40)]
    batches = encode_batches(pa.array(bodies), keys=pa.array([f"k{i}" for i in range(40)]))
    assert sum(len(each.data) for each in batches) > 8 * 1024 * 1024
    members = [member for each in batches for member in batch.decode(each.data)]
    assert members == [(0, body, f"KEYS\x01k{i}\x02".encode()) for i, body in enumerate(bodies)]
    assert {each.count for each in batches} == {1, 3}


def test_a_batch_past_32_bits_is_too_large() -> None:
    nothing = np.zeros(2**31 - 1, np.uint8)  # untouched pages take no memory
    bodies = binary_array(pa.py_buffer(nothing), np.array([0, 2**30, 2**31 - 1], np.int32))
    with pytest.raises(TooLarge):
        encode_batches(bodies, bytes_max=2**40)


def test_invalid_columns_are_refused() -> None:
    bodies = pa.array([b"a", b"b"])
    with pytest.raises(Refused, match="separator"):
        encode_batches(bodies, keys=pa.array(["ok", "a\x02b"]))
    with pytest.raises(Refused, match="rows"):
        encode_batches(bodies, tags=pa.array(["a"]))
    with pytest.raises(TooLarge):
        encode_batches(bodies, properties=pa.array([[], [("n", "x" * 32765)]], PROPERTY_MAP_TYPE))


# -- batches to records -----------------------------------------------------------------------------------------------


@each_case("count", [1, 2, 15, 16, 17, 1023, 1024, 1025, 2049, 3000])
@each_case("lengths", [(5,), (5, 6), (0, 5, 5), (7,) * 20 + (8,) * 3, (7,) * 20 + (8,)])
def test_members_of_mixed_sizes_are_found(count: int, lengths: tuple[int, ...]) -> None:
    bodies = [i.to_bytes(2, "big").ljust(lengths[i % len(lengths)], b".") for i in range(count)]
    data = batch.encode([(i, body, b"") for i, body in enumerate(bodies)])
    read = columns.decode(records_of(data).data, columns=["flag", "body"], verify_crc=True)
    assert read.column("flag").to_pylist() == list(range(count))
    assert read.column("body").to_pylist() == bodies
    for damaged in (data[:-1], data + b"x", data + bytes(22)):
        with pytest.raises(ProtocolError):
            records_of(damaged)


def test_records_contain_the_fields_of_the_request() -> None:
    data = batch.encode([(7, b"one", b"TAGS\x01a\x02"), (-1, b"", b"")])
    encoded = records_of(bytearray(data), topic="TopicTest", sys_flag=0x2, born_ms=77, reconsume_times=3)
    first, second = record.decode_all(bytes(encoded.data))
    assert (first.topic, first.body, first.flag, first.properties) == ("TopicTest", b"one", 7, {"TAGS": "a"})
    assert (first.sys_flag, first.born_ms, first.reconsume_times) == (0x2, 77, 3)
    assert first.born_host == Host(bytes([10, 0, 0, 9]), 50000)
    assert (second.body, second.flag, second.properties) == (b"", -1, {})
    assert records_of(b"").sizes.tolist() == []


def test_ipv6_flags_follow_the_hosts_and_not_the_given_flag() -> None:
    data = batch.encode([(0, b"b", b"")])
    six = bytes(15) + b"\x01" + bytes(4)
    for born_host, store_host_bytes, bits in (
        (SOMEWHERE, 8, 0),
        (six, 8, BORN_HOST_IPV6_FLAG),
        (SOMEWHERE, 20, STORE_HOST_IPV6_FLAG),
        (six, 20, BORN_HOST_IPV6_FLAG | STORE_HOST_IPV6_FLAG),
    ):
        for sys_flag in (0, BORN_HOST_IPV6_FLAG | STORE_HOST_IPV6_FLAG):
            encoded = records_of(data, born_host=born_host, store_host_bytes=store_host_bytes, sys_flag=sys_flag)
            read = record.decode(bytes(encoded.data))
            assert (read.sys_flag, read.body, record.pack_host(read.born_host)) == (bits, b"b", born_host)
    for wrong in ({"born_host": bytes(4)}, {"store_host_bytes": 16}):
        with pytest.raises(Refused, match="8 or 20"):
            records_of(data, **wrong)


def test_extra_properties_follow_a_closed_property_string() -> None:
    data = batch.encode([(0, b"", b"A\x01b\x02"), (0, b"", b"A\x01b"), (0, b"", b"")])
    assert raw_properties(records_of(data)) == ["A\x01b\x02", "A\x01b", ""]
    extra = CLUSTER.decode()
    assert raw_properties(records_of(data, extra_properties=CLUSTER)) == ["A\x01b\x02" + extra] * 2 + [extra]
    # Also where the 0x02 before an empty string is the last byte of a length or of a body.
    data = batch.encode([(0, b"\x02", b""), (0, b"", b"x" * 0x102)])
    assert raw_properties(records_of(data, extra_properties=b"e")) == ["e", "x" * 0x102 + "\x02e"]


def test_the_length_of_properties_is_limited_by_a_short() -> None:
    data = batch.encode([(0, b"", b""), (0, b"", b"x" * (32767 - len(CLUSTER) - 1) + b"\x02")])
    assert records_of(data, extra_properties=CLUSTER).sizes.tolist() == [92 + len(CLUSTER), 92 + 32767]
    with pytest.raises(TooLarge):
        records_of(data, extra_properties=CLUSTER + b"x")
    negative = struct.pack(">iiiiih", 22 + 32768, 0, 0, 0, 0, -32768) + bytes(32768)
    with pytest.raises(ProtocolError):
        records_of(negative)


def test_a_negative_body_length_is_refused_even_if_the_sizes_add_up() -> None:
    # By these lengths the properties would have 8 bytes, as read from the first half of the member's own flag.
    data = struct.pack(">iiiiih", 22, 0, 0, 8 << 16, -8, 0)
    with pytest.raises(ProtocolError):
        records_of(data)


def test_damage_raises_the_error_of_the_object_codec() -> None:
    data = bytearray(batch.encode([(0, b"abc", b"")] * 3))
    data[25 + 16 + 3] = 4
    with pytest.raises(ProtocolError, match="message at byte 25 of the batch"):
        records_of(bytes(data))


def test_a_store_appends_the_records_unchanged(tmp_path: Path) -> None:
    queue = Queue("t", 0)
    (sent,) = encode_batches(
        pa.array([b"one", b"two", b"three"]), keys=pa.array(["k1", None, "k3"]), tags=pa.array(["a", "b", None])
    )
    with LogStore(tmp_path / "store", small_settings()) as store:
        asyncio.run(store.catalog.put_topic(Topic(name="t")))
        encoded = records_of(sent.data, extra_properties=CLUSTER)
        appended = store.append_encoded_nowait(queue, encoded.data, encoded.sizes)
        found = store.read_nowait(queue, 0)
        assert isinstance(found, Slice)
        read = record.decode_all(found.tobytes())
        assert [message.body for message in read] == [b"one", b"two", b"three"]
        assert [message.properties for message in read] == [
            {"KEYS": "k1", "TAGS": "a", "CLUSTER": "DefaultCluster"},
            {"TAGS": "b", "CLUSTER": "DefaultCluster"},
            {"KEYS": "k3", "CLUSTER": "DefaultCluster"},
        ]
        host = read[0].store_host
        answer = joined_offset_ids(message_ids.offset_id_prefix(host), appended.physical_offsets)
        assert [message_ids.parse_offset_id(each) for each in answer.split(",")] == [
            message_ids.OffsetId(host, message.physical_offset) for message in read
        ]


# -- the response -----------------------------------------------------------------------------------------------------


def test_offset_ids_are_joined_by_commas() -> None:
    prefix = "0A00000900002A9F"
    assert joined_offset_ids(prefix, []) == ""
    assert joined_offset_ids(prefix, [0x1E240]) == "0A00000900002A9F000000000001E240"
    expected = f"{prefix}{0:016X},{prefix}{0xABCDEF:016X}"
    for offsets in ([0, 0xABCDEF], array("q", [0, 0xABCDEF]), np.array([0, 0xABCDEF])):
        assert joined_offset_ids(prefix, offsets) == expected


@pytest.mark.parametrize("sizes", [[5], [5, 6], [5] * 3_000 + [6]], ids=["equal", "alternating", "in runs"])
def test_more_messages_than_permitted_are_refused_before_the_rest_is_read(sizes: list[int]) -> None:
    members = [(0, b"x" * sizes[number % len(sizes)], b"") for number in range(5_000)]
    assert len(records_of(batch.encode(members), messages_max=5_000).sizes) == 5_000
    with pytest.raises(TooManyMessages):
        records_of(batch.encode([*members, *members]) + b"not a message", messages_max=5_000)
