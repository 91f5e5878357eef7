"""Every request gets exactly one response, whatever its handler does."""

import asyncio
import re

import pytest
from tests.support.platforms import open_channel
from tests.support.raw_connection import open_raw_connection, running_listener
from tests.support.wait import eventually

from sparrow.model.errors import ConnectionLost, NotPermitted, RequestTimeout, UnknownTopic
from sparrow.net import HandlerResponse, RequestDispatcher
from sparrow.net.dispatcher import REQUESTS_IN_PROGRESS_MAX, DeferredResponse, encode_error, encode_response
from sparrow.net.request_meter import RequestMeter
from sparrow.wire import bodies, headers
from sparrow.wire.codes import ADVERTISED_VERSION, Language, RequestCode, ResponseCode, RocketMQVersion
from sparrow.wire.frame import ONE_WAY_FLAG, RESPONSE_FLAG, RemotingCommand, Serialization, encode, response_to
from sparrow.wire.headers import OffsetResponse, QueueRequest

QUICK, STUCK, BROKEN, REFUSING, ASKING, LISTING = 7001, 7002, 7003, 7004, 7005, 7006
PLAIN, PLAIN_LATER, PLAIN_BROKEN, PLAIN_PARKED, PLAIN_DEFERRED = 7101, 7102, 7103, 7104, 7105


