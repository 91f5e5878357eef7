"""Invalid input: each request gets the documented code and a remark, or closes only its own connection."""

import asyncio
import logging
import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.platforms import (
    encode_properties,
    open_channel,
    pull,
    pull_header,
    running_broker,
    send,
    send_header,
    try_send,
)
from tests.support.raw_connection import open_raw_connection
from tests.support.wait import eventually

from sparrow.broker import dispatch
from sparrow.model.topic import Topic
from sparrow.wire import batch, bodies, headers
from sparrow.wire.bodies import ConsumerData, HeartbeatData, LockQueues, QueueRef, SubscriptionData
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RESPONSE_FLAG, RemotingCommand, Serialization, encode

WRONG = ("the handler of request", "Task exception was never retrieved", "Fatal", "Exception in callback", "Unhandled")
"""How log messages of programming errors begin, which must not appear."""


@pytest.fixture
async def server(tmp_path, caplog):
    """A broker that must still serve requests after the test."""
    caplog.set_level(logging.WARNING)
    async with running_broker(tmp_path) as server:
        await server.broker.topics.put(Topic(name="T", read_queues=4, write_queues=4))
        yield server
        await still_serves(server)
        assert not mistakes(caplog)


async def still_serves(server):
    async with open_channel(server.address) as fresh:
        sent = await send(fresh, "StillServing", b"alive")
        found = await pull(fresh, "StillServing", sent.queue_id, sent.queue_offset)
        assert found.bodies == [b"alive"]


def mistakes(caplog) -> list[str]:
    wrong = [record for record in caplog.records if record.getMessage().startswith(WRONG)]
    return [f"{record.getMessage()}: {record.exc_info}" for record in wrong]


@pytest.fixture
async def channel(server):
    async with open_channel(server.address) as channel:
        yield channel
        assert channel.is_open, "the connection must stay open"


def frame_of(header: bytes, body: bytes = b"", serialization: int = 0) -> bytes:
    start = (4 + len(header) + len(body)).to_bytes(4, "big") + (serialization << 24 | len(header)).to_bytes(4, "big")
    return start + header + body


def json_frame(body: bytes = b"", **fields: object) -> bytes:
    return frame_of(msgspec.json.encode({"code": 310, "opaque": 1, "version": 407, "language": "JAVA"} | fields), body)


def refusal(answer: RemotingCommand, code: int) -> str:
    """Assert the code of a refusal and return its remark."""
    assert answer.code == code, f"{answer.code}: {answer.remark}"
    assert answer.remark
    assert len(answer.remark) <= 1024
    return answer.remark


# -- refused requests -------------------------------------------------------------------------------------------------


async def test_unknown_request_codes_are_refused_and_the_connection_stays_open(channel):
    for code in (0, -1, 1, 9, 309_999, 0x7FFF_FFFF, -0x8000_0000, 105):
        answer = await channel.request(code)
        assert refusal(answer, 3) == f" request type {code} not supported"


@pytest.mark.parametrize("kind", ["send", "pull"])
async def test_the_remark_names_a_missing_required_field(server, kind):
    code, header = (310, send_header("T")) if kind == "send" else (11, pull_header("T"))
    required = [field.encode_name for field in msgspec.structs.fields(header) if field.required]
    assert len(required) >= 8
    async with open_raw_connection(server.address) as wire:
        for missing in required:
            ext = headers.write(header)
            del ext[missing]
            assert repr(missing) in refusal(
                await wire.request(RemotingCommand(code, ext=ext)), ResponseCode.SYSTEM_ERROR
            )


@pytest.mark.parametrize("serialization", Serialization)
async def test_every_handler_answers_a_request_without_fields(server, serialization):
    async with open_raw_connection(server.address) as wire:
        for code in sorted(headers.REQUEST_HEADERS):
            for ext in (None, {}, {"x": "y"}):
                answer = await wire.request(RemotingCommand(int(code), 1, ext=ext, serialization=serialization))
                assert answer.opaque == 1
                assert answer.code in (0, 1, 3, 16, 17, 22, 26, 29, 206, 208), f"{code}: {answer.code} {answer.remark}"
                assert answer.code == 0 or answer.remark


@pytest.mark.parametrize("serialization", Serialization)
async def test_the_remark_names_a_field_with_a_malformed_number(server, serialization):
    async with open_raw_connection(server.address) as wire:
        for value in ("", "abc", "1.5", "99999999999", "-99999999999", "0x10", " 1", "null", "true", "١"):
            ext = headers.write(send_header("T")) | {"e": value}
            answer = await wire.request(RemotingCommand(310, ext=ext, serialization=serialization))
            assert "'e'" in refusal(answer, ResponseCode.SYSTEM_ERROR)


