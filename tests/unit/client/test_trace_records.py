"""Trace records: they round-trip, and records of other clients are decoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.client.trace_records import (
    ConsumeEndTrace,
    ConsumeReturnType,
    ConsumeStartTrace,
    PublishTrace,
    TracedMessageType,
    TraceRecord,
    TransactionEndTrace,
    decode,
    encode,
    trace_keys,
)

PUBLISHED = PublishTrace(
    time_ms=1700000000000,
    region="DefaultRegion",
    group="producers",
    topic="orders",
    message_id="7F0000010000000000000000000000A1",
    tags="paid",
    keys="order-7 customer-3",
    store_host="127.0.0.1:10911",
    body_bytes=12,
    cost_ms=3,
    kind=TracedMessageType.DELAYED,
    offset_id="7F00000100002A9F0000000000000000",
    is_success=True,
)
BEGUN = ConsumeStartTrace(time_ms=5, group="billing", request_id="R", message_id="A1", retries=2, keys="order-7")
ENDED = ConsumeEndTrace(
    request_id="R",
    message_id="A1",
    cost_ms=9,
    is_success=False,
    keys="order-7",
    code=ConsumeReturnType.RAISED,
    time_ms=14,
    group="billing",
)
TRANSACTION = TransactionEndTrace(
    time_ms=6,
    group="producers",
    topic="orders",
    message_id="A1",
    transaction_id="A1",
    state="COMMIT_MESSAGE",
    from_check=True,
)


def test_a_publish_record_has_the_official_fields_in_order():
    assert encode([PUBLISHED]) == (
        b"Pub\x011700000000000\x01DefaultRegion\x01producers\x01orders\x017F0000010000000000000000000000A1\x01paid\x01"
        b"order-7 customer-3\x01127.0.0.1:10911\x0112\x013\x013\x017F00000100002A9F0000000000000000\x01true\x02"
    )


def test_other_records_have_the_official_fields_in_order():
    assert encode([BEGUN]) == b"SubBefore\x015\x01DefaultRegion\x01billing\x01R\x01A1\x012\x01order-7\x02"
    assert encode([ENDED]) == b"SubAfter\x01R\x01A1\x019\x01false\x01order-7\x012\x0114\x01billing\x02"
    assert encode([TRANSACTION]) == (
        b"EndTransaction\x016\x01DefaultRegion\x01producers\x01orders\x01A1\x01\x01\x01\x012\x01A1\x01COMMIT_MESSAGE\x01true\x02"
    )


texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",))).filter(lambda t: t != "null")
times = st.integers(0, 1 << 62)
traces = st.one_of(
    st.builds(
        PublishTrace,
        time_ms=times,
        group=texts,
        topic=texts,
        message_id=texts,
        tags=texts,
        keys=texts,
        store_host=texts,
        body_bytes=times,
        cost_ms=times,
        kind=st.sampled_from(TracedMessageType),
        offset_id=texts,
        is_success=st.booleans(),
        client_host=st.none() | texts,
    ),
    st.builds(
        ConsumeStartTrace, time_ms=times, group=texts, request_id=texts, message_id=texts, retries=times, keys=texts
    ),
    st.builds(
        ConsumeEndTrace,
        request_id=texts,
        message_id=texts,
        cost_ms=times,
        is_success=st.booleans(),
        keys=texts,
        code=st.sampled_from(ConsumeReturnType),
        time_ms=times,
        group=texts,
    ),
    st.builds(
        TransactionEndTrace,
        time_ms=times,
        group=texts,
        topic=texts,
        message_id=texts,
        transaction_id=texts,
        state=st.sampled_from(["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]),
        from_check=st.booleans(),
        tags=texts,
        keys=texts,
        store_host=texts,
        kind=st.sampled_from(TracedMessageType),
    ),
)


@given(st.lists(traces, max_size=5))
def test_trace_records_round_trip(some: list[TraceRecord]):
    assert decode(encode(some)) == some


def test_a_separator_inside_a_field_becomes_a_blank():
    odd = ConsumeStartTrace(time_ms=1, group="g", request_id="R", message_id="A", keys="one\x01two\x02three")
    (read,) = decode(encode([odd]))
    assert isinstance(read, ConsumeStartTrace)
    assert read.keys == "one two three"


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\x02\x02",
        b"Pub\x02",
        b"Pub\x01soon\x01r\x01g\x02",
        b"Nonsense\x011\x02",
        b"\xff\xfe",
        b"SubAfter\x01R\x02",
    ],
)
def test_unreadable_records_are_skipped(damage: bytes):
    assert decode(damage) == []
    assert decode(damage + b"\x02" + encode([BEGUN])) == [BEGUN]


def test_an_old_record_without_an_offset_id_is_decoded():
    old = b"Pub\x011\x01R\x01g\x01t\x01A1\x01null\x01null\x01h:1\x0112\x013\x010\x01true\x02"
    (read,) = decode(old)
    assert isinstance(read, PublishTrace)
    assert (read.message_id, read.tags, read.keys, read.offset_id, read.is_success) == ("A1", "", "", "", True)


def test_a_cloud_record_without_time_and_group_is_decoded():
    (read,) = decode(b"SubAfter\x01R\x01A1\x019\x01true\x01k\x010\x02")
    assert read == ConsumeEndTrace(request_id="R", message_id="A1", cost_ms=9, is_success=True, keys="k")


def test_trace_keys_are_the_message_ids_and_keys_without_duplicates():
    assert trace_keys([PUBLISHED, BEGUN, ENDED]) == [PUBLISHED.message_id, "order-7", "customer-3", "A1"]