class Context:
    """State that the handlers of these tests share."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.calls = []
        self.shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()


async def quick(request, context, call):
    context.calls.append(call.command.code)


async def stuck(request, context, call):
    context.calls.append(call.command.code)
    await context.gate.wait()
    return HandlerResponse(body=b"finished")


async def broken(request, context, call):
    raise ZeroDivisionError("our own mistake")


async def refusing(request, context, call):
    raise NotPermitted("this", "it is a test")


async def asking(request, context, call):
    """Send a request to the client before responding."""
    back = await call.channel.request(QUICK, body=b"and you?")
    return HandlerResponse(body=[b"you said: ", memoryview(back.body)])


async def listing(request, context, call):
    found = call.body(bodies.TopicList)
    return HandlerResponse.of(bodies.TopicList(sorted(found.topic_list)))


async def newest(request, context, call):
    assert isinstance(request, QueueRequest)
    return OffsetResponse(request.queue_id + 100)


HANDLERS = {
    QUICK: quick,
    STUCK: stuck,
    BROKEN: broken,
    REFUSING: refusing,
    ASKING: asking,
    LISTING: listing,
    RequestCode.GET_MAX_OFFSET: newest,
}


def plain(command, channel):
    return encode_response(command, HandlerResponse(body=b"plain"))


def plain_broken(command, channel):
    raise UnknownTopic("T") if command.body else ZeroDivisionError("plainly")


@pytest.fixture
async def context():
    return Context()


@pytest.fixture
async def serving(context):
    async def later(command):
        await context.gate.wait()
        return encode_response(command, HandlerResponse(body=b"later"))

    def deferred(command, channel):
        def encode_answer(error):
            if error is not None:
                return encode_error(command, error)
            if command.body == b"broken":
                raise ZeroDivisionError("while encoding")
            return encode_response(command, HandlerResponse(body=b"deferred"))

        context.calls.append(command.code)
        return DeferredResponse(context.shared, encode_answer)

    plains = {
        PLAIN_DEFERRED: deferred,
        PLAIN: plain,
        PLAIN_LATER: lambda command, _: later(command),
        PLAIN_BROKEN: plain_broken,
        PLAIN_PARKED: lambda command, _: None,
    }
    return RequestDispatcher(context, HANDLERS, plains)


@pytest.fixture
async def server(serving):
    async with running_listener(serving) as running:
        yield running


@pytest.fixture
async def channel(server):
    async with open_channel(server.address) as channel:
        yield channel


@pytest.fixture
async def wire(server):
    async with open_raw_connection(server.address) as wire:
        yield wire


# -- handlers ---------------------------------------------------------------------------------------------------------


async def test_a_handler_gets_a_typed_request_and_returns_a_header(channel):
    answered = await channel.request(RequestCode.GET_MAX_OFFSET, QueueRequest("T", 7))
    assert (answered.code, headers.read(OffsetResponse, answered.ext)) == (0, OffsetResponse(107))


async def test_a_body_is_decoded_and_encoded_as_json(channel):
    answered = await channel.request(LISTING, body=bodies.write(bodies.TopicList(["b", "a"])))
    assert bodies.read(bodies.TopicList, answered.body).topic_list == ["a", "b"]


async def test_a_plain_handler_responds_at_once_or_with_a_future(context, channel):
    assert (await channel.request(PLAIN)).body == b"plain"
    later = channel.request(PLAIN_LATER)
    assert (await channel.request(PLAIN)).body == b"plain"
    context.gate.set()
    assert (await later).body == b"later"


async def test_a_response_has_the_opaque_the_response_flag_and_the_advertised_version(wire):
    answered = await wire.request(RemotingCommand(QUICK, -5, 0, Language.GO, 317))
    assert (answered.opaque, answered.flag, answered.version) == (-5, RESPONSE_FLAG, ADVERTISED_VERSION)


@pytest.mark.parametrize("code", [PLAIN, QUICK, 9999, BROKEN])
async def test_a_response_uses_the_serialization_of_its_request(wire, code):
    for serialization in (Serialization.BINARY, Serialization.JSON):
        answered = await wire.request(RemotingCommand(code, 3, serialization=serialization))
        assert answered.serialization is serialization


async def test_an_unknown_code_gets_the_remark_of_rocketmq(channel):
    answered = await channel.request(31999)
    assert (answered.code, answered.remark) == (3, " request type 31999 not supported")
    assert (await channel.request(QUICK)).code == 0


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [BROKEN, PLAIN_BROKEN])
async def test_a_failing_handler_affects_only_its_request(channel, code, caplog):
    answered = await channel.request(code)
    assert answered.code == ResponseCode.SYSTEM_ERROR
    assert answered.remark.startswith("ZeroDivisionError: ")
    assert (await channel.request(QUICK)).code == 0
    (said,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert re.fullmatch(rf"the handler of request {code} of 127\.0\.0\.1:\d+ failed", said)


async def test_a_refusal_returns_its_code_and_is_not_logged(channel, caplog):
    refused = await channel.request(REFUSING)
    assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "this is not permitted: it is a test")
    refused = await channel.request(PLAIN_BROKEN, body=b"refuse")
    assert refused.code == ResponseCode.TOPIC_NOT_EXIST
    assert "the handler of request" not in caplog.text


async def test_a_missing_field_is_named_in_the_remark(channel):
    refused = await channel.request(RequestCode.GET_MAX_OFFSET, headers.TopicRequest("T"))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "queueId" in refused.remark


async def test_a_body_that_is_not_json_is_refused_with_a_remark(channel, caplog):
    refused = await channel.request(LISTING, body=b"{not json")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark
    assert "the handler of request" not in caplog.text


@pytest.mark.parametrize("code", [QUICK, BROKEN, REFUSING, PLAIN, PLAIN_BROKEN, PLAIN_LATER, 9999])
async def test_one_way_requests_get_no_response(context, wire, code):
    context.gate.set()
    wire.write(RemotingCommand(code, 1, ONE_WAY_FLAG), RemotingCommand(code, 2, ONE_WAY_FLAG))
    # Handlers run in the order of their requests: a response to a one-way request would arrive before this one.
    assert (await wire.request(RemotingCommand(LISTING, 3, body=b"{}"))).opaque == 3
    assert (await wire.request(RemotingCommand(PLAIN, 4))).opaque == 4


# -- both directions --------------------------------------------------------------------------------------------------


async def test_a_handler_may_send_a_request_to_the_client_on_the_same_connection(server):
    def client(command, channel):
        assert command.body == b"and you?"
        channel.write(encode(response_to(command, 0, None, b"well")))

    async with open_channel(server.address, client) as channel:
        assert (await channel.request(ASKING)).body == b"you said: well"


async def test_both_directions_number_their_requests_independently(wire):
    """Both requests have the same opaque; neither is mistaken for a response."""
    wire.write(RemotingCommand(ASKING, 1))
    (theirs,) = await wire.read()
    assert (theirs.opaque, theirs.flag) == (1, 0)
    wire.write(response_to(theirs, 0, None, b"one"))
    (ours,) = await wire.read()
    assert (ours.opaque, ours.body) == (1, b"you said: one")


async def test_a_client_that_disconnects_during_a_server_request_affects_only_that_request(
    server, serving, wire, caplog
):
    async with open_channel(server.address) as other:
        wire.write(RemotingCommand(ASKING, 1))
        await wire.read()
        wire.writer.close()
        await eventually(lambda: len(server.channels) == 1)
        await eventually(lambda: not serving._unanswered)
        assert (await other.request(QUICK)).code == 0
    assert "the handler of request" not in caplog.text


# -- limits -----------------------------------------------------------------------------------------------------------


async def test_a_waiting_request_does_not_block_the_next(context, channel):
    held = channel.request(STUCK)
    assert (await channel.request(QUICK)).code == 0
    assert not held.done()
    context.gate.set()
    assert (await held).body == b"finished"


async def test_a_peer_with_too_many_requests_in_progress_gets_system_busy(context, server, channel):
    held = [channel.request(STUCK, timeout_ms=60_000) for _ in range(REQUESTS_IN_PROGRESS_MAX)]
    await eventually(lambda: len(context.calls) == REQUESTS_IN_PROGRESS_MAX)
    for code in (QUICK, PLAIN):
        refused = await channel.request(code)
        assert (refused.code, str(REQUESTS_IN_PROGRESS_MAX) in refused.remark or "in progress" in refused.remark) == (
            2,
            True,
        )
    async with open_channel(server.address) as other:
        assert (await other.request(QUICK)).code == 0  # the limit applies to each peer
    context.gate.set()
    assert {(await one).code for one in held} == {0}
    assert (await channel.request(QUICK)).code == 0
    (peer,) = [peer for peer in server.channels if peer.is_open][:1]
    await eventually(lambda: peer.requests_in_progress == 0)


async def test_a_thousand_requests_of_one_write_all_get_responses(wire):
    wire.write(*(RemotingCommand(QUICK, opaque) for opaque in range(1000)))
    answers = await wire.read(1000)
    assert sorted(one.opaque for one in answers) == list(range(1000))
    assert {one.code for one in answers} == {0}


# -- requests that share a future -------------------------------------------------------------------------------------


async def test_requests_that_share_a_future_are_all_answered_when_it_is_done(context, serving, server, wire):
    serving.meter = RequestMeter()
    wire.write(*(RemotingCommand(PLAIN_DEFERRED, opaque) for opaque in range(20)))
    await eventually(lambda: len(context.calls) == 20)
    (peer,) = server.channels
    assert (peer.requests_in_progress, serving.in_progress()) == (20, {PLAIN_DEFERRED: 20})
    context.shared.set_result(None)
    answers = await wire.read(20)
    assert [(one.opaque, one.code, one.body) for one in answers] == [(n, 0, b"deferred") for n in range(20)]
    assert (peer.requests_in_progress, serving.in_progress()) == (0, {})
    assert serving.meter.successes([PLAIN_DEFERRED]).count == 20


async def test_a_shared_future_that_fails_fails_its_requests(context, serving, wire):
    serving.meter = RequestMeter()
    wire.write(RemotingCommand(PLAIN_DEFERRED, 1), RemotingCommand(PLAIN_DEFERRED, 2))
    await eventually(lambda: len(context.calls) == 2)
    context.shared.set_exception(NotPermitted("this", "it is a test"))
    assert {(one.opaque, one.code) for one in await wire.read(2)} == {(1, 16), (2, 16)}
    assert serving.meter.latencies[PLAIN_DEFERRED, 16].count == 2


async def test_an_answer_that_cannot_be_encoded_affects_only_its_request(context, serving, wire):
    wire.write(RemotingCommand(PLAIN_DEFERRED, 1, body=b"broken"), RemotingCommand(PLAIN_DEFERRED, 2))
    await eventually(lambda: len(context.calls) == 2)
    context.shared.set_result(None)
    assert [(one.opaque, one.code) for one in await wire.read(2)] == [(1, 1), (2, 0)]


async def test_stop_answers_requests_that_share_a_future_and_leaves_the_future_alone(context, serving, wire):
    wire.write(RemotingCommand(PLAIN_DEFERRED, 1), RemotingCommand(PLAIN_DEFERRED, 2))
    await eventually(lambda: len(context.calls) == 2)
    await serving.stop(grace_s=0.02)
    assert {(one.opaque, one.code) for one in await wire.read(2)} == {(1, 14), (2, 14)}
    assert not context.shared.done(), "others may wait for it"
    context.shared.set_result(None)


async def test_a_deferred_response_can_be_awaited_and_cancelled_without_its_future(context):
    response = DeferredResponse(context.shared, lambda error: b"done")

    async def answer():
        return await response

    first, second = asyncio.ensure_future(answer()), asyncio.ensure_future(answer())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    context.shared.set_result(None)
    assert await second == b"done"


# -- stopping ---------------------------------------------------------------------------------------------------------


async def test_stop_finishes_requests_in_progress_and_refuses_new_ones(context, serving, wire):
    wire.write(RemotingCommand(STUCK, 1))
    await eventually(lambda: context.calls)
    stopping = asyncio.ensure_future(serving.stop(grace_s=10))
    await eventually(lambda: serving.is_stopping)
    for code in (QUICK, PLAIN, 9999):
        refused = await wire.request(RemotingCommand(code, 2, version=int(RocketMQVersion.V5_3_1)))
        assert (refused.code, refused.opaque) == (ResponseCode.SERVICE_NOT_AVAILABLE, 2)
        assert refused.remark
        sent_away = await wire.request(RemotingCommand(code, 3, version=int(RocketMQVersion.V5_3_1) + 1))
        assert (sent_away.code, sent_away.opaque) == (ResponseCode.GO_AWAY, 3)
    assert not stopping.done()
    context.gate.set()
    (finished,) = await wire.read()
    assert (finished.opaque, finished.body) == (1, b"finished")
    await asyncio.wait_for(stopping, 12)


async def test_stopping_ignores_one_way_requests(context, serving, wire):
    await serving.stop(grace_s=0)
    wire.write(RemotingCommand(QUICK, 1, ONE_WAY_FLAG), RemotingCommand(PLAIN, 2, ONE_WAY_FLAG, version=500))
    assert (await wire.request(RemotingCommand(QUICK, 3))).opaque == 3
    assert not context.calls


async def test_stop_answers_requests_that_exceed_the_grace_time_with_service_not_available(context, serving, wire):
    wire.write(RemotingCommand(STUCK, 1), RemotingCommand(PLAIN_LATER, 2))
    await eventually(lambda: len(serving._unanswered) == 2 and context.calls)
    await serving.stop(grace_s=0.02)
    assert {(one.opaque, one.code) for one in await wire.read(2)} == {(1, 14), (2, 14)}


async def test_stop_answers_late_requests_before_the_listener_closes_connections(context, serving, server, channel):
    """The order in which every server stops: no loop iteration between the two."""
    held = channel.request(STUCK)
    await eventually(lambda: context.calls)
    await serving.stop(grace_s=0.02)
    await server.listener.stop()
    assert (await held).code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_request_just_before_the_stop_gets_a_response(serving, server, wire):
    await wire.request(RemotingCommand(QUICK))
    (peer,) = server.channels
    serving(RemotingCommand(QUICK, 77), peer)  # its task is created and has not run yet
    await serving.stop(grace_s=0)
    wire.write(RemotingCommand(QUICK, 78))
    assert [one.opaque for one in await wire.read(1)] == [77]
    assert peer.requests_in_progress <= 1


async def test_timeout_and_lost_connection_raise_different_errors(context, server):
    async with open_channel(server.address) as channel:
        with pytest.raises(RequestTimeout):
            await channel.request(STUCK, timeout_ms=20)
        held = channel.request(STUCK)
        await eventually(lambda: len(context.calls) == 2)
        await server.listener.stop()
        with pytest.raises(ConnectionLost):
            await held
    context.gate.set()
