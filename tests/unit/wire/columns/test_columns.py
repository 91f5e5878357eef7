"""Columns from records and back: single cases."""

import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
from tests.support.cases import each_case

from sparrow.model.errors import ProtocolError, Refused, TooLarge
from sparrow.model.message import Host, StoredMessage
from sparrow.wire import columns, properties, record
from sparrow.wire import hashes as wire_hashes
from sparrow.wire.columns.properties import PROPERTY_MAP_TYPE
from sparrow.wire.record import BORN_HOST_IPV6_FLAG, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, STORE_HOST_IPV6_FLAG
from sparrow.wire.undecodable import UndecodableBodies

# The test vector of the store's specification.
VECTOR = bytes.fromhex(
    "0000007cdaa320a769c865ed00000001000000000000000000000005000000000001e240000000000000018bcfe56800"
    "0a0000090000c3500000018bcfe56801c0a8000100002a9f0000000000000000000000000000000e48656c6c6f20526f"
    "636b65744d5109546f70696354657374000a54414753015461674102"
)
SIX = Host(bytes(15) + b"\x01", 7)


def raw_record(props: bytes = b"", *, topic: bytes = b"t", body: bytes = b"b", magic: int = MAGIC_V1) -> bytes:
    length = len(topic).to_bytes(1 if magic == MAGIC_V1 else 2, "big")
    tail = body + length + topic + len(props).to_bytes(2, "big") + props
    crc = zlib.crc32(body) & 0x7FFFFFFF
    fixed = struct.pack(
        ">iiIiiqqiq8sq8siqi", 88 + len(tail), magic, crc, 0, 0, 0, 0, 0, 0, b"", 0, b"", 0, 0, len(body)
    )
    return fixed + tail


def message(**fields: object) -> bytes:
    return record.encode_message(StoredMessage(**{"topic": "t", "body": b"b"} | fields))  # type: ignore[arg-type]


def one_column(data: bytes, name: str, **options: object) -> list[object]:
    batch = columns.decode(data, columns=[name], **options)  # type: ignore[arg-type]
    batch.validate(full=True)
    return batch.column(0).to_pylist()


def test_the_vector_of_the_specification_decodes_into_every_column() -> None:
    batch = columns.decode(VECTOR, columns=list(columns.COLUMN_DECODERS), verify_crc=True)
    batch.validate(full=True)
    row = batch.to_pylist()[0]
    assert row["topic"] == "TopicTest"
    assert row["body"] == b"Hello RocketMQ"
    assert row["tags"] == "TagA"
    assert row["properties"] == [("TAGS", "TagA")]
    assert row["properties_raw"] == "TAGS\x01TagA\x02"
    assert (row["queue_id"], row["queue_offset"], row["physical_offset"]) == (1, 5, 123456)
    assert row["born_timestamp"].timestamp() == 1_700_000_000
    assert row["store_timestamp"].timestamp() == 1_700_000_000.001
    assert (row["born_host"], row["store_host"]) == ("10.0.0.9:50000", "192.168.0.1:10911")
    assert row["keys"] is None
    assert row["msg_id"] is None


def test_the_vector_of_the_specification_is_encoded_and_stamped_byte_for_byte() -> None:
    encoded = columns.encode(
        pa.array([b"Hello RocketMQ"]),
        topic="TopicTest",
        queue_id=1,
        tags=pa.array(["TagA"]),
        born_ms=1_700_000_000_000,
        born_host=bytes([10, 0, 0, 9]) + (50000).to_bytes(4, "big"),
        store_host=bytes([192, 168, 0, 1]) + (10911).to_bytes(4, "big"),
    )
    columns.stamp_offsets(encoded.data, [0], queue_offset=5, physical_offset=123456, store_ms=1_700_000_000_001)
    assert bytes(encoded.data) == VECTOR
    assert encoded.sizes.tolist() == [124]
    assert columns.tags_codes(VECTOR, [0]).tolist() == [0x27A807]
    entry = np.array([(123456, 124, 0x27A807)], columns.QUEUE_ENTRY_DTYPE)
    assert entry.tobytes().hex() == "000000000001e2400000007c000000000027a807"


