"""Batches of messages and their results, message encoding, and the memory budget."""

import asyncio
import zlib

import pytest

from sparrow.client.aio.produce.batches.message_batch import MessageBatch, OpenBatches, send_results
from sparrow.client.aio.produce.memory_budget import MemoryBudget
from sparrow.client.aio.produce.message_encoder import MessageEncoder
from sparrow.client.aio.produce.sender import SendOutcome
from sparrow.model.errors import ProtocolError, Refused, TooLarge
from sparrow.model.message import Message
from sparrow.model.send_result import SendStatus
from sparrow.wire import batch, headers, properties
from sparrow.wire.batch import BATCH_MESSAGE_BYTES_MIN
from sparrow.wire.bodies import QueueRef
from sparrow.wire.compression import COMPRESSED_FLAG
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import SendMessageResponse
from sparrow.wire.message_ids import UniqueIdGenerator

QUEUE = QueueRef("orders", "broker-a", 3)


def encoder(**changed: int | None) -> MessageEncoder:
    limits: dict[str, int | None] = {"compress_above_bytes": 4096, "message_bytes_max": 1 << 20} | changed
    return MessageEncoder(UniqueIdGenerator(b"\x7f\0\0\1", 1, 1, lambda: 1_700_000_000_000), **limits)  # type: ignore[arg-type]


def put(gathering: OpenBatches, key: str, body: bytes, now: float = 0.0) -> MessageBatch | None:
    """Add a message like the accumulator; return the batch that it fills, if any."""

    def add() -> bool | None:
        future = asyncio.get_running_loop().create_future()
        return gathering.add(key, 0, body, b"", "id", future, cost=1)

    is_full = add()
    if is_full is None:
        assert gathering.seal(key) is None, "these callers must not exceed a batch"
        gathering.start(key, key, None, now)
        is_full = add()
    return gathering.seal(key) if is_full else None


def delivered(message_ids: str, offset: int, status: SendStatus = SendStatus.OK) -> SendOutcome:
    return SendOutcome(
        QUEUE, status, RemotingCommand(0, ext=headers.write(SendMessageResponse(message_ids, 3, offset)))
    )


# -- open batches -----------------------------------------------------------------------------------------------------


async def test_a_batch_is_full_at_its_maximum_count() -> None:
    gathering = OpenBatches(linger_s=1, bytes_max=1 << 20, count_max=3)
    assert put(gathering, "a", b"1") is None
    assert put(gathering, "a", b"2") is None
    lot = put(gathering, "a", b"3")
    assert lot is not None
    assert [body for _, body, _ in lot.members] == [b"1", b"2", b"3"]
    assert not gathering.open


async def test_a_batch_is_full_at_its_maximum_size_and_never_exceeds_it() -> None:
    gathering = OpenBatches(linger_s=1, bytes_max=3 * (BATCH_MESSAGE_BYTES_MIN + 10), count_max=100)
    assert put(gathering, "a", b"x" * 10) is None
    assert put(gathering, "a", b"x" * 10) is None
    future = asyncio.get_running_loop().create_future()
    assert gathering.add("a", 0, b"x" * 11, b"", "id", future, cost=1) is None
    lot = put(gathering, "a", b"x" * 10)
    assert lot is not None
    assert len(batch.encode(lot.members)) == lot.size == 3 * (BATCH_MESSAGE_BYTES_MIN + 10)
    assert lot.cost == 3


async def test_a_message_larger_than_a_batch_is_sent_alone() -> None:
    gathering = OpenBatches(linger_s=1, bytes_max=50, count_max=100)
    lot = put(gathering, "a", b"x" * 1000)
    assert lot is not None
    assert len(lot.members) == 1


async def test_a_batch_is_due_when_its_own_linger_time_is_over() -> None:
    gathering = OpenBatches(linger_s=5, bytes_max=1 << 20, count_max=100)
    put(gathering, "a", b"1", now=100)
    put(gathering, "b", b"1", now=102)
    put(gathering, "a", b"2", now=104)
    assert gathering.next_due() == 105
    assert gathering.seal_due(104.9) == []
    (first,) = gathering.seal_due(105)
    assert first.topic == "a"
    assert len(first.members) == 2, "a growing batch must not linger longer"
    assert gathering.next_due() == 107
    assert [lot.topic for lot in gathering.seal_due(200)] == ["b"]
    assert gathering.next_due() is None


async def test_a_new_batch_of_a_topic_is_due_after_older_batches() -> None:
    gathering = OpenBatches(linger_s=5, bytes_max=1 << 20, count_max=2)
    put(gathering, "a", b"1", now=100)
    put(gathering, "b", b"1", now=101)
    assert put(gathering, "a", b"2", now=102) is not None
    put(gathering, "a", b"3", now=103)
    assert [lot.topic for lot in gathering.seal_due(106)] == ["b"]