@pytest.mark.parametrize("ext", [[], "text", 5, {"a": {"b": 1}}, {"a": [1]}, {"e": {}}, None, {"a": None}, True])
async def test_ext_fields_that_are_no_map_of_strings_are_refused(server, ext):
    async with open_raw_connection(server.address) as wire:
        wire.write(json_frame(extFields=ext))
        refusal((await wire.read())[0], ResponseCode.SYSTEM_ERROR)
        assert (await wire.request(RemotingCommand(7777))).code == 3


@pytest.mark.parametrize("queue_id", [4, 100, 0x7FFF_FFFF])
async def test_unknown_queue_ids_are_refused(channel, queue_id):
    assert str(queue_id) in refusal(await try_send(channel, "T", b"x", queue_id), ResponseCode.INVALID_PARAMETER)
    answer = await channel.request(11, pull_header("T", queue_id))
    assert str(queue_id) in refusal(answer, ResponseCode.INVALID_PARAMETER)
    assert (await channel.request(30, headers.QueueRequest("T", queue_id))).code == 0


ILLEGAL = ["", " ", "a b", "../up", "a/b", "x" * 128, "主题", "a\0b", "a\x01b\x02", "a.b", "x" * 100_000, "'\"\\\n"]


async def test_illegal_topic_names_are_refused_and_create_nothing(server, channel):
    before = set(server.broker.topics._topics)
    for topic in ILLEGAL:
        refusal(await try_send(channel, topic, b"x"), ResponseCode.INVALID_PARAMETER)
        refusal(await channel.request(11, pull_header(topic)), ResponseCode.TOPIC_NOT_EXIST)
        refusal(await channel.request(15, headers.CommitOffset("g", topic, 0, 1)), ResponseCode.TOPIC_NOT_EXIST)
    assert set(server.broker.topics._topics) == before


async def test_illegal_group_names_are_refused_and_create_nothing(server, channel):
    before = set(server.broker.groups._groups)
    for group in (*ILLEGAL, "x" * 121):
        refusal(await channel.request(11, pull_header("T", group=group)), ResponseCode.INVALID_PARAMETER)
        refusal(await channel.request(15, headers.CommitOffset(group, "T", 0, 1)), ResponseCode.INVALID_PARAMETER)
    assert set(server.broker.groups._groups) == before


@pytest.mark.parametrize("extra", [1, 100_000, 8 << 20])
async def test_too_large_bodies_are_refused(channel, extra):
    body = bytes((4 << 20) + extra)
    assert str(len(body)) in refusal(await try_send(channel, "T", body), ResponseCode.MESSAGE_ILLEGAL)
    refusal(
        await try_send(channel, "T", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True),
        ResponseCode.MESSAGE_ILLEGAL,
    )


@pytest.mark.parametrize("chars", [32_767, 32_768, 65_536, 120_000])
async def test_too_large_properties_are_refused(channel, chars):
    properties = encode_properties(a="x").replace("x", "x" * (chars - 3))
    refusal(await try_send(channel, "T", b"x", 0, properties), ResponseCode.MESSAGE_ILLEGAL)
    assert (await pull(channel, "T")).code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize(
    "properties", ["\x01", "\x02", "\x01\x02" * 100, "a", "a\x01", "\x01b\x02", "a\x01b\x01c\x02", "\0"]
)
async def test_malformed_properties_are_stored_and_read(channel, properties):
    await send(channel, "T", b"x", 0, properties)
    (message,) = (await pull(channel, "T")).messages
    assert message.properties["CLUSTER"] == "DefaultCluster"


@pytest.mark.parametrize(
    "body",
    [
        b"\0",
        b"\0" * 22,
        b"\xff" * 100,
        b"\0\0\0\0" + bytes(20_000),
        b"\0\0\0\x01" + bytes(20_000),
        b"\0\0\0\x16" + bytes(20_000),
        b"\x7f\xff\xff\xff" + bytes(100),
        batch.encode([(0, b"x", b"")])[:-1],
        batch.encode([(0, b"x", b"")] * 500)[:-1],
        batch.encode([(0, b"x", b"")] * 500) + b"\0\0\0\x17",
        batch.encode([(0, b"x", b"\xff\xfe")]),
        batch.encode([(0, b"x", b"\xff\xfe")] * 500),
    ],
)
async def test_malformed_batches_are_refused_completely(channel, body):
    refusal(
        await try_send(channel, "T", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True),
        ResponseCode.INVALID_PARAMETER,
    )
    assert (await pull(channel, "T")).code == ResponseCode.PULL_NOT_FOUND