def test_v2_and_ipv6_records_with_gaps_between_them_are_decoded() -> None:
    parts = [
        message(born_host=SIX, store_ms=11, reconsume_times=1, prepared_offset=21),
        message(store_host=SIX, store_ms=12, reconsume_times=2, prepared_offset=22),
        message(born_host=SIX, store_host=SIX, store_ms=13, reconsume_times=3, prepared_offset=23),
        raw_record(b"TAGS\x01x\x02", topic="é".encode() * 150, magic=MAGIC_V2),
    ]
    data, starts = b"", []
    for each in parts:
        data += b"gap"
        starts.append(len(data))
        data += each
    batch = columns.decode(data, starts, columns=list(columns.COLUMN_DECODERS))
    batch.validate(full=True)
    got = {name: batch.column(name).to_pylist() for name in columns.COLUMN_DECODERS}
    assert got["reconsume_times"] == [1, 2, 3, 0]
    assert got["prepared_offset"] == [21, 22, 23, 0]
    assert got["topic"] == ["t", "t", "t", "é" * 150]
    assert got["born_host"] == ["[::1]:7", "127.0.0.1:0", "[::1]:7", "0.0.0.0:0"]
    assert got["store_host"] == ["127.0.0.1:0", "[::1]:7", "[::1]:7", "0.0.0.0:0"]
    assert got["sys_flag"] == [BORN_HOST_IPV6_FLAG, STORE_HOST_IPV6_FLAG, BORN_HOST_IPV6_FLAG | STORE_HOST_IPV6_FLAG, 0]
    assert [stamp.microsecond for stamp in got["store_timestamp"]] == [11000, 12000, 13000, 0]


@each_case(
    "props",
    [
        b"A\x01b",
        b"A\x01b\x02A\x01c\x02",
        b"\x02\x02A\x01b\x02\x02",
        b"A\x01b\x01c\x02",
        b"no separator\x02A\x01b\x02",
        b"\x01value\x02name\x01\x02",
        b"A\x00\x01\x00b\x02",
        b"\x01\x01\x02",
        b"KEYS\x01\x02TAGS\x01t",
        b"TAGS\x01a\x02KEYS\x01k\x02TAGS\x01b\x02",
    ],
)
def test_unusual_property_strings_decode_like_in_the_object_codec(props: bytes) -> None:
    # Between ordinary neighbours: no property may leak from one string into the next.
    strings = [b"K\x01v\x02", props, b"", props, b"\x02x", b"K\x01v\x02"]
    data = b"".join(map(raw_record, strings))
    expected = [properties.decode(each) for each in strings]
    assert [dict(row) for row in one_column(data, "properties")] == expected  # type: ignore[call-overload]
    assert [len(row) for row in one_column(data, "properties")] == [len(row) for row in expected]  # type: ignore[arg-type]
    assert one_column(data, "tags") == [row.get("TAGS") for row in expected]
    assert one_column(data, "keys") == [row.get("KEYS") for row in expected]


def test_only_compressed_bodies_are_decompressed_and_lose_their_flags() -> None:
    squeezed = zlib.compress(b"z" * 999)
    data = message(body=b"plain") + message(body=squeezed, sys_flag=0x301) + message(body=b"", sys_flag=0x300)
    assert one_column(data, "body") == [b"plain", b"z" * 999, b""]
    assert one_column(data, "sys_flag") == [0, 0, 0x300]
    assert one_column(data, "body", expand=False) == [b"plain", squeezed, b""]
    assert one_column(data, "sys_flag", expand=False) == [0, 0x301, 0x300]
    with pytest.raises(ProtocolError):
        one_column(message(body=b"no zlib", sys_flag=1), "body")


def undecodable_data() -> bytes:
    """Return four records, of which those at the offsets 11 and 13 do not decompress."""
    squeezed = zlib.compress(b"z" * 999)
    bodies = [b"plain", b"no zlib", squeezed, squeezed[:-5]]
    flags = [0, 1, 1, 1]
    return b"".join(
        message(body=body, sys_flag=flag, queue_offset=10 + row)
        for row, (body, flag) in enumerate(zip(bodies, flags, strict=True))
    )


