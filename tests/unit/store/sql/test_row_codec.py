"""Rows of messages: the columns of a draft, and the records that are encoded from them."""

from __future__ import annotations

import pytest

from sparrow.model.errors import CorruptRecord
from sparrow.model.message import Draft
from sparrow.model.priority import Priority
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import (
    RowRecordEncoder,
    draft_of_row,
    row_of_columns,
    row_of_draft,
    rows_of_drafts,
    tags_code_of,
)
from sparrow.wire import record
from sparrow.wire.hashes import tags_code
from sparrow.wire.properties import encode

LANE = Lane(7, "orders", 0, "m", Priority.MIDDLE)
PORT = (10911).to_bytes(4, "big")
V4, V6 = bytes([11, 122, 209, 20]) + PORT, bytes.fromhex("20010db8000000000000000000000001") + PORT
STORE_HOST = bytes([127, 0, 0, 1]) + PORT
DRAFTS = [
    Draft(body=b""),
    Draft(body=b"plain", properties=encode({"UNIQ_KEY": "7F000001", "TAGS": "TagA", "麻": "雀"}), born_ms=1 << 40),
    Draft(body=b"not ended", properties=b"KEYS\x01a b\x02TAGS\x01TagB", born_host=V4),
    Draft(
        body=bytes(range(256)),
        properties=encode({"KEYS": "a b", "UNIQ_KEY": "u"}),
        flag=-7,
        sys_flag=8,
        born_ms=5,
        reconsume_times=3,
        prepared_offset=9 << 40,
        born_host=V4,
    ),
    Draft(body=b"ipv6", properties=encode({"TAGS": "TagA"}), born_ms=6, sys_flag=1, born_host=V6),
    Draft(body=b"ipv6 and not ended", properties=b"TAGS\x01TagB", born_host=V6),
]
# What the first version of Sparrow stored for three of them: source_ip, properties.
ROWS_V1 = [
    (
        2130706433,
        "010004000800000008554e49515f4b455937463030303030310004000000045441475354616741000300000003e9babbe99b80"
        "00080000000d7379732e626f726e31303939353131363237373736",
    ),
    (
        192598292,
        "0100080004000000034b455953612062000800000001554e49515f4b4559750008000000017379732e626f726e35000800000002"
        "7379732e666c61672d37000b000000017379732e737973666c6167380009000000017379732e74696d657333000c0000000d7379"
        "732e7072657061726564393839353630343634393938340008000000057379732e706f72743130393131",
    ),
    (
        0,
        "0100050004000000045441475354616741000800000001"
        "7379732e626f726e36000b000000017379732e737973666c6167310008000000057379732e706f72743130393131"
        "00070000000b7379732e737263323030313a6462383a3a31",
    ),
]


def columns(at: int, draft: Draft) -> tuple[int, bytes, int, int, bytes]:
    row = row_of_draft(draft, 1)
    return at + 1, row.body, row.source_ip, 1_000 + at, row.properties


@pytest.mark.parametrize("draft", DRAFTS, ids=lambda draft: draft.body[:5].decode())
def test_a_draft_is_restored_from_its_row(draft: Draft) -> None:
    row = row_of_draft(draft, 1)
    restored, tags = draft_of_row(row.body, row.source_ip, row.properties)
    assert restored == draft
    assert tags == tags_code_of(row.properties)
    assert row_of_columns(row.body, row.source_ip, row.properties, 1) == row


def test_rows_made_together_are_the_rows_made_one_by_one() -> None:
    drafts = [draft for draft in DRAFTS for _ in range(2)]
    tokens = range(len(drafts))
    rows = rows_of_drafts(drafts, tokens)
    assert rows == [row_of_draft(draft, token) for draft, token in zip(drafts, tokens, strict=True)]