async def test_a_batch_for_a_busy_queue_grows_until_the_queue_is_free() -> None:
    gathering = OpenBatches(linger_s=5, bytes_max=1 << 20, count_max=100)
    put(gathering, "a", b"1", now=100)
    put(gathering, "b", b"1", now=102)
    assert gathering.next_due(busy={"a"}) == 107
    assert [lot.topic for lot in gathering.seal_due(200, busy={"a"})] == ["b"]
    assert gathering.next_due(busy={"a"}) is None, "busy batches must not keep the timer running"
    put(gathering, "a", b"2", now=201)
    assert gathering.is_due("a", 201)
    assert [len(lot.members) for lot in gathering.seal_due(201)] == [2]
    assert not gathering.is_due("a", 300)


# -- results ----------------------------------------------------------------------------------------------------------


def test_each_message_of_a_batch_gets_its_own_id_and_offset() -> None:
    results = send_results(delivered("X1,X2,X3", 40, SendStatus.SLAVE_NOT_AVAILABLE), ["a", "b", "c"])
    assert [(each.message_id, each.offset_id, each.queue_offset) for each in results] == [
        ("a", "X1", 40),
        ("b", "X2", 41),
        ("c", "X3", 42),
    ]
    assert {(each.topic, each.broker_name, each.queue_id, each.is_ok) for each in results} == {
        ("orders", "broker-a", 3, False)
    }


def test_a_batch_stored_as_one_record_has_one_offset_id() -> None:
    assert [each.offset_id for each in send_results(delivered("X1", 40), ["a", "b"])] == ["X1", "X1"]


def test_ids_that_do_not_match_the_messages_are_refused() -> None:
    with pytest.raises(ProtocolError, match="2 ids for 3 messages"):
        send_results(delivered("X1,X2", 40), ["a", "b", "c"])


async def test_a_cancelled_send_does_not_affect_the_other_messages_of_its_batch() -> None:
    gathering = OpenBatches(linger_s=1, bytes_max=1 << 20, count_max=2)
    put(gathering, "a", b"1")
    lot = put(gathering, "a", b"2")
    assert lot is not None
    lot.futures[0].cancel()
    lot.settle(delivered("X1,X2", 7), ["id1", "id2"])
    assert (await lot.futures[1]).queue_offset == 8


async def test_the_ids_of_a_batch_are_made_when_it_is_sent_and_count_in_its_size() -> None:
    encode = encoder()
    gathering = OpenBatches(linger_s=1, bytes_max=1 << 20, count_max=100, id_bytes=encode.id_bytes)
    lot = gathering.start("a", "a", None, 0.0)
    for message in (Message("a", b"x"), Message("a", b"y", tags="A"), Message("a", b"z")):
        body, encoded, given_id = encode.encode_without_id(message)
        gathering.add("a", 0, body, encoded, given_id, asyncio.get_running_loop().create_future(), cost=1)
    packed, ids = encode.complete_batch(lot.members, lot.given_ids)
    assert len(packed) == lot.size
    assert [properties.decode(member.properties)["UNIQ_KEY"] for member in batch.decode(packed)] == ids
    assert len(set(ids)) == 3


def test_a_batch_keeps_the_unique_ids_that_callers_set() -> None:
    given = Message("a", b"y", properties={"UNIQ_KEY": "mine"})
    payload, ids = encoder().batch_payload([Message("a", b"x"), given])
    assert ids[1] == "mine"
    assert [properties.decode(member.properties)["UNIQ_KEY"] for member in batch.decode(payload.body)] == ids


# -- encoder ----------------------------------------------------------------------------------------------------------


def test_a_unique_id_is_set_on_a_copy_of_the_message() -> None:
    message = Message("orders", b"x", tags="A")
    _, encoded, message_id = encoder().encode(message)
    assert properties.decode(encoded) == {"TAGS": "A", "UNIQ_KEY": message_id}
    assert message.properties == {"TAGS": "A"}


def test_a_unique_id_set_by_the_caller_is_kept() -> None:
    _, encoded, message_id = encoder().encode(Message(topic="orders", properties={"UNIQ_KEY": "mine"}))
    assert message_id == "mine"
    assert properties.decode(encoded) == {"UNIQ_KEY": "mine"}


def test_properties_that_fit_only_without_the_unique_id_are_too_large() -> None:
    with pytest.raises(TooLarge):
        encoder().encode(Message(topic="orders", properties={"p": "x" * 32_760}))