def test_undecodable_bodies_are_null_with_their_error_or_skipped_and_counted() -> None:
    names = ["queue_offset", "decode_error", "body"]
    found = UndecodableBodies("null", "t/b/0")
    batch = columns.decode(undecodable_data(), columns=names, undecodable=found)
    batch.validate(full=True)
    assert batch.column("queue_offset").to_pylist() == [10, 11, 12, 13]
    assert batch.column("body").to_pylist() == [b"plain", None, b"z" * 999, None]
    errors = batch.column("decode_error").to_pylist()
    assert (errors[0], errors[2]) == (None, None)
    assert "not a valid zlib stream" in errors[1]
    assert "truncated" in errors[3]
    assert (found.count, found.first_offset) == (2, 11)

    found = UndecodableBodies("skip", "t/b/0")
    batch = columns.decode(undecodable_data(), columns=names, undecodable=found)
    batch.validate(full=True)
    assert batch.to_pydict() == {
        "queue_offset": [10, 12],
        "decode_error": [None, None],
        "body": [b"plain", b"z" * 999],
    }
    assert found.count == 2
    with pytest.raises(ProtocolError, match=r"t/b/0 at offset 11 cannot be read: .*zlib.* skip"):
        columns.decode(undecodable_data(), columns=names, undecodable=UndecodableBodies("raise", "t/b/0"))


def test_columns_that_need_no_body_keep_all_rows_and_one_that_does_finds_the_errors_alone() -> None:
    found = UndecodableBodies("skip", "t/b/0")
    assert one_column(undecodable_data(), "queue_offset", undecodable=found) == [10, 11, 12, 13]
    assert one_column(undecodable_data(), "body", undecodable=found, expand=False)[1] == b"no zlib"
    assert found.count == 0
    found = UndecodableBodies("null", "t/b/0")
    errors = one_column(undecodable_data(), "decode_error", undecodable=found)
    assert [error is None for error in errors] == [True, False, True, False]
    assert found.count == 2


def test_a_wrong_checksum_is_found_if_verified_and_never_on_an_empty_body() -> None:
    hurt = bytearray(message(body=b"x" * 20))
    hurt[90] ^= 1
    assert one_column(bytes(hurt), "queue_id") == [0]
    with pytest.raises(ProtocolError, match="checksum"):
        one_column(bytes(hurt), "queue_id", verify_crc=True)
    empty = bytearray(message(body=b""))
    empty[8:12] = b"\0\0\0\7"
    assert one_column(bytes(empty), "body", verify_crc=True) == [b""]


@pytest.mark.parametrize("field", ["topic", "props"])
def test_invalid_utf8_is_refused_even_if_neighbours_complete_it(field: str) -> None:
    first, second = (b"\xc3", b"\xa9") if field == "topic" else (b"K\x01\xc3", b"\xa9")
    data = raw_record(**{field: first}) + raw_record(**{field: second})  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="UTF-8"):
        columns.decode(data, columns=["topic", "properties_raw"])


def test_times_beyond_the_range_of_arrow_are_clamped() -> None:
    batch = columns.decode(message(born_ms=2**62) + message(born_ms=-(2**62)), columns=["born_timestamp"])
    edge = (2**63 - 1) // 1000 * 1000
    assert batch.column(0).cast(pa.int64()).to_pylist() == [edge, -edge]


def test_no_records_give_an_empty_batch_and_an_unknown_column_is_refused() -> None:
    batch = columns.decode(b"", columns=list(columns.COLUMN_DECODERS))
    assert (batch.num_rows, batch.schema.names) == (0, list(columns.COLUMN_DECODERS))
    assert columns.tags_codes(b"", []).tolist() == []
    assert [part.tolist() for part in columns.index_keys(b"", [])] == [[], []]
    with pytest.raises(Refused, match="colour"):
        columns.decode(b"", columns=["colour"])


@pytest.mark.parametrize(
    ("starts", "sizes"),
    [
        ([-1], None),
        ([124], None),
        ([1], None),
        ([0, 0], None),
        ([2**62], None),
        (None, [123]),
        (None, [124, 124]),
        (None, [-5, 1]),
    ],
)
def test_invalid_starts_or_sizes_are_refused(starts: list[int] | None, sizes: list[int] | None) -> None:
    with pytest.raises(ProtocolError):
        columns.decode(VECTOR, starts, sizes=sizes)


