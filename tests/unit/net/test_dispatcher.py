"""From a request to exactly one answer, whatever its handler does."""

import asyncio

import pytest
from tests.support.platforms import channel_to
from tests.support.waiting import eventually
from tests.support.wires import listening, wire_to

from sparrow.model.errors import ConnectionLost, NotPermitted, RequestTimeout, UnknownTopic
from sparrow.net import HandlerResponse, RequestDispatcher
from sparrow.net.dispatcher import REQUESTS_IN_PROGRESS_MAX, encode_response
from sparrow.wire import bodies, headers
from sparrow.wire.codes import ADVERTISED_VERSION, Language, RequestCode, ResponseCode, RocketMQVersion
from sparrow.wire.frame import ONE_WAY_FLAG, RESPONSE_FLAG, RemotingCommand, Serialization, encode, response_to
from sparrow.wire.headers import OffsetResponse, QueueRequest

QUICK, STUCK, BROKEN, REFUSING, ASKING, LISTING = 7001, 7002, 7003, 7004, 7005, 7006
PLAIN, PLAIN_LATER, PLAIN_BROKEN, PLAIN_PARKED = 7101, 7102, 7103, 7104


class Context:
    """What the handlers of these tests share."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.calls = []


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
    """Asks the client before it answers."""
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

    plains = {
        PLAIN: plain,
        PLAIN_LATER: lambda command, _: later(command),
        PLAIN_BROKEN: plain_broken,
        PLAIN_PARKED: lambda command, _: None,
    }
    return RequestDispatcher(context, HANDLERS, plains)


@pytest.fixture
async def server(serving):
    async with listening(serving) as running:
        yield running


@pytest.fixture
async def channel(server):
    async with channel_to(server.address) as channel:
        yield channel


@pytest.fixture
async def wire(server):
    async with wire_to(server.address) as wire:
        yield wire


# -- finding the handler ----------------------------------------------------------------------------------------------


async def test_a_handler_gets_its_request_typed_and_answers_with_a_header(channel):
    answered = await channel.request(RequestCode.GET_MAX_OFFSET, QueueRequest("T", 7))
    assert (answered.code, headers.read(OffsetResponse, answered.ext)) == (0, OffsetResponse(107))


async def test_a_body_is_read_and_written_as_json(channel):
    answered = await channel.request(LISTING, body=bodies.write(bodies.TopicList(["b", "a"])))
    assert bodies.read(bodies.TopicList, answered.body).topic_list == ["a", "b"]


async def test_a_plain_handler_answers_at_once_or_later(context, channel):
    assert (await channel.request(PLAIN)).body == b"plain"
    later = channel.request(PLAIN_LATER)
    assert (await channel.request(PLAIN)).body == b"plain"
    context.gate.set()
    assert (await later).body == b"later"


async def test_an_answer_carries_opaque_response_bit_and_our_version(wire):
    answered = await wire.ask(RemotingCommand(QUICK, -5, 0, Language.GO, 317))
    assert (answered.opaque, answered.flag, answered.version) == (-5, RESPONSE_FLAG, ADVERTISED_VERSION)


@pytest.mark.parametrize("code", [PLAIN, QUICK, 9999, BROKEN])
async def test_an_answer_comes_in_the_serialization_of_its_request(wire, code):
    for serialization in (Serialization.BINARY, Serialization.JSON):
        answered = await wire.ask(RemotingCommand(code, 3, serialization=serialization))
        assert answered.serialization is serialization


async def test_an_unknown_code_is_answered_in_rocketmqs_words(channel):
    answered = await channel.request(31999)
    assert (answered.code, answered.remark) == (3, " request type 31999 not supported")
    assert (await channel.request(QUICK)).code == 0


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [BROKEN, PLAIN_BROKEN])
async def test_a_handler_that_fails_costs_its_request_and_nothing_else(channel, code, caplog):
    answered = await channel.request(code)
    assert answered.code == ResponseCode.SYSTEM_ERROR
    assert answered.remark.startswith("ZeroDivisionError: ")
    assert (await channel.request(QUICK)).code == 0
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["handler failed"]


async def test_a_refusal_is_answered_with_its_code_and_not_logged(channel, caplog):
    refused = await channel.request(REFUSING)
    assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "this is not permitted: it is a test")
    refused = await channel.request(PLAIN_BROKEN, body=b"refuse")
    assert refused.code == ResponseCode.TOPIC_NOT_EXIST
    assert "handler failed" not in caplog.text


async def test_a_missing_field_is_named(channel):
    refused = await channel.request(RequestCode.GET_MAX_OFFSET, headers.TopicRequest("T"))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "queueId" in refused.remark


async def test_a_body_that_is_no_json_is_refused_with_a_sentence(channel, caplog):
    refused = await channel.request(LISTING, body=b"{not json")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark
    assert "handler failed" not in caplog.text


@pytest.mark.parametrize("code", [QUICK, BROKEN, REFUSING, PLAIN, PLAIN_BROKEN, PLAIN_LATER, 9999])
async def test_one_way_requests_are_never_answered(context, wire, code):
    context.gate.set()
    wire.write(RemotingCommand(code, 1, ONE_WAY_FLAG), RemotingCommand(code, 2, ONE_WAY_FLAG))
    # Handlers run in the order of their requests: were there answers, they would come before this one.
    assert (await wire.ask(RemotingCommand(LISTING, 3, body=b"{}"))).opaque == 3
    assert (await wire.ask(RemotingCommand(PLAIN, 4))).opaque == 4


# -- both directions --------------------------------------------------------------------------------------------------


async def test_a_handler_may_ask_the_client_on_the_same_connection(server):
    def client(command, channel):
        assert command.body == b"and you?"
        channel.write(encode(response_to(command, 0, None, b"well")))

    async with channel_to(server.address, client) as channel:
        assert (await channel.request(ASKING)).body == b"you said: well"


async def test_the_two_directions_number_their_requests_on_their_own(wire):
    """Our request and the server's have the same opaque; neither is taken for an answer to the other."""
    wire.write(RemotingCommand(ASKING, 1))
    (theirs,) = await wire.read()
    assert (theirs.opaque, theirs.flag) == (1, 0)
    wire.write(response_to(theirs, 0, None, b"one"))
    (ours,) = await wire.read()
    assert (ours.opaque, ours.body) == (1, b"you said: one")