async def test_pull_offsets_outside_a_queue_are_moved(channel):
    for offset in (-1, -(1 << 63), 1, 1 << 40, (1 << 63) - 1):
        answer = await pull(channel, "T", 0, offset, long_poll_ms=1_000)
        assert (answer.code, answer.header.next_offset) == (ResponseCode.PULL_OFFSET_MOVED, 0)


@pytest.mark.parametrize(
    "code",
    [RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.CHECK_CLIENT_CONFIG],
)
async def test_malformed_json_bodies_are_answered(channel, code):
    for body in (b"", b"{", b"null", b"[]", b'"text"', b"{}", b"\xff\xfe", b'{"clientID":5}', b"[" * 5_000):
        answer = await channel.request(code, body=body)
        assert answer.code in (0, 1, 29), f"{body[:20]!r}: {answer.code} {answer.remark}"
        assert answer.code == 0 or answer.remark


async def test_responses_without_a_request_are_ignored(server):
    async with open_raw_connection(server.address) as wire:
        wire.write(*(RemotingCommand(0, opaque, RESPONSE_FLAG, body=b"?") for opaque in range(-2, 100)))
        wire.write(RemotingCommand(310, 5, RESPONSE_FLAG | 2, ext=headers.write(send_header("T"))))
        assert (await wire.request(RemotingCommand(7777, 9))).opaque == 9


# -- malformed frames, which close the connection ---------------------------------------------------------------------

GOOD = encode(RemotingCommand(310, 1, ext=headers.write(send_header("T")), body=b"hello"))
GOOD_BINARY = encode(
    RemotingCommand(310, 1, ext=headers.write(send_header("T")), body=b"hello", serialization=Serialization.BINARY)
)

BROKEN = {
    "a header that is no JSON": frame_of(b"{code:310}"),
    "an empty header": frame_of(b""),
    "a header that is a list": frame_of(b"[]"),
    "a header that is a number": frame_of(b"5"),
    "a header without a code": frame_of(b"{}"),
    "a code that is a text": frame_of(b'{"code":"310"}'),
    "an opaque that does not fit": frame_of(b'{"code":310,"opaque":2147483648}'),
    "a header that is not UTF-8": frame_of(b'{"code":310,"remark":"\xff"}'),
    "half of a surrogate pair in a property": frame_of(
        b'{"code":310,"extFields":{"a":"p","b":"T","c":"TBW102","d":"4","e":"0","f":"0","g":"1","h":"0","i":"\\ud800"}}'
    ),
    "a header nested too deep": frame_of(b'{"code":310,"x":' + b"[" * 100_000),
    "a header longer than its frame": b"\0\0\0\x08\0\0\0\x09" + b"x" * 8,
    "a header of 16 MiB in a small frame": b"\0\0\0\x08\0\xff\xff\xff" + b"x" * 8,
    "a frame too short for its header's length": b"\0\0\0\x03\0\0\0\0",
    "a frame of nothing": b"\0\0\0\0\0\0\0\0",
    "a frame of 2 GiB": b"\x7f\xff\xff\xff\0\0\0\x10",
    "a frame of 4 GiB": b"\xff" * 8,
    "one byte more than allowed": (16 * 1024 * 1024 - 3).to_bytes(4, "big") + b"\0\0\0\x10",
    "an unknown serialization": frame_of(b"{}", serialization=2),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a short binary header": frame_of(bytes(5), serialization=1),
    "a binary remark beyond the header": frame_of(bytes(13) + b"\0\0\xff\xff" + bytes(4), serialization=1),
    "a binary remark of negative length": frame_of(bytes(13) + b"\xff\xff\xff\xff" + bytes(4), serialization=1),
    "binary fields beyond the header": frame_of(bytes(17) + b"\0\0\0\x09" + bytes(4), serialization=1),
    "a binary field that is not UTF-8": frame_of(bytes(17) + b"\0\0\0\x08" + b"\0\x01\xff\0\0\0\x01x", serialization=1),
}


@pytest.mark.parametrize("said", BROKEN.values(), ids=BROKEN.keys())
async def test_a_malformed_frame_closes_only_its_own_connection(server, channel, said):
    async with open_raw_connection(server.address) as wire:
        assert (await wire.request(RemotingCommand(7777, 1))).code == 3
        wire.write(RemotingCommand(7777, 2), said, GOOD)
        # Requests before it may still be answered; requests after it are not executed.
        await drained(wire)
    await eventually(lambda: len(server._listener.channels) == 1)
    assert (await pull(channel, "T")).code == ResponseCode.PULL_NOT_FOUND