def test_find_starts_stops_at_a_blank_record_or_a_torn_tail_and_refuses_invalid_data() -> None:
    blank = struct.pack(">ii", 200, MAGIC_BLANK) + bytes(192)
    assert columns.find_starts(VECTOR + VECTOR + blank + VECTOR).tolist() == [0, 124]
    assert columns.find_starts(VECTOR + VECTOR[:-1]).tolist() == [0]
    assert columns.find_starts(VECTOR + VECTOR[:7]).tolist() == [0]
    assert columns.find_starts(VECTOR * 3, 124, 248).tolist() == [124]
    assert columns.find_starts(b"").tolist() == []
    for nonsense in (bytes(200), struct.pack(">ii", 90, MAGIC_V1) + bytes(90)):
        with pytest.raises(ProtocolError):
            columns.find_starts(VECTOR + nonsense)
        assert columns.find_starts(VECTOR + nonsense, strict=False).tolist() == [0]


def test_empty_properties_are_not_written() -> None:
    maps = pa.array([[("A", "1"), ("", "x"), ("B", None), ("C", "")], None, [("D", "4")], []], PROPERTY_MAP_TYPE)
    encoded = columns.encode(
        pa.array([b"w", None, b"", b"z"]),
        topic="t",
        keys=pa.array(["k", None, "", "l"]),
        tags=pa.array([None, None, "g", "h"]),
        msg_ids=pa.array(["", "", "", ""]),
        properties=maps,
    )
    raw = columns.decode(encoded.data, sizes=encoded.sizes, columns=["properties_raw", "body"], verify_crc=True)
    assert raw.column(0).to_pylist() == [
        "KEYS\x01k\x02A\x011\x02",
        "",
        "TAGS\x01g\x02D\x014\x02",
        "KEYS\x01l\x02TAGS\x01h\x02",
    ]
    assert raw.column(1).to_pylist() == [b"w", b"", b"", b"z"]


def test_slices_and_chunks_of_columns_are_encoded_correctly() -> None:
    body, keys = pa.array([b"a", b"b", b"c"]), pa.array(["k", None, "m"])
    maps = pa.array([[("A", "1")], None, [("B", "2")]], PROPERTY_MAP_TYPE)
    whole = columns.encode(body, topic="t", keys=keys, properties=maps)
    part = columns.encode(body[1:], topic="t", keys=pa.chunked_array([keys[1:2], keys[2:]]), properties=maps[1:])
    assert bytes(part.data) == bytes(whole.data)[whole.sizes[0] :]
    assert columns.encode(body[:0], topic="t").sizes.tolist() == []
    numbers = columns.encode(
        body, topic="t", queue_id=[1, 2, 3], flag=np.arange(3), sys_flag=[0x10, 0x20, 0x4], born_ms=[7, 8, 9]
    )
    read = columns.decode(numbers.data, columns=["queue_id", "flag", "sys_flag"])
    assert [column.to_pylist() for column in read.columns] == [[1, 2, 3], [0, 1, 2], [0, 0, 4]]


@pytest.mark.parametrize(
    ("columns_given", "name"),
    [
        ({"keys": pa.array(["ok", "a\x02b"])}, "KEYS"),
        ({"tags": pa.array(["\x02", "ok"])}, "TAGS"),
        ({"properties": pa.array([[("fine", "x")], [("bad\x01", "x")]], PROPERTY_MAP_TYPE)}, "bad"),
        ({"properties": pa.array([[("fine", "x"), ("also\x02", "x")], []], PROPERTY_MAP_TYPE)}, "also"),
        ({"properties": pa.array([[("fine", "x"), ("value", "x\x02")], []], PROPERTY_MAP_TYPE)}, "value"),
    ],
)
def test_separators_are_refused_as_in_the_object_codec(columns_given: dict[str, pa.Array], name: str) -> None:
    with pytest.raises(Refused, match=f"property '{name}.*separator"):
        columns.encode(pa.array([b"", b""]), topic="t", **columns_given)
    columns.encode(pa.array([b""]), topic="t", keys=pa.array(["a\x01b"]))