async def test_a_client_that_hangs_up_while_it_is_asked_costs_only_that_request(server, serving, wire, caplog):
    async with channel_to(server.address) as other:
        wire.write(RemotingCommand(ASKING, 1))
        await wire.read()
        wire.writer.close()
        await eventually(lambda: len(server.channels) == 1)
        await eventually(lambda: not serving._unanswered)
        assert (await other.request(QUICK)).code == 0
    assert "handler failed" not in caplog.text


# -- how much at a time -----------------------------------------------------------------------------------------------


async def test_a_held_request_does_not_hold_up_the_next(context, channel):
    held = channel.request(STUCK)
    assert (await channel.request(QUICK)).code == 0
    assert not held.done()
    context.gate.set()
    assert (await held).body == b"finished"


async def test_past_its_share_a_peer_is_told_to_try_again(context, server, channel):
    held = [channel.request(STUCK, timeout_ms=60_000) for _ in range(REQUESTS_IN_PROGRESS_MAX)]
    await eventually(lambda: len(context.calls) == REQUESTS_IN_PROGRESS_MAX)
    for code in (QUICK, PLAIN):
        refused = await channel.request(code)
        assert (refused.code, str(REQUESTS_IN_PROGRESS_MAX) in refused.remark or "in progress" in refused.remark) == (
            2,
            True,
        )
    async with channel_to(server.address) as other:
        assert (await other.request(QUICK)).code == 0  # each peer has a share of its own
    context.gate.set()
    assert {(await one).code for one in held} == {0}
    assert (await channel.request(QUICK)).code == 0
    (peer,) = [peer for peer in server.channels if peer.is_open][:1]
    await eventually(lambda: peer.requests_in_progress == 0)