async def drained(wire) -> bytes:
    """Read until the peer closes the connection."""
    try:
        return await asyncio.wait_for(wire.reader.read(-1), 12)
    except ConnectionError:
        return b""


@pytest.mark.parametrize("good", [GOOD, GOOD_BINARY], ids=["json", "binary"])
async def test_a_frame_truncated_at_any_byte_is_not_executed(server, channel, good):
    for cut in range(len(good)):
        async with open_raw_connection(server.address) as wire:
            wire.write(good[:cut])
    await eventually(lambda: len(server._listener.channels) == 1)
    assert (await pull(channel, "T")).code == ResponseCode.PULL_NOT_FOUND


async def test_a_frame_split_at_any_byte_is_executed(server, channel):
    async with open_raw_connection(server.address) as wire:
        for cut in range(1, len(GOOD)):
            wire.write(GOOD[:cut])
            await asyncio.sleep(0)
            wire.write(GOOD[cut:])
        answers = await wire.read(len(GOOD) - 1)
    assert {answer.code for answer in answers} == {0}
    assert len((await pull(channel, "T", count=1_000)).messages) == len(GOOD) - 1


async def test_an_incomplete_large_frame_buffers_only_the_received_bytes(server):
    async with open_raw_connection(server.address) as wire:
        wire.write((15 << 20).to_bytes(4, "big") + b"\0\0\0\x10" + bytes(100_000))
        await eventually(lambda: server._listener.channels)
        (peer,) = server._listener.channels
        await eventually(lambda: peer._stream.held_bytes == 100_008)
        await still_serves(server)


async def test_garbage_closes_only_its_own_connections(server, channel):
    chance = random.Random(20)
    for _ in range(100):
        async with open_raw_connection(server.address) as wire:
            wire.write(chance.randbytes(chance.randrange(1, 5_000)))
    await eventually(lambda: len(server._listener.channels) == 1)


# -- mutated frames and odd requests ----------------------------------------------------------------------------------


def frames() -> dict[str, bytes]:
    """Return one valid frame of each kind, with both header serializations."""
    beat = HeartbeatData("c@1", [], [ConsumerData("g", subscription_data_set=[SubscriptionData("T", sub_version=1)])])
    lock = LockQueues("g", "c@1", mq_set=[QueueRef("T", "sparrow", 0)])
    said = encode_properties(TAGS="a", KEYS="k", UNIQ_KEY="AB12", DELAY="0", WAIT="true")
    kinds: dict[str, tuple[int, headers.Header, bytes]] = {
        "send": (310, send_header("T", 0, said), b"hello"),
        "send in long": (10, send_header("T", 0, said, v2=False), b"hello"),
        "batch": (320, send_header("T", batch=True), batch.encode([(0, b"a", b"x\x01y\x02"), (1, b"b", b"")])),
        "large batch": (320, send_header("T", batch=True), batch.encode([(0, b"a", b"x\x01y\x02")] * 420)),
        "pull": (11, pull_header("T", long_poll_ms=50), b""),
        "commit": (15, headers.CommitOffset("g", "T", 0, 1), b""),
        "offset": (14, headers.QueryOffset("g", "T", 0), b""),
        "time": (29, headers.SearchOffset("T", 0, 5, "LOWER"), b""),
        "heartbeat": (34, headers.Heartbeat(), bodies.write(beat)),
        "lock": (41, headers.EmptyHeader(), bodies.write(lock)),
    }
    return {
        f"{name}, {serialization.name}": encode(
            RemotingCommand(code, 1, ext=headers.write(header), body=body, serialization=serialization)
        )
        for name, (code, header, body) in kinds.items()
        for serialization in Serialization
    }