def test_exceeded_limits_are_refused() -> None:
    body = pa.array([b""])
    fits = "x" * (32767 - len("KEYS") - 2)
    assert columns.encode(body, topic="t", keys=pa.array([fits])).sizes.tolist() == [91 + 1 + 32767]
    with pytest.raises(TooLarge):
        columns.encode(body, topic="t", keys=pa.array([fits + "x"]))
    with pytest.raises(TooLarge):
        columns.encode(body, topic="é" * 64)
    with pytest.raises(Refused, match="rows"):
        columns.encode(body, topic="t", keys=pa.array(["a", "b"]))
    with pytest.raises(Refused, match="IPv4"):
        columns.encode(body, topic="t", born_host=bytes(20))
    with pytest.raises(Refused, match="surrogate"):
        columns.encode(body, topic="\ud800")


def test_stamp_finds_the_store_time_after_an_ipv6_host_and_stays_inside_the_record() -> None:
    parts = [message(), message(born_host=SIX), message(born_host=SIX)]
    data = bytearray(b"".join(parts))
    starts = columns.starts_from_sizes([len(each) for each in parts])
    host = bytes([1, 2, 3, 4, 0, 0, 0, 9])
    columns.stamp_offsets(
        data, starts, queue_offset=[4, 5, 6], physical_offset=starts + 1000, store_ms=77, queue_id=3, store_host=host
    )
    read = record.decode_all(bytes(data))
    assert [each.queue_offset for each in read] == [4, 5, 6]
    assert [each.physical_offset for each in read] == (starts + 1000).tolist()
    assert [(each.store_ms, each.queue_id, each.store_host.port) for each in read] == [(77, 3, 9)] * 3
    assert columns.find_valid(data, starts, base=1000).all()
    before = bytes(data)
    for outside in ([-1], [len(data) - 90]):
        with pytest.raises(IndexError):
            columns.stamp_offsets(data, outside, queue_offset=0, physical_offset=0, store_ms=0)
    with pytest.raises(Refused, match="store host"):
        columns.stamp_offsets(data[:], [0], queue_offset=0, physical_offset=0, store_ms=0, store_host=bytes(20))
    assert bytes(data) == before


def test_find_valid_separates_valid_records_from_all_others() -> None:
    good = message(body=b"good", physical_offset=500)
    elsewhere = message(body=b"good", physical_offset=501)
    bad_crc, bad_parts, bad_magic = bytearray(good), bytearray(good), bytearray(good)
    bad_crc[89] ^= 1
    bad_parts[-1] ^= 1
    bad_magic[4] ^= 1
    for data, is_right in ((good, True), (elsewhere, False), (bad_crc, False), (bad_parts, False), (bad_magic, False)):
        assert columns.find_valid(bytes(data), [0], base=500).tolist() == [is_right]
    assert columns.find_valid(good, [0, -1, 5, 10**9, 0], base=500).tolist() == [True, False, False, False, True]
    assert columns.find_valid(b"", [0], base=0).tolist() == [False]
    assert columns.find_valid(good, [], base=0).tolist() == []


def test_a_scan_ends_before_the_first_record_that_is_not_valid() -> None:
    bodies = [b"a", b"", b"x" * 3000, "ü".encode()]
    size = [len(message(body=body, topic="grüße")) for body in bodies]
    at = columns.starts_from_sizes(size)
    good = b"".join(
        message(body=body, topic="grüße", physical_offset=500 + start)
        for body, start in zip(bodies, at.tolist(), strict=True)
    )
    assert len(columns.LogRecords.scan(good, at, base=500)) == 4
    assert columns.LogRecords.scan(good, at, base=500).sizes.tolist() == size
    assert columns.LogRecords.scan(good, at, base=500).topics()[0] == ["grüße"]
    for broken in range(4):
        data = bytearray(good)
        data[int(at[broken]) + 31] ^= 1  # its physical offset
        assert len(columns.LogRecords.scan(bytes(data), at, base=500)) == broken
    wrong_body = bytearray(good)
    wrong_body[int(at[2]) + 1000] ^= 1
    assert len(columns.LogRecords.scan(bytes(wrong_body), at, base=500)) == 2
    assert len(columns.LogRecords.scan(good, at[:0], base=500)) == 0