async def test_a_thousand_tasks_of_one_write_are_all_answered(wire):
    wire.write(*(RemotingCommand(QUICK, opaque) for opaque in range(1000)))
    answers = await wire.read(1000)
    assert sorted(one.opaque for one in answers) == list(range(1000))
    assert {one.code for one in answers} == {0}


# -- stopping ---------------------------------------------------------------------------------------------------------


async def test_stopping_finishes_what_is_in_hand_and_refuses_what_is_new(context, serving, wire):
    wire.write(RemotingCommand(STUCK, 1))
    await eventually(lambda: context.calls)
    stopping = asyncio.ensure_future(serving.stop(grace_s=10))
    await eventually(lambda: serving.is_stopping)
    for code in (QUICK, PLAIN, 9999):
        refused = await wire.ask(RemotingCommand(code, 2, version=int(RocketMQVersion.V5_3_1)))
        assert (refused.code, refused.opaque) == (ResponseCode.SERVICE_NOT_AVAILABLE, 2)
        assert refused.remark
        sent_away = await wire.ask(RemotingCommand(code, 3, version=int(RocketMQVersion.V5_3_1) + 1))
        assert (sent_away.code, sent_away.opaque) == (ResponseCode.GO_AWAY, 3)
    assert not stopping.done()
    context.gate.set()
    (finished,) = await wire.read()
    assert (finished.opaque, finished.body) == (1, b"finished")
    await asyncio.wait_for(stopping, 5)


async def test_stopping_ignores_one_way_requests(context, serving, wire):
    await serving.stop(grace_s=0)
    wire.write(RemotingCommand(QUICK, 1, ONE_WAY_FLAG), RemotingCommand(PLAIN, 2, ONE_WAY_FLAG, version=500))
    assert (await wire.ask(RemotingCommand(QUICK, 3))).opaque == 3
    assert not context.calls


async def test_what_takes_longer_than_the_grace_is_told_so(context, serving, wire):
    wire.write(RemotingCommand(STUCK, 1), RemotingCommand(PLAIN_LATER, 2))
    await eventually(lambda: len(serving._unanswered) == 2 and context.calls)
    await serving.stop(grace_s=0.02)
    assert {(one.opaque, one.code) for one in await wire.read(2)} == {(1, 14), (2, 14)}


async def test_what_takes_longer_than_the_grace_is_told_so_before_the_listener_hangs_up(
    context, serving, server, channel
):
    """The order in which every server stops: no turn of the loop between the two."""
    held = channel.request(STUCK)
    await eventually(lambda: context.calls)
    await serving.stop(grace_s=0.02)
    await server.listener.stop()
    assert (await held).code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_request_that_came_just_before_the_end_is_answered_too(serving, server, wire):
    await wire.ask(RemotingCommand(QUICK))
    (peer,) = server.channels
    serving(RemotingCommand(QUICK, 77), peer)  # its task is made, and has not run yet
    await serving.stop(grace_s=0)
    wire.write(RemotingCommand(QUICK, 78))
    assert [one.opaque for one in await wire.read(1)] == [77]
    assert peer.requests_in_progress <= 1


async def test_lost_and_late_requests_are_told_apart(context, server):
    async with channel_to(server.address) as channel:
        with pytest.raises(RequestTimeout):
            await channel.request(STUCK, timeout_ms=20)
        held = channel.request(STUCK)
        await eventually(lambda: len(context.calls) == 2)
        await server.listener.stop()
        with pytest.raises(ConnectionLost):
            await held
    context.gate.set()