FRAMES = frames()


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return a valid frame with some bytes changed, added or removed; half of them have a correct length field."""
    frame = bytearray(FRAMES[draw(st.sampled_from(sorted(FRAMES)))])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(frame) - 1))
        match draw(st.sampled_from(["set", "flip", "insert", "delete", "number"])):
            case "set":
                frame[at] = draw(st.integers(0, 255))
            case "flip":
                frame[at] ^= 1 << draw(st.integers(0, 7))
            case "insert":
                frame[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "delete":
                del frame[at : at + draw(st.integers(1, 8))]
            case "number":
                frame[at : at + 4] = draw(
                    st.sampled_from([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b'-1"}'])
                )
        if len(frame) < 9:
            break
    if draw(st.booleans()) and len(frame) >= 8:
        frame[:4] = (len(frame) - 4).to_bytes(4, "big")
    return bytes(frame)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(frame=mutated())
async def test_mutated_frames_do_not_affect_other_connections(server, caplog, frame):
    async with open_raw_connection(server.address) as wire:
        wire.write(frame, RemotingCommand(7777, 99))
        wire.writer.write_eof()
        await drained(wire)
    assert not mistakes(caplog), frame
    await still_serves(server)


NUMBERS = [-(1 << 63), -(1 << 31), -1, 0, 1, 4, 255, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63]
NAMES = [
    "T",
    "g",
    "",
    "*",
    "%RETRY%g",
    "%RETRY%",
    "TBW102",
    "DefaultCluster",
    "rmq_sys_x",
    "\0",
    "a\x01b\x02",
    "标签",
    "'",
]
ODD_BODIES = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b'{"mqSet":[{}]}',
    b'{"topicConfigList":[{}]}',
    b'{"groupName":"x"}',
    b"a=b\n",
    b"\xff",
]
LISTENS_TO_ANYBODY = sorted({int(code) for code in dispatch.HANDLERS} | {10, 11, 37, 310, 320, 361})


@st.composite
def odd_requests(draw: st.DrawFn) -> RemotingCommand:
    """Return any request of a broker, with the right field names and odd values."""
    code = draw(st.sampled_from(LISTENS_TO_ANYBODY))
    values = st.one_of(st.sampled_from(NUMBERS).map(str), st.sampled_from(NAMES), st.text(max_size=8))
    names = [field.encode_name for field in msgspec.structs.fields(headers.request_header_type(code))]
    ext = {name: draw(values) for name in names if draw(st.integers(0, 5))}
    if "suspendTimeoutMillis" in ext:
        ext["suspendTimeoutMillis"] = "10"
    body = draw(
        st.one_of(st.sampled_from(ODD_BODIES), st.sampled_from(sorted(FRAMES.values())), st.binary(max_size=60))
    )
    return RemotingCommand(code, 1, ext=ext, body=body, serialization=draw(st.sampled_from(Serialization)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=300)
@given(requests=st.lists(odd_requests(), min_size=1, max_size=5))
async def test_requests_with_odd_fields_are_each_answered_once(server, caplog, requests):
    async with open_raw_connection(server.address) as wire:
        for request in requests:
            answer = await wire.request(request)
            assert (answer.opaque, answer.is_response) == (1, True)
            assert answer.code == 0 or answer.remark
        assert (await wire.request(RemotingCommand(7777, 2))).opaque == 2
    assert not mistakes(caplog), requests


# -- crafted requests that cost much ----------------------------------------------------------------------------------


async def test_a_header_above_its_limit_closes_only_its_connection(server, channel):
    fields = b",".join(b'"f%d":"x"' % number for number in range(20_000))
    async with open_raw_connection(server.address) as wire:
        wire.write(frame_of(b'{"code":310,"opaque":1,"extFields":{%b}}' % fields))
        assert await wire.is_closed_by_peer()


async def test_a_body_above_the_limit_of_its_request_is_refused_before_it_is_decoded(channel):
    nonsense = b"{" + b"a:" * 700_000
    for code in (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.PULL_MESSAGE):
        answer = await channel.request(code, None, nonsense)
        assert "the limit is 1048576" in refusal(answer, ResponseCode.MESSAGE_ILLEGAL)


async def test_a_client_with_too_many_groups_is_refused(server, channel):
    groups = [bodies.ProducerData(f"g{number}") for number in range(2_001)]
    answer = await channel.request(
        RequestCode.HEART_BEAT, None, bodies.write(HeartbeatData("many", producer_data_set=groups))
    )
    assert "2001 groups" in refusal(answer, ResponseCode.INVALID_PARAMETER)
    assert not server.broker.clients.producer_groups()


async def test_offsets_of_queues_that_do_not_exist_are_refused(server, channel):
    for queue_id in (-1, 4, 200_000, 2**31 - 1):
        answer = await channel.request(RequestCode.UPDATE_CONSUMER_OFFSET, headers.CommitOffset("g", "T", queue_id, 5))
        assert f"no queue {queue_id}" in refusal(answer, ResponseCode.INVALID_PARAMETER)


async def test_a_response_that_quotes_a_long_name_is_cut(channel):
    answer = await channel.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, headers.ListConsumers("g" * 100_000))
    refusal(answer, ResponseCode.SYSTEM_ERROR)
