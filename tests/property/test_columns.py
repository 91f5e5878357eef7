"""The columnar codec against the object codec: both read the same bytes in the same way, or both refuse them."""

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from sparrow.model.errors import ProtocolError
from sparrow.model.message import Draft, Host, StoredMessage
from sparrow.wire import columns, properties, record
from sparrow.wire import hashes as wire_hashes
from sparrow.wire.columns.properties import PROPERTY_MAP_TYPE
from sparrow.wire.record import MAGIC_V1, MAGIC_V2

int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ips = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))
hosts = st.builds(Host, ip=ips, port=int32s)
# Few names, so that they repeat within one string; separators anywhere.
names = st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"a", "имя".encode(), b"a-name-of-more-than-16-bytes", b""])
values = st.one_of(texts.map(str.encode), st.sampled_from([b"", b"one two  three ", b"x\x01y", b"\x00", b"v"]))
entries = st.one_of(
    st.tuples(names, values).map(lambda pair: pair[0] + b"\x01" + pair[1] + b"\x02"),
    st.sampled_from([b"\x01", b"\x02", b"\x00", b"loose"]),
)
property_strings = st.one_of(st.lists(entries, max_size=6).map(b"".join), st.just(b"KEYS\x01k\x02TAGS\x01t\x02"))
bodies = st.one_of(
    st.tuples(st.binary(max_size=40), st.sampled_from([0, 0x2, 0x700])),
    st.binary(max_size=200).map(lambda body: (zlib.compress(body), 0x301)),
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """A valid record of any kind that the format allows."""
    body, sys_flag = draw(bodies)
    message = StoredMessage(
        topic="",
        body=body,
        flag=draw(int32s),
        queue_id=draw(int32s),
        queue_offset=draw(int64s),
        physical_offset=draw(int64s),
        sys_flag=sys_flag,
        born_ms=draw(st.integers(-(2**52), 2**52)),
        born_host=draw(hosts),
        store_ms=draw(st.integers(-(2**52), 2**52)),
        store_host=draw(hosts),
        reconsume_times=draw(int32s),
        prepared_offset=draw(int64s),
    )
    encoded = bytearray(record.encode_message(message))
    topic, props = draw(texts).encode(), draw(property_strings)
    is_v2 = draw(st.booleans())
    encoded[-3:] = len(topic).to_bytes(2 if is_v2 else 1, "big") + topic + len(props).to_bytes(2, "big") + props
    encoded[:8] = len(encoded).to_bytes(4, "big") + (MAGIC_V2 if is_v2 else MAGIC_V1).to_bytes(4, "big", signed=True)
    return bytes(encoded)


def host_name(host: Host) -> str:
    from ipaddress import ip_address

    return f"[{ip_address(host.ip)}]:{host.port}" if host.is_ipv6 else f"{ip_address(host.ip)}:{host.port}"


def clipped_us(ms: int) -> int:
    edge = (2**63 - 1) // 1000
    return max(-edge, min(ms, edge)) * 1000


def row_of(message: StoredMessage) -> dict[str, Any]:
    """The expected columns of a message, without the raw property string."""
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "store_timestamp": clipped_us(message.store_ms),
        "born_timestamp": clipped_us(message.born_ms),
        "reconsume_times": message.reconsume_times,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "prepared_offset": message.prepared_offset,
        "keys": message.properties.get("KEYS"),
        "tags": message.properties.get("TAGS"),
        "msg_id": message.properties.get("UNIQ_KEY"),
        "properties": message.properties,
        "body": message.body,
        "born_host": host_name(message.born_host),
        "store_host": host_name(message.store_host),
    }


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The batch as Python rows; a property name that occurs twice would change the count."""
    batch.validate(full=True)
    got = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        got[name] = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    for i, pairs in enumerate(got["properties"]):
        got["properties"][i] = dict(pairs)
        assert len(got["properties"][i]) == len(pairs)
    del got["properties_raw"]
    assert not any(got.pop("decode_error"))
    return [dict(zip(got, row, strict=True)) for row in zip(*got.values(), strict=True)]


def agreed(data: bytes, starts: list[int] | None, *, verify_crc: bool, expand: bool = True) -> None:
    """Assert that both codecs read the same values, or that both refuse the bytes."""
    try:
        batch = columns.decode(
            data, starts, columns=list(columns.COLUMN_DECODERS), verify_crc=verify_crc, expand=expand
        )
    except ProtocolError:
        batch = None
    try:
        places = columns.find_starts(data).tolist() if starts is None else starts
        messages = [record.decode(data, at, verify_crc=verify_crc, expand=expand) for at in places]
    except ProtocolError:
        messages = None
    assert (batch is None) == (messages is None)
    if batch is not None and messages is not None:
        assert rows_of(batch) == [row_of(message) for message in messages]
        for name in ("keys", "tags", "msg_id"):  # a single property is found by other code
            alone = columns.decode(data, starts, columns=[name], verify_crc=verify_crc, expand=expand)
            assert alone.column(0).to_pylist() == batch.column(name).to_pylist()


@given(st.lists(records(), max_size=6), st.lists(st.binary(max_size=5), min_size=7, max_size=7), st.booleans())
def test_both_codecs_agree_on_every_column(encoded: list[bytes], gaps: list[bytes], expand: bool) -> None:
    data, starts = b"", []
    for gap, each in zip(gaps, encoded, strict=False):
        data += gap
        starts.append(len(data))
        data += each
    data += gaps[-1]
    agreed(data, starts, verify_crc=True, expand=expand)
    messages = [record.decode(data, at) for at in starts]
    assert columns.tags_codes(data, starts).tolist() == [wire_hashes.tags_code(message.tags) for message in messages]
    keys = [
        (row, wire_hashes.index_hash(message.topic, key))
        for row, message in enumerate(messages)
        for key in [message.unique_key, *message.properties.get("KEYS", "").split(" ")]
        if key
    ]
    rows, hashes = columns.index_keys(data, starts)
    assert list(zip(rows.tolist(), hashes.tolist(), strict=True)) == keys


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=8))
def test_every_key_is_indexed_for_its_record(counts: list[tuple[bool, int]]) -> None:
    expected, encoded = [], b""
    for row, (has_unique_key, key_count) in enumerate(counts):
        unique = [f"unique-{row}"] if has_unique_key else []
        keys = [f"key-{row}-{number}" for number in range(key_count)]
        properties = {"UNIQ_KEY": "".join(unique), "KEYS": " ".join(keys)}
        named = {name: value for name, value in properties.items() if value}
        encoded += record.encode_message(StoredMessage(topic="orders", body=b"", properties=named))
        expected += [(row, wire_hashes.index_hash("orders", key)) for key in unique + keys]
    rows, hashes = columns.index_keys(encoded, columns.find_starts(encoded))
    assert list(zip(rows.tolist(), hashes.tolist(), strict=True)) == expected


@given(st.lists(records(), min_size=1, max_size=4), st.data(), st.booleans())
def test_both_codecs_read_damaged_bytes_alike_or_refuse_them(
    encoded: list[bytes], data: st.DataObject, verify_crc: bool
) -> None:
    whole = bytearray(b"".join(encoded))
    starts = columns.starts_from_sizes([len(each) for each in encoded]).tolist()
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=3)):
        whole[at] = value
    # Damage the length fields more often than chance would.
    start = data.draw(st.sampled_from(starts))
    at = start + data.draw(st.sampled_from([0, 4, 36, 84]))
    if data.draw(st.booleans()):
        whole[at : at + 4] = data.draw(st.one_of(int32s, st.integers(0, 400))).to_bytes(4, "big", signed=True)
    cut = bytes(whole[: data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))])
    is_sound = columns.find_valid(cut, starts, base=0)
    for start, is_right in zip(starts, is_sound.tolist(), strict=True):
        try:
            right = record.decode(cut, start, expand=False).physical_offset == start
        except ProtocolError as refused:
            # Recovery checks whether a record is complete, not whether its text is valid UTF-8.
            right = is_right if "UTF-8" in str(refused) else False
        assert is_right == right
    agreed(cut, None, verify_crc=verify_crc)
    places = columns.find_starts(cut, strict=False).tolist()
    agreed(cut, places, verify_crc=verify_crc)


@given(st.binary(max_size=400), st.lists(st.one_of(int64s, st.integers(-5, 400)), max_size=5))
@example(b"\x00\x00\x00\x5b\xda\xa3\x20\xa7" + bytes(83), [0, 0])
def test_any_bytes_and_any_starts_give_a_batch_or_a_protocol_error(data: bytes, starts: list[int]) -> None:
    for places in (None, starts):
        try:
            columns.decode(data, places, columns=list(columns.COLUMN_DECODERS)).validate(full=True)
        except ProtocolError:
            pass
    assert len(columns.find_valid(data, starts, base=0)) == len(starts)


legal_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=8)
maybe_texts = st.one_of(st.none(), legal_texts)
rows_to_write = st.tuples(
    st.one_of(st.none(), st.binary(max_size=30)),
    maybe_texts,
    maybe_texts,
    maybe_texts,
    st.one_of(st.none(), st.dictionaries(legal_texts, maybe_texts, max_size=4)),
)


@given(st.lists(rows_to_write, max_size=6), legal_texts, st.integers(0, 3))
def test_encoded_columns_equal_the_records_of_the_object_codec(
    rows: list[tuple[Any, ...]], topic: str, skipped: int
) -> None:
    body, keys, marks, ids, maps = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    map_column = pa.array([None if each is None else list(each.items()) for each in maps], PROPERTY_MAP_TYPE)
    encoded = columns.encode(
        pa.array(body, pa.binary())[skipped:],
        topic=topic,
        keys=pa.array(keys, pa.string())[skipped:],
        tags=pa.array(marks, pa.string())[skipped:],
        msg_ids=pa.array(ids, pa.string())[skipped:],
        properties=map_column[skipped:],
        born_ms=np.arange(len(rows))[skipped:],
    )
    expected = []
    for i, (payload, key, mark, unique, more) in list(enumerate(rows))[skipped:]:
        own = properties.encode({"KEYS": key or "", "TAGS": mark or "", "UNIQ_KEY": unique or ""})
        rest = properties.encode({name: value for name, value in (more or {}).items() if value})
        draft = Draft(body=payload or b"", properties=own + rest, born_ms=i)
        host = b"\x7f\0\0\1\0\0\0\0"
        size = record.record_size(draft, record.topic_field(topic.encode()), host)
        expected.append(
            record.encode(
                draft,
                record.topic_field(topic.encode()),
                size=size,
                queue_id=0,
                queue_offset=0,
                physical_offset=0,
                store_ms=0,
                store_host=host,
            )
        )
    assert bytes(encoded.data) == b"".join(expected)
    assert encoded.sizes.tolist() == [len(each) for each in expected]
    if expected:
        agreed(bytes(encoded.data), columns.starts_from_sizes(encoded.sizes).tolist(), verify_crc=True)


@given(st.lists(st.one_of(st.none(), texts, st.text(st.characters(max_codepoint=127))), max_size=20), st.integers(0, 3))
def test_hashes_of_a_column_equal_the_hashes_of_its_rows(given_texts: list[str | None], skipped: int) -> None:
    column = pa.array(given_texts, pa.string())[skipped:]
    assert columns.java_hashes(column).tolist() == [wire_hashes.java_hash(text or "") for text in given_texts[skipped:]]
