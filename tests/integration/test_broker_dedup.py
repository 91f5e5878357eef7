"""Dedup of sends: a send that is repeated because its response was lost is stored once."""

import asyncio

from tests.support.platforms import encode_properties, log_delay_of, open_channel, pull, running_broker, send, try_send

from sparrow.broker.produce.dedup import (
    INDEX_SEARCH_WINDOW_MS,
    SENDS_PER_PRODUCER_MAX,
    ProducerSequence,
    SendDeduplicator,
)
from sparrow.model.queue import PhysicalOffset, Queue, QueueOffset
from sparrow.store.spi import AppendResult
from sparrow.wire.codes import ResponseCode

PRODUCER = "7F00000112345678ABCDEF01"


def ticket(number: int, producer: str = PRODUCER) -> str:
    return encode_properties(__PID=producer, __SEQ=str(number), UNIQ_KEY=f"{producer}{number:08X}")


async def test_a_repeated_send_returns_the_first_result_and_stores_nothing(tmp_path):
    async with running_broker(tmp_path) as server, open_channel(server.address) as channel:
        first = await send(channel, "T", b"once", 1, ticket(1))
        again = await send(channel, "T", b"once", 2, ticket(1))  # a retry may choose another queue
        other = await send(channel, "T", b"twice", 1, ticket(2))
        assert (again.message_id, again.queue_id, again.queue_offset) == (first.message_id, 1, first.queue_offset)
        assert other.queue_offset == first.queue_offset + 1
        assert (await pull(channel, "T", 1)).bodies == [b"once", b"twice"]
        assert (await pull(channel, "T", 2)).code == ResponseCode.PULL_NOT_FOUND


async def test_concurrent_repeats_of_a_send_are_stored_once(tmp_path):
    async with running_broker(tmp_path) as server, open_channel(server.address) as channel:
        await send(channel, "T", b"makes the topic")
        answers = await asyncio.gather(*(send(channel, "T", b"once", 1, ticket(7)) for _ in range(20)))
        assert len({answer.message_id for answer in answers}) == 1
        assert (await pull(channel, "T", 1)).bodies == [b"once"]


async def test_a_repeated_send_is_recognised_after_a_restart(tmp_path):
    async with running_broker(tmp_path) as server, open_channel(server.address) as channel:
        first = await send(channel, "T", b"once", 0, ticket(1))
    async with running_broker(tmp_path) as server, open_channel(server.address) as channel:
        again = await send(channel, "T", b"once", 0, ticket(1))
        assert again.queue_offset == first.queue_offset
        await send(channel, "T", b"new", 0, ticket(2))
        assert (await pull(channel, "T")).bodies == [b"once", b"new"]


async def test_the_same_sequence_number_of_another_producer_is_a_new_send(tmp_path):
    async with running_broker(tmp_path) as server, open_channel(server.address) as channel:
        await send(channel, "T", b"one", 0, ticket(1))
        await send(channel, "T", b"two", 0, ticket(1, producer="7F00000112345678ABCDEF02"))
        assert (await pull(channel, "T")).bodies == [b"one", b"two"]


async def test_a_send_with_a_producer_id_and_no_sequence_number_is_refused(tmp_path):
    async with running_broker(tmp_path) as server, open_channel(server.address) as channel:
        await send(channel, "T", b"makes the topic")
        refused = await try_send(channel, "T", b"x", 0, encode_properties(__PID=PRODUCER))
        assert (refused.code, "__SEQ" in refused.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)


def test_the_number_of_remembered_sends_per_producer_is_bounded():
    now_ms = 0
    repeats = SendDeduplicator(None, now_ms=lambda: now_ms)  # type: ignore[arg-type]
    for number in range(SENDS_PER_PRODUCER_MAX + 10):
        place = AppendResult(Queue("T", 0), QueueOffset(number), (PhysicalOffset(0),), PhysicalOffset(1), 0)
        repeats.remember(ProducerSequence(PRODUCER, number), place)
    assert repeats.find(ProducerSequence(PRODUCER, 9)) is None
    assert repeats.find(ProducerSequence(PRODUCER, 10)) is not None
    assert repeats.must_search_index
    now_ms = INDEX_SEARCH_WINDOW_MS
    assert not repeats.must_search_index


async def test_a_repeated_send_of_a_delayed_message_is_recognised_after_a_restart(tmp_path):
    words = ticket(1) + encode_properties(TIMER_DELAY_SEC="3600")
    async with running_broker(tmp_path) as server, open_channel(server.address) as channel:
        first = await send(channel, "T", b"later", 0, words)
        again = await send(channel, "T", b"later", 0, words)
        assert again.queue_offset == first.queue_offset
        assert first.recall_handle
        assert again.recall_handle is None, "the due time of the first is no longer known"
    async with running_broker(tmp_path) as server, open_channel(server.address) as channel:
        assert (await send(channel, "T", b"later", 0, words)).queue_offset == first.queue_offset
        assert log_delay_of(server.broker).count == 1
