"""The columnar batch codec against the object codec: both write the same bytes and read the same messages."""

from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sparrow.model.errors import ProtocolError, TooLarge
from sparrow.model.message import Draft, Host
from sparrow.wire import batch, columns, message_ids, properties, record
from sparrow.wire.columns.batch import batch_to_records, encode_batches, joined_offset_ids
from sparrow.wire.columns.properties import PROPERTY_MAP_TYPE

int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)

# -- columns to batches -----------------------------------------------------------------------------------------------

legal_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=8)
maybe_texts = st.none() | legal_texts
rows_to_write = st.tuples(
    st.none() | st.binary(max_size=30),
    int32s,
    maybe_texts,
    maybe_texts,
    maybe_texts,
    st.none() | st.dictionaries(legal_texts, maybe_texts, max_size=3),
)


@given(st.lists(rows_to_write, max_size=12), st.integers(-1, 400), st.integers(0, 3))
def test_columns_encode_to_the_batches_of_the_object_codec(
    rows: list[tuple[Any, ...]], bytes_max: int, skipped: int
) -> None:
    body, flags, keys, tags, unique, maps = zip(*rows, strict=True) if rows else ((), (), (), (), (), ())
    batches = encode_batches(
        pa.array(body, pa.binary())[skipped:],
        flag=np.array(flags, np.int32)[skipped:],
        keys=pa.array(keys, pa.string())[skipped:],
        tags=pa.array(tags, pa.string())[skipped:],
        unique_keys=pa.array(unique, pa.string())[skipped:],
        properties=pa.array([None if each is None else list(each.items()) for each in maps], PROPERTY_MAP_TYPE)[
            skipped:
        ],
        bytes_max=bytes_max,
    )
    expected = []
    for payload, flag, key, tag, unique_key, more in rows[skipped:]:
        own = properties.encode({"KEYS": key or "", "TAGS": tag or "", "UNIQ_KEY": unique_key or ""})
        rest = properties.encode({name: value for name, value in (more or {}).items() if value})
        expected.append(batch.encode([(flag, payload or b"", own + rest)]))
    assert b"".join(each.data for each in batches) == b"".join(expected)
    assert [each.count for each in batches] == [len(batch.decode(each.data)) for each in batches]
    firsts = list(accumulate((each.count for each in batches), initial=0))
    for each, following in zip(batches, firsts[1:], strict=True):
        assert len(each.data) <= bytes_max or each.count == 1
        # A batch ends only where the next message did not fit.
        assert following == len(expected) or len(each.data) + len(expected[following]) > bytes_max


# -- batches to records -----------------------------------------------------------------------------------------------

property_strings = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b"", b"\x02", b"TAGS\x01a", b"TAGS\x01a\x02", "KEYS\x01ключ\x02".encode(), b"A\x01b\x02C\x01\x02"]
    ),
)
members = st.tuples(int32s, st.binary(max_size=20), property_strings)
# Some members are repeated, because the codec finds members of equal size together.
sound_batches = st.lists(st.tuples(members, st.sampled_from([1, 1, 1, 2, 17, 40])), max_size=6).map(
    lambda runs: batch.encode([member for member, times in runs for _ in range(times)])
)


@st.composite
def damaged_batches(draw: st.DrawFn) -> bytes:
    whole = bytearray(draw(sound_batches))
    assume(whole)
    starts = list(accumulate((22 + len(body) + len(props) for _, body, props in batch.decode(whole)), initial=0))
    # Damage the length fields more often than chance would.
    at = draw(st.sampled_from(starts[:-1])) + draw(st.sampled_from([0, 16]))
    if draw(st.booleans()):
        whole[at : at + 4] = draw(int32s | st.integers(0, 80)).to_bytes(4, "big", signed=True)
    for place, value in draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=2)):
        whole[place] = value
    return bytes(whole[: draw(st.just(len(whole)) | st.integers(0, len(whole)))])


packed_hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)


@given(
    sound_batches | damaged_batches() | st.binary(max_size=60),
    st.sampled_from(["", "t", "тема"]),
    packed_hosts,
    st.sampled_from([8, 20]),
    st.sampled_from([b"", b"CLUSTER\x01DefaultCluster\x02", b"x"]),
    st.tuples(int32s, int64s, int32s),
)
@example(batch.encode([(0, b"", b"")]), "t", bytes(8), 8, b"CLUSTER\x01c\x02", (0, 0, 0))
def test_a_batch_becomes_the_records_of_its_members_or_both_codecs_refuse_it(
    data: bytes, topic: str, born_host: bytes, store_host_bytes: int, extra: bytes, numbers: tuple[int, int, int]
) -> None:
    sys_flag, born_ms, reconsume_times = numbers
    try:
        encoded = batch_to_records(
            memoryview(data),
            topic=topic,
            sys_flag=sys_flag,
            born_ms=born_ms,
            born_host=born_host,
            extra_properties=extra,
            store_host_bytes=store_host_bytes,
            reconsume_times=reconsume_times,
        )
    except ProtocolError:
        encoded = None
    try:
        found = batch.decode(data)
    except ProtocolError:
        found = None
    assert (encoded is None) == (found is None)
    if encoded is None or found is None:
        return
    field, expected = record.topic_field(topic.encode()), []
    for flag, body, props in found:
        if extra and props and not props.endswith(b"\x02"):
            props += b"\x02"
        draft = Draft(
            body=body,
            properties=props + extra,
            flag=flag,
            sys_flag=sys_flag,
            born_ms=born_ms,
            born_host=born_host,
            reconsume_times=reconsume_times,
        )
        store_host = bytes(store_host_bytes)
        size = record.record_size(draft, field, store_host)
        expected.append(
            record.encode(
                draft,
                field,
                size=size,
                queue_id=0,
                queue_offset=0,
                physical_offset=0,
                store_ms=0,
                store_host=store_host,
            )
        )
    assert bytes(encoded.data) == b"".join(expected)
    assert encoded.sizes.tolist() == [len(each) for each in expected]
    read = columns.decode(encoded.data, sizes=encoded.sizes, columns=["flag"], verify_crc=True)
    assert read.column("flag").to_pylist() == [member.flag for member in found]


@given(st.integers(32700, 32767), st.integers(1, 100), st.booleans())
def test_extra_properties_that_exceed_the_length_limit_are_refused(own: int, extra: int, is_open: bool) -> None:
    data = batch.encode([(0, b"", b"k\x01v\x02"), (0, b"", b"x" * (own - 1) + (b"x" if is_open else b"\x02"))])
    try:
        batch_to_records(data, topic="t", sys_flag=0, born_ms=0, born_host=bytes(8), extra_properties=b"e" * extra)
    except TooLarge:
        assert own + extra + is_open > 32767
    else:
        assert own + extra + is_open <= 32767


# -- the response -----------------------------------------------------------------------------------------------------

addresses = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)


@given(st.builds(Host, ip=addresses, port=st.integers(0, 65535)), st.lists(int64s, max_size=20))
def test_joined_offset_ids_equal_the_ids_formatted_one_by_one(host: Host, offsets: list[int]) -> None:
    expected = ",".join(message_ids.format_offset_id(host, offset) for offset in offsets)
    assert joined_offset_ids(message_ids.offset_id_prefix(host), offsets) == expected
    assert joined_offset_ids(message_ids.offset_id_prefix(host), np.array(offsets, np.int64)) == expected