def test_a_mutable_body_is_copied() -> None:
    body = bytearray(b"before")
    packed, _, _ = encoder().encode(Message(topic="orders", body=body))  # type: ignore[arg-type]
    body[:] = b"after!"
    assert packed == b"before"


def test_a_text_body_is_encoded_as_utf_8() -> None:
    body, _, _ = encoder().encode(Message("orders", "Grüße"))
    assert body == "Grüße".encode()


async def test_a_long_body_is_compressed_and_flagged() -> None:
    body = b"abcd" * 2000
    payload = await encoder().single_payload(Message(topic="orders", flag=7), body, b"")
    assert payload.sys_flag == COMPRESSED_FLAG
    assert zlib.decompress(payload.body) == body
    assert payload.flag == 7


@pytest.mark.parametrize("limit", [None, 8000])
async def test_a_body_below_the_threshold_is_not_compressed(limit: int | None) -> None:
    body = b"abcd" * 2000
    payload = await encoder(compress_above_bytes=limit).single_payload(Message(topic="orders"), body, b"")
    assert (payload.body, payload.sys_flag) == (body, 0)


async def test_a_body_that_does_not_shrink_is_not_compressed() -> None:
    body = zlib.compress(bytes(range(256)) * 4000, 9) + b"\xaa"
    payload = await encoder(compress_above_bytes=16).single_payload(Message(topic="orders"), body[:40], b"")
    assert (payload.body, payload.sys_flag) == (body[:40], 0)


async def test_a_body_larger_than_allowed_is_refused() -> None:
    with pytest.raises(TooLarge, match="the body has 101 bytes, the limit is 100"):
        await encoder(message_bytes_max=100).single_payload(Message(topic="orders"), b"x" * 101, b"")


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "is empty"),
        ([Message(topic="a"), Message(topic="b")], "one topic, not both 'a' and 'b'"),
        ([Message(topic="a"), Message(topic="a", properties={"DELAY": "3"})], "DELAY cannot be in a batch"),
        ([Message(topic="a", properties={"TIMER_DELIVER_MS": "3"})], "TIMER_DELIVER_MS cannot be in a batch"),
        ([Message(topic="a", properties={"TRAN_MSG": "true"})], "TRAN_MSG cannot be in a batch"),
        ([Message(topic="%RETRY%g")], "takes no batches"),
        ([Message(topic="a", properties={"WAIT": "false"}), Message(topic="a")], "the same WAIT"),
    ],
)
def test_an_invalid_batch_is_refused_with_a_reason(messages: list[Message], why: str) -> None:
    with pytest.raises(Refused, match=why):
        encoder().batch_payload(messages)


def test_the_error_of_a_batch_that_is_too_large_states_its_size() -> None:
    with pytest.raises(TooLarge, match="the batch of 2 messages"):
        encoder(message_bytes_max=150).batch_payload([Message(topic="a", body=b"x" * 50)] * 2)


def test_a_batch_does_not_wait_for_the_store_if_its_messages_do_not() -> None:
    payload, _ = encoder().batch_payload([Message(topic="a", properties={"WAIT": "false"})] * 2)
    assert properties.decode(payload.properties.encode()) == {"WAIT": "false"}


# -- memory budget -------------------------------------------------------------------------------------------------


async def test_a_request_above_the_free_budget_waits_until_memory_is_released() -> None:
    budget = MemoryBudget(100)
    await budget.acquire(70)
    assert not budget.try_acquire(31)
    waiting = asyncio.ensure_future(budget.acquire(31))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert not budget.try_acquire(1), "waiting callers must be served in order"
    budget.release(70)
    await waiting
    assert budget.used_bytes == 31


async def test_a_request_above_the_whole_budget_is_granted_when_nothing_else_is_in_use() -> None:
    budget = MemoryBudget(100)
    assert budget.try_acquire(500)
    assert not budget.try_acquire(1)
    budget.release(500)
    assert budget.try_acquire(1)


async def test_a_cancelled_waiter_lets_the_next_one_proceed() -> None:
    budget = MemoryBudget(100)
    await budget.acquire(60)
    large = asyncio.ensure_future(budget.acquire(90))
    small = asyncio.ensure_future(budget.acquire(40))
    await asyncio.sleep(0)
    large.cancel()
    await small
    assert budget.used_bytes == 100


async def test_a_waiter_cancelled_while_it_is_granted_releases_its_memory() -> None:
    budget = MemoryBudget(100)
    await budget.acquire(60)
    waiting = asyncio.ensure_future(budget.acquire(90))
    await asyncio.sleep(0)
    budget.release(60)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.used_bytes == 0