def test_keys_are_indexed_by_record_with_the_unique_key_first() -> None:
    given = [
        ("TopicTest", {"KEYS": "ORDER_1", "UNIQ_KEY": "U1"}),
        ("Other", {}),
        ("Другой", {"KEYS": " a  b "}),
        ("TopicTest", {"UNIQ_KEY": "😀"}),
    ]
    data = b"".join(message(topic=topic, properties=props) for topic, props in given)
    rows, hashes = columns.index_keys(data, columns.find_starts(data))
    expected = [
        (0, "TopicTest", "U1"),
        (0, "TopicTest", "ORDER_1"),
        (2, "Другой", "a"),
        (2, "Другой", "b"),
        (3, "TopicTest", "😀"),
    ]
    assert rows.tolist() == [row for row, _, _ in expected]
    assert hashes.tolist() == [wire_hashes.index_hash(topic, key) for _, topic, key in expected]
    assert hashes[1] == 1111208162


def test_keys_belong_to_their_records_when_there_are_as_many_keys_as_records() -> None:
    given = [
        {"UNIQ_KEY": "U0"},
        {"UNIQ_KEY": "U1", "KEYS": "parcel"},
        {"UNIQ_KEY": "U2", "KEYS": "first second"},
    ]
    data = b"".join(message(topic="t", properties=props) for props in given)
    rows, hashes = columns.index_keys(data, columns.find_starts(data))
    expected = [(0, "U0"), (1, "U1"), (1, "parcel"), (2, "U2"), (2, "first"), (2, "second")]
    assert rows.tolist() == [row for row, _ in expected]
    assert hashes.tolist() == [wire_hashes.index_hash("t", key) for _, key in expected]


def test_the_smallest_hash_is_indexed_as_zero() -> None:
    # Seven characters from 62 on, each with 31 choices, reach every hash: write the remainder in base 31.
    missing = (-(2**31) - wire_hashes.java_hash("t#") * 31**7 - sum(62 * 31**i for i in range(7))) % 2**32
    key = "".join(chr(62 + missing // 31**i % 31) for i in reversed(range(7)))
    assert wire_hashes.java_hash(f"t#{key}") == -(2**31)
    assert columns.index_keys(message(topic="t", properties={"UNIQ_KEY": key}), [0])[1].tolist() == [0]


def test_hashes_of_long_strings_and_of_pairs_agree_with_java_hash() -> None:
    texts = ["", "a" * 70_000, "é😀" * 50_000, "", "b", "TagA"]
    expected = [wire_hashes.java_hash(text) for text in texts]
    assert columns.java_hashes(pa.array(texts)).tolist() == expected
    assert columns.java_hashes(pa.array(["x", *texts], pa.large_string())[1:]).tolist() == expected
    data = "".join(texts).encode()
    offsets = np.cumsum([0, *(len(text.encode()) for text in texts)])
    assert columns.java_hashes((b"zz" + data, offsets + 2)).tolist() == expected
    assert columns.java_hashes(pa.array([None, "a", None])).tolist() == [0, 97, 0]
    with pytest.raises(ProtocolError):
        columns.java_hashes(pa.array([b"\xff"]))


def test_given_property_strings_and_header_fields_are_written_unchanged() -> None:
    said = ["TAGS\x01a\x02KEYS\x01k", "", "EMPTY\x01\x02"]  # without a final separator, empty, and with an empty value
    encoded = columns.encode(
        [b"1", b"2", b"3"],
        topic="t",
        properties_raw=said,
        flag=[1, 2, 3],
        sys_flag=[0, 8, 0],
        reconsume_times=[0, 0, 7],
    )
    names = ["properties_raw", "flag", "sys_flag", "reconsume_times", "body"]
    batch = columns.decode(encoded.data, sizes=encoded.sizes, columns=names, verify_crc=True)
    assert batch.to_pydict() == {
        "properties_raw": said,
        "flag": [1, 2, 3],
        "sys_flag": [0, 8, 0],
        "reconsume_times": [0, 0, 7],
        "body": [b"1", b"2", b"3"],
    }


def test_a_property_string_that_is_too_long_is_refused_before_encoding() -> None:
    with pytest.raises(TooLarge):
        columns.encode([b"1"], topic="t", properties_raw=["x" * 40_000])
