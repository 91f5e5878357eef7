"""References: records of a retry topic that stand for older messages, and the originals that readers get instead."""

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.drafts import decode_messages, make_draft
from tests.support.log_stores import small_settings

from sparrow.broker.consume.references import make_reference, may_contain_references, resolve_record, resolve_references
from sparrow.model.message import Draft, Host, StoredMessage
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore
from sparrow.store.spi import AtEnd, Slice
from sparrow.wire import record
from sparrow.wire.message_ids import format_offset_id
from sparrow.wire.properties import PROPERTIES_BYTES_MAX, encode

T, RETRY = Queue("T", 3), Queue("%RETRY%g", 0)
LARGE = 1 << 20
IS_COMPRESSED = 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    with LogStore(tmp_path, small_settings(segment_bytes=1 << 20, message_bytes_max=1 << 19)) as opened:
        yield opened


@pytest.fixture(autouse=True)
async def topics(store: LogStore) -> None:
    for name in ("T", "%RETRY%g"):
        await store.catalog.put_topic(Topic(name=name))


async def read(store: LogStore, queue: Queue, offset: int = 0) -> Slice:
    found = await store.read(queue, offset, count_max=100, bytes_max=LARGE)
    assert isinstance(found, Slice)
    return found


async def referred(store: LogStore, *drafts: Draft) -> list[StoredMessage]:
    """Append drafts to T and a reference to each to the retry topic; return the messages of T."""
    await store.append(T, drafts)
    found = await read(store, T)
    await store.append(RETRY, [make_reference(raw, "T", record.properties_of(raw)) for raw in found.records()])
    return decode_messages(found)


async def test_a_reference_has_no_body_and_the_tag_of_its_original(store):
    (original,) = await referred(store, make_draft("x" * 1000, tags="paid", keys="k", unique="U"))
    (reference,) = decode_messages(await read(store, RETRY))
    assert (reference.body, reference.reconsume_times) == (b"", 0)
    assert reference.properties == {
        "__REF": str(original.physical_offset),
        "__REF_AT": "3:0",
        "RETRY_TOPIC": "T",
        "TAGS": "paid",
        "UNIQ_KEY": "U",
    }


async def test_readers_get_the_original_at_the_offset_of_the_reference(store):
    sent = make_draft("hello", tags="paid", keys="k", unique="U", flag=7)
    sent.born_ms, sent.born_host = 42, bytes([10, 0, 0, 9, 0, 0, 0, 80])
    (original,) = await referred(store, sent)
    (reference,) = decode_messages(await read(store, RETRY))
    (found,) = decode_messages(await resolve_references(store, await read(store, RETRY), bytes_max=LARGE))
    assert (found.body, found.flag, found.born_ms, found.born_host) == (b"hello", 7, 42, Host(b"\x0a\0\0\x09", 80))
    assert found.properties == original.properties | {
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": format_offset_id(original.store_host, original.physical_offset),
        "RESENT": "true",
    }
    for name in ("topic", "queue_id", "queue_offset", "physical_offset", "store_ms", "store_host", "reconsume_times"):
        assert getattr(found, name) == getattr(reference, name)


async def test_a_compressed_body_stays_compressed(store):
    packed = zlib.compress(b"x" * 1000)
    await referred(store, Draft(body=packed, properties=encode({"UNIQ_KEY": "U"}), sys_flag=IS_COMPRESSED))
    found = await resolve_references(store, await read(store, RETRY), bytes_max=LARGE)
    message = record.decode(found.tobytes(), expand=False)
    assert (message.body, message.sys_flag) == (packed, IS_COMPRESSED)


async def test_messages_between_references_are_unchanged(store):
    await referred(store, make_draft("a", unique="A"), make_draft("b", unique="B"))
    await store.append(RETRY, [make_draft("a retry that quotes __REF\x01 in its body", unique="C")])
    (first, second, third) = decode_messages(await resolve_references(store, await read(store, RETRY), bytes_max=LARGE))
    assert [first.body, second.body] == [b"a", b"b"]
    assert third == decode_messages(await read(store, RETRY))[2]


async def test_a_result_without_references_is_returned_unchanged(store):
    await store.append(RETRY, [make_draft("a")])
    found = await read(store, RETRY)
    assert not may_contain_references(found)
    assert await resolve_references(store, found, bytes_max=1) is found
    end = await store.read(RETRY, 1)
    assert isinstance(end, AtEnd)
    assert await resolve_references(store, end, bytes_max=1) is end
    assert not may_contain_references(None)


async def test_a_response_holds_as_many_originals_as_fit_and_reading_continues_after_them(store):
    await referred(store, *(make_draft(b"%d" % number * 1000, unique=f"U{number}") for number in range(5)))
    at, bodies = 0, []
    while at < 5:
        found = await resolve_references(store, await read(store, RETRY, at), bytes_max=2_500)
        assert 1 <= len(found.sizes) <= 2
        bodies += [message.body[:1] for message in decode_messages(found)]
        at = found.next_offset
    assert bodies == [b"0", b"1", b"2", b"3", b"4"]


