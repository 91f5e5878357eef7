"""Latencies of requests, by request and response code."""

import time

import pytest

from sparrow.net.channel import Channel
from sparrow.net.dispatcher import RequestDispatcher
from sparrow.net.request_meter import (
    CODE_PAIRS_MAX,
    METER_BOUNDS_MS,
    NO_RESPONSE,
    RequestMeter,
    request_name,
    response_name,
)
from sparrow.telemetry.histogram import DurationHistogram
from sparrow.telemetry.metrics.rocketmq import RPC_BOUNDS_MS
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand, Serialization, encode, response_code_of, response_to

PULL = RemotingCommand(RequestCode.PULL_MESSAGE, 1)


async def test_requests_of_one_read_are_counted_together_when_it_ends() -> None:
    channel, meter = Channel(), RequestMeter()
    response = encode(response_to(PULL))
    dispatcher: RequestDispatcher[None] = RequestDispatcher(
        None, {}, {10: lambda *_: response, 11: lambda *_: response}
    )
    dispatcher.meter = meter
    for code in (10, 11, 10, 10):
        dispatcher(RemotingCommand(code, 1), channel)
    assert meter.latencies == {}
    assert channel.on_read_end is not None
    channel.on_read_end(4.0)
    assert {codes: histogram.count for codes, histogram in meter.latencies.items()} == {(10, 0): 3, (11, 0): 1}
    assert {histogram.counts[-1] for histogram in meter.latencies.values()} == {3, 1}, "4 s is above all bounds"
    assert not meter.answered


@pytest.mark.parametrize("serialization", Serialization)
async def test_errors_are_not_counted_as_successes_of_a_read(serialization: Serialization) -> None:
    channel, meter = Channel(), RequestMeter()
    responses = {code: encode(response_to(_request(code, serialization), code)) for code in (0, 1, 20, 256, -1, 3072)}
    dispatcher: RequestDispatcher[None] = RequestDispatcher(
        None, {}, {10: lambda command, _: responses[command.opaque]}
    )
    dispatcher.meter = meter
    for code in responses:
        dispatcher(RemotingCommand(10, code), channel)
    assert meter.answered == {10: 1}
    assert set(meter.latencies) == {(10, code) for code in responses if code}


def _request(opaque: int, serialization: Serialization) -> RemotingCommand:
    return RemotingCommand(RequestCode.PULL_MESSAGE, opaque, serialization=serialization)


async def test_a_channel_tells_the_end_of_a_read_once() -> None:
    ended: list[float] = []

    def serve(_: RemotingCommand, channel: Channel) -> None:
        channel.on_read_end = ended.append

    channel = Channel(serve)
    before_s = time.monotonic()
    channel.data_received(encode(PULL) * 3)
    assert len(ended) == 1
    assert 0 <= ended[0] <= time.monotonic() - before_s
    channel.data_received(encode(PULL)[:-1])
    assert len(ended) == 1, "no request is complete"


async def test_errors_and_one_way_requests_have_their_own_rows() -> None:
    meter = RequestMeter()
    meter.count_response(11, encode(response_to(PULL, ResponseCode.PULL_NOT_FOUND)), time.monotonic())
    meter.count_response(35, None, time.monotonic())
    assert set(meter.latencies) == {(11, ResponseCode.PULL_NOT_FOUND), (35, NO_RESPONSE)}


async def test_any_number_of_request_codes_makes_a_limited_number_of_rows() -> None:
    meter = RequestMeter()
    for code in range(CODE_PAIRS_MAX + 500):
        meter.count_response(100_000 + code, None, time.monotonic())
    assert len(meter.latencies) <= CODE_PAIRS_MAX + 1
    named = meter.by_names(lambda code, response: (request_name(code), response_name(response)))
    assert {labels: sum(value.counts) for labels, value in named.items()} == {
        ("unknown", "success"): CODE_PAIRS_MAX + 500
    }


async def test_finer_times_add_up_to_the_buckets_of_the_metric() -> None:
    meter = RequestMeter()
    meter.latencies[10, 0] = DurationHistogram(METER_BOUNDS_MS)
    for duration_ms in (0.05, 0.3, 2.5, 8, 30, 5000):
        meter.latencies[10, 0].add(duration_ms)
    (value,) = meter.by_names(lambda code, response: (request_name(code),)).values()
    assert value.counts == [2, 1, 0, 0, 1, 1, 0, 0, 0, 1]
    assert len(value.counts) == len(RPC_BOUNDS_MS) + 1


async def test_only_requests_of_the_named_codes_that_succeeded_are_added_up() -> None:
    meter = RequestMeter()
    for code, response in ((10, ResponseCode.SUCCESS), (310, ResponseCode.SUCCESS), (310, ResponseCode.SYSTEM_BUSY)):
        meter.count_response(code, encode(response_to(PULL, response)), time.monotonic())
    meter.count_response(11, encode(response_to(PULL, ResponseCode.SUCCESS)), time.monotonic())
    assert meter.successes((10, 310)).count == 2
    assert meter.successes((999,)).count == 0


def test_the_response_code_is_read_from_both_serializations() -> None:
    for serialization in Serialization:
        command = RemotingCommand(RequestCode.PULL_MESSAGE, 1, serialization=serialization)
        for code in (0, 1, 19, 206):
            assert response_code_of(encode(response_to(command, code, {"a": "b"}, b"body", "remark"))) == code