@pytest.mark.parametrize(
    ("properties", "keys"),
    [
        (b"UNIQ_KEY\x01u\x02", (b"u", ())),
        (b"UNIQ_KEY\x01u", (b"u", ())),
        (b"TAGS\x01t\x02UNIQ_KEY\x01u\x02WAIT\x01true\x02", (b"u", ())),
        (b"UNIQ_KEY\x01u\x02UNIQ_KEY\x01v\x02", (b"v", ())),
        (b"MY_UNIQ_KEY\x01u\x02", (None, ())),
        (b"MY_KEYS\x01a\x02UNIQ_KEY\x01u\x02", (b"u", ())),
        (b"UNIQ_KEY\x01%b\x02" % (b"x" * 256), (None, ())),
        (b"UNIQ_KEY\x01u\x02KEYS\x01a b a\x02", (b"a", (b"b", b"u"))),
        (b"TAGS\x01UNIQ_KEY\x01u\x02", (None, ())),
    ],
)
def test_keys_are_those_of_the_last_properties_of_these_names(
    properties: bytes, keys: tuple[bytes | None, tuple[bytes, ...]]
) -> None:
    row = row_of_draft(Draft(body=b"", properties=properties), 1)
    assert (row.ref_key, row.extra_keys) == keys


def test_tags_and_keys_are_found() -> None:
    rows = [row_of_draft(draft, 1) for draft in DRAFTS]
    assert [tags_code_of(row.properties) for row in rows] == [
        *(0, tags_code("TagA"), tags_code("TagB"), 0),
        *(tags_code("TagA"), tags_code("TagB")),
    ]
    assert [(row.ref_key, row.extra_keys) for row in rows] == [
        (None, ()),
        (b"7F000001", ()),
        (b"a", (b"b",)),
        (b"a", (b"b", b"u")),
        *((None, ()), (None, ())),
    ]


@pytest.mark.parametrize("store_host", [STORE_HOST, V6], ids=["ipv4", "ipv6"])
def test_rows_encoded_together_are_the_records_encoded_one_by_one(store_host: bytes) -> None:
    encoder = RowRecordEncoder(LANE, "orders", 1, store_host)
    rows = [columns(at, draft) for at, draft in enumerate(DRAFTS * 2)]
    data, sizes = encoder.encode_all(rows)
    single = [encoder.encode(*row)[0] for row in rows]
    assert (data, sizes) == (b"".join(single), [len(each) for each in single])
    for at, (message, draft) in enumerate(zip(record.decode_all(data, expand=False), DRAFTS * 2, strict=True)):
        assert (message.topic, message.queue_id, message.queue_offset) == ("orders", 1, at)
        assert (message.physical_offset, message.store_ms) == (LANE.physical_offset(at + 1), 1_000 + at)
        assert (message.body, message.flag, message.born_ms) == (draft.body, draft.flag, draft.born_ms)
        assert record.pack_host(message.born_host) == draft.born_host
    assert encoder.encode_all([]) == (b"", [])


def test_rows_of_version_1_are_encoded_as_before() -> None:
    encoder = RowRecordEncoder(LANE, "orders", 1, STORE_HOST)
    for (source_ip, packed), draft in zip(ROWS_V1, (DRAFTS[1], DRAFTS[3], DRAFTS[4]), strict=True):
        restored, _ = draft_of_row(bytes(draft.body), source_ip, bytes.fromhex(packed))
        assert restored == draft
        old = encoder.encode_all([(1, draft.body, source_ip, 1_000, bytes.fromhex(packed))])
        assert old == encoder.encode_all([columns(0, draft)])


@pytest.mark.parametrize("packed", [b"\x03", b"\x02", b"\x02\x00abc", b"\x01\x00\x01"])
def test_a_damaged_column_is_refused(packed: bytes) -> None:
    encoder = RowRecordEncoder(LANE, "orders", 1, STORE_HOST)
    with pytest.raises(CorruptRecord):
        encoder.encode_all([(1, b"body", 0, 1_000, packed)])


@pytest.mark.parametrize("at", [1, 3, 4])
def test_a_column_of_the_wrong_length_is_refused(at: int) -> None:
    encoder = RowRecordEncoder(LANE, "orders", 1, STORE_HOST)
    message_id, body, source_ip, store_ms, packed = columns(at, DRAFTS[at])
    for damaged in (packed[:-1], packed + b"x"):
        with pytest.raises(CorruptRecord):
            encoder.encode_all([(message_id, body, source_ip, store_ms, damaged)])