async def test_an_original_larger_than_the_response_limit_is_returned_alone(store):
    await referred(store, make_draft("x" * 9_000, unique="A"), make_draft("b", unique="B"))
    found = await resolve_references(store, await read(store, RETRY), bytes_max=100)
    assert ([len(message.body) for message in decode_messages(found)], found.next_offset) == ([9_000], 1)


@pytest.mark.parametrize(
    "words",
    [
        {"__REF": "999999999", "RETRY_TOPIC": "T", "UNIQ_KEY": "U"},
        {"__REF": "-1", "RETRY_TOPIC": "T", "UNIQ_KEY": "U"},
        {"__REF": "nonsense", "RETRY_TOPIC": "T", "UNIQ_KEY": "U"},
        {"__REF": "PLACE", "RETRY_TOPIC": "another", "UNIQ_KEY": "U"},
        {"__REF": "PLACE", "RETRY_TOPIC": "T", "UNIQ_KEY": "another"},
        {"__REF": "PLACE", "UNIQ_KEY": "U"},
    ],
)
async def test_references_to_missing_or_different_messages_are_skipped(store, words):
    appended = await store.append(T, [make_draft("a", unique="U")])
    words["__REF"] = words["__REF"].replace("PLACE", str(appended.physical_offsets[0]))
    await store.append(RETRY, [Draft(body=b"", properties=encode(words)), make_draft("b")])
    found = await resolve_references(store, await read(store, RETRY), bytes_max=LARGE)
    assert ([message.body for message in decode_messages(found)], found.next_offset) == ([b"b"], 2)


async def test_a_half_message_is_never_returned(store):
    half = make_draft("secret", unique="U", sys_flag=record.TRANSACTION_PREPARED)
    appended = await store.append(T, [half])
    words = {"__REF": str(appended.physical_offsets[0]), "RETRY_TOPIC": "T", "UNIQ_KEY": "U"}
    await store.append(RETRY, [Draft(body=b"", properties=encode(words))])
    (raw,) = (await read(store, RETRY)).records()
    assert await resolve_record(store, raw) is None


async def test_references_outside_retry_topics_are_not_resolved(store):
    appended = await store.append(T, [make_draft("a", unique="U")])
    words = {"__REF": str(appended.physical_offsets[0]), "RETRY_TOPIC": "T", "UNIQ_KEY": "U"}
    await store.append(T, [Draft(body=b"b", properties=encode(words))])
    (_, raw) = (await read(store, T)).records()
    assert await resolve_record(store, raw) is raw


async def test_an_original_without_room_for_more_properties_is_returned_unchanged(store):
    full = encode({"UNIQ_KEY": "U", "n": "x" * (PROPERTIES_BYTES_MAX - 14)})
    (original,) = await referred(store, Draft(body=b"a", properties=full))
    (found,) = decode_messages(await resolve_references(store, await read(store, RETRY), bytes_max=LARGE))
    assert (found.body, found.properties) == (b"a", original.properties)


async def test_neighbouring_originals_are_read_in_one_call(store, monkeypatch):
    await referred(store, *(make_draft(f"{number}", unique=f"U{number}") for number in range(50)))
    found = await read(store, RETRY)
    looked_up: list[int] = []
    monkeypatch.setattr(store, "record_at", looked_up.append)
    whole = await resolve_references(store, found, bytes_max=LARGE)
    assert [message.body for message in decode_messages(whole)] == [b"%d" % number for number in range(50)]
    assert looked_up == []


@pytest.mark.parametrize("hint", ["", "3:1", "9:9", "3:1000", "nonsense", ":", "-1:-1"])
async def test_a_wrong_location_hint_still_finds_the_originals(store, hint):
    appended = await store.append(T, [make_draft("a", unique="A"), make_draft("b", unique="B")])
    references = [
        {"__REF": str(place), "__REF_AT": hint, "RETRY_TOPIC": "T", "UNIQ_KEY": unique}
        for place, unique in zip(appended.physical_offsets, "AB", strict=True)
    ]
    await store.append(RETRY, [Draft(body=b"", properties=encode(words)) for words in references])
    whole = await resolve_references(store, await read(store, RETRY), bytes_max=LARGE)
    assert [message.body for message in decode_messages(whole)] == [b"a", b"b"]


async def test_a_run_with_missing_originals_returns_the_others(store):
    await referred(store, *(make_draft(f"{number}", unique=f"U{number}") for number in range(6)))
    gone = {"__REF": "5", "__REF_AT": "3:6", "RETRY_TOPIC": "T", "UNIQ_KEY": "gone"}
    more = {"__REF": "6", "__REF_AT": "3:7", "RETRY_TOPIC": "T", "UNIQ_KEY": "gone"}
    await store.append(RETRY, [Draft(body=b"", properties=encode(words)) for words in (gone, more)])
    found = await resolve_references(store, await read(store, RETRY), bytes_max=LARGE)
    assert [message.body for message in decode_messages(found)] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert found.next_offset == 8
